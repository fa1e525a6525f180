"""Checkpoints written by the real packages, from tiny random models: folders to compare with, byte for byte.

Every function writes a folder (made if missing) and returns it. The heavy packages are imported on the call;
``tiny_qwen3``, ``tiny_llama`` and ``llmcompressor_oneshot`` work in the llm-compressor environment, all but the
last in that of the other packages.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

QWEN3 = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "tie_word_embeddings": False,
    "max_position_embeddings": 64,
}
DFLASH = {
    **QWEN3,
    "num_target_layers": 8,
    "block_size": 8,
    "dflash_config": {"mask_token_id": 127, "target_layer_ids": [1, 4]},
}


def roughen(model: Any, seed: int) -> None:
    """Random weights, in place, with what matters to a packer: outliers, wide rows, zeros, tiny blocks."""
    import torch

    draw = torch.Generator().manual_seed(seed)
    for name, weight in sorted(model.named_parameters()):
        if weight.ndim != 2:
            continue
        spread = torch.exp(torch.randn(weight.shape[0], 1, generator=draw))
        values = torch.randn(weight.shape, generator=draw) * 0.02 * spread
        values[3, 16:32] = 0
        values[5, :16] = -0.0
        values[7, :16] *= 2.0**-14
        values[9, 4] = 3.0 if "down" in name else 0.7
        values[11, :48] = torch.exp2(torch.randint(-20, 0, (48,), generator=draw).float())
        weight.data.copy_(values.to(weight.dtype))


def tiny_qwen3(out: Path, seed: int = 0, dtype: str = "bfloat16", max_shard_size: str = "1GB") -> Path:
    """A causal LM of two layers, as transformers saves it."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    model = Qwen3ForCausalLM(Qwen3Config(**QWEN3)).to(getattr(torch, dtype))
    roughen(model, seed)
    model.save_pretrained(out, max_shard_size=max_shard_size)
    return out


def tiny_llama(out: Path, seed: int = 1, dtype: str = "bfloat16") -> Path:
    """Another causal LM of two layers: no norms of heads, tied embeddings, one key head."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {**QWEN3, "num_key_value_heads": 1, "intermediate_size": 176, "tie_word_embeddings": True}
    model = LlamaForCausalLM(LlamaConfig(**sizes)).to(getattr(torch, dtype))
    roughen(model, seed)
    model.save_pretrained(out)
    return out


def modelopt_export(source: Path, out: Path) -> Path:
    """``export_hf_checkpoint`` of a transformers folder quantized to W4A16 NVFP4 by amax, without data."""
    import modelopt.torch.quantization as mtq
    from modelopt.torch.export import export_hf_checkpoint
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(source, dtype="auto")
    mtq.quantize(model, mtq.W4A16_NVFP4_CFG, forward_loop=None)
    export_hf_checkpoint(model, export_dir=out)
    return out


def llmcompressor_oneshot(source: Path, out: Path) -> Path:
    """``oneshot`` with scheme NVFP4A16 on all linears but the head, without data."""
    from llmcompressor import oneshot
    from llmcompressor.modifiers.quantization import QuantizationModifier
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(source, dtype="auto")
    oneshot(model=model, recipe=QuantizationModifier(targets="Linear", scheme="NVFP4A16", ignore=["lm_head"]))
    model.save_pretrained(out, save_compressed=True)
    return out


def tiny_dflash_bf16(out: Path, seed: int = 0) -> Path:
    """The published drafter class with two layers, in BF16."""
    import torch
    from dflash.model import DFlashDraftModel
    from transformers import Qwen3Config

    model = DFlashDraftModel(Qwen3Config(**DFLASH)).to(torch.bfloat16)
    roughen(model, seed)
    model.save_pretrained(out)
    return out


def modelopt_dflash_mlp(source: Path, out: Path) -> Path:
    """The drafter's MLP linears quantized by ModelOpt, everything else dense, with both quantization configs.

    ``export_hf_checkpoint`` feeds token ids, which a drafter does not take; so the steps that it consists of
    are called one by one, and gate and up get one global scale as they do there.
    """
    import modelopt.torch.quantization as mtq
    import torch
    from dflash.model import DFlashDraftModel
    from modelopt.torch.export.convert_hf_config import convert_hf_quant_config_format
    from modelopt.torch.export.quant_utils import get_quant_config, preprocess_linear_fusion
    from modelopt.torch.export.unified_export_hf import _export_quantized_weight
    from safetensors.torch import save_file

    model = DFlashDraftModel.from_pretrained(source, dtype=torch.bfloat16)
    mtq.quantize(model, mtq.W4A16_NVFP4_CFG, forward_loop=None)
    mtq.disable_quantizer(model, lambda name: ".mlp." not in name)
    for layer in model.layers:
        preprocess_linear_fusion([layer.mlp.gate_proj, layer.mlp.up_proj])
    quantization = get_quant_config(model)
    for layer in model.layers:
        for linear in (layer.mlp.gate_proj, layer.mlp.up_proj, layer.mlp.down_proj):
            _export_quantized_weight(linear, torch.bfloat16)
    out.mkdir(parents=True, exist_ok=True)
    tensors = {name: value for name, value in model.state_dict().items() if "quantizer" not in name}
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((source / "config.json").read_text())
    config["quantization_config"] = convert_hf_quant_config_format(quantization)
    (out / "config.json").write_text(json.dumps(config, indent=2))
    (out / "hf_quant_config.json").write_text(json.dumps(quantization, indent=4))
    return out
