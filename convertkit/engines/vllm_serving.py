"""What goes wrong in vLLM 0.33 when a drafter that loads is served with a target, and with which settings it is.

Nothing here raises: these faults show at the first step, or never.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from convertkit.engines.model import Setting, Wrong
from convertkit.engines.vllm_draft import VllmDraft
from convertkit.engines.vllm_params import Target, eagle_features


def serving_wrongs(draft: VllmDraft, target: Target, config: Mapping[str, Any]) -> Iterator[Wrong]:
    """Everything that shows only at the first step, or never."""
    if target.known:
        yield from _taps(draft, target)
        yield from _widths(draft, target)
    yield from _mask_token(draft, target)
    yield from _tokens(draft, config)
    yield from _scales(draft, config)
    if draft.get("rms_norm_eps") is None:
        message = "rms_norm_eps is null: the engine takes it as it is, and the first step fails"
        yield Wrong("E_READER_DIFFERS", message, "vllm.config-keys", key="rms_norm_eps")


def _taps(draft: VllmDraft, target: Target) -> Iterator[Wrong]:
    """Captured layers are a set in rising order, 0 (the embedding) to the number of layers; a missing one makes the
    features too narrow at the first step."""
    captured = draft.captured or ()
    beyond = [layer for layer in captured if not 0 <= layer <= target.layers]
    if beyond:
        message = f"target layers {', '.join(str(layer - 1) for layer in beyond)} are read; the target has layers 0 to "
        yield Wrong("E_TAPS", f"{message}{target.layers - 1}, so the first step fails", "vllm.taps")
    elif any(b <= a for a, b in pairwise(captured)):
        message = "the tapped layers are not in rising order; vLLM sorts them and drops repeats"
        yield Wrong("E_TAPS", message, "vllm.taps")
    if draft.kind.startswith("eagle3") and captured and len(captured) != eagle_features(draft):
        message = f"{len(captured)} target layers are captured, the class expects {eagle_features(draft)}"
        yield Wrong("E_TAPS", message, "vllm.eagle3-taps")


def _widths(draft: VllmDraft, target: Target) -> Iterator[Wrong]:
    """Features are as wide as the target, borrowed embeddings too."""
    hidden = draft.get("hidden_size")
    wide = draft.get("target_hidden_size") or hidden
    if wide != target.hidden:
        message = f"the drafter expects features {wide} wide; the target's hidden size is {target.hidden}"
        yield Wrong("E_PAIR", f"{message}, so the first step fails", "vllm.features", key="hidden_size")


def _mask_token(draft: VllmDraft, target: Target) -> Iterator[Wrong]:
    if not draft.parallel:
        return
    found = mask_token(draft)
    if found is None:
        message = "the config states no mask token, which parallel drafting needs: the engine stops at start"
        yield Wrong("E_MASK_TOKEN", message, "vllm.mask-token", key="mask_token_id")
    elif not 0 <= found < target.vocabulary:
        message = f"the mask token {found} is not among the {target.vocabulary} rows of the target's embedding"
        yield Wrong("E_MASK_TOKEN", message, "vllm.mask-token", key="mask_token_id")


def mask_token(draft: VllmDraft) -> int | None:
    """The token of masked slots, from the first place that states it."""
    places = [draft.dflash.get("mask_token_id")]
    places += [draft.get(key) for key in ("mask_token_id", "dspark_noise_token_id", "pard_token", "ptd_token_id")]
    return next((place for place in places if isinstance(place, int)), None)


def block_size(config: Mapping[str, Any]) -> int | None:
    """The trained block, wherever the config states it."""
    inner = config.get("dflash_config")
    found = config.get("block_size")
    if found is None and isinstance(inner, Mapping):
        found = inner.get("block_size")
    return found if isinstance(found, int) and found > 1 else None


def _tokens(draft: VllmDraft, config: Mapping[str, Any]) -> Iterator[Wrong]:
    """The number of draft tokens that a speculators config proposes, against the trained block."""
    block, tokens = block_size(config), draft.tokens
    if draft.method == "dflash" and draft.dflash.get("sample_from_anchor"):
        message = "sample_from_anchor=True is not supported for DFlash: the engine stops at start"
        yield Wrong("E_DRAFT_TOKENS", message, "vllm.anchor", key="sample_from_anchor")
    if not draft.speculators or block is None or tokens is None or draft.method == "eagle3":
        return
    most = block if draft.kind == "dspark" and draft.get("sample_from_anchor") else block - 1
    if draft.kind == "dflash2" and tokens != most:
        message = f"{tokens} draft tokens are proposed; the convolutions were trained for {most} (block {block})"
        yield Wrong("E_DRAFT_TOKENS", message, "vllm.conv-period", key="speculators_config.proposal_methods")
    elif tokens > most:
        message = f"{tokens} draft tokens are proposed; the block of {block} holds {most}"
        yield Wrong("E_DRAFT_TOKENS", message, "vllm.tokens", key="speculators_config.proposal_methods")


SCALES = {"input_embedding_scale": 1.0, "output_multiplier": 1.0, "final_logit_softcapping": 0.0}
"""Factors of DFlash 2 and their neutral values; a speculators config has no way to bring them to vLLM."""


def _scales(draft: VllmDraft, config: Mapping[str, Any]) -> Iterator[Wrong]:
    for key, neutral in SCALES.items():
        stated = config.get(key)
        if draft.speculators and draft.kind == "dflash2" and stated is not None and (stated or 0.0) != neutral:
            message = f"{key} is {stated} and is not carried into the draft: the engine takes {neutral:g}"
            yield Wrong("E_READER_DIFFERS", message, "vllm.scales", key=key)


def vllm_settings(draft: VllmDraft, config: Mapping[str, Any]) -> tuple[Setting, ...]:
    """What ``--speculative-config`` must say for this drafter, each part with its reason. Nothing is guessed: what
    neither checkpoint nor engine fixes is a choice and is left out, or given as a limit."""
    block = block_size(config)
    made = [Setting("method", draft.method, f"the architecture is {draft.architecture}")]
    if draft.kind == "dflash2" and block:
        why = f"block {block} is one anchor and {block - 1} drafts, and the convolutions repeat every 1 + tokens"
        made.append(Setting("num_speculative_tokens", block - 1, why))
    elif draft.kind == "dflash" and block:
        why = f"block {block} is one anchor and {block - 1} drafts; fewer may be faster"
        made.append(Setting("num_speculative_tokens", block - 1, why, "limit"))
    elif draft.kind == "dspark" and block:
        anchor = draft.get("sample_from_anchor", not draft.speculators)
        tokens, why = (
            (block, "the anchor's slot drafts too") if anchor else (block - 1, "the anchor's slot does not draft")
        )
        made.append(Setting("num_speculative_tokens", tokens, f"block {block}, and {why}", "limit"))
    elif draft.method == "eagle3" and draft.speculators and draft.tokens:
        made.append(Setting("num_speculative_tokens", draft.tokens, "the config proposes it", "choice"))
    if draft.parallel and draft.method == "eagle3":
        made.append(Setting("parallel_drafting", True, "the drafter is P-EAGLE"))
    runner = _runner(draft)
    return tuple(made) if runner is None else (*made, runner)


def _runner(draft: VllmDraft) -> Setting | None:
    types = draft.get("layer_types")
    mixed = isinstance(types, list) and len(set(types)) > 1
    if draft.kind in ("dflash2", "dspark") or (draft.kind == "dflash" and mixed):
        what = (
            "layers of both kinds"
            if draft.kind == "dflash"
            else {"dflash2": "DFlash 2", "dspark": "DSpark"}[draft.kind]
        )
        return Setting("VLLM_USE_V2_MODEL_RUNNER", "1", f"{what} runs in the V2 model runner only", "environment")
    if draft.parallel and draft.method == "eagle3":
        return Setting("VLLM_USE_V2_MODEL_RUNNER", "0", "P-EAGLE runs in the V1 model runner only", "environment")
    return None
