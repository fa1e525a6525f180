"""What a release is asked before it is published: do the engines load each variant, how far is each reference."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from convertkit.checkpoint import Checkpoint
from convertkit.checks.engines import audit_engines
from convertkit.checks.target import TargetModel, read_target
from convertkit.containers.folder import open_any
from convertkit.conversion.identify import Identity, identify
from convertkit.engines.rules import ENGINES
from convertkit.errors import Finding, finding
from convertkit.release.recipe import EngineWish, Recipe
from convertkit.verbs.audit import audit
from convertkit.verbs.gate import gate
from convertkit.verbs.release_run import Made

VIEW_KEYS = ("engine", "version", "proof", "verdict", "message", "reasons", "settings")
NOT_GGUF = ("vllm", "sglang", "tensorrt-llm", "transformers")
"""Engines whose tables describe safetensors; a GGUF is for llama.cpp."""


@dataclass(frozen=True)
class Checked:
    """JSON rows for the report, and findings; errors stop the release."""

    rows: tuple[Mapping[str, Any], ...]
    findings: tuple[Finding, ...]


def check_engines(recipe: Recipe, made: Sequence[Made]) -> Checked:
    """Every engine of the recipe with every variant. Where the recipe says that a variant must load, a refusal or a
    wrong load is an error; everywhere else the answer is only recorded."""
    target = None if recipe.target_model is None else read_target(recipe.target_model)
    opened = [_opened(one) for one in made] if recipe.engines else []
    rows: list[Mapping[str, Any]] = []
    findings: list[Finding] = []
    for wish in recipe.engines:
        for one, written in zip(made, opened, strict=True):
            row, found = _ask(wish, one, written, target)
            rows.append(row)
            findings.extend(found)
    return Checked(tuple(rows), tuple(findings))


def _opened(one: Made) -> tuple[Checkpoint, Identity] | None:
    """The headers of a variant; None for a GGUF, which no table of engines describes."""
    checkpoint = open_any(one.folder)
    return None if checkpoint.container == "gguf" else (checkpoint, identify(checkpoint))


def _ask(
    wish: EngineWish, one: Made, written: tuple[Checkpoint, Identity] | None, target: TargetModel | None
) -> tuple[dict[str, Any], Iterator[Finding]]:
    required = one.job.variant.folder in wish.variants
    place: dict[str, Any] = {"variant": one.job.variant.title, "title": _title(wish), "required": required}
    if wish.ranks > 1:
        place["tensor_parallel"] = wish.ranks
    if written is None:
        return place | _gguf_view(wish), iter(())
    audit = audit_engines(*written, [wish.asked], target, wish.ranks)
    view = {key: audit.views[0][key] for key in VIEW_KEYS}
    return place | view, _required(audit.findings, one) if required else iter(())


def _title(wish: EngineWish) -> str:
    """The engine, and on how many ranks where that is said: one may be asked on several."""
    title = ENGINES[wish.asked.engine.name].title
    return title if wish.ranks == 1 else f"{title} (tensor parallel {wish.ranks})"


def _gguf_view(wish: EngineWish) -> dict[str, Any]:
    """A GGUF is read by llama.cpp, whose checks are part of GGUF_REPORT.json, and by none of the others."""
    ours = wish.asked.engine.name not in NOT_GGUF
    message = "" if ours else f"{wish.asked.engine.title} is served from safetensors"
    return {
        "engine": wish.asked.engine.name,
        "version": wish.asked.version,
        "proof": wish.asked.engine.how if wish.asked.proven else "none",
        "verdict": ("loads" if wish.asked.proven else "unknown") if ours else "refused",
        "message": message,
        "reasons": [message] if message else [],
        "settings": [],
    }


def _required(findings: Sequence[Finding], one: Made) -> Iterator[Finding]:
    for item in findings:
        yield replace(item, message=f"variant {one.job.variant.title}: {item.message}")


def check_references(recipe: Recipe, made: Sequence[Made], workers: int) -> Checked:
    """Every reference against its variant; with ``judge`` a threshold that is not met is an error, with ``drop_in``
    whatever makes the variant no drop-in for it."""
    rows: list[Mapping[str, Any]] = []
    findings: list[Finding] = []
    by_folder = {one.job.variant.folder: one for one in made}
    for reference in recipe.references:
        one = by_folder[reference.variant]
        found = gate(one.folder, reference.path, limits=recipe.limits, workers=workers)
        summary = found.document["summary"]
        rows.append(
            {
                "name": reference.name,
                "variant": one.job.variant.title,
                "judged": reference.judge,
                "drop_in": reference.drop_in,
                "verdict": "fail" if found.status else "pass",
                "tensors": summary["tensors"],
                "whole": {key: value for key, value in summary["whole"].items() if not isinstance(value, Mapping)},
                "files": found.document["source"]["files"],
            }
        )
        errors = [item for item in found.findings if item.severity == "error"]
        if errors and reference.judge:
            message = f"variant {one.job.variant.title} against '{reference.name}': {len(errors)} limits are not met"
            findings += [finding("E_GATE", "error", message), *errors]
        if reference.drop_in:
            departures = audit(one.folder, against=reference.path).findings
            findings += [item for item in departures if item.code == "E_AGAINST"]
    return Checked(tuple(rows), tuple(findings))
