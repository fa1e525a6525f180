"""What SGLang 0.5.23 does with a drafter: read from its source, not run.

SGLang drops names that it does not know without a word and leaves parameters that nothing fills uninitialised.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from convertkit.checkpoint import TensorSpec
from convertkit.engines.loading import Book
from convertkit.engines.model import Filled, Load, Note, Parameter, Refused, Setting, Stop, Wrong, stop
from convertkit.engines.rules import Rule
from convertkit.engines.rules import Source as Place
from convertkit.engines.source import Source
from convertkit.engines.vllm_config import FLAT_DEFAULTS, Unknown, VllmDraft, with_defaults
from convertkit.engines.vllm_params import Rank, Target, drafter_parameters, plain
from convertkit.engines.vllm_quant import NONE
from convertkit.engines.vllm_serving import block_size

ENTRIES: Mapping[str, str] = {
    "DFlashDraftModel": "dflash",
    "DFlash2DraftModel": "dflash2",
    "Qwen3DSparkModel": "dspark",
    "DSparkDraftModel": "dspark",
    "LlamaForCausalLMEagle3": "eagle3-llama",
}
"""Architectures that lead to a class described here (``models/dflash.py:1317``, ``dspark.py:995``)."""

STACKED = (("q_proj", "qkv_proj", "q"), ("k_proj", "qkv_proj", "k"), ("v_proj", "qkv_proj", "v"),
           ("gate_proj", "gate_up_proj", "gate"), ("up_proj", "gate_up_proj", "up"))  # fmt: skip
LEGACY = (("midlayer", "layers.0"), ("aux_norm_low", "fc_norm.0"), ("aux_norm_mid", "fc_norm.1"),
          ("aux_norm_high", "fc_norm.2"))  # fmt: skip


def _rule(name: str, text: str, file: str, line: int) -> Rule:
    return Rule(f"sglang.{name}", text, Place("sglang", "0.5.23", f"srt/{file}", line))


RULES: Mapping[str, Rule] = {
    rule.name: rule
    for rule in (
        _rule("speculators", "no config of speculators is read", "speculative/dflash_utils.py", 588),
        _rule("entries", "the architecture names the class", "models/dflash.py", 1317),
        _rule("silent", "missing names stay uninitialised without a word", "models/dflash.py", 942),
        _rule("dropped", "unknown names are dropped without a word", "models/dflash.py", 942),
        _rule("fc", "the width of fc.weight must fit the number of taps", "models/dflash.py", 968),
        _rule("window", "sliding layers need sliding_window", "speculative/dflash_utils.py", 411),
        _rule("taps", "taps must lie inside the target", "speculative/dflash_utils.py", 693),
        _rule("shared", "embedding and head are always the target's", "models/dspark.py", 510),
        _rule("markov", "a Markov head is required", "models/dspark.py", 523),
        _rule("markov-names", "unknown Markov tensors are refused", "models/dspark.py", 658),
        _rule("confidence", "the confidence head is on unless the config says no, and must be whole",
              "models/dspark.py", 687),
        _rule("quantized", "layers have no names for a quantization config, fc, convolutions and selector are dense",
              "models/dflash.py", 685),
        _rule("inherits", "the draft's quantization defaults to the target's --quantization",
              "speculative/serving_hook.py", 675),
        _rule("mask-token", "without a mask token the tokenizer's is taken, or one is added",
              "speculative/dflash_worker_v2.py", 1399),
        _rule("block", "the block is 16 if the config does not say", "speculative/dflash_utils.py", 600),
    )
}  # fmt: skip
"""Where each rule was read."""


def load_drafter(source: Source, target: Target, ranks: int = 1, dtype: str = "BF16") -> Load:
    """Load a drafter in the mind, as SGLang's source reads."""
    try:
        return _load(source, target, Rank(ranks, dtype))
    except Unknown as why:
        return Load(unknown=why.refused.message)
    except Stop as stopped:
        return Load(refusals=(stopped.refused,))


