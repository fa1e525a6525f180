"""What a conversion needs to know of the target model that a drafter drafts for: read from its config alone."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from convertkit.containers.files import read_small
from convertkit.containers.folder import CONFIG
from convertkit.containers.strict_json import parse_json
from convertkit.errors import refusal

TEXT_SECTIONS = ("text_config", "llm_config", "language_config")
"""Where multimodal configs keep the language model's fields (transformers 5: ``PretrainedConfig.get_text_config``)."""


def target_config(folder: str | os.PathLike[str]) -> Mapping[str, Any]:
    """The language-model part of a target's ``config.json``. Raises E_NOT_FOUND, E_JSON, E_CONFIG."""
    config = parse_json(read_small(Path(folder), CONFIG), CONFIG)
    if not isinstance(config, dict):
        raise refusal("E_JSON", "the file does not hold a JSON object", file=CONFIG)
    section = next((config[key] for key in TEXT_SECTIONS if isinstance(config.get(key), dict)), config)
    assert isinstance(section, dict)
    return section


def target_layers(folder: str | os.PathLike[str]) -> int:
    """Number of layers of the target. Raises ``E_CONFIG`` if its config does not say."""
    layers = target_config(folder).get("num_hidden_layers")
    if type(layers) is not int or layers < 1:
        raise refusal(
            "E_CONFIG", "the target's config states no 'num_hidden_layers'", file=CONFIG, key="num_hidden_layers"
        )
    return layers
