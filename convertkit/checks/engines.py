"""A checkpoint in each engine asked for: verdict, what becomes of every tensor and parameter, settings, findings.

Rows and parameters are told by family, so that a model of 122,880 expert tensors gives a page.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from convertkit.checkpoint import Checkpoint
from convertkit.checks.pairing import pair_wrongs
from convertkit.checks.sources import Sources
from convertkit.checks.target import TargetModel, assumed_target
from convertkit.containers.stored import StoredFolder
from convertkit.conversion.identify import Identity
from convertkit.conversion.oddities import family_named
from convertkit.drafter import value_text
from convertkit.engines.agreement import CONFIG_FILE
from convertkit.engines.model import Filled, Load, Wrong
from convertkit.engines.reading import understand
from convertkit.engines.registry import RULES, drafter_in, rules_of
from convertkit.engines.rules import Asked
from convertkit.engines.source import Source
from convertkit.engines.tables import ENGINES as READERS
from convertkit.engines.targets import target_in
from convertkit.errors import MAX_LISTED, Finding, finding
from convertkit.layouts.reading import stated_spec
from convertkit.layouts.rules import template_of

VERDICTS: Mapping[str, str] = {
    "loads": "loads and is complete",
    "wrong": "loads but wrong",
    "refused": "refused",
    "unknown": "unknown",
}

READER_CODE = "E_READER_DIFFERS"


@dataclass(frozen=True)
class EngineAudit:
    """``views`` are JSON values, one per engine; ``fates`` map stored names to what becomes of them, per engine."""

    views: tuple[Mapping[str, Any], ...] = ()
    fates: Mapping[str, Mapping[str, str]] | None = None
    findings: tuple[Finding, ...] = ()


def audit_engines(
    checkpoint: Checkpoint,
    identity: Identity,
    asked: Sequence[Asked],
    target: TargetModel | None,
    ranks: int,
    known: Sequence[Finding] = (),
    folder: StoredFolder | None = None,
) -> EngineAudit:
    """Audit for each engine. ``folder`` is what lies on the disk, read anew if it is not given. Codes: E_LOAD_*,
    E_VOCABULARY, E_TAPS, E_MASK_TOKEN, E_DRAFT_TOKENS, E_PAIR, E_READER_DIFFERS, W_ENGINE_UNKNOWN, W_ENGINE."""
    views: list[Mapping[str, Any]] = []
    fates: dict[str, dict[str, str]] = {}
    findings: list[Finding] = []
    sources = Sources(checkpoint, folder)
    for one in asked:
        load = _load(sources.of(one.engine.name), checkpoint, identity, one, target, ranks)
        views.append(_view(one, load, known))
        findings += _findings(one, load)
        for name, fate in load.fates.items():
            text = f"fills {fate.into}" + (f" ({fate.shard})" if fate.shard else "") if fate.into else fate.skipped
            fates.setdefault(name, {})[one.engine.name] = text
    return EngineAudit(tuple(views), fates, tuple(findings))


def _load(
    source: Source, checkpoint: Checkpoint, identity: Identity, asked: Asked, target: TargetModel | None, ranks: int
) -> Load:
    if identity.kind != "drafter" and not says_drafter(source.config):
        return target_in(asked, source, ranks)
    if checkpoint.is_file:
        return Load(unknown="one file was given, without its config.json, which engines read first")
    sizes = target.sizes if target is not None else assumed_target(source.config)
    if sizes is None and source.refusal is not None:
        return Load(refusals=(source.refusal,))
    if sizes is None:
        return Load(unknown="the config does not say enough about the target: give --target-model")
    dtype = target.dtype if target is not None else "BF16"
    load = drafter_in(asked, source, sizes, ranks, dtype)
    if load.unknown and not load.fates:
        return load
    wrongs = [*load.wrongs, *_understood(checkpoint, identity, asked)]
    if target is not None:
        wrongs += pair_wrongs(asked, target, load)
    return replace(load, wrongs=tuple(wrongs))


def says_drafter(config: Mapping[str, Any]) -> bool:
    """Whether a config is a drafter's, whatever the tensors show: engines go by it."""
    stated = config.get("architectures")
    names = [config.get("speculators_model_type"), *(stated if isinstance(stated, list) else [stated])]
    labels = [family_named(name) for name in names if isinstance(name, str)]
    return any(labels) or any(config.get(key) is not None for key in ("speculators_config", "dflash_config"))


