"""What a drafter shares with its target: equal copies go, different ones are kept or refused, borrowed ones come."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from convertkit.checkpoint import TensorSpec
from convertkit.errors import ConvertError
from convertkit.verbs.case import Options, Result
from convertkit.verbs.drafters import to_dflash, to_drafter, to_dspark, to_speculators
from tests.drafters.make import (
    DV,
    V,
    config_of,
    deepspec,
    drafter,
    eagle,
    fill,
    maps,
    read,
    speculators,
    target,
    tensors_for,
    write,
    zlab,
)

ID = {"target_id": "Qwen/Qwen3-8B"}
COPIES = ("embed_tokens.weight", "lm_head.weight")


def with_copies(folder: Path, *, different: bool = False) -> Path:
    """A DeepSpec DSpark with its frozen copies of the target's embeddings and head."""
    tensors = tensors_for("dspark", deepspec())
    for name in COPIES:
        seed = f"{name} of another model" if different else name
        tensors[name] = ("BF16", (V, 64), fill(seed, TensorSpec(name, "BF16", (V, 64))))
    return write(folder, deepspec(), tensors)


def codes(error: ConvertError) -> set[str]:
    return {item.code for item in error.findings}


@pytest.mark.parametrize("nested", [False, True], ids=["flat", "text_config"])
def test_equal_copies_are_dropped_and_borrowed_back(nested: bool, tmp_path: Path) -> None:
    source = with_copies(tmp_path / "a")
    assert len(read(source)) == 11 * 3 + 9
    big = target(tmp_path / "t", layers=36, nested=nested, weights=True)
    made = to_speculators(source, tmp_path / "b", target_model=big, **ID)
    assert {drop.name for drop in made.plan.drops} == set(COPIES)
    assert len(read(tmp_path / "b")) == 40
    made = to_dspark(tmp_path / "b", tmp_path / "c", target_model=big)
    assert read(tmp_path / "c") == read(source)
    assert isinstance(made, Result)
    assert set(made.plan.parameters["borrowed"]) == set(COPIES)
    assert made.reports["LOAD_SHAPE_AUDIT.json"]["verdict"] == "pass"


def test_a_tied_head_is_the_embedding(tmp_path: Path) -> None:
    embedding = ("BF16", (V, 64), fill("embed_tokens.weight", TensorSpec("x", "BF16", (V, 64))))
    config = {**config_of(target(tmp_path / "c", layers=36)), "tie_word_embeddings": True}
    big = write(tmp_path / "t", config, {"model.embed_tokens.weight": embedding})
    to_dspark(drafter(tmp_path / "a", "dspark", deepspec()), tmp_path / "b", target_model=big)
    assert read(tmp_path / "b")["lm_head.weight"] == embedding


def test_different_copies_are_never_lost_silently(tmp_path: Path) -> None:
    source = with_copies(tmp_path / "a", different=True)
    words: dict[str, Any] = {"target_model": target(tmp_path / "t", layers=36, weights=True), **ID}
    with pytest.raises(ConvertError) as caught:
        to_speculators(source, tmp_path / "b", **words)
    assert codes(caught.value) == {"E_LOSS"}
    assert "differs from the target's" in str(caught.value)
    made = to_speculators(source, tmp_path / "b", allow_loss=("embed_tokens", "lm_head"), **words)
    assert {drop.name for drop in made.plan.drops} == set(COPIES)
    assert sum(item.code == "W_LOSS" for item in made.plan.findings) >= 2


def test_without_the_targets_weights_nobody_knows(tmp_path: Path) -> None:
    source = with_copies(tmp_path / "a")
    with pytest.raises(ConvertError) as caught:
        to_speculators(source, tmp_path / "b", target_model=target(tmp_path / "t", layers=36), **ID)
    assert codes(caught.value) == {"E_LOSS"}


def test_the_hub_name_of_the_target_is_needed(tmp_path: Path) -> None:
    source = drafter(tmp_path / "a", "dflash", zlab())
    big = target(tmp_path / "t")
    with pytest.raises(ConvertError) as caught:
        to_speculators(source, tmp_path / "b", target_model=big)
    assert codes(caught.value) == {"E_NEEDS_TARGET"}
    with pytest.raises(ConvertError) as caught:
        to_speculators(source, tmp_path / "b", target_model=big, target_id="/models/qwen")
    assert codes(caught.value) == {"E_USAGE"}
    named = write(
        tmp_path / "named", {**config_of(big), "_name_or_path": "Qwen/Qwen3-8B"}, {"x": ("BF16", (1,), b"00")}
    )
    to_speculators(source, tmp_path / "b", target_model=named)
    verifier = config_of(tmp_path / "b")["speculators_config"]["verifier"]
    assert verifier == {"name_or_path": "Qwen/Qwen3-8B", "architectures": ["Qwen3ForCausalLM"]}


