"""Opening folders: indexes, shards, links, side files."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from convertkit.containers.folder import open_checkpoint
from convertkit.containers.reader import Reader
from convertkit.errors import ConvertError

ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
INDEX = "model.safetensors.index.json"


def sharded(folder: Path, weight_map: Any = None, total: Any = 64) -> Path:
    folder.mkdir(exist_ok=True)
    save_file({"a.weight": np.arange(8, dtype=np.float32)}, folder / ONE)
    save_file({"b.weight": np.arange(8, 16, dtype=np.float32)}, folder / TWO)
    (folder / "config.json").write_text('{"hidden_size": 8}')
    document = {"metadata": {"total_size": total}, "weight_map": weight_map or {"a.weight": ONE, "b.weight": TWO}}
    (folder / INDEX).write_text(json.dumps(document))
    return folder


def code_of(path: Path) -> str:
    with pytest.raises(ConvertError) as caught:
        open_checkpoint(path)
    return caught.value.code


def test_shards_are_one_checkpoint(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(sharded(tmp_path))
    assert {name: ref.file for name, ref in checkpoint.tensors.items()} == {"a.weight": ONE, "b.weight": TWO}
    assert checkpoint.findings == ()
    with Reader(checkpoint) as reader:
        assert reader.array("b.weight").tolist() == list(range(8, 16))


@pytest.mark.parametrize(
    "name",
    [
        "../x.safetensors",
        "/etc/x.safetensors",
        "..\\x.safetensors",
        "C:\\x.safetensors",
        "",
        ".",
        "~/x.safetensors",
        "a\0.safetensors",
        "sub/x.safetensors",
        INDEX,
        "https://h/x.safetensors",
        ".x.safetensors",
    ],
)
def test_shard_names_are_plain(tmp_path: Path, name: str) -> None:
    assert code_of(sharded(tmp_path, {"a.weight": name, "b.weight": TWO})) == "E_INDEX_PATH"


def as_folder(folder: Path) -> None:
    (folder / TWO).unlink()
    (folder / TWO).mkdir()


def as_fifo(name: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        (folder / name).unlink()
        os.mkfifo(folder / name)

    return damage


def as_link(to: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        (folder / TWO).unlink()
        (folder / TWO).symlink_to(to)

    return damage


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing shard": (lambda f: (f / TWO).unlink(), "E_SHARD_MISSING"),
    "empty shard": (lambda f: (f / TWO).write_bytes(b""), "E_ST_TRUNCATED"),
    "single file beside": (lambda f: save_file({"z": np.ones(1)}, f / "model.safetensors"), "E_AMBIGUOUS_WEIGHTS"),
    "index is a list": (lambda f: (f / INDEX).write_text("[]"), "E_JSON"),
    "map is a list": (lambda f: (f / INDEX).write_text('{"weight_map":["a"]}'), "E_INDEX"),
    "map is empty": (lambda f: (f / INDEX).write_text('{"weight_map":{}}'), "E_INDEX"),
    "shard is a number": (lambda f: (f / INDEX).write_text('{"weight_map":{"a.weight":1}}'), "E_INDEX"),
    "shard is a folder": (as_folder, "E_NOT_REGULAR"),
    "shard is a FIFO": (as_fifo(TWO), "E_NOT_REGULAR"),
    "link to itself": (as_link(TWO), "E_PATH_LOOP"),
    "link out": (as_link("/etc/hostname"), "E_PATH_ESCAPE"),
    "tensor twice": (
        lambda f: save_file({"a.weight": np.ones(8, np.float32), "b.weight": np.ones(8, np.float32)}, f / TWO),
        "E_INDEX_MISMATCH",
    ),
    "tensor in the other shard": (
        lambda f: (f / INDEX).write_text(json.dumps({"weight_map": {"a.weight": TWO, "b.weight": TWO}})),
        "E_INDEX_MISMATCH",
    ),
    "unlisted tensor": (
        lambda f: save_file({"b.weight": np.ones(8, np.float32), "c": np.ones(8, np.float32)}, f / TWO),
        "E_INDEX_MISMATCH",
    ),
    "config is a FIFO": (as_fifo("config.json"), "E_NOT_REGULAR"),
    "config is a list": (lambda f: (f / "config.json").write_text("[]"), "E_JSON"),
    "hidden_size is a string": (lambda f: (f / "config.json").write_text('{"hidden_size":"8"}'), "E_CONFIG"),
    "model_type is a path": (lambda f: (f / "config.json").write_text('{"model_type":"../../x"}'), "E_CONFIG"),
    "second index": (lambda f: (f / "other.safetensors.index.json").write_text("{}"), "E_AMBIGUOUS_WEIGHTS"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_damaged_folders_are_refused(tmp_path: Path, case: str) -> None:
    damage, code = DAMAGE[case]
    damage(sharded(tmp_path))
    assert code_of(tmp_path) == code


def test_case_collisions_are_refused(tmp_path: Path) -> None:
    sharded(tmp_path, {"a.weight": "M.safetensors", "b.weight": "m.safetensors"})
    assert code_of(tmp_path) == "E_PATH_CASE"


def test_a_socket_is_not_read(tmp_path: Path) -> None:
    sharded(tmp_path)
    (tmp_path / TWO).unlink()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / TWO))
        assert code_of(tmp_path) == "E_NOT_REGULAR"


def test_wrong_total_and_unlisted_shard_are_findings(tmp_path: Path) -> None:
    sharded(tmp_path, total=65)
    save_file({"z": np.ones(2)}, tmp_path / "model-00003-of-00003.safetensors")
    assert {item.code for item in open_checkpoint(tmp_path).findings} == {"W_INDEX_TOTAL", "W_SHARD_UNLISTED"}


def test_a_hub_cache_snapshot_is_a_folder(tmp_path: Path) -> None:
    real = sharded(tmp_path / "real")
    snapshot = tmp_path / "models--org--name" / "snapshots" / ("0" * 40)
    blobs = tmp_path / "models--org--name" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for path in real.iterdir():
        (blobs / f"blob-{path.name}").write_bytes(path.read_bytes())
        (snapshot / path.name).symlink_to(f"../../blobs/blob-{path.name}")
    assert len(open_checkpoint(snapshot).tensors) == 2


def test_a_folder_without_weights_names_the_subfolder_that_has_them(tmp_path: Path) -> None:
    sharded(tmp_path / "bf16")
    with pytest.raises(ConvertError, match="bf16/") as caught:
        open_checkpoint(tmp_path)
    assert caught.value.code == "E_NO_WEIGHTS"


def test_what_travels_and_what_does_not(tmp_path: Path) -> None:
    sharded(tmp_path)
    for name in ("README.md", "tokenizer.json", "mask_embedding.pt", "LICENSE"):
        (tmp_path / name).write_text("x")
    for name in (
        "pytorch_model.bin",
        "MANIFEST.json",
        "SHA256SUMS",
        "model.sig",
        "FIDELITY_GATE.json",
        ".gitattributes",
        "quant_cfg.json",
        "quantization_config.json",
    ):
        (tmp_path / name).write_text("x")
    (tmp_path / "bf16").mkdir()
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.side_files == ("LICENSE", "README.md", "mask_embedding.pt", "tokenizer.json")
    assert {
        "pytorch_model.bin",
        "MANIFEST.json",
        "SHA256SUMS",
        "model.sig",
        "FIDELITY_GATE.json",
        ".gitattributes",
        "quant_cfg.json",
        "quantization_config.json",
        "bf16",
    } <= set(checkpoint.skipped)


def test_a_change_after_opening_is_noticed(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(sharded(tmp_path))
    with open(tmp_path / ONE, "ab") as stream:
        stream.write(b"x")
    with pytest.raises(ConvertError) as caught:
        Reader(checkpoint)
    assert (caught.value.code, caught.value.status) == ("E_CHANGED", 4)


def test_of_many_faults_in_one_header_fifty_are_told(tmp_path: Path) -> None:
    header = json.dumps({f"t{n}": {"dtype": "X", "shape": [1], "data_offsets": [n, n + 1]} for n in range(60)}).encode()
    place = tmp_path / "model.safetensors"
    place.write_bytes(len(header).to_bytes(8, "little") + header + bytes(60))
    with pytest.raises(ConvertError) as caught:
        open_checkpoint(place)
    assert [item.code for item in caught.value.findings] == ["E_ST_DTYPE"] * 50


@pytest.mark.parametrize(
    ("name", "cure"),
    [
        ("pytorch_model.bin", "convertkit from-torch"),
        ("pytorch_model.bin.index.json", "convertkit from-torch"),
        ("model.h5", "save it as safetensors first"),
    ],
)
def test_weights_of_another_format_are_named_with_what_reads_them(tmp_path: Path, name: str, cure: str) -> None:
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(ConvertError) as caught:
        open_checkpoint(tmp_path)
    (found,) = caught.value.findings
    assert found.code == "E_NO_WEIGHTS"
    assert name in str(found.as_json())
    assert found.fix.startswith(cure)
