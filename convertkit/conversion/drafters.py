"""Plan the conversion of a drafter to another format: names, config, vocabulary map, tensors shared with the target."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from convertkit.checkpoint import Checkpoint, TensorSpec
from convertkit.containers.folder import CONFIG, QUANT_CONFIG
from convertkit.containers.strict_json import dump_config
from convertkit.conversion.drafter_tensors import DrafterRequest, Lose, Move, new_names, plan_tensors
from convertkit.conversion.drafter_units import Borrow
from convertkit.conversion.identify import Identity
from convertkit.conversion.plan import Draft, Plan, Unit, settle
from convertkit.conversion.planners import Files
from convertkit.conversion.target import Target, eagle_taps, target_findings
from convertkit.dialects.scheme import with_quantization
from convertkit.dialects.writing import write_quantization
from convertkit.drafter import FIELDS, DrafterSpec, value_text
from convertkit.errors import Finding, finding, raise_all, refusal
from convertkit.layouts.fields import put
from convertkit.layouts.forms import FORMS, Carried, Verifier, parts_of, write_config
from convertkit.layouts.layout import Layout, config_value
from convertkit.layouts.meaning import SLIDING, window_of
from convertkit.layouts.reading import BORROWABLE, NEEDED, assumed, stated_spec, unstated, with_tensors
from convertkit.layouts.tables import LAYOUTS_BY_NAME

ROUTES: Mapping[str, Mapping[str, str]] = {
    "speculators": {
        "dflash": "speculators-dflash",
        "dflash2": "speculators-dflash2",
        "dspark": "speculators-dspark",
        "eagle3": "speculators-eagle3",
        "speculators-dflash": "speculators-dflash",
        "speculators-dflash2": "speculators-dflash2",
        "speculators-dspark": "speculators-dspark",
        "speculators-eagle3": "speculators-eagle3",
    },
    "dflash": {
        "speculators-dflash": "dflash",
        "speculators-dflash2": "dflash2",
        "dflash": "dflash",
        "dflash2": "dflash2",
    },
    "dspark": {"speculators-dspark": "dspark", "dspark": "dspark"},
    "eagle3": {"speculators-eagle3": "eagle3", "eagle3": "eagle3"},
}
"""Format asked for, and source layout, to the layout that is written."""

EAGLE_TOKENS = 3
"""Draft tokens of an EAGLE-3 that states none, as speculators' own converter writes them."""

LOSABLE = frozenset((*FIELDS, *BORROWABLE, "embed_tokens", "lm_head"))
"""What ``--allow-loss`` accepts, besides dotted names of config keys."""

Judge = Callable[[Mapping[str, Any], Collection[str], Layout, DrafterSpec], Iterable[Finding]]
"""Findings about the config that would be written, its tensor names and layout, given what is meant."""


def plan_drafter(
    source: Checkpoint,
    identity: Identity,
    request: DrafterRequest,
    target: Target | None,
    judge: Judge,
    lose: Lose,
    files: Files,
) -> Plan:
    """Plan the conversion. Nothing is decoded; small tables (d2t, t2d) and copies of the target's tensors are read.

    Raises ``ConvertError`` with all that stands in the way: E_NO_ROUTE, E_CONFIG, E_LOSS, E_NEEDS_TARGET,
    E_TARGET_MISMATCH, E_VOCABULARY_MAP.
    """
    raise_all(identity.errors)
    out = _route(request.to, identity.layout)
    _check_allowed(request.allow_loss)
    meant = _meaning(source, identity, out, target)
    carried = parts_of(identity.layout.name, source.config)
    planes = identity.planes.plane_names | frozenset(identity.planes.kv_scales)
    names_there = new_names(source, identity.layout, out)
    move = Move(source, out, _written(meant, out, request), target, request, lose, names_there, planes)
    plan_tensors(move)
    config = write_config(out.name, carried, move.spec, _verifier(out, source.config, request, target))
    specs = [item for unit in move.units for item in unit.outputs]
    names = [item.name for item in specs]
    move.findings.extend(_noticed(source, identity, move))
    move.findings.extend(_config_findings(source, carried, config, move))
    if target is not None:
        dtype = carried.body.get("dtype") or carried.body.get("torch_dtype")
        move.findings.extend(target_findings(meant, target, dtype if isinstance(dtype, str) else None))
    move.findings.extend(judge(config, names, out, with_tensors(meant, names)))
    raise_all(item for item in move.findings if item.severity == "error")
    documents = _documents(config, identity, out, specs, target)
    parameters = _parameters(identity.layout, move)
    draft = Draft(request.verb, parameters, move.units, move.drops, documents, move.findings)
    return settle(source, draft, files.max_shard_bytes, files.header_slack_bytes)


