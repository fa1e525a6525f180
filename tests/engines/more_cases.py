"""Damaged drafters that random damage brought up, two or three faults at once: names that only look like nothing,
quantization configs at two places, ``mask_embedding.pt``, dtypes and architectures under other words.

What vLLM's own loader does with each is in ``golden/vllm-0.33.0-more.json``; our model must say the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from tests.engines import fp8_cases
from tests.engines.cases import (
    CT_ACTIVATIONS,
    MLP,
    MLP_ONLY,
    QKV,
    REST,
    Case,
    Damage,
    _ct,
    _mixed,
    _uniform,
    added,
    both,
    dflash,
    dropped,
    inner,
    top,
    undflash,
    untop,
)
from tests.engines.drafters import DV, HD, NH, NKV, Draft, H, N, V

CT, MIXED, UNIFORM = _ct(MLP, MLP_ONLY, []), _mixed(MLP), _uniform(MLP, REST)
ATTN = "layers.0.self_attn."
CACHE: Mapping[str, Any] = {"num_bits": 8, "type": "float", "strategy": "tensor", "symmetric": True, "dynamic": False}
FILE: Mapping[str, Any] = {
    "quant_algo": "NVFP4", "kv_cache_quant_algo": None, "group_size": 16, "exclude_modules": ["*"],
}  # fmt: skip


def _moved(*path: str) -> Damage:
    """The quantization config under another key, of the draft's layers if ``inner`` comes first."""

    def damage(made: Draft) -> None:
        place = made.inner if path[0] == "inner" else made.config
        place[path[-1]] = made.config.pop("quantization_config")

    return damage


def _file(producer: Any = None, **inner: Any) -> Damage:
    """``hf_quant_config.json`` beside whatever ``config.json`` says."""
    whole = {"producer": {"name": "modelopt"} if producer is None else producer, "quantization": {**FILE, **inner}}
    return lambda made: setattr(made, "quant_config", whole)


def _file_is(document: dict[str, Any]) -> Damage:
    return lambda made: setattr(made, "quant_config", document)


def _block(make: Damage, **keys: Any) -> Damage:
    return both(make, lambda made: made.config["quantization_config"].update(keys))


def _weights(**keys: Any) -> Damage:
    return both(CT, lambda made: made.config["quantization_config"]["config_groups"]["group_0"]["weights"].update(keys))


FP8: Mapping[str, Any] = {"num_bits": 8, "type": "float", "strategy": "channel", "group_size": None}


def _second_group(targets: list[str], **weights: Any) -> Damage:
    """A group like the first, without activations."""

    def damage(made: Draft) -> None:
        groups = made.config["quantization_config"]["config_groups"]
        first = groups["group_0"]
        groups["group_1"] = {**first, "targets": targets, "input_activations": None,
                             "weights": {**first["weights"], **weights}}  # fmt: skip

    return damage


def _mask(what: str) -> Damage:
    """``mask_embedding.pt`` with a tensor as wide as the draft, or something else."""

    def made_of() -> object:
        import torch

        row = torch.full((H,), 0.5, dtype=torch.bfloat16)
        return {
            "tensor": row, "float": row.float(), "row": row[None], "short": row[:16], "object": {"embedding": row},
            "token": {"embedding": row, "mask_token_id": V - 1}, "other token": {"embedding": row, "mask_token_id": 3},
            "empty": {}, "list": [0.5] * H, "whole": torch.ones(2, H), "null": {"embedding": None},
        }[what]  # fmt: skip

    return lambda made: setattr(made, "mask", made_of)


def _sinks(shape: tuple[int, ...], dtype: str = "BF16") -> list[Damage]:
    return [added(f"layers.{layer}.self_attn.attention_sink_bias", dtype, *shape) for layer in (0, 1)]


def _head_norms(made: Draft) -> None:
    for layer in (0, 1):
        for leaf in ("q_norm", "k_norm"):
            made.put(f"layers.{layer}.self_attn.{leaf}.weight", "BF16", HD)


MASKS = ("tensor", "float", "row", "short", "object", "token", "other token", "empty", "list", "whole", "null")
DTYPES = ("torch.bfloat16", "auto", "half", "BF16")

