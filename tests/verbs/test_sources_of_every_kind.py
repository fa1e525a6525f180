"""What real sources hold beside plain weights: scales in other shards, KV scales, W4A4, F16, F32, zeros, dust."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from convertkit.containers.folder import open_checkpoint
from convertkit.containers.reader import Reader
from convertkit.containers.safetensors import encode_header
from convertkit.demo.generate import generate
from convertkit.dialects.spelling import spelling_of
from convertkit.errors import ConvertError
from convertkit.verbs.case import Result
from convertkit.verbs.convert import convert
from convertkit.verbs.dequant import dequant
from convertkit.verbs.gate import gate
from convertkit.verbs.pack import pack_nvfp4
from convertkit.verbs.verify import verify
from tests.dialects.tiny import LM_CONFIG, MLP, causal_lm, spec, write

FIXTURES = Path(__file__).parents[2] / "fixtures"
CT, MO = "compressed-tensors", "modelopt"
MODULE = "model.layers.0.mlp.up_proj"
Tensors = dict[str, tuple[str, tuple[int, ...], bytes]]


def tensors(folder: Path) -> Tensors:
    checkpoint = open_checkpoint(folder)
    with Reader(checkpoint) as reader:
        return {n: (r.spec.dtype, r.spec.shape, reader.bytes_of(n)) for n, r in checkpoint.tensors.items()}


def done(made: Any) -> Result:
    assert isinstance(made, Result)
    assert made.status == 0
    assert verify(made.out, strict=True).status == 0
    return made


def summary(made: Result, report: str = "DEQUANT_REPORT.json") -> Mapping[str, Any]:
    found: Mapping[str, Any] = made.reports[report]["summary"]
    return found


def dropped(made: Result) -> list[str]:
    findings = made.reports["LOAD_SHAPE_AUDIT.json"]["findings"]
    return [item["where"]["tensor"] for item in findings if item["code"] == "N_DROPPED"]


# ---- planes spread over shards


def scattered(source: Path, out: Path) -> Path:
    """The tensors of a checkpoint in three shards: every codes, block scale and global scale in another one."""
    out.mkdir()
    held = tensors(source)
    shards: list[list[str]] = [[], [], []]
    for name in sorted(held):
        shards[2 if name.endswith(("_scale_2", "global_scale")) else 1 if "_scale" in name else 0].append(name)
    place: dict[str, str] = {}
    for number, names in enumerate(shards, 1):
        file = f"model-{number:05}-of-00003.safetensors"
        header = encode_header([spec(name, held[name][0], *held[name][1]) for name in names], {"format": "pt"})
        (out / file).write_bytes(header.prefix + b"".join(held[item.name][2] for item in header.order))
        place.update(dict.fromkeys(names, file))
    total = sum(len(row[2]) for row in held.values())
    index = {"metadata": {"total_size": total}, "weight_map": place}
    (out / "model.safetensors.index.json").write_text(json.dumps(index))
    for name in ("config.json", "hf_quant_config.json"):
        if (source / name).exists():
            (out / name).write_bytes((source / name).read_bytes())
    return out


@pytest.mark.parametrize("name", ["modelopt-export-tiny", "llmcompressor-oneshot-tiny"])
def test_scales_in_another_shard(tmp_path: Path, name: str) -> None:
    whole = FIXTURES / name
    cut = scattered(whole, tmp_path / "cut")
    place = {name: ref.file for name, ref in open_checkpoint(cut).tensors.items()}
    module = "model.layers.1.mlp.down_proj"
    assert len({file for name, file in place.items() if name.startswith(f"{module}.")}) == 3
    for source, out in ((whole, "a"), (cut, "b")):
        assert summary(done(dequant(source, tmp_path / out)))["expanded"] == 14
    assert tensors(tmp_path / "a") == tensors(tmp_path / "b")
    assert gate(cut, whole, limits={"max_changed": 0.0}).status == 0
    other = "nvfp4-ct" if name.startswith("modelopt") else "nvfp4-modelopt"
    for source, out in ((whole, "c"), (cut, "d")):
        done(convert(source, tmp_path / out, to=other))
    assert tensors(tmp_path / "c") == tensors(tmp_path / "d")


@pytest.mark.parametrize("name", ["modelopt-export-tiny", "llmcompressor-oneshot-tiny"])
def test_expansion_into_shards(tmp_path: Path, name: str) -> None:
    done(dequant(FIXTURES / name, tmp_path / "one"))
    done(dequant(FIXTURES / name, tmp_path / "many", max_shard_bytes=30_000))
    checkpoint = open_checkpoint(tmp_path / "many")
    assert len(checkpoint.files) > 3
    assert checkpoint.findings == ()
    assert tensors(tmp_path / "many") == tensors(tmp_path / "one")


# ---- scales that are not of weights


def with_kv_scales(folder: Path, dialect: str) -> Path:
    specs = [*causal_lm(MLP, dialect), *(spec(f"model.layers.0.self_attn.{leaf}_scale", "F32", 1) for leaf in "kv")]
    block: dict[str, Any] = {
        "quant_method": "modelopt", "quant_algo": "W4A16_NVFP4", "kv_cache_quant_algo": "FP8", "group_size": 16,
        "ignore": ["lm_head", "model.embed_tokens", *(f"model.layers.{i}.self_attn*" for i in range(2))],
    }  # fmt: skip
    return write(folder, specs, {**LM_CONFIG, "quantization_config": block, "text_config": {"vocab_size": 48}})


def test_kv_scales_are_dropped_by_name_or_kept(tmp_path: Path) -> None:
    source = with_kv_scales(tmp_path / "source", MO)
    names = [f"model.layers.0.self_attn.{leaf}_scale" for leaf in "kv"]
    made = done(dequant(source, tmp_path / "without"))
    assert dropped(made) == names
    assert [item.where.tensor for item in made.findings if item.code == "N_DROPPED"] == names
    assert not set(names) & set(tensors(tmp_path / "without"))
    made = done(dequant(source, tmp_path / "with", kv_scales="keep"))
    assert dropped(made) == []
    assert all(tensors(tmp_path / "with")[name] == tensors(source)[name] for name in names)
    for out in ("without", "with"):
        assert "quant" not in (tmp_path / out / "config.json").read_text()


def test_nested_quantization_leaves_no_trace(tmp_path: Path) -> None:
    source = FIXTURES / "modelopt-export-tiny"
    copy = scattered(source, tmp_path / "copy")
    config = json.loads((source / "config.json").read_text())
    block = config.pop("quantization_config")
    config["text_config"] = {"vocab_size": config["vocab_size"], "quantization_config": block}
    (copy / "config.json").write_text(json.dumps(config))
    done(dequant(copy, tmp_path / "out"))
    assert "quant" not in (tmp_path / "out" / "config.json").read_text()
    assert not (tmp_path / "out" / "hf_quant_config.json").exists()
    assert json.loads((tmp_path / "out" / "config.json").read_text())["text_config"] == {
        "vocab_size": config["vocab_size"]
    }


@pytest.mark.parametrize(
    ("name", "leaf"),
    [("modelopt-export-w4a4-tiny", "input_scale"), ("llmcompressor-oneshot-w4a4-tiny", "input_global_scale")],
)
def test_w4a4_expands_as_its_weights_alone(tmp_path: Path, name: str, leaf: str) -> None:
    made = done(dequant(FIXTURES / name, tmp_path / "dense"))
    assert len(dropped(made)) == 14
    assert all(tensor.endswith(f".{leaf}") for tensor in dropped(made))
    done(dequant(FIXTURES / name.replace("w4a4-", ""), tmp_path / "weights-only"))
    assert tensors(tmp_path / "dense") == tensors(tmp_path / "weights-only")


@pytest.mark.parametrize(("name", "there", "back"), [
    ("modelopt-export-w4a4-tiny", "nvfp4-ct", "nvfp4-modelopt"),
    ("llmcompressor-oneshot-w4a4-tiny", "nvfp4-modelopt", "nvfp4-ct"),
])  # fmt: skip
def test_w4a4_goes_there_and_back(tmp_path: Path, name: str, there: str, back: str) -> None:
    done(convert(FIXTURES / name, tmp_path / "there", to=there))
    done(convert(tmp_path / "there", tmp_path / "back", to=back))
    before, after = tensors(FIXTURES / name), tensors(tmp_path / "back")
    assert before.keys() == after.keys()
    scalars = {name for name, row in before.items() if row[0] == "F32" and len(row[2]) == 4}
    assert len(scalars) == 28
    assert all(after[name] == row for name, row in before.items() if name not in scalars)
    for scalar in scalars:  # inverted twice in FP32, so at most one step off
        bits, other = (int(np.frombuffer(rows[scalar][2], np.uint32)[0]) for rows in (before, after))
        assert abs(bits - other) <= 1


# ---- dtypes


@pytest.mark.parametrize("scales", ["amax", "amax-llmcompressor"])
@pytest.mark.parametrize("dtype", ["F16", "F32"])
def test_sources_of_other_dtypes(tmp_path: Path, dtype: str, scales: str) -> None:
    generate("qwen3", tmp_path / "source", dtype=dtype)
    made = done(pack_nvfp4(tmp_path / "source", tmp_path / "packed", scales=scales))
    assert summary(made, "FIDELITY_GATE.json")["packed"] == 14
    before, after = tensors(tmp_path / "source"), tensors(tmp_path / "packed")
    assert all(row[0] == dtype for row in before.values())
    assert all(after[name] == row for name, row in before.items() if "_proj" not in name)
    done(dequant(tmp_path / "packed", tmp_path / "dense", dtype=dtype.lower()))
    assert {row[0] for row in tensors(tmp_path / "dense").values()} == {dtype}
    assert gate(tmp_path / "packed", tmp_path / "dense", stored=dtype.lower(), limits={"max_changed": 0}).status == 0


# ---- what the report counts

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def fp32_values(held: Tensors, module: str) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """A ModelOpt weight in FP32: the exact value rounded once, and in ModelOpt's two steps."""
    packed = np.frombuffer(held[f"{module}.weight"][2], np.uint8)
    codes = E2M1[np.stack([packed & 15, packed >> 4], axis=-1).reshape(-1, 16)]
    bytes_ = np.frombuffer(held[f"{module}.weight_scale"][2], np.uint8).astype(np.int64)
    scales = np.ldexp(np.where(bytes_ >> 3, 8 + (bytes_ & 7), 2.0 * (bytes_ & 7)) / 8, (bytes_ >> 3) - 7)
    scale = np.frombuffer(held[f"{module}.weight_scale_2"][2], np.float32)[0]
    exact = codes * scales[:, None] * np.float64(scale)  # at most 6 and 24 bits: no rounding in float64
    twice = codes.astype(np.float32) * (scales.astype(np.float32) * scale)[:, None]
    return exact.astype(np.float32).reshape(-1), twice.reshape(-1)


