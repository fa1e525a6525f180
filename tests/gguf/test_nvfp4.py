"""NVFP4 on the way to GGUF: two levels, experts, activation scales, and what llama.cpp is told about them."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from convertkit.containers.folder import open_any
from convertkit.containers.reader import Reader
from convertkit.errors import ConvertError
from convertkit.verbs.from_gguf import from_gguf
from convertkit.verbs.pack import pack_nvfp4
from tests.gguf.made import convert, keys, make, tensors, truncated
from tests.gguf.models import (
    KINDS,
    values_of,
    write_model,
    write_tokenizer,
)

FIXTURES = Path(__file__).parents[2] / "fixtures"


def test_nvfp4_of_dense_weights_has_two_levels(tmp_path: Path, target: Path) -> None:
    """Weights far below ggml's single-level range keep their precision by the scale of the tensor."""
    small = {
        name: values_of(name, shape, 0) * np.float32(2**-9)
        for name, shape in KINDS["dflash"]()[1].items()
        if "mlp" in name
    }
    out, _ = make(tmp_path, "dflash", target, "nvfp4", change=small)
    found = tensors(out)
    with Reader(open_any(out)) as reader:
        scale = reader.array("blk.0.ffn_up.scale")
    values = truncated(small["layers.0.mlp.up_proj.weight"])
    error = np.sqrt(np.mean((found["blk.0.ffn_up.weight"] * scale - values) ** 2) / np.mean(values**2))
    assert error < 0.11


@pytest.mark.parametrize("kind", ["qwen3_moe", "llama"])
def test_nvfp4_on_the_way_is_that_of_packing_first(kind: str, tmp_path: Path) -> None:
    """Experts too: each has a scale of its own, which its gate and up share."""
    source = write_model(tmp_path / "m", kind)
    pack_nvfp4(source, tmp_path / "pack")
    convert(source, tmp_path / "dense.gguf", type="nvfp4")
    convert(tmp_path / "pack", tmp_path / "packed.gguf", type="nvfp4")
    assert (tmp_path / "dense.gguf").read_bytes() == (tmp_path / "packed.gguf").read_bytes()
    if kind == "qwen3_moe":
        specs = {name: ref.spec for name, ref in open_any(tmp_path / "dense.gguf").tensors.items()}
        assert specs["blk.0.ffn_gate_exps.weight"].dtype == "NVFP4"
        assert specs["blk.0.ffn_gate_exps.scale"].shape == (4,)


def test_weights_that_want_wide_activations_are_named(tmp_path: Path, target: Path) -> None:
    """Weights without an activation scale, packed or quantized on the way; none in a file without NVFP4."""
    source = write_model(tmp_path / "m", "dflash")
    pack_nvfp4(source, tmp_path / "pack")
    for place in (source, tmp_path / "pack"):
        convert(place, tmp_path / f"{place.name}.gguf", target, type="nvfp4")
        found = keys(tmp_path / f"{place.name}.gguf")
        packed = [
            n for n, ref in open_any(tmp_path / f"{place.name}.gguf").tensors.items() if ref.spec.dtype == "NVFP4"
        ]
        assert found["general.tensor_extra.name"] == sorted(packed)
        assert found["general.tensor_extra.prec_a4"] == [False] * len(packed)
    convert(source, tmp_path / "dense.gguf", target)
    assert not any(key.startswith("general.tensor_extra") for key in keys(tmp_path / "dense.gguf"))


def test_activation_scales_go_there_and_back(tmp_path: Path) -> None:
    """A pack of ModelOpt's with activation scales: they are carried, and the weights are not named as wide."""
    source = tmp_path / "pack"
    shutil.copytree(FIXTURES / "modelopt-export-w4a4-tiny", source)
    write_tokenizer(source, few=80)
    convert(source, tmp_path / "m.gguf", type="nvfp4")
    assert not any(key.startswith("general.tensor_extra") for key in keys(tmp_path / "m.gguf"))
    from_gguf(tmp_path / "m.gguf", tmp_path / "back", config_from=source, dialect="modelopt")
    assert stored(tmp_path / "back") == stored(source)


def test_a_dialect_without_nvfp4_weights_is_refused(tmp_path: Path, target: Path) -> None:
    out, _ = make(tmp_path, "dflash", target, "q8_0")
    with pytest.raises(ConvertError) as caught:
        from_gguf(out, tmp_path / "back", dialect="modelopt")
    assert caught.value.code == "E_NOT_QUANTIZED"
    assert not (tmp_path / "back").exists()


def stored(folder: Path) -> dict[str, bytes]:
    with Reader(open_any(folder)) as reader:
        return {name: reader.bytes_of(name) for name in reader.checkpoint.tensors}
