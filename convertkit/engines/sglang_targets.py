"""What SGLang 0.5.23 does with a target: by family of names, so that 122,880 expert tensors cost one pass."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from convertkit.checkpoint import TensorSpec
from convertkit.engines.loading import misfit
from convertkit.engines.model import Fate, Filled, Load, Note, Parameter, Part, Refused, Stop, Unknown, Wrong
from convertkit.engines.sglang_quant import Quantization, read_quantization
from convertkit.engines.sglang_target_build import Built, Sizes, build, read_sizes
from convertkit.engines.sglang_target_tables import TARGETS, Style, TargetTable
from convertkit.engines.source import Source
from convertkit.layouts.rules import Family

STACKED = (("q_proj", "qkv_proj", "q"), ("k_proj", "qkv_proj", "k"), ("v_proj", "qkv_proj", "v"),
           ("gate_proj", "gate_up_proj", "gate"), ("up_proj", "gate_up_proj", "up"))  # fmt: skip
DELTA = (("in_proj_qkv.", "in_proj_qkvz.", "qkv"), ("in_proj_z.", "in_proj_qkvz.", "z"),
         ("in_proj_b.", "in_proj_ba.", "b"), ("in_proj_a.", "in_proj_ba.", "a"))  # fmt: skip
EXPERT_LEAVES = (("gate_proj", "w13_", "w1"), ("up_proj", "w13_", "w3"), ("down_proj", "w2_", "w2"))
UNREAD = (".k_scale", ".v_scale", ".q_scale", "rotary_emb.inv_freq", "rotary_emb.cos_cached", "rotary_emb.sin_cached")
ENDS = ("layers.", "embed_tokens.", "norm.")


@dataclass(frozen=True, slots=True)
class Place:
    """Where the names of a family go: a parameter and its shares; an error; or nowhere, and why."""

    name: str = ""
    shares: tuple[str, ...] = ()
    error: str = ""
    why: str = ""
    expert: bool = False
    """One expert's part; the error is only for experts that there are."""
    fused: bool = False
    """All experts of a layer in one tensor."""


@dataclass
class Loading:
    """A target being loaded: what fills what, by layer (and expert)."""

    table: TargetTable
    built: Built
    layers: int
    filled: dict[tuple[str, str], set[tuple[int, ...]]] = field(default_factory=dict)
    fates: dict[str, Fate] = field(default_factory=dict)
    refusals: list[Refused] = field(default_factory=list)
    wrongs: list[Wrong] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)


def load_target(source: Source, ranks: int) -> Load:
    """A target in SGLang. Unknown architectures and quantizations are unknown."""
    try:
        return _load(source, ranks)
    except Unknown as why:
        return Load(unknown=why.refused.message)
    except Stop as stopped:
        return Load(refusals=(stopped.refused,))


def _load(source: Source, ranks: int) -> Load:
    table = TARGETS.get(source.architecture)
    if table is None:
        raise Unknown(f"the architecture {source.architecture} is not one that convertkit's tables of SGLang describe")
    sizes = read_sizes(source.config)
    quant: Quantization = read_quantization(source.config, source.quant_config, table.packed)
    built = build(table, sizes, quant, ranks)
    state = Loading(table, built, sizes.layers)
    for family in source.families.values():
        _family(family, source.specs, state, sizes)
    outcomes = tuple(_outcomes(state))
    state.wrongs += [_unfilled(item) for item in outcomes if item.outcome in ("unfilled", "partly filled")]
    if sizes.tied and table.style != "moe":
        state.notes.append(Note("the head comes from the embeddings", "sglang.target-names"))
    return Load(tuple(state.refusals), tuple(state.wrongs), tuple(state.notes), state.fates, outcomes,
                facts={"run": True})  # fmt: skip


def _family(family: Family, specs: Mapping[str, TensorSpec], state: Loading, sizes: Sizes) -> None:
    place = _place(family.template, state, sizes)
    variants = state.built.parameters.get(place.name, ())
    by_layer: dict[int, int] = {}
    for number, made in enumerate(variants):
        by_layer |= dict.fromkeys(set(made.layers) - by_layer.keys(), number)
    experts = sizes.values.get("E", 0)
    inside: dict[int, list[int]] = {}
    beyond: list[int] = []
    lost: list[int] = []
    for at, numbers in enumerate(family.indices):
        layer = numbers[0] if numbers else -1
        if place.why:
            lost.append(at)
        elif layer >= state.layers and ".layers." in family.template:
            beyond.append(at)
        else:
            variant = by_layer.get(layer)
            if variant is None or (place.expert and numbers[1] >= experts):
                lost.append(at)
            else:
                inside.setdefault(variant, []).append(at)
    for variant, found in inside.items():
        _fill(family, found, place, variants[variant].parameter, specs, state)
    if beyond:
        first = family.names[beyond[0]]
        message = f"layers beyond the {state.layers} of the config are dropped without a word"
        state.wrongs.append(Wrong("E_LOAD_DROPPED", message, "sglang.target-names", first))
        state.fates.update({family.names[at]: Fate(None, skipped="beyond the layers") for at in beyond})
    if lost:
        _lose(family, lost, place, state, sizes)


