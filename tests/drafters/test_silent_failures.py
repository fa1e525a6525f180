"""Ways in which a drafter converts or loads without a word and drafts badly: each planted and caught."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from convertkit.errors import ConvertError
from convertkit.verbs.audit import audit
from convertkit.verbs.case import Result
from convertkit.verbs.convert import convert
from convertkit.verbs.drafters import to_dflash, to_drafter, to_dspark, to_speculators
from convertkit.verbs.inspect import inspect
from convertkit.verbs.pack import pack_nvfp4
from tests.drafters.make import (
    DV,
    SLIDING3,
    V,
    config_of,
    deepspec,
    drafter,
    eagle,
    maps,
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


def without(config: dict[str, Any], *keys: str) -> dict[str, Any]:
    """A config without some keys; ``a.b`` means b inside a."""
    made = dict(config)
    for key in keys:
        outer, _, inner = key.partition(".")
        if inner:
            made[outer] = {name: value for name, value in made[outer].items() if name != inner}
        else:
            made.pop(outer)
    return made


def said(folder: Path, field: str) -> list[str]:
    """What inspect says of readers that understand a field otherwise."""
    return [
        item["message"]
        for item in inspect(folder)["findings"]
        if item["code"] == "W_READER_DIFFERS" and item["data"]["field"] == field
    ]


def codes(folder: Path) -> set[str]:
    """Codes of the errors of an audit."""
    return {item.code for item in audit(folder).findings if item.severity == "error"}


def refused(work: Callable[[], Any], code: str, *words: str) -> None:
    with pytest.raises(ConvertError) as caught:
        work()
    assert code in {item.code for item in caught.value.findings}
    for word in words:
        assert word in str(caught.value)


def test_01_layer_ids_change_their_convention(tmp_path: Path) -> None:
    source = drafter(tmp_path / "a", "dflash", zlab())
    to_speculators(source, tmp_path / "b", target_model=target(tmp_path / "t"), **ID)
    assert config_of(tmp_path / "b")["aux_hidden_state_layer_ids"] == [2, 6, 10]
    to_dflash(tmp_path / "b", tmp_path / "c")
    assert config_of(tmp_path / "c")["dflash_config"]["target_layer_ids"] == [1, 5, 9]


def test_02_full_attention_stays_bidirectional(tmp_path: Path) -> None:
    source = drafter(tmp_path / "a", "dflash", zlab())
    to_speculators(source, tmp_path / "b", target_model=target(tmp_path / "t"), **ID)
    assert config_of(tmp_path / "b")["sliding_window_non_causal"] is True
    upstream = drafter(tmp_path / "c", "speculators-dflash", speculators("dflash", sliding_window_non_causal=False))
    assert any("vllm" in message and "3 x full, causal" in message for message in said(upstream, "attention"))


def test_02_mixed_causality_is_refused(tmp_path: Path) -> None:
    mixed = {**SLIDING3, "layer_types": ["sliding_attention", "sliding_attention", "full_attention"]}
    source = drafter(tmp_path / "a", "dflash", zlab(**mixed))
    words = {"target_model": target(tmp_path / "t"), **ID}
    refused(lambda: to_speculators(source, tmp_path / "b", **words), "E_LOSS", "attention", "vllm")
    made = to_speculators(source, tmp_path / "b", allow_loss=("attention",), **words)
    assert any(item.code == "W_LOSS" for item in made.plan.findings)
    assert made.plan.parameters["allow_loss"] == ["attention"]


def test_03_is_causal_false_is_kept(tmp_path: Path) -> None:
    source = drafter(tmp_path / "a", "dflash2", zlab2())
    to_speculators(source, tmp_path / "b", target_model=target(tmp_path / "t"), **ID)
    written = config_of(tmp_path / "b")
    assert (written["sliding_window_non_causal"], written[LAYER]["is_causal"]) == (True, False)


def test_03_two_statements_about_causality_that_disagree(tmp_path: Path) -> None:
    source = drafter(tmp_path / "a", "speculators-dflash", speculators("dflash", layer={"is_causal": True}))
    assert "E_CONFIG" in codes(source)
    refused(lambda: to_dflash(source, tmp_path / "b", target_model=target(tmp_path / "t")), "E_CONFIG", "is_causal")


def test_04_the_window_is_written_with_its_flag(tmp_path: Path) -> None:
    config = without(speculators("dflash", layer=SLIDING3), f"{LAYER}.use_sliding_window")
    assert said(drafter(tmp_path / "a", "speculators-dflash", config), "attention")
    source = drafter(tmp_path / "b", "speculators-dflash2", speculators("dflash2", layer=SLIDING3))
    to_dflash(source, tmp_path / "c", target_model=target(tmp_path / "t"))
    written = config_of(tmp_path / "c")
    assert (written["sliding_window"], written["use_sliding_window"]) == (32, True)
    assert written["layer_types"] == ["sliding_attention"] * 3


@pytest.mark.parametrize("name", ["layers.1.self_attn.k_proj.weight", "layers.2.mlp.up_proj.weight", "norm.weight"])
def test_05_a_missing_tensor(name: str, tmp_path: Path) -> None:
    tensors = tensors_for("dflash", zlab())
    del tensors[name]
    source = write(tmp_path / "a", zlab(), tensors)
    assert "E_LAYOUT_MISSING" in codes(source)
    words = {"target_model": target(tmp_path / "t"), **ID}
    refused(lambda: to_speculators(source, tmp_path / "b", **words), "E_LAYOUT_MISSING", name)
    assert not (tmp_path / "b").exists()


def test_06_codebooks_get_their_bare_names(tmp_path: Path) -> None:
    tensors = tensors_for("dflash2", zlab2())
    for name in [name for name in tensors if name.endswith("codebook")]:
        tensors[f"{name}.weight"] = tensors.pop(name)
    source = write(tmp_path / "a", zlab2(), tensors)
    assert "W_CODEBOOK_NAME" in {item["code"] for item in inspect(source)["findings"]}
    to_dflash(source, tmp_path / "b")
    assert {name for name in read(tmp_path / "b") if "codebook" in name} == {
        "candidate_selector.predecessor_codebook",
        "candidate_selector.successor_codebook",
    }


def test_07_a_reduced_vocabulary_without_its_map(tmp_path: Path) -> None:
    config = speculators("dflash", draft_vocab_size=DV)
    tensors = tensors_for("speculators-dflash", config)
    del tensors["d2t"]
    source = write(tmp_path / "a", config, tensors)
    assert "E_LAYOUT_MISSING" in codes(source)
    assert any("draft ids are taken for target ids" in message for message in said(source, "draft_vocabulary"))
    flat = drafter(tmp_path / "b", "dflash", zlab(draft_vocab_size=DV))
    assert any("without a head of its own" in message for message in said(flat, "draft_vocabulary"))


def test_08_absolute_ids_become_offsets(tmp_path: Path) -> None:
    config = speculators("dspark", draft_vocab_size=DV)
    tensors = {**tensors_for("speculators-dspark", config), **maps("absolute")}
    source = write(tmp_path / "a", config, tensors)
    assert "E_VOCABULARY_MAP" in codes(source)
    made = to_dspark(source, tmp_path / "b", target_model=target(tmp_path / "t"))
    assert any(item.code == "W_VOCABULARY_MAP" for item in made.plan.findings)
    assert read(tmp_path / "b")["d2t"] == maps("offsets")["d2t"]


def test_08_a_map_that_leads_outside(tmp_path: Path) -> None:
    config = speculators("dspark", draft_vocab_size=DV)
    tensors = tensors_for("speculators-dspark", config)
    numbers = np.frombuffer(tensors["d2t"][2], "<i8").copy()
    numbers[-1] = V
    tensors["d2t"] = ("I64", (DV,), numbers.tobytes())
    source = write(tmp_path / "a", config, tensors)
    assert "E_VOCABULARY_MAP" in codes(source)
    words = {"target_model": target(tmp_path / "t")}
    refused(lambda: to_dspark(source, tmp_path / "b", **words), "E_VOCABULARY_MAP", "outside")


def test_09_the_draft_vocabulary_is_always_stated(tmp_path: Path) -> None:
    silent = drafter(tmp_path / "a", "speculators-dflash", without(speculators("dflash"), "draft_vocab_size"))
    assert any("192" in message and "32000" in message for message in said(silent, "draft_vocabulary"))
    source = drafter(tmp_path / "b", "dflash", zlab())
    to_speculators(source, tmp_path / "c", target_model=target(tmp_path / "t"), **ID)
    assert config_of(tmp_path / "c")["draft_vocab_size"] == V


def test_10_sampling_from_the_anchor_is_always_stated(tmp_path: Path) -> None:
    silent = drafter(tmp_path / "a", "speculators-dspark", without(speculators("dspark"), "sample_from_anchor"))
    assert any("vllm" in message for message in said(silent, "sample_from_anchor"))
    source = drafter(tmp_path / "b", "dspark", deepspec())
    to_speculators(source, tmp_path / "c", target_model=target(tmp_path / "t", layers=36), **ID)
    written = config_of(tmp_path / "c")
    assert written["sample_from_anchor"] is True
    assert written["speculators_config"]["proposal_methods"][0]["speculative_tokens"] == 7
    late = drafter(tmp_path / "d", "speculators-dspark", speculators("dspark", sample_from_anchor=False, tokens=7))
    to_dspark(late, tmp_path / "e", target_model=target(tmp_path / "t2"))
    assert config_of(tmp_path / "e")["sample_from_anchor"] is False


def test_11_norm_before_residual_is_always_stated(tmp_path: Path) -> None:
    silent = drafter(tmp_path / "a", "speculators-eagle3", without(speculators("eagle3"), "norm_before_residual"))
    assert any("vllm" in message and "true" in message for message in said(silent, "norm_before_residual"))
    source = drafter(tmp_path / "b", "eagle3", eagle())
    to_speculators(source, tmp_path / "c", target_model=target(tmp_path / "t"), **ID)
    assert config_of(tmp_path / "c")["norm_before_residual"] is False


def test_12_norms_that_vllm_drops_from_peagle(tmp_path: Path) -> None:
    source = drafter(tmp_path / "a", "speculators-peagle", speculators("peagle", fc_norm=True, norm_output=True))
    assert any("vllm" in message for message in said(source, "fc_norm"))
    assert any("vllm" in message for message in said(source, "norm_output"))


@pytest.mark.parametrize(
    ("key", "value", "field"),
    [
        ("output_multiplier", 0.5, "output_multiplier"),
        ("final_logit_softcapping", 30.0, "softcap"),
        ("input_embedding_scale", 2.0, "embedding_scale"),
    ],
)
def test_13_scale_factors_have_no_place_in_speculators(key: str, value: float, field: str, tmp_path: Path) -> None:
    source = drafter(tmp_path / "a", "dflash2", zlab2(dflash_config={key: value}))
    words = {"target_model": target(tmp_path / "t"), **ID}
    refused(lambda: to_speculators(source, tmp_path / "b", **words), "E_LOSS", field)
    to_speculators(source, tmp_path / "b", allow_loss=(field,), **words)
    assert (tmp_path / "b" / "MANIFEST.json").exists()


def test_14_draft_tokens_follow_the_block(tmp_path: Path) -> None:
    odd = drafter(tmp_path / "a", "speculators-dflash2", speculators("dflash2", layer=SLIDING3, tokens=5))
    assert any("shift the convolutions" in message for message in said(odd, "draft_tokens"))
    source = drafter(tmp_path / "b", "dflash2", zlab2())
    to_speculators(source, tmp_path / "c", target_model=target(tmp_path / "t"), **ID)
    assert config_of(tmp_path / "c")["speculators_config"]["proposal_methods"][0]["speculative_tokens"] == 7


def test_15_the_block_size_is_in_both_places(tmp_path: Path) -> None:
    source = drafter(tmp_path / "a", "speculators-dflash", speculators("dflash"))
    to_dflash(source, tmp_path / "b", target_model=target(tmp_path / "t"))
    written = config_of(tmp_path / "b")
    assert written["block_size"] == written["dflash_config"]["block_size"] == 8
    torn = drafter(tmp_path / "c", "dflash", zlab(block_size=16))
    assert "E_CONFIG" in codes(torn)


def test_16_rope_is_written_out(tmp_path: Path) -> None:
    silent = without(speculators("dflash"), f"{LAYER}.rope_parameters")
    assert said(drafter(tmp_path / "a", "speculators-dflash", silent), "rope")
    leaked = zlab(rope_parameters={"rope_theta": 10000000, "rope_type": "default", "partial_rotary_factor": 0.25})
    found = said(drafter(tmp_path / "b", "dflash", leaked), "rope")
    assert any("vllm" in message and "0.25 of each head" in message for message in found)
    old = without(zlab(), "rope_parameters") | {"rope_theta": 5000000.0}
    source = drafter(tmp_path / "c", "dflash", old)
    to_speculators(source, tmp_path / "d", target_model=target(tmp_path / "t"), **ID)
    layer = config_of(tmp_path / "d")[LAYER]
    assert layer["rope_parameters"] == {"rope_theta": 5000000.0, "rope_type": "default"}
    assert layer["rope_theta"] == 5000000.0
    torn = drafter(tmp_path / "e", "dflash", zlab(rope_theta=10000.0))
    assert "E_CONFIG" in codes(torn)


def test_17_the_mask_embedding_travels(tmp_path: Path) -> None:
    source = drafter(tmp_path / "a", "dflash", zlab())
    stream = io.BytesIO()
    torch.save({"embedding": torch.zeros(64), "mask_token_id": 187}, stream)
    (source / "mask_embedding.pt").write_bytes(stream.getvalue())
    to_speculators(source, tmp_path / "b", target_model=target(tmp_path / "t"), **ID)
    assert (tmp_path / "b" / "mask_embedding.pt").read_bytes() == stream.getvalue()
    torch.save({"embedding": torch.zeros(64), "mask_token_id": 5}, source / "mask_embedding.pt")
    assert "E_MASK_EMBEDDING" in codes(source)


def test_18_a_mask_token_beyond_the_target(tmp_path: Path) -> None:
    source = drafter(tmp_path / "a", "dflash", zlab())
    small = target(tmp_path / "t", vocab_size=180)
    words = {"target_model": small, **ID}
    refused(lambda: to_speculators(source, tmp_path / "b", **words), "E_TARGET_MISMATCH", "mask token 187")
    assert "E_CONFIG" in codes(drafter(tmp_path / "c", "dflash", zlab(dflash_config={"mask_token_id": 200})))


def test_19_the_sense_of_a_global_scale_goes_with_its_name(tmp_path: Path) -> None:
    """A ModelOpt pack keeps its multiplier in speculators; re-spelled it becomes the divisor."""
    source = drafter(tmp_path / "a", "dflash", zlab())
    pack_nvfp4(source, tmp_path / "p")
    words = {"target_model": target(tmp_path / "t"), **ID}
    to_speculators(tmp_path / "p", tmp_path / "b", **words)
    convert(tmp_path / "b", tmp_path / "c", to="nvfp4-ct")
    name = "layers.0.mlp.gate_proj"
    one = np.frombuffer(read(tmp_path / "p")[f"{name}.weight_scale_2"][2], "<f4")
    assert read(tmp_path / "b")[f"{name}.weight_scale_2"][2] == one.tobytes()
    other = np.frombuffer(read(tmp_path / "c")[f"{name}.weight_global_scale"][2], "<f4")
    assert other == np.float32(1) / one


def test_20_unequal_scales_of_fused_parts(tmp_path: Path) -> None:
    pack_nvfp4(drafter(tmp_path / "a", "dflash", zlab()), tmp_path / "p")
    tensors = read(tmp_path / "p")
    tensors["layers.0.mlp.up_proj.weight_scale_2"] = ("F32", (), np.float32(0.5).tobytes())
    source = write(tmp_path / "b", config_of(tmp_path / "p"), tensors)
    words = {"target_model": target(tmp_path / "t"), **ID}
    refused(lambda: to_speculators(source, tmp_path / "c", **words), "E_FUSED_SCALE")


def test_21_quantization_names_fit_the_engine(tmp_path: Path) -> None:
    source = drafter(tmp_path / "a", "dflash2", zlab2())
    pack_nvfp4(source, tmp_path / "p", dialect="compressed-tensors")
    to_speculators(tmp_path / "p", tmp_path / "b", target_model=target(tmp_path / "t"), **ID)
    block = config_of(tmp_path / "b")["quantization_config"]
    assert block["config_groups"]["group_0"]["targets"] == [r"re:.*\.mlp\..*"]
    assert block["ignore"] == []


def test_21_layer_names_move_with_the_tensors(tmp_path: Path) -> None:
    """EAGLE-3's one layer is called midlayer, layers.0, and in a ModelOpt config after the target's last."""
    big = target(tmp_path / "t")
    pack_nvfp4(drafter(tmp_path / "a", "eagle3", eagle()), tmp_path / "p", target_model=big)
    to_speculators(tmp_path / "p", tmp_path / "b", target_model=big, **ID)
    names = read(tmp_path / "b")
    assert "layers.0.mlp.gate_proj.weight_scale" in names
    assert not any(name.startswith("midlayer.") for name in names)
    layers = config_of(tmp_path / "b")["quantization_config"]["quantized_layers"]
    assert set(layers) == {f"model.layers.12.mlp.{leaf}_proj" for leaf in ("gate", "up", "down")}


def test_22_a_bias_that_the_config_denies(tmp_path: Path) -> None:
    tensors = tensors_for("dflash", zlab(attention_bias=True))
    source = write(tmp_path / "a", zlab(), tensors)
    assert "E_LAYOUT_EXTRA" in codes(source)
    words = {"target_model": target(tmp_path / "t"), **ID}
    refused(lambda: to_speculators(source, tmp_path / "b", **words), "E_LAYOUT_EXTRA", "bias")


def test_23_confidence_flags_are_always_stated(tmp_path: Path) -> None:
    config = without(deepspec(), "enable_confidence_head", "confidence_head_with_markov")
    source = drafter(tmp_path / "a", "dspark", config)
    assert any("vllm" in message for message in said(source, "confidence_head"))
    to_speculators(source, tmp_path / "b", target_model=target(tmp_path / "t", layers=36), **ID)
    written = config_of(tmp_path / "b")
    assert (written["enable_confidence_head"], written["confidence_head_with_markov"]) == (True, True)


def test_24_a_tap_on_the_last_layer_stays(tmp_path: Path) -> None:
    source = drafter(tmp_path / "a", "dflash", zlab(dflash_config={"target_layer_ids": [1, 5, 11]}))
    to_speculators(source, tmp_path / "b", target_model=target(tmp_path / "t"), **ID)
    assert config_of(tmp_path / "b")["aux_hidden_state_layer_ids"] == [2, 6, 12]
    assert read(tmp_path / "b")["fc.weight"] == read(source)["fc.weight"]


def test_25_the_quantization_config_is_at_the_top(tmp_path: Path) -> None:
    pack_nvfp4(drafter(tmp_path / "a", "dflash", zlab()), tmp_path / "p")
    to_speculators(tmp_path / "p", tmp_path / "b", target_model=target(tmp_path / "t"), **ID)
    written = config_of(tmp_path / "b")
    assert "quantization_config" in written
    assert "quantization_config" not in written[LAYER]
    nested = dict(written)
    nested[LAYER] = {**written[LAYER], "quantization_config": nested.pop("quantization_config")}
    source = write(tmp_path / "c", nested, read(tmp_path / "b"))
    to_dflash(source, tmp_path / "d")
    assert config_of(tmp_path / "d")["quantization_config"] == written["quantization_config"]


def test_what_a_format_cannot_hold_names_the_field(tmp_path: Path) -> None:
    """A reduced vocabulary in z-lab DFlash, a gated Markov head in vLLM, a key that nobody knows."""
    small = target(tmp_path / "t")
    reduced = drafter(tmp_path / "a", "speculators-dflash", speculators("dflash", draft_vocab_size=DV))
    refused(lambda: to_dflash(reduced, tmp_path / "b", target_model=small), "E_LOSS", "draft_vocabulary")
    made = to_dflash(reduced, tmp_path / "b", target_model=small, allow_loss=("draft_vocabulary",))
    assert {drop.name for drop in made.plan.drops} == {"lm_head.weight", "d2t", "t2d"}
    gated = drafter(tmp_path / "c", "speculators-dspark", speculators("dspark", markov_head_type="gated"))
    refused(lambda: to_dspark(gated, tmp_path / "d", target_model=small), "E_LOSS", "markov_head")
    to_dspark(gated, tmp_path / "d", target_model=small, allow_loss=("markov_head",))
    assert "markov_head.gate_proj.bias" in read(tmp_path / "d")
    strange = drafter(tmp_path / "e", "dflash", zlab(dflash_config={"attention_value_scale": 0.7}))
    words = {"target_model": small, **ID}
    refused(lambda: to_speculators(strange, tmp_path / "f", **words), "E_LOSS", "dflash_config.attention_value_scale")


def test_a_tensor_that_the_format_does_not_know(tmp_path: Path) -> None:
    """A norm that some exports have: leaving it out must be allowed by its name, and is listed."""
    name = "aux_hidden_norms.0.weight"
    tensors = tensors_for("dflash", zlab()) | {name: ("BF16", (64,), bytes(128))}
    source = write(tmp_path / "a", zlab(), tensors)
    words = {"target_model": target(tmp_path / "t"), **ID}
    refused(lambda: to_speculators(source, tmp_path / "b", **words), "E_LOSS", name)
    made = to_speculators(source, tmp_path / "b", allow_loss=(name,), **words)
    assert [drop.name for drop in made.plan.drops] == [name]
    assert name not in read(tmp_path / "b")


def test_an_eagle_that_reads_no_features(tmp_path: Path) -> None:
    """``use_aux_hidden_state`` false is another algorithm; true is what every EAGLE-3 does."""
    words = {"target_model": target(tmp_path / "t"), **ID}
    usual = drafter(tmp_path / "a", "eagle3", eagle(eagle_config={"use_aux_hidden_state": True}))
    to_speculators(usual, tmp_path / "b", **words)
    other = drafter(tmp_path / "c", "eagle3", eagle(eagle_config={"use_aux_hidden_state": False}))
    key = "eagle_config.use_aux_hidden_state"
    refused(lambda: to_speculators(other, tmp_path / "d", **words), "E_LOSS", key)


def test_there_is_no_way_between_families(tmp_path: Path) -> None:
    source = drafter(tmp_path / "a", "dflash", zlab())
    refused(lambda: to_dspark(source, tmp_path / "b"), "E_NO_ROUTE", "dflash")
    refused(lambda: to_drafter(source, tmp_path / "b", to="eagle3", verb="convert"), "E_NO_ROUTE")


def test_26_a_mask_token_that_nobody_states(tmp_path: Path) -> None:
    config = zlab()
    del config["dflash_config"]["mask_token_id"]
    source = drafter(tmp_path / "d", "dflash", config)
    [item] = [item for item in audit(source).findings if item.data.get("field") == "mask_token"]
    assert (item.code, item.severity) == ("W_READER_DIFFERS", "warning")
    assert "does not state it" in item.message


def test_27_taps_and_block_that_a_package_makes_up(tmp_path: Path) -> None:
    config = zlab()
    del config["dflash_config"]["target_layer_ids"], config["dflash_config"]["block_size"]
    source = drafter(tmp_path / "d", "dflash", zlab())
    (source / "config.json").write_text(json.dumps(config))
    made = to_speculators(source, tmp_path / "out", target_model=target(tmp_path / "t"), **ID)
    assert isinstance(made, Result)
    told = {item.data["field"]: item.message for item in made.findings if "field" in item.data}
    assert "its own package takes 1, 5, 9, which is written" in told["taps"]
    assert "its own package takes 16, which is written" in told["block_size"]
    assert config_of(tmp_path / "out")["block_size"] == 16
    whole = to_speculators(
        drafter(tmp_path / "w", "dflash", zlab()), tmp_path / "w2", target_model=tmp_path / "t", **ID
    )
    assert isinstance(whole, Result)
    assert [item for item in whole.findings if item.data.get("field") in ("taps", "block_size")] == []


def test_28_the_audit_of_a_reduced_vocabulary_without_its_map_fails(tmp_path: Path) -> None:
    source = drafter(tmp_path / "whole", "eagle3", eagle())
    assert "E_VOCABULARY" not in [item.code for item in audit(source).findings]
    kept = {name: row for name, row in read(source).items() if name not in ("d2t", "t2d")}
    made = audit(write(tmp_path / "short", eagle(), kept))
    [item] = [item for item in made.findings if item.code == "E_VOCABULARY"]
    assert made.status == 1
    assert f"the {DV} draft tokens are taken for the first {DV} of the {V}" in item.message
