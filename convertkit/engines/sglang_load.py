"""What SGLang 0.5.23 does with a drafter, on names and shapes alone.

Run: every case of ``tests/engines/cases.py`` and ``sglang_cases.py``. SGLang drops names that it does not know without
a word and leaves parameters that nothing fills uninitialised.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from convertkit.checkpoint import TensorSpec
from convertkit.engines.kinds import Settled
from convertkit.engines.loading import Book
from convertkit.engines.model import Fate, Filled, Load, Parameter, Refused, Stop, Unknown, Wrong
from convertkit.engines.sglang_config import kind_of, read_draft
from convertkit.engines.sglang_kinds import settle_kinds
from convertkit.engines.sglang_params import drafter_parameters
from convertkit.engines.sglang_quant import read_quantization
from convertkit.engines.sglang_rules import RULES
from convertkit.engines.sglang_serving import mask_refusals, serving_notes, serving_settings, serving_wrongs
from convertkit.engines.source import Source
from convertkit.engines.vllm_draft import VllmDraft
from convertkit.engines.vllm_linear import Rank
from convertkit.engines.vllm_params import Target

__all__ = ["RULES", "load_drafter"]

STACKED = (("q_proj", "qkv_proj", "q"), ("k_proj", "qkv_proj", "k"), ("v_proj", "qkv_proj", "v"),
           ("gate_proj", "gate_up_proj", "gate"), ("up_proj", "gate_up_proj", "up"))  # fmt: skip
LEGACY = (("midlayer", "layers.0"), ("aux_norm_low", "fc_norm.0"), ("aux_norm_mid", "fc_norm.1"),
          ("aux_norm_high", "fc_norm.2"))  # fmt: skip
ALIASES: Mapping[str, str] = {
    "encoder.fc.weight": "fc.weight", "encoder.output_norm_enc.weight": "hidden_norm.weight",
}  # fmt: skip
DOMINO = ("prefix_gru.", "embed_proj.")
UNREAD = (".inv_freq", "t2d", "d2t", ".k_scale", ".v_scale")
PACKED: Mapping[str, tuple[str, ...]] = {}
"""Fused linears that the class of a drafter names for its quantization config: none does."""


def load_drafter(source: Source, target: Target, ranks: int = 1, dtype: str = "BF16") -> Load:
    """Load a drafter in the mind, as SGLang's loader does."""
    try:
        config = source.config
        settled = settle_kinds(config, kind_of(config)) if config.get("model_type") else Settled(dict(config))
        if settled.apart:
            return Load(wrongs=tuple(settled.wrongs))
        load = _load(replace(source, config=settled.config), target, Rank(ranks, dtype))
        return replace(load, wrongs=(*settled.wrongs, *load.wrongs))
    except Unknown as why:
        return Load(unknown=why.refused.message)
    except Stop as stopped:
        return Load(refusals=(stopped.refused,))


def _load(source: Source, target: Target, rank: Rank) -> Load:
    draft = read_draft(source.config, target)
    settings = tuple(serving_settings(draft))
    try:
        quant = read_quantization(source.config, source.quant_config, PACKED)
        parameters = {item.name: item for item in drafter_parameters(draft, quant, rank, target)}
    except Unknown as why:
        return Load(unknown=why.refused.message, settings=settings)
    except Stop as stopped:
        return Load(refusals=(stopped.refused,), settings=settings)
    book = Book(parameters)
    for spec in source.tensors:
        if draft.kind.startswith("eagle3"):
            _eagle_one(spec, book)
        else:
            _dflash_one(spec, draft, book)
    outcomes = book.outcomes({name: item.lender for name, item in parameters.items() if item.lender})
    wrongs = [
        *book.wrongs,
        *_unfilled(outcomes),
        *_lost(book, source.tensors),
        *serving_wrongs(draft, target, source.specs),
    ]
    refusals = (*book.refusals, *_no_layers(draft), *mask_refusals(draft, target))
    notes = tuple(serving_notes(draft, book))
    facts = {"class": draft.kind, "captured": draft.captured}
    return Load(refusals, tuple(wrongs), notes, book.fates, outcomes, settings, facts)


