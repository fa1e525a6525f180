"""Limits of the functional gate, and what they say about the rows of a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from convertkit.errors import Finding, finding, shown


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit on one metric of the rows of one scope; ``limit`` None is judged only when the user gives one."""

    scope: str
    metric: str
    at_most: bool
    limit: float | None
    meaning: str


FORWARD_LIMITS: dict[str, Limit] = {
    "max_input_error": Limit("input", "rel_rms", True, 0.0, "Relative RMS difference of the gathered target states."),
    "max_module_error": Limit("module", "rel_rms", True, 0.2, "TODO"),
    "max_layer_error": Limit("layer", "rel_rms", True, 0.3, "TODO"),
    "max_kl": Limit("output", "kl", True, 0.1, "TODO"),
    "min_logit_cosine": Limit("output", "cosine", False, 0.95, "TODO"),
    "min_top1": Limit("output", "top1_agreement", False, None, "TODO"),
    "min_topk": Limit("output", "topk_agreement", False, None, "TODO"),
    "max_accept_drop": Limit("output", "accept_drop", True, 0.05, "TODO"),
    "max_nonfinite_slots": Limit("output", "nonfinite", True, 0.0, "Proposals whose logits are NaN or infinite."),
}
"""By option name."""

DEFAULT_FORWARD_LIMITS: dict[str, float | None] = {name: row.limit for name, row in FORWARD_LIMITS.items()}


def judge_forward(
    rows: Sequence[Mapping[str, Any]], limits: Mapping[str, float | None] = DEFAULT_FORWARD_LIMITS
) -> list[Finding]:
    """``E_GATE`` for every row and limit that do not agree, in row order. An undefined metric does not pass, except
    accept lengths that no token was recorded for."""
    found: list[Finding] = []
    for row in rows:
        for name, limit in limits.items():
            rule = FORWARD_LIMITS[name]
            if limit is None or rule.scope != row["scope"]:
                continue
            value = row["forward"][rule.metric]
            if value is None and rule.metric == "accept_drop" and row["forward"]["accept_length"] is None:
                continue
            if value is None or not (value <= limit if rule.at_most else value >= limit):
                found.append(_refused(row, rule, value, limit))
    return found


def _refused(row: Mapping[str, Any], rule: Limit, value: Any, limit: float) -> Finding:
    seen = "undefined" if value is None else format(value, ".6g")
    asked = f"must be {'at most' if rule.at_most else 'at least'} {limit:.6g}"
    return finding(
        "E_GATE", "error", f"{row['scope']} '{shown(row['name'])}': {rule.metric} is {seen} and {asked}{_why(row)}",
        fix=FIXES[row["scope"]],
        data={"scope": row["scope"], "name": row["name"], "metric": rule.metric, "value": value, "limit": limit},
    )  # fmt: skip


def _why(row: Mapping[str, Any]) -> str:
    if row["scope"] != "input":
        return ""
    mine, yours = row["forward"]["reference"], row["forward"]["candidate"]
    return f": the candidate reads the outputs of target layers {yours}, the reference those of {mine}"


FIXES: Mapping[str, str] = {
    "input": "correct the tapped layers in the candidate's config; two conventions are one apart",
    "module": "look at how this module was quantized or copied",
    "layer": "look at the modules of this layer, and at the config fields that concern it",
    "output": "look at the modules and layers that are named; if none is, many small errors add up",
}
