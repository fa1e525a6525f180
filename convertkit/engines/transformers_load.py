"""What transformers 5 does with a model: ``from_pretrained`` takes the class of ``model_type`` and reports names.

Run: every case of ``sglang_cases`` and ``sglang_target_cases`` in the oracle test. Drafters have no class there: their
own packages load them (z-lab dflash, speculators), and transformers builds the model that ``model_type`` names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from convertkit.checkpoint import TensorSpec
from convertkit.engines.model import Fate, Filled, Load, Note, Parameter, Part, Refused, Shape, Stop, Unknown, Wrong
from convertkit.engines.rules import Rule
from convertkit.engines.rules import Source as Place
from convertkit.engines.sglang_target_build import Sizes, read_sizes
from convertkit.engines.source import Source
from convertkit.engines.transformers_pack import check_pack
from convertkit.engines.transformers_tables import MODELS, Model, Row
from convertkit.layouts.rules import Family

VERSION = "5.19.0"
VERSIONS = (VERSION, "5.20.2")
"""Versions that were run; what they do with models that are not packed by compressed-tensors is the same."""


def _rule(name: str, text: str, file: str) -> Rule:
    return Rule(f"transformers.{name}", text, Place("transformers", VERSION, file, 0, "run"))


RULES: Mapping[str, Rule] = {
    rule.name: rule
    for rule in (
        _rule("drafters", "no class of a drafter is registered: model_type alone chooses the class",
              "models/auto/modeling_auto.py"),
        _rule("model-type", "a config needs a model_type", "models/auto/configuration_auto.py"),
        _rule("layer-types", "layer_types has one entry per layer", "configuration_utils.py"),
        _rule("config-type", "fields of a config have a type", "models/auto/configuration_auto.py"),
        _rule("config-null", "fields of a config are not null", "models/auto/configuration_auto.py"),
        _rule("rope-parameters", "the type of rope must be known, and its values numbers", "modeling_rope_utils.py"),
        _rule("rope", "a head that turns whole has an even size", "modeling_rope_utils.py"),
        _rule("activation", "the activation must be known", "activations.py"),
        _rule("arguments", "arguments of a pack must be of the kind that their class takes",
              "quantizers/quantizer_compressed_tensors.py"),
        _rule("values", "sizes are not below zero, and there is at least one head", "modeling_utils.py"),
        _rule("missing", "what is not stored is initialised anew, with a warning", "modeling_utils.py"),
        _rule("unexpected", "stored names that the model lacks are dropped with a warning", "modeling_utils.py"),
        _rule("sizes", "a shape that differs is an error", "modeling_utils.py"),
        _rule("experts", "experts are merged into two parameters; all must be there and alike",
              "core_model_loading.py"),
        _rule("quantized", "ModelOpt's quantization is not among those that are read", "quantizers/auto.py"),
        _rule("status", "what is packed is unpacked only if quantization_status is compressed",
              "quantizers/quantizer_compressed_tensors.py"),
        _rule("packed-experts", "packed experts are merged without their global scales", "core_model_loading.py"),
        _rule("prefix", "names without model. are found", "core_model_loading.py"),
    )
}  # fmt: skip

MERGED = ("qwen3_moe", "qwen3_5_moe_text")
"""Model types of a text whose experts are merged."""
LEAVES = ("gate_proj", "up_proj", "down_proj")
GLOBAL_SCALE = ".weight_global_scale"
NOT_NEEDED = ("rotary_emb.inv_freq",)
METHODS = frozenset(
    {"gguf", "awq", "bitsandbytes", "bitsandbytes_4bit", "bitsandbytes_8bit", "eetq", "gptq", "aqlm", "quanto", "quark",
     "fouroversix", "fp_quant", "hqq", "fbgemm_fp8", "higgs", "torchao", "bitnet", "vptq", "spqr", "fp8", "nvfp4",
     "mxfp8", "auto-round", "mxfp4", "metal", "sinq", "gemma"}
)  # fmt: skip
"""Other methods that are read (``quantizers/auto.py:110``); one that is not known is passed over with a warning."""


def load_target(source: Source, ranks: int = 1) -> Load:
    """A model in ``from_pretrained``, dense ones only; packed ones are refused or unknown."""
    block = source.config.get("quantization_config")
    if isinstance(block, Mapping):
        method = block.get("quant_method")
        if method is None:
            message = "The model's quantization config from the arguments has no `quant_method` attribute."
            return Load((Refused("load_weights", message, "transformers.quantized", key="quant_method"),))
        if method == "compressed-tensors":
            return _compressed(source, block)
        if isinstance(method, list | Mapping):
            message = f"unhashable type: {type(method).__name__!r}"
            return Load((Refused("load_weights", message, "transformers.quantized", key="quant_method"),))
        if method in METHODS:
            return Load(unknown=f"the quantization method {method!r} is not one that convertkit's tables describe")
    model = MODELS.get(str(source.config.get("model_type")))
    if model is None:
        kind = source.config.get("model_type")
        return Load(unknown=f"the model type {kind} is not one that convertkit's tables of transformers describe")
    inner = source.config.get("text_config")
    text = inner if isinstance(inner, Mapping) else source.config
    if isinstance(text.get("model_type"), str) and text["model_type"] not in MERGED:
        model = replace(model, merges=False)  # it names how (``conversion_mapping.py``)
    types, layers = text.get("layer_types"), text.get("num_hidden_layers")
    if isinstance(types, list) and isinstance(layers, int) and len(types) != layers:
        message = f"`num_hidden_layers` ({layers}) must be equal to the number of `layer_types` ({len(types)})"
        return Load((Refused("config", message, "transformers.layer-types", key="layer_types"),))
    try:
        load = _load(model, source)
        return _unread(load) if block is not None or source.quant_config else load
    except Unknown as why:
        return Load(unknown=why.refused.message)


def _compressed(source: Source, block: Mapping[str, Any]) -> Load:
    """What is certain of a model that compressed-tensors packed; whether every linear is matched is not described."""
    try:
        check_pack(block)
    except Stop as stopped:
        return Load((stopped.refused,))
    wrongs = []
    if block.get("quantization_status") != "compressed":
        message = (
            "without 'quantization_status': 'compressed' packed linears are taken for dense ones and initialised anew"
        )
        wrongs.append(Wrong("E_LOAD_UNFILLED", message, "transformers.status", key="quantization_status"))
    scales = [spec.name for spec in source.tensors if ".experts." in spec.name and spec.name.endswith(GLOBAL_SCALE)]
    if scales:
        message = f"{len(scales)} global scales of packed experts are dropped: experts are merged without them"
        wrongs.append(Wrong("E_LOAD_DROPPED", message, "transformers.packed-experts", scales[0]))
    unknown = "which linears compressed-tensors would match is not described for transformers"
    return Load((), tuple(wrongs), unknown=unknown)


def _unread(load: Load) -> Load:
    """What ModelOpt packed: transformers has no quantizer for it, which is no fault of the checkpoint."""
    message = "transformers does not read ModelOpt's quantization: it takes packed weights for dense ones"
    first = Refused("load_weights", message, "transformers.quantized", key="quantization_config", foreign=True)
    rest = tuple(replace(item, foreign=True) for item in load.refusals)
    wrongs = tuple(replace(item, foreign=True) for item in load.wrongs)
    return replace(load, refusals=(first, *rest) if rest else (), wrongs=wrongs)


def _load(model: Model, source: Source) -> Load:
    sizes = read_sizes(source.config)
    expected = {row.name: row for row in model.rows if _present(row, sizes, source.config)}
    specs = source.specs
    found: dict[str, set[int]] = {}
    fates: dict[str, Fate] = {}
    refusals: list[Refused] = []
    lost: list[str] = []
    experts: dict[str, dict[str, Family]] = {}
    for family in source.families.values():
        place = _place(family.template, model, expected)
        if place.startswith("experts:"):
            _, at, leaf = place.split(":")
            experts.setdefault(at, {})[leaf] = family
        elif place in expected:
            lost += _fill(family, expected[place], place, sizes, specs, found, fates, refusals, source.config)
        elif place:
            lost += family.names
    for at, parts in experts.items():
        lost += _merge(at, parts, expected, sizes, specs, found, fates, refusals, source.config)
    fates.update({name: Fate(None, skipped="unexpected") for name in lost})
    head = specs.get("lm_head.weight")
    if head is not None and sizes.tied and head.shape != sizes.shape("V H"):
        refusals.append(_mismatch([head.name], specs, sizes.shape("V H")))
    outcomes = (*_outcomes(expected.values(), found, sizes, source.config), *_tied_head(expected, found, sizes, specs))
    wrongs = [Wrong("E_LOAD_UNFILLED", f"{item.parameter.name} is not stored and is initialised anew",
                    "transformers.missing", item.parameter.name)
              for item in outcomes if item.outcome == "unfilled"]  # fmt: skip
    if lost:
        message = f"{len(lost)} stored tensors are dropped: the model has no such names"
        wrongs.append(Wrong("E_LOAD_DROPPED", message, "transformers.unexpected", sorted(lost)[0]))
    return Load(
        tuple(refusals), tuple(wrongs), _notes(sizes), fates, outcomes, facts={"class": model.name, "run": True}
    )


def _notes(sizes: Sizes) -> tuple[Note, ...]:
    return (Note("the head comes from the embeddings", "transformers.missing"),) if sizes.tied else ()


def _present(row: Row, sizes: Sizes, config: Mapping[str, Any]) -> bool:
    if row.needs == "own head":
        return not sizes.tied
    if row.needs == "bias":
        return sizes.biased
    return row.needs != "mlp bias" or bool(config.get("mlp_bias"))


def _layers(row: Row, sizes: Sizes, config: Mapping[str, Any]) -> frozenset[int]:
    """Layers of a row; which have experts is the config's to say here."""
    every = sizes.kinds["all"]
    if row.layers not in ("sparse", "dense"):
        return sizes.kinds[row.layers]
    inner = config.get("text_config")
    text = inner if isinstance(inner, Mapping) else config
    step, only = text.get("decoder_sparse_step", 1), text.get("mlp_only_layers") or []
    sparse = frozenset(i for i in every if i not in only and isinstance(step, int) and step > 0 and not (i + 1) % step)
    return sparse if row.layers == "sparse" else every - sparse


