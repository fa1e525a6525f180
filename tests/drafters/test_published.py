"""Configurations of published drafters, with their real values and narrow tensors; labels that say something else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from convertkit.errors import ConvertError
from convertkit.verbs.drafters import to_dflash, to_drafter, to_dspark, to_speculators
from convertkit.verbs.inspect import inspect
from tests.drafters.make import BODY, DV, config_of, deepspec, drafter, eagle, read, speculators, target, zlab, zlab2

ID = {"target_id": "ORG/NAME"}


def layers(count: int, kind: str = "full_attention") -> dict[str, Any]:
    window = 2048 if kind == "sliding_attention" else None
    return {
        "num_hidden_layers": count,
        "layer_types": [kind] * count,
        "sliding_window": window,
        "use_sliding_window": window is not None,
    }


def dspark_qwen3(taps: list[int], depth: int) -> dict[str, Any]:
    """deepseek-ai/dspark_qwen3_*_block7: five layers, blocks of 7, rank 256, vanilla Markov and confidence head."""
    return deepspec(
        **layers(5), block_size=7, mask_token_id=151669, target_layer_ids=taps, num_target_layers=depth,
        vocab_size=151936, hidden_size=16, head_dim=4, intermediate_size=32, markov_rank=4,
    )  # fmt: skip


DEEPSEEK = {
    "dspark_qwen3_4b_block7": dspark_qwen3([1, 9, 17, 25, 33], 36),
    "dspark_qwen3_8b_block7": dspark_qwen3([1, 9, 17, 25, 33], 36),
    "dspark_qwen3_14b_block7": dspark_qwen3([1, 10, 19, 28, 37], 40),
}


@pytest.mark.parametrize("name", DEEPSEEK)
def test_deepseek_dspark(name: str, tmp_path: Path) -> None:
    config = DEEPSEEK[name]
    source = drafter(tmp_path / "a", "dspark", config)
    big = target(tmp_path / "t", layers=config["num_target_layers"], hidden_size=16, vocab_size=151936)
    to_speculators(source, tmp_path / "b", target_model=big, **ID)
    written = config_of(tmp_path / "b")
    assert written["aux_hidden_state_layer_ids"] == [tap + 1 for tap in config["target_layer_ids"]]
    assert (written["block_size"], written["mask_token_id"], written["sample_from_anchor"]) == (7, 151669, True)
    assert written["speculators_config"]["proposal_methods"][0]["speculative_tokens"] == 7
    to_dspark(tmp_path / "b", tmp_path / "c")
    assert read(tmp_path / "c") == read(source)
    back = config_of(tmp_path / "c")
    assert {key: value for key, value in config.items() if back.get(key) != value} == {}


REDHAT = {
    # five sliding layers, sampling from the anchor
    "Qwen3.6-35B-A3B-speculator.dspark": speculators(
        "dspark", layer=layers(5, "sliding_attention"), draft_vocab_size=DV, sliding_window_non_causal=False
    ),
    # the anchor is the bonus token
    "gemma-4-31B-it-speculator.dspark": speculators(
        "dspark", layer=layers(5), draft_vocab_size=DV, sample_from_anchor=False, tokens=7
    ),
    # three layers, Markov and confidence head: 43 tensors
    "three layers": speculators(
        "dspark", layer=layers(3), draft_vocab_size=DV, aux_hidden_state_layer_ids=[9, 19, 29], tokens=7
    ),
}


@pytest.mark.parametrize("name", REDHAT)
def test_speculators_dspark_is_served_natively(name: str, tmp_path: Path) -> None:
    config = REDHAT[name]
    source = drafter(tmp_path / "a", "speculators-dspark", config)
    to_dspark(source, tmp_path / "b", target_model=target(tmp_path / "t", layers=40))
    written = config_of(tmp_path / "b")
    assert written["target_layer_ids"] == [tap - 1 for tap in config["aux_hidden_state_layer_ids"]]
    assert written["sample_from_anchor"] == config["sample_from_anchor"]
    assert (written["draft_vocab_size"], written["block_size"]) == (DV, 8)
    assert read(tmp_path / "b") == read(source)
    readers = {row["name"]: row for row in inspect(tmp_path / "b")["drafter"]["readers"]}
    assert (readers["vllm"]["differs"], readers["vllm"]["refuses"]) == ({}, [])
    assert [row["field"] for row in readers["sglang"]["refuses"]] == ["draft_vocabulary"]
    if name == "three layers":
        assert len(read(source)) == 43


def test_the_release_that_differs_in_three_keys(tmp_path: Path) -> None:
    """A drafter fine-tuned from a DFlash 2: block size 10, ``causal: false``, the draft vocabulary stated."""
    config = zlab2(draft_vocab_size=192, dflash_config={"block_size": 10, "causal": False})
    source = drafter(tmp_path / "a", "dflash2", config)
    to_speculators(source, tmp_path / "b", target_model=target(tmp_path / "t"), **ID)
    written = config_of(tmp_path / "b")
    assert written["block_size"] == 10
    assert written["speculators_config"]["proposal_methods"][0]["speculative_tokens"] == 9
    assert written["sliding_window_non_causal"] is True
    to_dflash(tmp_path / "b", tmp_path / "c")
    assert config_of(tmp_path / "c")["dflash_config"]["block_size"] == 10
    assert read(tmp_path / "c") == read(source)


def test_layers_of_another_family_are_refused(tmp_path: Path) -> None:
    """deepseek-ai/dspark_gemma4_12b_block7 has Gemma's layers; speculators and its readers know Qwen3's."""
    config = deepspec(model_type="gemma4_text", target_layer_ids=[5, 17, 29], mask_token_id=4)
    source = drafter(tmp_path / "a", "dspark", config)
    with pytest.raises(ConvertError) as caught:
        to_speculators(source, tmp_path / "b", target_model=target(tmp_path / "t", layers=48), **ID)
    assert caught.value.code == "E_NO_ROUTE"
    mistral = drafter(tmp_path / "c", "eagle3", eagle(model_type="mistral"))
    with pytest.raises(ConvertError) as caught:
        to_speculators(mistral, tmp_path / "d", target_model=target(tmp_path / "t2"), **ID)
    assert caught.value.code == "E_NO_ROUTE"


@pytest.mark.parametrize(
    ("layout", "config", "label"),
    [
        ("dflash2", zlab2(architectures=["DFlashDraftModel"]), "dflash2"),
        ("dflash", zlab(architectures=["Qwen3ForCausalLM"]), "dflash"),
    ],
)
def test_a_label_that_the_tensors_deny(layout: str, config: dict[str, Any], label: str, tmp_path: Path) -> None:
    source = drafter(tmp_path / "a", layout, config)
    document = inspect(source)
    assert document["layout"]["name"] == label
    assert "W_LAYOUT_LABEL" in {item["code"] for item in document["findings"]}
    to_dflash(source, tmp_path / "b")
    assert config_of(tmp_path / "b")["architectures"] == [
        {"dflash": "DFlashDraftModel", "dflash2": "DFlash2DraftModel"}[label]
    ]
    assert "W_LAYOUT_LABEL" not in {item["code"] for item in inspect(tmp_path / "b")["findings"]}


def test_the_label_of_an_eagle_follows_its_layers(tmp_path: Path) -> None:
    """vLLM builds Llama layers for LlamaForCausalLMEagle3, whatever the model type says."""
    source = drafter(tmp_path / "a", "eagle3", eagle(model_type="qwen3", head_dim=16))
    readers = {row["name"]: row for row in inspect(source)["drafter"]["readers"]}
    assert [row["field"] for row in readers["vllm"]["refuses"]] == ["backbone"]
    to_drafter(source, tmp_path / "b", to="eagle3", verb="convert")
    assert config_of(tmp_path / "b")["architectures"] == ["Eagle3Qwen3ForCausalLM"]


def test_taps_that_nobody_states_are_not_guessed(tmp_path: Path) -> None:
    """z-lab spreads them evenly over the target, vLLM taps other layers: the conversion writes what z-lab means."""
    config = zlab()
    del config["dflash_config"]["target_layer_ids"]
    from tests.drafters.make import tensors_for, write

    source = write(tmp_path / "a", config, tensors_for("dflash", zlab()))
    readers = {row["name"]: row for row in inspect(source)["drafter"]["readers"]}
    assert "taps" in {row["field"] for row in readers["vllm"]["refuses"]}
    assert inspect(source)["drafter"]["spec"]["taps"] == [1, 5, 9]
    del config["num_target_layers"]
    blind = write(tmp_path / "b", config, tensors_for("dflash", zlab()))
    with pytest.raises(ConvertError) as caught:
        to_speculators(blind, tmp_path / "c", **ID)
    assert caught.value.code == "E_CONFIG"


def test_a_format_keeps_its_own_unknown_keys(tmp_path: Path) -> None:
    config = zlab(dflash_config={"attention_value_scale": 0.7}, torch_dtype="float16")
    source = drafter(tmp_path / "a", "dflash", config)
    made = to_dflash(source, tmp_path / "b", target_model=target(tmp_path / "t"))
    assert config_of(tmp_path / "b")["dflash_config"]["attention_value_scale"] == 0.7
    assert "W_TARGET_MISMATCH" not in {item.code for item in made.plan.findings}
    half = target(tmp_path / "half")
    (half / "config.json").write_text((half / "config.json").read_text().replace("bfloat16", "float16"))
    made = to_dflash(source, tmp_path / "c", target_model=half, only_plan=True)
    assert ["dtype" in str(item) for item in made.plan.findings if item.code == "W_TARGET_MISMATCH"] == [True]


def test_keys_that_nobody_knows_are_carried_and_listed(tmp_path: Path) -> None:
    source = drafter(tmp_path / "a", "speculators-dflash", speculators("dflash", training_run="r7"))
    made = to_dflash(source, tmp_path / "b", target_model=target(tmp_path / "t"))
    assert config_of(tmp_path / "b")["training_run"] == "r7"
    assert [item.data["keys"] for item in made.plan.findings if item.code == "N_PASSED"] == [["training_run"]]
    assert BODY["hidden_size"] == config_of(tmp_path / "b")["hidden_size"]
