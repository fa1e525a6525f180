"""Rows and summaries of the reports, made from tallies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from convertkit.checkpoint import TensorSpec
from convertkit.checks.expand import ARITHMETICS, ExpandTally
from convertkit.checks.fidelity import Tally, metrics
from convertkit.checks.reference import float_of

PLANE_ROLES = ("codes", "block_scale", "global_scale", "input_scale")


def scalar(bits: int, sense: str) -> dict[str, Any]:
    """A stored FP32 scale: its bits, its value (None if not finite) and its sense."""
    value = float(float_of(bits))
    return {"bits": f"0x{bits:08x}", "value": value if abs(value) < float("inf") else None, "sense": sense}


def planes(names: Sequence[str], digests: Mapping[str, str]) -> list[dict[str, Any]]:
    """Stored tensors in the order of ``PLANE_ROLES``; the digest is None for one whose bytes were not hashed."""
    return [
        {"role": role, "name": name, "sha256": digests.get(name)}
        for role, name in zip(PLANE_ROLES, names, strict=False)
    ]


def tensor_row(spec: TensorSpec, promise: str, sha256: str) -> dict[str, Any]:
    """Row of DEQUANT_REPORT for a tensor that was copied (``bytes``) or cast (``rounded``); ``sha256`` as written."""
    return {
        "name": spec.name,
        "promise": promise,
        "dtype": spec.dtype,
        "shape": list(spec.shape),
        "elements": spec.elements,
        "sha256": sha256,
    }


def dequant_row(
    spec: TensorSpec,
    sha256: str,
    tally: ExpandTally,
    *,
    dialect: str,
    sources: Sequence[Mapping[str, Any]],
    global_bits: int,
    sense: str,
    arithmetic: str = "exact",
    against: int | None = None,
    has_reference: bool = False,
) -> dict[str, Any]:
    """Row for an expanded weight. ``spec`` and ``sha256`` are of the written tensor, ``sources`` from ``planes``.

    ``against`` counts elements that differ from a reference; None with ``has_reference`` if it lacks the tensor.
    """
    row = tensor_row(spec, "exact", sha256) | {
        "dialect": dialect,
        "planes": [dict(item) for item in sources],
        "global_scale": scalar(global_bits, sense),
        "arithmetic": arithmetic,
        "differing": tally.differing(),
        "differences": {
            name: {"values": tally.differences[name].values, "zero_signs": tally.differences[name].zero_signs}
            for name in ARITHMETICS
        },
        "negative_zeros": tally.negative_zeros,
        "minus_zero_codes": tally.minus_zero_codes,
        "blocks": tally.blocks,
        "flushed_blocks": tally.flushed_blocks,
        "recoverable": tally.unrecovered == 0,
        "unrecovered": tally.unrecovered,
        "unrecovered_zero_signs": tally.unrecovered_zero_signs,
    }
    return row | ({"against": {"differing": against}} if has_reference or against is not None else {})


def respelled_row(
    spec: TensorSpec,
    sha256: str,
    *,
    dialect: str,
    sources: Sequence[Mapping[str, Any]],
    before: tuple[int, str],
    after: tuple[int, str],
    reversible: bool,
    changed_values: int,
) -> dict[str, Any]:
    """Row for a weight whose planes were re-spelled; ``spec`` and ``sha256`` are of the written codes.

    ``before`` and ``after`` are (bits, sense) of the global scale; ``changed_values`` counts elements whose exact
    value rounded to BF16 is another one than before.
    """
    return tensor_row(spec, "planes", sha256) | {
        "elements": 2 * spec.elements,
        "dialect": dialect,
        "planes": [dict(item) for item in sources],
        "global_scale": scalar(*before),
        "written_global_scale": scalar(*after),
        "reversible": reversible,
        "differing": changed_values,
    }


def dequant_summary(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Summary of DEQUANT_REPORT rows: counts over all of them."""
    rows = list(rows)
    expanded = [row for row in rows if row["promise"] == "exact"]
    respelled = [row for row in rows if row["promise"] == "planes"]
    summary: dict[str, Any] = {
        "tensors": len(rows),
        "expanded": len(expanded),
        "respelled": len(respelled),
        "elements": sum(row["elements"] for row in (*expanded, *respelled)),
        "differing": sum(row["differing"] for row in (*expanded, *respelled)),
        "differing_modelopt": sum(row["differences"]["modelopt"]["values"] for row in expanded),
        "differing_compressed_tensors": sum(row["differences"]["compressed-tensors"]["values"] for row in expanded),
        "negative_zeros": sum(row["negative_zeros"] for row in expanded),
        "flushed_blocks": sum(row["flushed_blocks"] for row in expanded),
        "unrecovered": sum(row["unrecovered"] for row in expanded),
        "recoverable": all(row["recoverable"] for row in expanded),
    }
    against = [row["against"]["differing"] for row in rows if "against" in row]
    return summary | ({"against_differing": None if None in against else sum(against)} if against else {})


