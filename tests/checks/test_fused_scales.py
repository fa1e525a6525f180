"""Global scales of fused matrices that are stored in another float type: engines copy them into FP32."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from convertkit.checkpoint import TensorSpec
from convertkit.checks.audit import audit_written
from convertkit.dialects.scheme import with_quantization
from convertkit.dialects.writing import write_quantization
from convertkit.errors import Finding
from convertkit.layouts.tables import LAYOUTS_BY_NAME
from tests.dialects.tiny import DFLASH_CONFIG, MLP, checkpoint, dflash

LEAVES = {"modelopt": "weight_scale_2", "compressed-tensors": "weight_global_scale"}


def errors(folder: Path, dialect: str, dtype: str, stored: bytes) -> list[Finding]:
    """Errors about scales where ``up_proj`` of layer 0 holds its global scale in another type; all others hold 1."""
    specs = dflash(MLP, dialect)
    name = f"layers.0.mlp.up_proj.{LEAVES[dialect]}"
    wrong = [TensorSpec(item.name, dtype, item.shape) if item.name == name else item for item in specs]
    block, document = write_quantization(dialect, specs, LAYOUTS_BY_NAME["dflash"])
    made = checkpoint(folder, wrong, with_quantization(DFLASH_CONFIG, block), document, {name: stored})
    return [item for item in audit_written(made).errors if item.code.startswith(("E_SCALE", "E_FUSED"))]


@pytest.mark.parametrize("dialect", list(LEAVES))
def test_equal_values_are_served_right(tmp_path: Path, dialect: str) -> None:
    assert [item.code for item in errors(tmp_path, dialect, "BF16", struct.pack("<H", 0x3F80))] == ["E_SCALE_DTYPE"]


@pytest.mark.parametrize(("dialect", "served"), [("modelopt", 2.0), ("compressed-tensors", 0.5)])
@pytest.mark.parametrize(("dtype", "two"), [("BF16", 0x4000), ("F16", 0x4000)])
def test_other_values_are_named_with_what_is_served(
    tmp_path: Path, dialect: str, served: float, dtype: str, two: int
) -> None:
    _, item = errors(tmp_path, dialect, dtype, struct.pack("<H", two))
    assert (item.code, item.where.tensor) == ("E_FUSED_SCALE", "layers.0.mlp.gate_proj.weight")
    assert "gate_proj 1, up_proj 2" in item.message
    assert item.data["served"] == {"gate_proj": served, "up_proj": 1.0}
