"""What vLLM 0.33 refuses of the groups of a compressed-tensors config before it asks what they mean.

Each group's arguments go through compressed-tensors' own class, which knows its fields and takes no others
(``compressed_tensors/quantization/quant_args.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from convertkit.engines.model import Stop, stop

TORCH_DTYPES = frozenset(
    {"float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "bfloat16", "float16",
     "half", "float32", "float", "float64", "double", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32",
     "uint64", "bool", "short", "int", "long"}
)  # fmt: skip
STRATEGIES = ("tensor", "channel", "group", "block", "token", "tensor_group", "attn_head")
DYNAMIC = ("token", "tensor", "tensor_group", "group")
"""Strategies that can be dynamic."""
ORDERS = ("weight", "static")
"""Orders of activations that vLLM still takes; ``group`` and ``dynamic`` it does not."""


def _dtype(value: Any) -> bool:
    return value is None or (isinstance(value, str) and value.removeprefix("torch.") in TORCH_DTYPES)


def _whole(value: Any) -> bool:
    text = isinstance(value, str) and value.strip().lstrip("+-").isdecimal()
    return text or isinstance(value, int) or (isinstance(value, float) and value.is_integer())


FLAGS = ("0", "1", "true", "false", "t", "f", "yes", "no", "y", "n", "on", "off")


def _flag(value: Any) -> bool:
    return (isinstance(value, str) and value.lower() in FLAGS) or (isinstance(value, (int, float)) and value in (0, 1))


def _one_of(*words: str) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and value.lower() in words


def _blocks(value: Any) -> bool:
    if isinstance(value, str):
        return all(_whole(part) for part in value.split("x"))
    return value is None or (isinstance(value, list) and len(value) == 2 and all(isinstance(n, int) for n in value))


FIELDS: Mapping[str, Callable[[Any], bool]] = {
    "num_bits": _whole,
    "type": _one_of("int", "float"),
    "symmetric": _flag,
    "group_size": lambda value: value is None or (isinstance(value, (int, float)) and _whole(value) and value >= -1),
    "strategy": lambda value: value is None or _one_of(*STRATEGIES)(value),
    "block_structure": _blocks,
    "dynamic": lambda value: _one_of("local")(value) or (not isinstance(value, str) and _flag(value)),
    "actorder": lambda value: value is None or value is False or _one_of(*ORDERS)(value),
    "scale_dtype": _dtype,
    "zp_dtype": _dtype,
    "observer": lambda value: value is None or isinstance(value, str),
    "observer_kwargs": lambda value: isinstance(value, Mapping),
}
"""Fields of the arguments, and what each takes."""


def check_schemes(block: Mapping[str, Any], passed: Callable[[list[str]], bool]) -> None:
    """Raises Stop for groups and a sparsity config that vLLM refuses; groups whose names ``passed`` are not read."""
    groups = block.get("config_groups", {})
    if not isinstance(groups, Mapping):
        raise _refused("config_groups", f"{type(groups).__name__!r} object has no attribute 'items'")
    for name, group in groups.items():
        targets = group.get("targets") if isinstance(group, Mapping) else None
        if not _words(targets):
            raise _refused(f"config_groups.{name}", "the group has no targets that are words")
        if targets and not passed([str(item) for item in targets]):
            check_arguments(f"config_groups.{name}.weights", group.get("weights"))
            for part in ("input_activations", "output_activations"):
                if group.get(part):
                    check_arguments(f"config_groups.{name}.{part}", group[part])
    if block.get("ignore") is not None and not isinstance(block["ignore"], Mapping) and not _words(block["ignore"]):
        raise _refused("ignore", "an ignored name is not a word")
    _others(block)


def _words(value: Any) -> bool:
    """A list of words, or one word, whose letters are taken for names."""
    return isinstance(value, str) or (isinstance(value, list) and all(isinstance(item, str) for item in value))


def _others(block: Mapping[str, Any]) -> None:
    """Parts of the config beside its groups."""
    sparsity = block.get("sparsity_config")
    if sparsity and not (isinstance(sparsity, Mapping) and isinstance(sparsity.get("format"), str)):
        raise _refused("sparsity_config", "1 validation error for SparsityCompressionConfig")
    if sparsity and sparsity.get("targets"):
        raise _refused("sparsity_config", "Sparsity support has been removed from compressed-tensors.")

    if block.get("transform_config") and not isinstance(block["transform_config"], Mapping):
        raise _refused("transform_config", "1 validation error for TransformConfig")
    if block.get("kv_cache_scheme") is not None:
        _cache(block["kv_cache_scheme"])


def _cache(scheme: Any) -> None:
    """The scheme of the KV cache (``compressed_tensors.py:1103``)."""
    if not isinstance(scheme, Mapping) or (scheme.get("num_bits"), scheme.get("type")) != (8, "float"):
        raise _refused("kv_cache_scheme", "Currently supported kv cache quantization is num_bits=8, type=float")
    if scheme.get("strategy") not in ("tensor", "attn_head"):
        raise _refused("kv_cache_scheme", "Invalid strategy for compressed-tensors KV cache")
    if not scheme.get("symmetric"):
        raise _refused("kv_cache_scheme", "Only support symmetric scaling factor for compressed-tensors KV cache")


def check_arguments(place: str, stated: Any, rule: str = "vllm.ct-arguments", orders: tuple[str, ...] = ORDERS) -> None:
    """Raises Stop for arguments that compressed-tensors refuses or that no scheme has, by ``rule``; ``orders`` are
    those of activations that its version takes."""
    check_argument_fields(place, stated, rule, orders)
    if not stated:
        raise _refused(place, "AssertionError: the arguments are empty", rule)
    _scheme(place, stated, rule)


def check_argument_fields(place: str, stated: Any, rule: str, orders: tuple[str, ...] = ORDERS) -> None:
    """Raises Stop for arguments that compressed-tensors' class does not take."""
    if not isinstance(stated, Mapping):
        raise _refused(place, "Input should be a valid dictionary or instance of QuantizationArgs", rule)
    for key, value in stated.items():
        check = FIELDS.get(key)
        ordered = key == "actorder" and _one_of(*orders)(value)
        if not ordered and (check is None or not check(value)):
            raise _refused(
                f"{place}.{key}", f"1 validation error for QuantizationArgs: '{key}' is {value!r}"[:200], rule
            )
    message = _conflict(stated)
    if message:
        raise _refused(place, message, rule)