def gate_row(
    name: str,
    tally: Tally,
    *,
    scope: str = "tensor",
    group: str | None = None,
    members: Sequence[str] = (),
    packed: bool | None = None,
    global_bits: int | None = None,
    sense: str | None = None,
    scales: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Row of FIDELITY_GATE: metrics of a tensor, a fused group (``members``) or the whole. ``judge`` reads it.

    ``scales``: how the scales of a tensor that was just packed were chosen, from ``scales_row``.
    """
    row: dict[str, Any] = {"name": name, "scope": scope, "metrics": metrics(tally)}
    if group is not None:
        row["group"] = group
    if members:
        row["members"] = list(members)
    if packed is not None:
        row["packed"] = packed
    if global_bits is not None and sense is not None:
        row["global_scale"] = scalar(global_bits, sense)
    if scales is not None:
        row["scales"] = dict(scales)
    return row


def scales_row(
    choice: str,
    tally: Tally,
    *,
    baseline: Tally | None = None,
    differing: int | None = None,
    blocks_on_grid: int | None = None,
    arithmetic: str = "exact",
) -> dict[str, Any]:
    """How scales were chosen: ``choice`` is an arithmetic, or ``grid``. ``baseline`` is what amax would have lost;
    ``differing`` elements are not those of a source on a grid when they are expanded to its dtype by ``arithmetic``."""
    row: dict[str, Any] = {"choice": choice}
    if baseline is not None:
        mine, theirs = metrics(tally)["sqnr_db"], metrics(baseline)["sqnr_db"]
        row["amax_sqnr_db"] = theirs
        row["gain_db"] = None if mine is None or theirs is None else mine - theirs
    if differing is not None:
        row["differing"] = differing
        row["blocks_on_grid"] = blocks_on_grid
        if arithmetic != "exact":
            row["arithmetic"] = arithmetic
    return row


def bytes_row(name: str, equal: bool) -> dict[str, Any]:
    """Row of FIDELITY_GATE for a tensor that is not of floats and was compared byte by byte."""
    return {"name": name, "scope": "tensor", "equal_bytes": equal}


def gate_summary(
    rows: Sequence[Mapping[str, Any]],
    whole: Tally,
    limits: Mapping[str, float | None],
    stored: str | None = None,
    as_served: str | None = None,
) -> dict[str, Any]:
    """Summary of FIDELITY_GATE rows. ``whole`` is the tally of all tensors, added in the order of the rows."""
    from convertkit.checks.served import as_report

    tensors = [row for row in rows if row["scope"] == "tensor"]
    measured = [row for row in tensors if row.get("metrics", {}).get("rel_rms") is not None]
    worst = max(measured, key=lambda row: float(row["metrics"]["rel_rms"]), default=None)
    gains = [row["scales"]["gain_db"] for row in tensors if row.get("scales", {}).get("gain_db") is not None]
    return {
        "tensors": len(tensors),
        "packed": sum(1 for row in tensors if row.get("packed")),
        "stored": stored,
        "as_served": None if as_served is None else as_report(as_served),
        "limits": dict(limits),
        "whole": metrics(whole),
        "worst": None if worst is None or not worst["metrics"]["rel_rms"] else worst["name"],
    } | ({"gain_db": {"least": min(gains), "largest": max(gains)}} if gains else {})
