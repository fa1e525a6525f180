"""First reading of the weights: what must be known or refused before the first byte is written.

For a fused group that is its largest magnitude; for packed linears their scales, and whether expanding them
stays finite. All faults of all tensors are reported together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from convertkit.checkpoint import TensorRef
from convertkit.conversion.desk import Desk
from convertkit.conversion.gguf_units import Quantize, Recode, Regroup
from convertkit.conversion.gridsearch import GridFact, off_grid_finding, search_grid
from convertkit.conversion.plan import Plan, Unit
from convertkit.conversion.tiles import in_parallel, row_tiles
from convertkit.conversion.units import Cast, Expand, Pack, Respell
from convertkit.dialects.planes import PackedModule
from convertkit.dialects.values import BlockFaults, block_faults, block_scale_findings, global_scale_findings
from convertkit.dtypes import DTYPES
from convertkit.errors import Finding, finding, raise_all

INFINITY = {"BF16": 0x7F80, "F16": 0x7C00, "F32": 0x7F80_0000}
"""Bits of +infinity: magnitudes from here on are not finite."""
STORAGE = {"BF16": "<u2", "F16": "<u2", "F32": "<u4"}
"""Integer type that holds the bits of a dense float type."""


@dataclass(frozen=True)
class Facts:
    """What the survey found. Bits are those stored: of the source dtype for ``group_amax``, FP32 for scales."""

    group_amax: Mapping[str, int] = field(default_factory=dict)
    global_bits: Mapping[str, int] = field(default_factory=dict)
    input_bits: Mapping[str, int] = field(default_factory=dict)
    grids: Mapping[str, GridFact] = field(default_factory=dict)


@dataclass(frozen=True)
class Glimpse:
    """Facts and faults of one tensor or linear."""

    key: str
    kind: str
    bits: int = 0
    input_bits: int | None = None
    faults: tuple[Finding, ...] = ()
    grid: GridFact | None = None


def survey(plan: Plan, desk: Desk, workers: int) -> Facts:
    """Read what must be read first. Raises ``ConvertError`` with every fault found."""
    tasks = [task for unit in plan.units for task in _tasks(unit)]
    tasks.sort(key=lambda task: -task[2])
    desk.progress.stage("survey", sum(task[2] for task in tasks))
    glimpses = in_parallel(lambda task: task[0](desk, task[1]), tasks, workers)
    raise_all(fault for glimpse in sorted(glimpses, key=lambda item: item.key) for fault in glimpse.faults)
    amax: dict[str, int] = {}
    for glimpse in glimpses:
        if glimpse.kind == "amax":
            amax[glimpse.key] = max(amax.get(glimpse.key, 0), glimpse.bits)
    return Facts(
        amax,
        {item.key: item.bits for item in glimpses if item.kind == "scales"},
        {item.key: item.input_bits for item in glimpses if item.input_bits is not None},
        {item.key: item.grid for item in glimpses if item.grid is not None},
    )


Task = tuple[Callable[[Desk, Any], Glimpse], Any, int]


def _tasks(unit: Unit) -> Sequence[Task]:
    if isinstance(unit, Pack):
        if unit.search == "lossless" or (unit.search != "no" and unit.dtype == "BF16"):
            return [(_grid, unit, sum(ref.size_bytes for ref in unit.sources))]
        return [(_amax, (unit.key, ref), ref.size_bytes) for ref in unit.sources]
    if isinstance(unit, Expand):
        return [(_scales, (unit.packed, unit.dtype), unit.packed.block_scale.size_bytes)]
    if isinstance(unit, Respell):
        return [(_scales, (unit.packed, None), unit.packed.block_scale.size_bytes)]
    if isinstance(unit, Cast):
        return [(_castable, unit, unit.source.size_bytes)]
    return _gguf_tasks(unit)


def _gguf_tasks(unit: Unit) -> Sequence[Task]:
    """Global scales of packed linears that are moved or decoded, and magnitudes of what is quantized."""
    if isinstance(unit, Quantize):
        return [(_amax, (key, ref), ref.size_bytes) for _, parts in unit.members for ref, key in parts]
    if isinstance(unit, Regroup):
        return [(_scales, (module, None), module.block_scale.size_bytes) for module in unit.modules]
    if isinstance(unit, Recode):
        dtype = unit.spec.dtype if unit.spec.dtype in STORAGE else "F32"
        packed = [source for source in unit.sources if isinstance(source, PackedModule)]
        return [(_scales, (module, dtype), module.block_scale.size_bytes) for module in packed]
    return []


def _amax(desk: Desk, task: tuple[str, TensorRef]) -> Glimpse:
    """Largest magnitude of one weight, as bits."""
    from convertkit.grids.nvfp4.devices import kernels_of

    amax_of_tile = kernels_of(desk.device).amax
    key, ref = task
    rows, width = ref.spec.shape
    storage = STORAGE[ref.spec.dtype]
    row_bytes = width * np.dtype(storage).itemsize
    largest = 0
    for first, last in row_tiles(rows, row_bytes, desk.tile_bytes):
        desk.stop.check()
        tile = desk.rows("source", ref, first, (last - first, width), storage)
        largest = max(largest, amax_of_tile(tile))
        desk.progress.advance(tile.nbytes)
    if largest < INFINITY[ref.spec.dtype]:
        return Glimpse(key, "amax", largest)
    return Glimpse(key, "amax", largest, faults=(_nonfinite(ref),))


def _nonfinite(ref: TensorRef) -> Finding:
    return finding(
        "E_WEIGHT_NONFINITE",
        "error",
        "the weight holds NaN or infinity",
        file=ref.file,
        tensor=ref.spec.name,
        fix="repair the weight, or leave it out with --exclude",
    )


def _grid(desk: Desk, unit: Pack) -> Glimpse:
    """The grid of one group, and its largest magnitude."""
    if unit.dtype != "BF16":
        fact = GridFact("none", f"only BF16 weights can be searched, it is {unit.dtype}", 0)
        return Glimpse(unit.key, "amax", faults=(off_grid_finding(unit.sources, fact),))
    fact = search_grid(
        desk,
        unit.sources,
        unit.spelling.sense,
        unit.hints,
        thorough=unit.search != "auto",
        least_scale=unit.least_scale,
        reversible=unit.reversible,
    )
    desk.progress.advance(sum(ref.size_bytes for ref in unit.sources))
    if fact.amax_bits >= INFINITY[unit.dtype]:
        tensors = [_amax(desk, (unit.key, ref)) for ref in unit.sources]
        return Glimpse(unit.key, "amax", fact.amax_bits, faults=tuple(item for one in tensors for item in one.faults))
    faults: tuple[Finding, ...] = ()
    if unit.search == "lossless" and fact.status != "grid":
        faults = (off_grid_finding(unit.sources, fact),)
    return Glimpse(unit.key, "amax", fact.amax_bits, faults=faults, grid=fact)


def _scales(desk: Desk, task: tuple[PackedModule, str | None]) -> Glimpse:
    """Scales of one packed linear; ``dtype`` is that of the expansion, None if nothing is expanded."""
    packed, dtype = task
    bits = desk.reader.f32_bits(packed.global_scale)
    faults = list(global_scale_findings(packed.global_scale, bits, packed.spelling.sense))
    found = BlockFaults()
    highest = 0
    blocks = packed.block_scale.spec.shape[1]
    for first, last in row_tiles(packed.out_features, blocks):
        desk.stop.check()
        tile = desk.rows("scales", packed.block_scale, first, (last - first, blocks), "|u1")
        codes = _codes_rows(desk, packed, first, last) if (tile & 0x7F == 0).any() else None
        found += block_faults(tile, codes, first)
        highest = max(highest, int((tile & 0x7F).max()))
        desk.progress.advance(tile.nbytes)
    faults.extend(block_scale_findings(packed, found))
    if dtype is not None and not faults:
        faults.extend(_overflow(desk, packed, bits, dtype, highest))
    input_bits = None if packed.input_scale is None else desk.reader.f32_bits(packed.input_scale)
    if packed.input_scale is not None and input_bits is not None and dtype is None:
        faults.extend(global_scale_findings(packed.input_scale, input_bits, packed.spelling.sense))
    return Glimpse(packed.module, "scales", bits, input_bits, tuple(faults))


def _codes_rows(desk: Desk, packed: PackedModule, first: int, last: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    shape = (last - first, packed.in_features // 2)
    return desk.rows("codes", packed.codes, first, shape, "|u1").view(np.uint8)


def _overflow(desk: Desk, packed: PackedModule, bits: int, dtype: str, highest: int) -> Sequence[Finding]:
    """A finding if some code under its scale expands to infinity in ``dtype``; reads codes only if one could."""
    from convertkit.grids.nvfp4.decode import decode_table

    table = decode_table(bits, packed.spelling.sense, dtype, "exact")
    too_large = (table & (INFINITY[dtype])) == INFINITY[dtype]
    if not too_large[: highest + 1].any():
        return ()
    blocks = packed.block_scale.spec.shape[1]
    count = 0
    for first, last in row_tiles(packed.out_features, packed.in_features):
        scales = desk.rows("scales", packed.block_scale, first, (last - first, blocks), "|u1")
        codes = _codes_rows(desk, packed, first, last)
        spread = np.repeat(scales, 8, axis=1)
        count += int(too_large[spread, codes & 15].sum()) + int(too_large[spread, codes >> 4].sum())
    if not count:
        return ()
    return (
        finding(
            "E_NONFINITE_OUTPUT",
            "error",
            f"{count} elements expand to infinity in {dtype}",
            file=packed.codes.file,
            tensor=f"{packed.module}.weight",
            fix="the global scale is damaged or inverted; expand to F32 to look",
            data={"count": count},
        ),
    )


def _castable(desk: Desk, unit: Cast) -> Glimpse:
    """Whether casting keeps finite values finite."""
    from convertkit.grids.dense import cast

    ref = unit.source
    count = 0
    size = DTYPES[ref.spec.dtype].bits // 8
    for first, last in row_tiles(ref.spec.elements, size):
        desk.stop.check()
        tile = desk.rows("source", ref, first, (last - first,), STORAGE[ref.spec.dtype])
        out = cast(tile, ref.spec.dtype, unit.dtype)
        was = tile & INFINITY[ref.spec.dtype] != INFINITY[ref.spec.dtype]
        count += int(((out & INFINITY[unit.dtype] == INFINITY[unit.dtype]) & was).sum())
        desk.progress.advance(tile.nbytes)
    if not count:
        return Glimpse(unit.key, "cast")
    fault = finding(
        "E_NONFINITE_OUTPUT",
        "error",
        f"{count} elements become infinite in {unit.dtype}",
        file=ref.file,
        tensor=ref.spec.name,
        data={"count": count},
    )
    return Glimpse(unit.key, "cast", faults=(fault,))
