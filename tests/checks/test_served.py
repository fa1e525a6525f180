"""Engines' own arithmetic: against their functions where those run, and against the facts they are known for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from convertkit.checks import reference, served
from convertkit.checks.served import ENGINES, Part, served_bits
from convertkit.containers.folder import open_checkpoint
from convertkit.containers.reader import Reader
from convertkit.release.reports import settled, validate_report
from convertkit.verbs.case import Result
from convertkit.verbs.gate import gate
from convertkit.verbs.pack import pack_nvfp4
from tests.grids.grid_tensors import Bits, bf16, float_bits
from tests.verbs.test_scales import mlp

GOLDEN: dict[str, Any] = json.loads((Path(__file__).parents[1] / "golden" / "vllm_served.json").read_text())
KERNEL: dict[str, Any] = json.loads((Path(__file__).parents[1] / "golden" / "marlin_kernel.json").read_text())
SCALE = float_bits(1e-4)


def values(name: str, bits: int = SCALE, sense: str = "multiplier", largest: int = 0x7E) -> Any:
    return ENGINES[name].values(Part(bits, sense, largest))


def exact(bits: int = SCALE) -> Any:
    return reference.exact_table(bits, "multiplier")


@pytest.mark.parametrize("largest", [int(key) for key in GOLDEN["marlin"]])
def test_vllm_marlin_serves_what_vllm_prepares(largest: int) -> None:
    """Values are code * 2^-126 * widened scale * g * 2^119 / lift: the kernel's products are exact."""
    found = GOLDEN["marlin"][str(largest)]
    assert served.rescue_factor(largest) == found["factor"]
    wide = reference.widened(np.array(found["widened"], np.uint16), "BF16").astype(np.float64)
    for key, prepared in GOLDEN["marlin_globals"].items():
        scale = float(np.float32(reference.float_of(prepared) / np.float32(found["factor"])))
        table = values("vllm-marlin", int(key, 16), largest=largest)[: largest + 1]
        for code in range(8):
            expected = reference.HALVES[code] / 2 * 2.0**-126 * wide * scale
            assert np.array_equal(table[:, code], expected)


def marlin_products(stored: list[int]) -> Any:
    """What Marlin's own device code made of stored scale bytes and codes on a GPU: float64 [n, 16]."""
    made = reference.widened(np.array(KERNEL["products"], np.uint16).reshape(256, 16), "BF16")
    return made.astype(np.float64)[stored]


@pytest.mark.parametrize("largest", [int(key) for key in GOLDEN["marlin"]])
def test_vllm_marlin_serves_what_the_kernel_multiplies_with(largest: int) -> None:
    """vLLM's own preparation, then the kernel's own bit moves as they ran on an H200."""
    found = GOLDEN["marlin"][str(largest)]
    stored = [(wide >> 4 & 0x7F) | (wide >> 7 & 0x80) for wide in found["widened"]]
    for key, prepared in GOLDEN["marlin_globals"].items():
        scale = float(np.float32(reference.float_of(prepared) / np.float32(found["factor"])))
        table = values("vllm-marlin", int(key, 16), largest=largest)[: largest + 1]
        assert np.array_equal(table, marlin_products(stored) * scale)


@pytest.mark.parametrize("key", list(KERNEL["globals"]))
@pytest.mark.parametrize("sign", ["positive", "negative"])
def test_sglang_marlin_serves_what_the_kernel_multiplies_with(key: str, sign: str) -> None:
    first = 0 if sign == "positive" else 128
    with np.errstate(invalid="ignore"):
        expected = marlin_products(KERNEL[sign]) * float(reference.float_of(KERNEL["globals"][key]))
    assert np.array_equal(values("sglang-marlin", int(key, 16))[first : first + 127], expected, equal_nan=True)


@pytest.mark.parametrize("key", list(GOLDEN["emulation"]))
def test_vllm_emulation_serves_what_vllm_computes(key: str) -> None:
    theirs = reference.widened(np.array(GOLDEN["emulation"][key], np.uint16), "BF16").reshape(126, 16)
    assert np.array_equal(values("vllm-emulation", int(key, 16))[1:127], theirs)


