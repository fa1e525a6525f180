"""Damaged drafters: rope parameters, field types, quantization arguments and names that engines read their own way.

What vLLM's own loader does with each is in ``golden/vllm-0.33.0-config.json``, SGLang's with the flat ones in
``sglang-0.5.23-config.json``; our models must say the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tests.engines.cases import (
    MLP,
    MLP_ONLY,
    REST,
    Case,
    Damage,
    _ct,
    _mixed,
    _uniform,
    added,
    both,
    inner,
    renamed,
    top,
    uninner,
    whole_kv,
)
from tests.engines.drafters import DV, Draft, H, I

THETA = 1e6
YARN: Mapping[str, Any] = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
LLAMA3: Mapping[str, Any] = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}  # fmt: skip
LONG: Mapping[str, Any] = {
    "rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8,
    "original_max_position_embeddings": 128,
}  # fmt: skip
NO_FACTOR = {key: value for key, value in LLAMA3.items() if key != "factor"}

ROPES: Mapping[str, Any] = {
    "unknown": {"rope_type": "x"}, "a number": {"rope_type": 7}, "an object": {"rope_type": {"x": 1}},
    "upper case": {"rope_type": "DEFAULT"}, "legacy type": {**YARN, "rope_type": "yarn", "type": "yarn"},
    "two types": {**YARN, "type": "linear"}, "no theta": {"rope_type": "default", "rope_theta": None},
    "theta a word": {"rope_type": "default", "rope_theta": "1e6"},
    "theta a list": {"rope_type": "default", "rope_theta": [1e6]}, "theta zero": {"rope_theta": 0},
    "linear": {"rope_type": "linear", "factor": 2.0}, "linear whole": {"rope_type": "linear", "factor": 2},
    "linear bare": {"rope_type": "linear"}, "linear word": {"rope_type": "linear", "factor": "2"},
    "linear zero": {"rope_type": "linear", "factor": 0.0}, "linear null": {"rope_type": "linear", "factor": None},
    "dynamic": {"rope_type": "dynamic", "factor": 2}, "dynamic alpha": {"rope_type": "dynamic", "alpha": 2.0},
    "yarn": YARN, "yarn bare": {"rope_type": "yarn"}, "yarn without original": {"rope_type": "yarn", "factor": 4.0},
    "yarn of null": {**YARN, "original_max_position_embeddings": None}, "yarn beta": {**YARN, "beta_fast": -32.0},
    "yarn beta zero": {**YARN, "beta_slow": 0}, "yarn beta null": {**YARN, "beta_fast": None},
    "yarn base one": {**YARN, "rope_theta": 1.0}, "yarn attention": {**YARN, "attention_factor": -1.0},
    "llama3": LLAMA3, "llama3 without factor": NO_FACTOR, "llama3 of null": {**LLAMA3, "low_freq_factor": None},
    "llama3 of zero": {**LLAMA3, "low_freq_factor": 0.0}, "ntk bare": {"rope_type": "ntk"},
    "longrope": LONG, "longrope short": {**LONG, "short_factor": [1.0] * 4}, "longrope bare": {"rope_type": "longrope"},
    "partial": {"rope_type": "default", "partial_rotary_factor": 0.5},
    "partial zero": {"rope_type": "default", "partial_rotary_factor": 0.0},
    "partial two": {"rope_type": "default", "partial_rotary_factor": 2.0},
    "by layer type": {"full_attention": {"rope_type": "default", "rope_theta": THETA}},
    "by layer type and not": {"full_attention": {"rope_type": "default", "rope_theta": THETA}, "rope_theta": THETA},
    "sections": {"rope_type": "default", "mrope_section": [2, 3, 3]},
    "sections too many": {"rope_type": "default", "mrope_section": [2, 3, 4]},
    "an object inside": {"rope_type": "default", "foo": {"a": 1}}, "nothing": {}, "null": None,
}  # fmt: skip
"""Values of ``rope_parameters``; the base is added where none is stated."""

VALUES: Mapping[str, Mapping[str, Any]] = {
    "scaling": {"rope_scaling": {"type": "linear", "factor": 2.0}}, "scaling bare": {"rope_scaling": {"type": "yarn"}},
    "partial at the top": {"partial_rotary_factor": 2.0}, "window of zero": {"sliding_window": 0},
    "sliding, window of zero": {
        "layer_types": ["sliding_attention"] * 2, "sliding_window": 0, "use_sliding_window": True},
    "bias as a number": {"attention_bias": 0}, "cache as a word": {"use_cache": "True"},
    "eps whole": {"rms_norm_eps": 1},
    "initializer two": {"initializer_range": 2.0}, "pretraining word": {"pretraining_tp": "x"},
    "use window a number": {"use_sliding_window": 7}, "dtype empty": {"dtype": ""}, "dtype short": {"dtype": "bf16"},
    "dtype fp8": {"dtype": "float8_e4m3fn"}, "labels a number": {"id2label": 5}, "text config": {"text_config": {}},
    "text config null": {"text_config": None}, "layers unknown": {"layer_types": ["x", "y"]},
    "layers of the mlp": {"layer_types": ["moe", "dense"]}, "layers legacy": {"layer_types": ["attention", "mamba"]},
    "window of minus one": {"sliding_window": -1},
    "sliding, window of minus one": {
        "layer_types": ["sliding_attention"] * 2, "sliding_window": -1, "use_sliding_window": True},
    "mask token of minus one": {"mask_token_id": -1},
    "dflash config null": {"dflash_config": None},
}  # fmt: skip
"""Keys of the draft's layers."""

KINDS = ("dflash", "eagle3", "speculators-dspark", "speculators-eagle3")


