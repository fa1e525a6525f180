"""What a drafter has of its own in vLLM 0.33, and what its target lends it: embeddings, the head, the mask's row."""

from __future__ import annotations

import math
from collections.abc import Iterable

from convertkit.engines.loading import Book
from convertkit.engines.source import MaskFile
from convertkit.engines.vllm_draft import VllmDraft
from convertkit.engines.vllm_params import Target


def mask_file_fills(file: MaskFile | None, draft: VllmDraft, book: Book) -> bool:
    """``mask_embedding.pt``, which is not looked at if no mask token is stated (``qwen3_dflash.py:894``); whether it
    stands for the parameter."""
    token = {**draft.eagle, **draft.dflash}.get("mask_token_id", draft.get("mask_token_id"))
    if file is None or token is None or not draft.kind.startswith("dflash"):
        return False
    message, hidden = file.fault, draft.size("hidden_size")
    if not message and file.keyed and file.token is not None and file.token != token:
        message = f"mask_embedding.pt mask_token_id does not match dflash_config.mask_token_id ({token})"
    elif not message and file.shape is None:
        message = "KeyError: 'embedding'" if file.keyed else "mask_embedding.pt holds no tensor"
    elif not message and math.prod(file.shape or ()) != hidden:
        message = f"Attempted to load weight ({list(file.shape or ())}) into parameter ([{hidden}])"
    if message:
        book.refuse("load_weights", message, "vllm.mask-embedding")
    book.filled["model.mask_embedding"] = {"": "mask_embedding.pt"}
    return True


def borrowed(names: Iterable[str], draft: VllmDraft, target: Target, book: Book) -> dict[str, str]:
    """Parameters that the target's replace: no name says that the draft has its own (``eagle/utils.py:18``,
    ``models/utils.py:1178``), be it of a bias that nothing takes. A copy that equals the target's is replaced too,
    which changes nothing."""
    eagle = draft.kind.startswith("eagle3")
    said = [name for name in names if "t2d" not in name and not (eagle and "mask_hidden" in name and "d2t" not in name)]
    own_head = any("lm_head" in name for name in said)
    own_embedding = any("embed_tokens" in name for name in said)
    found: dict[str, str] = {}
    for name, own in (("model.embed_tokens.weight", own_embedding), ("lm_head.weight", own_head)):
        parameter = book.parameters.get(name)
        if parameter is not None and parameter.lender is not None and not own:
            found[name] = parameter.lender
    if draft.kind == "dspark" and draft.size("vocab_size") > target.vocabulary:
        found.pop("model.embed_tokens.weight", None)
    if eagle and not own_head and "lm_head.weight" not in book.parameters:
        planes = [name for name in book.parameters if name.startswith("lm_head.")]
        found.update(dict.fromkeys(planes, "the target's head"))
    return found
