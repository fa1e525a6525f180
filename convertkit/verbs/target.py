"""What a conversion needs to know of the target model that a drafter drafts for: read from its config alone."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from convertkit.containers.files import read_small
from convertkit.containers.folder import CONFIG, open_checkpoint
from convertkit.containers.strict_json import parse_json
from convertkit.conversion.target import TEXT_SECTIONS, Target
from convertkit.errors import ConvertError, refusal, shown


def _target_config(folder: str | os.PathLike[str]) -> Mapping[str, Any]:
    """The language-model part of a target's ``config.json``. Raises E_NOT_FOUND, E_JSON, E_CONFIG."""
    return _text_part(_whole_config(folder))


def _whole_config(folder: str | os.PathLike[str]) -> Mapping[str, Any]:
    if not (Path(folder) / CONFIG).exists():
        message = f"the target model has no {CONFIG}: {shown(folder)}"
        raise refusal("E_NOT_FOUND", message, fix="--target-model names a folder with the target's config")
    config = parse_json(read_small(Path(folder), CONFIG), CONFIG)
    if not isinstance(config, dict):
        raise refusal("E_JSON", "the file does not hold a JSON object", file=CONFIG)
    return config


def _text_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    section = next((config[key] for key in TEXT_SECTIONS if isinstance(config.get(key), dict)), config)
    assert isinstance(section, Mapping)
    return section


def open_target(folder: str | os.PathLike[str]) -> Target:
    """A target by its config, with its weights if the folder holds any. Raises as ``_target_config`` does, and for
    weights that cannot be read."""
    whole = _whole_config(folder)
    text = _text_part(whole)
    try:
        weights = open_checkpoint(folder)
    except ConvertError as error:
        if error.code != "E_NO_WEIGHTS":
            raise
        weights = None
    dtype = next((part[key] for part in (text, whole) for key in ("dtype", "torch_dtype") if part.get(key)), None)
    name = whole.get("_name_or_path")
    return Target(
        _whole_number(text, "num_hidden_layers"),
        _whole_number(text, "hidden_size"),
        _whole_number(text, "vocab_size"),
        dtype if isinstance(dtype, str) else None,
        tuple(item for item in whole.get("architectures") or () if isinstance(item, str)),
        name if isinstance(name, str) and HUB_NAME.fullmatch(name) else None,
        bool(whole.get("tie_word_embeddings") or text.get("tie_word_embeddings")),
        weights,
    )


HUB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
"""A repository on the hub, ORG/NAME."""


def _whole_number(config: Mapping[str, Any], key: str) -> int | None:
    value = config.get(key)
    return value if type(value) is int and value > 0 else None


def target_layers(folder: str | os.PathLike[str]) -> int:
    """Number of layers of the target. Raises ``E_CONFIG`` if its config does not say."""
    layers = _target_config(folder).get("num_hidden_layers")
    if type(layers) is not int or layers < 1:
        raise refusal(
            "E_CONFIG", "the target's config states no 'num_hidden_layers'", file=CONFIG, key="num_hidden_layers"
        )
    return layers
