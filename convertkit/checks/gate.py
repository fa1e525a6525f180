"""Two checkpoints of any dialects against each other: every weight that both hold, as values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from convertkit.checkpoint import Checkpoint, TensorRef
from convertkit.checks.compare import Dense, Planes, Side, compare_tiles
from convertkit.checks.fidelity import Tally
from convertkit.checks.reference import PlaneTables
from convertkit.checks.tiles import tile_rows
from convertkit.conversion.desk import Desk
from convertkit.conversion.survey import STORAGE
from convertkit.conversion.tiles import byte_chunks, in_parallel
from convertkit.dialects.planes import PackedModule, find_packed
from convertkit.dialects.spelling import GROUP
from convertkit.dialects.values import BlockFaults, block_faults, block_scale_findings, sound_global_bits
from convertkit.dtypes import DTYPES, FLOATS, elements
from convertkit.errors import ConvertError, Finding, finding

DEVICE_TILES = 16
"""Tiles that a device sums at a time: each keeps some hundred threads busy."""


@dataclass(frozen=True)
class Weight:
    """One logical weight: dense or packed, and its logical shape."""

    name: str
    shape: tuple[int, ...]
    stored: TensorRef | PackedModule

    @property
    def elements(self) -> int:
        return elements(self.shape)

    @property
    def is_float(self) -> bool:
        return isinstance(self.stored, PackedModule) or self.stored.spec.dtype in FLOATS


@dataclass(frozen=True)
class Compared:
    """One weight of both checkpoints. ``equal_bytes`` is for tensors that are not floats (or are compared as bytes).

    ``findings`` are bad block scales of either side: NaN, negative, or zero over codes that are not.
    """

    name: str
    packed: bool
    tally: Tally | None
    equal_bytes: bool | None
    global_bits: int | None
    findings: tuple[Finding, ...] = ()


def weights_of(checkpoint: Checkpoint) -> dict[str, Weight]:
    """Every logical weight by its dense name. Scales of activations and KV caches are not weights.

    Raises ``ConvertError`` with every fault of the planes.
    """
    planes = find_packed(checkpoint)
    errors = [item for item in planes.findings if item.severity == "error"]
    if errors:
        raise ConvertError(errors)
    weights = {
        name: Weight(name, ref.spec.shape, ref)
        for name, ref in checkpoint.tensors.items()
        if name not in planes.plane_names and name not in planes.kv_scales
    }
    for module, packed in planes.packed.items():
        name = f"{module}.weight"
        weights[name] = Weight(name, (packed.out_features, packed.in_features), packed)
    return weights


def missing_findings(reference: Mapping[str, Weight], candidate: Mapping[str, Weight]) -> Iterator[Finding]:
    """E_REFERENCE for every weight that only one of the two holds, or that has another shape."""
    for name in sorted(reference.keys() | candidate.keys()):
        mine, yours = reference.get(name), candidate.get(name)
        if mine is None or yours is None:
            where = "the reference" if mine is None else "the candidate"
            yield finding("E_REFERENCE", "error", f"{where} does not hold it", tensor=name)
        elif mine.shape != yours.shape:
            yield finding("E_REFERENCE", "error", f"shape {list(mine.shape)} against {list(yours.shape)}", tensor=name)


def compare_checkpoints(
    desks: tuple[Desk, Desk],
    names: list[tuple[Weight, Weight]],
    workers: int,
    stored: str | None = None,
    served: Mapping[str, PlaneTables] = MappingProxyType({}),
) -> list[Compared]:
    """Compare pairs of weights (reference, candidate) of equal shape, in the order given; ``desks`` likewise.

    ``served`` are the tables under which packed weights of the candidate are to be decoded, by name.
    """
    reference, candidate = desks
    candidate.progress.stage("compare", sum(_size(pair[1]) for pair in names))
    order = sorted(range(len(names)), key=lambda i: -_size(names[i][1]))
    found = in_parallel(lambda i: compare_weight(reference, candidate, *names[i], stored, served), order, workers)
    by_place = dict(zip(order, found, strict=True))
    return [by_place[i] for i in range(len(names))]


def _size(weight: Weight) -> int:
    stored = weight.stored
    return stored.codes.size_bytes if isinstance(stored, PackedModule) else stored.size_bytes


def compare_weight(
    reference: Desk,
    candidate: Desk,
    mine: Weight,
    yours: Weight,
    stored: str | None,
    served: Mapping[str, PlaneTables],
    *,
    swap: bool = False,
) -> Compared:
    """Compare one pair in tiles of rows; with ``swap`` as if the nibbles of the candidate's codes were exchanged."""
    packed = isinstance(yours.stored, PackedModule)
    if not (mine.is_float and yours.is_float):
        return Compared(mine.name, packed, None, _equal_bytes(reference, candidate, mine, yours), None)
    rows = mine.shape[0] if len(mine.shape) == 2 else 1
    width = int(np.prod(mine.shape, dtype=np.int64)) // rows if rows else 0
    scales = (_global_bits(reference, mine), _global_bits(candidate, yours))
    tally, faults = Tally(), (BlockFaults(), BlockFaults())
    step = tile_rows(width) * (1 if candidate.device == "cpu" else DEVICE_TILES)
    for first in range(0, rows, step) if width else ():
        count = min(step, rows - first)
        candidate.stop.check()
        left = _side(reference, mine, "mine", scales[0], first, count, width)
        right = _side(candidate, yours, "yours", scales[1], first, count, width)
        if isinstance(right, Planes) and swap:
            right = replace(right, codes=(right.codes >> 4 | right.codes << 4).astype(np.uint8))
        if isinstance(right, Planes) and yours.name in served:
            right = replace(right, tables=served[yours.name])
        for part in compare_tiles(left, right, tile_rows(width), stored=stored, device=candidate.device):
            tally = tally + part
        faults = faults[0] + _block_faults(left, first), faults[1] + _block_faults(right, first)
    candidate.progress.advance(_size(yours))
    bad = (*_block_findings(mine, faults[0], "in the reference "), *_block_findings(yours, faults[1]))
    return Compared(mine.name, packed, tally, None, scales[1], bad)


