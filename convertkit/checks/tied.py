"""A head that is stored although the config says that it is the embeddings: whether it is, byte for byte."""

from __future__ import annotations

from collections.abc import Iterator

from convertkit.checkpoint import Checkpoint
from convertkit.containers.reader import Reader
from convertkit.conversion.repair_work import same_bytes
from convertkit.errors import Finding, finding
from convertkit.layouts.layout import config_value


def tied_findings(checkpoint: Checkpoint, reader: Reader) -> Iterator[Finding]:
    """E_TIED_DIFFERS where readers disagree about the model: those that tie drop the stored head, others use it."""
    if config_value(checkpoint.config, "tie_word_embeddings") is not True:
        return
    named = {name.rpartition(".")[0].rpartition(".")[2]: ref for name, ref in checkpoint.tensors.items()
             if name.endswith((".embed_tokens.weight", "lm_head.weight")) and "mtp." not in name}  # fmt: skip
    head, base = named.get("lm_head"), named.get("embed_tokens")
    if head is not None and base is not None and not same_bytes(reader, head, base):
        message = "the config says that the head is the embeddings, and the stored head is not"
        fix = "if the head is the model's: repair --set-config; if not, it must not be stored"
        yield finding("E_TIED_DIFFERS", "error", message, file=head.file, tensor=head.spec.name, fix=fix)
