"""Drafters as SpecForge 0.2.0 saves them: the keys of a DSpark's heads lie where no engine looks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from convertkit.containers.folder import open_checkpoint
from convertkit.conversion.identify import identify
from convertkit.drafter import DrafterSpec
from convertkit.engines.reading import understand
from convertkit.engines.sglang import SGLANG
from convertkit.engines.vllm import VLLM
from convertkit.errors import ConvertError
from convertkit.layouts.reading import stated_spec
from convertkit.layouts.tables import LAYOUTS_BY_NAME
from convertkit.verbs.drafters import to_dspark, to_speculators
from tests.drafters.make import config_of, drafter, read, specforge, specforge_peagle, target
from tests.drafters.test_silent_failures import without

ID = {"target_id": "Qwen/Qwen3-8B"}
DSPARK = LAYOUTS_BY_NAME["dspark"]
HEAD = ("confidence_head.proj.weight", "confidence_head.proj.bias")


def meant(config: dict[str, Any], names: tuple[str, ...] = HEAD) -> DrafterSpec:
    stated = stated_spec(DSPARK, config, names)
    assert stated is not None
    assert stated[1] == ()
    return stated[0]


def test_a_dspark_is_read_from_dflash_config() -> None:
    spec = meant(specforge(dflash_config={"markov_head_type": "gated"}))
    assert (spec.taps, spec.mask_token, spec.block_size, spec.draft_tokens) == ((1, 5, 9), 187, 8, 8)
    assert (spec.markov_rank, spec.markov_head, spec.sample_from_anchor) == (8, "gated", True)
    assert (spec.confidence_head, spec.confidence_with_markov) == (True, True)


def test_taps_that_are_not_stated_are_spread() -> None:
    config = without(specforge(), "dflash_config.target_layer_ids")
    assert meant(config).taps == (1, 5, 9)


def test_a_confidence_head_that_no_key_mentions_is_without_markov() -> None:
    bare = without(specforge(), "dflash_config.confidence_head_with_markov")
    assert meant(without(bare, "dflash_config.enable_confidence_head")).confidence_with_markov is False
    assert meant(bare).confidence_with_markov is False


def test_two_places_that_disagree_are_an_error() -> None:
    stated = stated_spec(DSPARK, specforge(markov_rank=16), HEAD)
    assert stated is not None
    assert [item.code for item in stated[1]] == ["E_CONFIG"]


@pytest.mark.parametrize("engine", [VLLM, SGLANG], ids=lambda engine: engine.name)
def test_engines_do_not_find_its_heads(engine: Any) -> None:
    config = specforge()
    found = understand(engine, DSPARK, config, HEAD, meant(config))
    assert "markov_rank" in found.differing
    assert "markov_head" not in found.differing


def test_to_dspark_writes_what_engines_read(tmp_path: Path) -> None:
    source = drafter(tmp_path / "a", "dspark", specforge())
    to_dspark(source, tmp_path / "b", target_model=target(tmp_path / "t"))
    written = config_of(tmp_path / "b")
    assert "dflash_config" not in written
    assert (written["markov_rank"], written["target_layer_ids"], written["mask_token_id"]) == (8, [1, 5, 9], 187)
    assert understand(VLLM, DSPARK, written, HEAD, meant(specforge())).differing == ()
    assert read(tmp_path / "b") == read(source)


def test_there_and_back_through_speculators(tmp_path: Path) -> None:
    source, big = drafter(tmp_path / "a", "dspark", specforge()), target(tmp_path / "t")
    to_speculators(source, tmp_path / "b", target_model=big, **ID)
    to_dspark(tmp_path / "b", tmp_path / "c", target_model=big)
    assert read(tmp_path / "c") == read(source)
    assert meant(config_of(tmp_path / "c")) == meant(specforge())


def test_an_unknown_key_of_the_section_is_not_lost_silently(tmp_path: Path) -> None:
    source = drafter(tmp_path / "a", "dspark", specforge(dflash_config={"shift_label": True}))
    with pytest.raises(ConvertError) as caught:
        to_speculators(source, tmp_path / "b", target_model=target(tmp_path / "t"), **ID)
    assert caught.value.code == "E_LOSS"
    assert "dflash_config.shift_label" in str(caught.value)


def test_a_peagle_is_described_and_not_converted(tmp_path: Path) -> None:
    source = drafter(tmp_path / "a", "peagle", specforge_peagle(eagle_aux_hidden_state_layer_ids=[2, 6, 9]))
    (source / "config.json").write_text(json.dumps(specforge_peagle()))
    checkpoint = open_checkpoint(source)
    identity = identify(checkpoint)
    assert (identity.layout.name, identity.confidence, identity.errors) == ("peagle", "certain", ())
    stated = stated_spec(identity.layout, checkpoint.config, checkpoint.tensors)
    assert stated is not None
    spec = stated[0]
    assert (spec.algorithm, spec.hidden, spec.head_dim, spec.layers, spec.mask_token) == ("peagle", 64, 16, 3, 187)
    with pytest.raises(ConvertError) as caught:
        to_speculators(source, tmp_path / "b", target_model=target(tmp_path / "t"), **ID)
    assert caught.value.code == "E_NO_ROUTE"