def _block_faults(side: Side, first: int) -> BlockFaults:
    return block_faults(side.scales, side.codes, first) if isinstance(side, Planes) else BlockFaults()


def _block_findings(weight: Weight, faults: BlockFaults, place: str = "") -> Iterator[Finding]:
    if isinstance(weight.stored, PackedModule):
        for item in block_scale_findings(weight.stored, faults):
            yield replace(item, message=place + item.message)


def _global_bits(desk: Desk, weight: Weight) -> int | None:
    """FP32 bits of a packed weight's global scale; a bad one is refused (status 1: it is a finding of the gate)."""
    if not isinstance(weight.stored, PackedModule):
        return None
    return sound_global_bits(desk.reader, (weight.stored,), status=1)[weight.stored.module]


def _side(desk: Desk, weight: Weight, use: str, bits: int | None, first: int, rows: int, width: int) -> Side:
    stored = weight.stored
    if isinstance(stored, PackedModule):
        assert bits is not None
        codes = desk.rows(use + " codes", stored.codes, first, (rows, width // 2), "|u1")
        scales = desk.rows(use + " scales", stored.block_scale, first, (rows, width // GROUP), "|u1")
        return Planes(codes, scales, bits, stored.spelling.sense)
    return Dense(desk.rows(use, stored, first, (rows, width), STORAGE[stored.spec.dtype]), stored.spec.dtype)


def _equal_bytes(reference: Desk, candidate: Desk, mine: Weight, yours: Weight) -> bool:
    """Whether two tensors that are not both floats hold the same bytes in the same dtype."""
    left, right = mine.stored, yours.stored
    if isinstance(left, PackedModule) or isinstance(right, PackedModule) or left.spec.dtype != right.spec.dtype:
        return False
    assert DTYPES[left.spec.dtype].bits >= 4
    for offset, length in byte_chunks(left.size_bytes):
        one = reference.rows("mine", left, offset, (length,), "|u1")
        two = candidate.rows("yours", right, offset, (length,), "|u1")
        if not np.array_equal(one, two):
            return False
    return True
