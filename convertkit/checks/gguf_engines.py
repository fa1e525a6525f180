"""A GGUF in each engine: llama.cpp's verdict follows from the audit of the file, no other engine is described."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from convertkit.engines.rules import Asked
from convertkit.errors import Finding

REFUSALS = frozenset({"E_GGUF_METADATA", "E_GGUF_TOKENIZER", "E_LAYOUT_MISSING", "E_LAYOUT_EXTRA", "E_LAYOUT_SHAPE"})
"""Findings at which libllama stops while it loads; others show at the first step, or never."""

SILENT = ("attn_v.weight",)
"""Tensors that may be missing without a word, the layer then uses others for them."""


def gguf_views(findings: Sequence[Finding], asked: Sequence[Asked]) -> tuple[Mapping[str, Any], ...]:
    """One view per engine, as ``checks.engines`` makes them."""
    return tuple(_view(findings, one) for one in asked)


def _view(findings: Sequence[Finding], asked: Asked) -> dict[str, Any]:
    errors = [item for item in findings if item.severity == "error"]
    stops = [item for item in errors if item.code in REFUSALS and not str(item.where.tensor).endswith(SILENT)]
    strange = next((item.message for item in findings if item.code == "W_GGUF_ARCH"), "")
    verdict, reasons = "loads", [item.message for item in errors]
    if asked.engine.name != "llama.cpp":
        verdict, reasons = "unknown", [f"convertkit's tables of {asked.engine.title} describe no GGUF"]
    elif not asked.proven:
        verdict, reasons = "unknown", [f"convertkit's tables describe {', '.join(asked.engine.proven)}"]
    elif stops:
        verdict = "refused"
    elif errors:
        verdict = "wrong"
    elif strange:
        verdict, reasons = "unknown", [strange]
    return {
        "engine": asked.engine.name,
        "version": asked.version,
        "proof": asked.engine.how if asked.proven else "none",
        "verdict": verdict,
        "message": stops[0].message if verdict == "refused" else "",
        "reasons": list(dict.fromkeys(reasons))[:20],
        "parameters": {},
        "expected": [],
        "settings": [],
        "rules": [],
    }
