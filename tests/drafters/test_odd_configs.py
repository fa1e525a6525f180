"""Configs that contradict themselves, leave things out or hold nonsense: said or refused, never quietly changed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from convertkit.errors import ConvertError
from convertkit.verbs.audit import audit
from convertkit.verbs.case import Result
from convertkit.verbs.convert import convert
from convertkit.verbs.drafters import to_dflash, to_speculators
from convertkit.verbs.inspect import inspect
from convertkit.verbs.pack import pack_nvfp4
from tests.drafters.make import (
    DV,
    SLIDING3,
    config_of,
    drafter,
    eagle,
    read,
    speculators,
    target,
    tensors_for,
    write,
    zlab,
    zlab2,
)

ID = {"target_id": "Qwen/Qwen3-8B"}
LAYER = "transformer_layer_config"


def errors(folder: Path) -> list[str]:
    """What audit says is wrong."""
    return [item.message for item in audit(folder).findings if item.severity == "error"]


def refusal_of(source: Path, to: str, **words: Any) -> tuple[str, str]:
    """Code and message of a conversion that is refused; nothing is written."""
    out = source.with_name(source.name + "-out")
    with pytest.raises(ConvertError) as caught:
        convert(source, out, to=to, **words)
    assert not out.exists()
    return caught.value.findings[0].code, caught.value.findings[0].message


def dflash(folder: Path, config: Mapping[str, Any]) -> Path:
    """The tensors of a sound DFlash under another config."""
    return write(folder, config, tensors_for("dflash", zlab()))


@pytest.mark.parametrize("taps", [[9, 1, 5], [1, 5, 5]])
def test_taps_out_of_order(taps: list[int], tmp_path: Path) -> None:
    """vLLM 0.33 and SGLang 0.5.23 capture in ascending order: the fusion layer would get its columns mixed up."""
    source = dflash(tmp_path / "a", zlab(dflash_config={"target_layer_ids": taps}))
    said = [item for item in inspect(source)["findings"] if item["code"] == "W_READER_DIFFERS"]
    assert {item["data"]["field"] for item in said} == {"taps"}
    assert {item["message"].split(":")[1].split()[0] for item in said} == {"vllm", "sglang"}
    words = {"target_model": target(tmp_path / "t"), **ID}
    assert refusal_of(source, "speculators", **words)[0] == "E_LOSS"
    to_speculators(source, tmp_path / "b", allow_loss=("taps",), **words)
    assert config_of(tmp_path / "b")["aux_hidden_state_layer_ids"] == [tap + 1 for tap in taps]


def test_a_tap_before_the_embedding(tmp_path: Path) -> None:
    config = speculators("dflash", aux_hidden_state_layer_ids=[-1, 6, 10])
    source = drafter(tmp_path / "a", "speculators-dflash", config)
    assert any("before the embedding" in message for message in errors(source))
    assert refusal_of(source, "dflash", target_model=target(tmp_path / "t"))[0] == "E_CONFIG"


UNFLAGGED = {**SLIDING3, "use_sliding_window": None}
WINDOWS: list[tuple[str, str, dict[str, Any], str]] = [
    ("no window", "dflash", zlab(**{**SLIDING3, "sliding_window": None}), "speculators"),
    ("no flag", "dflash", zlab(**{**SLIDING3, "use_sliding_window": False}), "speculators"),
    ("a window of 0", "dflash", zlab(**{**SLIDING3, "sliding_window": 0, "use_sliding_window": False}), "speculators"),
    (
        "nested, no flag",
        "speculators-dflash",
        speculators("dflash", layer={**SLIDING3, "use_sliding_window": None}),
        "dflash",
    ),
]


@pytest.mark.parametrize(("layout", "config", "to"), [row[1:] for row in WINDOWS], ids=[row[0] for row in WINDOWS])
def test_a_window_that_readers_take_differently(layout: str, config: dict[str, Any], to: str, tmp_path: Path) -> None:
    """Layers called sliding without an effective window: written as full attention only if that is allowed."""
    source = drafter(tmp_path / "a", layout, config)
    words: dict[str, Any] = {"target_model": target(tmp_path / "t"), **(ID if to == "speculators" else {})}
    code, message = refusal_of(source, to, **words)
    assert code == "E_LOSS"
    assert message.startswith("attention:")
    convert(source, tmp_path / "b", to=to, allow_loss=("attention",), **words)
    written = config_of(tmp_path / "b")
    assert written.get(LAYER, written)["layer_types"] == ["full_attention"] * 3


def test_causal_full_layers_are_lost_only_if_allowed(tmp_path: Path) -> None:
    """speculators 0.9.0 has no words for them; vLLM 0.33 still gets its causal flag."""
    source = dflash(tmp_path / "a", zlab(is_causal=True))
    words = {"target_model": target(tmp_path / "t"), **ID}
    assert refusal_of(source, "speculators", **words)[0] == "E_LOSS"
    to_speculators(source, tmp_path / "b", allow_loss=("attention",), **words)
    written = config_of(tmp_path / "b")
    assert written["sliding_window_non_causal"] is False
    assert "is_causal" not in written[LAYER]


def test_what_is_odd_about_the_source_is_said(tmp_path: Path) -> None:
    source = drafter(tmp_path / "a", "dflash2", zlab2(architectures=["DFlashDraftModel"]))
    made = to_speculators(source, tmp_path / "b", target_model=target(tmp_path / "t"), **ID)
    assert isinstance(made, Result)
    assert [item.code for item in made.findings].count("W_LAYOUT_LABEL") == 1


def test_other_draft_tokens_than_the_block_has(tmp_path: Path) -> None:
    source = drafter(tmp_path / "a", "speculators-dflash", speculators("dflash", tokens=5))
    big = target(tmp_path / "t")
    made = to_dflash(source, tmp_path / "b", target_model=big)
    assert isinstance(made, Result)
    said = [item for item in made.findings if item.code == "W_LOSS" and item.data["field"] == "draft_tokens"]
    assert said[0].fix == "give engines --num-speculative-tokens 5"
    usual = drafter(tmp_path / "c", "speculators-dflash", speculators("dflash", tokens=7))
    made = to_dflash(usual, tmp_path / "d", target_model=big)
    assert isinstance(made, Result)
    assert not [item for item in made.findings if item.code == "W_LOSS"]


COUNTS = ("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads")


@pytest.mark.parametrize("key", [*COUNTS, "head_dim", "vocab_size", "num_target_layers", "block_size"])
def test_counts_are_above_zero(key: str, tmp_path: Path) -> None:
    config = zlab(dflash_config={key: 0}) if key == "block_size" else zlab(**{key: 0})
    source = dflash(tmp_path / "a", config)
    assert any(f"{key}' is 0, not a whole number above 0" in message for message in errors(source))
    assert refusal_of(source, "speculators", target_model=target(tmp_path / "t"), **ID)[0] == "E_CONFIG"


def test_a_block_without_room_for_a_token(tmp_path: Path) -> None:
    source = dflash(tmp_path / "a", zlab(dflash_config={"block_size": 1}))
    assert refusal_of(source, "speculators", target_model=target(tmp_path / "t"), **ID)[0] == "E_CONFIG"


ROPES: list[tuple[dict[str, Any], str]] = [
    ({"rope_parameters": {"rope_theta": 0, "rope_type": "default"}}, "not above 0"),
    ({"rope_parameters": {"rope_theta": -1.0, "rope_type": "default"}}, "not above 0"),
    ({"rope_parameters": {"rope_theta": 1e7, "rope_type": ["yarn"]}}, "not a word"),
    ({"rope_parameters": {"rope_theta": 1e7, "rope_type": "yarn", "type": "linear", "factor": 4.0}}, "yarn and linear"),
    ({"rope_scaling": {"type": "yarn", "factor": 64.0}}, "default and yarn"),
]


@pytest.mark.parametrize(("keys", "words"), ROPES)
def test_ropes_that_are_none(keys: dict[str, Any], words: str, tmp_path: Path) -> None:
    source = dflash(tmp_path / "a", zlab(**keys))
    assert any(words in message for message in errors(source))
    code, message = refusal_of(source, "speculators", target_model=target(tmp_path / "t"), **ID)
    assert (code, words in message) == ("E_CONFIG", True)


def test_layer_types_that_no_reader_builds(tmp_path: Path) -> None:
    source = dflash(tmp_path / "a", zlab(layer_types=["full_attention", "chunked_attention", "full_attention"]))
    code, message = refusal_of(source, "speculators", target_model=target(tmp_path / "t"), **ID)
    assert (code, "chunked_attention" in message) == ("E_CONFIG", True)


@pytest.mark.parametrize("key", ["hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"])
def test_audit_misses_what_every_reader_needs(key: str, tmp_path: Path) -> None:
    source = dflash(tmp_path / "a", {name: value for name, value in zlab().items() if name != key})
    assert any("the config does not state" in message for message in errors(source))


def test_the_width_of_a_head_that_is_not_stated(tmp_path: Path) -> None:
    """Qwen3Config takes 128, whatever the hidden size; LlamaConfig divides."""
    source = dflash(tmp_path / "a", {name: value for name, value in zlab().items() if name != "head_dim"})
    assert any("the config implies [128]" in message for message in errors(source))
    config = speculators("eagle3", draft_vocab_size=DV)
    config[LAYER] = {**config[LAYER], "model_type": "llama", "num_hidden_layers": 1, "layer_types": ["full_attention"]}
    tensors = tensors_for("speculators-eagle3", config)
    del config[LAYER]["head_dim"]
    llama = write(tmp_path / "b", config, tensors)
    assert errors(llama) == []
    convert(llama, tmp_path / "c", to="eagle3", target_model=target(tmp_path / "t"))
    assert config_of(tmp_path / "c")["head_dim"] == 16


MASKS: list[tuple[Any, str]] = [
    ({"embedding": torch.zeros(64), "mask_token_id": "x"}, "for token 'x'"),
    ({"embedding": torch.zeros(64), "mask_token_id": None}, "for token None"),
    ({"embedding": torch.zeros(64), "mask_token_id": [187]}, "for token [187]"),
    (torch.full((64,), float("nan")), "not finite"),
]


@pytest.mark.parametrize(("stored", "words"), MASKS)
def test_mask_embeddings_that_are_none(stored: Any, words: str, tmp_path: Path) -> None:
    source = dflash(tmp_path / "a", zlab())
    torch.save(stored, source / "mask_embedding.pt")
    assert any(words in message for message in errors(source))
    assert any(words in item["message"] for item in inspect(source)["findings"])
    code, _ = refusal_of(source, "speculators", target_model=target(tmp_path / "t"), **ID)
    assert code == "E_MASK_EMBEDDING"


def test_a_target_whose_config_names_no_class(tmp_path: Path) -> None:
    source = dflash(tmp_path / "a", zlab())
    bare = target(tmp_path / "t", architectures=None)
    config = {key: value for key, value in config_of(bare).items() if key != "architectures"}
    (bare / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConvertError) as caught:
        to_speculators(source, tmp_path / "b", target_model=bare, **ID)
    assert "architectures" in str(caught.value.findings[0].fix)


def test_a_packed_eagle3_is_selected_under_the_name_that_vllm_gives_its_layer(tmp_path: Path) -> None:
    source = drafter(tmp_path / "a", "eagle3", eagle())
    pack_nvfp4(source, tmp_path / "p", dialect="compressed-tensors")
    targets = config_of(tmp_path / "p")["quantization_config"]["config_groups"]["group_0"]["targets"]
    assert targets == [r"re:.*\.mlp\..*"]
    big = target(tmp_path / "t")
    to_speculators(tmp_path / "p", tmp_path / "s", target_model=big, **ID)
    convert(tmp_path / "s", tmp_path / "q", to="eagle3", target_model=big)
    assert read(tmp_path / "q") == read(tmp_path / "p")
    assert config_of(tmp_path / "q")["quantization_config"] == config_of(tmp_path / "p")["quantization_config"]
