"""``config.json`` from the metadata of a GGUF, and the list of what the metadata does not say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from convertkit.checkpoint import Checkpoint
from convertkit.containers.gguf_values import Scalar, Value
from convertkit.drafter import DrafterSpec
from convertkit.errors import Finding, finding
from convertkit.layouts.configs import READINGS
from convertkit.layouts.fields import write_values
from convertkit.layouts.gguf_fields import MODEL_FIELDS, SPEC_FIELDS
from convertkit.layouts.gguf_names import Arch
from convertkit.layouts.gguf_reading import model_config, read_number, read_rope, read_spec
from convertkit.layouts.layout import config_value
from convertkit.layouts.meaning import causality, layer_types, window_of

ARCHITECTURES: Mapping[str, str] = {
    "dflash": "DFlashDraftModel",
    "dflash2": "DFlash2DraftModel",
    "dspark": "Qwen3DSparkModel",
    "eagle3": "LlamaForCausalLMEagle3",
}
ALGORITHMS: Mapping[str, str] = {"dflash": "dflash", "dflash2": "dflash2", "dspark": "dspark", "eagle3": "eagle3"}
IDS = {"bos_token_id": "tokenizer.ggml.bos_token_id", "eos_token_id": "tokenizer.ggml.eos_token_id",
       "pad_token_id": "tokenizer.ggml.padding_token_id"}  # fmt: skip
NOT_HELD: Mapping[str, tuple[str, ...]] = {
    "dflash": ("num_target_layers", "tokenizer files"),
    "eagle3": ("tokenizer files",),
}
"""What no GGUF of the architecture states; of others the tokenizer files and the generation config."""


def rebuilt_config(
    source: Checkpoint, arch: Arch, layout: str, vocabulary: int
) -> tuple[dict[str, Any], list[Finding]]:
    """A config that transformers or the drafter's own package reads, and notes on what it cannot state."""
    metadata: Mapping[str, Value] = source.metadata
    missing = NOT_HELD.get(arch.name, ("tokenizer files", "generation_config.json"))
    note = finding("W_NOT_RECOVERED", "warning", f"the GGUF does not hold: {', '.join(missing)}",
                   fix="complete it with --config-from DIR, and copy the tokenizer of the target")  # fmt: skip
    config = _drafter(source, arch, layout, vocabulary) if arch.drafter else _model(source, arch, vocabulary)
    for name, key in IDS.items():
        value = read_number(metadata, key)
        if value is not None:
            config[name] = value
    return dict(sorted(config.items())), [note]


def _model(source: Checkpoint, arch: Arch, vocabulary: int) -> dict[str, Any]:
    config = model_config(arch.name, source.metadata)
    config["vocab_size"] = vocabulary
    config["tie_word_embeddings"] = "output.weight" not in source.tensors
    config["attention_bias"] = False
    if arch.name == "qwen3moe":
        config |= {"norm_topk_prob": True, "mlp_only_layers": [], "decoder_sparse_step": 1}
    return config


def _drafter(source: Checkpoint, arch: Arch, layout: str, vocabulary: int) -> dict[str, Any]:
    name = layout.removeprefix("speculators-")
    spec = read_spec(arch.name, source.metadata, ALGORITHMS[name], vocabulary)
    values = _spec_values(source, arch, spec)
    config: dict[str, Any] = {
        "architectures": [ARCHITECTURES[name]],
        "tie_word_embeddings": False,
        "max_position_embeddings": read_number(source.metadata, f"{arch.name}.context_length"),
    }
    write_values(config, READINGS[name].fields, values)
    return config


def _spec_values(source: Checkpoint, arch: Arch, spec: DrafterSpec) -> dict[str, Any]:
    """Field values in the terms of ``layouts.configs``."""
    values: dict[str, Any] = {name: getattr(spec, name) for name in DrafterSpec.__dataclass_fields__}
    for name in ("embedding_scale", "output_multiplier"):
        values[name] = None if values[name] == 1.0 else values[name]
    ids = source.tensors.get("d2t")
    values["draft_vocabulary"] = None if ids is None else ids.spec.shape[0]
    window = window_of(spec)
    values |= {
        "rope_parameters": read_rope(arch.name, source.metadata),
        "sample_from_anchor": spec.sample_from_anchor or None,
        "attention_bias": False,
    }
    if arch.name == "dflash":
        values |= {
            "layer_types": layer_types(spec),
            "sliding_window": window,
            "use_sliding_window": window is not None,
            "is_causal": causality(spec),
            "target_hidden": None,
        }
    markov = source.tensors.get("markov_w1.weight")
    if markov is not None:
        values |= {
            "markov_rank": markov.spec.shape[1],
            "markov_head": "vanilla",
            "confidence_head": "conf_proj.weight" in source.tensors,
            "confidence_with_markov": "conf_proj.weight" in source.tensors,
        }
    if arch.name == "eagle3":
        values |= {"norm_before_residual": spec.norm_before_residual, "norm_before_fc": spec.norm_before_fc}
        values |= {"fc_norm": None, "norm_output": None, "layer_types": None, "is_causal": None}
    values |= {"rope_theta": None, "rope_scaling": None, "partial_rotary": None, "neox": None, "causal": None}
    return values


def check_config(config: Mapping[str, Any], metadata: Mapping[str, Value], arch: Arch) -> Iterable[Finding]:
    """Whether a config that shall complete a GGUF is that of the same model: every number that both state."""
    keys = {row.config: row.key for row in MODEL_FIELDS if not row.archs or arch.name in row.archs}
    if arch.drafter:
        hub = {"layers": "num_hidden_layers", "hidden": "hidden_size", "intermediate": "intermediate_size",
               "heads": "num_attention_heads", "kv_heads": "num_key_value_heads", "head_dim": "head_dim"}  # fmt: skip
        keys = {hub[name]: key for key, _, name in SPEC_FIELDS if name in hub}
    for name, key in keys.items():
        stated, held = config_value(config, name), metadata.get(f"{arch.name}.{key}")
        if type(stated) is int and isinstance(held, Scalar) and stated != held.value:
            message = f"the config states {stated} for '{name}', the GGUF {held.value}"
            yield finding("E_CONFIG", "error", message, key=name, fix="give the config of this model")