def read_draft(config: Mapping[str, Any]) -> VllmDraft:
    """A flat config with the defaults of its transformers class. Raises Stop."""
    if config.get("speculators_config") is not None or config.get("speculators_model_type") is not None:
        message = "SGLang reads no speculators config: it finds no architecture of a drafter that it knows"
        raise Stop(Refused("config", message, "sglang.speculators", key="speculators_config", foreign=True))
    defaults = FLAT_DEFAULTS.get(str(config.get("model_type")))
    names = config.get("architectures")
    name = str(names[0]) if isinstance(names, list) and names else "none"
    if name not in ENTRIES or defaults is None:
        raise Unknown(f"the architecture {name} is not one that convertkit's tables of SGLang describe")
    values = with_defaults(config, defaults)
    inner = config.get("dflash_config")
    inner = inner if isinstance(inner, Mapping) else {}
    taps = inner.get("target_layer_ids") or config.get("target_layer_ids")
    captured = tuple(item + 1 for item in taps) if isinstance(taps, list) else None
    return VllmDraft(ENTRIES[name], "", name, values, False, None, True, captured)


def _load(source: Source, target: Target, rank: Rank) -> Load:
    draft = read_draft(source.config)
    eagle = draft.kind.startswith("eagle3")
    _checks(draft, target)
    parameters = {item.name: item for item in _parameters(draft, target, rank)}
    book = Book(parameters)
    for spec in source.tensors:
        _one(spec, draft, book)
    if draft.kind == "dspark":
        _confidence(parameters, book)
    borrow = {} if eagle else {name: item.lender for name, item in parameters.items() if item.lender}
    if eagle and draft.get("draft_vocab_size") is None:
        borrow["lm_head.weight"] = "the target's head"
    if eagle:
        borrow["model.embed_tokens.weight"] = "the target's embedding"
    outcomes = book.outcomes({name: lender for name, lender in borrow.items() if lender})
    packed = [spec.name for spec in source.tensors if spec.dtype == "U8"]
    whole = any(".self_attn." in name for name in packed) and not _mixed(source.config)
    if packed and not whole:
        return Load(
            (Refused("load_weights", PACKED, "sglang.quantized", packed[0]),), settings=tuple(_settings(draft, source))
        )
    wrongs = [*book.wrongs, *_unfilled(outcomes), *_lost(book, source.tensors), *_reduced(draft, target)]
    settings = tuple(_settings(draft, source))
    if packed:
        return Load(unknown="whether a drafter fits of which all layers are packed was not run", settings=settings)
    return Load(
        tuple(book.refusals),
        tuple(wrongs),
        tuple(_notes(source)),
        book.fates,
        outcomes,
        settings,
        {"class": draft.kind},
    )


PACKED = (
    "layers of a draft have no names in SGLang, so a quantization config cannot pack some of them: "
    "serve the drafter expanded to BF16"
)


def _mixed(config: Mapping[str, Any]) -> bool:
    block = config.get("quantization_config")
    return isinstance(block, Mapping) and block.get("quant_algo") == "MIXED_PRECISION"


def _checks(draft: VllmDraft, target: Target) -> None:
    types = draft.get("layer_types")
    if isinstance(types, list) and "sliding_attention" in types and draft.get("sliding_window") is None:
        message = "DFLASH sliding_attention layers require config.sliding_window."
        raise stop("config", message, "sglang.window", key="sliding_window")
    if draft.kind == "dspark" and not draft.get("markov_rank"):
        raise stop("create", "DSpark draft requires markov_rank > 0", "sglang.markov", key="markov_rank")
    depth = target.layers if target.known else None
    outside = [layer - 1 for layer in draft.captured or () if depth is not None and not 0 <= layer - 1 < depth]
    if outside and not draft.kind.startswith("eagle3"):
        message = f"target_layer_ids {outside} are outside of the target's {depth} layers"
        raise stop("config", message, "sglang.taps", key="target_layer_ids")


def _parameters(draft: VllmDraft, target: Target, rank: Rank) -> Iterator[Parameter]:
    """As vLLM's, without the places for a map and a mask embedding; the names may be without ``model.``. The
    convolutions are built only if their keys are there, the selector is zero until loaded."""
    for item in drafter_parameters(draft, NONE, rank, target):
        if item.name not in ("model.mask_embedding", "draft_id_to_target_id"):
            lender = "the target's head" if item.name == "lm_head.weight" and item.lender is None else item.lender
            rule = "sglang.silent"
            yield Parameter(item.name, item.shape, item.dtype, item.parts, item.fresh, lender, item.unread, rule)
    if (
        draft.kind == "dspark"
        and not draft.get("enable_confidence_head")
        and "enable_confidence_head" not in draft.values
    ):
        width = draft.size("hidden_size") + (
            draft.size("markov_rank") if draft.get("confidence_head_with_markov", True) else 0
        )
        for leaf, shape in (("weight", (1, width)), ("bias", (1,))):
            yield plain(f"model.confidence_head.proj.{leaf}", shape, "F32")