@pytest.mark.parametrize(("largest", "lost"), [(0x7E, 7), (0x77, 7), (0x76, 3), (0x6E, 1), (0x66, 0), (0x40, 0)])
def test_how_many_scales_marlin_drops(largest: int, lost: int) -> None:
    """7 of 126 where the largest scale is above 224, then 3, 1, none."""
    table = values("vllm-marlin", largest=largest)[1 : largest + 1, 7]
    assert int(np.count_nonzero(table == 0)) == lost
    kept = table != 0
    assert np.array_equal(table[kept], exact()[1 : largest + 1, 7][kept])


def test_marlin_serves_negative_scales_as_zero_and_sglang_without_their_sign() -> None:
    assert not values("vllm-marlin")[0x81:0xFF].any()
    assert np.array_equal(values("sglang-marlin")[0x88:0xFF], values("sglang-marlin")[0x08:0x7F])


def test_a_multiplier_that_overflows_in_marlin_is_served_as_infinity() -> None:
    assert np.isinf(values("vllm-marlin", float_bits(512.0))[0x38, 7])
    assert np.isfinite(values("vllm-marlin", float_bits(511.0))[0x38, 7])


def test_sglang_rounds_the_global_scale_and_has_no_lift() -> None:
    table = values("sglang-marlin", largest=0x40)
    rounded = float(reference.widened(reference.narrowed(np.array([1e-4], np.float32), "BF16"), "BF16")[0])
    assert np.array_equal(table[8:127], exact(float_bits(rounded))[8:127])
    assert 0 < abs(table[8, 7] / exact()[8, 7] - 1) < 2.0**-8
    assert not table[:8].any()


def test_ggml_is_what_gguf_decodes() -> None:
    """Blocks of 64: 4 scale bytes, then 8 bytes per 16 values, low nibbles first. The tensor's scale comes after."""
    quants = pytest.importorskip("gguf.quants")
    scales = np.arange(128, dtype=np.uint8)
    codes = np.arange(16, dtype=np.uint8)
    packed = codes[:8] | codes[8:] << 4
    blocks = np.concatenate([scales.reshape(-1, 4), np.tile(packed, (32, 4))], axis=1)
    theirs = quants.NVFP4.dequantize_blocks(np.ascontiguousarray(blocks)).reshape(128, 16)
    assert np.array_equal(values("ggml", float_bits(1.0))[:128], theirs.astype(np.float64))
    assert not values("ggml")[0x7F].any()
    assert np.array_equal(values("ggml")[128:], values("ggml")[:128])


@pytest.mark.parametrize("name", list(ENGINES))
def test_a_divisor_is_served_as_its_reciprocal(name: str) -> None:
    divisor = float_bits(7654.321)
    if name == "compressed-tensors":
        assert np.array_equal(
            np.nan_to_num(values(name, divisor, "divisor")),
            np.nan_to_num(reference.widened(reference.package_table(divisor, "divisor", "BF16", name), "BF16")),
        )
        return
    turned = float_bits(float(np.float32(1) / np.float32(7654.321)))
    assert np.array_equal(values(name, divisor, "divisor"), values(name, turned), equal_nan=True)


def test_which_scale_of_a_fused_matrix_is_kept() -> None:
    small, large = float_bits(1.0), float_bits(2.0)
    for name in ("vllm-marlin", "vllm-emulation", "sglang-marlin"):
        assert served_bits(ENGINES[name], [small, large], 0, expert=False) == large
        assert served_bits(ENGINES[name], [small, large], 1, expert=True) == small
    for name in ("ggml", "modelopt", "compressed-tensors"):
        assert served_bits(ENGINES[name], [small, large], 0, expert=False) == small


def test_the_lift_is_shared_by_all_experts_of_a_layer() -> None:
    assert served.lift_scope("a.0.mlp.experts.3.gate_proj") == served.lift_scope("a.0.mlp.experts.7.gate_proj")
    assert served.lift_scope("a.0.mlp.experts.3.gate_proj") != served.lift_scope("a.1.mlp.experts.3.gate_proj")
    assert served.lift_scope("a.0.mlp.gate_proj") == "a.0.mlp.gate_proj"
    assert not served.is_expert("a.0.mlp.shared_expert.gate_proj")


