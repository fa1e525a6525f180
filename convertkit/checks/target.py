"""The target of a drafter, as far as a drafter depends on it: its config, and its headers if it has weights."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from convertkit.checkpoint import Checkpoint
from convertkit.containers.files import read_small
from convertkit.containers.folder import CONFIG, open_checkpoint
from convertkit.containers.strict_json import parse_json
from convertkit.conversion.target import TEXT_SECTIONS
from convertkit.dtypes import TORCH_NAMES
from convertkit.engines.vllm_params import Target
from convertkit.errors import ConvertError, refusal

DTYPES = {name: dtype for dtype, name in TORCH_NAMES.items()}


@dataclass(frozen=True)
class TargetModel:
    """``text`` is the config of the language model, ``checkpoint`` the headers, or None if there are no weights."""

    text: Mapping[str, Any]
    checkpoint: Checkpoint | None
    sizes: Target

    @property
    def hybrid(self) -> bool:
        """Whether some layers keep a recurrent state instead of keys and values."""
        types = self.text.get("layer_types")
        return isinstance(types, list) and any("linear" in str(item) or "mamba" in str(item) for item in types)

    @property
    def dtype(self) -> str:
        """Storage type that the config states, BF16 if it states none."""
        stated = str(self.text.get("dtype") or self.text.get("torch_dtype") or "bfloat16").removeprefix("torch.")
        return DTYPES.get(stated, "BF16")

    def tensor(self, leaf: str) -> str | None:
        """The stored name that ends in ``leaf`` (``lm_head.weight``), or None."""
        names = self.checkpoint.tensors if self.checkpoint is not None else {}
        return next((name for name in names if name == leaf or name.endswith(f".{leaf}")), None)


def read_target(path: str | os.PathLike[str]) -> TargetModel:
    """The target in a folder, of which ``config.json`` is enough.

    Raises ``ConvertError``: no such folder or config, a config that is not a model's (3).
    """
    found = stated_target(path)
    if found is None:
        message = "the target's config states no number of layers, vocabulary and hidden size"
        raise refusal("E_CONFIG", message, file=CONFIG, fix="--target-model names the folder of the big model")
    return found


def stated_target(path: str | os.PathLike[str]) -> TargetModel | None:
    """As ``read_target``, but None if the config does not state all three sizes."""
    root = Path(path)
    if not root.is_dir():
        raise refusal("E_NOT_FOUND", f"the target's folder is not there: {root}", fix="check --target-model")
    checkpoint: Checkpoint | None = None
    try:
        checkpoint = open_checkpoint(root)
        config: Any = checkpoint.config
    except ConvertError as error:
        if error.code != "E_NO_WEIGHTS":
            raise
        config = parse_json(read_small(root, CONFIG), CONFIG) if (root / CONFIG).exists() else {}
    text = text_config(config if isinstance(config, Mapping) else {})
    sizes = [text.get(key) for key in ("num_hidden_layers", "vocab_size", "hidden_size")]
    if any(type(size) is not int or size < 1 for size in sizes):
        return None
    layers, vocabulary, hidden = (int(size) for size in sizes if size is not None)
    return TargetModel(text, checkpoint, Target(layers, vocabulary, hidden))


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of a config that describes the language model, with what only the top level states."""
    inner = next((config[key] for key in TEXT_SECTIONS if isinstance(config.get(key), Mapping)), None)
    if inner is None:
        return config
    shared = {key: config[key] for key in ("dtype", "torch_dtype", "tie_word_embeddings") if key in config}
    return {**shared, **inner}


def assumed_target(config: Mapping[str, Any]) -> Target | None:
    """What a drafter's own config says of its target, None if it does not say enough: layers are then unknown."""
    body = config.get("transformer_layer_config")
    body = body if isinstance(body, Mapping) else config
    inner = config.get("dflash_config")
    inner = inner if isinstance(inner, Mapping) else {}
    layers = config.get("num_target_layers", inner.get("num_target_layers"))
    hidden, vocabulary = config.get("target_hidden_size") or body.get("hidden_size"), body.get("vocab_size")
    if not (isinstance(hidden, int) and isinstance(vocabulary, int)):
        return None
    return Target(layers if isinstance(layers, int) else 1000, vocabulary, hidden, known=False)
