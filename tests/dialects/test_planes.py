from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from convertkit.checkpoint import TensorSpec
from convertkit.containers.reader import Reader
from convertkit.dialects.planes import find_packed
from convertkit.dialects.values import (
    BlockFaults,
    block_faults,
    block_scale_findings,
    global_scale_findings,
    sound_global_bits,
)
from convertkit.errors import ConvertError
from tests.dialects.tiny import checkpoint, planes, spec

CT, MO = "compressed-tensors", "modelopt"


@pytest.mark.parametrize("dialect", [CT, MO])
@pytest.mark.parametrize("shape", [(), (1,)])
def test_packed_linears_are_found_with_their_logical_shape(
    tmp_path: Path, dialect: str, shape: tuple[int, ...]
) -> None:
    leaf = "weight_global_scale" if dialect == CT else "weight_scale_2"
    extra = "input_global_scale" if dialect == CT else "input_scale"
    specs = [
        *planes("a.up_proj", dialect, 8, 48, over={leaf: ("F32", shape)}),
        *planes("a.down_proj", dialect, over={extra: ("F32", shape)}),
        spec("a.norm.weight", "BF16", 8),
        spec("a.attn.k_scale", "F32", 1),
        spec("b.attn.v_proj.output_scale", "F32", 1),
        spec("b.attn.o_proj.output_scale", "F32", 1),
    ]
    found = find_packed(checkpoint(tmp_path, specs))
    assert found.findings == ()
    assert set(found.packed) == {"a.up_proj", "a.down_proj"}
    module = found.packed["a.up_proj"]
    assert (module.out_features, module.in_features, module.spelling.dialect) == (8, 48, dialect)
    assert module.input_scale is None
    assert found.packed["a.down_proj"].input_scale is not None
    assert found.kv_scales == ("a.attn.k_scale", "b.attn.v_proj.output_scale")
    rest = {"a.norm.weight", *found.kv_scales, "b.attn.o_proj.output_scale"}
    assert found.plane_names == {item.name for item in specs} - rest


@pytest.mark.parametrize(
    ("over", "code", "tensor"),
    [
        ({"weight_packed": ("F32", (32, 16))}, "E_PACK_DTYPE", "p.weight_packed"),
        ({"weight_packed": ("U8", (512,))}, "E_PACK_SHAPE", "p.weight_packed"),
        ({"weight_packed": ("U8", (1, 32, 16))}, "E_PACK_SHAPE", "p.weight_packed"),
        ({"weight_packed": ("U8", (0, 16)), "weight_scale": ("F8_E4M3", (0, 2))}, "E_PACK_SHAPE", "p.weight_packed"),
        ({"weight_packed": ("U8", (32, 12)), "weight_scale": ("F8_E4M3", (32, 1))}, "E_WIDTH", "p.weight_packed"),
        ({"weight_packed": None}, "E_PACK_MISSING", "p.weight_packed"),
        ({"weight_scale": None}, "E_PACK_MISSING", "p.weight_scale"),
        ({"weight_global_scale": None}, "E_PACK_MISSING", "p.weight_global_scale"),
        ({"weight_scale": ("F8_E4M3", (32, 1))}, "E_SCALE_SHAPE", "p.weight_scale"),
        ({"weight_scale": ("F8_E4M3", (64,))}, "E_SCALE_SHAPE", "p.weight_scale"),
        ({"weight_scale": ("F32", (32, 2))}, "E_SCALE_DTYPE", "p.weight_scale"),
        ({"weight_global_scale": ("F32", (2,))}, "E_SCALE_SHAPE", "p.weight_global_scale"),
        ({"weight_global_scale": ("BF16", (1,))}, "E_SCALE_DTYPE", "p.weight_global_scale"),
        ({"input_global_scale": ("F32", (32,))}, "E_SCALE_SHAPE", "p.input_global_scale"),
        ({"weight": ("BF16", (32, 32))}, "E_PACK_AMBIGUOUS", "p.weight"),
        ({"weight_scale_2": ("F32", ())}, "E_PACK_AMBIGUOUS", "p.weight_scale_2"),
    ],
)
def test_each_fault_of_a_plane(tmp_path: Path, over: dict[str, Any], code: str, tensor: str) -> None:
    found = find_packed(checkpoint(tmp_path, planes("p", CT, over=over)))
    assert [(item.code, item.where.tensor, item.where.file) for item in found.findings] == [
        (code, tensor, "model.safetensors")
    ]
    assert found.packed == {}