def _one(spec: TensorSpec, draft: VllmDraft, book: Book) -> None:
    eagle = draft.kind.startswith("eagle3")
    name = spec.name.removeprefix("model.")
    if eagle:
        for old, new in LEGACY:
            name = name.replace(old, new)
        if "d2t" in name or "t2d" in name:
            book.skip(spec.name, "training only" if "t2d" in name else "")
            return
    elif name.startswith(("lm_head.", "embed_tokens.", "rotary_emb.")):
        book.skip(spec.name, "the target's is used")
        return
    engine, shard = (name if name.startswith("lm_head.") else f"model.{name}"), ""
    for old, new, share in STACKED:
        if f".{old}." in engine and f"{engine.replace(old, new)}" in book.parameters:
            engine, shard = engine.replace(old, new), share
            break
    if engine in book.parameters:
        book.load(spec, engine, shard, "sglang.fc" if engine == "model.fc.weight" else "sglang.silent")
    elif name.startswith(("markov_head.", "confidence_head.")) and draft.kind == "dspark":
        if name.startswith("markov_head."):
            book.refuse(
                "load_weights", f"DSpark unexpected markov weight '{spec.name}'", "sglang.markov-names", spec.name
            )
        else:
            book.skip(spec.name, "the confidence head is off")
    else:
        book.skip(spec.name, "unknown name")


def _confidence(parameters: Mapping[str, Parameter], book: Book) -> None:
    missing = [name for name in parameters if "confidence_head" in name and name not in book.filled]
    if missing:
        message = f"DSpark confidence head is enabled but the checkpoint is missing {missing}"
        book.refuse("load_weights", message, "sglang.confidence")


def _unfilled(outcomes: Sequence[Filled]) -> Iterator[Wrong]:
    for item in outcomes:
        if item.outcome in ("unfilled", "partly filled"):
            part = f" in its share {', '.join(item.missing)}" if item.outcome == "partly filled" else ""
            message = f"{item.parameter.name} is filled by no stored tensor{part}, without a word"
            yield Wrong("E_LOAD_UNFILLED", message, "sglang.silent", item.parameter.name)


def _lost(book: Book, tensors: Sequence[TensorSpec]) -> Iterator[Wrong]:
    for spec in tensors:
        why = book.fates[spec.name].skipped if spec.name in book.fates else ""
        if why == "unknown name" and not spec.name.endswith((".inv_freq", "t2d", "d2t")):
            yield Wrong(
                "E_LOAD_DROPPED", "the stored tensor is dropped: SGLang has no such name", "sglang.dropped", spec.name
            )


def _reduced(draft: VllmDraft, target: Target) -> Iterator[Wrong]:
    rows = draft.get("draft_vocab_size")
    if isinstance(rows, int) and rows != target.vocabulary and not draft.kind.startswith("eagle3"):
        message = f"the draft vocabulary of {rows} is not supported: the target's head is used for all drafts"
        yield Wrong("E_VOCABULARY", message, "sglang.shared", key="draft_vocab_size")


def _notes(source: Source) -> Iterator[Note]:
    message = "beside a target started with --quantization, give --speculative-draft-model-quantization unquant"
    yield Note(message, "sglang.inherits")
    if block_size(source.config) is None:
        yield Note("the config states no block size; SGLang takes 16", "sglang.block", warning=True)


def _settings(draft: VllmDraft, source: Source) -> Iterator[Setting]:
    algorithm = {"dflash": "DFLASH", "dflash2": "DFLASH", "dspark": "DSPARK"}.get(draft.kind, "EAGLE3")
    yield Setting("--speculative-algorithm", algorithm, f"the architecture is {draft.architecture}")
    block = block_size(source.config)
    if block and algorithm == "DFLASH":
        yield Setting("--speculative-num-draft-tokens", block, f"the block of {block}, anchor included")
    elif block and algorithm == "DSPARK":
        yield Setting(
            "--speculative-num-draft-tokens", block + 1, f"block {block} and the anchor; other values are refused"
        )