def _meaning(source: Checkpoint, identity: Identity, out: Layout, target: Target | None) -> DrafterSpec:
    """What the source means, completed by its target."""
    stated = stated_spec(identity.layout, source.config, source.tensors)
    assert stated is not None  # every layout with a route has a table
    spec, faults = stated
    raise_all(faults)
    _check_backbone(spec)
    return _completed(spec, out, target)


def _written(meant: DrafterSpec, out: Layout, request: DrafterRequest) -> DrafterSpec:
    """What is written: the same, but for a reduced vocabulary that may be lost."""
    if out.name == "dflash" and "draft_vocabulary" in request.allow_loss:
        return replace(meant, draft_vocabulary=meant.vocabulary)
    return meant


PUT_RIGHT = frozenset({"W_NAME_PREFIX", "W_CODEBOOK_NAME", "W_SLIDING_WINDOW"})
"""What is odd about a source and not about the output; a lost window is a loss."""


def _noticed(source: Checkpoint, identity: Identity, move: Move) -> Iterable[Finding]:
    """What is odd about the source, and what is lost: a window that no key switches on, a number of draft tokens."""
    known = (*source.findings,)
    yield from (item for item in identity.findings if item.code not in PUT_RIGHT and item not in known)
    for field in assumed(identity.layout, source.config):
        value = value_text(field, getattr(move.spec, field))
        message = f"{field}: the source does not state it; its own package takes {value}, which is written"
        fix = "compare it with how the drafter was trained; a wrong one only lowers acceptance"
        yield finding("W_READER_DIFFERS", "warning", message, file=CONFIG, fix=fix, data={"field": field})
    types = config_value(source.config, "layer_types")
    if isinstance(types, list) and SLIDING in types and window_of(move.spec) is None:
        message = (
            "layers are sliding_attention, but 'sliding_window' and 'use_sliding_window: true' are not both there; "
            "some readers drop the window, others keep it or refuse"
        )
        yield move.lose("attention", message, move.request.allow_loss, file=CONFIG, key="use_sliding_window")
    yield from _other_tokens(move)


def _other_tokens(move: Move) -> Iterable[Finding]:
    """A number of draft tokens that a flat format does not state: engines take the block's, or must be told."""
    spec = move.spec
    if spec.draft_tokens is None or FORMS[move.out.name].speculators is not None:
        return
    block = spec.block_size
    usual = EAGLE_TOKENS if block is None else block - (0 if spec.sample_from_anchor else 1)
    if spec.draft_tokens != usual:
        message = f"draft_tokens: the format does not state them; {usual} are usual, meant are {spec.draft_tokens}"
        fix = f"give engines --num-speculative-tokens {spec.draft_tokens}"
        yield finding("W_LOSS", "warning", message, file=CONFIG, fix=fix, data={"field": "draft_tokens"})


def _config_findings(source: Checkpoint, carried: Carried, config: dict[str, Any], move: Move) -> Iterable[Finding]:
    """Keys that are carried over though nobody knows them, and keys that the other format has no section for."""
    same = FORMS[move.out.name].speculators is None and "speculators_model_type" not in source.config
    for key, value in carried.lost.items():
        if same:
            put(config, key, value)
        else:
            message = "a key that the other format has no place for"
            yield move.lose(key, message, move.request.allow_loss, file=CONFIG, key=key)
    unknown = sorted(key for key in carried.rest if key != "transformers_version")
    if unknown:
        message = f"{len(unknown)} unknown config keys are carried over: {', '.join(unknown[:8])}"
        yield finding("N_PASSED", "note", message, file=CONFIG, data={"keys": unknown})
    flat = FORMS[move.out.name].speculators is None
    twice = [key for key, value in carried.rest.items() if flat and carried.body.get(key, value) != value]
    for key in sorted(twice):
        message = f"'{key}' is stated twice and differs; the transformer's is kept, that at the top is left out"
        yield finding("W_LOSS", "warning", message, file=CONFIG, key=key, data={"field": key})
    if "auto_map" in source.config:
        message = "'auto_map' names code of the source's format and is left out"
        yield finding("W_LOSS", "note", message, file=CONFIG, key="auto_map")


def _parameters(layout: Layout, move: Move) -> dict[str, Any]:
    """What decides the output besides the source."""
    return {
        "to": move.request.to,
        "from_layout": layout.name,
        "layout": move.out.name,
        "target_id": move.request.target_id,
        "target_layers": None if move.target is None else move.target.layers,
        "allow_loss": sorted(move.request.allow_loss),
        "borrowed": _borrowed(move.units),
    }


def _route(to: str, layout: Layout) -> Layout:
    name = ROUTES[to].get(layout.name)
    if name is None:
        known = ", ".join(ROUTES[to])
        raise refusal(
            "E_NO_ROUTE", f"the source is laid out as {layout.name}; '{to}' can be made of {known}", file=CONFIG
        )
    return LAYOUTS_BY_NAME[name]


