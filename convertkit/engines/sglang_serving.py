"""What goes wrong in SGLang 0.5.23 when a drafter that loads is served with a target, and with which settings it is."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import pairwise

from convertkit.engines.loading import Book
from convertkit.engines.model import Note, Refused, Setting, Wrong
from convertkit.engines.sglang_config import nested, taps_of
from convertkit.engines.sglang_params import eagle_features
from convertkit.engines.vllm_draft import VllmDraft
from convertkit.engines.vllm_params import Target

DEFAULT_BLOCK = 16
DEFAULT_GAMMA = 7


def mask_refusals(draft: VllmDraft, target: Target) -> Iterator[Refused]:
    """The mask token as the worker checks it, after loading."""
    if draft.kind.startswith("eagle3"):
        return
    found = nested(draft, "mask_token_id")
    if found is None and draft.kind == "dspark":
        message = "DSpark requires mask_token_id to be set in the draft model config."
        yield Refused("worker", message, "sglang.mask-token", key="mask_token_id")
    elif isinstance(found, int) and found >= target.vocabulary:
        message = f"mask_token_id={found} is outside the target vocab size {target.vocabulary}"
        yield Refused("worker", message, "sglang.mask-range", key="mask_token_id")


def serving_wrongs(draft: VllmDraft, target: Target, names: Collection[str]) -> Iterator[Wrong]:
    """Faults that show at the first step, or never."""
    eagle = draft.kind.startswith("eagle3")
    rows = draft.get("draft_vocab_size")
    if isinstance(rows, int) and rows != target.vocabulary:
        if not eagle:
            message = f"the draft vocabulary of {rows} is not supported: the target's head is used for all drafts"
            yield Wrong("E_VOCABULARY", message, "sglang.shared", key="draft_vocab_size")
        elif not any("d2t" in name for name in names):
            message = f"no d2t is stored: the {rows} draft tokens are taken for the target's first {rows}"
            yield Wrong("E_VOCABULARY", message, "sglang.vocabulary-map", key="draft_vocab_size")
    found = None if eagle else nested(draft, "mask_token_id")
    if not eagle and draft.kind != "dspark" and found is None:
        message = "the config states no mask token: the tokenizer's is taken, or <|MASK|> is added to it"
        yield Wrong("E_MASK_TOKEN", message, "sglang.mask-token", key="mask_token_id")
    if target.known:
        yield from _pair(draft, target)
    yield from _taps(draft)


def _pair(draft: VllmDraft, target: Target) -> Iterator[Wrong]:
    wide = draft.values.get("target_hidden_size", draft.get("hidden_size"))
    wide = draft.get("hidden_size") if not draft.kind.startswith("eagle3") else wide
    if wide != target.hidden:
        message = f"the drafter expects features {wide} wide; the target's hidden size is {target.hidden}"
        yield Wrong("E_PAIR", f"{message}, so the first step fails", "sglang.fc", key="hidden_size")


def _taps(draft: VllmDraft) -> Iterator[Wrong]:
    """The target collects features in the order of its layers, each once."""
    if not draft.kind.startswith("eagle3"):
        if any(b <= a for a, b in pairwise(taps_of(draft) or ())):
            message = "the tapped layers are not in rising order; SGLang collects them in the target's order, each once"
            yield Wrong("E_TAPS", message, "sglang.tap-order", key="target_layer_ids")
        return
    stated = draft.get("eagle_aux_hidden_state_layer_ids")
    unread = stated is not None and "eagle_aux_hidden_state_layer_ids" not in draft.eagle
    if unread and list(draft.captured or ()) != stated:
        message = f"target layers {stated} at the top of the config are not read; SGLang taps "
        message += ", ".join(str(layer) for layer in draft.captured or ())
        yield Wrong("E_TAPS", message, "sglang.eagle3-taps", key="eagle_aux_hidden_state_layer_ids")
    if len(draft.captured or ()) != eagle_features(draft):
        message = f"{len(draft.captured or ())} target layers are captured, the class expects {eagle_features(draft)}"
        yield Wrong("E_TAPS", message, "sglang.eagle3-taps")


def serving_notes(draft: VllmDraft, book: Book) -> Iterator[Note]:
    message = "beside a target started with --quantization, give --speculative-draft-model-quantization unquant"
    yield Note(message, "sglang.inherits")
    if not draft.kind.startswith("eagle3") and block_of(draft) is None:
        size = DEFAULT_GAMMA if draft.kind == "dspark" else DEFAULT_BLOCK
        yield Note(f"the config states no block size; SGLang takes {size}", "sglang.block", warning=True)
    off = [name for name, fate in book.fates.items() if fate.skipped == "the confidence head is off"]
    if off:
        message = "the confidence head is loaded only where SGLANG_RAGGED_VERIFY_MODE is cap-accept or compact"
        yield Note(message, "sglang.confidence", off[0])


def block_of(draft: VllmDraft) -> int | None:
    """The block size as SGLang finds it."""
    found = nested(draft, "block_size")
    return found if isinstance(found, int) else None


def serving_settings(draft: VllmDraft) -> Iterator[Setting]:
    algorithm = {"dflash": "DFLASH", "dflash2": "DFLASH", "dspark": "DSPARK"}.get(draft.kind, "EAGLE3")
    yield Setting("--speculative-algorithm", algorithm, f"the architecture is {draft.architecture}")
    block = block_of(draft)
    if block and algorithm == "DFLASH":
        yield Setting("--speculative-num-draft-tokens", block, f"the block of {block}, anchor included")
    elif block and algorithm == "DSPARK":
        yield Setting(
            "--speculative-num-draft-tokens", block + 1, f"block {block} and the anchor; other values are refused"
        )