def _conflict(stated: Mapping[str, Any]) -> str:
    """Arguments that do not go together (``quant_args.py:282``), or empty."""
    size = None if stated.get("group_size") is None else int(float(stated["group_size"]))
    strategy = stated.get("strategy")
    inferred = "tensor" if size is None else "channel" if size == -1 else "group"
    strategy = inferred if strategy is None else str(strategy).lower()
    dynamic, grouped = stated.get("dynamic", False), strategy in ("group", "tensor_group")
    local = isinstance(dynamic, str)
    blocks = stated.get("block_structure") is not None
    found = (
        (stated.get("strategy") is None and size == 0, "Invalid group size 0"),
        (strategy == "token" and not dynamic, "Cannot perform static token quantization"),
        (grouped and (size is None or size <= 0), f"strategy {strategy} requires group_size to be set"),
        (size is not None and size > 0 and not grouped, "group_size requires strategy to be set to 'group'"),
        (strategy == "block" and not blocks, "Block strategy requires block structure"),
        (blocks and strategy != "block", "Block structure requires block strategy"),
        (bool(dynamic) and strategy not in DYNAMIC, f"one of {DYNAMIC} must be used for dynamic quant."),
        (local and strategy != "tensor_group", "local is only supported for strategy tensor_group"),
    )
    return next((message for holds, message in found if holds), "")


def _scheme(place: str, stated: Mapping[str, Any], rule: str) -> None:
    """Numbers that no scheme has (``compressed_tensors.py:634``)."""
    bits, size = stated.get("num_bits", 8), stated.get("group_size")
    if int(float(bits)) not in (4, 8) or isinstance(bits, bool):
        raise _refused(f"{place}.num_bits", f"Only num_bits in (4, 8) are supported, not {bits!r}", rule)
    if str(stated.get("strategy")).lower() == "tensor_group" and (size is None or int(float(size)) != 16):
        raise _refused(
            f"{place}.group_size", f"strategy tensor_group with a group_size of {size!r} has no scheme", rule
        )


def settled(block: Mapping[str, Any]) -> Mapping[str, Any]:
    """The config with the words of its arguments as the class that reads them holds them: in lower case, numbers and
    flags that are written as words as what they mean, activations that are empty as none, names as a list."""
    groups = block.get("config_groups", {})
    names = {"ignore": list(block["ignore"])} if isinstance(block.get("ignore"), str | Mapping) else {}
    return {**block, **names, "config_groups": {name: _settled_group(group) for name, group in groups.items()}}


def _settled_group(group: Any) -> Any:
    if not isinstance(group, Mapping):
        return group
    parts = {key: _settled_part(group[key]) for key in ("weights", "input_activations") if key in group}
    targets = list(group["targets"]) if isinstance(group.get("targets"), str | Mapping) else group.get("targets")
    return {**group, **parts, "targets": targets, "input_activations": parts.get("input_activations") or None}


def _settled_part(part: Any) -> Any:
    if not isinstance(part, Mapping):
        return part
    words: dict[str, Any] = {key: part[key].lower() for key in ("type", "strategy") if isinstance(part.get(key), str)}
    bits, flag = part.get("num_bits"), part.get("symmetric")
    if isinstance(bits, str) and _whole(bits):
        words["num_bits"] = int(bits)
    if isinstance(flag, str):
        words["symmetric"] = flag.lower() in ("1", "true", "t", "yes", "y", "on")
    elif isinstance(flag, int | float):
        words["symmetric"] = bool(flag)
    return {**part, **words}


def _refused(key: str, message: str, rule: str = "vllm.ct-arguments") -> Stop:
    return stop("create", message, rule, key=key)
