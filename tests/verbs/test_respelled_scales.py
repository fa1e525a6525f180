"""Turning a global scale over: what does not turn back is said, with the values that change by it."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np

from convertkit.demo.generate import generate
from convertkit.verbs.case import Result
from convertkit.verbs.convert import convert
from convertkit.verbs.gate import gate
from convertkit.verbs.pack import pack_nvfp4
from tests.dialects.tiny import LM_CONFIG, MLP, causal_lm, write

MODULE = "model.layers.1.mlp.down_proj"
CONFIG = {
    **LM_CONFIG,
    "quantization_config": {
        "quant_method": "modelopt",
        "quant_algo": "W4A16_NVFP4",
        "group_size": 16,
        "ignore": ["lm_head", "model.embed_tokens", *(f"model.layers.{i}.self_attn*" for i in range(2))],
    },
}


def exact(value: np.float32) -> Fraction:
    return Fraction(float(value))


def scale_that_moves_a_value() -> np.float32:
    """A scale halfway between two BF16 numbers, the lower one even, whose reciprocal turns back to a bit more."""
    for bits in range(0x3F80_8000, 0x4000_0000, 0x2_0000):
        scale = np.uint32(bits).view(np.float32)
        back = 1 / exact(np.float32(1) / scale)
        if back > exact(scale) and np.float32(1) / (np.float32(1) / scale) != scale:
            return np.float32(scale)
    raise AssertionError("no such scale")


def converted(source: Path, out: Path) -> Result:
    made = convert(source, out, to="nvfp4-ct")
    assert isinstance(made, Result)
    assert made.status == 0
    return made


def test_lost_bits_and_changed_values_are_counted(tmp_path: Path) -> None:
    scale = scale_that_moves_a_value()
    source = write(tmp_path / "source", causal_lm(MLP), CONFIG, values={f"{MODULE}.weight_scale_2": scale.tobytes()})
    made = converted(source, tmp_path / "out")
    (told,) = [item for item in made.findings if item.code == "W_RECIPROCAL"]
    # Codes are 0.5 and 1.0 and block scales 1.0, so every element of the one linear lies on the tie.
    assert dict(told.data) == {"lossy": [MODULE], "changed_values": {MODULE: 32 * 32}}
    rows = {row["name"]: row for row in made.reports["DEQUANT_REPORT.json"]["rows"] if row["promise"] == "planes"}
    row = rows[f"{MODULE}.weight_packed"]
    divisor = np.float32(1) / scale
    assert row["global_scale"]["bits"] == f"0x{int(scale.view(np.uint32)):08x}"
    assert row["written_global_scale"]["bits"] == f"0x{int(divisor.view(np.uint32)):08x}"
    assert (row["reversible"], row["differing"]) == (False, 1024)
    assert all(other["reversible"] and not other["differing"] for other in rows.values() if other is not row)
    compared = gate(tmp_path / "out", source, stored="bf16", limits={"max_rel_rms": 0.01})
    assert compared.status == 0


def test_reversible_scales_are_not_worth_a_word(tmp_path: Path) -> None:
    generate("qwen3", tmp_path / "source")
    for reversible in (True, False):
        packed = tmp_path / f"packed-{reversible}"
        pack_nvfp4(tmp_path / "source", packed, dialect="modelopt", reversible_scale=reversible)
        made = converted(packed, tmp_path / f"ct-{reversible}")
        rows = [row for row in made.reports["DEQUANT_REPORT.json"]["rows"] if row["promise"] == "planes"]
        lost = [row for row in rows if not row["reversible"]]
        assert bool(lost) == (not reversible)
        assert ("W_RECIPROCAL" in {item.code for item in made.findings}) == bool(lost)
