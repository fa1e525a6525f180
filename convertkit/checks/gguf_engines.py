"""A GGUF in each engine: llama.cpp's verdict follows from the audit of the file, no other engine is described."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from convertkit.checkpoint import Checkpoint
from convertkit.checks.gguf_tables import TRIED_SPLITS
from convertkit.containers.gguf import ARCHITECTURE
from convertkit.containers.gguf_values import Scalar
from convertkit.engines.llamacpp_load import RULES, gguf_settings
from convertkit.engines.rules import Asked
from convertkit.errors import Finding
from convertkit.layouts.gguf_names import ARCHS, Arch, expected_names
from convertkit.layouts.rules import families

REFUSALS = frozenset({"E_GGUF_METADATA", "E_GGUF_TOKENIZER", "E_LAYOUT_MISSING", "E_LAYOUT_EXTRA", "E_LAYOUT_SHAPE"})
"""Findings at which libllama stops while it loads; others show at the first step, or never."""

SILENT = ("attn_v.weight",)
"""Tensors of drafters that may be missing without a word, the layer then uses others for them."""


def gguf_views(
    checkpoint: Checkpoint, findings: Sequence[Finding], asked: Sequence[Asked]
) -> tuple[Mapping[str, Any], ...]:
    """One view per engine, as ``checks.engines`` makes them."""
    return tuple(_view(checkpoint, findings, one) for one in asked)


def _stops(item: Finding, arch: str) -> bool:
    silent = item.code == "E_LAYOUT_MISSING" and str(item.where.tensor).endswith(SILENT) and arch == "dflash"
    return item.code in REFUSALS and item.data.get("stage") != "use" and not silent


def _view(checkpoint: Checkpoint, findings: Sequence[Finding], asked: Asked) -> dict[str, Any]:
    errors = [item for item in findings if item.severity == "error"]
    stated = checkpoint.metadata.get(ARCHITECTURE)
    arch = str(stated.value) if isinstance(stated, Scalar) else ""
    stops = [item for item in errors if _stops(item, arch)]
    strange = next((item.message for item in findings if item.code == "W_GGUF_ARCH"), "") or _untried(checkpoint)
    verdict, reasons = "loads", [_reason(item) for item in errors]
    described = asked.engine.name == "llama.cpp" and asked.proven
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
    expected = list(_expected(checkpoint)) if described else []
    counts: dict[str, int] = {}
    for row in expected:
        counts[row["outcome"]] = counts.get(row["outcome"], 0) + row["count"]
    return {
        "engine": asked.engine.name,
        "version": asked.version,
        "proof": asked.engine.how if asked.proven else "none",
        "verdict": verdict,
        "message": _reason(stops[0]) if verdict == "refused" else "",
        "reasons": list(dict.fromkeys(reasons))[:20],
        "parameters": counts,
        "expected": expected,
        "settings": [
            {"name": item.name, "value": item.value, "why": item.why, "kind": item.kind}
            for item in (gguf_settings(checkpoint.metadata, checkpoint.tensors) if described else ())
        ],
        "notes": [],
        "rules": [f"{rule.name}: {rule.text} ({rule.source})" for rule in _rules(errors)] if described else [],
    }


def _untried(checkpoint: Checkpoint) -> str:
    """llama.cpp refuses names of pre-tokenizers that it does not know; only these were tried."""
    pre = checkpoint.metadata.get("tokenizer.ggml.pre")
    known = pre is None or (isinstance(pre, Scalar) and pre.value in TRIED_SPLITS)
    return "" if known else "the pre-tokenizer's name is not one that was tried with llama.cpp"


def _reason(item: Finding) -> str:
    place = item.where.tensor or item.where.key
    return f"{place}: {item.message}" if place else item.message


def _rules(errors: Sequence[Finding]) -> Iterator[Any]:
    """The rules behind the findings."""
    wanted = {"llama.cpp.tensors"} if any(item.code.startswith("E_LAYOUT") for item in errors) else set()
    wanted |= {"llama.cpp.keys"} if any(item.code.startswith("E_GGUF") for item in errors) else set()
    wanted |= {"llama.cpp.silent"} if any(str(item.where.tensor).endswith(SILENT) for item in errors) else set()
    return (RULES[name] for name in sorted(wanted))


def _expected(checkpoint: Checkpoint) -> Iterator[dict[str, Any]]:
    """The tensors that the architecture's loader asks for, by family, and what fills them."""
    name = checkpoint.metadata.get(ARCHITECTURE)
    arch: Arch | None = ARCHS.get(str(name.value)) if isinstance(name, Scalar) else None
    if arch is None:
        return
    layers = checkpoint.metadata.get(f"{arch.name}.block_count")
    count = int(layers.value) if isinstance(layers, Scalar) and not isinstance(layers.value, str) else 0
    wanted = list(expected_names(arch, count)) if 0 <= count <= len(checkpoint.tensors) else []
    for outcome, names in (
        ("filled", [item for item in wanted if item in checkpoint.tensors]),
        ("unfilled", [item for item in wanted if item not in checkpoint.tensors]),
    ):
        for family in families(names).values():
            ref = checkpoint.tensors.get(family.names[0])
            yield {
                "name": family.template, "count": len(family.names), "first": family.names[0],
                "shape": [] if ref is None else list(ref.spec.shape), "dtype": "" if ref is None else ref.spec.dtype,
                "outcome": outcome, "from": [family.template] if ref is not None else [],
                "missing": [] if ref is not None else list(family.names[:20]),
            }  # fmt: skip