def _no_layers(draft: VllmDraft) -> Iterator[Refused]:
    """The worker looks at the first layer."""
    if not draft.size("num_hidden_layers"):
        yield Refused("worker", "IndexError: the draft has no layers", "sglang.least", key="num_hidden_layers")


def _dflash_one(spec: TensorSpec, draft: VllmDraft, book: Book) -> None:
    """One stored tensor of the DFlash family (``models/dflash.py:942``, ``dspark.py:626``)."""
    name, bare = spec.name, spec.name.removeprefix("model.")
    if bare.startswith(DOMINO):
        message = "DFLASH checkpoint contains Domino projector weights but projector_type=None."
        book.refuse("load_weights", message, "sglang.dropped", spec.name)
    elif draft.kind == "dspark" and bare.startswith(("lm_head.", "rotary_emb.", "embed_tokens.")):
        book.skip(spec.name, "the target's is used")
    elif draft.kind == "dspark" and name.startswith("confidence_head."):
        book.skip(spec.name, "the confidence head is off")
    elif draft.kind == "dspark" and name.startswith("markov_head.") and name not in book.parameters:
        message = f"DSpark unexpected markov weight '{name}' not found in model parameters"
        book.refuse("load_weights", message, "sglang.markov-names", spec.name)
    else:
        _fill(spec, bare, book)


def _fill(spec: TensorSpec, bare: str, book: Book) -> None:
    for old, new, share in STACKED:
        if f".{old}." in bare and _is_own(bare.replace(old, new), book):
            book.load(spec, bare.replace(old, new), share, "sglang.linear")
            return
    name = bare if _is_own(bare, book) else ALIASES.get(spec.name, bare)
    if _is_own(name, book):
        book.load(spec, name, "", "sglang.fc" if name == "fc.weight" else "sglang.linear")
    elif bare in book.parameters:
        book.skip(spec.name, "the target's is used")
    else:
        book.skip(spec.name, "unknown name")


def _is_own(name: str, book: Book) -> bool:
    """Whether the drafter has such a parameter and the target does not lend it."""
    found = book.parameters.get(name)
    return found is not None and found.lender is None


def _eagle_one(spec: TensorSpec, book: Book) -> None:
    """One stored tensor of an EAGLE-3 draft (``models/llama_eagle3.py:326``)."""
    name = spec.name
    for old, new in LEGACY:
        name = name.replace(old, new)
    if "d2t" in name:
        book.fates[spec.name] = Fate("hot_token_id")
        return
    if "t2d" in name:
        book.skip(spec.name, "training only")
        return
    share = ""
    for old, new, part in STACKED:
        if f".{old}" in name:
            name, share = name.replace(f".{old}", f".{new}"), part
            break
    name = name if name in book.parameters else f"model.{name}"
    if name in book.parameters:
        book.load(spec, name, share, "sglang.linear")
    else:
        book.skip(spec.name, "unknown name")


def _unfilled(outcomes: Sequence[Filled]) -> Iterator[Wrong]:
    for item in outcomes:
        if item.outcome in ("unfilled", "partly filled"):
            part = f" in its share {', '.join(item.missing)}" if item.outcome == "partly filled" else ""
            message = f"{item.parameter.name} is filled by no stored tensor{part}, without a word"
            yield Wrong("E_LOAD_UNFILLED", message, _rule_of(item.parameter), item.parameter.name)


def _rule_of(parameter: Parameter) -> str:
    return parameter.rule if parameter.rule in RULES else "sglang.silent"


def _lost(book: Book, tensors: Sequence[TensorSpec]) -> Iterator[Wrong]:
    """Stored tensors that the model would need if it knew their names."""
    for spec in tensors:
        fate = book.fates.get(spec.name)
        if fate is not None and fate.skipped == "unknown name" and not spec.name.endswith(UNREAD):
            yield Wrong(
                "E_LOAD_DROPPED", "the stored tensor is dropped: SGLang has no such name", "sglang.dropped", spec.name
            )
