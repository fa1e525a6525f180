"""The plan: every output tensor, where it goes and what makes it, settled before any weight is read.

A plan is made of *units*, the smallest pieces of work that are read and made together. Planning is pure: it
starts from headers and config only, so ``--dry-run``, collisions, sizes and the fingerprint all come from here.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Protocol

from convertkit import __version__
from convertkit.checkpoint import Checkpoint, TensorSpec
from convertkit.containers.folder import INDEX_SUFFIX, WEIGHTS
from convertkit.containers.safetensors import MAX_HEADER_BYTES, EncodedHeader, encode_header
from convertkit.conversion.metadata import METADATA, kept_metadata, metadata_findings
from convertkit.conversion.side_notes import side_file_findings
from convertkit.errors import ConvertError, Finding, finding
from convertkit.layouts.rules import natural_key

DEFAULT_SHARD_BYTES = 5_000_000_000
MOST_ESCAPED, MOST_ENTRY_BYTES = 6, 256
"""Most bytes of a header for one character of a name (``\\u001f``), and for the rest of an entry."""


class Unit(Protocol):
    """One piece of work. ``promise`` says what the checker will test on the written bytes."""

    @property
    def operation(self) -> str: ...
    @property
    def promise(self) -> str: ...
    @property
    def key(self) -> str:
        """Name of the tensor or module; units are sorted by it inside their bundle."""
        ...

    @property
    def bundle(self) -> str:
        """What must stay in one shard: units of a fused group share it, otherwise it is the key."""
        ...

    @property
    def inputs(self) -> tuple[str, ...]: ...
    @property
    def outputs(self) -> tuple[TensorSpec, ...]: ...


@dataclass(frozen=True, slots=True)
class Drop:
    """A source tensor that the output does not hold, and why."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """One weight file of the output with its header already encoded."""

    name: str
    header: EncodedHeader


@dataclass(frozen=True)
class Plan:
    """Everything that a run will do. ``documents`` are files written besides the weights (name to bytes), ``metadata``
    the pairs in the header of every weight file."""

    verb: str
    parameters: Mapping[str, Any]
    source: Checkpoint
    units: tuple[Unit, ...]
    files: tuple[PlannedFile, ...]
    file_of: Mapping[str, str]
    drops: tuple[Drop, ...]
    documents: Mapping[str, bytes]
    side_files: tuple[str, ...]
    findings: tuple[Finding, ...]
    fingerprint: str
    metadata: Mapping[str, str] = field(default_factory=lambda: METADATA)

    @property
    def outputs(self) -> dict[str, TensorSpec]:
        return {spec.name: spec for unit in self.units for spec in unit.outputs}

    @property
    def output_bytes(self) -> int:
        return sum(file.header.size_bytes for file in self.files) + sum(len(data) for data in self.documents.values())


@dataclass(frozen=True)
class Draft:
    """What a planner decides; ``settle`` turns it into a plan. ``files`` are the weight files where the planner has
    decided those too (it keeps the source's), otherwise the tensors are distributed. ``metadata`` goes into every
    header, where it is given instead of that of the source."""

    verb: str
    parameters: Mapping[str, Any]
    units: Sequence[Unit]
    drops: Sequence[Drop] = ()
    documents: Mapping[str, bytes] = field(default_factory=dict)
    findings: Sequence[Finding] = ()
    files: Sequence[PlannedFile] = ()
    metadata: Mapping[str, str] | None = None


def settle(source: Checkpoint, draft: Draft, max_shard_bytes: int = DEFAULT_SHARD_BYTES, slack_bytes: int = 0) -> Plan:
    """Check a draft against its source, distribute its tensors over files and fingerprint it.

    Raises ``ConvertError`` with every collision, or ``E_INTERNAL`` if a source tensor is not accounted for.
    """
    units = tuple(sorted(draft.units, key=lambda unit: (natural_key(unit.bundle), natural_key(unit.key))))
    _check_accounts(source, units, draft.drops)
    metadata = kept_metadata(source) if draft.metadata is None else draft.metadata
    files, file_of = _given(draft.files) if draft.files else _distribute(units, max_shard_bytes, slack_bytes, metadata)
    documents = dict(draft.documents)
    if not any(name.endswith(INDEX_SUFFIX) for name in documents):
        documents.update(_index(files, file_of))
    told = () if draft.files else tuple(metadata_findings(source, metadata))
    parameters = {**draft.parameters, "max_shard_size": max_shard_bytes, "header_slack": slack_bytes}
    fingerprint = _fingerprint(source, draft.verb, parameters, units, draft.drops, documents, draft.files, metadata)
    return Plan(
        draft.verb,
        parameters,
        source,
        units,
        files,
        file_of,
        tuple(draft.drops),
        documents,
        source.side_files,
        (*source.findings, *draft.findings, *told, *side_file_findings(source)),
        fingerprint,
        metadata,
    )


def _check_accounts(source: Checkpoint, units: Iterable[Unit], drops: Iterable[Drop]) -> None:
    """Every source tensor is used or dropped, none is both; no two outputs share a name."""
    used: set[str] = set()
    made: Counter[str] = Counter()
    for unit in units:
        used.update(unit.inputs)
        made.update(spec.name for spec in unit.outputs)
    twice = sorted(name for name, count in made.items() if count > 1)
    if twice:
        raise ConvertError(
            [
                finding("E_NAME_COLLISION", "error", f"{made[name]} tensors would get this name", tensor=name)
                for name in twice
            ]
        )
    dropped = {drop.name for drop in drops}
    lost = sorted(
        (source.tensors.keys() - used - dropped) | (used & dropped) | ((used | dropped) - source.tensors.keys())
    )
    if lost:
        raise ConvertError(
            [finding("E_INTERNAL", "error", "the plan does not account for it", tensor=name) for name in lost]
        )


def _distribute(
    units: Sequence[Unit], max_shard_bytes: int, slack_bytes: int, metadata: Mapping[str, str]
) -> tuple[tuple[PlannedFile, ...], dict[str, str]]:
    """Fill shards in the natural order of bundles; a bundle's tensors stay together. A shard is cut earlier where
    its header would be longer than readers accept."""
    by_size: list[list[list[TensorSpec]]] = [[]]
    filled = 0
    for _, bundle in groupby(units, key=lambda unit: unit.bundle):
        specs = [spec for unit in bundle for spec in unit.outputs]
        size = sum(spec.size_bytes for spec in specs)
        if by_size[-1] and filled + size > max_shard_bytes:
            by_size.append([])
            filled = 0
        by_size[-1].append(specs)
        filled += size
    shards = [specs for bundles in by_size for specs in _by_header(bundles, slack_bytes, metadata)]
    count = len(shards)
    names = (
        [f"model-{i + 1:05}-of-{count:05}.safetensors" for i in range(count)] if count > 1 else ["model.safetensors"]
    )
    files = tuple(
        PlannedFile(name, encode_header(specs, metadata, slack_bytes))
        for name, specs in zip(names, shards, strict=True)
    )
    return files, {spec.name: file.name for file in files for spec in file.header.order}


def _by_header(
    bundles: Sequence[list[TensorSpec]], slack_bytes: int, metadata: Mapping[str, str]
) -> Iterator[list[TensorSpec]]:
    """The tensors of a shard, in halves for as long as they are too many for one header."""
    specs = [spec for bundle in bundles for spec in bundle]
    most = sum(MOST_ESCAPED * len(spec.name) + MOST_ENTRY_BYTES for spec in specs)
    most += sum(MOST_ESCAPED * (len(key) + len(value)) for key, value in metadata.items())
    fits = len(bundles) < 2 or most + slack_bytes <= MAX_HEADER_BYTES
    if not fits:
        try:
            encode_header(specs, metadata, slack_bytes)
            fits = True
        except ConvertError:
            pass
    if fits:
        yield specs
        return
    for half in (bundles[: len(bundles) // 2], bundles[len(bundles) // 2 :]):
        yield from _by_header(half, slack_bytes, metadata)


def _given(files: Sequence[PlannedFile]) -> tuple[tuple[PlannedFile, ...], dict[str, str]]:
    return tuple(files), {spec.name: file.name for file in files for spec in file.header.order}


def _index(files: Sequence[PlannedFile], file_of: Mapping[str, str]) -> dict[str, bytes]:
    """``model.safetensors.index.json`` in the spelling of transformers; nothing for one file, or for a GGUF's parts."""
    if len(files) == 1 or not all(file.name.endswith(WEIGHTS) for file in files):
        return {}
    total = sum(spec.size_bytes for file in files for spec in file.header.order)
    document = {"metadata": {"total_size": total}, "weight_map": dict(sorted(file_of.items()))}
    return {"model.safetensors.index.json": (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode()}


def _fingerprint(
    source: Checkpoint,
    verb: str,
    parameters: Mapping[str, Any],
    units: Sequence[Unit],
    drops: Sequence[Drop],
    documents: Mapping[str, bytes],
    files: Sequence[PlannedFile],
    metadata: Mapping[str, str],
) -> str:
    """SHA-256 over all that decides the output's bytes, except the source's payload."""
    digest = hashlib.sha256()

    def add(value: Any) -> None:
        digest.update(json.dumps(value, sort_keys=True, separators=(",", ":")).encode() + b"\n")

    add(["convertkit", __version__, verb, dict(parameters)])
    for file in source.files:
        add([file.name, file.size_bytes])
    for name, ref in sorted(source.tensors.items()):
        add([name, ref.spec.dtype, ref.spec.shape, ref.file, ref.start])
    for unit in units:
        add([unit.operation, unit.inputs, [[spec.name, spec.dtype, spec.shape] for spec in unit.outputs]])
    for planned in files:
        add([planned.name, hashlib.sha256(planned.header.prefix).hexdigest()])
    add([[drop.name, drop.reason] for drop in drops])
    add({name: hashlib.sha256(data).hexdigest() for name, data in documents.items()})
    add(list(source.side_files))
    if metadata != METADATA:
        add({"metadata": dict(metadata)})
    return digest.hexdigest()