def small_blocks() -> Bits:
    """Rows of very different size: amax gives a third of the blocks a scale below 2^-6."""
    rng = np.random.default_rng(0)
    size = np.where(np.arange(64) % 3, 1.0, 2.0**-16)[:, None]
    weights = rng.standard_normal((64, 64)) * 0.02 * size
    weights[1, 0] = 0.1
    return bf16(weights)


def test_blocks_that_marlin_drops_are_reported_by_the_served_gate_only(tmp_path: Path) -> None:
    source = mlp(tmp_path, down_proj=small_blocks())
    made = pack_nvfp4(source, tmp_path / "out", include=["layers.{i}.mlp.{x}"], scales="amax")
    assert isinstance(made, Result)
    plain = gate(tmp_path / "out", source)
    assert plain.status == 0
    assert plain.rows[0]["metrics"]["flushed_blocks"] == 0
    report = tmp_path / "FIDELITY_GATE.json"
    said = gate(tmp_path / "out", source, as_served="vllm-marlin", report=report)
    assert said.status == 1
    assert said.rows[0]["metrics"]["flushed_blocks"] == 22 * 4
    assert [item.data["metric"] for item in said.findings] == ["flushed_fraction"] * 2
    summary = validate_report(report)["summary"]
    assert summary["as_served"]["engine"] == "vllm-marlin"
    assert summary["as_served"]["proof"] == "run"
    for engine in ("vllm-emulation", "ggml", "modelopt", "compressed-tensors"):
        assert gate(tmp_path / "out", source, as_served=engine).rows[0]["metrics"]["flushed_blocks"] == 0


def test_marlin_safe_packing_passes_the_served_gate(tmp_path: Path) -> None:
    source = mlp(tmp_path, down_proj=small_blocks())
    words: dict[str, Any] = {"include": ["layers.{i}.mlp.{x}"], "scales": "amax", "as_served": "vllm-marlin"}
    with pytest.raises(Exception, match="flushed_fraction"):
        pack_nvfp4(source, tmp_path / "no", **words)
    made = pack_nvfp4(source, tmp_path / "out", marlin_safe=True, **words)
    assert isinstance(made, Result)
    document = validate_report(tmp_path / "out" / "FIDELITY_GATE.json")
    assert document["summary"]["as_served"]["engine"] == "vllm-marlin"
    again = gate(tmp_path / "out", source, as_served="vllm-marlin")
    assert [settled(row["metrics"]) for row in again.rows] == [row["metrics"] for row in document["rows"]]


def test_unequal_shard_scales_are_served_wrong_by_their_ratio(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    parts = {name: bf16(rng.standard_normal((64, 64)) * 0.02) for name in ("gate_proj", "up_proj")}
    source = mlp(tmp_path, **parts)
    pack_nvfp4(source, tmp_path / "out", include=["layers.{i}.mlp.{x}"], scales="amax")
    halve(tmp_path / "out" / "model.safetensors", "model.layers.0.mlp.up_proj.weight_scale_2")
    said = gate(tmp_path / "out", source, as_served="vllm-marlin")
    (item,) = [item for item in said.findings if item.code == "W_SERVED_SCALE"]
    assert item.where.tensor == "model.layers.0.mlp.up_proj.weight"
    assert item.data["factor"] == 2.0
    # Halved by accident, the file is wrong; served, it is right again.
    assert gate(tmp_path / "out", source).status == 1
    assert said.status == 0


def halve(path: Path, name: str) -> None:
    checkpoint = open_checkpoint(path)
    with Reader(checkpoint) as reader:
        scale = np.frombuffer(reader.bytes_of(name), np.float32) / np.float32(2)
        start = checkpoint.tensors[name].start
    data = bytearray(path.read_bytes())
    data[start : start + 4] = scale.astype(np.float32).tobytes()
    path.write_bytes(bytes(data))