@pytest.mark.parametrize(
    ("specs", "code", "tensor"),
    [
        ([spec("p.weight", "U8", 32, 16)], "E_PACK_MISSING", "p.weight_scale"),
        ([spec("p.weight", "BF16", 32, 32), spec("p.weight_scale", "F32", 1)], "E_PACK_AMBIGUOUS", "p.weight_scale"),
        ([spec("p.weight_scale", "F32", 1)], "E_PACK_MISSING", "p.weight or weight_packed"),
        ([spec("p.weight", "F8_E4M3", 32, 32), spec("p.weight_scale", "F32", 1)], "E_UNSUPPORTED_QUANT", "p"),
        ([spec("p.qweight", "I32", 4, 32), spec("p.qzeros", "I32", 1, 4)], "E_UNSUPPORTED_QUANT", "p"),
    ],
)
def test_what_is_not_whole_or_not_nvfp4(tmp_path: Path, specs: list[TensorSpec], code: str, tensor: str) -> None:
    found = find_packed(checkpoint(tmp_path, specs))
    assert (found.findings[0].code, found.findings[0].where.tensor) == (code, tensor)
    assert found.packed == {}


def test_all_faults_are_gathered(tmp_path: Path) -> None:
    specs = [
        *planes("mlp.up_proj", CT, over={"weight_packed": ("F32", (32, 16))}),
        *planes("b", over={"weight_scale": None}),
        *planes("c", CT),
    ]
    found = find_packed(checkpoint(tmp_path, specs))
    assert sorted(item.code for item in found.findings) == ["E_PACK_DTYPE", "E_PACK_MISSING"]
    assert list(found.packed) == ["c"]


@pytest.mark.parametrize(
    ("bits", "sense", "code"),
    [
        (0x7FC00000, "multiplier", "E_SCALE_NONFINITE"),
        (0x7F800000, "divisor", "E_SCALE_NONFINITE"),
        (0xFF800000, "divisor", "E_SCALE_NONFINITE"),
        (0x00000000, "multiplier", "E_SCALE_ZERO"),
        (0x80000000, "divisor", "E_SCALE_ZERO"),
        (0xBF800000, "multiplier", "E_SCALE_SIGN"),
        (0x00000001, "divisor", "E_SCALE_RANGE"),
        (0x00200000, "divisor", "E_SCALE_RANGE"),
    ],
)
def test_bad_global_scales(tmp_path: Path, bits: int, sense: Any, code: str) -> None:
    ref = find_packed(checkpoint(tmp_path, planes("p"))).packed["p"].global_scale
    found = global_scale_findings(ref, bits, sense)
    assert [(item.code, item.where.tensor) for item in found] == [(code, "p.weight_scale_2")]


@pytest.mark.parametrize(("bits", "sense"), [(0x00200001, "divisor"), (1, "multiplier"), (0x7F7FFFFF, "divisor")])
def test_extreme_but_good_global_scales(tmp_path: Path, bits: int, sense: Any) -> None:
    ref = find_packed(checkpoint(tmp_path, planes("p"))).packed["p"].global_scale
    assert global_scale_findings(ref, bits, sense) == ()
    with np.errstate(all="ignore"):
        inverse = np.float32(1) / np.uint32(bits).view(np.float32)
    assert bool(np.isfinite(inverse)) == (sense == "divisor")


