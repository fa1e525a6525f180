"""Does a drafter's config make sense, to itself and to every reader? Does its vocabulary map?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from convertkit.checkpoint import Checkpoint
from convertkit.checks.mask_embedding import mask_embedding_findings
from convertkit.containers.folder import CONFIG
from convertkit.conversion.identify import Identity
from convertkit.drafter import DrafterSpec
from convertkit.engines.agreement import Statement, reader_finding, reader_findings
from convertkit.errors import Finding, finding
from convertkit.layouts.reading import stated_spec, unstated
from convertkit.layouts.rules import without_model

if TYPE_CHECKING:
    from convertkit.containers.reader import Reader


def drafter_findings(checkpoint: Checkpoint, identity: Identity, reader: Reader | None = None) -> Iterator[Finding]:
    """Findings about a drafter's meaning; nothing for other models, or without a config.

    Codes: E_CONFIG (malformed or contradictory), W_READER_DIFFERS, E_VOCABULARY, E_MASK_EMBEDDING, and with ``reader``
    E_VOCABULARY_MAP and W_VOCABULARY_MAP.
    """
    stated = stated_spec(identity.layout, checkpoint.config, checkpoint.tensors) if checkpoint.config else None
    if stated is None:
        return
    spec, faults = stated
    yield from faults
    if not faults and spec.algorithm != "mtp":
        yield from unstated(spec)
    yield from reader_findings(Statement(identity.layout, checkpoint.config, checkpoint.tensors), spec)
    yield from _counts(spec)
    yield from _lacking(spec)
    yield from mask_embedding_findings(checkpoint, spec)
    if reader is not None:
        yield from _map_findings(checkpoint, spec, reader)


def _counts(spec: DrafterSpec) -> Iterator[Finding]:
    if spec.mask_token is not None and spec.vocabulary is not None and spec.mask_token >= spec.vocabulary:
        message = f"the mask token {spec.mask_token} is beyond the vocabulary of {spec.vocabulary}"
        yield finding("E_CONFIG", "error", message, file=CONFIG, key="mask_token_id")
    depth = spec.target_layers
    outside = [tap for tap in spec.taps or () if depth is not None and not -1 <= tap < depth]
    if outside:
        message = f"tapped layers {outside} are outside of the target's {depth}"
        yield finding("E_CONFIG", "error", message, file=CONFIG, key="target_layer_ids")
    block = spec.block_size
    if spec.draft_tokens is None or block is None:
        return
    trained = block - (0 if spec.sample_from_anchor else 1)
    if spec.algorithm == "dflash2" and spec.draft_tokens != trained:
        message = f"{spec.draft_tokens} tokens per step shift the convolutions, which were trained for {trained}"
        yield reader_finding("draft_tokens", message, spec.draft_tokens)
    elif spec.draft_tokens > trained:
        message = f"{spec.draft_tokens} tokens per step are more than the {trained} of the trained block"
        yield reader_finding("draft_tokens", message, spec.draft_tokens)


def _lacking(spec: DrafterSpec) -> Iterator[Finding]:
    """What no reader can do without: the mask token of drafters that fill a block of it, and the map of a reduced
    vocabulary, without which draft ids are taken for the target's first ones."""
    if spec.mask_token is None and spec.algorithm in ("dflash", "dflash2", "dspark", "peagle"):
        message = "the config does not state it: vLLM stops at start, SGLang takes the tokenizer's or adds one to it"
        yield reader_finding("mask_token", message)
    whole, draft = spec.vocabulary, spec.draft_vocabulary
    if whole is not None and draft is not None and draft < whole and spec.vocabulary_map is None:
        message = f"no d2t is stored: the {draft:,} draft tokens are taken for the first {draft:,} of the {whole:,}"
        fix = "fetch the map that the drafter was trained with"
        yield finding("E_VOCABULARY", "error", message, file=CONFIG, key="draft_vocab_size", fix=fix)


def _map_findings(checkpoint: Checkpoint, spec: DrafterSpec, reader: Reader) -> Iterator[Finding]:
    plain = {without_model(name): name for name in checkpoint.tensors}
    if "d2t" not in plain:
        return
    from convertkit.conversion.vocabulary import judge_map, mask_of

    mask = mask_of(reader, checkpoint.tensors.get(plain.get("t2d", "")))
    judged = judge_map(reader.array(plain["d2t"]), mask, spec.draft_vocabulary, spec.vocabulary)
    yield from judged.findings
    if judged.form == "absolute":
        message = "d2t holds absolute ids; every reader takes it for offsets and proposes wrong tokens"
        fix = "convert the drafter, or repair --d2t offsets"
        yield finding("E_VOCABULARY_MAP", "error", message, tensor=plain["d2t"], fix=fix)
