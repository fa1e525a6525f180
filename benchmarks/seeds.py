"""Published models as headers without weights: enough for ``audit``, at full size, in sparse files.

Shapes and configs are those of the publications: z-lab's DFlash drafters for Qwen3.6-35B-A3B, DFlash 2 for
Qwen3.8-27B as a pack and in BF16, a DSpark draft of three layers in speculators form, and a Qwen3.6-35B-A3B in NVFP4
with 122,880 expert tensors. Scalars that an audit reads are written, the rest of each file is a hole.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from convertkit.checkpoint import TensorSpec
from convertkit.containers.safetensors import encode_header
from convertkit.demo import configs
from convertkit.demo.drafters import config_of, tensors_of
from convertkit.demo.tensors import QWEN3_5_MOE_UNFUSED, expand
from convertkit.layouts.expected import expected_tensors
from convertkit.layouts.tables import LAYOUTS_BY_NAME

A3B = {
    "L": 40, "H": 2048, "nh": 16, "nkv": 2, "hd": 256, "V": 248320, "E": 256, "Ie": 512, "Is": 512, "top": 8, "lk": 16,
    "lkd": 128, "lv": 32, "lvd": 128, "depth": 27, "Hv": 1152, "Iv": 4304, "nhv": 16, "patch": 16, "positions": 2304,
}  # fmt: skip
"""Qwen3.6-35B-A3B: 40 layers, every fourth with full attention, 256 experts, a vision tower."""

GLOBAL = struct.pack("<f", 0.0625)
Weights = dict[str, bytes]


def write_headers(folder: Path, specs: Iterable[TensorSpec], config: Mapping[str, Any], values: Weights) -> Path:
    """A folder whose weight file is sparse but for ``values``."""
    folder.mkdir(parents=True)
    header = encode_header(list(specs), {"format": "pt"})
    with (folder / "model.safetensors").open("wb") as stream:
        stream.write(header.prefix)
        stream.truncate(header.size_bytes)
        for name, value in values.items():
            stream.seek(header.starts[name])
            stream.write(value)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def packed(
    spec: TensorSpec, leaves: tuple[str, str, str], scalar: tuple[int, ...], inputs: str | None
) -> list[TensorSpec]:
    """The planes of a weight [out, in]."""
    module = spec.name.removesuffix(".weight")
    rows, columns = spec.shape
    made = [
        TensorSpec(f"{module}.{leaves[0]}", "U8", (rows, columns // 2)),
        TensorSpec(f"{module}.{leaves[1]}", "F8_E4M3", (rows, columns // 16)),
        TensorSpec(f"{module}.{leaves[2]}", "F32", scalar),
    ]
    return [*made, TensorSpec(f"{module}.{inputs}", "F32", scalar)] if inputs else made


def _globals(specs: Iterable[TensorSpec]) -> Weights:
    ends = ("global_scale", "weight_scale_2")
    return {spec.name: GLOBAL for spec in specs if spec.name.endswith(ends)}


def moe_nvfp4(folder: Path) -> Path:
    """Qwen3.6-35B-A3B with attention and all experts in NVFP4, compressed-tensors, W4A4: 124,306 tensors."""
    layers = range(A3B["L"])
    full = [layer for layer in layers if (layer + 1) % 4 == 0]
    ranges = {"i": layers, "f": full, "l": [layer for layer in layers if layer not in full], "e": range(A3B["E"]),
              "b": range(A3B["depth"])}  # fmt: skip
    leaves = ("weight_packed", "weight_scale", "weight_global_scale")
    specs: list[TensorSpec] = []
    for item in expand(QWEN3_5_MOE_UNFUSED, A3B, ranges, "BF16"):
        inside = any(part in item.spec.name for part in (".self_attn.", ".experts.", ".shared_expert."))
        if inside and item.spec.name.endswith("_proj.weight"):
            specs += packed(item.spec, leaves, (1,), "input_global_scale")
        else:
            specs.append(item.spec)
    weights = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16, "symmetric": True,
               "dynamic": False}  # fmt: skip
    group = {"targets": ["Linear"], "weights": weights, "input_activations": {**weights, "dynamic": "local"},
             "format": "nvfp4-pack-quantized"}  # fmt: skip
    ignore = ["lm_head", "re:.*visual.*", "re:.*linear_attn.*", r"re:.*mlp\.gate$", "re:.*shared_expert_gate$"]
    block = {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized", "ignore": ignore,
             "config_groups": {"group_0": group}}  # fmt: skip
    config = configs.qwen3_5_moe(A3B, {"theta": 10_000_000, "full_every": 4}, "BF16")
    return write_headers(folder, specs, {**config, "quantization_config": block}, _globals(specs))


def a3b_target(folder: Path) -> Path:
    """The config of Qwen3.6-35B-A3B alone."""
    folder.mkdir(parents=True)
    config = configs.qwen3_5_moe(A3B, {"theta": 10_000_000, "full_every": 4}, "BF16")
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def target_27b(folder: Path) -> Path:
    """The config of Qwen3.8-27B alone: 64 layers, hidden size 5120."""
    folder.mkdir(parents=True)
    sizes = {"L": 64, "H": 5120, "I": 17408, "nh": 32, "nkv": 8, "hd": 128, "V": 248320, "lk": 16, "lkd": 128, "lv": 48,
             "lvd": 128}  # fmt: skip
    (folder / "config.json").write_text(
        json.dumps(configs.qwen3_5(sizes, {"theta": 10_000_000, "full_every": 4}, "BF16"))
    )
    return folder


def dflash(folder: Path, kind: str) -> Path:
    """``dflash`` or ``dflash-april``: the two revisions of the drafter of Qwen3.6-35B-A3B."""
    specs = [item.spec for item in tensors_of(kind, "full")]
    return write_headers(folder, specs, config_of(kind, "full"), {})


def dflash2(folder: Path, *, pack: bool) -> Path:
    """DFlash 2 of Qwen3.8-27B with a block of 10: in BF16, or its 15 MLP linears in NVFP4 (ModelOpt, mixed)."""
    config = config_of("dflash2", "full")
    config["block_size"] = 10
    config["draft_vocab_size"] = config["vocab_size"]
    specs: list[TensorSpec] = []
    layers: dict[str, Any] = {}
    for item in tensors_of("dflash2", "full"):
        if pack and ".mlp." in item.spec.name:
            layers[item.spec.name.removesuffix(".weight")] = {"quant_algo": "W4A16_NVFP4", "group_size": 16}
            specs += packed(item.spec, ("weight", "weight_scale", "weight_scale_2"), (), None)
        else:
            specs.append(item.spec)
    if pack:
        config["quantization_config"] = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "ignore": [],
                                         "quantized_layers": layers}  # fmt: skip
    return write_headers(folder, specs, config, _globals(specs))


def dspark(folder: Path) -> Path:
    """A DSpark draft in speculators form: 3 layers, block 8, 32,000 of 248,320 tokens, inputs of layers 9, 19, 29."""
    body = config_of("dflash", "full")
    layer = {key: body[key] for key in sorted(body) if key not in ("architectures", "dflash_config", "dtype")}
    layer |= {"num_hidden_layers": 3, "layer_types": ["full_attention"] * 3, "is_causal": False}
    config: dict[str, Any] = {
        "architectures": ["DSparkDraftModel"],
        "speculators_model_type": "dspark",
        "speculators_version": "0.9.0",
        "speculators_config": {
            "algorithm": "dspark",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 7}],
            "verifier": {"name_or_path": "example/Ornith-1.0-35B", "architectures": None},
        },
        "transformer_layer_config": layer,
        "aux_hidden_state_layer_ids": [9, 19, 29],
        "block_size": 8,
        "mask_token_id": 248077,
        "draft_vocab_size": 32000,
        "markov_rank": 256,
        "markov_head_type": "vanilla",
        "enable_confidence_head": True,
        "confidence_head_with_markov": True,
        "sample_from_anchor": True,
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
    }
    table = expected_tensors(LAYOUTS_BY_NAME["speculators-dspark"], config) or {}
    kinds = {"float": "BF16", "ids": "I64"}
    specs = [
        TensorSpec(row.name, kinds.get(row.dtype, row.dtype), tuple(size or 0 for size in row.shape or ()))
        for row in table.values()
        if row.required
    ]
    chosen = np.zeros(248320, np.bool_)
    chosen[:64000:2] = True
    values = {"d2t": np.arange(32000, dtype=np.int64).tobytes(), "t2d": chosen.tobytes()}
    return write_headers(folder, specs, config, values)
