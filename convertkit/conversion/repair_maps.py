"""The map of a drafter's reduced vocabulary, brought into one form and made certain."""

from __future__ import annotations

import numpy as np

from convertkit.checkpoint import TensorRef
from convertkit.conversion.drafter_units import Mask, Offsets
from convertkit.conversion.repair_work import RepairRequest, Work
from convertkit.conversion.units import Copy
from convertkit.conversion.vocabulary import Ids, MapJudgement, judge_map, mask_of
from convertkit.dtypes import DTYPES
from convertkit.errors import ConvertError, refusal
from convertkit.layouts.reading import stated_spec
from convertkit.layouts.rules import without_model

OPTION = "--d2t"


def bring_map(work: Work, request: RepairRequest) -> None:
    """Write d2t as ``request.d2t`` says, whatever form it is stored in.

    What is stored is told by evidence; where that fits both forms ``request.d2t_holds`` decides, and t2d, which makes
    the map certain for every later reader, is added if it is missing. Raises E_VOCABULARY_MAP where nothing tells, or
    where the evidence contradicts the user.
    """
    plain = {without_model(name): name for name in work.source.tensors}
    if "d2t" not in plain:
        return
    ref, mask_ref = work.source.tensors[plain["d2t"]], work.source.tensors.get(plain.get("t2d", ""))
    stated = stated_spec(work.identity.layout, work.source.config, work.source.tensors)
    draft, whole = (None, None) if stated is None else (stated[0].draft_vocabulary, stated[0].vocabulary)
    judged = judge_map(work.reader.array(ref.spec.name), mask_of(work.reader, mask_ref), draft, whole)
    form, ids = _form(judged, request.d2t_holds, ref)
    units: list[Offsets | Mask | Copy] = []
    if form != request.d2t:
        _check_fits(ids, ref, request.d2t)
        units.append(Offsets(ref, ref.spec.name, back=request.d2t == "absolute"))
    if judged.form is None and mask_ref is None and whole is not None:
        units.append(Mask(ref, form, whole, plain["d2t"].removesuffix("d2t") + "t2d"))
        if form == request.d2t:
            units.append(Copy(ref, ref.spec.name, ref.spec.name))
    work.findings.extend(item for item in judged.findings if item.severity != "error")
    work.make(units, OPTION)


def _form(judged: MapJudgement, holds: str | None, ref: TensorRef) -> tuple[str, Ids]:
    """What is stored, by evidence or by the user's word, and the target ids that it leads to."""
    if judged.form is not None and judged.ids is not None:
        if holds not in (None, judged.form):
            message = f"the values show that d2t holds {judged.form}, not {holds}"
            raise refusal("E_VOCABULARY_MAP", message, tensor=ref.spec.name, fix="leave out --d2t-holds")
        return judged.form, judged.ids
    if holds is None or holds not in judged.readings:
        raise ConvertError(item for item in judged.findings if item.severity == "error")
    return holds, judged.readings[holds]


def _check_fits(ids: Ids, ref: TensorRef, form: str | None) -> None:
    """Raise E_VOCABULARY_MAP if the dtype cannot hold what is to be written."""
    values = ids if form == "absolute" else ids - np.arange(ids.size)
    limits = np.iinfo(np.dtype(DTYPES[ref.spec.dtype].storage))
    if values.size and (int(values.min()) < limits.min or int(values.max()) > limits.max):
        message = f"{ref.spec.dtype} cannot hold {form} of this map"
        raise refusal("E_VOCABULARY_MAP", message, tensor=ref.spec.name)
