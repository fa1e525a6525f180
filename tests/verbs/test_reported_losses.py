"""Tensors that were lost on the way, promised and absent, or stored in another order: what an audit or a gate says."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from convertkit.checkpoint import TensorSpec
from convertkit.conversion.repair_work import RepairRequest
from convertkit.errors import ConvertError, Finding
from convertkit.verbs.audit import AuditResult, audit
from convertkit.verbs.case import Result
from convertkit.verbs.convert import convert
from convertkit.verbs.dequant import dequant
from convertkit.verbs.gate import gate
from convertkit.verbs.pack import pack_nvfp4
from convertkit.verbs.repair import repair
from tests.dialects.tiny import LM_CONFIG, causal_lm, planes, spec, write
from tests.release.makers import safetensors
from tests.verbs.test_pack_and_expand import tensors

ONE_LAYER = {**LM_CONFIG, "num_hidden_layers": 1}
MODULES = [f"model.layers.{i}.mlp.down_proj" for i in range(2)]


def w4a4(lost: tuple[str, ...] = ()) -> list[TensorSpec]:
    specs = [item for module in MODULES for item in planes(module, over={"input_scale": ("F32", ())})]
    specs += [spec("lm_head.weight", "BF16", 48, 32), spec("model.norm.weight", "BF16", 32)]
    return [item for item in specs if item.name not in lost]


def differences(made: AuditResult, code: str = "E_AGAINST") -> list[Finding]:
    return [item for item in made.findings if item.code == code]


def missing(made: AuditResult) -> list[str]:
    return [name for item in differences(made) if item.data["kind"] == "missing" for name in item.data["tensors"]]


def test_a_file_short_of_two_tensors_is_told_with_their_names(tmp_path: Path) -> None:
    """One of them is an activation scale, in whose place an engine takes 1."""
    lost = ("model.layers.1.mlp.down_proj.input_scale", "model.norm.weight")
    whole = write(tmp_path / "whole", w4a4(), LM_CONFIG)
    short = write(tmp_path / "short", w4a4(lost), LM_CONFIG)
    made = audit(short, against=whole)
    assert made.status == 1
    assert sorted(missing(made)) == sorted(lost)
    assert missing(audit(whole, against=whole)) == []


def test_activation_scales_are_not_missed_beside_dense_weights(tmp_path: Path) -> None:
    packed = write(tmp_path / "packed", w4a4(), LM_CONFIG)
    dense = write(
        tmp_path / "dense",
        [spec(f"{module}.weight", "BF16", 32, 32) for module in MODULES]
        + [item for item in w4a4() if item.dtype == "BF16"],
        LM_CONFIG,
    )
    assert not differences(audit(packed, against=dense))
    assert not differences(audit(dense, against=packed))


def sharded(root: Path, shards: Mapping[str, Mapping[str, Any]]) -> Path:
    root.mkdir()
    for name, held in shards.items():
        (root / name).write_bytes(safetensors(held))
    weight_map = {tensor: name for name, held in shards.items() for tensor in held}
    (root / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    (root / "config.json").write_text(json.dumps(LM_CONFIG))
    return root


def three_shards() -> dict[str, dict[str, Any]]:
    made: dict[str, dict[str, Any]] = {}
    for number, item in enumerate(causal_lm()):
        shard = f"model-{1 + number % 3:05d}-of-00003.safetensors"
        made.setdefault(shard, {})[item.name] = (item.dtype, item.shape, bytes(item.size_bytes))
    return made


def test_whole_shards_that_were_lost_are_counted_in_tensors_and_bytes(tmp_path: Path) -> None:
    """The index of the output agrees with itself, so only the source tells."""
    whole = three_shards()
    names = sorted(whole)
    kept = {f"model-{n:05d}-of-00002.safetensors": whole[name] for n, name in enumerate(names[:2], start=1)}
    made = audit(sharded(tmp_path / "short", kept), against=sharded(tmp_path / "whole", whole))
    assert made.status == 1
    assert sorted(missing(made)) == sorted(whole[names[2]])
    [counts] = [item for item in differences(made, "N_AGAINST") if "weight_bytes" in item.data]
    sizes = [sum(len(row[2]) for held in shards.values() for row in held.values()) for shards in (kept, whole)]
    assert counts.data["weight_bytes"] == sizes
    assert counts.data["tensors"] == [len(causal_lm()) - len(whole[names[2]]), len(causal_lm())]


@pytest.mark.parametrize("key", ["num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers"])
def test_prediction_layers_that_are_promised_and_absent_are_an_error_with_a_way_out(tmp_path: Path, key: str) -> None:
    source = write(tmp_path / "m", causal_lm(), {**LM_CONFIG, key: 1})
    made = audit(source)
    [item] = [item for item in made.findings if item.code == "E_ADVERTISED_ABSENT"]
    assert (made.status, item.where.key) == (1, key)
    assert "repair --set-config" in item.fix
    with pytest.raises(ConvertError) as caught:
        pack_nvfp4(source, tmp_path / "pack", include=("layers.{i}.mlp.{x}",))
    assert "E_ADVERTISED_ABSENT" in [found.code for found in caught.value.findings]
    assert isinstance(repair(source, tmp_path / "right", RepairRequest(set_config=True)), Result)
    assert audit(tmp_path / "right").status == 0
    assert json.loads((tmp_path / "right" / "config.json").read_text())[key] == 0
    assert isinstance(pack_nvfp4(tmp_path / "right", tmp_path / "pack", include=("layers.{i}.mlp.{x}",)), Result)


def test_a_promised_tower_without_tensors_fails_the_audit(tmp_path: Path) -> None:
    config = {**LM_CONFIG, "architectures": ["XForConditionalGeneration"], "vision_config": {"depth": 1}}
    made = audit(write(tmp_path / "m", causal_lm(), config))
    assert made.status == 1
    assert "E_ADVERTISED_ABSENT" in [item.code for item in made.findings]


def test_an_untied_model_without_a_head_fails_the_audit(tmp_path: Path) -> None:
    specs = [item for item in causal_lm() if item.name != "lm_head.weight"]
    source = write(tmp_path / "m", specs, {**LM_CONFIG, "tie_word_embeddings": False})
    made = audit(source)
    assert made.status == 1
    assert "E_HEAD_MISSING" in [item.code for item in made.findings]
    repair(source, tmp_path / "tied", RepairRequest(set_config=True))
    assert audit(tmp_path / "tied").status == 0


def test_a_stored_head_that_is_not_the_tied_embeddings_fails_the_scan(tmp_path: Path) -> None:
    config = {**LM_CONFIG, "tie_word_embeddings": True}
    equal = write(tmp_path / "equal", causal_lm(), config)
    assert audit(equal, scan=True).status == 0
    other = write(tmp_path / "other", causal_lm(), config, values={"lm_head.weight": b"\x00\x3f" * (48 * 32)})
    made = audit(other, scan=True)
    errors = [item.code for item in made.findings if item.severity == "error"]
    assert (made.status, errors) == (1, ["E_TIED_DIFFERS"])
    repair(other, tmp_path / "untied", RepairRequest(set_config=True))
    assert audit(tmp_path / "untied", scan=True).status == 0


def test_layers_under_another_prefix_than_the_reference_are_one_rename(tmp_path: Path) -> None:
    names = [f"layers.0.{leaf}.weight" for leaf in ("one", "two", "three", "four")]
    here = write(tmp_path / "here", [spec(f"model.a.{name}", "BF16", 4, 8) for name in names], {})
    there = write(tmp_path / "there", [spec(f"a.{name}", "BF16", 4, 8) for name in names], {})
    kinds = [item.data["kind"] for item in differences(audit(here, against=there))]
    assert kinds == ["renamed"] * 4


def test_a_second_respelling_changes_no_byte(tmp_path: Path) -> None:
    """Converting what is converted already must not invert its scales again."""
    specs = [*planes(MODULES[0]), spec("lm_head.weight", "BF16", 48, 32)]
    source = write(tmp_path / "mo", specs, ONE_LAYER)
    convert(source, tmp_path / "ct", to="nvfp4-ct")
    convert(tmp_path / "ct", tmp_path / "again", to="nvfp4-ct")
    one, two = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("ct", "again"))
    assert one == two


@pytest.mark.parametrize("shape", [(64,), (1024,)])
@pytest.mark.parametrize("dtype", ["U8", "F8_E4M3"])
def test_flat_block_scales_are_called_swizzled_or_unknown(tmp_path: Path, dtype: str, shape: tuple[int, ...]) -> None:
    specs = planes(MODULES[0], over={"weight_scale": (dtype, shape)})
    with pytest.raises(ConvertError, match="swizzled or unknown layout"):
        dequant(write(tmp_path / "m", specs, LM_CONFIG), tmp_path / "out")


def expanded(tmp_path: Path) -> tuple[Path, Path]:
    """A pack with varied codes, and its expansion."""
    codes = np.random.Generator(np.random.PCG64(5)).integers(0, 256, 32 * 16, np.uint8).tobytes()
    specs = [*planes(MODULES[0]), spec("lm_head.weight", "BF16", 48, 32)]
    pack = write(tmp_path / "pack", specs, ONE_LAYER, values={f"{MODULES[0]}.weight": codes})
    dequant(pack, tmp_path / "dense")
    return pack, tmp_path / "dense"


def test_a_gate_says_that_a_weight_matches_after_a_nibble_swap(tmp_path: Path) -> None:
    pack, dense = expanded(tmp_path)
    assert gate(pack, dense).status == 0
    repair(pack, tmp_path / "swapped", RepairRequest(swap_nibbles=True))
    made = gate(tmp_path / "swapped", dense)
    [item] = [item for item in made.findings if item.code == "W_NIBBLES_SWAPPED"]
    assert (made.status, item.data["matching"]) == (1, [f"{MODULES[0]}.weight"])
    assert "repair --swap-nibbles" in item.fix
    repair(tmp_path / "swapped", tmp_path / "right", RepairRequest(swap_nibbles=True))
    assert gate(tmp_path / "right", dense).status == 0
    assert tensors(tmp_path / "right") == tensors(pack)


def test_a_gate_does_not_blame_nibbles_for_other_codes(tmp_path: Path) -> None:
    pack, dense = expanded(tmp_path)
    codes = tensors(pack)[f"{MODULES[0]}.weight"][2]
    other = write(
        tmp_path / "other", [*planes(MODULES[0]), spec("lm_head.weight", "BF16", 48, 32)], ONE_LAYER,
        values={f"{MODULES[0]}.weight": codes[::-1]},
    )  # fmt: skip
    made = gate(other, dense)
    assert made.status == 1
    assert "W_NIBBLES_SWAPPED" not in [item.code for item in made.findings]


def test_siblings_with_the_names_of_diffusion_models_are_tied_with_and_without_the_group(tmp_path: Path) -> None:
    specs = [spec(f"blocks.0.attn1.to_{leaf}.weight", "BF16", 16, 32) for leaf in "qkv"]
    values = {
        item.name: np.full(item.elements, bits, "<u2").tobytes()
        for item, bits in zip(specs, (0x3F80, 0x4000, 0x4080), strict=True)
    }
    source = write(tmp_path / "m", specs, {}, values=values)
    group = "blocks.{i}.attn1.to_q,blocks.{i}.attn1.to_k,blocks.{i}.attn1.to_v"
    pack_nvfp4(source, tmp_path / "tied", include=("blocks.{i}.attn1.{x}",), fuse=(group,))
    scales = {row[2] for name, row in tensors(tmp_path / "tied").items() if name.endswith("weight_scale_2")}
    assert len(scales) == 1
    made = pack_nvfp4(source, tmp_path / "plain", include=("blocks.{i}.attn1.{x}",))
    assert isinstance(made, Result)
    apart = {row[2] for name, row in tensors(tmp_path / "plain").items() if name.endswith("weight_scale_2")}
    assert apart == scales
