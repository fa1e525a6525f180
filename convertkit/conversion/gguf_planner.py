"""From a safetensors checkpoint to the plan of a GGUF file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from convertkit.checkpoint import Checkpoint, TensorRef, TensorSpec
from convertkit.containers.folder import CONFIG
from convertkit.containers.gguf_values import Value, numbers, strings, text, u32
from convertkit.conversion.gguf_places import GgufRequest, Placed, placed_weights, stack_faults, stacks_of
from convertkit.conversion.gguf_split import WHOLE, Split, planned_files
from convertkit.conversion.gguf_units import Given, Ids, Order, Quantize, Recode, Regroup, dtype_of, shape_of
from convertkit.conversion.identify import Identity
from convertkit.conversion.plan import Draft, Drop, Plan, Unit, settle
from convertkit.dialects.planes import PackedModule
from convertkit.dtypes import BLOCK_TYPES, FLOATS
from convertkit.errors import Finding, finding, raise_all, refusal
from convertkit.layouts.fused import fused_groups
from convertkit.layouts.gguf_fields import FILE_TYPES
from convertkit.layouts.gguf_names import (
    WITHOUT_INPUT_SCALE,
    NameRule,
    expected_names,
)
from convertkit.layouts.gguf_types import ALIASES, Setting, fitting_type, is_seventy, wanted_type
from convertkit.layouts.rules import natural_key

QUANTIZATION_VERSION = 2
"""ggml 0.25.3 ``GGML_QNT_VERSION``."""


def plan_gguf(
    source: Checkpoint, identity: Identity, request: GgufRequest, file_name: str, split: Split = WHOLE
) -> Plan:
    """Plan one GGUF, perhaps in parts. Raises ``ConvertError`` with every tensor that has no place, or no weight for
    a place."""
    raise_all(item for item in identity.findings if item.severity == "error")
    if max(request.layers, request.experts) > len(source.tensors):
        message = f"the config states {request.layers:,} layers and {request.experts:,} experts, the source has "
        raise refusal("E_LAYOUT_MISSING", f"{message}{len(source.tensors):,} tensors", file=CONFIG)
    placed, drops, faults = placed_weights(source, identity, request)
    stacks = stacks_of(placed)
    names = {name for name, _ in stacks}
    faults += [
        finding("E_LAYOUT_MISSING", "error", f"llama.cpp's {request.arch.name} needs '{name}', and nothing gives it")
        for name in expected_names(request.arch, request.layers) if name not in names
    ]  # fmt: skip
    faults += [fault for _, parts in stacks for fault in stack_faults(parts, request)]
    raise_all(faults)
    units, notes = _units(stacks, identity, request)
    used = {name for unit in units for name in unit.inputs}
    drops += [
        Drop(module.input_scale.spec.name, "activation scale that llama.cpp does not load here")
        for module in identity.packed.values()
        if module.input_scale is not None and module.input_scale.spec.name not in used
    ]
    units += request.extra
    units += [Given(TensorSpec(name, "F32", (len(data) // 4,)), data) for name, data in request.given.items()]
    notes += [finding("N_DROPPED", "note", drop.reason, tensor=drop.name) for drop in drops]
    files = planned_files(_metadata(request, units), _in_order(units), file_name, split)
    parameters = {
        "type": request.type,
        "arch": request.arch.name,
        "layout": identity.layout.name,
        **request.parameters,
    }
    return settle(source, Draft("to-gguf", parameters, units, drops, {}, [*request.findings, *notes], files))


def _in_order(units: Iterable[Unit]) -> list[TensorSpec]:
    return sorted((spec for unit in units for spec in unit.outputs), key=lambda spec: natural_key(spec.name))


def _metadata(request: GgufRequest, units: Iterable[Unit]) -> dict[str, Value]:
    kind = ALIASES.get(request.type, request.type)
    general: dict[str, Value] = {"general.architecture": text(request.arch.name), "general.type": text("model")}
    if request.name is not None:
        general["general.name"] = text(request.name)
    general["general.file_type"] = u32(FILE_TYPES[kind])
    general["general.quantization_version"] = u32(QUANTIZATION_VERSION)
    wide = sorted(name for unit in units for name in _without_activations(unit))
    if wide:
        general["general.tensor_extra.name"] = strings(wide)
        general["general.tensor_extra.prec_a4"] = numbers("bool", [False] * len(wide))
    return {**general, **request.model, **request.vocabulary}


def _without_activations(unit: Unit) -> tuple[str, ...]:
    """NVFP4 weights whose activations were never quantized: llama.cpp is told to keep those in more than four bits
    (0.5.0-dev ``llama_prec_policy::load``)."""
    if isinstance(unit, Quantize):
        return unit.names
    if isinstance(unit, Regroup) and all(module.input_scale is None for module in unit.modules):
        return (unit.name,)
    return ()


def _units(
    stacks: Sequence[tuple[str, list[Placed]]], identity: Identity, request: GgufRequest
) -> tuple[list[Unit], list[Finding]]:
    tied = request.arch.tied and "output.weight" not in dict(stacks)
    seventy = is_seventy(request.arch.name, request.layers, request.heads)
    setting = Setting(request.type, request.layers, tied, seventy, request.experts)
    chosen = _chosen_for_nvfp4(stacks, identity, request)
    units: list[Unit] = []
    notes: list[Finding] = []
    quantized: dict[str, tuple[str, Sequence[Placed]]] = {}
    for name, parts in stacks:
        first = parts[0]
        source = dtype_of(first.source)
        dense = source if source in FLOATS else "BF16"
        wanted = wanted_type(setting, first.named, dense)
        if wanted == "NVFP4" and source != "NVFP4" and first.module not in chosen:
            wanted = dense
        dtype = fitting_type(wanted, shape_of(first.source)[-1], dense)
        if dtype != wanted:
            notes.append(_fallback(name, wanted, dtype, shape_of(first.source)[-1]))
        if dtype == "NVFP4" and source != "NVFP4":
            quantized[first.module] = (name, parts)
        else:
            units.append(_unit(name, parts, dtype, request))
    units += _quantize_groups(quantized, identity, request)
    return units, notes


def _fallback(name: str, wanted: str, dtype: str, width: int) -> Finding:
    message = f"rows of {width} are not whole {wanted} blocks of {BLOCK_TYPES[wanted].block}: stored as {dtype}"
    return finding("W_GGUF_FALLBACK", "warning", message, tensor=name, data={"wanted": wanted, "stored": dtype})


def _order(rule: NameRule, request: GgufRequest) -> tuple[Order, int]:
    return ("interleave", request.heads[rule.heads]) if rule.heads else ("keep", 0)


def _unit(name: str, parts: Sequence[Placed], dtype: str, request: GgufRequest) -> Unit:
    rule = parts[0].named.rule
    sources = tuple(part.source for part in parts)
    order, heads = _order(rule, request)
    if rule.treatment == "ids" and isinstance(sources[0], TensorRef):
        return Ids(sources[0], name, 1, request.target_vocabulary)
    packed = tuple(source for source in sources if isinstance(source, PackedModule))
    if dtype == "NVFP4" and len(packed) == len(sources):
        part = name.removesuffix(".weight").rpartition(".")[2]
        inputs = all(module.input_scale is not None for module in packed) and part not in WITHOUT_INPUT_SCALE
        return Regroup(packed, name, rule.stacked, order, heads, inputs)
    shape = shape_of(sources[0])
    return Recode(
        sources, TensorSpec(name, dtype, (len(sources), *shape) if rule.stacked else shape), order, heads, rule.shift
    )


def _chosen_for_nvfp4(
    stacks: Sequence[tuple[str, list[Placed]]], identity: Identity, request: GgufRequest
) -> frozenset[str]:
    """Dense modules that ``--type nvfp4`` quantizes: what the layout packs by default, if nothing is packed."""
    if request.type != "nvfp4" or identity.packed:
        return frozenset()
    roles = identity.layout.packed_roles
    return frozenset(
        part.module
        for _, parts in stacks for part in parts
        if part.named.rule.treatment == "matrix" and identity.layout.role_of(f"{part.module}.weight") in roles
    )  # fmt: skip


def _quantize_groups(
    quantized: Mapping[str, tuple[str, Sequence[Placed]]], identity: Identity, request: GgufRequest
) -> list[Quantize]:
    """Linears that engines fuse share one global scale here too, so that the planes can become a pack again."""
    units = []
    for members in fused_groups(quantized, identity.layout).values():
        rows = [quantized[module] for module in members]
        refs = tuple(part.source for _, parts in rows for part in parts if isinstance(part.source, TensorRef))
        rules = [parts[0].named.rule for _, parts in rows]
        orders = tuple(_order(rule, request) for rule in rules)
        if len({ref.spec.dtype for ref in refs}) > 1:
            raise refusal("E_WEIGHT_DTYPE", "the parts of a fused layer have different dtypes", tensor=members[0])
        experts = request.experts if rules[0].stacked else 0
        units.append(Quantize(refs, tuple(name for name, _ in rows), orders, experts))
    return units