BACKBONES: Mapping[str, tuple[str, ...]] = {"eagle3": ("llama", "qwen3")}
"""Kinds of layers that readers of an algorithm build; all others build those of Qwen3 only."""


def _check_backbone(spec: DrafterSpec) -> None:
    known = BACKBONES.get(spec.algorithm, ("qwen3",))
    if spec.backbone is not None and spec.backbone not in known:
        message = f"the layers are {spec.backbone}'s; readers of {spec.algorithm} know {' and '.join(known)} only"
        raise refusal("E_NO_ROUTE", message, file=CONFIG, key="model_type")


def _check_allowed(names: Iterable[str]) -> None:
    unknown = [name for name in names if name not in LOSABLE and "." not in name]
    if unknown:
        raise refusal("E_USAGE", f"--allow-loss {unknown[0]}: no field is called so", fix=", ".join(sorted(LOSABLE)))


def _completed(spec: DrafterSpec, out: Layout, target: Target | None) -> DrafterSpec:
    """The spec with what the target tells, and E_CONFIG or E_NEEDS_TARGET for what nobody tells."""
    if target is not None and target.layers is not None:
        spec = replace(spec, target_layers=spec.target_layers or target.layers)
        if spec.algorithm == "eagle3" and spec.taps is None:
            spec = replace(spec, taps=eagle_taps(target.layers))
    if spec.algorithm == "eagle3" and spec.draft_tokens is None and FORMS[out.name].speculators:
        spec = replace(spec, draft_tokens=EAGLE_TOKENS)
    needs = set(NEEDED)
    needs |= {"taps", "mask_token", "block_size"} if spec.algorithm != "eagle3" else set()
    raise_all(unstated(spec, (name for name in FIELDS if name in needs)))
    if spec.target_layers is None and out.name in ("dflash", "dflash2", "dspark"):
        message = "the config must state 'num_target_layers', which only the target can tell"
        raise refusal("E_NEEDS_TARGET", message, fix="--target-model DIR")
    if spec.algorithm == "eagle3" and spec.taps is None and FORMS[out.name].speculators:
        message = "the drafter taps its target's default layers, which depend on the target"
        raise refusal("E_NEEDS_TARGET", message, fix="--target-model DIR")
    return spec


def _borrowed(units: Iterable[Unit]) -> dict[str, Any]:
    """Where borrowed tensors come from, as far as it decides bytes: file, size and place, for the fingerprint."""
    return {
        unit.name: {
            "file": unit.lent.file,
            "tensor": unit.lent.spec.name,
            "first_byte": unit.lent.start,
            "file_size_bytes": next(file.size_bytes for file in unit.lender.files if file.name == unit.lent.file),
        }
        for unit in units
        if isinstance(unit, Borrow)
    }


def _verifier(
    out: Layout, config: Mapping[str, Any], request: DrafterRequest, target: Target | None
) -> Verifier | None:
    """The target as a speculators config names it: ``--target-id``, the source's own word, or the target's."""
    if FORMS[out.name].speculators is None:
        return None
    said = config.get("speculators_config")
    stated = said.get("verifier") if isinstance(said, Mapping) else None
    stated = stated if isinstance(stated, Mapping) else {}
    name = request.target_id or stated.get("name_or_path") or (target.name if target is not None else None)
    if not isinstance(name, str):
        message = "a speculators config names its target by its hub name; vLLM refuses a local path there"
        raise refusal("E_NEEDS_TARGET", message, fix="--target-id ORG/NAME")
    architectures = target.architectures if target is not None and target.architectures else None
    if architectures is None:
        architectures = tuple(item for item in stated.get("architectures") or () if isinstance(item, str))
    if not architectures:
        told = "--target-model DIR" if target is None else "state 'architectures' in the config of --target-model"
        raise refusal("E_NEEDS_TARGET", "a speculators config names the target's class", fix=told)
    return Verifier(name, architectures)


def _documents(
    config: dict[str, Any], identity: Identity, out: Layout, specs: Iterable[TensorSpec], target: Target | None
) -> dict[str, bytes]:
    """``config.json`` and, for a pack in ModelOpt's spelling, ``hf_quant_config.json``, both at the top level."""
    if not identity.packed:
        return {CONFIG: dump_config(config)}
    layers = None if target is None else target.layers
    kv_cache = None if identity.scheme is None else identity.scheme.kv_cache
    block, document = write_quantization(identity.dialect, specs, out, kv_cache=kv_cache, target_layers=layers)
    documents = {CONFIG: dump_config(with_quantization(config, block))}
    if document is not None:
        documents[QUANT_CONFIG] = dump_config(document)
    return documents
