"""Small drafters with published config values: tensors as their layout's table wants them, bytes from a counter."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from convertkit.checkpoint import TensorSpec
from convertkit.containers.folder import open_checkpoint
from convertkit.containers.reader import Reader
from convertkit.containers.safetensors import encode_header
from convertkit.layouts.expected import expected_tensors
from convertkit.layouts.tables import LAYOUTS_BY_NAME

Tensor = tuple[str, tuple[int, ...], bytes]
V, DV = 192, 48

BODY: dict[str, Any] = {
    "model_type": "qwen3",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-06,
    "vocab_size": V,
    "max_position_embeddings": 4096,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "initializer_range": 0.02,
    "rope_parameters": {"rope_theta": 10000000, "rope_type": "default"},
    "dtype": "bfloat16",
}
FULL3 = {"layer_types": ["full_attention"] * 3, "sliding_window": None, "use_sliding_window": False}
SLIDING3 = {"layer_types": ["sliding_attention"] * 3, "sliding_window": 32, "use_sliding_window": True}


def zlab(**over: Any) -> dict[str, Any]:
    """A z-lab DFlash config; ``dflash_config`` in ``over`` is merged."""
    inner = {"mask_token_id": 187, "target_layer_ids": [1, 5, 9], "block_size": 8}
    config = {**BODY, **FULL3, "architectures": ["DFlashDraftModel"], "num_target_layers": 12, **over}
    return {**config, "dflash_config": {**inner, **over.get("dflash_config", {})}}


def zlab2(**over: Any) -> dict[str, Any]:
    """A z-lab DFlash 2 config: all sliding, not causal, as published."""
    inner = {"conv_kernel_size": 2, "conv_group_size": 16, "selector_rank": 16, "selector_top_k": 4}
    given = over.pop("dflash_config", {})
    words = {"architectures": ["DFlash2DraftModel"], **SLIDING3, "is_causal": False, **over}
    return zlab(**words, dflash_config={**inner, **given})


def deepspec(**over: Any) -> dict[str, Any]:
    """A DeepSpec DSpark config, algorithm keys at the top."""
    return {
        **BODY,
        **FULL3,
        "architectures": ["Qwen3DSparkModel"],
        "tie_word_embeddings": False,
        "num_target_layers": 36,
        "target_layer_ids": [1, 9, 17],
        "block_size": 7,
        "mask_token_id": 150,
        "num_anchors": 512,
        "markov_rank": 8,
        "markov_head_type": "vanilla",
        "enable_confidence_head": True,
        "confidence_head_with_markov": True,
        **over,
    }


def specforge(**over: Any) -> dict[str, Any]:
    """The config of a DSpark that SpecForge saved: its heads are described in ``dflash_config``."""
    heads = {"markov_rank": 8, "markov_head_type": "vanilla", "enable_confidence_head": True}
    mode = {"projector_type": "dspark", "attention_mode": "gqa", "confidence_head_with_markov": True}
    given = over.pop("dflash_config", {})
    config = zlab(**{"architectures": ["DSparkDraftModel"], "block_size": 8, **over})
    config["dflash_config"] = {"mask_token_id": 187, "target_layer_ids": [1, 5, 9], **heads, **mode, **given}
    return config


def specforge_peagle(**over: Any) -> dict[str, Any]:
    """The config of a P-EAGLE that SpecForge saved."""
    words = {"architectures": ["PEagleDraftModel"], "model_type": "llama", "draft_vocab_size": DV}
    return {**BODY, **words, "target_hidden_size": 64, "norm_before_residual": False, "mask_token_id": 187, **over}


def speculators(kind: str, **over: Any) -> dict[str, Any]:
    """A speculators config of DFlash's family or EAGLE-3; ``layer`` in ``over`` is merged into the transformer's."""
    layer = {**BODY, **(SLIDING3 if kind == "dspark" else FULL3), **over.pop("layer", {})}
    tokens = over.pop("tokens", 8 if kind == "dspark" else 7)
    proposal = {
        "accept_tolerance": 0.0,
        "proposal_type": "greedy",
        "speculative_tokens": tokens,
        "verifier_accept_k": 1,
    }
    taps = [2, 6, 10]
    own: dict[str, Any] = {"aux_hidden_state_layer_ids": taps, "mask_token_id": 187, "block_size": 8}
    if kind in ("eagle3", "peagle"):
        own = {"eagle_aux_hidden_state_layer_ids": taps, "norm_before_residual": True, "norm_before_fc": False}
        own |= {"fc_norm": False, "norm_output": False}
    else:
        own |= {"sliding_window_non_causal": True, "sample_from_anchor": kind == "dspark"}
    if kind == "dspark":
        own |= {"markov_rank": 8, "markov_head_type": "vanilla", "enable_confidence_head": True}
        own |= {"confidence_head_with_markov": True}
    if kind == "dflash2":
        own |= {"conv_kernel_size": 2, "conv_group_size": 16, "selector_rank": 16, "selector_top_k": 4}
    if kind == "peagle":
        own["mask_token_id"] = 187
    vocabulary = {"draft_vocab_size": V}
    if kind == "mtp":  # one layer over the target's own vocabulary
        own, vocabulary = {"num_nextn_predict_layers": 1}, {}
    return {
        "architectures": ["DFlashDraftModel"],
        "speculators_model_type": kind,
        "speculators_version": "0.9.0",
        **vocabulary,
        "tie_word_embeddings": False,
        "transformer_layer_config": layer,
        "speculators_config": {
            "algorithm": kind,
            "default_proposal_method": "greedy",
            "proposal_methods": [proposal],
            "verifier": {"name_or_path": "Qwen/Qwen3-8B", "architectures": ["Qwen3ForCausalLM"]},
        },
        **own,
        **over,
    }


def eagle(**over: Any) -> dict[str, Any]:
    """A legacy EAGLE-3 config: one Llama layer, reduced vocabulary."""
    return {
        **{key: value for key, value in BODY.items() if key not in ("rope_parameters", "head_dim")},
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "num_hidden_layers": 1,
        "draft_vocab_size": DV,
        "rope_theta": 500000.0,
        **over,
    }


def fill(name: str, spec: TensorSpec) -> bytes:
    """Bytes that depend on the name alone; floats are finite BF16."""
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
    values = np.random.Generator(np.random.PCG64(seed)).standard_normal(spec.elements, np.float32) * np.float32(0.1)
    values += np.float32(2.0) if "norm" in name else np.float32(0.0)  # so that attention is not uniform
    return (values.view(np.uint32) >> 16).astype("<u2").tobytes()


def target_ids(count: int = DV, vocabulary: int = V) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Target ids of a reduced vocabulary: ascending, with gaps of one and runs."""
    ids = [token for token in range(vocabulary) if token % 4 == 0 or token % 16 == 1]
    return np.array(ids[:count], np.int64)