def _fill(
    family: Family, inside: Sequence[int], place: Place, parameter: Parameter, specs: Mapping[str, TensorSpec],
    state: Loading,
) -> None:  # fmt: skip
    """Mark what a family fills and check the shapes of its tensors."""
    parts = {part.shard: part for part in parameter.parts}
    shares = place.shares or tuple(parts)
    for share in shares:
        if share not in parts:
            message = f"'{family.names[0]}' would be the share '{share}' of {parameter.name}, which has none"
            state.refusals.append(Refused("load_weights", message, "sglang.linear", family.names[0]))
            return
        marked = state.filled.setdefault((place.name, share), set())
        marked.update(family.indices[at] for at in inside)
    state.fates[family.names[inside[0]]] = Fate(place.name, shares[0] if len(shares) == 1 else "")
    wanted = parts[shares[0]] if len(shares) == 1 else _whole(parameter)
    if place.fused:
        columns = parameter.shape[1:] if len(shares) > 1 else parts["w2"].shape
        wanted = Part("", (parameter.shape[0], *columns))
    faults: dict[str, list[str]] = {}
    for at in inside:
        spec = specs[family.names[at]]
        fault = _misfit(spec, wanted, place.name)
        if fault:
            faults.setdefault(fault, []).append(spec.name)
    for fault, names in faults.items():
        _fault(fault, names, specs, wanted, state)


def _whole(parameter: Parameter) -> Part:
    """A tensor that fills all shares at once."""
    first = parameter.parts[0]
    if first.fit in ("scalar", "any"):
        return first
    return Part("", (sum(part.shape[0] for part in parameter.parts), *first.shape[1:]), first.fit)


def _misfit(spec: TensorSpec, wanted: Part, name: str) -> str:
    fault = misfit(spec.shape, wanted)
    return "no" if fault == "cut" and (".experts." in name or wanted.shard == "qkv") else fault


def _fault(fault: str, names: list[str], specs: Mapping[str, TensorSpec], wanted: Part, state: Loading) -> None:
    found, more = list(specs[names[0]].shape), f" ({len(names)} such tensors)" if len(names) > 1 else ""
    if fault == "no":
        message = f"weights of shape {found} do not fit, the config implies {list(wanted.shape)}{more}"
        state.refusals.append(Refused("load_weights", message, "sglang.linear", names[0]))
    elif fault == "short":
        message = f"the shape is {found}; the engine fills the rest of {list(wanted.shape)} with zeros{more}"
        state.wrongs.append(Wrong("E_LOAD_UNFILLED", message, "sglang.linear", names[0]))
    else:
        message = f"the shape is {found}, the engine takes {list(wanted.shape)} of it and drops the rest{more}"
        state.wrongs.append(Wrong("E_LOAD_CUT", message, "sglang.target-cut", names[0]))


def _lose(family: Family, lost: Sequence[int], place: Place, state: Loading, sizes: Sizes) -> None:
    """Names without a parameter: an error for fused linears of some classes, else dropped."""
    first, count = family.names[lost[0]], len(lost)
    state.fates.update({family.names[at]: Fate(None, skipped=place.why or "unknown name") for at in lost})
    count_experts = sizes.values.get("E", 0)
    wanted = (family.indices[at] for at in lost if not place.expert or family.indices[at][1] < count_experts)
    numbers = next(wanted, None) if place.error and not place.why else None
    if numbers is not None:
        message = f"KeyError: '{place.error.replace('{i}', str(numbers[0]) if numbers else '')}'"
        state.refusals.append(Refused("load_weights", message, "sglang.target-fused", first))
    elif place.why == "mtp":
        message = f"{count} tensors of multi-token prediction are not part of this model"
        state.notes.append(Note(message, "sglang.target-mtp", first))
    elif first.endswith(UNREAD) or place.why:
        state.notes.append(Note(f"{count} tensors are not needed", "sglang.target-names", first))
    elif first == "lm_head.weight" and sizes.tied:
        message = "a head is stored although it is tied to the embeddings; it is skipped"
        state.notes.append(Note(message, "sglang.target-names", first, True))
    else:
        message = f"{count} stored tensors are dropped: SGLang has no such name"
        state.wrongs.append(Wrong("E_LOAD_DROPPED", message, "sglang.target-names", first))


