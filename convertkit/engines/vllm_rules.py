"""Where each rule of our model of vLLM comes from. ``run``: vLLM 0.33.0's own loader did it (``docs/audit.md``)."""

from __future__ import annotations

from collections.abc import Mapping

from convertkit.engines.rules import How, Rule, Source


def _rule(name: str, text: str, file: str, line: int, how: How = "run", since: str = "", until: str = "") -> Rule:
    return Rule(f"vllm.{name}", text, Source("vllm", "0.33.0", file, line, how), since, until)


_MODELS = "model_executor/models"
_QUANT = "model_executor/layers/quantization"
_SPEC = "transformers_utils/configs/speculators"

_ROWS = (
    # the config
    _rule("speculators-config", "a speculators config needs proposal_methods[0].speculative_tokens and a verifier",
          f"{_SPEC}/base.py", 86),
    _rule("speculators-kinds", "only eagle3, peagle, dflash, dflash2 and dspark are registered",
          f"{_SPEC}/base.py", 52),
    _rule("speculators-keys", "keys of the algorithm have no default", f"{_SPEC}/algos.py", 114),
    _rule("speculators-eagle", "the draft's layers are Llama's or Qwen3's", f"{_SPEC}/algos.py", 45),
    _rule("model-type", "a flat config needs model_type", "transformers_utils/config.py", 362),
    _rule("method", "the method follows from the architecture", "config/speculative.py", 1432, "read"),
    _rule("architectures", "the architecture must be registered", f"{_MODELS}/registry.py", 664),
    _rule("config-keys", "a speculators config is taken raw, without defaults of a transformers class",
          f"{_SPEC}/base.py", 59),
    _rule("activation", "the MLP knows silu only", f"{_MODELS}/llama.py", 114),
    _rule("kv-heads", "heads are divided among key-value heads", "model_executor/layers/attention/attention.py", 330),
    _rule("window", "sliding layers need a window", f"{_MODELS}/qwen3_dflash.py", 152),
    _rule("dflash2-keys", "DFlash 2 reads its four keys from dflash_config", f"{_MODELS}/qwen3_dflash2.py", 253),
    _rule("conv-group", "the convolution's group divides the width", f"{_MODELS}/qwen3_dflash2.py", 184),
    _rule("dspark-block", "without num_speculative_tokens a DSpark draft needs block_size",
          "config/speculative.py", 1616),
    _rule("dspark-markov", "a DSpark draft needs markov_rank", f"{_MODELS}/qwen3_dspark.py", 212),
    # names and shapes
    _rule("silent", "a parameter that nothing fills stays uninitialised without a word",
          "model_executor/model_loader/default_loader.py", 512),
    _rule("norm", "a norm that nothing fills stays one", "model_executor/model_loader/default_loader.py", 512),
    _rule("linear", "fused linears are filled share by share; a larger tensor is cut to its share",
          "model_executor/parameter.py", 153),
    _rule("dtype", "a stored tensor is copied into its parameter, converted value by value if the dtypes differ",
          "model_executor/model_loader/weight_utils.py", 1529),
    _rule("unknown-name", "a name that no module has is refused", f"{_MODELS}/utils.py", 443),
    _rule("bias", "an unexpected bias of a module that exists is ignored", f"{_MODELS}/utils.py", 458),
    _rule("dropped", "names that a model maps to nothing are dropped", f"{_MODELS}/qwen3_dflash.py", 880),
    _rule("mask-hidden", "mask_hidden belongs to P-EAGLE, which needs it", f"{_MODELS}/llama_eagle3.py", 452),
    _rule("mask-embedding", "a mask embedding is read from mask_embedding.pt only", f"{_MODELS}/qwen3_dflash.py", 894),
    _rule("vocabulary-map", "without d2t all offsets are zero", f"{_MODELS}/qwen3_dflash.py", 771),
    _rule("head-truncated", "a reduced draft without a head uses the first rows of the target's",
          "model_executor/layers/logits_processor.py", 198),
    _rule("dspark-reduced", "a reduced DSpark draft needs lm_head and d2t", f"{_MODELS}/qwen3_dspark.py", 342),
    _rule("tp-divides", "heads, widths and rows are divided evenly among ranks", f"{_MODELS}/qwen3_dflash.py", 191),
    _rule("sinks", "attention sinks that nothing fills stay minus infinity, so that there are none",
          "model_executor/model_loader/weight_utils.py", 1584),
    # quantization
    _rule("quant-producer", "hf_quant_config.json needs producer.name modelopt",
          "model_executor/model_loader/weight_utils.py", 392),
    _rule("quant-method", "quant_method is a word, and one that is registered",
          "model_executor/layers/quantization/__init__.py", 16),
    _rule("quant-file-algo", "hf_quant_config.json alone may name FP8, NVFP4 or MIXED_PRECISION, not W4A16_NVFP4",
          "transformers_utils/model_arch_config_convertor.py", 270),
    _rule("quant-algo", "ModelOpt configs name a supported quant_algo", f"{_QUANT}/modelopt.py", 363),
    _rule("quant-file-keys", "the nested form needs group_size, kv_cache_quant_algo and exclude_modules",
          f"{_QUANT}/modelopt.py", 820),
    _rule("quant-ignore", "the list of exclusions is a list", f"{_QUANT}/modelopt.py", 381),
    _rule("quant-mixed-layers", "MIXED_PRECISION needs quantized_layers", f"{_QUANT}/modelopt.py", 1687),
    _rule("quant-mixed-shards", "the parts of a fused linear have one algorithm", f"{_QUANT}/modelopt.py", 1781),
    _rule("width", "the input width of a rank is a multiple of 16", f"{_QUANT}/modelopt.py", 2028),
    _rule("width-unchecked", "compressed-tensors and routed experts create width // 16 scales for any width of a rank",
          f"{_QUANT}/compressed_tensors/schemes/compressed_tensors_w4a4_nvfp4.py", 77),
    _rule("quant-shards", "the parts of a fused linear are all left out or all packed",
          f"{_QUANT}/utils/config_utils.py", 384),
    _rule("experts-names", "names below the experts that fit nothing are dropped without a word",
          "model_executor/layers/fused_moe/routed_experts.py", 1052),
    _rule("block-scale", "ModelOpt block scales are NaN until loaded, and checked; compressed-tensors' are not",
          f"{_QUANT}/modelopt.py", 2076),
    _rule("global-scale", "of several global scales ModelOpt keeps the largest, compressed-tensors the largest divisor",
          f"{_QUANT}/modelopt.py", 2093),
    _rule("input-scale", "an activation scale that nothing fills stays uninitialised", f"{_QUANT}/modelopt.py", 2098),
    _rule("kv-scales", "scales of the KV cache have defaults", f"{_QUANT}/kv_cache.py", 45, "read"),
    # serving
    _rule("taps", "captured layers are a sorted set from 0 to the number of layers", f"{_MODELS}/interfaces.py", 1616,
          "read"),
    _rule("eagle3-taps", "the Llama class never reads the layer ids at the top level",
          f"{_MODELS}/llama_eagle3.py", 216),
    _rule("mask-token", "parallel drafting needs a mask token", "v1/worker/gpu/spec_decode/utils.py", 92, "read"),
    _rule("anchor", "DFlash does not sample from the anchor", "v1/worker/gpu/spec_decode/dflash/speculator.py", 85,
          "read"),
    _rule("conv-period", "the convolution's period is 1 + num_speculative_tokens", f"{_MODELS}/qwen3_dflash2.py", 256),
    _rule("no-tokens", "there is at least one draft token", "config/speculative.py", 413),
    _rule("tokens", "num_speculative_tokens may exceed the trained block without a word",
          "v1/worker/gpu/spec_decode/dflash/speculator.py", 65, "read"),
    _rule("features", "the width of the features is checked at the first step", f"{_MODELS}/qwen3_dflash.py", 841,
          "read"),
    _rule("reading", "the engine understands a field of the config otherwise", f"{_SPEC}/algos.py", 125),
    _rule("scales", "of a speculators DFlash 2 config only the four keys of convolution and selector are carried",
          f"{_SPEC}/algos.py", 142),
    _rule("runner-v2", "DSpark, DFlash 2 and drafts of mixed layers need the V2 model runner", "config/vllm.py", 3110,
          "read"),
    _rule("runner-v1", "P-EAGLE needs the V1 model runner", "config/vllm.py", 3070, "read"),
    _rule("capability", "Marlin needs compute capability 7.5", f"{_QUANT}/modelopt.py", 772, "read"),
    _rule("marlin-tiles", "shapes that are no multiple of (64, 128) or (128, 64) are padded with zeros",
          f"{_QUANT}/utils/marlin_utils.py", 222, "read"),
    # targets
    _rule("target-norm", "of an unquantized target, parameters without a quantization method must all be loaded",
          "model_executor/model_loader/default_loader.py", 526),
    _rule("experts", "an expert's tensor that is smaller than its place fills a part of it",
          "model_executor/layers/fused_moe/routed_experts.py", 526),
    _rule("target-mtp", "names that begin with mtp. belong to another model", f"{_MODELS}/qwen3_5.py", 478),
    _rule("tied", "a tied head is the embedding", f"{_MODELS}/utils.py", 200),
    # other versions
    _rule("hybrid-window", "before 0.33, page sizes of a sliding draft beside a hybrid target may not be unified",
          "v1/core/kv_cache_planning.py", 346, "read", until="0.33"),
)  # fmt: skip

_ROPE = Source("transformers", "5.20.2", "modeling_rope_utils.py", 889, "run")
_TYPES = Source("transformers", "5.20.2", "configuration_utils.py", 0, "run")

RULES: Mapping[str, Rule] = {
    **{rule.name: rule for rule in _ROWS},
    "vllm.rope": Rule("vllm.rope", "the rotary embedding needs an even head_dim", _ROPE),
    "vllm.rope-parameters": Rule("vllm.rope-parameters", "rope_parameters has the keys and numbers of its type", _ROPE),
    "vllm.config-type": Rule("vllm.config-type", "fields of a config class take values of one type", _TYPES),
    "vllm.ct-arguments": Rule(
        "vllm.ct-arguments",
        "groups of compressed-tensors hold the fields of its own class and no others",
        Source("compressed-tensors", "0.17.0", "quantization/quant_args.py", 150, "run"),
    ),
    "vllm.config-null": Rule("vllm.config-null", "fields with a default refuse null", _TYPES),
    "vllm.layer-types": Rule("vllm.layer-types", "every layer has its entry in layer_types", _TYPES),
}
