"""The repairs: the table of options, which finding codes each cures, and carrying out those that were asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from convertkit.containers.folder import CONFIG
from convertkit.conversion.repair_config import (
    requantize,
    set_config,
)
from convertkit.conversion.repair_drops import drop_named
from convertkit.conversion.repair_maps import bring_map
from convertkit.conversion.repair_steps import (
    INDEX_CODES,
    dedupe,
    drop_tied,
    files,
    metadata,
    normalise_kv_scales,
    rebuild_index,
    split_fused_scalars,
    strip_quant_residue,
    surgery,
    swap_nibbles,
    tie_scales,
)
from convertkit.conversion.repair_work import RepairRequest, Work
from convertkit.conversion.surgery_units import Rearrange
from convertkit.dialects.coverage import coverage_of, runtime_names
from convertkit.errors import ConvertError, finding, refusal
from convertkit.layouts.rules import module_of

Step = Callable[[Work, RepairRequest], None]


@dataclass(frozen=True, slots=True)
class Repair:
    """One row: the option, whether a request asks for it, what it does, the codes it cures, and how."""

    option: str
    asked: Callable[[RepairRequest], bool]
    step: Step
    cures: tuple[str, ...]
    summary: str


REPAIRS: tuple[Repair, ...] = (
    Repair("--rebuild-index", lambda r: r.rebuild_index, rebuild_index,
           INDEX_CODES, "the index, from the headers of all files"),
    Repair("--dedupe", lambda r: r.dedupe, dedupe, ("E_INDEX_MISMATCH",), "tensors that several files hold, if equal"),
    Repair("--drop/--keep", lambda r: bool(r.drop or r.keep), drop_named, (), "tensors by their names"),
    Repair("--drop-tied", lambda r: r.drop_tied, drop_tied, (), "a head that repeats the embeddings"),
    Repair("--strip-quant-residue", lambda r: r.strip_quant_residue, strip_quant_residue,
           ("E_PACK_AMBIGUOUS", "E_QCONFIG", "W_QCONFIG_MISMATCH"), "quantization config and scales of dense weights"),
    Repair("--normalise-kv-scales", lambda r: r.normalise_kv_scales is not None, normalise_kv_scales,
           (), "one spelling for scales of the KV cache"),
    Repair("--tie-scales", lambda r: r.tie_scales, tie_scales, ("E_FUSED_SCALE",),
           "one global scale for the parts of a fused matrix"),
    Repair("--split-fused-scalars", lambda r: r.split_fused_scalars, split_fused_scalars, ("W_FUSED_SCALAR",),
           "packed matrices that are fused on disk, into parts"),
    Repair("--swap-nibbles", lambda r: r.swap_nibbles, swap_nibbles, ("W_NIBBLES_SWAPPED",),
           "codes with the even column in the high nibble"),
    Repair("--split/--fuse", lambda r: bool(r.split or r.fuse), surgery, ("E_PACK_STACKED", "N_EXPERTS_STACKED"),
           "matrices and experts, joined or apart"),
    Repair("--d2t", lambda r: r.d2t is not None, bring_map, ("E_VOCABULARY_MAP",), "the form of a vocabulary map"),
    Repair("--set-config", lambda r: r.set_config, set_config,
           ("E_QCONFIG_MISMATCH", "W_QCONFIG_MISMATCH", "W_ADVERTISED_ABSENT", "E_ADVERTISED_ABSENT",
            "W_HEAD_MISSING", "E_HEAD_MISSING", "W_CONFIG_DTYPE"),
           "config fields that the tensors decide"),
    Repair("--metadata", lambda r: bool(r.metadata), metadata, (), "pairs in the headers of the weight files"),
    Repair("--shard/--merge", lambda r: r.merge or r.shard_bytes is not None, files, (), "how tensors go into files"),
)  # fmt: skip
"""In the order in which they are carried out."""


def apply_repairs(work: Work, request: RepairRequest) -> tuple[Repair, ...]:
    """Carry out what was asked for; the rows that were."""
    rows = tuple(row for row in REPAIRS if row.asked(request))
    if not rows:
        options = ", ".join(row.option for row in REPAIRS)
        raise refusal("E_USAGE", "no repair is named", fix=f"one or more of {options}")
    for row in rows:
        row.step(work, request)
    if not request.set_config and _misnames(work):
        _follow(work)
    return rows


def _misnames(work: Work) -> bool:
    """Whether surgery moved planes, or dense weights that the config names or whose new modules it takes for packed."""
    scheme = work.identity.scheme
    moved = [unit for unit in work.made if isinstance(unit, Rearrange)]
    if scheme is None or not moved:
        return False
    if any("scale" in unit.spec.name for unit in moved):
        return True
    coverage, renamed = coverage_of(scheme), runtime_names(scheme, work.identity.layout)
    old = {renamed(module_of(name)) for unit in moved for name in unit.inputs}
    new = {renamed(module_of(unit.spec.name)) for unit in moved if unit.spec.name.endswith(".weight")}
    listed = old.intersection((*scheme.ignore, *scheme.targets, *scheme.layers))
    return bool(listed) or any(coverage.covers(module) is True for module in new)


def _follow(work: Work) -> None:
    """After surgery the config must name the new modules."""
    try:
        requantize(work, work.effects[0])
    except ConvertError as error:
        message = f"the quantization config still names the old modules: {error.findings[0].message}"
        work.findings.append(finding("W_QCONFIG_MISMATCH", "warning", message, file=CONFIG))
