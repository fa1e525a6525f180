"""Norms and convolution kernels in the functional gate: no pack changes them, so little is too much."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from convertkit.demo.generate import generate
from convertkit.forward.limits import DEFAULT_FORWARD_LIMITS
from convertkit.verbs.gate_forward import gate_forward
from convertkit.verbs.pack import pack_nvfp4
from tests.forward.damage import copied, scale_bf16, swap


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("norms")
    source = generate("dflash2", root / "bf16").root
    pack_nvfp4(source, root / "mo")
    return {"bf16": source, "mo": root / "mo", "target": generate("target", root / "target").root}


NORMS: dict[str, tuple[Callable[[Path], None], set[str]]] = {
    "5 % off": (lambda folder: scale_bf16(folder, "layers.1.input_layernorm.weight", 1.05),
                {"layers.1.input_layernorm.weight"}),
    "final, 5 % off": (lambda folder: scale_bf16(folder, "norm.weight", 1.05), {"norm.weight"}),
    "a kernel, 5 % off": (lambda folder: scale_bf16(folder, "layers.1.mlp_conv.base_kernel", 1.05),
                          {"layers.1.mlp_conv.base_kernel"}),
    "of query and key swapped": (
        lambda folder: swap(folder, *(f"layers.1.self_attn.{x}_norm.weight" for x in "qk")),
        {f"layers.1.self_attn.{x}_norm.weight" for x in "qk"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", list(NORMS))
def test_norms_that_are_not_the_same_are_named(made: dict[str, Path], what: str, tmp_path: Path) -> None:
    """Too little to show in a layer or in the proposals; but nothing packs norms."""
    broken = copied(made["mo"], tmp_path / "broken")
    damage, named = NORMS[what]
    damage(broken)
    found = gate_forward(broken, made["bf16"], target_model=made["target"])
    assert {item.data["name"] for item in found.findings} == named
    assert {item.data["limit"] for item in found.findings} == {0.01}
    without = {**DEFAULT_FORWARD_LIMITS, "max_norm_error": None}
    assert gate_forward(broken, made["bf16"], target_model=made["target"], limits=without).status == 0
