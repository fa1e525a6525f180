"""A drafter once vLLM 0.33 has loaded it: checks after loading, what stays unfilled, what kernels ask for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from convertkit.engines.loading import Book
from convertkit.engines.model import Filled, Note, Parameter, Refused, Wrong
from convertkit.engines.vllm_draft import VllmDraft
from convertkit.engines.vllm_params import Target, draft_vocabulary
from convertkit.engines.vllm_quant import Quantization


def check_loaded(
    outcomes: tuple[Filled, ...], draft: VllmDraft, book: Book, names: Iterable[str]
) -> tuple[Filled, ...]:
    """Checks after loading: a ModelOpt block scale that is still NaN is refused (``modelopt.py:2072``). A confidence
    head that none of the stored ``names`` names is removed (``qwen3_dspark.py:365``)."""
    if draft.kind == "dspark" and not any("confidence_head" in name and "t2d" not in name for name in names):
        outcomes = tuple(item for item in outcomes if "confidence_head" not in item.parameter.name)
    for item in outcomes:
        if item.parameter.fresh == "refused later" and item.missing and item.outcome != "borrowed":
            message = f"NVFP4 weight_scale for {item.parameter.name.rpartition('.')[0]} was never loaded (still NaN)"
            book.refusals.append(Refused("process_weights_after_loading", message, "vllm.block-scale"))
    return outcomes


def unfilled(outcomes: Iterable[Filled]) -> Iterator[Wrong]:
    for item in outcomes:
        if item.outcome in ("unfilled", "partly filled"):
            what = _fresh_text(item.parameter)
            part = f" in its share {', '.join(item.missing)}" if item.outcome == "partly filled" else ""
            message = f"{item.parameter.name} is filled by no stored tensor{part} and stays {what}"
            yield Wrong("E_LOAD_UNFILLED", message, item.parameter.rule, item.parameter.name)


def _fresh_text(parameter: Parameter) -> str:
    told = {"ones": "all ones", "zeros": "all zeros", "minus infinity": "minus infinity, as if there were none"}
    return told.get(parameter.fresh, "uninitialised memory")


def dropped(book: Book) -> Iterator[Wrong]:
    for name, fate in book.fates.items():
        if fate.skipped == "unexpected bias" or fate.skipped.startswith("overwritten"):
            message = f"the stored tensor is not used: {fate.skipped}"
            yield Wrong("E_LOAD_DROPPED", message, "vllm.bias", name)


def drop_notes(book: Book) -> Iterator[Note]:
    for name, fate in book.fates.items():
        if fate.into is None and fate.skipped not in ("unexpected bias", "refused"):
            harmless = fate.skipped in ("training only", "rotary cache")
            yield Note(f"the stored tensor is not used: {fate.skipped}", "vllm.dropped", name, warning=not harmless)


def kernel_notes(quantization: Quantization, outcomes: Iterable[Filled]) -> Iterator[Note]:
    """What the kernels of packed linears ask for (``kernels/linear/__init__.py:1191``, ``marlin_utils.py:222``)."""
    if quantization.family == "none":
        return
    yield Note("packed linears need an NVIDIA GPU of compute capability 7.5 or newer", "vllm.capability")
    padded = 0
    for item in outcomes:
        if item.parameter.dtype == "U8":
            rows, columns = item.parameter.shape[0], item.parameter.shape[1] * 2
            padded += not ((rows % 64 == 0 and columns % 128 == 0) or (rows % 128 == 0 and columns % 64 == 0))
    if padded:
        yield Note(
            f"{padded} packed linears are padded at every call: no multiple of Marlin's tiles", "vllm.marlin-tiles"
        )


def truncated_head(draft: VllmDraft, target: Target, outcomes: Iterable[Filled]) -> Iterator[Wrong]:
    """A reduced vocabulary that borrows the target's head drafts ids 0 to DV - 1 (``logits_processor.py:198``)."""
    rows = draft_vocabulary(draft)
    borrowed = any(item.outcome == "borrowed" and item.parameter.name == "lm_head.weight" for item in outcomes)
    if borrowed and draft.kind != "dspark" and rows < target.vocabulary:
        message = f"the draft vocabulary is {rows} of {target.vocabulary}, and no head is stored: the first {rows} "
        yield Wrong("E_VOCABULARY", message + "rows of the target's head are used", "vllm.head-truncated")