def maps(form: str = "offsets", dtype: str = "I64") -> dict[str, Tensor]:
    """d2t and t2d of ``target_ids``."""
    ids = target_ids()
    stored = ids - np.arange(ids.size) if form == "offsets" else ids
    mask = np.zeros(V, np.uint8)
    mask[ids] = 1
    numbers = stored.astype("<i8" if dtype == "I64" else "<i4").tobytes()
    return {"d2t": (dtype, (ids.size,), numbers), "t2d": ("BOOL", (V,), mask.tobytes())}


def tensors_for(layout: str, config: Mapping[str, Any], *, optional: bool = False) -> dict[str, Tensor]:
    """Every tensor that the layout's table requires (with ``optional`` also the others), d2t and t2d valid."""
    if layout == "eagle3":  # three target layers, if the config names none
        config, optional = {"eagle_aux_hidden_state_layer_ids": [2, 6, 9], **config}, True
    table = expected_tensors(LAYOUTS_BY_NAME[layout], config)
    assert table is not None
    made: dict[str, Tensor] = {}
    for name, row in table.items():
        if not (row.required or optional) or name in ("d2t", "t2d"):
            continue
        assert row.shape is not None
        shape = tuple(size for size in row.shape if size is not None)
        assert len(shape) == len(row.shape)
        spec = TensorSpec(name, "BF16", shape)
        made[name] = ("BF16", shape, fill(name, spec))
    if any(name in table and table[name].required for name in ("d2t", "t2d")) or (optional and "d2t" in table):
        made.update(maps())
    return made


def write(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor], shards: int = 1) -> Path:
    """A checkpoint folder, in ``shards`` files."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    names = sorted(tensors)
    weight_map: dict[str, str] = {}
    for number in range(shards):
        part = names[number::shards]
        file = "model.safetensors" if shards == 1 else f"model-{number + 1:05}-of-{shards:05}.safetensors"
        header = encode_header([TensorSpec(name, *tensors[name][:2]) for name in part], {"format": "pt"})
        data = b"".join(tensors[spec.name][2] for spec in header.order)
        (folder / file).write_bytes(header.prefix + data)
        weight_map.update(dict.fromkeys(part, file))
    if shards > 1:
        total = sum(len(row[2]) for row in tensors.values())
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def drafter(folder: Path, layout: str, config: Mapping[str, Any], **words: Any) -> Path:
    """A complete drafter of a layout."""
    shards = words.pop("shards", 1)
    return write(folder, config, tensors_for(layout, config, **words), shards)


def read(folder: Path) -> dict[str, Tensor]:
    """Every tensor of a checkpoint."""
    checkpoint = open_checkpoint(folder)
    with Reader(checkpoint) as reader:
        return {n: (r.spec.dtype, r.spec.shape, reader.bytes_of(n)) for n, r in checkpoint.tensors.items()}


def config_of(folder: Path) -> dict[str, Any]:
    config = json.loads((folder / "config.json").read_text())
    assert isinstance(config, dict)
    return config


def target(folder: Path, *, layers: int = 12, nested: bool = False, weights: bool = False, **over: Any) -> Path:
    """A target's config, and its embedding and head with ``weights``."""
    text = {"hidden_size": 64, "num_hidden_layers": layers, "vocab_size": V, "tie_word_embeddings": False, **over}
    whole = {"text_config": text, "model_type": "qwen3_5"} if nested else {**text, "model_type": "qwen3"}
    config = {"architectures": ["Qwen3ForCausalLM"], "dtype": "bfloat16", **whole}
    if not weights:
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(config))
        return folder
    made: dict[str, Tensor] = {}
    for short in ("embed_tokens", "lm_head"):
        name = f"{short}.weight"
        place = "lm_head.weight" if short == "lm_head" else f"model.{'language_model.' if nested else ''}{name}"
        made[place] = ("BF16", (V, 64), fill(name, TensorSpec(name, "BF16", (V, 64))))
    return write(folder, config, made)
