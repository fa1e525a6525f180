"""Configs of drafters that someone damaged: every fault is a finding, nothing hangs and nothing is a traceback."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from convertkit.errors import ConvertError
from convertkit.layouts.configs import READINGS
from convertkit.layouts.fields import places_of, put
from convertkit.layouts.reading import stated_spec
from convertkit.layouts.tables import LAYOUTS_BY_NAME
from convertkit.verbs.drafters import to_drafter
from convertkit.verbs.inspect import inspect
from tests.drafters.make import deepspec, drafter, speculators, target, zlab2

VALUES: Any = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 10**12),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(["", "default", "sliding_attention", "qwen3"]),
    st.lists(st.one_of(st.integers(-2, 70), st.sampled_from(["full_attention", None])), max_size=4),
    st.dictionaries(st.sampled_from(["rope_theta", "rope_type", "causal", "0"]), st.integers(-1, 9), max_size=2),
)
SOURCES = {"dflash2": zlab2(), "dspark": deepspec(), "speculators-dspark": speculators("dspark")}


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(SOURCES)), st.data())
def test_any_value_in_any_place_is_read(layout: str, data: st.DataObject) -> None:
    config = json.loads(json.dumps(SOURCES[layout]))
    places = [*sorted(places_of(READINGS[layout].fields)), "dflash_config", "transformer_layer_config"]
    for place in data.draw(st.lists(st.sampled_from(places), min_size=1, max_size=3, unique=True)):
        try:
            put(config, place, data.draw(VALUES))
        except (TypeError, AttributeError):
            continue  # the section is no object any more
    stated = stated_spec(LAYOUTS_BY_NAME[layout], config, ["fc.weight"])
    assert stated is not None
    assert len(stated[0].attention) <= 4096


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_inspect_and_convert_end_in_findings(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder: Path = tmp_path_factory.mktemp("hostile")
    source = drafter(folder / "a", "dflash2", zlab2())
    config = zlab2()
    place = data.draw(st.sampled_from(sorted(places_of(READINGS["dflash2"].fields))))
    put(config, place, data.draw(VALUES))
    (source / "config.json").write_text(json.dumps(config))
    words: dict[str, Any] = {"target_model": target(folder / "t"), "target_id": "a/b", "verb": "to-speculators"}
    try:
        assert inspect(source)["drafter"] is not None
        to_drafter(source, folder / "b", to="speculators", only_plan=True, **words)
    except ConvertError as error:
        assert error.status in (1, 2, 3)


def test_too_many_layers(tmp_path: Path) -> None:
    source = drafter(tmp_path / "a", "dflash2", zlab2())
    (source / "config.json").write_text(json.dumps(zlab2(num_hidden_layers=5000)))
    assert any("5000 layers" in item["message"] for item in inspect(source)["findings"])
