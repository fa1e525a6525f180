"""The whole line on checkpoints that the real packages wrote and read: files, configs, expansions and loaders.

Every comparison is of bytes or bits. What ModelOpt needs runs in its environment, llm-compressor's in its own, and
compressed-tensors in both.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import convertkit
from convertkit.verbs.case import Result
from tests.oracle import planes, real_checkpoints

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.oracle

TORCH = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}
DTYPES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
FOREIGN = {"modelopt": "modelopt", "compressed-tensors": "compressed_tensors"}
Tensors = dict[str, planes.Raw]
Make = Callable[..., Path]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """``made(maker, *sources, **words)``: the folder that it writes, made once."""
    root = tmp_path_factory.mktemp("real")
    known: dict[Any, Path] = {}

    def make(maker: Make, *sources: Path, **words: Any) -> Path:
        key = (maker, sources, tuple(words.items()))
        if key not in known:
            known[key] = maker(*sources, root / str(len(known)), **words)
        return known[key]

    return make


def qwen3(made: Make, dtype: str = "bfloat16") -> Path:
    return made(real_checkpoints.tiny_qwen3, dtype=dtype)


def dflash(made: Make) -> Path:
    return made(real_checkpoints.tiny_dflash_bf16)


def read(folder: Path, name: str = "config.json") -> dict[str, Any]:
    document: dict[str, Any] = json.loads((folder / name).read_text())
    return document


def pack(source: Path, out: Path, **words: Any) -> Path:
    result = convertkit.pack_nvfp4(source, out, **words)
    assert isinstance(result, Result)
    assert result.status == 0
    assert convertkit.verify(out, strict=True).status == 0
    return out


def assert_same_tensors(ours: Tensors, theirs: Tensors) -> None:
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        assert ours[name] == value, name


# ---- packing


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_modelopt_export_is_reproduced_whole(made: Make, dtype: str, tmp_path: Path) -> None:
    pytest.importorskip("modelopt", reason="needs nvidia-modelopt")
    source = qwen3(made, dtype)
    theirs = made(real_checkpoints.modelopt_export, source)
    ours = pack(source, tmp_path / "ours", scales="amax", dialect="modelopt")
    assert len(planes.modules_with(planes.raw_tensors(theirs), "weight_scale_2")) == 14
    assert_same_tensors(planes.raw_tensors(ours), planes.raw_tensors(theirs))
    assert (ours / "model.safetensors").read_bytes() == (theirs / "model.safetensors").read_bytes()
    assert read(ours) == read(theirs)
    assert read(ours, "hf_quant_config.json") == read(theirs, "hf_quant_config.json")


def test_other_shards_of_the_same_model_give_the_same_planes(made: Make, tmp_path: Path) -> None:
    """Source shards cut q from k and v, gate from up; our own shards are cut elsewhere."""
    pytest.importorskip("modelopt", reason="needs nvidia-modelopt")
    theirs = made(real_checkpoints.modelopt_export, qwen3(made))
    source = real_checkpoints.tiny_qwen3(tmp_path / "source", max_shard_size="30KB")
    assert len(list(source.glob("*.safetensors"))) > 3
    ours = pack(source, tmp_path / "ours", scales="amax", dialect="modelopt", max_shard_bytes=20_000)
    assert len(list(ours.glob("*.safetensors"))) > 3
    assert_same_tensors(planes.all_tensors(ours), planes.raw_tensors(theirs))
    assert read(ours) == read(theirs)


@pytest.mark.parametrize("dialect", ["modelopt", "modelopt-mixed"])
def test_a_drafter_packed_by_modelopt_is_reproduced(made: Make, dialect: str, tmp_path: Path) -> None:
    pytest.importorskip("modelopt", reason="needs nvidia-modelopt")
    pytest.importorskip("dflash")
    theirs = made(real_checkpoints.modelopt_dflash_mlp, dflash(made))
    ours = pack(dflash(made), tmp_path / "ours", scales="amax", dialect=dialect)
    packed = planes.modules_with(planes.raw_tensors(theirs), "weight_scale_2")
    assert sorted(packed) == [f"layers.{i}.mlp.{leaf}_proj" for i in range(2) for leaf in ("down", "gate", "up")]
    assert_same_tensors(planes.raw_tensors(ours), planes.raw_tensors(theirs))
    config, other = read(ours), read(theirs)
    block, other_block = config.pop("quantization_config"), other.pop("quantization_config")
    assert config == other
    assert block["quant_method"] == other_block["quant_method"] == "modelopt"
    if dialect == "modelopt":
        # Theirs leaves out whole attentions by a pattern, which vLLM does not match; ours names the modules.
        assert {key: value for key, value in block.items() if key != "ignore"} == {
            key: value for key, value in other_block.items() if key != "ignore"
        }
    else:
        assert sorted(block["quantized_layers"]) == sorted(packed)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", ["qwen3", "llama"])
def test_a_oneshot_is_reproduced_whole(made: Make, family: str, dtype: str, tmp_path: Path) -> None:
    pytest.importorskip("llmcompressor", reason="needs llm-compressor")
    maker = {"qwen3": real_checkpoints.tiny_qwen3, "llama": real_checkpoints.tiny_llama}[family]
    source = made(maker, dtype=dtype)
    theirs = made(real_checkpoints.llmcompressor_oneshot, source)
    words = {"scales": "amax-llmcompressor", "dialect": "compressed-tensors", "limits": {"max_flushed": 0.05}}
    ours = pack(source, tmp_path / "ours", **words)
    assert len(planes.modules_with(planes.raw_tensors(theirs), "weight_packed")) == 14
    assert_same_tensors(planes.raw_tensors(ours), planes.raw_tensors(theirs))
    block, other = read(ours)["quantization_config"], read(theirs)["quantization_config"]
    for key in ("quant_method", "format", "quantization_status", "ignore", "kv_cache_scheme"):
        assert block[key] == other[key], key
    (group,), (other_group,) = block["config_groups"].values(), other["config_groups"].values()
    assert group["targets"] == other_group["targets"]
    assert {key: group["weights"][key] for key in ("num_bits", "type", "strategy", "group_size", "symmetric")} == {
        key: other_group["weights"][key] for key in ("num_bits", "type", "strategy", "group_size", "symmetric")
    }


# ---- expanding


def their_expansion(tensors: Tensors, dialect: str, dtype: str) -> dict[str, Any]:
    """Each packed weight as the package that owns the dialect expands it, by weight name."""
    expand = _modelopt_expansion if dialect == "modelopt" else _compressed_tensors_expansion
    codes = "weight" if dialect == "modelopt" else "weight_packed"
    names = [name for name, value in tensors.items() if value.dtype == "U8" and name.endswith(f".{codes}")]
    return {
        f"{module}.weight": expand(tensors, module, dtype)
        for module in (name.removesuffix(f".{codes}") for name in names)
    }


def plane(raw: planes.Raw) -> Any:
    kinds = {"U8": torch.uint8, "F8_E4M3": torch.float8_e4m3fn, "F32": torch.float32}
    return torch.frombuffer(bytearray(raw.data), dtype=kinds[raw.dtype]).reshape(raw.shape)


def _modelopt_expansion(tensors: Tensors, module: str, dtype: str) -> Any:
    from modelopt.torch.quantization.qtensor import NVFP4QTensor

    codes, scale, double = (plane(tensors[f"{module}.{leaf}"]) for leaf in ("weight", "weight_scale", "weight_scale_2"))
    packed = NVFP4QTensor(torch.Size((codes.shape[0], 2 * codes.shape[1])), TORCH[dtype], codes)
    return packed.dequantize(dtype=TORCH[dtype], scale=scale, double_scale=double, block_sizes={-1: 16})


def _compressed_tensors_expansion(tensors: Tensors, module: str, dtype: str) -> Any:
    from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
    from compressed_tensors.quantization import preset_name_to_scheme
    from compressed_tensors.quantization.lifecycle.forward import dequantize

    scheme = preset_name_to_scheme("NVFP4A16", ["Linear"])
    leaves = ("weight_packed", "weight_scale", "weight_global_scale")
    codes, scale, divisor = (plane(tensors[f"{module}.{leaf}"]) for leaf in leaves)
    values = unpack_fp4_from_uint8(codes, codes.shape[0], 2 * codes.shape[1], TORCH[dtype])
    return dequantize(values, scale.to(TORCH[dtype]), args=scheme.weights, dtype=TORCH[dtype], global_scale=divisor)


def bits(value: Any) -> Any:
    return value.contiguous().view(torch.int16 if value.element_size() == 2 else torch.int32)


def differences(ours: Any, theirs: Any) -> dict[str, int]:
    """Elements with another value, and zeros with another sign, as DEQUANT_REPORT counts them."""
    zeros = (ours == 0) & (theirs == 0)
    other = bits(ours) != bits(theirs)
    return {"values": int((other & ~zeros).sum()), "zero_signs": int((other & zeros).sum())}


def our_weight(tensors: Tensors, name: str, dtype: str) -> Any:
    raw = tensors[name]
    assert raw.dtype == dtype
    return torch.frombuffer(bytearray(raw.data), dtype=TORCH[dtype]).reshape(raw.shape)


def twice_rounded_global(scales: bytes, dialect: str, dtype: str) -> int:
    """FP32 bits of a global scale for which rounding to FP32 first changes the value of code 7 in most blocks."""
    byte = max(set(scales), key=scales.count)
    scale = torch.tensor([byte], dtype=torch.uint8).view(torch.float8_e4m3fn).double()
    power = {"multiplier": -14, "divisor": 12}["multiplier" if dialect == "modelopt" else "divisor"]
    globals_ = (1 + torch.arange(0, 1 << 23, 5).double() / (1 << 23)) * 2.0**power
    unit = scale * globals_ if dialect == "modelopt" else scale / globals_
    fraction, power_of = torch.frexp(6 * unit)  # torch's own cast from float64 would round to FP32 first
    digits = 2.0 ** {"BF16": 8, "F16": 11}[dtype]
    once = torch.ldexp(torch.round(fraction * digits) / digits, power_of)
    twice = (6 * unit.float()).to(TORCH[dtype]).double()
    return int(globals_[once != twice][0].float().view(torch.int32))


def with_global_scale(folder: Path, module: str, dialect: str, dtype: str) -> None:
    """Write such a global scale into a pack."""
    tensors = planes.raw_tensors(folder)
    leaf = "weight_scale_2" if dialect == "modelopt" else "weight_global_scale"
    blob = (folder / "model.safetensors").read_bytes()
    old = tensors[f"{module}.{leaf}"].data
    assert blob.count(old) == 1
    new = twice_rounded_global(tensors[f"{module}.weight_scale"].data, dialect, dtype).to_bytes(4, "little")
    (folder / "model.safetensors").write_bytes(blob.replace(old, new))


@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32"])
@pytest.mark.parametrize("dialect", FOREIGN)
def test_expansion_repeats_the_package_and_counts_what_differs(
    made: Make, dialect: str, dtype: str, tmp_path: Path
) -> None:
    pytest.importorskip(FOREIGN[dialect])
    packed = pack(qwen3(made), tmp_path / "packed", scales="amax", dialect=dialect)
    module = "model.layers.1.mlp.down_proj"
    if dtype != "F32":  # in FP32 any global scale will do
        with_global_scale(packed, module, dialect, dtype)
    theirs = their_expansion(planes.raw_tensors(packed), dialect, dtype)
    assert len(theirs) == 14
    convertkit.dequant(packed, tmp_path / "same", dtype=dtype.lower(), arithmetic=dialect)
    same = planes.raw_tensors(tmp_path / "same")
    for name, value in theirs.items():
        assert torch.equal(bits(our_weight(same, name, dtype)), bits(value)), name

    convertkit.dequant(packed, tmp_path / "exact", dtype=dtype.lower())
    exact = planes.raw_tensors(tmp_path / "exact")
    rows = {row["name"]: row for row in read(tmp_path / "exact", "DEQUANT_REPORT.json")["rows"]}
    for name, value in theirs.items():
        assert rows[name]["differences"][dialect] == differences(our_weight(exact, name, dtype), value), name
        assert rows[name]["differing"] == 0
    assert rows[f"{module}.weight"]["differences"][dialect]["values"] > 20
    # Signs of zero: the exact value and compressed-tensors keep the sign of code 8, ModelOpt does not.
    zeros = sum(rows[name]["negative_zeros"] for name in theirs)
    lost = sum(rows[name]["differences"][dialect]["zero_signs"] for name in theirs)
    assert zeros > 0
    assert lost == (zeros if dialect == "modelopt" else 0)


def test_an_export_expands_to_what_modelopt_makes_of_it(made: Make, tmp_path: Path) -> None:
    pytest.importorskip("modelopt", reason="needs nvidia-modelopt")
    theirs = made(real_checkpoints.modelopt_export, qwen3(made))
    convertkit.dequant(theirs, tmp_path / "dense", arithmetic="modelopt")
    dense = planes.raw_tensors(tmp_path / "dense")
    for name, value in their_expansion(planes.raw_tensors(theirs), "modelopt", "BF16").items():
        assert torch.equal(bits(our_weight(dense, name, "BF16")), bits(value)), name
    assert read(tmp_path / "dense") == read(qwen3(made))
    assert not (tmp_path / "dense" / "hf_quant_config.json").exists()


# ---- loading


def loaded(folder: Path, drafter: bool = False) -> Any:
    """The model as transformers loads and compressed-tensors decompresses it; nothing missing, nothing left over."""
    import transformers

    if drafter:
        from dflash.model import DFlashDraftModel as Model
    else:
        Model = transformers.AutoModelForCausalLM
    words: dict[str, Any] = {}
    if "quantization_config" in read(folder):
        words["quantization_config"] = transformers.CompressedTensorsConfig(run_compressed=False)
    model, info = Model.from_pretrained(folder, dtype=torch.bfloat16, output_loading_info=True, **words)
    assert {key: value for key, value in info.items() if value} == {}
    return model


@pytest.mark.parametrize("drafter", [False, True])
def test_transformers_loads_a_pack_as_its_expansion(made: Make, drafter: bool, tmp_path: Path) -> None:
    pytest.importorskip("compressed_tensors")
    if drafter:
        pytest.importorskip("dflash")
    packed = pack(dflash(made) if drafter else qwen3(made), tmp_path / "packed", dialect="compressed-tensors")
    convertkit.dequant(packed, tmp_path / "dense", arithmetic="compressed-tensors")
    from_pack, from_dense = loaded(packed, drafter), loaded(tmp_path / "dense", drafter)
    weights = {name: value for name, value in from_pack.named_parameters() if "scale" not in name}
    expected = dict(from_dense.named_parameters())
    assert weights.keys() == expected.keys()
    for name, value in expected.items():
        assert weights[name].dtype == value.dtype
        assert torch.equal(bits(weights[name].data), bits(value.data)), name
