"""The parameters that SGLang 0.5.23 creates for a drafter, per tensor-parallel rank.

Compared with the parameters of the built models, on one rank and on both of two, in the oracle test. Names of the
DFlash family have no ``model.``; embedding and head are no parameters of those models, the target lends them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from convertkit.engines.model import Parameter, Part, stop
from convertkit.engines.sglang_quant import Quantization
from convertkit.engines.vllm_draft import VllmDraft
from convertkit.engines.vllm_linear import Linear, Rank, linear, norm, plain, table
from convertkit.engines.vllm_params import Target

EMBEDDING, HEAD = "the target's embedding", "the target's head"


def drafter_parameters(draft: VllmDraft, quant: Quantization, rank: Rank, target: Target) -> list[Parameter]:
    """Every parameter, and what the target lends."""
    eagle = draft.kind.startswith("eagle3")
    made: list[Parameter] = []
    for index in range(draft.size("num_hidden_layers")):
        made += _layer(draft, index, quant, rank)
    made += _eagle_ends(draft, quant, rank) if eagle else _dflash_ends(draft, rank, target)
    return [replace(padded(item), rule=_rule(item.rule)) for item in made]


PADDED_ROWS, PADDED_COLUMNS = (
    ("gate", "up", "z", "b", "a"),
    (".o_proj.", ".down_proj.", ".out_proj.", ".proj.", ".linear_fc2."),
)


def padded(parameter: Parameter) -> Parameter:
    """Parts of merged linears but q, k and v, and row-parallel linears: a short one is filled up with zeros
    (``layers/parameter.py:210, 321``)."""
    parts = []
    for part in parameter.parts:
        fit = part.fit
        if fit == "rows" and part.shard in PADDED_ROWS:
            fit = "padded rows"
        elif fit == "columns" and any(leaf in f".{parameter.name}." for leaf in PADDED_COLUMNS):
            fit = "padded columns"
        parts.append(Part(part.shard, part.shape, fit))
    return replace(parameter, parts=tuple(parts))


def _rule(name: str) -> str:
    """Rules of the shared builders, as ours."""
    if name.startswith("sglang."):
        return name
    return "sglang.kv-scales" if name == "vllm.kv-scales" else "sglang.silent"


def _built(row: Linear, quant: Quantization, rank: Rank) -> Iterator[Parameter]:
    return linear(row, quant.ask(row.runtime, row.kind), rank)


def _layer(draft: VllmDraft, index: int, quant: Quantization, rank: Rank) -> Iterator[Parameter]:
    eagle = draft.kind.startswith("eagle3")
    at, hidden, width = f"layers.{index}", draft.size("hidden_size"), draft.size("intermediate_size")
    at = f"model.{at}" if eagle else at
    asked = "model." if eagle else ""
    yield from _attention(draft, at, index, quant, rank)
    pair = (("gate", width), ("up", width))
    yield from _built(Linear(f"{at}.mlp.gate_up_proj", f"{asked}gate_up_proj", "MergedColumnParallelLinear", pair,
                             hidden, "rows"), quant, rank)  # fmt: skip
    yield from _built(Linear(f"{at}.mlp.down_proj", f"{asked}down_proj", "RowParallelLinear", (("", hidden),), width,
                             "columns"), quant, rank)  # fmt: skip
    for leaf in ("input_layernorm", "post_attention_layernorm"):
        yield norm(f"{at}.{leaf}.weight", hidden, rank.dtype, unread=eagle and index > 0 and leaf == "input_layernorm")
    if eagle:
        yield norm(f"{at}.hidden_norm.weight", hidden, rank.dtype)
    elif draft.dflash.get("conv_kernel_size"):
        yield from _convolutions(draft, at, hidden, rank)


def _attention(draft: VllmDraft, at: str, index: int, quant: Quantization, rank: Rank) -> Iterator[Parameter]:
    eagle = draft.kind.startswith("eagle3")
    heads, kv_heads, head = draft.size("num_attention_heads"), draft.size("num_key_value_heads"), draft.head_dim
    for size, what in ((heads, "total_num_heads"), (kv_heads, "total_num_kv_heads")):
        fits = size and (size % rank.size == 0 or (what.endswith("kv_heads") and rank.size % size == 0))
        if not fits:
            message = f"{what}={size} cannot be divided among tp_size={rank.size}"
            raise stop("create", message, "sglang.tp-divides", key=what.removeprefix("total_"))
    if not eagle:
        _window(draft, index)
    hidden = draft.size("hidden_size")
    bias = bool(draft.get("attention_bias")) or (eagle and bool(draft.get("bias")))
    own_kv = max(1, kv_heads // rank.size)
    parts = (("q", heads * head), ("k", kv_heads * head), ("v", kv_heads * head))
    asked = ("model.qkv_proj", "model.self_attn.o_proj") if eagle else ("qkv_proj", "o_proj")
    wide = hidden * 2 if eagle and index == 0 else hidden
    rows = (heads // rank.size + 2 * own_kv) * head
    yield from _built(Linear(f"{at}.self_attn.qkv_proj", asked[0], "QKVParallelLinear", parts, wide, "rows", rows,
                             bias and not eagle), quant, rank)  # fmt: skip
    yield from _built(Linear(f"{at}.self_attn.o_proj", asked[1], "RowParallelLinear", (("", hidden),), heads * head,
                             "columns", bias=bias), quant, rank)  # fmt: skip
    for leaf in ("k_scale", "v_scale") if quant.kv_scales else ():
        name = f"{at}.self_attn.attn.{leaf}"
        yield Parameter(name, (), "F32", (Part("", (), "scalar"),), "ones", unread=True, rule="sglang.kv-scales")
    if not eagle:
        for leaf in ("q_norm", "k_norm"):
            yield norm(f"{at}.self_attn.{leaf}.weight", head, rank.dtype)


def _window(draft: VllmDraft, index: int) -> None:
    """Attention of one layer of the DFlash family (``models/dflash.py:167``)."""
    types = draft.get("layer_types")
    kind = types[index] if isinstance(types, list) else "full_attention"
    if kind not in ("full_attention", "sliding_attention"):
        message = f"Unsupported DFLASH draft layer type. layer_types[{index}]={kind!r}."
        raise stop("create", message, "sglang.window", key="layer_types")
    if kind == "sliding_attention" and draft.get("sliding_window") is None:
        message = "DFLASH sliding_attention layers require config.sliding_window."
        raise stop("create", message, "sglang.window", key="sliding_window")


def _convolutions(draft: VllmDraft, at: str, hidden: int, rank: Rank) -> Iterator[Parameter]:
    taps, group = draft.dflash["conv_kernel_size"], draft.dflash["conv_group_size"]
    if hidden % group:
        message = f"DFLASH conv_group_size={group} must divide hidden_size={hidden}."
        raise stop("create", message, "sglang.conv-group", key="dflash_config.conv_group_size")
    for conv in ("attention_conv", "mlp_conv"):
        yield plain(f"{at}.{conv}.base_kernel", (2, taps, hidden), rank.dtype)
        yield plain(f"{at}.{conv}.kernel_projection.weight", (2 * taps * (hidden // group), hidden), rank.dtype)


def _dflash_ends(draft: VllmDraft, rank: Rank, target: Target) -> Iterator[Parameter]:
    hidden, dtype = draft.size("hidden_size"), rank.dtype
    yield Parameter("fc.weight", (hidden, len(draft.captured or ()) * hidden), dtype,
                    (Part("", (hidden, len(draft.captured or ()) * hidden)),), rule="sglang.fc")  # fmt: skip
    for leaf in ("hidden_norm", "norm"):
        yield norm(f"{leaf}.weight", hidden, dtype)
    if draft.kind == "dflash2":
        yield from _selector(draft, hidden, dtype)
    if draft.kind == "dspark":
        yield from _markov(draft, hidden, dtype)
    for name, lender in (("embed_tokens.weight", EMBEDDING), ("lm_head.weight", HEAD)):
        whole = table(name, target.vocabulary, target.hidden, rank, lender)
        yield replace(whole, rule="sglang.shared")


def _selector(draft: VllmDraft, hidden: int, dtype: str) -> Iterator[Parameter]:
    rank = draft.dflash.get("selector_rank")
    if not rank:
        message = "DFlash selector draft requires dflash_config.selector_rank."
        raise stop("create", message, "sglang.selector", key="dflash_config.selector_rank")
    for leaf in ("predecessor_codebook", "successor_codebook"):
        yield plain(f"candidate_selector.{leaf}", (draft.size("vocab_size"), rank), dtype)
    yield plain("candidate_selector.hidden_projection.weight", (rank, hidden), dtype)


def _markov(draft: VllmDraft, hidden: int, dtype: str) -> Iterator[Parameter]:
    kind, rank = str(draft.get("markov_head_type", "vanilla")).lower(), draft.get("markov_rank")
    if not isinstance(rank, int) or rank <= 0:
        raise stop("create", "DSpark requires markov_rank > 0", "sglang.markov", key="markov_rank")
    rows = draft.size("vocab_size")
    for leaf in ("markov_w1", "markov_w2"):
        yield plain(f"markov_head.{leaf}.weight", (rows, rank), dtype)
    more = {"vanilla": (), "gated": (("gate_proj", rank, hidden + rank),),
            "rnn": (("joint_proj", 3 * rank, 2 * rank + hidden),)}.get(kind)  # fmt: skip
    for leaf, height, width in more or ():
        yield plain(f"markov_head.{leaf}.weight", (height, width), dtype)
        yield plain(f"markov_head.{leaf}.bias", (height,), dtype)


def eagle_features(draft: VllmDraft) -> int:
    """How many target layers an EAGLE-3 draft expects (``llama_eagle3.py:172``)."""
    stated = draft.get("num_aux_hidden_states")
    ids = draft.eagle.get("eagle_aux_hidden_state_layer_ids")
    return int(stated) if stated is not None else len(ids) if ids else 3


def own_embedding(draft: VllmDraft) -> bool:
    """Whether an EAGLE-3 draft keeps its own embedding (``models/llama.py:910``)."""
    wide = draft.values.get("target_hidden_size", draft.size("hidden_size"))
    return bool(wide != draft.size("hidden_size"))


def _eagle_ends(draft: VllmDraft, quant: Quantization, rank: Rank) -> Iterator[Parameter]:
    hidden, dtype = draft.size("hidden_size"), rank.dtype
    count, each = eagle_features(draft), draft.get("target_hidden_size", hidden)
    if draft.eagle.get("norm_before_fc", draft.get("norm_before_fc", False)):
        yield norm("model.input_norm.weight", count * each, dtype)
    if draft.get("fc_norm") or draft.get("use_aux_norm", False):
        for index in range(count):
            yield norm(f"model.fc_norm.{index}.weight", each, dtype)
    yield plain("model.fc.weight", (hidden, count * each), dtype)
    if draft.get("bias", False):
        yield plain("model.fc.bias", (hidden,), dtype)
    yield norm("model.norm.weight", hidden, dtype)
    lender = None if own_embedding(draft) else EMBEDDING
    whole = table("model.embed_tokens.weight", draft.size("vocab_size"), hidden, rank, lender)
    yield replace(whole, rule="sglang.embedding")
    if "draft_vocab_size" not in draft.values:
        message = "'LlamaConfig' object has no attribute 'draft_vocab_size'"
        raise stop("create", message, "sglang.entries", key="draft_vocab_size")
    if draft.get("tie_word_embeddings"):
        return
    rows = draft.get("draft_vocab_size")
    lender = HEAD if rows is None else None
    rows = draft.size("vocab_size") if rows is None else rows
    if rows < 1:
        message = f"AssertionError: org_vocab_size={rows}"
        raise stop("load_weights", message, "sglang.least", key="draft_vocab_size")
    grid = quant.ask("lm_head", "ParallelLMHead")
    if grid == "dense":
        yield table("lm_head.weight", rows, hidden, rank, lender)
    else:
        yield from linear(Linear("lm_head", "lm_head", "ParallelLMHead", (("", rows),), hidden), grid, Rank(1, dtype))
