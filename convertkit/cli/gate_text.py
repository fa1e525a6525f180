"""What ``convertkit gate`` prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from convertkit.cli.text import count_text, findings_text, table
from convertkit.errors import Finding

MAX_ROWS = 40
"""Weights or modules that the text shows."""

Rows = Sequence[Mapping[str, Any]]


def gate_text(document: Mapping[str, Any], rows: Rows, findings: Sequence[Finding], status: int) -> str:
    """Problems first, then the worst weights and the whole, then the verdict. Fused groups are in the report."""
    tensors = [row for row in rows if row["scope"] == "tensor"]
    changed = [row for row in tensors if "metrics" in row and row["metrics"]["changed"]]
    changed.sort(key=lambda row: (-(row["metrics"]["rel_rms"] or 0.0), row["name"]))
    whole = [row for row in rows if row["scope"] == "whole" and row["metrics"]["changed"]]
    lines = [
        (
            row["name"] if row["scope"] == "tensor" else "whole checkpoint",
            _number(row["metrics"]["rel_rms"], ".4f"),
            _number(row["metrics"]["sqnr_db"], ".2f"),
            _number(row["metrics"]["cosine"], ".5f"),
            _number(row["metrics"]["max_abs_error"], ".3g"),
            _number(100 * row["metrics"]["changed_fraction"], ".1f"),
            row["metrics"].get("flushed_blocks", ""),
        )
        for row in (*changed[:MAX_ROWS], *whole)
    ]
    headers = ("weight", "rel rms", "SQNR dB", "cosine", "max error", "changed %", "flushed")
    return _joined(
        findings_text(findings),
        table(headers, lines, right=range(1, 7)) if lines else "",
        f"the worst {MAX_ROWS} of {len(changed)} changed weights; --report lists all"
        if len(changed) > MAX_ROWS
        else "",
        f"{count_text(len(tensors) - len(changed), 'weight')} without a changed value",
        _served(document["summary"]["as_served"]),
        "passed" if status == 0 else "FAILED",
    )


def forward_text(document: Mapping[str, Any], rows: Rows, findings: Sequence[Finding], status: int) -> str:
    """Problems first, then the worst modules, all layers, what is proposed, and the verdict."""
    modules = [row for row in rows if row["scope"] == "module"]
    changed = [row for row in modules if row["forward"]["rel_rms"] != 0]
    changed.sort(key=lambda row: (-_size(row), row["name"]))
    shown = [(row["name"], _number(row["forward"]["rel_rms"], ".4f")) for row in changed[:MAX_ROWS]]
    layers = [
        (row["name"], _number(row["forward"]["rel_rms"], ".4f"), _number(row["forward"]["drift"], ".4f"))
        for row in rows
        if row["scope"] == "layer"
    ]
    return _joined(
        findings_text(findings),
        table(("module", "error"), shown, right=[1]) if shown else "",
        f"{count_text(len(modules) - len(changed), 'module')} without an error",
        "\n" + table(("layer", "own error", "drift"), layers, right=[1, 2]),
        "\n" + _proposals(next(row["forward"] for row in rows if row["scope"] == "output")),
        _states(document["summary"]["forward"]["calibration"]),
        _served(document["summary"]["as_served"]),
        "passed" if status == 0 else "FAILED",
    )


def _size(row: Mapping[str, Any]) -> float:
    value = row["forward"]["rel_rms"]
    return float("inf") if value is None else float(value)


def _proposals(output: Mapping[str, Any]) -> str:
    lines = [
        ("KL", f"{_number(output['kl'], '.4f')} nats, at most {_number(output['max_kl'], '.4f')}"),
        ("cosine of logits", _number(output["cosine"], ".4f")),
        ("same token", _percent(output["top1_agreement"])),
        (f"same {output['topk']} tokens", _percent(output["topk_agreement"])),
        ("agreed length", _number(output["agreed_length"], ".3f")),
    ]
    for name, title in (("accept_length", "accept length"), ("expected_accept_length", "when sampling")):
        pair = output[name]
        if pair is not None:
            lines.append((title, f"{_number(pair['candidate'], '.3f')}, reference {_number(pair['reference'], '.3f')}"))
    return table((f"{output['slots']} proposals", ""), lines)


def _states(about: Mapping[str, Any]) -> str:
    layers = ", ".join(str(layer) for layer in about["layers"])
    where = f"of {about['target']}" if about["origin"] == "recorded" else "generated"
    return f"hidden states of target layers {layers}: {where}, {about['positions']} positions"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def _joined(*parts: str) -> str:
    return "\n".join(filter(None, parts))


def _served(engine: Mapping[str, Any] | None) -> str:
    return "" if engine is None else f"as served by {engine['engine']} ({engine['origin']}; {engine['proof']})"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