def test_the_report_counts_elements_that_differ(tmp_path: Path) -> None:
    source = FIXTURES / "modelopt-export-tiny"
    held = tensors(source)
    for arithmetic, own in (("exact", 0), ("modelopt", 1)):
        made = done(dequant(source, tmp_path / arithmetic, dtype="f32", arithmetic=arithmetic))
        rows = {row["name"]: row for row in made.reports["DEQUANT_REPORT.json"]["rows"] if row["promise"] == "exact"}
        dense = tensors(tmp_path / arithmetic)
        total = 0
        for name, row in rows.items():
            values = fp32_values(held, name.removesuffix(".weight"))
            expected = values[own] + 0 if arithmetic == "modelopt" else values[own]  # ModelOpt writes no -0
            assert dense[name][2] == expected.tobytes(), name
            different = int(np.count_nonzero(values[0] != values[1]))
            minus_zeros = int(np.count_nonzero((values[0] == 0) & np.signbit(values[0])))
            total += different
            there = {"values": different, "zero_signs": minus_zeros}
            none = {"values": 0, "zero_signs": 0}
            assert row["differences"]["modelopt"] == (none if own else there), name
            assert row["differences"]["exact"] == (there if own else none), name
            assert row["differing"] == (different + minus_zeros if own else 0), name
        assert total > 1000
        assert summary(made)["differing_modelopt"] == (0 if own else total)