def _place(template: str, state: Loading, sizes: Sizes) -> Place:
    """Where a name goes, by the loader's own order of renames."""
    style, known = state.table.style, state.built.parameters
    name = template
    if "rotary_emb.inv_freq" in name:
        return Place(why="not needed")
    if style in ("moe", "hybrid", "text") and "mtp" in name:
        return Place(why="mtp")
    if style == "qwen3" and name.startswith(ENDS):
        name = f"model.{name}"
    if style == "text" and ("visual" in name or not name.startswith(("model.", "lm_head."))):
        return Place(why="not of the language model")
    if style in ("hybrid", "text"):
        name = _nested(name, style)
    fused = _stacked(name, style, known)
    if fused is not None:
        return fused
    if ".mlp.experts." in name and style in ("moe", "hybrid", "text"):
        return _expert(name, style)
    if style == "hybrid" and name == "lm_head.weight" and sizes.tied:
        name = "model.embed_tokens.weight"  # the same parameter
    if style == "hybrid" and "visual" in name:
        name = name.replace("attn.qkv.", "attn.qkv_proj.").replace("model.visual.", "visual.")
    return Place(name, ())


def _nested(name: str, style: Style) -> str:
    for old, new in ((".self_attn.k_proj.k_scale", ".attn.k_scale"), (".self_attn.v_proj.v_scale", ".attn.v_scale")):
        name = name.replace(old, new)
    name = name.replace("model.language_model.", "model.") if style == "hybrid" else name
    return name.replace(".self_attn.", ".")


def _stacked(name: str, style: Style, known: Mapping[str, Any]) -> Place | None:
    """A part of a fused linear (``qwen3.py:722``, ``qwen3_5.py:2480``)."""
    rows = (*STACKED, *(DELTA if style in ("hybrid", "text") else ()))
    if "mlp.experts" in name and style in ("moe", "hybrid", "text"):
        return None
    for old, new, share in rows:
        if old not in name or (style == "hybrid" and "visual" in name):
            continue
        renamed = name.replace(old, new)
        if renamed in known:
            return Place(renamed, (share,))
        if style == "qwen3" and not renamed.endswith(".bias"):
            return Place(name, (), error=renamed)
        name = renamed if style != "llama" else name
    return None


def _expert(name: str, style: Style) -> Place:
    """One expert's part, or all experts in one tensor as transformers 5 saves them."""
    at, _, rest = name.partition(".mlp.experts.")
    at = f"{at}.mlp.experts."
    if rest in ("gate_up_proj", "down_proj") and style in ("hybrid", "text"):
        shares = ("w1", "w3") if rest == "gate_up_proj" else ("w2",)
        return Place(f"{at}{'w13' if rest == 'gate_up_proj' else 'w2'}_weight", shares, fused=True)
    for leaf, new, share in EXPERT_LEAVES:
        if rest.startswith(f"{{e}}.{leaf}."):
            renamed = f"{at}{new}{rest.removeprefix(f'{{e}}.{leaf}.')}"
            error = renamed if style in ("hybrid", "text") and not renamed.endswith(IGNORED) else ""
            return Place(renamed, (share,), error=error, expert=True)
    return Place(name, ())


IGNORED = (".bias", "_bias", ".k_scale", "_k_scale", ".v_scale", "_v_scale", "_weight_scale", "_input_scale")


def _outcomes(state: Loading) -> Iterator[Filled]:
    """What became of every parameter, those that are whole together."""
    for name, made in ((name, made) for name, variants in state.built.parameters.items() for made in variants):
        whole: list[int] = []
        for layer in sorted(made.layers):
            missing = tuple(_missing(name, layer, made.parameter, made.experts, state))
            if not missing:
                whole.append(layer)
                continue
            parameter = made.at(name, layer)
            shares = {(part.shard, expert) for part in parameter.parts for expert in range(made.experts or 1)}
            if made.parameter.unread:
                yield Filled(parameter, "defaulted", (), missing)
            else:
                yield Filled(parameter, "partly filled" if len(missing) < len(shares) else "unfilled", (), missing)
        if whole:
            yield Filled(made.parameter, "filled", (name,))


def _missing(name: str, layer: int, parameter: Parameter, experts: int, state: Loading) -> Iterator[str]:
    either = name.endswith("experts.w13_input_scale")  # one value is written to both
    for part in parameter.parts[:1] if either else parameter.parts:
        shards = (part.shard, "w3") if either else (part.shard,)
        marks = [state.filled[name, shard] for shard in shards if (name, shard) in state.filled]
        head = (layer,) if layer >= 0 else ()
        if any(head in marked for marked in marks):
            continue
        if not experts:
            yield part.shard
        for expert in range(experts):
            if not any((*head, expert) in marked for marked in marks):
                yield f"{part.shard} of expert {expert}"


def _unfilled(item: Filled) -> Wrong:
    part = f" in its share {', '.join(item.missing[:3])}" if item.outcome == "partly filled" else ""
    message = f"{item.parameter.name} is filled by no stored tensor{part}, without a word"
    return Wrong("E_LOAD_UNFILLED", message, "sglang.target-missing", item.parameter.name)
