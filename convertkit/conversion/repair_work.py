"""What the repairs of one call share: the source, what becomes of each tensor, config, and what is to be said."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from convertkit.checkpoint import Checkpoint, TensorRef, TensorSpec
from convertkit.containers.reader import Reader
from convertkit.conversion.identify import Identity
from convertkit.conversion.plan import Drop, Unit
from convertkit.conversion.tiles import byte_chunks
from convertkit.conversion.units import Copy
from convertkit.errors import Finding, finding, refusal
from convertkit.layouts.rules import module_of


@dataclass(frozen=True)
class RepairRequest:
    """What ``repair`` was asked for, option by option. ``shard_bytes`` is that of ``--shard``; ``groups`` are more
    fused groups for ``--tie-scales``, each ``a.{i}.to_q,a.{i}.to_k``. ``d2t`` is the form that the map of a reduced
    vocabulary gets, ``d2t_holds`` the one that the user states it has (``vocabulary.FORMS``). ``drop`` and ``keep`` are
    templates over names of tensors."""

    rebuild_index: bool = False
    dedupe: bool = False
    drop: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    drop_tied: bool = False
    strip_quant_residue: bool = False
    normalise_kv_scales: str | None = None
    tie_scales: bool = False
    groups: tuple[str, ...] = ()
    allow_loss: bool = False
    split_fused_scalars: bool = False
    swap_nibbles: bool = False
    split: tuple[str, ...] = ()
    fuse: tuple[str, ...] = ()
    set_config: bool = False
    d2t: str | None = None
    d2t_holds: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    shard_bytes: int | None = None
    merge: bool = False


@dataclass
class Work:
    """The state that repairs change one after another.

    ``made`` are units that replace the tensors they read; ``renamed`` and ``dropped`` go by source names;
    ``repeated``, ``lost`` and ``strays`` come from opening without an index. ``effects`` names the repairs that do
    something.
    """

    source: Checkpoint
    identity: Identity
    reader: Reader
    repeated: Mapping[str, tuple[TensorRef, ...]] = field(default_factory=dict)
    lost: tuple[str, ...] = ()
    strays: tuple[str, ...] = ()
    made: list[Unit] = field(default_factory=list)
    renamed: dict[str, str] = field(default_factory=dict)
    dropped: dict[str, str] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    quant_config: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    effects: list[str] = field(default_factory=list)
    owner: dict[str, str] = field(default_factory=dict)

    def claim(self, names: Iterable[str], option: str) -> None:
        """Note that a repair decides about source tensors. Raises E_USAGE if another one has."""
        for name in names:
            other = self.owner.setdefault(name, option)
            if other != option:
                raise refusal(
                    "E_USAGE", f"{other} and {option} both change it", tensor=name, fix="run one repair after the other"
                )
        self.effect(option)

    def effect(self, option: str) -> None:
        if option not in self.effects:
            self.effects.append(option)

    def note(self, code: str, message: str, **place: Any) -> None:
        self.findings.append(finding(code, "note", message, **place))

    def drop(self, name: str, reason: str, option: str) -> None:
        self.claim([name], option)
        self.dropped[name] = reason

    def rename(self, name: str, new: str, option: str) -> None:
        self.claim([name], option)
        self.renamed[name] = new

    def make(self, units: Iterable[Unit], option: str) -> None:
        for unit in units:
            self.claim(unit.inputs, option)
            self.made.append(unit)

    def units(self) -> list[Unit]:
        """All units: those made, and copies of everything that no repair replaces or drops."""
        used = {name for unit in self.made for name in unit.inputs}
        copies = [
            Copy(ref, self.renamed.get(name, name), module_of(self.renamed.get(name, name)))
            for name, ref in self.source.tensors.items()
            if name not in used and name not in self.dropped
        ]
        return [*self.made, *copies]

    def specs(self) -> list[TensorSpec]:
        return [spec for unit in self.units() for spec in unit.outputs]

    def drops(self) -> list[Drop]:
        return [Drop(name, reason) for name, reason in self.dropped.items()]


def same_bytes(reader: Reader, one: TensorRef, two: TensorRef) -> bool:
    """Whether two stored tensors have one dtype and shape and hold the same bytes."""
    if (one.spec.dtype, one.spec.shape) != (two.spec.dtype, two.spec.shape):
        return False
    digests = []
    for ref in (one, two):
        digest = hashlib.sha256()
        for offset, length in byte_chunks(ref.size_bytes):
            data = bytearray(length)
            reader.read_into(ref, offset, memoryview(data))
            digest.update(data)
        digests.append(digest.digest())
    return digests[0] == digests[1]
