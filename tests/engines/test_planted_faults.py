"""Every planted fault is found by ``audit`` with its code, and nothing that is whole has an error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from convertkit.errors import ConvertError
from convertkit.verbs.audit import AuditResult, audit
from tests.engines.cases import Case, build, cases, dflash, inner, split, top
from tests.engines.drafters import KINDS, TARGET, H, V, draft, write
from tests.engines.target_cases import build_target, target_cases

FIXTURES = Path(__file__).parents[2] / "fixtures"

FAULTS: dict[str, str] = {
    # what the reference notes call silent ways a conversion goes wrong
    "aux ids copied": "W_TAPS",
    "converted, key false": "E_READER_DIFFERS",
    "causal override": "E_READER_DIFFERS",
    "sliding without flag": "E_LOAD_REFUSED",
    "nested sliding without flag": "E_READER_DIFFERS",
    "sliding without window": "E_LOAD_REFUSED",
    "dflash, no q": "E_LOAD_UNFILLED",
    "dflash, no k": "E_LOAD_UNFILLED",
    "dflash, no gate": "E_LOAD_UNFILLED",
    "dflash, no final norm": "E_LOAD_UNFILLED",
    "dflash, no fc": "E_LOAD_UNFILLED",
    "dflash2, no layer 1": "E_LOAD_UNFILLED",
    "shard missing, no index": "E_LOAD_UNFILLED",
    "codebooks as weights": "E_LOAD_REFUSED",
    "no codebook": "E_LOAD_UNFILLED",
    "no d2t": "E_LOAD_UNFILLED",
    "no head": "E_VOCABULARY",
    "no head, eagle3": "E_VOCABULARY",
    "absolute d2t": "E_VOCABULARY_MAP",
    "draft vocabulary not stated": "E_LOAD_REFUSED",
    "draft vocabulary null": "E_LOAD_REFUSED",
    "anchor not stated": "E_READER_DIFFERS",
    "norm flag not stated": "E_READER_DIFFERS",
    "p-eagle with fc norm": "E_LOAD_REFUSED",
    "output multiplier nested": "E_READER_DIFFERS",
    "tokens are not block - 1": "E_DRAFT_TOKENS",
    "rope not stated, nested": "E_READER_DIFFERS",
    "mask token beyond the vocabulary": "E_MASK_TOKEN",
    "no mask token": "E_MASK_TOKEN",
    "mixed, unequal scales": "E_FUSED_SCALE",
    "ct mlp, unequal scales": "E_FUSED_SCALE",
    "ct mlp, exact names": "E_LOAD_REFUSED",
    "bias stored, not stated": "E_LOAD_DROPPED",
    "bias stated, not stored": "E_LOAD_UNFILLED",
    "confidence not stated": "E_READER_DIFFERS",
    "gated markov": "E_LOAD_REFUSED",
    # names
    "dflash, model prefix": "W_NAME_PREFIX",
    "dflash, unknown tensor": "E_LOAD_REFUSED",
    "dflash, unknown top tensor": "E_LOAD_REFUSED",
    "dflash, stray bias": "E_LOAD_DROPPED",
    "dflash, gate too tall": "E_LOAD_CUT",
    "dflash, fc too wide": "E_LOAD_REFUSED",
    "q twice": "E_LOAD_DROPPED",
    "dflash2 labelled dflash": "W_LAYOUT_LABEL",
    "dflash labelled dflash2": "E_LOAD_REFUSED",
    "base model's label": "E_LOAD_REFUSED",
    "no architectures": "E_LOAD_REFUSED",
    "model type left at top": "E_LOAD_REFUSED",
    # taps
    "tap beyond target": "E_TAPS",
    "taps not rising": "E_TAPS",
    "one tap less": "E_LOAD_REFUSED",
    "no taps": "E_LOAD_REFUSED",
    "eagle with 4 taps, llama": "E_LOAD_REFUSED",
    "target hidden size": "E_PAIR",
    # quantization config against tensors
    "mixed, no block scale": "E_PACK_MISSING",
    "mixed, no global scale": "E_PACK_MISSING",
    "mixed, no codes": "E_PACK_MISSING",
    "mixed, gate and up unlisted": "E_QCONFIG_MISMATCH",
    "mixed, dense listed": "E_QCONFIG_MISMATCH",
    "mixed, two algorithms": "E_LOAD_REFUSED",
    "mixed, no layers": "E_QCONFIG",
    "mixed, no config at all": "E_QCONFIG_MISMATCH",
    "mixed, w4a4 without inputs": "E_LOAD_UNFILLED",
    "uniform mlp, fc not ignored": "E_QCONFIG_MISMATCH",
    "uniform mlp, shard names": "E_LOAD_REFUSED",
    "uniform mlp, substring": "E_QCONFIG_MISMATCH",
    "uniform in hf_quant_config": "E_LOAD_REFUSED",
    "uniform, algorithm unknown": "E_UNSUPPORTED_QUANT",
    "ct mlp, fc not ignored": "E_LOAD_REFUSED",
    "ct planes, modelopt config": "E_QCONFIG_MISMATCH",
    "mixed, one dense shard": "E_LOAD_REFUSED",
    "mixed, eagle3 by stored names": "E_LOAD_REFUSED",
    "width not of 16": "E_LOAD_REFUSED",
}
"""Case and the code that must be among its findings."""

TARGET_FAULTS: dict[str, str] = {
    "hybrid nested vision": "W_VISION_NESTED",
    "hybrid stripped": "E_LOAD_REFUSED",
    "hybrid without prefix": "E_LOAD_REFUSED",
    "hybrid doubled": "W_NAME_PREFIX",
    "hybrid without vision": "E_ADVERTISED_ABSENT",
    "hybrid mtp advertised": "E_ADVERTISED_ABSENT",
    "hybrid no conv": "E_LOAD_UNFILLED",
    "hybrid no decay": "E_LOAD_REFUSED",
    "hybrid lost expert": "E_LOAD_UNFILLED",
    "hybrid no shared gate": "E_LOAD_UNFILLED",
    "hybrid z too wide": "E_LOAD_CUT",
    "hybrid expert renamed": "E_LOAD_UNFILLED",
    "qwen3, no head": "E_LOAD_UNFILLED",
    "qwen3, no embedding": "E_LOAD_UNFILLED",
    "qwen3, no layer 1": "E_LAYOUT_MISSING",
    "qwen3, nested prefix": "E_LOAD_REFUSED",
    "moe lost expert": "E_LOAD_UNFILLED",
    "moe no router": "E_LOAD_UNFILLED",
}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("target")
    (folder / "config.json").write_text(json.dumps(dict(TARGET)))
    return folder


def codes(made: AuditResult) -> set[str]:
    return {item.code for item in made.findings}


@pytest.mark.parametrize(("name", "code"), FAULTS.items())
def test_planted_faults_of_drafters(name: str, code: str, target: Path, tmp_path: Path) -> None:
    made = audit(write(build(dict(cases())[name]), tmp_path / "d"), engines=["vllm"], target_model=target)
    assert code in codes(made)
    assert made.status == (1 if any(item.severity == "error" for item in made.findings) else 0)


@pytest.mark.parametrize(("name", "code"), TARGET_FAULTS.items())
def test_planted_faults_of_targets(name: str, code: str, tmp_path: Path) -> None:
    made = audit(write(build_target(dict(target_cases())[name]), tmp_path / "t"), engines=["vllm"])
    assert code in codes(made)
    assert made.status == 1 or code.startswith("W_")


@pytest.mark.parametrize("kind", KINDS)
def test_whole_drafters_have_no_error(kind: str, target: Path, tmp_path: Path) -> None:
    made = audit(write(draft(kind), tmp_path / "d"), engines=["all"], target_model=target)
    assert made.status == 0
    assert made.document["engines"][0]["verdict"] == "loads"


@pytest.mark.parametrize("name", ["hybrid whole", "hybrid fused experts whole", "hybrid with mtp", "qwen3 packed"])
def test_whole_targets_have_no_error(name: str, tmp_path: Path) -> None:
    made = audit(write(build_target(dict(target_cases())[name]), tmp_path / "t"), engines=["all"])
    assert made.status == 0
    assert made.document["engines"][0]["verdict"] == "loads"


@pytest.mark.parametrize("name", sorted(path.name for path in FIXTURES.iterdir() if path.is_dir()))
def test_fixtures_have_no_error(name: str) -> None:
    made = audit(FIXTURES / name, engines=["vllm", "sglang"])
    foreign = any(item.code == "E_UNSUPPORTED_QUANT" for item in made.findings)
    assert foreign == ("fp8" in name)
    # SGLang's Qwen3 names no fused linears, so it finds none of those that a mixed config lists
    refused = name == "modelopt-export-mixed-tiny"
    found = {item.code for item in made.findings if item.severity == "error"}
    assert ("E_LOAD_REFUSED" in found) == refused
    assert made.status == (1 if foreign or refused else 0)
    assert made.document["engines"][0]["verdict"] == ("unknown" if foreign else "loads")


def test_a_lost_shard_of_an_index_is_refused_on_opening(tmp_path: Path) -> None:
    folder = write(build(Case("dflash", split(index=True, lost=True))), tmp_path / "d")
    with pytest.raises(ConvertError) as caught:
        audit(folder)
    assert caught.value.code == "E_SHARD_MISSING"
    made = audit(folder, engines=["vllm"])
    assert made.status == 3
    assert [item.code for item in made.findings] == ["E_SHARD_MISSING", "E_LOAD_REFUSED"]
    (view,) = made.document["engines"]
    assert (view["verdict"], view["message"]) == (
        "refused", "Weight files referenced in index but missing: model-2.safetensors"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("keys", "code"),
    [
        ({"hidden_size": 2 * H}, "E_PAIR"),
        ({"vocab_size": V // 2}, "W_PAIR"),
        ({"vocab_size": 2 * V}, "E_PAIR"),
        ({"num_hidden_layers": 4}, "E_TAPS"),
        ({"num_hidden_layers": 9}, "E_PAIR"),
    ],
)
def test_another_target(keys: dict[str, Any], code: str, tmp_path: Path) -> None:
    folder = tmp_path / "target"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**TARGET, **keys}))
    made = audit(write(draft("dflash"), tmp_path / "d"), engines=["vllm"], target_model=folder)
    assert code in codes(made)


def test_a_window_beside_recurrent_layers_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "target"
    folder.mkdir()
    kinds = ["linear_attention"] * 6 + ["full_attention"] * 2
    (folder / "config.json").write_text(json.dumps({**TARGET, "layer_types": kinds}))
    sliding = inner(layer_types=["sliding_attention"] * 2, sliding_window=32, use_sliding_window=True, is_causal=False)
    made = audit(write(build(Case("dflash2", sliding)), tmp_path / "d"), engines=["vllm"], target_model=folder)
    assert "W_PAIR" in codes(made)
    assert made.status == 0


def test_unproven_versions_are_unknown(target: Path, tmp_path: Path) -> None:
    folder = write(draft("dflash"), tmp_path / "d")
    made = audit(folder, engines=["vllm@0.29", "vllm@0.33", "sglang@1.0"], target_model=target)
    assert [view["verdict"] for view in made.document["engines"]] == ["unknown", "loads", "unknown"]
    assert codes(made) == {"W_ENGINE_UNKNOWN"}
    assert any("hybrid-window" in rule for rule in made.document["engines"][0]["rules"])


@pytest.mark.parametrize("words", ["vllm@", "tensorrt", "vllm@0.33; rm", "sglang@../x"])
def test_engines_that_are_none(words: str, tmp_path: Path) -> None:
    with pytest.raises(ConvertError) as caught:
        audit(write(draft("dflash"), tmp_path / "d"), engines=[words])
    assert caught.value.status == 2


def test_settings_follow_from_the_checkpoint(target: Path, tmp_path: Path) -> None:
    made = audit(
        write(build(Case("dflash2", dflash(block_size=10))), tmp_path / "two"), engines=["vllm"], target_model=target
    )
    settings = {row["name"]: row for row in made.document["engines"][0]["settings"]}
    assert (settings["method"]["value"], settings["num_speculative_tokens"]["value"]) == ("dflash", 9)
    assert settings["num_speculative_tokens"]["kind"] == "required"
    assert settings["VLLM_USE_V2_MODEL_RUNNER"]["value"] == "1"
    one = audit(
        write(build(Case("dflash", top(block_size=8))), tmp_path / "one"), engines=["vllm"], target_model=target
    )
    settings = {row["name"]: row for row in one.document["engines"][0]["settings"]}
    assert (settings["num_speculative_tokens"]["value"], settings["num_speculative_tokens"]["kind"]) == (7, "limit")
    assert "VLLM_USE_V2_MODEL_RUNNER" not in settings


def test_a_report_follows_its_schema(target: Path, tmp_path: Path) -> None:
    from convertkit.release.reports import validate_report

    folder = write(draft("speculators-dspark-reduced"), tmp_path / "d")
    place = tmp_path / "LOAD_SHAPE_AUDIT.json"
    audit(folder, engines=["all"], target_model=target, report=place)
    first = place.read_bytes()
    assert validate_report(place)["engines"][0]["verdict"] == "loads"
    audit(folder, engines=["all"], target_model=target, report=place)
    assert place.read_bytes() == first


def test_against_a_reference(target: Path, tmp_path: Path) -> None:
    whole = write(draft("dflash"), tmp_path / "whole")
    names = dict(cases())
    short = audit(write(build(names["dflash, no q"]), tmp_path / "short"), against=whole)
    kinds = {item.data.get("kind") for item in short.findings if item.code == "E_AGAINST"}
    assert (short.status, kinds) == (1, {"missing"})
    moved = audit(write(build(names["dflash, model prefix"]), tmp_path / "moved"), against=whole)
    kinds = {item.data.get("kind") for item in moved.findings if item.code == "E_AGAINST"}
    assert kinds == {"renamed"}
    packed = audit(
        write(build(names["mixed mlp"]), tmp_path / "packed"), against=write(draft("dflash2"), tmp_path / "two")
    )
    assert packed.status == 0
    assert {item.code for item in packed.findings} == {"N_AGAINST"}
