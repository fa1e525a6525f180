"""Fidelity: how far a candidate is from its reference, as tallies, metrics and thresholds.

A tally holds integers, three compensated sums and one maximum. Tallies are added in tile order, so their metrics
are the same on every machine and for any number of workers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from decimal import Context, Decimal
from math import isfinite, sqrt
from typing import Any

from convertkit.checks.tiles import NOTHING, Sum
from convertkit.errors import Finding, finding, refusal, shown


@dataclass(frozen=True, slots=True)
class Tally:
    """Evidence about some elements of a candidate against its reference. ``a + b`` is the evidence about both.

    ``changed``: elements whose values differ (0 and -0 are the same value). ``nonfinite``: elements in which
    either side is NaN or infinite; sums leave them out. ``bit_differences``: elements whose stored bits differ,
    where both sides are dense and of one dtype, otherwise None. The rest is about block scales and is zero (the
    histogram empty) for dense candidates: ``blocks``; ``flushed_blocks``, not all zero in the reference and all
    zero when decoded; ``saturated``, elements beyond the largest value that their block can hold;
    ``scale_histogram``, how often each of the 256 scale bytes occurs.
    """

    elements: int = 0
    changed: int = 0
    nonfinite: int = 0
    bit_differences: int | None = 0
    square_reference: Sum = NOTHING
    square_candidate: Sum = NOTHING
    square_error: Sum = NOTHING
    max_abs_error: float = 0.0
    blocks: int = 0
    flushed_blocks: int = 0
    saturated: int = 0
    scale_histogram: tuple[int, ...] = ()

    def __add__(self, other: Tally) -> Tally:
        merged = {field.name: _merge(getattr(self, field.name), getattr(other, field.name)) for field in fields(self)}
        return Tally(**{**merged, "max_abs_error": max(self.max_abs_error, other.max_abs_error)})


def _merge(mine: Any, yours: Any) -> Any:
    if mine is None or yours is None:
        return None
    if isinstance(mine, tuple):
        return tuple(a + b for a, b in zip(mine, yours, strict=True)) if mine and yours else mine or yours
    return mine + yours


def total(tallies: Iterable[Tally]) -> Tally:
    """Sum of tallies in the order given, which must be fixed (tile order, then plan order)."""
    result = Tally()
    for tally in tallies:
        result = result + tally
    return result


_DIGITS = Context(prec=20)


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def _decibels(signal: float, noise: float) -> float:
    """10 log10(signal / noise) by decimal arithmetic: the C library's logarithm differs between systems."""
    return float(10 * _DIGITS.log10(_DIGITS.divide(Decimal(signal), Decimal(noise))))


def metrics(tally: Tally) -> dict[str, Any]:
    """Named metrics of a tally, JSON values only; None where one is not defined.

    ``rel_rms`` is sqrt(sum e^2 / sum r^2), ``sqnr_db`` is 10 log10 of the inverse ratio (None for no error,
    which ``exact`` says, and against an all-zero reference), ``cosine`` comes from r.c = (r^2 + c^2 - e^2) / 2.
    """
    reference, candidate = tally.square_reference.total, tally.square_candidate.total
    error = tally.square_error.total
    result: dict[str, Any] = {
        "elements": tally.elements,
        "changed": tally.changed,
        "changed_fraction": _ratio(tally.changed, tally.elements),
        "exact": tally.changed == 0 and tally.nonfinite == 0,
        "nonfinite": tally.nonfinite,
        "max_abs_error": tally.max_abs_error,
        "rel_rms": sqrt(error / reference) if reference > 0 else (0.0 if error == 0 else None),
        "sqnr_db": _decibels(reference, error) if reference > 0 and error > 0 else None,
        "cosine": None,
    }
    if reference > 0 and candidate > 0:
        dot = (reference + candidate - error) / 2
        result["cosine"] = min(1.0, dot / sqrt(reference * candidate))
    if tally.bit_differences is not None:
        result["bit_differences"] = tally.bit_differences
    return result | (_block_metrics(tally) if tally.scale_histogram else {})


def _block_metrics(tally: Tally) -> dict[str, Any]:
    """Metrics of the block scales; scale values are E4M3 numbers, ``exponents`` counts them by exponent field 0..15."""
    from convertkit.checks.reference import SCALE_UNITS

    histogram = tally.scale_histogram
    used = [int(SCALE_UNITS[byte]) for byte in range(127) if histogram[byte]]
    return {
        "blocks": tally.blocks,
        "flushed_blocks": tally.flushed_blocks,
        "flushed_fraction": _ratio(tally.flushed_blocks, tally.blocks),
        "saturated": tally.saturated,
        "saturated_fraction": _ratio(tally.saturated, tally.elements),
        "block_scales": {
            "least": min(used) / 512 if used else None,
            "largest": max(used) / 512 if used else None,
            "zero": histogram[0],
            "subnormal": sum(histogram[1:8]),
            "negative": sum(histogram[128:255]),
            "nan": histogram[127] + histogram[255],
            "exponents": [sum(histogram[8 * field : min(8 * field + 8, 127)]) for field in range(16)],
        },
    }


