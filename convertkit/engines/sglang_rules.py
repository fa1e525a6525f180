"""Where each rule about SGLang 0.5.23 comes from. ``run`` means that SGLang's own loader did it in the oracle test."""

from __future__ import annotations

from collections.abc import Mapping

from convertkit.engines.rules import How, Rule, Source

VERSION = "0.5.23"


def _rule(name: str, text: str, file: str, line: int, how: How = "run") -> Rule:
    return Rule(f"sglang.{name}", text, Source("sglang", VERSION, f"srt/{file}", line, how))


RULES: Mapping[str, Rule] = {
    rule.name: rule
    for rule in (
        _rule("speculators", "no config of speculators is read: it has no model_type",
              "utils/hf_transformers_utils.py", 0),
        _rule("model-type", "a config needs a model_type", "utils/hf_transformers_utils.py", 0),
        _rule("entries", "the architecture names the class", "models/dflash.py", 1317),
        _rule("layer-types", "layer_types has one entry per layer", "configs/model_config.py", 617),
        _rule("config-type", "transformers' class refuses a value of another type; what only drafters have goes "
              "through int()", "speculative/dflash_utils.py", 501),
        _rule("config-null", "transformers' class refuses null where it has a default, and a dtype that torch has not",
              "utils/hf_transformers_utils.py", 0),
        _rule("config-keys", "sizes must be above zero", "models/dflash.py", 476),
        _rule("least", "what the DFlash family reads has a least value; a draft has layers and a vocabulary",
              "speculative/dflash_utils.py", 588),
        _rule("text-config", "a text_config must have num_attention_heads", "utils/hf_transformers/common.py", 605),
        _rule("activation", "the activation is silu, or swigluoai in the DFlash family", "models/dflash.py", 507),
        _rule("rope", "a head that turns whole has an even size", "utils/hf_transformers_utils.py", 0),
        _rule("rope-parameters", "the type of rope must be known, and its values numbers",
              "layers/rotary_embedding/factory.py", 125),
        _rule("silent", "missing names stay uninitialised without a word", "models/dflash.py", 942),
        _rule("dropped", "unknown names are dropped without a word", "models/dflash.py", 974),
        _rule("fc", "the width of fc.weight must fit the number of taps", "models/dflash.py", 996),
        _rule("linear", "shapes of fused and split linears are checked part by part", "layers/linear.py", 0),
        _rule("window", "sliding layers need sliding_window", "speculative/dflash_utils.py", 411),
        _rule("causal", "sliding layers are causal, full ones are not, unless is_causal says otherwise",
              "models/dflash.py", 158),
        _rule("taps", "taps must lie inside the target", "speculative/dflash_utils.py", 560),
        _rule("tap-order", "features come in the order of the target's layers, each once", "models/qwen2.py", 0,
              "read"),
        _rule("eagle3-taps", "only eagle_config names the tapped layers; else 2, n / 2 and n - 3 are read",
              "model_executor/model_runner_components/spec_aux_hidden_state.py", 186),
        _rule("pairs", "kernel and group of the convolution, rank and top k of the selector are stated together",
              "speculative/dflash_utils.py", 641),
        _rule("conv-group", "the group must divide the hidden size", "models/dflash.py", 547),
        _rule("selector", "a DFlash 2 draft needs selector_rank", "models/dflash.py", 1262),
        _rule("shared", "the DFlash family always takes the target's embedding and head", "models/dspark.py", 505),
        _rule("embedding", "an EAGLE-3 draft takes the target's embedding unless their widths differ",
              "models/llama.py", 910),
        _rule("vocabulary-map", "without d2t, draft tokens count as target tokens", "models/llama_eagle3.py", 350),
        _rule("markov", "a Markov head is required", "speculative/dspark_components/dspark_config.py", 267),
        _rule("markov-names", "unknown Markov tensors are refused", "models/dspark.py", 657),
        _rule("confidence", "the confidence head is not built unless SGLANG_RAGGED_VERIFY_MODE is set",
              "models/dspark.py", 484),
        _rule("quantized", "layers of the DFlash family have no names for a quantization config; fc, convolutions, "
              "selector and Markov head are dense", "models/dflash.py", 728),
        _rule("quant-mixed", "a MIXED_PRECISION config without kv_cache_quant_algo or kv_cache_scheme counts only in "
              "hf_quant_config.json", "model_loader/weight_utils.py", 288),
        _rule("quant-algo", "a ModelOpt config must name quant_algo", "layers/quantization/modelopt_quant.py", 1668),
        _rule("quant-method", "the method must be one that SGLang registers", "configs/model_config.py", 2153),
        _rule("quant-arguments", "arguments of a pack must be of the kind that their class takes",
              "layers/quantization/modelopt_quant.py", 850),
        _rule("quant-shards", "parts of a fused linear must be quantized alike", "layers/quantization/utils.py", 101),
        _rule("quant-target", "compressed-tensors: a linear that is neither ignored nor a target is refused",
              "layers/quantization/compressed_tensors/utils.py", 180),
        _rule("width", "in-features of packed linears are a multiple of 16",
              "layers/quantization/modelopt_quant.py", 1823),
        _rule("kv-scales", "without stored scales the KV cache's are 1", "layers/quantization/kv_cache.py", 32),
        _rule("inherits", "the draft's quantization defaults to the target's --quantization",
              "arg_groups/serving_hook.py", 685, "read"),
        _rule("mask-token", "without a mask token the tokenizer's is taken, or <|MASK|> is added",
              "speculative/dflash_worker_v2.py", 1391),
        _rule("mask-range", "the mask token must be in the target's vocabulary",
              "speculative/dflash_worker_v2.py", 1400),
        _rule("block", "the block is 16 if the config does not say", "arg_groups/speculative_hook.py", 396),
        _rule("tp-divides", "heads and widths are divided evenly among ranks", "models/dflash.py", 210, "read"),
        _rule("target-names", "unknown names are dropped, with a warning for dense models", "models/qwen3.py", 741),
        _rule("target-fused", "an unknown name of a fused linear is an error", "models/qwen3.py", 722),
        _rule("target-prefix", "Qwen3 takes names without model.", "models/qwen3.py", 690),
        _rule("target-missing", "missing names stay uninitialised without a word", "models/qwen3.py", 680),
        _rule("target-tied", "a tied head of Qwen3-MoE is a parameter of its own", "models/qwen3_moe.py", 1021),
        _rule("target-sparse", "every layer of Qwen3-MoE has experts, mlp_only_layers is not read",
              "models/qwen3_moe.py", 878),
        _rule("target-values", "sizes are not below zero, and there are layers, experts and heads",
              "models/qwen3.py", 169),
        _rule("target-mtp", "mtp. is not part of the target", "models/qwen3_5.py", 0),
        _rule("target-cut", "a linear that is larger than its place is cut without a word", "layers/linear.py", 0),
    )
}  # fmt: skip
"""Every rule about SGLang by name."""
