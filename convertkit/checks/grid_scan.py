"""Which dense linears lie on an NVFP4 grid: weights that were trained for it, or expanded from a pack."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from convertkit.checkpoint import Checkpoint, TensorSpec
from convertkit.containers.reader import Reader
from convertkit.conversion.desk import Desk
from convertkit.conversion.gridsearch import GridFact, grid_data, search_grid
from convertkit.conversion.stop import Stop
from convertkit.conversion.tiles import Buffers
from convertkit.errors import MAX_LISTED, Finding, finding
from convertkit.layouts.fused import Group, fused_groups
from convertkit.layouts.layout import Layout
from convertkit.layouts.rules import families
from convertkit.progress import SILENT


def grid_findings(
    checkpoint: Checkpoint,
    linears: Mapping[str, TensorSpec],
    layout: Layout,
    reader: Reader,
    fuse: Sequence[Group] = (),
) -> Iterator[Finding]:
    """N_ON_GRID, one for each family of fused groups of BF16 linears that lie on a grid; W_PART_GRID as a note for
    each group that does in part. Reads a tile of every group, and more of those that may lie on a grid."""
    desk = Desk(reader, Stop(), SILENT, Buffers())
    bf16 = [module for module, spec in linears.items() if spec.dtype == "BF16" and spec.shape[1] % 16 == 0]
    facts: dict[str, GridFact] = {}
    groups = fused_groups(bf16, layout, fuse)
    for lead, members in groups.items():
        refs = [checkpoint.tensors[f"{module}.weight"] for module in members]
        facts[lead] = search_grid(desk, refs, "multiplier", (), thorough=False, measure=False)
    whole = [lead for lead, fact in facts.items() if fact.status == "grid" and fact.blocks]
    for family in families(whole).values():
        count = len(family.names)
        what = "fused group lies" if count == 1 else "fused groups lie"
        names = [module for lead in family.names for module in groups[lead]]
        yield finding(
            "N_ON_GRID",
            "note",
            f"{count} {what} on an NVFP4 grid ({len(names)} BF16 weights): they can be packed without loss",
            tensor=f"{family.names[0]}.weight",
            fix="pack-nvfp4 does so by default; --scales lossless insists on it",
            data={"count": count, "template": family.template, "modules": names[:MAX_LISTED]},
        )
    for lead, fact in facts.items():
        if fact.status in ("part", "several"):
            yield finding("W_PART_GRID", "note", fact.reason, tensor=f"{lead}.weight", data=grid_data(fact))