@dataclass(frozen=True, slots=True)
class Threshold:
    """A limit on one metric. ``limit`` None means that it is only judged when the user gives one."""

    metric: str
    at_most: bool
    limit: float | None
    meaning: str


THRESHOLDS: dict[str, Threshold] = {
    "max_rel_rms": Threshold(
        "rel_rms", True, 0.125,
        "Relative RMS error. A Gaussian weight packed by amax has 0.095, other LLM weights 0.08 to 0.11; swapped "
        "nibbles give more than 1, a global scale that is 10% off 0.14.",
    ),
    "min_sqnr": Threshold(
        "sqnr_db", False, 18.0,
        "Signal to quantization noise in dB: the same error on another scale. Amax packing gives 20 to 21 dB.",
    ),
    "min_cosine": Threshold(
        "cosine", False, 0.99,
        "Cosine of the angle between the two; blind to a wrong global scale, so never the only limit. "
        "A Gaussian weight has 0.9955.",
    ),
    "max_flushed": Threshold(
        "flushed_fraction", True, 0.01,
        "Fraction of blocks that hold non-zero values and decode to zeros only: dead rows of tiny weights at most.",
    ),
    "max_nonfinite": Threshold("nonfinite", True, 0.0, "NaN or infinite elements on either side."),
    "max_abs_error": Threshold("max_abs_error", True, None, "Largest error of an element, in the weight's own units."),
    "max_changed": Threshold("changed_fraction", True, None, "Fraction of elements whose value changed; 0: none may."),
    "max_saturated": Threshold(
        "saturated_fraction", True, None,
        "Fraction of elements beyond the top of their block's grid. Amax packing has 0.035: where the block scale "
        "was rounded down, the largest element lies beyond it by up to 1/16.",
    ),
}  # fmt: skip
"""By option name (``--max-rel-rms``). Each is applied to every tensor, every group and the whole."""

DEFAULT_LIMITS: dict[str, float | None] = {name: row.limit for name, row in THRESHOLDS.items()}


def check_limits(limits: Mapping[str, float | None]) -> None:
    """E_USAGE for a limit that is no finite number: nothing compares with NaN, and no report can state infinity."""
    for name, limit in limits.items():
        if limit is not None and not isfinite(limit):
            option = f"--{name.replace('_', '-')}"
            raise refusal("E_USAGE", f"{option} is {limit}", fix="give a finite number")


def judge(rows: Sequence[Mapping[str, Any]], limits: Mapping[str, float | None] = DEFAULT_LIMITS) -> list[Finding]:
    """``E_GATE`` for every row and limit that do not agree, in row order.

    ``rows`` hold ``name``, ``scope`` (tensor, group or whole) and ``metrics``. An undefined metric passes only if
    the candidate is exact; a metric that a row does not have (block scales of dense candidates) is not judged. A row
    with ``equal_bytes`` instead must be equal.
    """
    found: list[Finding] = []
    for row in rows:
        if "metrics" not in row:
            found += [] if row["equal_bytes"] else [_refused(row, "equal_bytes", False, "must be true", True)]
            continue
        for name, limit in limits.items():
            if limit is not None and not _passes(row["metrics"], THRESHOLDS[name], limit):
                threshold = THRESHOLDS[name]
                asked = f"must be {'at most' if threshold.at_most else 'at least'} {limit:.6g}"
                found.append(_refused(row, threshold.metric, row["metrics"][threshold.metric], asked, limit))
    return found


def _passes(values: Mapping[str, Any], threshold: Threshold, limit: float) -> bool:
    if threshold.metric not in values:
        return True
    value = values[threshold.metric]
    if value is None:
        return bool(values["exact"])
    return bool(value <= limit if threshold.at_most else value >= limit)


COUNTED = {
    "flushed_fraction": ("flushed_blocks", "blocks", "blocks"),
    "changed_fraction": ("changed", "elements", "elements"),
    "saturated_fraction": ("saturated", "elements", "elements"),
}
"""Fractions with the counts that they are made of."""


def _refused(row: Mapping[str, Any], metric: str, value: Any, asked: str, limit: Any) -> Finding:
    seen = "undefined" if value is None else format(value, ".6g") if isinstance(value, float) else str(value)
    if metric in COUNTED and COUNTED[metric][0] in row["metrics"]:
        part, whole, unit = COUNTED[metric]
        seen += f" ({row['metrics'][part]:,} of {row['metrics'][whole]:,} {unit})"
    where = "the whole checkpoint" if row["scope"] == "whole" else f"{row['scope']} '{shown(row['name'])}'"
    return finding(
        "E_GATE", "error", f"{where}: {metric} is {seen} and {asked}",
        tensor=row["name"] if row["scope"] == "tensor" else None,
        fix="look at how this weight was quantized; move the limit only if the loss is meant",
        data={"scope": row["scope"], "name": row["name"], "metric": metric, "value": value, "limit": limit},
    )  # fmt: skip
