"""What vLLM 0.33 does with a target: every stored tensor by family, every parameter by layer.

A family of stored names (122,880 expert tensors are six of them) is looked up once, its numbers are compared as sets.
Compared with vLLM's own loader on every case of ``tests/engines/target_cases.py`` and ``hybrid_cases.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from convertkit.engines.config_checks import check_fields, check_layers, check_llama
from convertkit.engines.hf_fields import parts
from convertkit.engines.model import Load, Note, Stop, Unknown, Wrong, stop
from convertkit.engines.quantized import Grid
from convertkit.engines.source import Source
from convertkit.engines.target_tables import TARGETS, Experts, Module, Prefixes, Row, Single, TargetTable
from convertkit.engines.vllm_rope import check_rope
from convertkit.engines.vllm_target_quant import EXPERTS, target_quantization
from convertkit.engines.vllm_target_rows import follow
from convertkit.engines.vllm_target_shapes import Sizes, check_heads, sizes_of
from convertkit.engines.vllm_target_view import CACHE, Placed, View, named
from convertkit.layouts.rules import Family

ROTARY = ("rotary_emb.inv_freq", "rotary_emb.cos_cached", "rotary_emb.sin_cached")


def load_target(source: Source, ranks: int = 1) -> Load:
    """Load a target in the mind. Nothing is raised: a refusal is part of the result."""
    table = TARGETS.get(source.architecture)
    if table is None:
        return Load(
            unknown=f"the architecture {source.architecture} is not one that convertkit's tables of vLLM describe"
        )
    try:
        return _load(source, table, ranks)
    except Unknown as why:
        return Load(unknown=why.refused.message)
    except Stop as stopped:
        return Load(refusals=(stopped.refused,))


def _load(source: Source, table: TargetTable, ranks: int) -> Load:
    sizes = sizes_of(source.config, ranks, table.defaults)
    _checked(source.config, sizes)
    check_heads(sizes)
    shards = {**table.shards, **_optional_shards(sizes)}
    rename = lambda name: renamed(name, table.prefixes, drop=False) or name  # noqa: E731
    quantization = target_quantization(source.config, sizes.text, source.quant_file, shards, rename)
    view = View(table, sizes, quantization, source.specs)
    rows = tuple(row for row in table.rows if _present(row, sizes))
    built = {row.name: _built(row, view) for row in rows}
    _place(view, rows, source.families)
    for row in rows:
        follow(view, row, built[row.name])
    if sizes.tied:
        view.notes.append(Note("the head comes from the embeddings", "vllm.tied"))
    facts = {"quantization": quantization.family}
    return Load(tuple(view.refusals), tuple(view.wrongs), tuple(view.notes), view.fates, tuple(view.outcomes),
                facts=facts)  # fmt: skip


def _checked(config: Mapping[str, Any], sizes: Sizes) -> None:
    """What the config classes refuse. Raises Stop; Unknown for a model type that is another than the architecture's."""
    for part, fields in parts(config):
        check_fields(part, fields)
    check_layers(sizes.text)
    if sizes.text.get("model_type") == "llama":
        check_llama(sizes.text)
    check_rope({"head_dim": sizes.values.get("hd"), **sizes.text}, flat=True, dflash=False)
    _check_values(config, sizes)
    kind = config.get("model_type")
    if kind is None:
        raise stop("config", "Unrecognized model: config.json should have a `model_type` key", "vllm.model-type",
                   key="model_type")  # fmt: skip
    for stated in (kind, sizes.text.get("model_type", kind)):
        if stated not in MODEL_TYPES:
            raise Unknown(f"the model type {stated} is not one that convertkit's tables of vLLM describe")


ACTIVATIONS = frozenset({"gelu", "gelu_fast", "gelu_new", "gelu_pytorch_tanh", "relu", "relu2", "silu", "swish",
                         "quick_gelu", "tanh", "sigmoid", "xielu"})  # fmt: skip
"""Of vision towers (``layers/activation.py:793``)."""


def _check_values(config: Mapping[str, Any], sizes: Sizes) -> None:
    """Values that layers refuse as they are created. Raises Stop."""
    tower = config.get("vision_config")
    tower = tower if isinstance(tower, Mapping) else {}
    dense = sizes.text.get("model_type") != "qwen3_moe" or sizes.text.get("mlp_only_layers")
    if dense and sizes.text.get("hidden_act", "silu") != "silu":
        message = f"Unsupported activation: {sizes.text['hidden_act']}. Only silu is supported for now."
        raise stop("create", message, "vllm.activation", key="hidden_act")
    if tower.get("hidden_act", "silu") not in ACTIVATIONS:
        raise stop("create", f"KeyError: {tower['hidden_act']!r}", "vllm.activation", key="hidden_act")
    if 0 in (sizes.values.get("nkv"), tower.get("num_heads")):
        raise stop("create", "integer modulo by zero: there are no heads", "vllm.kv-heads", key="num_key_value_heads")
    if not isinstance(sizes.text.get("attn_output_gate", True), int):
        raise stop("create", "attn_output_gate is no flag", "vllm.config-type", key="attn_output_gate")
    if not isinstance(tower.get("deepstack_visual_indexes", []), list):
        raise stop("create", "object has no len()", "vllm.config-type", key="deepstack_visual_indexes")
    if tower.get("deepstack_visual_indexes") or sizes.text.get("shared_expert_intermediate_size") == 0:
        raise Unknown("towers with deepstack and experts without a shared one are not described")


