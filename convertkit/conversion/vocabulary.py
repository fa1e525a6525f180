"""The map from draft to target vocabulary: offsets or absolute ids, told apart by evidence.

All readers take ``d2t`` for offsets: target id = draft id + d2t[draft id] (vLLM 0.33 ``qwen3_dflash.py``, SGLang
0.5.23 ``llama_eagle3.py``, speculators 0.9.0). Absolute ids in the same tensor load and give wrong tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from convertkit.checkpoint import TensorRef
from convertkit.containers.reader import Reader
from convertkit.errors import Finding, finding

Ids = npt.NDArray[np.int64]
FORMS = ("offsets", "absolute")


@dataclass(frozen=True)
class MapJudgement:
    """``form`` is ``offsets`` or ``absolute``, None if neither or both fit; findings say why. ``ids`` are the target
    ids of the draft vocabulary; ``readings`` are the ids of every form that fits."""

    form: str | None
    ids: Ids | None
    findings: tuple[Finding, ...] = ()
    readings: Mapping[str, Ids] = field(default_factory=dict)


def mask_of(reader: Reader, ref: TensorRef | None) -> npt.NDArray[np.bool_] | None:
    """t2d as truth values, whatever byte type it is stored in; None without one."""
    return None if ref is None else np.frombuffer(reader.bytes_of(ref.spec.name), np.uint8).astype(np.bool_)


def judge_map(
    stored: npt.NDArray[Any],
    mask: npt.NDArray[np.bool_] | None,
    draft_vocabulary: int | None,
    vocabulary: int | None,
) -> MapJudgement:
    """Decide what ``stored`` (d2t, integers [DV]) holds, from range, order and the mask t2d ([V], truth values).

    A reading fits if its ids lie in the vocabulary, ascend, and are exactly those of the mask. If none ascends,
    distinct ids that are those of the mask are accepted with a warning. Codes: E_VOCABULARY_MAP, W_VOCABULARY_MAP.
    """
    faults = _size_faults(stored, mask, draft_vocabulary, vocabulary)
    if faults:
        return MapJudgement(None, None, tuple(faults))
    values = stored.astype(np.int64)
    limit = mask.size if mask is not None else vocabulary
    readings: dict[str, Ids] = {"offsets": values + np.arange(values.size), "absolute": values}
    fitting = [form for form in FORMS if _fits(readings[form], mask, limit, ordered=True)]
    loose = [form for form in FORMS if mask is not None and _fits(readings[form], mask, limit, ordered=False)]
    if len(fitting) == 1 or (not fitting and len(loose) == 1):
        form = (fitting or loose)[0]
        notes = () if fitting else (_warning("the target ids of the draft vocabulary do not ascend"),)
        return MapJudgement(form, readings[form], notes)
    if len(fitting) == 2 and bool((readings["offsets"] == readings["absolute"]).all()):
        return MapJudgement("offsets", readings["offsets"])  # one token: both readings are the same map
    if fitting:
        fix = "state which it is: repair --d2t offsets --d2t-holds absolute, or --d2t-holds offsets"
        fault = _error("d2t makes sense as offsets and as absolute ids", fix)
        return MapJudgement(None, None, (fault,), {form: readings[form] for form in fitting})
    return MapJudgement(None, None, (_why_not(readings["offsets"], mask, limit),))


def _fits(ids: Ids, mask: npt.NDArray[np.bool_] | None, limit: int | None, *, ordered: bool) -> bool:
    if ids.size and (int(ids.min()) < 0 or (limit is not None and int(ids.max()) >= limit)):
        return False
    if ordered and bool((np.diff(ids) <= 0).any()):
        return False
    if not ordered and np.unique(ids).size != ids.size:
        return False
    return mask is None or (bool(mask[ids].all()) and int(mask.sum()) == ids.size)


def _size_faults(
    stored: npt.NDArray[Any], mask: npt.NDArray[Any] | None, draft_vocabulary: int | None, vocabulary: int | None
) -> list[Finding]:
    faults = []
    if stored.ndim != 1 or stored.dtype.kind not in "iu":
        faults.append(_error(f"d2t is {stored.dtype} of shape {list(stored.shape)}, not a list of whole numbers"))
    elif draft_vocabulary is not None and stored.size != draft_vocabulary:
        faults.append(_error(f"d2t has {stored.size} entries, the draft vocabulary {draft_vocabulary}"))
    if mask is not None and vocabulary is not None and mask.size != vocabulary:
        faults.append(_error(f"t2d has {mask.size} entries, the vocabulary {vocabulary}", tensor="t2d"))
    if mask is not None and not faults and int(mask.sum()) != stored.size:
        faults.append(_error(f"t2d marks {int(mask.sum())} tokens, d2t maps {stored.size}", tensor="t2d"))
    return faults


def _why_not(ids: Ids, mask: npt.NDArray[np.bool_] | None, limit: int | None) -> Finding:
    """What is wrong with d2t as offsets, or with t2d where d2t alone is a map: engines read d2t only."""
    outside = int((ids < 0).sum()) if limit is None else int(((ids < 0) | (ids >= limit)).sum())
    if outside:
        return _error(f"{outside} target ids of d2t are outside of the vocabulary of {limit}")
    if np.unique(ids).size != ids.size:
        return _error(f"d2t maps {ids.size - np.unique(ids).size} draft tokens to a target token that another one has")
    if mask is not None:
        ascending = bool((np.diff(ids) > 0).all())
        message = f"{int((~mask[ids]).sum())} target ids of d2t are not marked in t2d"
        return _error(message, tensor="t2d" if ascending else "d2t")
    return _error("the target ids of d2t do not ascend, and no t2d confirms them")


def _error(message: str, fix: str = "", tensor: str = "d2t") -> Finding:
    return finding("E_VOCABULARY_MAP", "error", message, tensor=tensor, fix=fix)


def _warning(message: str) -> Finding:
    return finding("W_VOCABULARY_MAP", "warning", message, tensor="d2t")