@pytest.mark.parametrize(
    ("over", "words"),
    [
        ({"hidden_size": 128}, "64 wide"),
        ({"layers": 9}, "outside of the target's 9"),
        ({"layers": 11}, "made for 12 layers"),
    ],
)
def test_a_target_that_does_not_fit(over: dict[str, Any], words: str, tmp_path: Path) -> None:
    source = drafter(tmp_path / "a", "dflash", zlab())
    with pytest.raises(ConvertError) as caught:
        to_speculators(source, tmp_path / "b", target_model=target(tmp_path / "t", **over), **ID)
    assert codes(caught.value) == {"E_TARGET_MISMATCH"}
    assert words in str(caught.value)


def test_depth_of_the_target_is_asked_for_where_it_is_written(tmp_path: Path) -> None:
    source = drafter(tmp_path / "a", "speculators-dflash", speculators("dflash"))
    with pytest.raises(ConvertError) as caught:
        to_dflash(source, tmp_path / "b")
    assert codes(caught.value) == {"E_NEEDS_TARGET"}
    to_dflash(source, tmp_path / "b", target_model=target(tmp_path / "t"))
    assert config_of(tmp_path / "b")["num_target_layers"] == 12


def test_eagle_taps_the_layers_that_engines_choose(tmp_path: Path) -> None:
    source = drafter(tmp_path / "a", "eagle3", eagle())
    to_speculators(source, tmp_path / "b", target_model=target(tmp_path / "t", layers=36), **ID)
    written = config_of(tmp_path / "b")
    assert written["eagle_aux_hidden_state_layer_ids"] == [2, 18, 33]
    assert "num_aux_hidden_states" not in written["transformer_layer_config"]


def test_an_eagle_of_five_taps_tells_vllm_how_many(tmp_path: Path) -> None:
    config = eagle(eagle_aux_hidden_state_layer_ids=[2, 4, 6, 8, 9])
    to_speculators(drafter(tmp_path / "a", "eagle3", config), tmp_path / "b", target_model=target(tmp_path / "t"), **ID)
    assert config_of(tmp_path / "b")["transformer_layer_config"]["num_aux_hidden_states"] == 5


def test_a_map_without_mask_gets_one(tmp_path: Path) -> None:
    tensors = tensors_for("eagle3", eagle())
    del tensors["t2d"]
    tensors["d2t"] = maps("absolute", "I32")["d2t"]
    source = write(tmp_path / "a", eagle(), tensors)
    to_speculators(source, tmp_path / "b", target_model=target(tmp_path / "t"), **ID)
    made = read(tmp_path / "b")
    assert made["d2t"] == maps("offsets", "I32")["d2t"]
    assert made["t2d"] == maps()["t2d"]
    to_drafter(tmp_path / "b", tmp_path / "c", to="eagle3", verb="convert")
    assert read(tmp_path / "c")["d2t"] == made["d2t"]


def test_nothing_is_written_by_a_dry_run_and_bytes_do_not_depend_on_workers(tmp_path: Path) -> None:
    source = drafter(tmp_path / "a", "speculators-dspark", speculators("dspark", draft_vocab_size=DV), shards=3)
    words: dict[str, Any] = {"target_model": target(tmp_path / "t")}
    plan = to_dspark(source, tmp_path / "b", only_plan=True, **words)
    assert not (tmp_path / "b").exists()
    made = [
        to_dspark(source, tmp_path / f"out{workers}", options=Options(workers=workers), **words) for workers in (1, 4)
    ]
    assert {item.plan.fingerprint for item in made} == {plan.plan.fingerprint}
    for path in (tmp_path / "out1").iterdir():
        assert path.read_bytes() == (tmp_path / "out4" / path.name).read_bytes()


def test_a_speculators_config_without_a_verifier_class(tmp_path: Path) -> None:
    config = speculators("dflash")
    config["speculators_config"] = {}
    source = drafter(tmp_path / "a", "speculators-dflash", config)
    with pytest.raises(ConvertError) as caught:
        to_speculators(source, tmp_path / "b", **ID)
    assert codes(caught.value) == {"E_NEEDS_TARGET"}