def _understood(checkpoint: Checkpoint, identity: Identity, asked: Asked) -> Iterator[Wrong]:
    """Fields of the config that the engine understands otherwise than the format's own package."""
    reader = next((item for item in READERS if item.name == asked.engine.name), None)
    stated = stated_spec(identity.layout, checkpoint.config, checkpoint.tensors)
    if reader is None or stated is None:
        return
    read = understand(reader, identity.layout, checkpoint.config, checkpoint.tensors, stated[0])
    for field in read.differing if read.spec is not None else ():
        theirs, ours = getattr(read.spec, field), getattr(stated[0], field)
        if field not in ("taps", "mask_token", "draft_vocabulary", "borrowed", "vocabulary_map"):
            message = f"{field}: the engine takes {value_text(field, theirs)}; meant is {value_text(field, ours)}"
            yield Wrong(READER_CODE, message, f"{asked.engine.name}.reading")


SERVED_WRONG = frozenset({"E_FUSED_SCALE", "E_VOCABULARY_MAP", "E_WEIGHT_NONFINITE", "E_SCALE_NONFINITE",
                          "E_SCALE_ZERO", "E_SCALE_SIGN"})  # fmt: skip
"""Findings about values that an engine loads as they are and serves wrong."""


def _serves_wrong(item: Finding) -> bool:
    """Of a vocabulary map engines read d2t; a t2d that says something else is left over from training."""
    return item.code in SERVED_WRONG and item.where.tensor != "t2d"


def _view(asked: Asked, load: Load, known: Sequence[Finding]) -> dict[str, Any]:
    """One engine as JSON. Bad values are told once, as findings; they still make the verdict *wrong*."""
    served = [item.message for item in known if item.severity == "error" and _serves_wrong(item)]
    status = "wrong" if load.status == "loads" and served else load.status
    reasons = [item.message for item in load.refusals] + [item.message for item in load.wrongs]
    reasons += served if status == "wrong" else []
    if load.unknown:
        reasons.append(load.unknown)
    counts: dict[str, int] = {}
    for item in load.parameters:
        counts[item.outcome] = counts.get(item.outcome, 0) + 1
    return {
        "engine": asked.engine.name,
        "version": asked.version,
        "proof": _proof(asked, load),
        "verdict": status,
        "message": load.refusals[0].message if load.refusals else "",
        "reasons": list(dict.fromkeys(reasons))[:MAX_LISTED],
        "parameters": counts,
        "expected": list(_expected(load.parameters)),
        "settings": [
            {"name": item.name, "value": item.value, "why": item.why, "kind": item.kind} for item in load.settings
        ],
        "notes": list(dict.fromkeys(item.message for item in load.notes))[:MAX_LISTED],
        "rules": [f"{rule.name}: {rule.text} ({rule.source})" for rule in _used(asked, load)],
    }


def _proof(asked: Asked, load: Load) -> str:
    """Whether the loader that the tables describe was run; for targets that depends on the architecture."""
    if not asked.proven:
        return "none"
    return "read" if load.facts.get("run") is False else asked.engine.how


def _used(asked: Asked, load: Load) -> Iterator[Any]:
    """The rules that the verdict rests on, and for an unproven version those known to hold there."""
    names = {item.rule for item in load.refusals} | {item.rule for item in load.wrongs}
    names |= {item.rule for item in load.notes if item.warning}
    if not asked.proven:
        names |= {rule.name for rule in rules_of(asked) if rule.until or rule.since}
    return (RULES[name] for name in sorted(names) if name in RULES)