def rope(value: Any) -> Damage:
    if isinstance(value, dict) and value and "full_attention" not in value:
        value = {"rope_theta": THETA, **value}
    return inner(rope_parameters=value)


def _group(**keys: Any) -> Damage:
    """Other arguments of the weights of a compressed-tensors pack."""
    return both(
        _ct(MLP, MLP_ONLY, []),
        lambda made: made.config["quantization_config"]["config_groups"]["group_0"]["weights"].update(keys),
    )


def _block(make: Damage, **keys: Any) -> Damage:
    return both(make, lambda made: made.config["quantization_config"].update(keys))


def _layers(edit: Callable[[int, dict[str, Any]], object]) -> Damage:
    def damage(made: Draft) -> None:
        _mixed(MLP)(made)
        for index, row in enumerate(made.config["quantization_config"]["quantized_layers"].items()):
            made.config["quantization_config"]["quantized_layers"][row[0]] = dict(row[1])
            edit(index, made.config["quantization_config"]["quantized_layers"][row[0]])

    return damage


def _moved_beside_file(made: Draft) -> None:
    _uniform(MLP, REST)(made)
    block = made.config.pop("quantization_config")
    made.inner["quantization_config"] = block
    made.quant_config = {
        "producer": {"name": "modelopt", "version": "0.47.0"},
        "quantization": {"quant_algo": "W4A16_NVFP4", "kv_cache_quant_algo": None, "group_size": 16,
                         "exclude_modules": REST},
    }  # fmt: skip


CT, MIXED, UNIFORM = _ct(MLP, MLP_ONLY, []), _mixed(MLP), _uniform(MLP, REST)
OWN: Mapping[str, tuple[str, Damage]] = {
    **{f"weights {key} {value!r}": ("dflash", _group(**{key: value})) for key, value in (
        ("scale_dtype", ""), ("scale_dtype", "torch.float8_e4m3fn"), ("zp_dtype", "x"), ("actorder", "x"),
        ("actorder", "group"), ("actorder", "static"), ("observer_kwargs", None), ("observer", 1), ("type", None),
        ("type", "FLOAT"), ("num_bits", "4"), ("symmetric", "true"), ("symmetric", None), ("dynamic", "x"),
        ("strategy", "TENSOR_GROUP"), ("foo", 1), ("block_structure", [1, 16]))},
    **{f"ct {key} {value!r}": ("dflash", _block(CT, **{key: value})) for key, value in (
        ("sparsity_config", "{}"), ("sparsity_config", {"format": "dense"}), ("kv_cache_scheme", {"num_bits": 4}),
        ("transform_config", 5), ("config_groups", None), ("quant_method", "compressed_tensors"), ("producer", None))},
    "ct weights null": ("dflash", both(CT, lambda made: made.config["quantization_config"]["config_groups"][
        "group_0"].update(weights=None))),
    "ct activations empty": ("dflash", both(CT, lambda made: made.config["quantization_config"]["config_groups"][
        "group_0"].update(input_activations={}))),
    "ct group null": ("dflash", _block(CT, config_groups={"group_0": None})),
    "mixed producer null": ("dflash", _block(MIXED, producer=None)),
    "mixed group size a word": ("dflash", _block(MIXED, group_size="x")),
    "uniform group size as a word": ("dflash", _block(UNIFORM, group_size="16")),
    "mixed, last layer of 32": ("dflash", _layers(lambda index, row: index == 5 and row.update(group_size=32))),
    "mixed, layers of a word": ("dflash", _layers(lambda index, row: row.update(group_size="16"))),
    "uniform inside, beside a file": ("speculators-dspark", _moved_beside_file),
    "own name of the map, reduced": ("speculators-eagle3", renamed("d2t", "draft_id_to_target_id")),
    "own name of the map": ("speculators-dflash", added("draft_id_to_target_id", "I64", DV)),
    "own name beside d2t": ("speculators-eagle3", added("draft_id_to_target_id", "I64", DV)),
    "name ends with a dot": ("dflash", renamed("norm.weight", "norm.weight.")),
    "q ends with a dot": ("dflash", renamed(
        "layers.0.self_attn.q_proj.weight", "layers.0.self_attn.q_proj.weight.")),
    "order of activations, dense": ("speculators-eagle3", added("layers.0.mlp.down_proj.g_idx", "I32", I)),
    "order of activations, packed": ("dflash", both(CT, added("layers.0.mlp.down_proj.g_idx", "I32", I))),
    "bias of the activation": ("dflash", added("layers.0.mlp.act_fn.bias", "BF16", 4)),
    "block of one": ("dflash", lambda made: made.config["dflash_config"].update(block_size=1)),
    "no tokens": ("speculators-dflash", lambda made: made.config["speculators_config"]["proposal_methods"][0].update(
        speculative_tokens=0)),
    "no kv heads, llama": ("speculators-eagle3", both(uninner("num_key_value_heads"), whole_kv)),
    "hidden is no multiple of heads": ("eagle3", inner(num_attention_heads=6)),
    "text config nested": ("speculators-dflash", inner(text_config={"hidden_size": H})),
    "dtype at the top": ("speculators-dflash", top(dtype="bf16")),
}  # fmt: skip


def config_cases() -> Iterator[tuple[str, Case]]:
    """Every case by name."""
    for kind in KINDS:
        for name, value in ROPES.items():
            if kind in ("dflash", "speculators-eagle3") or name in ("unknown", "linear bare", "longrope", "null"):
                yield f"{kind}, rope {name}", Case(kind, rope(value))
        for name, keys in VALUES.items():
            yield f"{kind}, {name}", Case(kind, inner(**keys))
    for name, (kind, damage) in OWN.items():
        yield name, Case(kind, damage)
