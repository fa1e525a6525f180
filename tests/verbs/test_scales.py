"""pack-nvfp4 --scales: lossless and auto on grids, mse and four-over-six, hints, floors, and planted faults."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from convertkit.checkpoint import TensorSpec
from convertkit.containers.folder import open_checkpoint
from convertkit.containers.reader import Reader
from convertkit.containers.safetensors import encode_header
from convertkit.conversion import encoders
from convertkit.demo.generate import generate
from convertkit.errors import ConvertError
from convertkit.release.reports import validate_report
from convertkit.verbs.case import Options, Result
from convertkit.verbs.convert import convert
from convertkit.verbs.dequant import dequant
from convertkit.verbs.pack import pack_nvfp4
from tests.grids.grid_tensors import Bits, bf16, decoded, planes

MLP = ("gate_proj", "up_proj", "down_proj")


def write(folder: Path, tensors: dict[str, Bits]) -> Path:
    """A small dense BF16 checkpoint."""
    folder.mkdir()
    specs = [TensorSpec(name, "BF16", bits.shape) for name, bits in tensors.items()]
    header = encode_header(specs, {"format": "pt"})
    data = b"".join(tensors[spec.name].tobytes() for spec in header.order)
    (folder / "model.safetensors").write_bytes(header.prefix + data)
    (folder / "config.json").write_text('{"architectures": ["LlamaForCausalLM"], "model_type": "llama"}')
    return folder


def mlp(tmp_path: Path, **weights: Bits) -> Path:
    """One MLP whose linears are given by their last name."""
    return write(tmp_path / "src", {f"model.layers.0.mlp.{name}.weight": bits for name, bits in weights.items()})


def weights(folder: Path) -> dict[str, bytes]:
    checkpoint = open_checkpoint(folder)
    with Reader(checkpoint) as reader:
        return {name: reader.bytes_of(name) for name in checkpoint.tensors}


def pack(source: Path, out: Path, **words: Any) -> dict[str, Any]:
    """FIDELITY_GATE.json of a pack."""
    made = pack_nvfp4(source, out, include=["layers.{i}.mlp.{x}"], **words)
    assert isinstance(made, Result)
    return validate_report(out / "FIDELITY_GATE.json")


def rows(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["name"].split(".")[-2]: row["scales"] for row in report["rows"] if row["scope"] == "tensor"}


def grids(seed: int) -> dict[str, Bits]:
    """gate and up on one grid, down on another."""
    shared = planes("random", (64, 64), seed)
    return {
        "gate_proj": decoded(shared),
        "up_proj": decoded(planes("random", (64, 64), seed + 1)._replace(global_bits=shared.global_bits)),
        "down_proj": decoded(planes("mse", (64, 64), seed + 2)),
    }


def ordinary(seed: int) -> Bits:
    return bf16(np.random.default_rng(seed).standard_normal((64, 64)) * 0.02)


@pytest.mark.parametrize("dialect", ["modelopt-mixed", "modelopt", "compressed-tensors"])
@pytest.mark.parametrize("kind", ["dflash2", "qwen3", "qwen3-moe"])
def test_grid_checkpoints_come_back_byte_for_byte_in_every_dialect(tmp_path: Path, kind: str, dialect: str) -> None:
    generate(kind, tmp_path / "src", scale="tiny", on_grid=True)
    made = pack_nvfp4(tmp_path / "src", tmp_path / "out", scales="lossless", dialect=dialect)
    assert isinstance(made, Result)
    assert [item.code for item in made.findings if item.code in ("N_ON_GRID", "W_PART_GRID")] == ["N_ON_GRID"]
    dequant(tmp_path / "out", tmp_path / "back", against=tmp_path / "src")
    assert weights(tmp_path / "back") == weights(tmp_path / "src")


def test_auto_takes_the_grid_where_a_whole_group_lies_on_it(tmp_path: Path) -> None:
    found = grids(10)
    source = mlp(tmp_path, **found | {"up_proj": ordinary(1)})
    report = pack(source, tmp_path / "out")
    seen = rows(report)
    assert seen["gate_proj"]["choice"] == seen["up_proj"]["choice"] == "amax"
    assert seen["down_proj"] == {"choice": "grid", "differing": 0, "blocks_on_grid": 256}
    codes = {item["code"]: item for item in report["findings"]}
    assert codes["N_ON_GRID"]["data"]["groups"] == 1
    # What auto leaves to amax has the bytes of amax.
    pack(source, tmp_path / "amax", scales="amax")
    mine, theirs = weights(tmp_path / "out"), weights(tmp_path / "amax")
    assert all(mine[name] == theirs[name] for name in mine if "down_proj" not in name)
    assert any(mine[name] != theirs[name] for name in mine if "down_proj" in name)


def test_auto_is_amax_on_ordinary_weights(tmp_path: Path) -> None:
    generate("dflash2", tmp_path / "src", scale="tiny")
    for scales in ("auto", "amax"):
        pack_nvfp4(tmp_path / "src", tmp_path / scales, scales=scales)
    assert weights(tmp_path / "auto") == weights(tmp_path / "amax")


def test_lossless_refuses_ordinary_weights_and_says_why(tmp_path: Path) -> None:
    source = mlp(tmp_path, **grids(10) | {"down_proj": ordinary(1)})
    with pytest.raises(ConvertError) as caught:
        pack(source, tmp_path / "out", scales="lossless")
    assert (caught.value.code, caught.value.status) == ("E_OFF_GRID", 3)
    (item,) = caught.value.findings
    assert item.where.tensor == "model.layers.0.mlp.down_proj.weight"
    assert "distinct mantissas" in item.message
    assert not (tmp_path / "out").exists()


def test_lossless_refuses_what_is_not_bf16(tmp_path: Path) -> None:
    generate("dflash2", tmp_path / "src", scale="tiny", dtype="F32")
    with pytest.raises(ConvertError) as caught:
        pack_nvfp4(tmp_path / "src", tmp_path / "out", scales="lossless")
    assert caught.value.code == "E_OFF_GRID"
    assert "BF16" in caught.value.findings[0].message


def test_parts_of_a_group_on_different_grids_are_named(tmp_path: Path) -> None:
    found = grids(10) | {"up_proj": decoded(planes("random", (64, 64), 30))}
    source = mlp(tmp_path, **found)
    with pytest.raises(ConvertError) as caught:
        pack(source, tmp_path / "out", scales="lossless")
    (item,) = caught.value.findings
    assert "two grids" in item.message
    assert item.data is not None
    assert [entry["rows"] for entry in item.data["tensors"]] == [[[0, 63], None], [None, [0, 63]]]
    report = pack(source, tmp_path / "auto")
    assert [item["code"] for item in report["findings"]] == ["N_ON_GRID", "W_PART_GRID"]
    assert rows(report)["gate_proj"]["choice"] == "amax"


def test_allowed_loss_keeps_the_blocks_on_the_grid(tmp_path: Path) -> None:
    found = grids(10)
    mixed = found["down_proj"].copy()
    mixed[3, 16:32] = mixed[60, 0:16] = ordinary(2)[0, :16]
    source = mlp(tmp_path, **found | {"down_proj": mixed})
    with pytest.raises(ConvertError) as caught:
        pack(source, tmp_path / "no", scales="lossless")
    (item,) = caught.value.findings
    assert item.data is not None
    assert item.data["tensors"][0]["off_grid"] == [[3, 1], [60, 0]]
    report = pack(source, tmp_path / "out", scales="lossless", allow_loss=True)
    seen = rows(report)
    assert (seen["down_proj"]["choice"], seen["down_proj"]["blocks_on_grid"]) == ("grid", 254)
    assert 0 < seen["down_proj"]["differing"] <= 32
    assert seen["gate_proj"]["differing"] == seen["up_proj"]["differing"] == 0
    dequant(tmp_path / "out", tmp_path / "back")
    back = np.frombuffer(weights(tmp_path / "back")["model.layers.0.mlp.down_proj.weight"], np.uint16).reshape(64, 64)
    differs = (back != mixed).reshape(64, 4, 16).any(axis=2)
    assert np.argwhere(differs).tolist() == [[3, 1], [60, 0]]


@pytest.mark.parametrize(("kind", "dialect"), [("amax", "modelopt"), ("amax", "compressed-tensors")])
def test_scales_from_another_pack_give_back_its_bytes(tmp_path: Path, kind: str, dialect: str) -> None:
    generate("qwen3", tmp_path / "src", scale="tiny")
    arithmetic = "amax" if dialect == "modelopt" else "amax-llmcompressor"
    pack_nvfp4(tmp_path / "src", tmp_path / "one", scales=arithmetic, dialect=dialect)
    dequant(tmp_path / "one", tmp_path / "dense")
    words = {"scales": "lossless", "dialect": dialect, "global_scales_from": tmp_path / "one"}
    pack_nvfp4(tmp_path / "dense", tmp_path / "two", **words)  # type: ignore[arg-type]
    assert weights(tmp_path / "two") == weights(tmp_path / "one")


def test_scales_from_a_pack_of_other_linears_are_refused(tmp_path: Path) -> None:
    generate("dflash2", tmp_path / "one", scale="tiny")
    pack_nvfp4(tmp_path / "one", tmp_path / "packed")
    source = mlp(tmp_path, **grids(10))
    with pytest.raises(ConvertError) as caught:
        pack(source, tmp_path / "out", scales="lossless", global_scales_from=tmp_path / "packed")
    assert caught.value.code == "E_REFERENCE"


@pytest.mark.parametrize("dialect", ["modelopt", "compressed-tensors"])
def test_lossless_packs_with_reversible_scales_survive_a_change_of_dialect(tmp_path: Path, dialect: str) -> None:
    generate("qwen3", tmp_path / "src", scale="tiny", on_grid=True)
    words: dict[str, Any] = {"scales": "lossless", "dialect": dialect, "reversible_scale": True}
    pack_nvfp4(tmp_path / "src", tmp_path / "one", **words)
    other = "nvfp4-ct" if dialect == "modelopt" else "nvfp4-modelopt"
    made = convert(tmp_path / "one", tmp_path / "two", to=other)
    assert isinstance(made, Result)
    assert "W_RECIPROCAL" not in {item.code for item in made.findings}
    dequant(tmp_path / "two", tmp_path / "back", against=tmp_path / "src")
    assert weights(tmp_path / "back") == weights(tmp_path / "src")


def test_a_hint_belongs_to_a_search(tmp_path: Path) -> None:
    for words in ({"scales": "mse", "global_scales_from": tmp_path}, {"allow_loss": True}):
        with pytest.raises(ConvertError) as caught:
            pack_nvfp4(tmp_path, tmp_path / "out", **words)
        assert caught.value.code == "E_USAGE"


@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32"])
@pytest.mark.parametrize("scales", ["mse", "four-over-six"])
def test_searched_scales_gain_and_report_it(tmp_path: Path, scales: str, dtype: str) -> None:
    generate("dflash2", tmp_path / "src", scale="tiny", dtype=dtype)
    made = pack_nvfp4(tmp_path / "src", tmp_path / "out", scales=scales)
    assert isinstance(made, Result)
    report = validate_report(tmp_path / "out" / "FIDELITY_GATE.json")
    pack_nvfp4(tmp_path / "src", tmp_path / "amax", scales="amax")
    plain = json.loads((tmp_path / "amax" / "FIDELITY_GATE.json").read_text())
    by_name = {row["name"]: row for row in plain["rows"]}
    for row in report["rows"]:
        if row["scope"] == "tensor":
            assert row["scales"]["choice"] == scales
            assert row["scales"]["gain_db"] > 0.3
            assert row["scales"]["amax_sqnr_db"] == by_name[row["name"]]["metrics"]["sqnr_db"]
    for layer in range(5):
        scale = weights(tmp_path / "out")
        assert (
            scale[f"layers.{layer}.mlp.gate_proj.weight_scale_2"] == scale[f"layers.{layer}.mlp.up_proj.weight_scale_2"]
        )


@pytest.mark.parametrize("scales", ["amax", "amax-llmcompressor", "mse", "four-over-six"])
def test_marlin_safe_keeps_block_scales_out_of_the_flushed_range(tmp_path: Path, scales: str) -> None:
    rng = np.random.default_rng(3)
    wide = bf16(rng.standard_normal((64, 64)) * np.exp(2.5 * rng.standard_normal((64, 1))) * 0.02)
    wide[:8] = bf16(rng.standard_normal((8, 64)) * 1e-5)
    source = mlp(tmp_path, down_proj=wide)
    least = {}
    for safe in (False, True):
        report = pack(source, tmp_path / str(safe), scales=scales, marlin_safe=safe, limits={"max_flushed": None})
        least[safe] = report["rows"][0]["metrics"]["block_scales"]["least"]
    assert least[False] < 2.0**-6
    assert least[True] >= 2.0**-6


@pytest.mark.parametrize("workers", [1, 3])
def test_the_bytes_do_not_depend_on_the_workers(tmp_path: Path, workers: int) -> None:
    generate("dflash2", tmp_path / "src", scale="tiny", on_grid=True)
    for name, count in (("one", 1), ("other", workers)):
        pack_nvfp4(tmp_path / "src", tmp_path / name, scales="lossless", options=Options(workers=count))
    for path in sorted((tmp_path / "one").iterdir()):
        assert path.read_bytes() == (tmp_path / "other" / path.name).read_bytes()


class _Spoiled:
    """An encoder that changes one byte of what it makes."""

    def __init__(self, inner: encoders.Encoder, plane: str, place: int, value: int) -> None:
        self.inner, self.plane, self.place, self.value = inner, plane, place, value

    def __call__(self, values: NDArray[Any], codes: NDArray[np.uint8], scales: NDArray[np.uint8]) -> None:
        self.inner.encode(values, codes, scales)
        plane = codes if self.plane == "codes" else scales
        plane.reshape(-1)[self.place] ^= self.value


@pytest.mark.parametrize("plane", ["codes", "scales"])
@pytest.mark.parametrize("scales", ["lossless", "mse", "four-over-six"])
def test_one_wrong_byte_is_a_broken_promise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scales: str, plane: str
) -> None:
    generate("dflash2", tmp_path / "src", scale="tiny", on_grid=scales == "lossless")
    true = encoders.encoder_of

    def spoiled(*words: Any) -> encoders.Encoder:
        made = true(*words)
        return encoders.Encoder(made.stored_bits, _Spoiled(made, plane, 77, 0x18 if plane == "scales" else 0x50))

    monkeypatch.setattr(encoders, "encoder_of", spoiled)
    with pytest.raises(ConvertError) as caught:
        pack_nvfp4(tmp_path / "src", tmp_path / "out", scales=scales)
    assert (caught.value.code, caught.value.status) == ("E_PROMISE", 70)
    assert not (tmp_path / "out").exists()
