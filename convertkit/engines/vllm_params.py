"""The parameters that vLLM 0.33 creates for a drafter, per tensor-parallel rank: names, shapes, dtypes, parts.

Compared with the parameters of the built models: every case of ``tests/engines/cases.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from convertkit.engines.model import Parameter, Part, stop
from convertkit.engines.quantized import Grid
from convertkit.engines.vllm_draft import VllmDraft
from convertkit.engines.vllm_linear import Linear, Rank, linear, norm, plain, share, table
from convertkit.engines.vllm_quant import Quantization


@dataclass(frozen=True, slots=True)
class Body:
    """Sizes of a draft layer and how to build its linears."""

    draft: VllmDraft
    quantization: Quantization
    rank: Rank
    target_layers: int

    def linear(self, row: Linear) -> Iterator[Parameter]:
        return linear(row, self.quantization.ask(row.runtime, row.kind), self.rank)


def drafter_parameters(draft: VllmDraft, quantization: Quantization, rank: Rank, target: Target) -> list[Parameter]:
    """Every parameter of a drafter's model, in vLLM's names."""
    body = Body(draft, quantization, rank, target.layers)
    eagle = draft.kind.startswith("eagle3")
    made: list[Parameter] = []
    for index in range(draft.size("num_hidden_layers")):
        made += _layer(body, index, 2 if eagle and index == 0 else 1)
    made += _eagle_ends(body) if eagle else _dflash_ends(body)
    made += _vocabulary(body, target)
    return made


@dataclass(frozen=True, slots=True)
class Target:
    """What a drafter sees of its target: layers, vocabulary, hidden size. ``known`` is False if they are assumed."""

    layers: int
    vocabulary: int
    hidden: int
    known: bool = True


def _layer(body: Body, index: int, wide: int) -> Iterator[Parameter]:
    draft, rank = body.draft, body.rank
    hidden, at = draft.size("hidden_size"), f"model.layers.{index}"
    runtime = f"model.layers.{index + body.target_layers}"
    yield from _attention(body, at, runtime, hidden * wide)
    width = draft.size("intermediate_size")
    llama = draft.kind == "eagle3-llama"
    bias = llama and bool(draft.get("mlp_bias"))
    pair = (("gate", width), ("up", width))
    yield from body.linear(Linear(f"{at}.mlp.gate_up_proj", f"{runtime}.mlp.gate_up_proj", "MergedColumnParallelLinear",
                                  pair, hidden, "rows", bias=bias))  # fmt: skip
    yield from body.linear(Linear(f"{at}.mlp.down_proj", f"{runtime}.mlp.down_proj", "RowParallelLinear",
                                  (("", hidden),), width, "columns", bias=bias))  # fmt: skip
    for leaf in ("input_layernorm", "post_attention_layernorm"):
        yield norm(f"{at}.{leaf}.weight", hidden, rank.dtype)
    if draft.kind.startswith("eagle3"):
        yield norm(f"{at}.hidden_norm.weight", hidden, rank.dtype, unread=index > 0)
    if draft.kind == "dflash2":
        yield from _convolutions(body, at, runtime, hidden)


def _attention(body: Body, at: str, runtime: str, width: int) -> Iterator[Parameter]:
    draft, ranks = body.draft, body.rank.size
    heads, kv_heads, head = draft.size("num_attention_heads"), draft.size("num_key_value_heads"), draft.head_dim
    if kv_heads == 0 or heads % kv_heads:
        raise stop("create", f"num_heads ({heads}) is not divisible by num_kv_heads ({kv_heads})", "vllm.kv-heads",
                   key="num_key_value_heads")  # fmt: skip
    share(heads, ranks, "the number of attention heads")
    if kv_heads >= ranks:
        own_kv = share(kv_heads, ranks, "the number of key-value heads")
    else:
        share(ranks, kv_heads, "ranks")
        own_kv = 1
    parts = (("q", heads * head), ("k", kv_heads * head), ("v", kv_heads * head))
    bias = bool(draft.get("attention_bias"))
    # the Qwen3 variant of EAGLE-3 leaves 'self_attn' out of the name it asks its quantization config for
    own_name = "qkv_proj" if draft.kind == "eagle3-qwen3" else "self_attn.qkv_proj"
    rank_rows = (heads // ranks + 2 * own_kv) * head
    yield from body.linear(Linear(f"{at}.self_attn.qkv_proj", f"{runtime}.{own_name}", "QKVParallelLinear", parts,
                                  width, "rows", rank_rows, bias))  # fmt: skip
    hidden = draft.size("hidden_size")
    yield from body.linear(Linear(f"{at}.self_attn.o_proj", f"{runtime}.self_attn.o_proj", "RowParallelLinear",
                                  (("", hidden),), heads * head, "columns",
                                  bias=bias and draft.kind != "eagle3-qwen3"))  # fmt: skip
    yield from _cache_scales(body, at, own_kv)
    if has_sinks(draft):
        yield Parameter(f"{at}.self_attn.attention_sink_bias", (heads // ranks,), body.rank.dtype,
                        (Part("", (heads,), "up to"),), "minus infinity", rule="vllm.sinks")  # fmt: skip
    if draft.kind != "eagle3-llama":
        for leaf in ("q_norm", "k_norm"):
            yield norm(f"{at}.self_attn.{leaf}.weight", head, body.rank.dtype)


def has_sinks(draft: VllmDraft) -> bool:
    """Whether every layer of a draft of the DFlash family has a sink per head (``qwen3_dflash.py:316``)."""
    stated = draft.dflash.get("attention_sink_bias", draft.get("add_swa_attention_sink_bias", False))
    return bool(stated) and not draft.kind.startswith("eagle3")


CACHE_SCALES = {
    "modelopt": ("q_scale", "k_scale", "v_scale", "prob_scale"),
    "compressed-tensors": ("q_scale", "k_scale", "v_scale", "q_zero_point", "k_zero_point", "v_zero_point"),
}


def _cache_scales(body: Body, at: str, kv_heads: int) -> Iterator[Parameter]:
    """Scales of the KV cache, which have defaults; one per head takes any shape (``compressed_tensors.py:1198``)."""
    for leaf in CACHE_SCALES.get(body.quantization.family, ()):
        name = f"{at}.self_attn.attn.{leaf}"
        shape: tuple[int, ...] = (kv_heads,) if body.quantization.cache_by_head else (1,)
        part = Part("", shape, "any" if body.quantization.cache_by_head else "exact")
        yield Parameter(name, shape, "F32", (part,), "ones", unread=True, rule="vllm.kv-scales")


def _convolutions(body: Body, at: str, runtime: str, hidden: int) -> Iterator[Parameter]:
    taps, group = _count(body, "conv_kernel_size"), _count(body, "conv_group_size")
    if group <= 0 or hidden % group:
        raise stop("create", f"conv_group_size={group} must divide hidden_size={hidden}.", "vllm.conv-group",
                   key="dflash_config.conv_group_size")  # fmt: skip
    for conv in ("attention_conv", "mlp_conv"):
        yield plain(f"{at}.{conv}.base_kernel", (2, taps, hidden), body.rank.dtype)
        name = f"{conv}.kernel_projection"
        rows = (("", 2 * taps * (hidden // group)),)
        yield from body.linear(Linear(f"{at}.{name}", f"{runtime}.{name}", "ReplicatedLinear", rows, hidden))


def _count(body: Body, key: str) -> int:
    value = body.draft.dflash.get(key)
    if not isinstance(value, int):
        raise stop("create", f"KeyError: '{key}'", "vllm.dflash2-keys", key=f"dflash_config.{key}")
    return value


def _dflash_ends(body: Body) -> Iterator[Parameter]:
    draft, dtype = body.draft, body.rank.dtype
    hidden, vocabulary = draft.size("hidden_size"), draft.size("vocab_size")
    yield Parameter("model.mask_embedding", (hidden,), dtype, (Part("", (hidden,)),), "zeros", unread=True,
                    rule="vllm.mask-embedding")  # fmt: skip
    if uses_features(draft):
        width = (draft.get("target_hidden_size") or hidden) * len(
            draft.captured or range(draft.size("num_hidden_layers"))
        )
        yield from body.linear(Linear("model.fc", "model.fc", "ReplicatedLinear", (("", hidden),), width))
    for leaf in ("hidden_norm", "norm"):
        yield norm(f"model.{leaf}.weight", hidden, dtype)
    if draft.kind == "dflash2":
        rank = _count(body, "selector_rank")
        _count(body, "selector_top_k")
        for leaf in ("predecessor_codebook", "successor_codebook"):
            yield plain(f"model.candidate_selector.{leaf}", (vocabulary, rank), dtype)
        yield plain("model.candidate_selector.hidden_projection.weight", (rank, hidden), dtype)
    if draft.kind == "dspark":
        yield from _dspark_heads(body)


def _dspark_heads(body: Body) -> Iterator[Parameter]:
    draft, dtype = body.draft, body.rank.dtype
    if "markov_rank" not in draft.values:
        raise stop("create", "the config has no attribute 'markov_rank'", "vllm.dspark-markov", key="markov_rank")
    rank, hidden = draft.size("markov_rank"), draft.size("hidden_size")
    rows = draft.get("draft_vocab_size") or draft.size("vocab_size")
    yield plain("model.markov_head.markov_w1.weight", (draft.size("vocab_size"), rank), dtype)
    row = Linear("model.markov_head.markov_w2", "model.markov_head.markov_w2", "ParallelLMHead", (("", rows),), rank)
    grid = body.quantization.ask(row.runtime, row.kind)
    if grid == "dense":
        yield table(f"{row.name}.weight", rows, rank, Rank(1, dtype))
    else:
        yield from linear(row, grid, body.rank)
    if draft.get("enable_confidence_head"):
        width = hidden + (rank if draft.get("confidence_head_with_markov") else 0)
        yield plain("model.confidence_head.proj.weight", (1, width), "F32")
        yield plain("model.confidence_head.proj.bias", (1,), "F32")


def uses_features(draft: VllmDraft) -> bool:
    """Whether the drafter reads features of the target, so that it has ``fc``."""
    if draft.kind.startswith("eagle3"):
        return bool(draft.eagle.get("use_aux_hidden_state", True))
    merged = {**draft.eagle, **draft.dflash}
    return bool(merged.get("use_aux_hidden_state", draft.get("use_aux_hidden_state", True)))


def eagle_features(draft: VllmDraft) -> int:
    """How many target layers the class of an EAGLE-3 drafter expects (``llama_eagle3.py:209``,
    ``qwen3_eagle3.py:201``): the Llama class never looks at the ids at the top level."""
    stated = draft.get("num_aux_layers") if draft.kind == "eagle3-qwen3" else None
    stated = draft.get("num_aux_hidden_states") if stated is None else stated
    if stated is not None:
        return int(stated)
    ids = draft.get("eagle_aux_hidden_state_layer_ids") if draft.kind == "eagle3-qwen3" else None
    ids = ids or draft.eagle.get("eagle_aux_hidden_state_layer_ids")
    return len(ids) if ids else 3


def _eagle_ends(body: Body) -> Iterator[Parameter]:
    draft, dtype = body.draft, body.rank.dtype
    hidden = draft.size("hidden_size")
    if uses_features(draft):
        count, each = eagle_features(draft), draft.get("target_hidden_size", hidden)
        if norms_before_fc(draft):
            yield norm("model.input_norm.weight", count * each, dtype)
        if draft.get("fc_norm"):
            for index in range(count):
                yield norm(f"model.fc_norm.{index}.weight", each, dtype)
        yield from body.linear(Linear("model.fc", "model.fc", "ReplicatedLinear", (("", hidden),), count * each))
    elif draft.parallel:
        feature_width(draft)
    yield norm("model.norm.weight", hidden, dtype)


def feature_width(draft: VllmDraft) -> int:
    """Columns of ``fc`` of an EAGLE-3 drafter, which a P-EAGLE knows without it too. Raises Stop for a class that does
    not (``llama_eagle3.py:352``)."""
    if uses_features(draft):
        return eagle_features(draft) * int(draft.get("target_hidden_size", draft.size("hidden_size")))
    if draft.kind == "eagle3-llama":
        raise stop("create", "'LlamaModel' object has no attribute 'fc_input_size'", "vllm.features",
                   key="eagle_config.use_aux_hidden_state")  # fmt: skip
    return draft.size("hidden_size")


def norms_before_fc(draft: VllmDraft) -> bool:
    return bool(draft.eagle.get("norm_before_fc", draft.get("norm_before_fc", False)))


def _vocabulary(body: Body, target: Target) -> Iterator[Parameter]:
    """Embedding, head and the map of a reduced vocabulary; the first two are the target's if they are not there."""
    draft, rank = body.draft, body.rank
    hidden, vocabulary = draft.size("hidden_size"), draft.size("vocab_size")
    rows = draft_vocabulary(draft)
    own_head = draft.kind.startswith("dflash") and bool(draft.get("has_own_lm_head"))
    yield table("model.embed_tokens.weight", vocabulary, hidden, rank, lender="the target's embedding")
    lends = not own_head and not (draft.kind == "dspark" and rows != target.vocabulary)
    grid: Grid = "dense"
    if own_head or draft.kind.startswith("eagle3"):
        grid = body.quantization.ask_head("lm_head", "ParallelLMHead")
    if grid == "dense":
        yield table("lm_head.weight", rows, hidden, rank, lender="the target's head" if lends else None)
    else:
        yield from linear(
            Linear("lm_head", "lm_head", "ParallelLMHead", (("", rows),), hidden), grid, Rank(1, rank.dtype)
        )
    mapped = rows < target.vocabulary if draft.kind == "dspark" else rows != target.vocabulary
    if mapped:
        yield Parameter("draft_id_to_target_id", (rows,), "I64", (Part("", (rows,)),), "zeros",
                        rule="vllm.vocabulary-map")  # fmt: skip


def draft_vocabulary(draft: VllmDraft) -> int:
    """Rows of the draft's head: ``draft_vocab_size``, else the vocabulary."""
    stated = draft.get("draft_vocab_size")
    return stated if isinstance(stated, int) else draft.size("vocab_size")
