"""Config fields that the tensors decide: quantization, tied heads, layers that are not there, dtype."""

from __future__ import annotations

from typing import Any

from convertkit.conversion.planners import DTYPE_KEYS, TORCH_NAMES
from convertkit.conversion.repair_work import RepairRequest, Work, same_bytes
from convertkit.dialects.scheme import QUANT_FILE, SECTIONS, blocks_of, strip_quantization, with_quantization
from convertkit.dialects.writing import default_dialect, write_quantization
from convertkit.dtypes import FLOATS
from convertkit.layouts.layout import config_value


def module_of(name: str) -> str:
    return name.rpartition(".")[0] or name


def set_everywhere(work: Work, key: str, value: Any) -> None:
    """Set a config field at the top, and in the language model's section where it is stated there."""
    places = [work.config, *(work.config[part] for part in SECTIONS if isinstance(work.config.get(part), dict))]
    stating = [place for place in places if key in place] or places[:1]
    for place in stating:
        if place.get(key) != value:
            work.note("W_CONFIG_SET", f"'{key}' was {place.get(key)!r} and is {value!r}", file="config.json", key=key)
            place[key] = value


def set_config(work: Work, request: RepairRequest) -> None:
    """Config fields that the tensors decide: quantization, tied head, layers that are not there, dtype."""
    option = "--set-config"
    before = (work.config, work.quant_config)
    work.config = {key: dict(value) if isinstance(value, dict) else value for key, value in work.config.items()}
    if work.identity.packed:
        requantize(work, option)
    elif list(blocks_of(work.config)) or work.quant_config:
        work.config, work.quant_config = strip_quantization(work.config), {}
        work.note("W_CONFIG_SET", "the quantization config is removed: nothing here is quantized", file="config.json")
    _set_head(work)
    _set_mtp(work)
    _set_dtype(work)
    if (work.config, work.quant_config) != before:
        work.effect(option)


def requantize(work: Work, option: str) -> None:
    """Write the quantization config anew from the tensors that will be there."""
    scheme = work.identity.scheme
    dialect = scheme.dialect if scheme is not None else default_dialect(work.identity.layout)
    spelled = {module.spelling.dialect for module in work.identity.packed.values()}
    if spelled != {dialect.removesuffix("-mixed")}:
        dialect = next(iter(spelled))
    block, document = write_quantization(
        dialect, work.specs(), work.identity.layout, kv_cache=None if scheme is None else scheme.kv_cache
    )
    config, quant = with_quantization(work.config, block), document or {}
    if config != work.config or quant != work.quant_config:
        work.effect(option)
        work.note("W_CONFIG_SET", "the quantization config is written anew from the tensors", file=QUANT_FILE)
        work.config, work.quant_config = config, quant


def _set_head(work: Work) -> None:
    if work.identity.kind not in ("causal-lm", "multimodal-lm"):
        return
    stored = any("lm_head" in module_of(spec.name).split(".") for spec in work.specs())
    tied = config_value(work.config, "tie_word_embeddings")
    if not stored and tied is not True:
        set_everywhere(work, "tie_word_embeddings", True)
    elif stored and tied is True and not _head_repeats(work):
        set_everywhere(work, "tie_word_embeddings", False)


def _head_repeats(work: Work) -> bool:
    head = next((ref for name, ref in work.source.tensors.items() if name.endswith("lm_head.weight")), None)
    base = next((ref for name, ref in work.source.tensors.items() if name.endswith("embed_tokens.weight")), None)
    return head is not None and base is not None and same_bytes(work.reader, head, base)


def _set_mtp(work: Work) -> None:
    """Layers of multi-token prediction that the config promises and no tensor belongs to."""
    absent = {item.where.key for item in work.identity.findings if item.code == "W_ADVERTISED_ABSENT"}
    for key in ("num_nextn_predict_layers", "mtp_num_hidden_layers"):
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
