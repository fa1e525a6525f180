"""More planted faults: what users report of quantization configs, lost tensors, heads, drafter configs, KV scales."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from convertkit.errors import ConvertError
from convertkit.verbs.audit import AuditResult, audit
from tests.engines import hybrid_cases as hybrid
from tests.engines.cases import (
    MLP,
    QKV,
    SLIDING,
    _mixed,
    added,
    both,
    dropped,
    inner,
    reshaped,
    slug,
    top,
    undflash,
    untop,
)
from tests.engines.drafters import DV, TARGET, Draft, V, draft, write
from tests.engines.hybrid_cases import BODY, IGNORE, LLAMA_CT, QWEN_UNIFORM, ct, mixed, packed, uniform
from tests.engines.target_cases import model

Damage = Callable[[Draft], object]
DOWN = "model.layers.0.mlp.down_proj"
HEAD = (*BODY, "lm_head.")
NESTED = "model.layers.0.self_attn"


def retyped(name: str, dtype: str) -> Damage:
    return lambda made: made.put(name, dtype, *made.specs[name].shape)


def ids(values: list[int]) -> Damage:
    return lambda made: made.values.update({"d2t": np.array(values, np.int64).tobytes()})


def proposed(tokens: int) -> Damage:
    return lambda made: made.config["speculators_config"]["proposal_methods"][0].update(speculative_tokens=tokens)


MODELS: dict[str, tuple[str, Damage, str]] = {
    # the quantization config against the tensors
    "ignore entry of a wrapper": (
        "qwen3.5-moe-unfused", ct(BODY, ["model.visual.blocks.0.attn.proj.linear", *IGNORE]), "W_QCONFIG_MISMATCH"),
    "parent ignored, child packed": ("llama", ct(BODY, ["lm_head", "model.layers.0.mlp"]), "W_QCONFIG_MISMATCH"),
    "expression ignores what is packed": ("llama", ct(BODY, [r"re:model\.layers\.0\.mlp.*"]), "E_QCONFIG_MISMATCH"),
    "config ignores one of many": ("llama", ct(hybrid.MLP, ["lm_head"]), "E_QCONFIG_MISMATCH"),
    "head excluded but packed": ("qwen3", uniform(HEAD, ["lm_head*"]), "E_LOAD_REFUSED"),
    "fp8 under an excluded name": (
        "qwen3", both(uniform(hybrid.MLP, ["lm_head", "*self_attn*"]), retyped(f"{NESTED}.q_proj.weight", "F8_E4M3")),
        "E_LOAD_DTYPE"),
    "packed and not listed": ("qwen3", mixed(BODY, skip="layers.1.mlp.down_proj"), "E_QCONFIG_MISMATCH"),
    "codes without an entry": (
        "qwen3", both(mixed(hybrid.MLP), packed(f"{NESTED}.o_proj", "modelopt")), "E_LOAD_REFUSED"),
    "two files that differ": ("qwen3", both(QWEN_UNIFORM, hybrid.second_file), "E_QCONFIG_MISMATCH"),
    "dense, counted as packed": ("qwen3", uniform(hybrid.MLP, ["lm_head"]), "E_LOAD_REFUSED"),
    "vision ignored by its stored name": (
        "qwen3.5-moe-unfused", ct(BODY, ["lm_head", "re:model.visual.*", *IGNORE[2:]]), "E_LOAD_REFUSED"),
    "vision excluded without a star": (
        "qwen3.5-moe-unfused", uniform(BODY, ["lm_head", "model.visual", *hybrid.EXCLUDE[2:]]), "E_LOAD_REFUSED"),
    "one of two shards excluded": (
        "qwen3.5-moe-unfused", uniform(hybrid.ALL, ["lm_head", "model.visual*", *hybrid.BA[::2]]), "E_LOAD_REFUSED"),
    "one shard ignored": ("llama", ct(BODY, ["lm_head", f"{NESTED}.q_proj"]), "E_LOAD_REFUSED"),
    "ignore is null": ("llama", both(LLAMA_CT, hybrid.block(ignore=None)), "E_LOAD_REFUSED"),
    "scale bytes as U8": ("llama", both(LLAMA_CT, retyped(f"{DOWN}.weight_scale", "U8")), "E_LOAD_DTYPE"),
    "scale too narrow": ("llama", both(LLAMA_CT, reshaped(f"{DOWN}.weight_scale", 64, 4)), "E_LOAD_REFUSED"),
    "codes too wide": ("llama", both(LLAMA_CT, reshaped(f"{DOWN}.weight_packed", 64, 128)), "E_LOAD_CUT"),
    "global scale of two": ("llama", both(LLAMA_CT, reshaped(f"{DOWN}.weight_global_scale", 2)), "E_LOAD_REFUSED"),
    "input scales, not stated": ("llama", both(ct(BODY, ["lm_head"], a4=True), lambda made: made.config[
        "quantization_config"]["config_groups"]["group_0"].update(input_activations=None)), "E_LOAD_REFUSED"),
    "expert lost, packed": (
        "qwen3-moe", both(ct(BODY, ["lm_head", r"re:.*mlp\.gate$"]), dropped(
            "model.layers.1.mlp.experts.2.up_proj.weight_packed")), "E_LOAD_UNFILLED"),
    "router packed": ("qwen3.5-moe-unfused", both(hybrid.CT, packed(
        "model.language_model.layers.1.mlp.gate")), "E_LOAD_REFUSED"),
    # lost tensors and heads
    "next-token layers advertised": ("qwen3", top(num_nextn_predict_layers=1), "E_ADVERTISED_ABSENT"),
    "untied without head": ("qwen3", dropped("lm_head.weight"), "E_HEAD_MISSING"),
    "tied with head": ("qwen3", top(tie_word_embeddings=True), "N_TIED_HEAD"),
    "tied, packed head": ("qwen3", both(uniform(HEAD, []), top(tie_word_embeddings=True)), "E_LOAD_REFUSED"),
    "scales of a head alone": (
        "qwen3", both(uniform(HEAD, []), dropped("lm_head.weight")), "E_PACK_MISSING"),
    "tied outside only": ("qwen3.5-moe-unfused", both(
        dropped("lm_head.weight"), top(tie_word_embeddings=True)), "E_LOAD_UNFILLED"),
    "experts the config does not count": ("qwen3-moe", top(num_experts=3), "E_LOAD_DROPPED"),
    "experts that are not stored": ("qwen3-moe", top(num_experts=6), "E_LOAD_UNFILLED"),
    "vocabulary cut": ("llama", both(reshaped("model.embed_tokens.weight", 80, 64), reshaped(
        "lm_head.weight", 80, 64)), "E_LOAD_REFUSED"),
    "matrix transposed": ("llama", reshaped(f"{DOWN}.weight", 128, 64), "E_LOAD_REFUSED"),
    # scales of the KV cache
    "cache scale below attention": ("llama", both(LLAMA_CT, added(f"{NESTED}.k_scale", "F32", 1)), "W_KV_SCALES"),
    "cache scales below k and v": ("qwen3", both(QWEN_UNIFORM, added(f"{NESTED}.k_proj.k_scale", "F32"), added(
        f"{NESTED}.v_proj.v_scale", "F32")), "W_KV_SCALES"),
    "cache scale of a dense model": ("llama", added(f"{NESTED}.k_proj.k_scale", "F32"), "E_LOAD_REFUSED"),
}  # fmt: skip

DRAFTERS: dict[str, tuple[str, Damage, str]] = {
    "taps copied": ("speculators-dflash", top(aux_hidden_state_layer_ids=[1, 3, 5]), "W_TAPS"),
    "no layers stated": ("dflash", undflash("target_layer_ids"), "E_LOAD_REFUSED"),
    "second generation labelled first": ("dflash2", top(architectures=["DFlashDraftModel"]), "W_LAYOUT_LABEL"),
    "two bases of the rotation": ("dflash", top(rope_theta=1e4), "E_CONFIG"),
    "window without its flag": ("dflash", inner(**{**SLIDING, "use_sliding_window": False}), "W_SLIDING_WINDOW"),
    "absolute ids": ("speculators-dspark-reduced", ids(list(range(0, 128, 2))), "E_VOCABULARY_MAP"),
    "ids that repeat": ("speculators-dspark-reduced", ids([-i for i in range(64)]), "E_VOCABULARY_MAP"),
    "reduced without map": ("speculators-dflash-reduced", dropped("d2t"), "E_LOAD_UNFILLED"),
    "norm that nobody claims": ("dflash", added("aux_hidden_norms.0.weight", "BF16", 64), "E_LAYOUT_EXTRA"),
    "one token too many": ("speculators-dflash2", proposed(8), "E_DRAFT_TOKENS"),
    "label of the base model": ("dflash", top(architectures=["Qwen3ForCausalLM"]), "W_LAYOUT_LABEL"),
    "codes without a config": ("dflash2", both(_mixed(MLP), untop("quantization_config")), "E_QCONFIG_MISMATCH"),
    "scale of a wrong type": (
        "dflash2", both(_mixed(MLP), retyped("layers.0.mlp.gate_proj.weight_scale", "U8")), "E_LOAD_DTYPE"),
    "map of floats": ("speculators-dflash-reduced", added("d2t", "F32", 64), "E_LOAD_DTYPE"),
}  # fmt: skip

OF_SGLANG: dict[str, tuple[str, Damage]] = {
    "packed fc": ("dflash2", _mixed((*MLP, "fc"))),
    "packed q, k, v": ("dflash2", _mixed((*MLP, *QKV))),
}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("target")
    (folder / "config.json").write_text(json.dumps(dict(TARGET)))
    return folder


def made_of(made: Draft, damage: Damage, place: Path) -> Path:
    damage(made)
    return write(made, place)


def codes(made: AuditResult) -> set[str]:
    return {item.code for item in made.findings}


@pytest.mark.parametrize("name", MODELS)
def test_planted_faults_of_models(name: str, tmp_path: Path) -> None:
    kind, damage, code = MODELS[name]
    made = audit(made_of(model(kind), damage, tmp_path / slug(name)), engines=["vllm"])
    assert code in codes(made)
    assert made.status == (1 if any(item.severity == "error" for item in made.findings) else 0)


@pytest.mark.parametrize("name", DRAFTERS)
def test_planted_faults_of_drafters(name: str, target: Path, tmp_path: Path) -> None:
    kind, damage, code = DRAFTERS[name]
    made = audit(made_of(draft(kind), damage, tmp_path / slug(name)), engines=["vllm"], target_model=target)
    assert code in codes(made)


@pytest.mark.parametrize("name", OF_SGLANG)
def test_what_vllm_loads_and_sglang_does_not(name: str, target: Path, tmp_path: Path) -> None:
    kind, damage = OF_SGLANG[name]
    folder = made_of(draft(kind), damage, tmp_path / slug(name))
    made = audit(folder, engines=["vllm", "sglang"], target_model=target)
    assert made.document["engines"][0]["verdict"] == "loads"
    assert made.document["engines"][1]["verdict"] in ("wrong", "refused")
    assert made.status == 1


def test_files_that_do_not_belong_together(tmp_path: Path) -> None:
    """An index that names what its file lacks, the same tensor in two files, a file that the index does not name."""
    folder = write(model("qwen3"), tmp_path / "m")
    names = {"model.norm.weight": "model.safetensors", "model.nothing.weight": "model.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": names}))
    lacking = audit(folder, engines=["vllm"])
    assert (lacking.status, lacking.document["engines"][0]["verdict"]) == (3, "loads")
    double = write(model("qwen3"), tmp_path / "double")
    (double / "other.safetensors").write_bytes((double / "model.safetensors").read_bytes())
    twice = audit(double, engines=["vllm"])
    assert (twice.status, twice.document["engines"][0]["verdict"]) == (3, "loads")
    with pytest.raises(ConvertError, match="E_AMBIGUOUS_WEIGHTS"):
        audit(double)


def test_a_mask_that_disagrees_with_a_sound_map_is_a_fault_that_no_engine_serves(target: Path, tmp_path: Path) -> None:
    """Engines read d2t; t2d is from training."""
    made = draft("speculators-eagle3")
    made.values["d2t"] = np.arange(DV, dtype=np.int64).tobytes()
    made.values["t2d"] = bytes(int(token % 2 == 1 and token < 2 * DV) for token in range(V))
    audited = audit(write(made, tmp_path / "d"), engines=["vllm"], target_model=target)
    (found,) = [item for item in audited.findings if item.code == "E_VOCABULARY_MAP"]
    assert (found.where.tensor, audited.status) == ("t2d", 1)
    assert audited.document["engines"][0]["verdict"] == "loads"
    made.values["d2t"] = np.full(DV, V, np.int64).tobytes()
    audited = audit(write(made, tmp_path / "e"), engines=["vllm"], target_model=target)
    assert audited.document["engines"][0]["verdict"] == "wrong"