def _place(template: str, model: Model, expected: Mapping[str, Row]) -> str:
    """The parameter of a name; ``experts:AT:LEAF`` for one expert's part, empty for what is ignored."""
    if template.startswith(model.ignored) or template.endswith(NOT_NEEDED):
        return ""
    if template == "lm_head.weight" and template not in expected:
        return ""
    if model.shed:
        template = template.replace(model.shed, "model.")
    for name in (template, f"model.{template}") if model.merges else ():
        at, dot, rest = name.partition(".mlp.experts.{e}.")
        if dot and f"{at}.mlp.experts.gate_up_proj" in expected and rest in [f"{leaf}.weight" for leaf in LEAVES]:
            return f"experts:{at}:{rest.removesuffix('.weight')}"
    for name in (template, f"model.{template}", template.removeprefix("model.")):
        if name in expected:
            return name
    return template


def _fill(
    family: Family, row: Row, name: str, sizes: Sizes, specs: Mapping[str, TensorSpec], found: dict[str, set[int]],
    fates: dict[str, Fate], refusals: list[Refused], config: Mapping[str, Any],
) -> list[str]:  # fmt: skip
    """Mark what a family fills; the names of layers that do not have the parameter."""
    layers, shape = _layers(row, sizes, config), sizes.shape(row.shape)
    lost, bad = [], []
    for numbers, stored in zip(family.indices, family.names, strict=True):
        layer = numbers[0] if numbers else -1
        if layer not in layers:
            lost.append(stored)
            continue
        found.setdefault(name, set()).add(layer)
        if specs[stored].shape != shape:
            bad.append(stored)
    if len(lost) < len(family.names):
        fates[family.names[0]] = Fate(name)
    if bad:
        refusals.append(_mismatch(bad, specs, shape))
    return lost


