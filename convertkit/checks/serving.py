"""From a packed checkpoint to the tables under which an engine serves each of its weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from convertkit.checks.reference import PlaneTables
from convertkit.checks.served import ENGINES, Part, is_expert, lift_scope, ratio, served_bits, served_tables
from convertkit.checks.tiles import row_tiles
from convertkit.conversion.desk import Desk
from convertkit.conversion.tiles import in_parallel
from convertkit.dialects.planes import PackedModule
from convertkit.dialects.spelling import GROUP
from convertkit.dialects.values import sound_global_bits
from convertkit.errors import Finding, finding
from convertkit.layouts.fused import Group, fused_groups
from convertkit.layouts.layout import Layout


@dataclass(frozen=True)
class Serving:
    """``tables`` by the dense name of each packed weight; ``findings`` about scales that an engine does not keep."""

    tables: Mapping[str, PlaneTables] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()


def serving_of(
    desk: Desk,
    packed: Mapping[str, PackedModule],
    layout: Layout,
    engine: str,
    workers: int,
    fuse: Sequence[Group] = (),
) -> Serving:
    """How ``engine`` (a row of ``ENGINES``) serves the packed linears of a checkpoint. Reads global scales, and block
    scales where the engine's treatment depends on the largest of them. ``ConvertError`` (1) for bad global scales."""
    row = ENGINES[engine]
    groups = fused_groups(packed, layout, fuse)
    bits = sound_global_bits(desk.reader, packed.values(), status=1)
    largest = _largest(desk, groups, packed, workers) if row.lifts else {}
    tables: dict[str, PlaneTables] = {}
    findings: list[Finding] = []
    for lead, members in groups.items():
        stored = [bits[module] for module in members]
        senses = [packed[module].spelling.sense for module in members]
        for position, module in enumerate(members):
            used = served_bits(row, stored, position, expert=is_expert(module)) if len(set(senses)) == 1 else stored[0]
            part = Part(used, senses[position], largest.get(lift_scope(lead), 0))
            tables[f"{module}.weight"] = served_tables(row, part)
            if used != bits[module]:
                findings.append(_unequal(engine, module, ratio(bits[module], used, senses[position])))
    return Serving(tables, tuple(findings))


def _unequal(engine: str, module: str, factor: float) -> Finding:
    return finding(
        "W_SERVED_SCALE",
        "warning",
        f"{engine} serves it with the global scale of another part of its fused matrix: {factor:.6g} times its values",
        tensor=f"{module}.weight",
        fix="pack the group again with one shared scale",
        data={"engine": engine, "factor": factor},
    )


def _largest(
    desk: Desk, groups: Mapping[str, Sequence[str]], packed: Mapping[str, PackedModule], workers: int
) -> dict[str, int]:
    """The largest positive scale byte of each scope."""
    pairs = [(lift_scope(lead), packed[module]) for lead, members in groups.items() for module in members]
    desk.progress.stage("scales", sum(item.block_scale.size_bytes for _, item in pairs))
    found = in_parallel(lambda pair: _largest_of(desk, pair[1]), pairs, workers)
    largest: dict[str, int] = {}
    for (scope, _), byte in zip(pairs, found, strict=True):
        largest[scope] = max(largest.get(scope, 0), byte)
    return largest


def _largest_of(desk: Desk, packed: PackedModule) -> int:
    return max((int(tile[tile < 0x7F].max(initial=0)) for tile in _scale_tiles(desk, packed)), default=0)


def _scale_tiles(desk: Desk, packed: PackedModule) -> Iterator[np.ndarray[tuple[int, ...], np.dtype[np.uint8]]]:
    width = packed.in_features // GROUP
    for first, rows in row_tiles(packed.out_features, width):
        desk.stop.check()
        tile = desk.rows("yours scales", packed.block_scale, first, (rows, width), "|u1")
        desk.progress.advance(tile.nbytes)
        yield tile
