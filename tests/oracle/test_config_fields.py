"""The types of config fields in our table, against transformers' own classes: every field, values of every type."""

from __future__ import annotations

from typing import Any

import pytest

from convertkit.engines.hf_fields import FIELDS, VISION, misfit

pytestmark = pytest.mark.oracle

VALUES: tuple[Any, ...] = ("7", "silu", 64, 128, 7.5, 0.5, True, [7], ["x"], [1.5], [None], {"x": 1}, None)
SECTIONS = {"text_config", "vision_config", "rope_parameters", "layer_types"}
"""Fields whose values are looked into: that of an object or list follows other rules."""
TYPES = [*FIELDS, "qwen3_5 vision", "qwen3_5_moe vision"]


def class_of(name: str) -> Any:
    auto = pytest.importorskip("transformers.models.auto.configuration_auto")
    model_type, _, part = name.partition(" ")
    found = auto.CONFIG_MAPPING[model_type]
    return found.sub_configs["vision_config"] if part else found


@pytest.mark.parametrize("name", TYPES)
def test_fields_are_those_of_the_class(name: str) -> None:
    dataclasses = pytest.importorskip("dataclasses")
    own, base = ({field.name for field in dataclasses.fields(of)} for of in (class_of(name), class_of(name).__mro__[1]))
    assert set(FIELDS.get(name, VISION)) == own - base


@pytest.mark.parametrize("name", TYPES)
def test_values_are_refused_as_by_the_class(name: str) -> None:
    table, made = FIELDS.get(name, VISION), class_of(name)
    wrong = []
    for field in table:
        for value in VALUES:
            if field in SECTIONS and isinstance(value, list | dict):
                continue
            try:
                made.from_dict({field: value})
                refused = False
            except Exception as error:
                refused = "Validation" in type(error).__name__ or field in SECTIONS or "heads" in field
            ours = misfit({field: value}, table) is not None
            if ours != refused:
                wrong.append((field, value, "refused" if refused else "taken"))
    assert not wrong, wrong
