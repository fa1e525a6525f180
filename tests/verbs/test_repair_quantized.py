"""Repairs of the quantization config: what is quantized and not understood is never said to be dense."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from convertkit.checkpoint import TensorSpec
from convertkit.conversion.repair_work import RepairRequest
from convertkit.verbs.audit import audit
from convertkit.verbs.case import Result
from convertkit.verbs.diff import diff
from convertkit.verbs.fix_keys import fix_keys
from convertkit.verbs.pack import pack_nvfp4
from convertkit.verbs.repair import repair
from tests.dialects.tiny import LM_CONFIG, causal_lm, planes, spec, write
from tests.verbs.test_repair import f32, fixed, refused

UP = "model.layers.0.mlp.up_proj"
EXPERTS = "model.layers.0.mlp.experts"
QUANTIZED: dict[str, tuple[str, list[TensorSpec]]] = {
    "fp8": ("E_UNSUPPORTED_QUANT", [spec(f"{UP}.weight", "F8_E4M3", 32, 32), spec(f"{UP}.weight_scale", "F32")]),
    "gptq": ("E_UNSUPPORTED_QUANT", [spec(f"{UP}.qweight", "I32", 4, 32), spec(f"{UP}.scales", "F16", 1, 32)]),
    "int4": ("E_PACK_MISSING", [spec(f"{UP}.weight_packed", "I32", 32, 4), spec(f"{UP}.weight_scale", "BF16", 32, 1)]),
    "flat": ("E_PACK_SHAPE", [spec(f"{UP}.weight", "U8", 512), spec(f"{UP}.weight_scale", "F8_E4M3", 64),
                              spec(f"{UP}.weight_scale_2", "F32")]),
    "stack": ("E_PACK_STACKED", [spec(f"{EXPERTS}.gate_up_proj", "U8", 2, 64, 16),
                                 spec(f"{EXPERTS}.gate_up_proj_weight_scale", "F8_E4M3", 2, 64, 2),
                                 spec(f"{EXPERTS}.gate_up_proj_weight_scale_2", "F32", 2, 2)]),
}  # fmt: skip
BLOCK = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]}


@pytest.mark.parametrize("option", ["set_config", "strip_quant_residue"])
@pytest.mark.parametrize("kind", list(QUANTIZED))
def test_a_config_of_weights_that_are_not_understood_stays(tmp_path: Path, kind: str, option: str) -> None:
    code, specs = QUANTIZED[kind]
    rest = [item for item in causal_lm() if not item.name.startswith(UP)]
    source = write(tmp_path / "source", [*rest, *specs], {**LM_CONFIG, "quantization_config": BLOCK})
    assert refused(tmp_path, source, **{option: True}).code == code


def test_a_config_is_not_written_anew_beside_layers_of_another_quantization(tmp_path: Path) -> None:
    rest = [item for item in causal_lm(pack=("down_proj",)) if not item.name.startswith(UP)]
    source = write(tmp_path / "source", [*rest, *QUANTIZED["fp8"][1]], {**LM_CONFIG, "quantization_config": BLOCK})
    assert refused(tmp_path, source, set_config=True).code == "E_UNSUPPORTED_QUANT"


def test_two_dialects_in_one_checkpoint_have_no_config(tmp_path: Path) -> None:
    rest = [item for item in causal_lm(pack=("down_proj",)) if not item.name.startswith(UP)]
    specs = [*rest, *planes(UP, "compressed-tensors")]
    values = {f"{UP}.weight_global_scale": f32(2.0)}
    source = write(tmp_path / "source", specs, {**LM_CONFIG, "quantization_config": BLOCK}, values=values)
    assert refused(tmp_path, source, set_config=True).code == "E_UNSUPPORTED_QUANT"


def test_nothing_is_said_of_a_head_where_no_embeddings_are(tmp_path: Path) -> None:
    specs = [item for item in causal_lm() if item.name not in ("lm_head.weight", "model.embed_tokens.weight")]
    config = {**LM_CONFIG, "quantization_config": BLOCK, "tie_word_embeddings": False}
    out = fixed(tmp_path, write(tmp_path / "source", specs, config), set_config=True)
    after = json.loads((out / "config.json").read_text())
    assert (after["tie_word_embeddings"], "quantization_config" in after) == (False, False)


@pytest.mark.parametrize("set_config", [False, True])
@pytest.mark.parametrize("kind", ["experts", "w13"])
def test_experts_that_alone_are_packed_come_apart_with_their_config(
    tmp_path: Path, kind: str, set_config: bool
) -> None:
    experts = [spec(f"model.layers.0.mlp.experts.{e}.{leaf}.weight", "BF16", 32, 32)
               for e in range(2) for leaf in ("gate_proj", "up_proj", "down_proj")]  # fmt: skip
    rest = [item for item in causal_lm() if ".mlp." not in item.name]
    config: dict[str, Any] = {**LM_CONFIG, "num_experts": 2, "moe_intermediate_size": 32, "intermediate_size": 32}
    values = {item.name: bytes(part for low in range(16) for part in (low * 8, 0x3F)) * 64 for item in experts}
    source = write(tmp_path / "dense", [*rest, *experts], config, values=values)
    made = pack_nvfp4(source, tmp_path / "pack", include=["{rest}.experts.{e}.{x}"])
    assert isinstance(made, Result)
    assert isinstance(repair(tmp_path / "pack", tmp_path / "stack", RepairRequest(fuse=(kind,))), Result)
    request = RepairRequest(split=(kind,), set_config=set_config)
    assert isinstance(repair(tmp_path / "stack", tmp_path / "apart", request), Result)
    assert diff(tmp_path / "pack", tmp_path / "apart").status == 0
    assert audit(tmp_path / "apart").status == 0


def test_names_are_put_right_before_the_scales_that_they_bring_to_light(tmp_path: Path) -> None:
    halves = [(f"model.layers.0.mlp.experts.{leaf}.0", scale) for leaf, scale in (("gate_proj", 1.0), ("up_proj", 0.5))]
    specs = [item for item in causal_lm() if ".mlp." not in item.name] + [p for name, _ in halves for p in planes(name)]
    values = {f"{name}.weight_scale_2": f32(scale) for name, scale in halves}
    values |= {f"{name}.weight_scale": b"\x38" * 64 for name, _ in halves}
    source = write(tmp_path / "source", specs, {**LM_CONFIG, "quantization_config": BLOCK}, values=values)
    made = fix_keys(source, tmp_path / "named", presets=["experts-transposed"])
    assert isinstance(made, Result)
    assert "E_FUSED_SCALE" in [item.code for item in made.findings if item.severity == "warning"]
    out = fixed(tmp_path, tmp_path / "named", tie_scales=True)
    assert "E_FUSED_SCALE" not in [item.code for item in audit(out).findings]
