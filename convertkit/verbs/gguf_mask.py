"""Plan the embeddings and the head of a drafter that has ``mask_embedding.pt``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from convertkit.checkpoint import Checkpoint, TensorRef
from convertkit.checks.mask_embedding import mask_embedding_findings
from convertkit.containers.folder import MASK_EMBEDDING, WEIGHTS, open_any
from convertkit.conversion.drafter_units import Borrow
from convertkit.conversion.gguf_mask import Reembed
from convertkit.conversion.gguf_places import GgufRequest
from convertkit.conversion.gguf_target import EMBEDDINGS, HEADS, Target
from convertkit.drafter import DrafterSpec
from convertkit.dtypes import FLOATS, TORCH_NAMES
from convertkit.errors import raise_all, refusal


def with_mask_embedding(source: Checkpoint, request: GgufRequest, spec: DrafterSpec, target: Target) -> GgufRequest:
    """The request with the embeddings, one row replaced, and the head: the drafter's own or the target's, as stored.

    Raises ``E_MASK_EMBEDDING`` if the file does not fit, ``E_LOSS`` for an architecture without it, ``E_TARGET`` if the
    target's weights are needed and not there.
    """
    if request.arch.name != "dflash":
        raise refusal("E_LOSS", f"llama.cpp's {request.arch.name} has no own embedding of the mask token",
                      file=MASK_EMBEDDING)  # fmt: skip
    raise_all(mask_embedding_findings(source, spec))
    own = next((name for name in EMBEDDINGS if name in source.tensors), None)
    head = next((name for name in HEADS if name in source.tensors), None)
    lender = source if own is not None and head is not None else _weights_of(target)
    table = source.tensors[own] if own is not None else _lent(lender, EMBEDDINGS)
    if table.spec.dtype not in FLOATS or table.spec.shape != (spec.vocabulary, spec.hidden):
        raise refusal("E_TARGET", f"embeddings {table.spec.dtype} {list(table.spec.shape)} do not fit the drafter: "
                      f"{spec.vocabulary} rows of {spec.hidden} floats", tensor=table.spec.name)  # fmt: skip
    assert spec.mask_token is not None
    data = _row(source, table.spec.dtype)
    units: list[Any] = [Reembed(source if own is not None else lender, table, spec.mask_token, data, own is not None)]
    if head is None:
        units.append(Borrow(lender, _lent(lender, EMBEDDINGS if target.tied else HEADS), "output.weight"))
    leave = {name: why for name, why in request.leave.items() if name not in (own, head)}
    taken = frozenset() if own is None else frozenset({own})
    return replace(request, leave=leave, taken=taken, extra=units)


def _weights_of(target: Target) -> Checkpoint:
    if target.gguf is not None or not any(target.place.glob(f"*{WEIGHTS}")):
        raise refusal("E_TARGET", "the drafter's own embedding of the mask token becomes a row of the target's "
                      "embeddings, and the target's weights are not at hand", file=MASK_EMBEDDING,
                      fix="give the target's folder with its weights: --target-model DIR")  # fmt: skip
    return open_any(target.place)


def _lent(lender: Checkpoint, names: tuple[str, ...]) -> TensorRef:
    found = next((name for name in names if name in lender.tensors), None)
    if found is None:
        raise refusal("E_TARGET", f"the target holds no '{names[0]}'", fix="check --target-model")
    return lender.tensors[found]


def _row(source: Checkpoint, dtype: str) -> bytes:
    """The stored bytes of the embedding, rounded once to the type of the table."""
    import torch

    stored: Any = torch.load(source.root / MASK_EMBEDDING, map_location="cpu", weights_only=True)
    values = stored["embedding"] if isinstance(stored, Mapping) else stored
    cast = values.flatten().to(getattr(torch, TORCH_NAMES[dtype])).contiguous()
    return bytes(cast.view(torch.uint8).numpy().tobytes())
