"""From a GGUF to the plan of a safetensors folder: names, orders and conventions undone, config put together again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from convertkit.checkpoint import Checkpoint, TensorRef, TensorSpec
from convertkit.containers.folder import CONFIG, QUANT_CONFIG
from convertkit.containers.gguf import ARCHITECTURE
from convertkit.containers.gguf_values import Scalar, Strings
from convertkit.containers.strict_json import dump_config
from convertkit.conversion.gguf_config import check_config, rebuilt_config
from convertkit.conversion.gguf_units import BlockWeight, Ids, Membership, Order, Recode, Source, Ungroup
from convertkit.conversion.plan import DEFAULT_SHARD_BYTES, Draft, Drop, Plan, Unit, settle
from convertkit.dialects.scheme import strip_quantization, with_quantization
from convertkit.dialects.spelling import spelling_of
from convertkit.dialects.writing import write_quantization
from convertkit.dtypes import FLOATS, TORCH_NAMES
from convertkit.errors import Finding, finding, raise_all, refusal
from convertkit.grids.ggml.types import DECODED_TYPES
from convertkit.layouts.drafters import DRAFTERS
from convertkit.layouts.gguf_kinds import kind_findings
from convertkit.layouts.gguf_names import (
    ARCHS,
    GENERATED_GGUF,
    LEGACY_EAGLE,
    Arch,
    Named,
    expected_names,
    from_gguf,
    stored_name,
)
from convertkit.layouts.layout import Layout
from convertkit.layouts.models import CAUSAL_LM


@dataclass(frozen=True)
class BackRequest:
    """``dtype`` of dense weights; ``dialect`` in which NVFP4 weights stay packed, None to expand them; ``config`` to
    complete what a GGUF does not hold, or None; ``target_layers`` for the layer names of a packed EAGLE-3."""

    dtype: str = "BF16"
    dialect: str | None = None
    config: Mapping[str, Any] | None = None
    target_layers: int | None = None


@dataclass(frozen=True)
class Opened:
    """A GGUF with its architecture, the layout its tensors will have, and the numbers of its tokens and layers."""

    source: Checkpoint
    arch: Arch
    layout: Layout
    vocabulary: int
    layers: int


def plan_back(
    source: Checkpoint, request: BackRequest, max_shard_bytes: int = DEFAULT_SHARD_BYTES, slack_bytes: int = 0
) -> Plan:
    """Plan the folder. Raises ``ConvertError`` with every tensor that cannot be taken back."""
    opened = _open_model(source, request.config)
    config, notes = _config(opened, request)
    units, drops, faults = _units(opened, request, config)
    raise_all(faults)
    documents = _documents(config, request, units, opened.layout)
    notes += [finding("N_DROPPED", "note", drop.reason, tensor=drop.name) for drop in drops]
    parameters = {"dtype": request.dtype, "dialect": request.dialect, "arch": opened.arch.name,
                  "layout": opened.layout.name, "config": request.config is not None}  # fmt: skip
    return settle(source, Draft("from-gguf", parameters, units, drops, documents, notes), max_shard_bytes, slack_bytes)


def _open_model(source: Checkpoint, config: Mapping[str, Any] | None) -> Opened:
    """What a GGUF says it is. Raises E_ARCH for an architecture without a table, E_GGUF_METADATA for broken keys."""
    name = source.metadata[ARCHITECTURE]
    arch = ARCHS.get(str(name.value)) if isinstance(name, Scalar) else None
    if arch is None:
        what = name.value if isinstance(name, Scalar) else "?"
        raise refusal("E_ARCH", f"the architecture '{what}' is not converted", fix=f"one of: {', '.join(ARCHS)}")
    raise_all(kind_findings(arch.name, source.metadata))
    layers = source.metadata.get(f"{arch.name}.block_count")
    if not isinstance(layers, Scalar) or not 1 <= int(layers.value) <= len(source.tensors):
        raise refusal("E_GGUF_METADATA", "the number of layers is missing or larger than that of tensors", status=3,
                      key=f"{arch.name}.block_count")  # fmt: skip
    tokens = source.metadata.get("tokenizer.ggml.tokens")
    count = len(tokens) if isinstance(tokens, Strings) else 0
    return Opened(source, arch, _layout(source, arch, config), count, int(layers.value))


def _layout(source: Checkpoint, arch: Arch, config: Mapping[str, Any] | None) -> Layout:
    """The layout the tensors show; a config in speculators form makes it the speculators layout."""
    if not arch.drafter:
        return CAUSAL_LM
    name = arch.name
    if arch.name == "dflash":
        name = "dspark" if "markov_w1.weight" in source.tensors else name
        name = "dflash2" if "selector_hidden.weight" in source.tensors else name
    if config is not None and ("speculators_model_type" in config or "speculators_config" in config):
        name = f"speculators-{name}"
    return next(layout for layout in DRAFTERS if layout.name == name)


def _config(opened: Opened, request: BackRequest) -> tuple[dict[str, Any], list[Finding]]:
    rebuilt, notes = rebuilt_config(opened.source, opened.arch, opened.layout.name, opened.vocabulary)
    if request.config is None:
        if "rope_freqs.weight" in opened.source.tensors:
            raise refusal("E_LOSS", "the rope scaling is stored as a table of factors, not as parameters",
                          tensor="rope_freqs.weight", fix="give its config: --config-from DIR")  # fmt: skip
        return {**rebuilt, "dtype": TORCH_NAMES[request.dtype]}, notes
    raise_all(check_config(request.config, opened.source.metadata, opened.arch))
    config = strip_quantization(request.config)
    for key in ("dtype", "torch_dtype"):
        if key in config:
            config[key] = TORCH_NAMES[request.dtype]
    return config, []


def _documents(
    config: Mapping[str, Any], request: BackRequest, units: Sequence[Unit], layout: Layout
) -> dict[str, bytes]:
    if request.dialect is None:
        return {CONFIG: dump_config(config)}
    if not any(isinstance(unit, Ungroup) for unit in units):
        raise refusal("E_NOT_QUANTIZED", f"the GGUF holds no NVFP4 weight that could stay packed for {request.dialect}",
                      fix="leave out --dialect, and pack the output: convertkit pack-nvfp4")  # fmt: skip
    specs = [spec for unit in units for spec in unit.outputs]
    block, quant_config = write_quantization(request.dialect, specs, layout, target_layers=request.target_layers)
    documents = {CONFIG: dump_config(with_quantization(config, block))}
    if quant_config is not None:
        documents[QUANT_CONFIG] = dump_config(quant_config)
    return documents


def _units(
    opened: Opened, request: BackRequest, config: Mapping[str, Any]
) -> tuple[list[Unit], list[Drop], list[Finding]]:
    units: list[Unit] = []
    drops: list[Drop] = []
    tensors = opened.source.tensors
    faults = [
        finding("E_LAYOUT_MISSING", "error", "the GGUF does not hold it", tensor=name, fix="fetch the file again")
        for name in expected_names(opened.arch, opened.layers) if name not in tensors
    ]  # fmt: skip
    for name, ref in tensors.items():
        named = from_gguf(opened.arch, name)
        if named is not None:
            found, fault = _weight(opened, request, config, named, ref)
            units += found
            faults += fault
        elif name in GENERATED_GGUF:
            drops.append(Drop(name, GENERATED_GGUF[name]))
        elif not _is_scale(name, tensors):
            message = f"convertkit knows no such tensor of {opened.arch.name}"
            faults.append(finding("E_LAYOUT_EXTRA", "error", message, tensor=name))
    used = {name for unit in units for name in unit.inputs}
    drops += [
        Drop(name, "scale of a linear that is dense now") for name in tensors
        if _is_scale(name, tensors) and name not in used and from_gguf(opened.arch, name) is None
    ]  # fmt: skip
    return units, drops, faults


def _is_scale(name: str, tensors: Mapping[str, TensorRef]) -> bool:
    stem, _, leaf = name.rpartition(".")
    weight = tensors.get(f"{stem}.weight")
    return leaf in ("scale", "input_scale") and weight is not None and weight.spec.dtype == "NVFP4"


def _hub_name(opened: Opened, named: Named, expert: int | None) -> str:
    hub = named.hub(expert)
    if opened.layout.name == "eagle3" and hub.startswith("layers.0."):
        return LEGACY_EAGLE + hub.removeprefix("layers.0.")
    return stored_name(opened.arch, hub)


def _weight(
    opened: Opened, request: BackRequest, config: Mapping[str, Any], named: Named, ref: TensorRef
) -> tuple[list[Unit], list[Finding]]:
    """Units of one tensor of the GGUF: one, or one per expert."""
    rule, dtype = named.rule, ref.spec.dtype
    if rule.treatment == "ids":
        return _vocabulary_map(opened, ref), []
    if dtype not in (*FLOATS, *DECODED_TYPES, "NVFP4"):
        message = f"{dtype} blocks are not decoded"
        return [], [finding("E_UNSUPPORTED_QUANT", "error", message, tensor=ref.spec.name)]
    rank = {"f32": len(ref.spec.shape)}.get(rule.treatment, 3 if rule.stacked else 2)
    if len(ref.spec.shape) != rank:
        message = f"shape {list(ref.spec.shape)}; it has {rank} dimensions"
        return [], [finding("E_LAYOUT_SHAPE", "error", message, tensor=ref.spec.name)]
    heads = _heads(config, rule.heads) if rule.heads else 0
    order: Order = "deinterleave" if rule.heads else "keep"
    if rule.heads and (not heads or ref.spec.shape[0] % (2 * heads)):
        return [], [finding("E_LAYOUT_SHAPE", "error", "rows do not divide into heads", tensor=ref.spec.name)]
    count = ref.spec.shape[0] if rule.stacked else 1
    units: list[Unit] = []
    for number in range(count):
        expert = number if rule.stacked else None
        name = _hub_name(opened, named, expert)
        part = _part_of(ref, number) if rule.stacked else ref
        if dtype == "NVFP4":
            units.append(_planes(opened, request, part, number, name, order, heads))
        else:
            spec = TensorSpec(name, request.dtype, part.spec.shape)
            units.append(Recode((part,), spec, order, heads, -rule.shift))
    return units, []


def _part_of(ref: TensorRef, number: int) -> TensorRef:
    """One matrix of a stack: same name, its own shape and first byte."""
    spec = TensorSpec(ref.spec.name, ref.spec.dtype, ref.spec.shape[1:])
    return TensorRef(spec, ref.file, ref.start + number * spec.size_bytes)


def _scalar(tensors: Mapping[str, TensorRef], name: str, number: int) -> TensorRef | None:
    ref = tensors.get(name)
    if ref is None:
        return None
    if ref.spec.dtype != "F32" or number >= ref.spec.elements:
        raise refusal("E_SCALE_SHAPE", "the scale is not one F32 value per matrix", tensor=name)
    return TensorRef(TensorSpec(name, "F32", (1,)), ref.file, ref.start + 4 * number)


def _planes(
    opened: Opened, request: BackRequest, part: TensorRef, number: int, name: str, order: Order, heads: int
) -> Unit:
    stem = part.spec.name.removesuffix("weight")
    scale = _scalar(opened.source.tensors, stem + "scale", number)
    if request.dialect is None:
        source: Source = BlockWeight(part, scale)
        return Recode((source,), TensorSpec(name, request.dtype, part.spec.shape), order, heads)
    inputs = _scalar(opened.source.tensors, stem + "input_scale", number)
    return Ungroup(part, scale, inputs, name.removesuffix(".weight"), spelling_of(request.dialect), order, heads)


def _vocabulary_map(opened: Opened, ref: TensorRef) -> list[Unit]:
    if ref.spec.dtype != "I64" or len(ref.spec.shape) != 1:
        raise refusal("E_LAYOUT_DTYPE", "d2t is not a list of I64", tensor=ref.spec.name)
    return [Ids(ref, "d2t", -1, opened.vocabulary), Membership(ref, "t2d", opened.vocabulary)]


def _heads(config: Mapping[str, Any], key: str) -> int:
    for scope in (config, config.get("transformer_layer_config")):
        if isinstance(scope, Mapping) and type(scope.get(key)) is int:
            return int(scope[key])
    return 0