def _mismatch(names: Sequence[str], specs: Mapping[str, TensorSpec], shape: Shape) -> Refused:
    more = f" ({len(names)} such tensors)" if len(names) > 1 else ""
    message = f"weights of shape {list(specs[names[0]].shape)} do not fit, the config implies {list(shape)}{more}"
    return Refused("load_weights", message, "transformers.sizes", names[0])


def _merge(
    at: str, parts: Mapping[str, Family], expected: Mapping[str, Row], sizes: Sizes, specs: Mapping[str, TensorSpec],
    found: dict[str, set[int]], fates: dict[str, Fate], refusals: list[Refused], config: Mapping[str, Any],
) -> list[str]:  # fmt: skip
    """Experts of all layers, merged layer by layer; the names of layers that have none."""
    layers = _layers(expected[f"{at}.mlp.experts.gate_up_proj"], sizes, config)
    count, hidden, width = sizes.shape("E H Ie")
    whole = frozenset(range(count))
    by_layer: dict[str, dict[int, set[int]]] = {leaf: {} for leaf in LEAVES}
    lost: list[str] = []
    for leaf, family in parts.items():
        wanted = (hidden, width) if leaf == "down_proj" else (width, hidden)
        bad = [name for name in family.names if specs[name].shape != wanted]
        if bad:
            refusals.append(_mismatch(bad, specs, wanted))
        for numbers, name in zip(family.indices, family.names, strict=True):
            if numbers[0] not in layers:
                lost.append(name)
            by_layer[leaf].setdefault(numbers[0], set()).add(numbers[1])
        fates[family.names[0]] = Fate(f"{at}.mlp.experts")
    for name, leaves in (("gate_up_proj", ("gate_proj", "up_proj")), ("down_proj", ("down_proj",))):
        for layer in sorted(layers):
            sets = [by_layer[leaf].get(layer, set()) for leaf in leaves]
            if any(sets):
                found.setdefault(f"{at}.mlp.experts.{name}", set()).add(layer)
                if any(one != whole for one in sets):
                    message = f"not all {count} experts of layer {layer} are there, so they cannot be merged"
                    refusals.append(Refused("load_weights", message, "transformers.experts"))
    return lost