def _expected(parameters: Sequence[Filled]) -> Iterator[dict[str, Any]]:
    """Parameters by family: name, shape of a rank, outcome, what fills them."""
    alike: dict[tuple[Any, ...], list[Filled]] = {}
    for item in parameters:
        template = template_of(item.parameter.name)[0]
        sources = tuple(template_of(name)[0] for name in item.sources)
        key = (template, item.parameter.shape, item.parameter.dtype, item.outcome, sources, item.missing)
        alike.setdefault(key, []).append(item)
    for (template, shape, dtype, outcome, sources, missing), items in sorted(alike.items()):
        yield {
            "name": template,
            "count": len(items),
            "first": items[0].parameter.name,
            "shape": list(shape),
            "dtype": dtype,
            "outcome": outcome,
            "from": list(sources),
            "missing": list(missing),
        }


def _findings(asked: Asked, load: Load) -> Iterator[Finding]:
    """A refusal is an error, unless the engine was one of all and does not read such files at all; what a loader that
    was read in part would get wrong is a warning."""
    title = f"{asked.engine.title} {asked.version}"
    if load.refusals:
        first = load.refusals[0]
        more = f"; and {len(load.refusals) - 1} more" if len(load.refusals) > 1 else ""
        message = f"{title} refuses: {first.message}{more}"
        place = {"tensor": first.tensor, "key": first.key, "data": _data(asked, first.rule)}
        if first.foreign and not asked.by_name:
            yield finding("W_ENGINE", "warning", message, **place)  # type: ignore[arg-type]
        else:
            yield finding("E_LOAD_REFUSED", "error", message, **place)  # type: ignore[arg-type]
    yield from _wrong_findings(asked, title, load)
    if load.unknown and not load.refusals:
        yield finding("W_ENGINE_UNKNOWN", "warning", f"{title}: unknown, because {load.unknown}", data=_data(asked, ""))
    for note in load.notes:
        if note.warning:
            data = _data(asked, note.rule)
            yield finding("W_ENGINE", "warning", f"{title}: {note.message}", tensor=note.tensor, data=data)


def _wrong_findings(asked: Asked, title: str, load: Load) -> Iterator[Finding]:
    """One finding per code, rule and family of tensors."""
    groups: dict[tuple[str, str, str], list[Wrong]] = {}
    for item in load.wrongs:
        template = template_of(item.tensor)[0] if item.tensor else item.message
        groups.setdefault((item.code, item.rule, template), []).append(item)
    for (code, rule, template), items in groups.items():
        first, count = items[0], len(items)
        message = first.message if count == 1 else f"{first.message}, as are {count - 1} more '{template}'"
        data = {
            **_data(asked, rule),
            "count": count,
            "tensors": [item.tensor for item in items if item.tensor][:MAX_LISTED],
        }
        place = (
            {"tensor": first.tensor} if first.tensor else {"file": CONFIG_FILE, "key": first.key} if first.key else {}
        )
        sure = not load.unknown and (asked.by_name or not first.foreign)
        code, severity = (code, "error") if sure else ("W_ENGINE", "warning")
        yield finding(code, severity, f"{title}: {message}", fix=first.fix, data=data, **place)  # type: ignore[arg-type]


def _data(asked: Asked, rule: str) -> dict[str, Any]:
    found = RULES.get(rule)
    return {"engine": asked.engine.name, "version": asked.version, "rule": rule,
            "source": "" if found is None else str(found.source)}  # fmt: skip


def fate_rows(
    rows: Iterable[Mapping[str, Any]], audit: EngineAudit, checkpoint: Checkpoint
) -> Iterator[dict[str, Any]]:
    """Rows of the audit with what becomes of the first tensor of each family in every engine."""
    fates = audit.fates or {}
    for row in rows:
        name = row["first"]
        planes = (f"{name}.{leaf}" for leaf in row["planes"])
        stored = next((item for item in (name, *planes) if item in checkpoint.tensors), name)
        fate = fates.get(stored) or fates.get(template_of(stored)[0])
        yield {**row, "engines": dict(fate)} if fate else dict(row)