MODEL_TYPES = frozenset({"llama", "qwen3", "qwen3_moe", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"})


def _optional_shards(sizes: Sizes) -> Mapping[str, tuple[str, ...]]:
    """Qwen3-MoE names gate and up as parts only if it has layers without experts (``qwen3_moe.py:575``)."""
    return {"gate_up_proj": ("gate_proj", "up_proj")} if sizes.text.get("mlp_only_layers") else {}


def _present(row: Row, sizes: Sizes) -> bool:
    return not (getattr(row, "needs", "") == "own head" and sizes.tied)


def _built(row: Row, view: View) -> Mapping[Grid, list[int | None]]:
    """The layers of a row by how vLLM builds it there."""
    numbers = view.sizes.numbers(row.layers)
    if isinstance(row, Single) or (isinstance(row, Module) and not row.quantized):
        return {"dense": list(numbers)} if numbers else {}
    kind = EXPERTS if isinstance(row, Experts) else row.kind
    found: dict[Grid, list[int | None]] = {}
    for number in numbers:
        found.setdefault(view.quantization.ask(named(row.name, number), kind), []).append(number)
    return found


def renamed(name: str, prefixes: Prefixes, *, drop: bool = True) -> str | None:
    """A name after the renames of a model, in order; None if the model drops it."""
    for old, new in prefixes:
        if name.startswith(old):
            if new is None and drop:
                return None
            name = name if new is None else new + name.removeprefix(old)
    return name


def engine_name(template: str, table: TargetTable) -> str | None:
    """A stored name in the engine: through the renames of the whole model, then those of the language model inside."""
    name = renamed(template, table.prefixes)
    if name is None or not table.within or not name.startswith(table.within):
        return name
    inside = renamed(name.removeprefix(table.within), table.inner)
    return None if inside is None else table.within + inside


def _place(view: View, rows: tuple[Row, ...], stored: Mapping[str, Family]) -> None:
    """Every family to its row, or to what becomes of a name that no row has."""
    slots = dict(_slots(rows))
    roots = tuple(row.name + "." for row in rows if isinstance(row, Experts))
    for template, family in stored.items():
        name = engine_name(template, view.table)
        if name is None:
            _dropped(view, family, "of multi-token prediction, which is another model", "vllm.target-mtp")
            continue
        module, _, leaf = name.rpartition(".")
        hit = slots.get(name) or slots.get(module)
        if hit is not None:
            leaf = "" if name in slots else leaf
            view.placed.setdefault(hit[0].name, []).append(Placed(family, hit[1], leaf, name))
        else:
            _unknown(view, family, name, roots, frozenset(slots))


def _slots(rows: tuple[Row, ...]) -> Iterator[tuple[str, tuple[Row, int | None]]]:
    """Engine's names of stored modules and parameters: the row and which of its parts they are."""
    for row in rows:
        if isinstance(row, Single):
            yield row.name, (row, None)
        elif isinstance(row, Experts):
            for place, leaf in enumerate(("gate_proj", "up_proj", "down_proj")):
                yield f"{row.name}.{{e}}.{leaf}", (row, place)
            yield f"{row.name}.gate_up_proj", (row, 3)
            yield f"{row.name}.down_proj", (row, 4)
        else:
            parent, _, own = row.name.rpartition(".")
            yield row.name, (row, None)
            for place, (_, leaf, _) in enumerate(row.parts):
                if leaf != own or len(row.parts) > 1:
                    yield f"{parent}.{leaf}" if parent else leaf, (row, place)


def _dropped(view: View, family: Family, why: str, rule: str, *, harm: bool = False) -> None:
    first, count = family.names[0], len(family.names)
    what = f"{count} stored tensors are not used: {why}" if count > 1 else f"the stored tensor is not used: {why}"
    view.settle(Placed(family, None, "", ""), None, skipped=why)
    if harm:
        view.wrongs.append(Wrong("E_LOAD_DROPPED", what, rule, first))
    else:
        view.notes.append(Note(what, rule, first))


def _unknown(view: View, family: Family, name: str, experts: tuple[str, ...], modules: frozenset[str]) -> None:
    """A name that no row has: dropped below the experts and where it ends like a bias or a cache scale, else refused
    (``models/utils.py:423``)."""
    first, count = family.names[0], len(family.names)
    owner = name.rpartition(".")[0]
    known = owner in modules or any(module.startswith(owner + ".") for module in modules)
    if first.endswith(ROTARY):
        _dropped(view, family, "rotary cache", "vllm.dropped")
    elif name.startswith(experts):
        _dropped(view, family, "the experts have no such part", "vllm.experts-names", harm=True)
    elif known and view.quantized and name.endswith(CACHE):
        _dropped(view, family, "a scale of the KV cache", "vllm.kv-scales")
    elif known and name.endswith(".bias"):
        _dropped(view, family, "unexpected bias", "vllm.bias", harm=True)
    elif view.sizes.tied and (name == "lm_head.weight" or name.endswith(".lm_head.weight")):
        text = (
            "a head is stored although it is tied to the embeddings: it is skipped, by hybrid models loaded over them"
        )
        view.settle(Placed(family, None, "", ""), None, skipped="tied to the embeddings")
        view.notes.append(Note(text, "vllm.tied", first, True))
    else:
        more = f" and {count - 1} more" if count > 1 else ""
        view.refuse(f"There is no module or parameter for '{first}'{more}", "vllm.unknown-name", first)
        view.settle(Placed(family, None, "", ""), None, skipped="refused")