# ---- zeros and dust


def model_with(folder: Path, values: NDArray[np.float32]) -> Path:
    """A language model whose up_proj and gate_proj of layer 0 hold ``values`` [32, 32] in BF16, all else ones."""
    bits = (np.ascontiguousarray(values).view(np.uint32) >> 16).astype(np.uint16)
    both = {f"{MODULE}.weight": bits.tobytes(), f"{MODULE.replace('up', 'gate')}.weight": bits.tobytes()}
    return write(folder, causal_lm(), LM_CONFIG, values=both)


def planes_of(folder: Path, dialect: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8], np.float32]:
    """Codes one to a byte [32, 32], block scale bytes [32, 2] and the global scale of ``MODULE``."""
    spelling, held = spelling_of(dialect), tensors(folder)
    codes, scales, scale = (
        held[f"{MODULE}.{leaf}"][2] for leaf in (spelling.codes, spelling.block_scale, spelling.global_scale)
    )
    packed = np.frombuffer(codes, np.uint8)
    nibbles = np.stack([packed & 15, packed >> 4], axis=-1).reshape(32, 32)
    return nibbles, np.frombuffer(scales, np.uint8).reshape(32, 2), np.frombuffer(scale, np.float32)[0]


ANYTHING = {"max_rel_rms": None, "min_sqnr": None, "min_cosine": None, "max_flushed": None}
ARITHMETICS = [("amax", MO, 0x38), ("amax-llmcompressor", CT, 0x20)]


