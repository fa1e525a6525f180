"""The target model that a drafter drafts for: what its config says, and the tensors a drafter shares with it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from convertkit.checkpoint import Checkpoint, TensorRef
from convertkit.containers.folder import CONFIG
from convertkit.containers.reader import Reader
from convertkit.conversion.tiles import byte_chunks
from convertkit.drafter import DrafterSpec
from convertkit.errors import Finding, finding

TEXT_SECTIONS = ("text_config", "llm_config", "language_config")
"""Where multimodal configs keep the language model's fields (transformers 5: ``PretrainedConfig.get_text_config``)."""

SHARED: dict[str, tuple[str, ...]] = {
    "embed_tokens.weight": (
        "model.embed_tokens.weight",
        "model.language_model.embed_tokens.weight",
        "language_model.model.embed_tokens.weight",
        "embed_tokens.weight",
    ),
    "lm_head.weight": ("lm_head.weight", "language_model.lm_head.weight", "model.lm_head.weight"),
}
"""Tensors of a drafter that are the target's, and the names under which targets keep them."""


@dataclass(frozen=True)
class Target:
    """``layers``, ``hidden`` and ``vocabulary`` are those of the language model; None if its config does not say.
    ``name`` is the hub name that the config states; ``weights`` None if the folder holds none."""

    layers: int | None = None
    hidden: int | None = None
    vocabulary: int | None = None
    dtype: str | None = None
    architectures: tuple[str, ...] = ()
    name: str | None = None
    tied: bool = False
    weights: Checkpoint | None = None

    def lends(self, name: str) -> TensorRef | None:
        """The target's tensor that a drafter calls ``name``; a tied head is the embedding."""
        tensors = {} if self.weights is None else self.weights.tensors
        return next((tensors[other] for other in self.names_of(name) if other in tensors), None)

    def names_of(self, name: str) -> tuple[str, ...]:
        """Names under which the target may keep what a drafter calls ``name``."""
        tied = SHARED["embed_tokens.weight"] if name == "lm_head.weight" and self.tied else ()
        return (*SHARED[name], *tied)


def equals_lent(source: Reader, ref: TensorRef, target: Target, name: str) -> bool | None:
    """Whether a drafter's tensor is the target's, bit for bit; None if the target's is not there to compare."""
    lent = target.lends(name)
    if lent is None or target.weights is None:
        return None
    if (lent.spec.dtype, lent.spec.shape) != (ref.spec.dtype, ref.spec.shape):
        return False
    with Reader(target.weights) as lender:
        for offset, length in byte_chunks(ref.size_bytes):
            mine, theirs = memoryview(bytearray(length)), memoryview(bytearray(length))
            source.read_into(ref, offset, mine)
            lender.read_into(lent, offset, theirs)
            if mine != theirs:
                return False
    return True


def eagle_taps(target_layers: int) -> tuple[int, ...]:
    """Layers that engines tap for an EAGLE-3 that names none: inputs 2, N/2 and N-3 (vLLM 0.33 ``interfaces.py``,
    SGLang 0.5.23), counted here by the layer whose output they are."""
    return (1, target_layers // 2 - 1, target_layers - 4)


def target_findings(spec: DrafterSpec, target: Target, dtype: str | None = None) -> Iterator[Finding]:
    """Whether drafter and target fit: widths, tapped layers, vocabulary, mask token, and the ``dtype`` stated."""
    width = spec.target_hidden or spec.hidden
    if target.hidden is not None and width is not None and width != target.hidden:
        yield _misfit(f"the drafter reads features {width} wide, the target's are {target.hidden}", "hidden_size")
    depth = target.layers
    if depth is not None:
        if spec.target_layers not in (None, depth):
            yield _misfit(f"the drafter was made for {spec.target_layers} layers, the target has {depth}", "taps")
        outside = [tap for tap in spec.taps or () if not -1 <= tap < depth]
        if outside:
            yield _misfit(f"tapped layers {outside} are outside of the target's {depth}", "taps")
    rows = target.vocabulary
    if rows is not None and spec.mask_token is not None and spec.mask_token >= rows:
        yield _misfit(f"the mask token {spec.mask_token} is beyond the target's {rows} embeddings", "mask_token_id")
    if rows is not None and spec.vocabulary is not None and spec.vocabulary != rows:
        message = f"the drafter counts {spec.vocabulary} tokens, the target {rows}"
        yield finding("W_TARGET_MISMATCH", "warning", message, file=CONFIG, key="vocab_size")

    if dtype is not None and target.dtype is not None and dtype != target.dtype:
        message = f"the drafter's config states {dtype}, the target's {target.dtype}"
        yield finding("W_TARGET_MISMATCH", "warning", message, file=CONFIG, key="dtype")


def _misfit(message: str, key: str) -> Finding:
    fix = "check that --target-model is the model that the drafter was trained for"
    return finding("E_TARGET_MISMATCH", "error", message, file=CONFIG, key=key, fix=fix)
