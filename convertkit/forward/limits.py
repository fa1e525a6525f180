"""Limits of the functional gate, and what they say about the rows of a report."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from convertkit.errors import Finding, finding, shown


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit on one metric of the rows of one scope; ``limit`` None is judged only when the user gives one.

    Where ``names`` is given, it is for rows whose names end as it matches.
    """

    scope: str
    metric: str
    at_most: bool
    limit: float | None
    meaning: str
    names: str = ""

    def concerns(self, row: Mapping[str, Any]) -> bool:
        return self.scope == row["scope"] and re.search(f"(?:{self.names})$", row["name"]) is not None


FORWARD_LIMITS: dict[str, Limit] = {
    "max_input_error": Limit(
        "input", "rel_rms", True, 0.0,
        "Relative RMS difference of the target's states that the drafters gather; other layers have others.",
    ),
    "max_module_error": Limit(
        "module", "rel_rms", True, 0.18,
        "Relative RMS error of what a module makes of the reference's input. NVFP4 packs have 0.04 to 0.15; scales of "
        "another module, of another row, or 25% off 0.26 to 0.70.",
    ),
    "max_norm_error": Limit(
        "module", "rel_rms", True, 0.01,
        "The same for norms and convolution kernels, which packs copy: rounding one to BF16 gives 0.002.",
        r"norm(\.[0-9]+)?\.weight|base_kernel",
    ),
    "max_layer_error": Limit(
        "layer", "rel_rms", True, 0.5,
        "The same for what a layer adds. Packs of trained drafters have up to 0.16, of random weights up to 0.43.",
    ),
    "max_kl": Limit(
        "output", "kl", True, 0.2,
        "Mean KL of the proposals, in nats. Packs of trained drafters have 0.01 to 0.04, of random weights up to 0.17.",
    ),
    "min_logit_cosine": Limit(
        "output", "cosine", False, 0.7,
        "Mean cosine of the logits, each less its mean. Packs of trained drafters have 0.99 and more, of random "
        "weights, through which errors grow, 0.77; drafters with random weights that read other layers 0.1.",
    ),
    "min_top1": Limit("output", "top1_agreement", False, None, "Share of proposals that are the same token."),
    "min_topk": Limit("output", "topk_agreement", False, None, "Mean share of the 10 most likely tokens in common."),
    "max_accept_drop": Limit(
        "output", "accept_drop", True, 0.05,
        "Relative loss of accept length against recorded tokens, greedy or sampling, whichever is more.",
    ),
    "max_nonfinite_slots": Limit("output", "nonfinite", True, 0.0, "Proposals whose logits are NaN or infinite."),
}  # fmt: skip
"""By option name. Measured by ``benchmarks/forward_gate.py``; the table is in ``docs/forward.md``."""

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
            if limit is None or not rule.concerns(row):
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