def test_the_range_of_a_divisor_ends_where_its_reciprocal_does() -> None:
    with np.errstate(all="ignore"):
        assert np.isinf(np.float32(1) / np.uint32(0x00200000).view(np.float32))


@pytest.mark.parametrize(("status", "ends_with"), [(None, 3), (1, 1)])
def test_global_scales_are_read_as_bits_and_all_bad_ones_refused_together(
    tmp_path: Path, status: int | None, ends_with: int
) -> None:
    specs = [*planes("a", CT, over={"weight_global_scale": ("F32", (1,))}), *planes("b"), *planes("c", MO)]
    values = {"a.weight_global_scale": b"\x00\x00\x20\x40", "b.weight_scale_2": b"\x01\x02\x03\x3d"}
    opened = checkpoint(tmp_path / "good", specs, values=values)
    with Reader(opened) as reader:
        found = sound_global_bits(reader, find_packed(opened).packed.values())
    assert found == {"a": 0x40200000, "b": 0x3D030201, "c": 0x3F800000}
    values |= {"a.weight_global_scale": bytes(4), "c.weight_scale_2": b"\x00\x00\x80\xbf"}
    opened = checkpoint(tmp_path / "bad", specs, values=values)
    with Reader(opened) as reader, pytest.raises(ConvertError) as caught:
        sound_global_bits(reader, find_packed(opened).packed.values(), status)
    assert [(item.code, item.where.tensor) for item in caught.value.findings] == [
        ("E_SCALE_ZERO", "a.weight_global_scale"),
        ("E_SCALE_SIGN", "c.weight_scale_2"),
    ]
    assert caught.value.status == ends_with


def test_block_faults_count_what_loses_information(tmp_path: Path) -> None:
    scales = np.array([[0x38, 0x00], [0x00, 0xB8], [0x7F, 0xFF], [0x80, 0x00]], np.uint8)
    codes = np.zeros((4, 16), np.uint8)
    codes[0, 8] = 0x10  # a code under a zero scale
    codes[3, 8:] = 0x88  # only negative zeros under a zero scale
    faults = block_faults(scales, codes)
    assert faults == BlockFaults(nonfinite=2, negative=2, zero_over_codes=1)
    assert faults + BlockFaults(1, 0, 0) == BlockFaults(3, 2, 1)
    assert block_faults(scales) == BlockFaults(2, 2, 0)
    module = find_packed(checkpoint(tmp_path, planes("p"))).packed["p"]
    found = {item.code: item.data["count"] for item in block_scale_findings(module, faults)}
    assert found == {"E_SCALE_NONFINITE": 2, "E_SCALE_SIGN": 2, "E_SCALE_ZERO": 1}
    assert block_scale_findings(module, BlockFaults()) == ()


def test_the_first_of_bad_block_scales_has_a_place(tmp_path: Path) -> None:
    scales = np.full((4, 2), 0x38, np.uint8)
    codes = np.full((4, 16), 0x11, np.uint8)
    bad = scales.copy()
    bad[1, 1], bad[2, 0], bad[3, 1], bad[2, 1] = 0x7F, 0xFF, 0xB8, 0x00
    faults = block_faults(scales, codes) + block_faults(bad, codes, first_row=4) + block_faults(bad, codes, first_row=8)
    assert faults.firsts == ((5, 1), (7, 1), (6, 1))
    module = find_packed(checkpoint(tmp_path, planes("p"))).packed["p"]
    told = {item.code: (item.message, item.data) for item in block_scale_findings(module, faults)}
    assert told["E_SCALE_NONFINITE"] == (
        "4 block scales are NaN, the first in row 5, block 1", {"count": 4, "first": [5, 1]},
    )  # fmt: skip
    [one] = block_scale_findings(module, block_faults(bad[:2], codes[:2]))
    assert one.message == "a block scale is NaN, in row 1, block 1"
