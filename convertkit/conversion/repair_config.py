"""Config fields that the tensors decide: quantization, tied heads, layers that are not there, dtype."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from convertkit.checkpoint import Checkpoint, TensorRef
from convertkit.containers.folder import CONFIG, QUANT_CONFIG
from convertkit.conversion.identify import identify
from convertkit.conversion.planners import DTYPE_KEYS
from convertkit.conversion.repair_drops import head_is_left_out
from convertkit.conversion.repair_work import RepairRequest, Work, same_bytes
from convertkit.dialects.planes import Planes, find_packed
from convertkit.dialects.scheme import (
    SECTIONS,
    blocks_of,
    strip_quantization,
    with_quantization,
)
from convertkit.dialects.writing import default_dialect, write_quantization
from convertkit.dtypes import FLOATS, TORCH_NAMES
from convertkit.errors import ConvertError, refusal
from convertkit.layouts.layout import config_value
from convertkit.layouts.models import PREDICTION_KEYS
from convertkit.layouts.rules import module_of


def set_everywhere(work: Work, key: str, value: Any) -> None:
    """Set a config field at the top, and in the language model's section where it is stated there."""
    places = [work.config, *(work.config[part] for part in SECTIONS if isinstance(work.config.get(part), dict))]
    stating = [place for place in places if key in place] or places[:1]
    for place in stating:
        if place.get(key) != value:
            work.note("W_CONFIG_SET", f"'{key}' was {place.get(key)!r} and is {value!r}", file=CONFIG, key=key)
            place[key] = value


def set_config(work: Work, request: RepairRequest) -> None:
    """Config fields that the tensors decide: quantization, tied head, layers that are not there, dtype."""
    option = "--set-config"
    before = (work.config, work.quant_config)
    work.config = {key: dict(value) if isinstance(value, dict) else value for key, value in work.config.items()}
    planes = planes_after(work)
    if planes.packed:
        requantize(work, option)
    elif list(blocks_of(work.config)) or work.quant_config:
        remove_quantization(work, option, planes)
    _set_head(work)
    _set_mtp(work)
    _set_dtype(work)
    if (work.config, work.quant_config) != before:
        work.effect(option)


def planes_after(work: Work) -> Planes:
    """What is quantized among the tensors that will be there."""
    return find_packed(checkpoint_after(work))


def checkpoint_after(work: Work) -> Checkpoint:
    """Names, shapes and config that will be there; the places of the tensors mean nothing."""
    stored, first = work.source.tensors, work.source.files[0].name
    files = {spec: stored[spec.name].file if spec.name in stored else first for spec in work.specs()}
    tensors = {spec.name: TensorRef(spec, files[spec], 0) for spec in files}
    return replace(work.source, tensors=tensors, config=work.config, quant_config=work.quant_config)


def _refuse_unread(planes: Planes, option: str) -> None:
    """Raise what is quantized and not understood: a config that is made without it would deny it. Stacks of packed
    experts are understood beside linears that say how they are packed."""
    faults = [
        replace(item, fix=f"leave out {option}, which decides by tensors that convertkit can read")
        for item in planes.findings
        if item.severity == "error" and not (item.code == "E_PACK_STACKED" and planes.packed)
    ]
    if faults:
        raise ConvertError(faults)


def remove_quantization(work: Work, option: str, planes: Planes) -> None:
    """Take the quantization config away. Raises E_UNSUPPORTED_QUANT, E_PACK_… where something is quantized."""
    _refuse_unread(planes, option)
    work.effect(option)
    work.config, work.quant_config = strip_quantization(work.config), {}
    work.note("W_CONFIG_SET", "the quantization config is removed: nothing here is quantized", file=CONFIG)


def requantize(work: Work, option: str) -> None:
    """Write the quantization config anew from the tensors that will be there. Raises as ``write_quantization``, and
    E_UNSUPPORTED_QUANT, E_PACK_… where some of them could not be described."""
    planes = planes_after(work)
    _refuse_unread(planes, option)
    scheme = work.identity.scheme
    dialect = scheme.dialect if scheme is not None else default_dialect(work.identity.layout)
    spelled = sorted({module.spelling.dialect for module in planes.packed.values()})
    if len(spelled) > 1:
        message = f"linears are packed as {' and as '.join(spelled)}, which no one config describes"
        raise refusal("E_UNSUPPORTED_QUANT", message, fix="bring them into one dialect first: convert --to")
    if spelled and spelled != [dialect.removesuffix("-mixed")]:
        dialect = spelled[0]
    block, document = write_quantization(
        dialect, work.specs(), work.identity.layout, kv_cache=None if scheme is None else scheme.kv_cache
    )
    config, quant = with_quantization(work.config, block), document or {}
    if config != work.config or quant != work.quant_config:
        work.effect(option)
        place = QUANT_CONFIG if config == work.config else CONFIG
        work.note("W_CONFIG_SET", "the quantization config is written anew from the tensors", file=place)
        work.config, work.quant_config = config, quant


def _set_head(work: Work) -> None:
    if work.identity.kind not in ("causal-lm", "multimodal-lm") or head_is_left_out(work):
        return
    modules = [module_of(spec.name).split(".") for spec in work.specs()]
    stored = any("lm_head" in parts for parts in modules)
    embedded = any(parts[-1] == "embed_tokens" for parts in modules)
    tied = config_value(work.config, "tie_word_embeddings")
    if not stored and embedded and tied is not True:
        set_everywhere(work, "tie_word_embeddings", True)
    elif stored and tied is True and not _head_repeats(work):
        set_everywhere(work, "tie_word_embeddings", False)


def _head_repeats(work: Work) -> bool:
    head = next((ref for name, ref in work.source.tensors.items() if name.endswith("lm_head.weight")), None)
    base = next((ref for name, ref in work.source.tensors.items() if name.endswith("embed_tokens.weight")), None)
    return head is not None and base is not None and same_bytes(work.reader, head, base)


def _set_mtp(work: Work) -> None:
    """Layers of multi-token prediction that the config promises and no tensor belongs to."""
    found = identify(checkpoint_after(work)).findings
    absent = {item.where.key for item in found if item.code == "W_ADVERTISED_ABSENT"}
    for key in PREDICTION_KEYS:
        if key in absent:
            set_everywhere(work, key, 0)


def _set_dtype(work: Work) -> None:
    if not any(item.code == "W_CONFIG_DTYPE" for item in work.identity.findings):
        return
    sizes: dict[str, int] = {}
    for spec in work.specs():
        if spec.dtype in FLOATS and len(spec.shape) > 1:
            sizes[spec.dtype] = sizes.get(spec.dtype, 0) + spec.size_bytes
    if sizes:
        found = TORCH_NAMES[max(sorted(sizes), key=lambda dtype: sizes[dtype])]
        key = next((key for key in DTYPE_KEYS if config_value(work.config, key) is not None), DTYPE_KEYS[0])
        set_everywhere(work, key, found)
