"""Which weight of one checkpoint is which of the other: by name, and by content under another name."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from convertkit.checkpoint import Checkpoint
from convertkit.checks.differ import weights_and_rest
from convertkit.checks.gate import Weight
from convertkit.containers.folder import open_checkpoint
from convertkit.containers.reader import Reader
from convertkit.conversion.stop import Stop
from convertkit.dialects.planes import PackedModule
from convertkit.release.digests import sha256_range
from convertkit.release.recorded import recorded


@dataclass(frozen=True)
class Side:
    """One checkpoint: its weights by dense name, and recorded SHA-256 of stored tensors."""

    checkpoint: Checkpoint
    weights: Mapping[str, Weight]
    sha256: Mapping[str, str]


@dataclass(frozen=True)
class Pairing:
    """Which weight is which: common names, renames (old, new) found by content, and what is left on either side."""

    common: tuple[str, ...]
    renamed: tuple[tuple[str, str], ...]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]


def open_side(path: str | os.PathLike[str]) -> Side:
    """Open one checkpoint. Raises ``ConvertError`` as ``open_checkpoint``."""
    checkpoint = open_checkpoint(path)
    return Side(checkpoint, weights_and_rest(checkpoint), recorded(checkpoint).tensors)


def pair_weights(sides: Sequence[Side], readers: Sequence[Reader], headers: bool, stop: Stop) -> Pairing:
    """Pair the weights of two checkpoints; with ``headers`` contents count only where their digests are recorded."""
    left, right = sides[0].weights, sides[1].weights
    only_a, only_b = [name for name in left if name not in right], [name for name in right if name not in left]
    renamed: list[tuple[str, str]] = []
    if only_a and only_b:
        renamed = _renames(sides, readers, only_a, only_b, headers, stop)
    old, new = {pair[0] for pair in renamed}, {pair[1] for pair in renamed}
    return Pairing(
        tuple(name for name in left if name in right),
        tuple(renamed),
        tuple(name for name in only_a if name not in old),
        tuple(name for name in only_b if name not in new),
    )


def _renames(
    sides: Sequence[Side],
    readers: Sequence[Reader],
    only_a: Sequence[str],
    only_b: Sequence[str],
    headers: bool,
    stop: Stop,
) -> list[tuple[str, str]]:
    """Weights of equal content under different names. Several of one content are paired in the order of their names."""
    forms = {_form(sides[0].weights[name]) for name in only_a} & {_form(sides[1].weights[name]) for name in only_b}
    found: list[dict[tuple[Any, ...], list[str]]] = [{}, {}]
    for number, names in enumerate((only_a, only_b)):
        for name in names:
            weight = sides[number].weights[name]
            content = (
                _content(sides[number], readers[number], weight, headers, stop) if _form(weight) in forms else None
            )
            if content is not None:
                found[number].setdefault((_form(weight), content), []).append(name)
    pairs = [
        (old, new)
        for content, olds in found[0].items()
        for old, new in zip(olds, found[1].get(content, ()), strict=False)
    ]
    place = {name: number for number, name in enumerate(only_a)}
    return sorted(pairs, key=lambda pair: place[pair[0]])


def _form(weight: Weight) -> tuple[Any, ...]:
    stored = weight.stored
    return (weight.shape, "packed" if isinstance(stored, PackedModule) else stored.spec.dtype)


def _content(side: Side, reader: Reader, weight: Weight, headers: bool, stop: Stop) -> tuple[str, ...] | None:
    """Digests of the stored bytes (codes and block scales of a packed weight); None if they are not to be taken."""
    stored = weight.stored
    refs = (stored.codes, stored.block_scale) if isinstance(stored, PackedModule) else (stored,)
    digests = []
    for ref in refs:
        stop.check()
        known = side.sha256.get(ref.spec.name)
        if known is None and headers:
            return None
        digests.append(known or sha256_range(reader.fd(ref.file), ref.start, ref.size_bytes, ref.file))
    return tuple(digests)
