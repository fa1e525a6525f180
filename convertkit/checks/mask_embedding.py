"""``mask_embedding.pt``: a trained embedding of the mask token that some DFlash drafters carry beside their weights.

Readers (vLLM 0.33 ``qwen3_dflash.py:894``, SGLang 0.5.23 ``dflash_worker_v2.py:1318``) take a tensor, or an object
with ``embedding`` and ``mask_token_id``. Conversions carry the file byte for byte.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from convertkit.checkpoint import Checkpoint
from convertkit.containers.folder import MASK_EMBEDDING
from convertkit.drafter import DrafterSpec
from convertkit.engines.source import MaskFile
from convertkit.errors import Finding, finding, shown


def mask_embedding_findings(checkpoint: Checkpoint, spec: DrafterSpec) -> Iterator[Finding]:
    """E_MASK_EMBEDDING if the file is there and does not fit: width, token, or a file that only pickle could load."""
    if MASK_EMBEDDING not in checkpoint.side_files:
        return
    import torch

    try:
        stored: Any = torch.load(checkpoint.root / MASK_EMBEDDING, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds
        yield _fault(f"the file cannot be read as weights only: {type(error).__name__}")
        return
    if isinstance(stored, Mapping):
        if "mask_token_id" in stored:
            token = stored["mask_token_id"]
            if spec.mask_token is not None and (type(token) is not int or token != spec.mask_token):
                yield _fault(f"the file is for token {shown(repr(token))}, the config states {spec.mask_token}")
        stored = stored.get("embedding")
    if not isinstance(stored, torch.Tensor):
        yield _fault("the file holds no tensor")
        return
    if spec.hidden is not None and stored.numel() != spec.hidden:
        yield _fault(f"the embedding has {stored.numel()} numbers, the drafter is {spec.hidden} wide")
    elif not bool(torch.isfinite(stored).all()):
        yield _fault("the embedding holds values that are not finite")


def read_mask_file(path: Path) -> MaskFile:
    """What engines find in the file."""
    import torch

    try:
        stored: Any = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds
        return MaskFile(fault=f"{type(error).__name__}: the file cannot be read as weights only")
    keyed = isinstance(stored, dict)
    token = stored.get("mask_token_id") if keyed else None
    tensor = stored.get("embedding") if keyed else stored
    if not isinstance(tensor, torch.Tensor):
        return MaskFile(keyed=keyed, token=token)
    return MaskFile(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), keyed, token)


def _fault(message: str) -> Finding:
    return finding("E_MASK_EMBEDDING", "error", message, file=MASK_EMBEDDING)