OWN: Mapping[str, tuple[str, Damage]] = {
    # the quantization config, and where it stands
    "ct under its old name": ("dflash", both(CT, _moved("compression_config"))),
    "ct under its old name, nested draft": ("speculators-dflash", both(CT, _moved("compression_config"))),
    "ct under its old name, inside": ("speculators-dflash", both(CT, _moved("inner", "compression_config"))),
    "ct under its old name, eagle3": ("speculators-eagle3", both(CT, _moved("compression_config"))),
    "an empty file beside a nested config": (
        "speculators-dflash2", both(MIXED, _moved("inner", "quantization_config"), _file_is({}))),
    "an empty config beside a file": (
        "dflash", both(UNIFORM, top(quantization_config={}), _file(quant_algo="NVFP4"))),
    "an empty config beside its old name": (
        "dflash", both(CT, _moved("compression_config"), top(quantization_config={}))),
    "a file that quantizes nothing": ("speculators-eagle3", _file(quant_algo=None)),
    "a file that quantizes nothing, packed": (
        "dflash", both(UNIFORM, untop("quantization_config"), _file(quant_algo=None))),
    "a file of a word": ("dflash", _file_is({"producer": {"name": "modelopt"}, "quantization": "NVFP4"})),
    "a file of null": ("speculators-dspark", _file_is({"producer": {"name": "modelopt"}, "quantization": None})),
    "a file of a word, another producer": ("dflash", _file_is({"producer": {"name": "x"}, "quantization": "NVFP4"})),
    "a file of another method": ("dflash", both(
        UNIFORM, untop("quantization_config"),
        _file_is({"producer": {"name": "modelopt"}, "quant_method": "compressed-tensors",
                  "quantization": {**FILE, "exclude_modules": REST}}))),
    "the algorithm beside the producer": ("dflash", both(
        UNIFORM, untop("quantization_config"),
        _file_is({"producer": {"name": "modelopt"}, "quant_algo": "W4A16_NVFP4", "ignore": REST}))),
    "the algorithm beside the producer, and a method": ("dflash", both(
        UNIFORM, untop("quantization_config"),
        _file_is({"producer": {"name": "modelopt"}, "quant_method": "modelopt", "quant_algo": "W4A16_NVFP4",
                  "ignore": REST}))),
    "layers below a key of the config": ("dflash", both(
        MIXED, lambda made: made.config.update(quantization_config={
            "quant_method": "modelopt", "quantization": made.config["quantization_config"]}))),
    "layers in a file without producer": ("dflash", both(
        MIXED, lambda made: setattr(made, "quant_config", {
            "quant_method": "modelopt",
            "quantization": {"quant_algo": "MIXED_PRECISION",
                             "quantized_layers": made.config["quantization_config"].pop("quantized_layers")}}))),
    "a cache algorithm that is an object": ("speculators-dflash", both(
        UNIFORM, untop("quantization_config"), _file(kv_cache_quant_algo=dict(CACHE)))),
    "a cache algorithm that is an object, in config.json": (
        "dflash", _block(UNIFORM, kv_cache_quant_algo=dict(CACHE))),
    **{f"cache scheme, {name}": ("dflash", _block(CT, kv_cache_scheme=value)) for name, value in (
        ("whole", dict(CACHE)), ("empty", {}), ("integers", {**CACHE, "type": "int"}),
        ("by channel", {**CACHE, "strategy": "channel"}), ("no strategy", {"num_bits": 8, "type": "float"}),
        ("by head", {**CACHE, "strategy": "attn_head"}), ("not symmetric", {**CACHE, "symmetric": False}))},
    "cache scales by head": ("dflash", both(
        _block(CT, kv_cache_scheme={**CACHE, "strategy": "attn_head"}),
        added(f"{ATTN}k_scale", "F32", NKV, 1, 1), added(f"{ATTN}v_scale", "F32", NKV))),
    # groups of compressed-tensors
    **{f"ignored {', '.join(names)}": ("dflash", _ct(MLP, MLP_ONLY, list(names))) for names in (
        ("re:[",), ("re:*fc",), ("re:(x",), ("fc", "re:a{2,1}"), ("re:.*fc", "re:.*(?P<x>"), ("re:.*self_attn.*",))},
    **{f"targets {', '.join(names)}": ("dflash", _ct((*MLP, *QKV, "o_proj"), list(names), ["fc", "model.fc"]))
       for names in (("re:.*ParallelLinear",), ("re:QKV.*", "re:.*Column.*", "Row"), ("re:.*Linear$",),
                     ("re:LinearBase",))},
    **{f"weights {json.dumps(keys)}": ("dflash", _weights(**keys)) for keys in (
        {"strategy": "channel"}, {"strategy": "group", "group_size": None}, {"strategy": None},
        {"num_bits": 8}, {"type": "int"}, {"symmetric": False}, {"strategy": "group", "group_size": 64},
        {"strategy": "token", "group_size": None}, {"strategy": "block", "group_size": None}, {"dynamic": True},
        {"dynamic": "local"}, {"strategy": None, "group_size": 0})},
    "two groups, the later a word that matches first": ("dflash", both(
        _ct(MLP, ["re:.*down_proj"], [], {**CT_ACTIVATIONS}), _second_group(["re:.*mlp.*"]))),
    "a group of fp8 that means nothing": ("dflash", both(CT, _second_group(["re:.*router"], **FP8))),
    "a group of fp8 for the head": ("speculators-eagle3", both(CT, _second_group(["lm_head.x"], **FP8))),
    "activations of fp8": ("dflash", _ct(MLP, MLP_ONLY, [], {**FP8, "strategy": "token", "dynamic": True})),
    "activations without symmetry": ("dflash", _ct(MLP, MLP_ONLY, [], {**CT_ACTIVATIONS, "symmetric": False})),
    "two groups, an exact name behind an expression": ("dflash", both(
        _ct(MLP, ["re:.*mlp.*"], [], {**CT_ACTIVATIONS}), _second_group([f"model.layers.{N}.mlp.down_proj"]))),
    "two groups, an exact name before an expression": ("dflash", both(
        _ct(MLP, [f"model.layers.{N}.mlp.down_proj"], [], {**CT_ACTIVATIONS}), _second_group(["re:.*mlp.*"]))),
    **fp8_cases.OWN,
    # scales of the cache, and what a module keeps beside its parameters
    "a cache scale of two dimensions": ("speculators-eagle3", both(CT, added(f"{ATTN}k_scale", "F32", 1, 1))),
    "a cache scale of two values": ("speculators-eagle3", both(CT, added(f"{ATTN}k_scale", "F32", 2))),
    **{f"buffer {leaf}{list(shape)}, {kind}": (kind, added(f"{ATTN}attn.{leaf}", "F32", *shape))
       for kind, leaf, shape in (
        ("dflash", "_k_scale", ()), ("speculators-dspark", "_v_scale", (1, 1)), ("eagle3", "_q_scale", (1,)),
        ("dflash2", "_prob_scale", ()), ("dflash", "_k_scale", (NKV,)), ("dflash", "_k_zero_point", ()))},
    "buffer of another layer": ("dflash", added("layers.7.self_attn.attn._k_scale", "F32")),
    "buffer, packed": ("dflash", both(CT, added(f"{ATTN}attn._k_scale", "F32"))),
    # names that say that the draft has a head or an embedding of its own
    "a bias of the head alone": ("dflash", added("lm_head.bias", "BF16", V)),
    "a bias of the head alone, dspark": (
        "speculators-dspark", added("lm_head.bias", "BF16", V)),
    "a bias of the head alone, eagle3": (
        "speculators-eagle3", both(dropped("lm_head.weight"), added("lm_head.bias", "BF16", DV))),
    "a bias of the embedding alone": ("dflash", added("embed_tokens.bias", "BF16", H)),
    "a bias of the embedding alone, eagle3": (
        "speculators-eagle3", both(dropped("embed_tokens.weight"), added("embed_tokens.bias", "BF16", H))),
    "a bias of the confidence head alone": ("dspark", both(
        dropped("confidence_head.proj.weight", "confidence_head.proj.bias"),
        added("confidence_head.bias", "BF16", 1))),
    # architectures, model types, dtypes
    **{f"architectures {', '.join(names)}, {kind}": (kind, top(architectures=list(names))) for kind, *names in (
        ("dspark", "DFlashQwen3Model", "Qwen3DSparkModel"), ("dspark", "Eagle3Speculator", "Qwen3DSparkModel"),
        ("dflash2", "PEagleDraftModel", "DFlash2DraftModel"), ("dflash", "Nothing", "Qwen3Model"),
        ("dspark", "Qwen3ForCausalLM", "DSparkDraftModel"), ("eagle3", "X", "LlamaForCausalLMEagle3"),
        ("dflash", "DFlashDraftModel", "DFlash2DraftModel"), ("eagle3", "Eagle3Qwen3vlForCausalLM"),
        ("eagle3", "Eagle3Qwen2_5vlForCausalLM"), ("eagle3", "Eagle3MiniMaxM2ForCausalLM"))},
    **{f"model type {name}": ("dflash", inner(model_type=name))
       for name in ("dflash", "eagle3", "dspark", "Qwen3", "speculators", "eagle")},
    "block of dspark inside": ("dspark", both(untop("block_size"), top(dflash_config={"block_size": 7}))),
    "block of dspark under its long name": ("dspark", both(untop("block_size"), top(dspark_block_size=7))),
    **{f"dtype {word}, {kind}": (kind, inner(dtype=word)) for kind in ("dflash", "speculators-dflash")
       for word in DTYPES},
    **{f"old dtype {word}": ("dflash", both(inner(torch_dtype=word), untop("dtype"))) for word in DTYPES},
    "no heads stated, nested": ("speculators-eagle3", inner(num_attention_heads=None)),
    # sinks, features
    "sinks stated, not stored": ("dflash", dflash(attention_sink_bias=True)),
    "sinks stated and stored": ("dflash2", both(dflash(attention_sink_bias=True), *_sinks((NH,)))),
    "sinks stated at the top": ("dspark", both(top(add_swa_attention_sink_bias=True), *_sinks((NH,)))),
    "sinks of another shape": ("dflash", both(dflash(attention_sink_bias=True), *_sinks((NH + 1,)))),
    "sinks too short": ("dflash", both(dflash(attention_sink_bias=True), *_sinks((NH - 1,)))),
    "sinks as a column": ("dflash", both(dflash(attention_sink_bias=True), *_sinks((NH, 1)))),
    "sinks in float": ("dflash", both(dflash(attention_sink_bias=True), *_sinks((NH,), "F32"))),
    "sinks stored, not stated": ("dflash", both(*_sinks((NH,)))),
    "sinks of eagle3": ("speculators-eagle3", both(
        inner(add_swa_attention_sink_bias=True), *_sinks((NH,)))),
    "sinks, nested": ("speculators-dflash", both(
        inner(add_swa_attention_sink_bias=True), *_sinks((NH,)))),
    **{f"{kind} without features": (kind, inner(eagle_config={"use_aux_hidden_state": False}))
       for kind in ("speculators-eagle3", "speculators-eagle3-qwen3", "speculators-peagle")},
    "p-eagle qwen3 without features": ("speculators-peagle", both(
        inner(model_type="qwen3", eagle_config={"use_aux_hidden_state": False}), dropped("fc.weight"),
        _head_norms, added("mask_hidden", "BF16", 1, 1, H))),
    # mask_embedding.pt
    **{f"mask file, {what}": ("dflash", _mask(what)) for what in MASKS},
    "mask file, nested draft": ("speculators-dflash", _mask("empty")),
    "mask file, dflash2": ("dflash2", _mask("other token")),
    "mask file of dspark": ("dspark", _mask("empty")),
    "mask file without a token": ("dflash", both(undflash("mask_token_id"), _mask("empty"))),
    "mask file, token null": ("dflash", both(dflash(mask_token_id=None), _mask("empty"))),
    "mask file beside a tensor": ("dflash", both(_mask("tensor"), added("mask_embedding", "BF16", H))),
}  # fmt: skip


def more_cases() -> Iterator[tuple[str, Case]]:
    """Every case by name."""
    for name, (kind, damage) in OWN.items():
        yield name, Case(kind, damage)