def _tied_head(
    expected: Mapping[str, Row], found: Mapping[str, set[int]], sizes: Sizes, specs: Mapping[str, TensorSpec]
) -> Iterator[Filled]:
    """A tied head whose embeddings are not stored either is missing as well."""
    embedding = next(name for name in expected if name.endswith("embed_tokens.weight"))
    if sizes.tied and embedding not in found and "lm_head.weight" not in specs:
        shape = sizes.shape("V H")
        made = Parameter("lm_head.weight", shape, "BF16", (Part("", shape),), rule="transformers.missing")
        yield Filled(made, "unfilled", (), ("",))


def _outcomes(
    rows: Iterable[Row], found: Mapping[str, set[int]], sizes: Sizes, config: Mapping[str, Any]
) -> Iterator[Filled]:
    """Every parameter: those that are there together, each that is missing alone."""
    for row in rows:
        layers, shape = _layers(row, sizes, config), sizes.shape(row.shape) if _layers(row, sizes, config) else ()
        missing = sorted(layers - found.get(row.name, set()))
        if len(missing) < len(layers):
            made = Parameter(row.name, shape, "BF16", (Part("", shape),), rule="transformers.missing")
            yield Filled(made, "filled", (row.name,))
        for layer in missing:
            name = row.name.replace("{i}", str(layer))
            yield Filled(Parameter(name, shape, "BF16", (Part("", shape),), rule="transformers.missing"), "unfilled",
                         (), ("",))  # fmt: skip