@pytest.mark.parametrize(("scales", "dialect", "zero_block"), ARITHMETICS)
def test_a_tensor_of_zeros_packs_without_a_nan(tmp_path: Path, scales: str, dialect: str, zero_block: int) -> None:
    values = np.zeros((32, 32), np.float32)
    values[::2] = -0.0
    source = model_with(tmp_path / "source", values)
    done(pack_nvfp4(source, tmp_path / "out", scales=scales, dialect=dialect))
    codes, blocks, scale = planes_of(tmp_path / "out", dialect)
    assert not codes.any()
    assert 0 < scale < np.inf
    assert not (blocks & 0x7F == 0x7F).any()
    assert (blocks == zero_block).all()
    made = done(dequant(tmp_path / "out", tmp_path / "dense"))
    assert summary(made)["negative_zeros"] == 0
    assert set(tensors(tmp_path / "dense")[f"{MODULE}.weight"][2]) == {0}


@pytest.mark.parametrize(("scales", "dialect", "zero_block"), ARITHMETICS)
def test_zero_blocks_minus_zeros_and_dust(tmp_path: Path, scales: str, dialect: str, zero_block: int) -> None:
    values = np.full((32, 32), 0.5, np.float32)
    values[3, :16] = 0.0  # a block of zeros
    values[4, :16] = -0.0
    values[5, 0] = -0.0  # among others: code 0
    values[6, :16] = -(2.0**-60)  # below the smallest block scale: flushed, with its sign
    source = model_with(tmp_path / "source", values)
    made = pack_nvfp4(source, tmp_path / "out", scales=scales, dialect=dialect, limits=ANYTHING)
    rows = {row["name"]: row for row in done(made).reports["FIDELITY_GATE.json"]["rows"]}
    assert rows[f"{MODULE}.weight"]["metrics"]["flushed_blocks"] == 1
    assert summary(done(made), "FIDELITY_GATE.json")["whole"]["flushed_blocks"] == 2
    codes, blocks, scale = planes_of(tmp_path / "out", dialect)
    assert 0 < scale < np.inf
    assert not (blocks & 0x7F == 0x7F).any()
    assert (blocks[3:5, 0] == zero_block).all()
    assert not codes[3:5, :16].any()
    assert codes[5, 0] == 0
    assert (codes[6, :16] == 8).all()
    assert (codes[7] == 7).all()
    for arithmetic, sign in (("exact", 0x80), ("modelopt", 0), ("compressed-tensors", 0x80)):
        report = done(dequant(tmp_path / "out", tmp_path / arithmetic, arithmetic=arithmetic))
        dense = np.frombuffer(tensors(tmp_path / arithmetic)[f"{MODULE}.weight"][2], np.uint16).reshape(32, 32)
        assert (dense[6, :16] == sign << 8).all()
        assert summary(report)["negative_zeros"] == (32 if sign else 0)
        assert summary(report)["differing"] == (0 if sign else 32)  # from the exact value, the sign of a zero counts


def test_a_gate_stops_a_pack_that_flushes(tmp_path: Path) -> None:
    values = np.full((32, 32), 2.0**-60, np.float32)
    values[0, 0] = 1.0
    source = model_with(tmp_path / "source", values)
    with pytest.raises(ConvertError) as caught:
        pack_nvfp4(source, tmp_path / "out")
    assert caught.value.code == "E_GATE"
    assert {item.data["metric"] for item in caught.value.findings} >= {"flushed_fraction"}
    assert not (tmp_path / "out").exists()
