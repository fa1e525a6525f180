"""A GGUF in parts: cut, numbered and named as ``gguf-split`` does, one model again for every reader, all or nothing."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from convertkit.checkpoint import TensorSpec
from convertkit.cli.main import main
from convertkit.containers.folder import open_any
from convertkit.containers.gguf import read_gguf_header
from convertkit.containers.gguf_values import Scalar, encode_pair, plain
from convertkit.containers.reader import Reader
from convertkit.conversion.gguf_split import Split, planned_files
from convertkit.errors import ConvertError
from convertkit.verbs.from_gguf import from_gguf
from convertkit.verbs.to_gguf import to_gguf
from tests.gguf.models import HIDDEN, values_of, write_model


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("source") / "llama", "llama")


def parts(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.gguf"))


def header(path: Path) -> tuple[dict[str, Any], list[str]]:
    with open(path, "rb") as stream:
        found = read_gguf_header(stream.fileno(), path.name, first_part=False)
    return {key: plain(value) for key, value in found.metadata.items()}, list(found.tensors)


def payloads(path: Path) -> dict[str, bytes]:
    with Reader(open_any(path)) as reader:
        return {name: reader.bytes_of(name) for name in reader.checkpoint.tensors}


@pytest.mark.parametrize("limit", [{"split_max_tensors": 4}, {"split_max_bytes": 200_000}])
def test_parts_are_one_model(limit: dict[str, int], source: Path, tmp_path: Path) -> None:
    to_gguf(source, tmp_path / "whole.gguf")
    to_gguf(source, tmp_path / "split", **limit)  # type: ignore[arg-type]
    files = parts(tmp_path / "split")
    count = len(files)
    assert count > 2
    assert [file.name for file in files] == [f"model-{i + 1:05}-of-{count:05}.gguf" for i in range(count)]
    whole, names = header(tmp_path / "whole.gguf")
    keys = [header(file)[0] for file in files]
    numbers = [{"split.no": i, "split.tensors.count": len(names), "split.count": count} for i in range(count)]
    assert keys == [whole | numbers[0], *numbers[1:]]
    assert [name for file in files for name in header(file)[1]] == names
    for place in (tmp_path / "split", files[0], files[-1]):
        assert payloads(place) == payloads(tmp_path / "whole.gguf")
    assert main(["verify", str(tmp_path / "split"), "--quiet"]) == 0
    assert main(["audit", str(tmp_path / "split"), "--quiet"]) == 0


def test_numbers_have_the_types_that_llama_cpp_reads(source: Path, tmp_path: Path) -> None:
    to_gguf(source, tmp_path / "split", split_max_tensors=10)
    expected = b"".join(
        encode_pair(key, Scalar(kind, value))
        for key, kind, value in (("split.no", "u16", 1), ("split.tensors.count", "i32", 21), ("split.count", "u16", 3))
    )
    assert parts(tmp_path / "split")[1].read_bytes()[24 : 24 + len(expected)] == expected


def test_a_part_ends_before_the_limit_is_passed(source: Path, tmp_path: Path) -> None:
    to_gguf(source, tmp_path / "split", type="q8_0", split_max_bytes=100_000)
    with Reader(open_any(tmp_path / "split")) as reader:
        sizes: dict[str, list[int]] = {}
        for ref in reader.checkpoint.tensors.values():
            sizes.setdefault(ref.file, []).append(-(-ref.size_bytes // 32) * 32)
    rows = list(sizes.values())
    assert all(sum(row) <= 100_000 for row in rows)
    assert all(sum(row) + after[0] > 100_000 for row, after in pairwise(rows))


def test_the_way_back_gives_the_same_bytes(source: Path, tmp_path: Path) -> None:
    to_gguf(source, tmp_path / "split", split_max_tensors=3)
    from_gguf(tmp_path / "split", tmp_path / "back", config_from=source)
    assert (tmp_path / "back/model.safetensors").read_bytes() == (source / "model.safetensors").read_bytes()


def test_what_fits_is_one_file_without_numbers(source: Path, tmp_path: Path) -> None:
    to_gguf(source, tmp_path / "split", split_max_bytes=1 << 30)
    to_gguf(source, tmp_path / "plain")
    assert [file.name for file in parts(tmp_path / "split")] == ["model.gguf"]
    assert (tmp_path / "split/model.gguf").read_bytes() == (tmp_path / "plain/model.gguf").read_bytes()


@pytest.mark.parametrize("number", [0, 1])
def test_a_part_of_another_name_is_told_as_one(number: int, source: Path, tmp_path: Path) -> None:
    to_gguf(source, tmp_path / "cut", split_max_tensors=8)
    (tmp_path / "other.gguf").write_bytes(parts(tmp_path / "cut")[number].read_bytes())
    with pytest.raises(ConvertError) as caught:
        open_any(tmp_path / "other.gguf")
    assert caught.value.code == "E_GGUF_SPLIT"
    assert f"this is part {number + 1} of " in str(caught.value)


def test_a_part_without_a_count_is_none(source: Path, tmp_path: Path) -> None:
    to_gguf(source, tmp_path / "cut", split_max_tensors=8)
    data = parts(tmp_path / "cut")[1].read_bytes()
    (tmp_path / "other.gguf").write_bytes(data.replace(b"split.count", b"split.kount"))
    with pytest.raises(ConvertError) as caught:
        open_any(tmp_path / "other.gguf")
    assert caught.value.code == "E_GGUF_SPLIT"


@pytest.mark.parametrize("place", ["whole", "cut"])
def test_a_folder_with_a_gguf_is_a_target(place: str, tmp_path: Path) -> None:
    target = write_model(tmp_path / "target", "qwen3")
    to_gguf(target, tmp_path / "whole")
    to_gguf(target, tmp_path / "cut", split_max_tensors=30)
    drafter = write_model(tmp_path / "dflash", "dflash")
    to_gguf(drafter, tmp_path / "a.gguf", target_model=target)
    to_gguf(drafter, tmp_path / "b.gguf", target_model=tmp_path / place)
    assert (tmp_path / "b.gguf").read_bytes() == (tmp_path / "a.gguf").read_bytes()


def test_all_parts_appear_or_none(tmp_path: Path) -> None:
    bad = values_of("model.layers.1.mlp.up_proj.weight", (256, HIDDEN), 0)
    bad[-1, -1] = np.inf
    source = write_model(tmp_path / "m", "llama", change={"model.layers.1.mlp.up_proj.weight": bad})
    with pytest.raises(ConvertError) as caught:
        to_gguf(source, tmp_path / "split", split_max_tensors=2)
    assert caught.value.code == "E_WEIGHT_NONFINITE"
    assert not (tmp_path / "split").exists()


@pytest.mark.parametrize("limits", [{"max_bytes": 5, "max_tensors": 5}, {"max_bytes": 0}, {"max_tensors": -1}])
def test_limits_that_mean_nothing_are_refused(limits: dict[str, int]) -> None:
    with pytest.raises(ConvertError) as caught:
        Split(**limits)
    assert caught.value.code == "E_USAGE"


def test_the_command_line(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["to-gguf", str(source), str(tmp_path / "out"), "--json"]
    assert main([*words, "--split-max-size", "200k"]) == 2
    assert main([*words[:2], str(tmp_path / "out.gguf"), "--split-max-tensors", "4"]) == 2
    assert main([*words, "--split-max-size", "1M", "--split-max-tensors", "4"]) == 2
    capsys.readouterr()
    assert main([*words, "--split-max-size", "0.2M", "--dry-run"]) == 0
    planned = json.loads(capsys.readouterr().out)["files"]
    assert main([*words, "--split-max-size", "200kB"]) == 0
    assert json.loads(capsys.readouterr().out)["files"] == planned
    assert [row["path"] for row in planned] == [file.name for file in parts(tmp_path / "out")]


@pytest.mark.parametrize(("size", "count"), [(63, 3), (64, 2), (95, 2), (96, 1)])
def test_a_part_may_be_filled_to_its_last_byte(size: int, count: int) -> None:
    specs = [TensorSpec(f"blk.{number}.attn_norm.weight", "F32", (8,)) for number in range(3)]
    assert len(planned_files({}, specs, "model.gguf", Split(max_bytes=size))) == count
