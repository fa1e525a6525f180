"""From two checkpoints, and perhaps their target, to drafters that can be run side by side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch

from convertkit.checkpoint import Checkpoint
from convertkit.checks.gate import Weight
from convertkit.checks.mask_embedding import mask_embedding_findings
from convertkit.checks.reference import PlaneTables
from convertkit.containers.folder import MASK_EMBEDDING
from convertkit.conversion.desk import Desk
from convertkit.conversion.target import Target, target_findings
from convertkit.drafter import DrafterSpec
from convertkit.errors import ConvertError, Finding, finding, refusal
from convertkit.forward.holder import Holder, lent_places, places_of
from convertkit.forward.specs import weight_findings

Tensor = torch.Tensor


def holder_of(
    checkpoint: Checkpoint,
    desk: Desk,
    weights: Mapping[str, Weight],
    spec: DrafterSpec,
    lender: tuple[Target, Desk] | None,
    *,
    device: str,
    stored: str | None = None,
    tables: Mapping[str, PlaneTables] | None = None,
) -> Holder:
    """A drafter's weights, and of its target what it borrows. Raises E_LAYOUT_MISSING, E_LAYOUT_SHAPE,
    E_TARGET_MISMATCH, E_MASK_EMBEDDING, and E_FORWARD for an embedding or head of another size."""
    wrong = list(weight_findings(checkpoint, {name: weight.shape for name, weight in weights.items()}))
    if wrong:
        raise ConvertError(wrong)
    places = places_of(desk, weights)
    borrowed = tuple(name for name in ("embed_tokens.weight", "lm_head.weight") if name not in places)
    if lender is not None:
        faults = [item for item in target_findings(spec, lender[0]) if item.severity == "error"]
        if faults:
            raise ConvertError(faults)
        if lender[0].weights is not None:
            places |= lent_places(lender[1], lender[0], borrowed)
    spec = replace(spec, borrowed=borrowed)
    made = Holder(spec, places, torch.float64, device, stored, dict(tables or {}), _mask(checkpoint, spec))
    _check_sizes(made)
    return made


def _check_sizes(holder: Holder) -> None:
    """Embedding and head as the config says; a padded head of the target would propose tokens that do not exist."""
    spec = holder.spec
    wanted = {
        "embed_tokens.weight": (spec.vocabulary, spec.hidden),
        "lm_head.weight": (spec.draft_vocabulary, spec.hidden),
    }
    for name, shape in wanted.items():
        found = holder.shape(name)
        if found != shape:
            message = f"the shape is {list(found)}, the drafter's config means {list(shape)}"
            raise refusal("E_FORWARD", message, tensor=holder.place(name).weight.name)


def _mask(checkpoint: Checkpoint, spec: DrafterSpec) -> Tensor | None:
    """The trained embedding of the mask token that lies beside some drafters, F32 [hidden]."""
    if MASK_EMBEDDING not in checkpoint.side_files:
        return None
    faults = list(mask_embedding_findings(checkpoint, spec))
    if faults:
        raise ConvertError(faults)
    stored = torch.load(checkpoint.root / MASK_EMBEDDING, map_location="cpu", weights_only=True)
    values: Tensor = stored["embedding"] if isinstance(stored, Mapping) else stored
    return values.flatten().float()


def target_ids(holder: Holder) -> Tensor:
    """Ids of the target for the draft vocabulary, I64 [draft vocabulary]: draft id plus offset, as every reader
    takes ``d2t``. Raises E_VOCABULARY_MAP where that leaves the vocabulary, or a map is needed and not there."""
    spec = holder.spec
    ids = np.arange(spec.draft_vocabulary or 0)
    if "d2t" in holder.places:
        place = holder.places["d2t"]
        ids = ids + place.desk.reader.array(place.weight.name).astype(np.int64)
    elif spec.draft_vocabulary != spec.vocabulary:
        raise refusal("E_VOCABULARY_MAP", "a reduced vocabulary has no d2t", tensor="d2t")
    if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < (spec.vocabulary or 0):
        message = "as offsets, which every reader takes it for, d2t leaves the target's vocabulary"
        raise refusal("E_VOCABULARY_MAP", message, tensor="d2t", fix="repair --d2t offsets")
    return torch.tensor(ids, device=holder.device)


def map_findings(ids: Tensor) -> list[Finding]:
    """E_GATE if the two drafters mean other tokens by the same draft ids; ``ids`` I64 [2, draft vocabulary]."""
    apart = int((ids[0] != ids[1]).sum())
    if not apart:
        return []
    message = f"{apart} tokens of the draft vocabulary mean other tokens of the target than in the reference"
    return [
        finding("E_GATE", "error", message, tensor="d2t", fix="take d2t from the reference", data={"tokens": apart})
    ]
