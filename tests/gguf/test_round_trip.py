"""Checkpoint to GGUF and back: the same bytes for dense weights, the same planes for NVFP4, the same config."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from convertkit.containers.folder import open_checkpoint
from convertkit.containers.reader import Reader
from convertkit.conversion.identify import identify
from convertkit.errors import ConvertError
from convertkit.layouts.configs import READINGS
from convertkit.layouts.fields import read_values
from convertkit.layouts.gguf_names import ARCHS
from convertkit.layouts.gguf_names import from_gguf as from_gguf_name
from convertkit.layouts.meaning import resolve
from convertkit.verbs.case import Result
from convertkit.verbs.convert import convert
from convertkit.verbs.from_gguf import from_gguf
from convertkit.verbs.pack import pack_nvfp4
from convertkit.verbs.to_gguf import to_gguf
from tests.gguf.models import DRAFTERS, KINDS, write_model


def stored(folder: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    opened = open_checkpoint(folder)
    with Reader(opened) as reader:
        return {name: (ref.spec.dtype, ref.spec.shape, reader.bytes_of(name)) for name, ref in opened.tensors.items()}


def there_and_back(source: Path, folder: Path, target: Path | None, type_: str = "bf16", **back: Any) -> Path:
    to_gguf(source, folder / "there.gguf", type=type_, target_model=target)
    result = from_gguf(folder / "there.gguf", folder / "back", **back)
    assert isinstance(result, Result)
    assert result.status == 0
    return folder / "back"


@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32"])
@pytest.mark.parametrize("kind", KINDS)
def test_dense_weights_come_back_byte_for_byte(kind: str, dtype: str, tmp_path: Path, target: Path) -> None:
    source = write_model(tmp_path / kind, kind, dtype)
    back = there_and_back(source, tmp_path, target if kind in DRAFTERS else None, dtype.lower(), dtype=dtype.lower())
    before, after = stored(source), stored(back)
    assert before.keys() == after.keys()
    if kind == "gemma3":  # one is added to its norms and taken off again, which tiny weights do not survive
        differing = {name for name in before if before[name] != after[name]}
        assert all(name.endswith("norm.weight") for name in differing)
        for name in differing:
            assert before[name][:2] == after[name][:2]
        return
    assert before == after


@pytest.mark.parametrize("kind", DRAFTERS)
def test_a_drafters_config_means_the_same(kind: str, tmp_path: Path, target: Path) -> None:
    source = write_model(tmp_path / kind, kind, rope_parameters={"rope_theta": 1e7, "rope_type": "default"})
    back = there_and_back(source, tmp_path, target)
    configs = [json.loads((folder / "config.json").read_text()) for folder in (source, back)]
    reading = READINGS[kind]
    specs = []
    for config in configs:
        values, faults = read_values(reading.fields, config)
        assert not faults
        config.setdefault("num_target_layers", None)
        specs.append(resolve(reading.algorithm, {**values, "target_layers": None}, reading.rules))
    assert specs[0] == specs[1]
    assert identify(open_checkpoint(back)).layout.name == kind


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "qwen3_moe", "gemma3"])
def test_a_models_config_has_the_same_numbers(kind: str, tmp_path: Path) -> None:
    source = write_model(tmp_path / kind, kind)
    back = there_and_back(source, tmp_path, None)
    before, after = (json.loads((folder / "config.json").read_text()) for folder in (source, back))
    same = {key for key in after if key in before} - {"eos_token_id"}
    assert {key: after[key] for key in same} == {key: before[key] for key in same}
    assert {"hidden_size", "rope_parameters", "tie_word_embeddings", "vocab_size", "rms_norm_eps", "head_dim"} <= same


def test_config_from_gives_the_config_and_must_fit(tmp_path: Path, target: Path) -> None:
    source = write_model(tmp_path / "dflash", "dflash")
    back = there_and_back(source, tmp_path, target, config_from=source)
    assert json.loads((back / "config.json").read_text()) == json.loads((source / "config.json").read_text())
    other = write_model(tmp_path / "other", "dflash", num_hidden_layers=3)
    with pytest.raises(ConvertError) as caught:
        from_gguf(tmp_path / "there.gguf", tmp_path / "again", config_from=other)
    assert caught.value.code == "E_CONFIG"


@pytest.mark.parametrize("dialect", ["modelopt", "modelopt-mixed", "compressed-tensors"])
@pytest.mark.parametrize("kind", ["dflash", "dspark", "eagle3", "llama", "qwen3_moe"])
def test_planes_come_back_as_they_were(kind: str, dialect: str, tmp_path: Path, target: Path) -> None:
    dense = write_model(tmp_path / kind, kind)
    eagle = target if kind == "eagle3" else None
    pack_nvfp4(dense, tmp_path / "packed", dialect=dialect, reversible_scale=True, target_model=eagle)
    drafter = target if kind in DRAFTERS else None
    back = there_and_back(tmp_path / "packed", tmp_path, drafter, "nvfp4", dialect=dialect, target_model=eagle)
    assert stored(back) == stored(tmp_path / "packed")


def test_expanded_planes_are_those_of_dequant(tmp_path: Path, target: Path) -> None:
    from convertkit.verbs.dequant import dequant

    dense = write_model(tmp_path / "dflash", "dflash")
    pack_nvfp4(dense, tmp_path / "packed")
    dequant(tmp_path / "packed", tmp_path / "expanded")
    back = there_and_back(tmp_path / "packed", tmp_path, target, "nvfp4")
    assert stored(back) == stored(tmp_path / "expanded")
    to_gguf(tmp_path / "packed", tmp_path / "dense.gguf", target_model=target)
    from_gguf(tmp_path / "dense.gguf", tmp_path / "again")
    assert stored(tmp_path / "again") == stored(tmp_path / "expanded")


@pytest.mark.parametrize("dialect", ["modelopt", "compressed-tensors"])
def test_blocks_times_scale_are_the_values_of_the_source(dialect: str, tmp_path: Path, target: Path) -> None:
    """As gguf decodes the blocks, in FP32, bit for bit but the sign of zeros, which ggml does not keep; with a divisor
    too, as its reciprocal inverts back here."""
    from gguf import GGUFReader, quants

    from convertkit.verbs.dequant import dequant

    dense = write_model(tmp_path / "dflash", "dflash")
    chosen = ["layers.{i}.{rest}", "fc"]
    pack_nvfp4(dense, tmp_path / "packed", dialect="modelopt", include=chosen, reversible_scale=True)
    dequant(tmp_path / "packed", tmp_path / "expanded", dtype="f32")
    source = tmp_path / "packed"
    if dialect != "modelopt":
        convert(source, tmp_path / "other", to="nvfp4-ct")
        source = tmp_path / "other"
    to_gguf(source, tmp_path / "m.gguf", type="nvfp4", target_model=target)
    read = {tensor.name: tensor for tensor in GGUFReader(tmp_path / "m.gguf").tensors}
    expanded = stored(tmp_path / "expanded")
    names = [name for name in read if name.endswith(".weight") and read[name].tensor_type.name == "NVFP4"]
    assert len(names) == 15
    for name in names:
        scale = np.asarray(read[name.removesuffix("weight") + "scale"].data)
        values = np.asarray(quants.dequantize(np.asarray(read[name].data), read[name].tensor_type) * scale, np.float32)
        named = from_gguf_name(ARCHS["dflash"], name)
        assert named is not None
        data = np.frombuffer(expanded[named.hub()][2], "<f4").reshape(values.shape)
        assert np.array_equal(values, data)
        assert not (values.view(np.uint32) ^ data.view(np.uint32))[values != 0].any()


@pytest.mark.parametrize("type_", ["q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "mxfp4"])
def test_block_types_are_decoded_and_rounded_once(type_: str, tmp_path: Path, target: Path) -> None:
    from gguf import GGUFReader, quants

    source = write_model(tmp_path / "eagle3", "eagle3")
    back = there_and_back(source, tmp_path, target, type_, dtype="f32")
    read = {tensor.name: tensor for tensor in GGUFReader(tmp_path / "there.gguf").tensors}
    tensor = read["blk.0.attn_k.weight"]
    values: NDArray[np.float32] = quants.dequantize(np.asarray(tensor.data), tensor.tensor_type)
    heads = 2
    expected = values.reshape(heads, values.shape[0] // heads // 2, 2, -1).swapaxes(1, 2).reshape(values.shape)
    data = stored(back)["midlayer.self_attn.k_proj.weight"][2]
    assert np.array_equal(np.frombuffer(data, "<f4").reshape(expected.shape), expected)


def test_unknown_architectures_and_tensors_are_refused(tmp_path: Path, target: Path) -> None:
    source = write_model(tmp_path / "dflash", "dflash")
    to_gguf(source, tmp_path / "m.gguf", target_model=target)
    data = (tmp_path / "m.gguf").read_bytes()
    for old, new, code in (
        (b"\x06\0\0\0\0\0\0\0dflash\x0c", b"\x06\0\0\0\0\0\0\0dfloss\x0c", "E_ARCH"),
        (b"enc.output_norm.weight", b"enc.outputtnorm.weight", "E_LAYOUT_EXTRA"),
    ):
        changed = data.replace(old[:-1] if code == "E_ARCH" else old, new[:-1] if code == "E_ARCH" else new, 1)
        assert changed != data
        (tmp_path / "x.gguf").write_bytes(changed)
        with pytest.raises(ConvertError) as caught:
            from_gguf(tmp_path / "x.gguf", tmp_path / "out")
        assert code in {item.code for item in caught.value.findings}


def test_safetensors_verbs_say_which_verb_reads_a_gguf(tmp_path: Path, target: Path) -> None:
    source = write_model(tmp_path / "dflash", "dflash")
    to_gguf(source, tmp_path / "m.gguf", target_model=target)
    with pytest.raises(ConvertError) as caught:
        pack_nvfp4(tmp_path / "m.gguf", tmp_path / "out")
    assert caught.value.code == "E_CONTAINER"
    with pytest.raises(ConvertError) as caught:
        from_gguf(source, tmp_path / "out")
    assert caught.value.code == "E_CONTAINER"
    shutil.rmtree(source)
