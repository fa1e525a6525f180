"""diff: what it finds, what it does not call a difference, and what it does not read."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from convertkit.containers.folder import open_checkpoint
from convertkit.release.schemas import load_schema
from convertkit.verbs.case import Result
from convertkit.verbs.convert import convert
from convertkit.verbs.dequant import dequant
from convertkit.verbs.diff import diff
from convertkit.verbs.manifest import manifest
from convertkit.verbs.pack import pack_nvfp4
from tests.dialects.tiny import LM_CONFIG, causal_lm, planes, spec, write
from tests.verbs.test_pack_and_expand import DRAFTER


def found(a: Path, b: Path, **words: Any) -> dict[str, Any]:
    made = diff(a, b, **words)
    document = dict(made.document)
    jsonschema.Draft202012Validator(load_schema("diff")).validate(document)
    assert made.status == (document["verdict"] == "different")
    return document


def nonzero(document: dict[str, Any]) -> dict[str, int]:
    return {key: value for key, value in document["summary"].items() if value and key != "common"}


def test_a_copy_is_the_same_whatever_its_files_are_called(tmp_path: Path) -> None:
    one = write(tmp_path / "a", causal_lm(), LM_CONFIG)
    two = write(tmp_path / "b", causal_lm(), LM_CONFIG)
    os.rename(two / "model.safetensors", two / "other.safetensors")
    assert nonzero(found(one, two)) == {}


def test_four_renamed_tensors_are_one_rename(tmp_path: Path) -> None:
    names = [f"a.{i}.weight" for i in range(4)]
    values = {name: bytes([7 + n]) * 8 for n, name in enumerate(names)}
    one = write(tmp_path / "a", [spec(name, "F32", 2) for name in names], LM_CONFIG, values=values)
    two = write(tmp_path / "b", [spec(f"model.{name}", "F32", 2) for name in names], LM_CONFIG,
                values={f"model.{name}": data for name, data in values.items()})  # fmt: skip
    document = found(one, two)
    assert nonzero(document) == {"renamed": 4}
    assert document["names"]["renamed"] == [
        {"template": "a.{i}.weight", "count": 4, "from": "a.0.weight", "to": "model.a.0.weight"}
    ]


def test_lost_tensors_are_named_exactly(tmp_path: Path) -> None:
    one = write(tmp_path / "a", causal_lm(), LM_CONFIG)
    two = write(tmp_path / "b", [item for item in causal_lm() if "layers.1.mlp" not in item.name], LM_CONFIG)
    document = found(one, two)
    assert nonzero(document) == {"only_a": 3}
    assert {row["first"] for row in document["names"]["only_a"]} == {
        f"model.layers.1.mlp.{leaf}_proj.weight" for leaf in ("gate", "up", "down")
    }


def test_values_are_counted_and_placed(tmp_path: Path) -> None:
    data = [1.0] * 12
    data[7] = 3.5
    one = write(tmp_path / "a", [spec("w.weight", "F32", 3, 4)], LM_CONFIG)
    two = write(
        tmp_path / "b", [spec("w.weight", "F32", 3, 4)], LM_CONFIG, values={"w.weight": struct.pack("<12f", *data)}
    )
    [row] = found(one, two)["values"]
    assert (row["differing"], row["elements"], row["first"], row["largest"]) == (1, 12, [1, 3], 2.5)


NUMBERS = {
    "I64": struct.pack("<3q", 1, -2, 2**53 + 1),
    "U64": struct.pack("<3Q", 1, 2**64 - 2, 2**53 + 1),
    "I32": struct.pack("<3i", 1, -2, 3),
    "F64": struct.pack("<3d", 1, -2, 3.5),
    "F32": struct.pack("<3f", 1, -2, 3.5),
    "F8_E4M3": bytes((0x38, 0xC0, 0x44)),
}


@pytest.mark.parametrize(
    ("one", "two", "differing", "first"),
    [("I64", "I32", 1, [2]), ("I64", "U64", 1, [1]), ("F64", "F32", 0, None), ("F8_E4M3", "F32", 0, None)],
)
def test_numbers_of_two_dtypes_are_compared_exactly(
    tmp_path: Path, one: str, two: str, differing: int, first: list[int] | None
) -> None:
    folders = [write(tmp_path / dtype, [spec("w", dtype, 3)], LM_CONFIG, values={"w": NUMBERS[dtype]})
               for dtype in (one, two)]  # fmt: skip
    document = found(*folders)
    assert nonzero(document)["dtypes"] == 1
    assert [(row["differing"], row["first"]) for row in document["values"]] == [(differing, first)] * bool(differing)


def test_integers_have_a_largest_difference(tmp_path: Path) -> None:
    one = write(tmp_path / "a", [spec("d2t", "I64", 3)], LM_CONFIG, values={"d2t": struct.pack("<3q", 0, 5, 9)})
    two = write(tmp_path / "b", [spec("d2t", "I64", 3)], LM_CONFIG, values={"d2t": struct.pack("<3q", 0, 5, 2)})
    [row] = found(one, two)["values"]
    assert (row["differing"], row["first"], row["largest"]) == (1, [2], 7)


def test_dtypes_differ_while_values_do_not(tmp_path: Path) -> None:
    one = write(tmp_path / "a", [spec("w.weight", "F32", 3, 4)], LM_CONFIG)
    two = write(tmp_path / "b", [spec("w.weight", "BF16", 3, 4)], LM_CONFIG)
    document = found(one, two)
    assert nonzero(document) == {"dtypes": 1}
    assert document["dtypes"][0]["a"] == "F32"


def test_shapes_config_and_side_files(tmp_path: Path) -> None:
    one = write(tmp_path / "a", [spec("w.weight", "F32", 3, 4)], {**LM_CONFIG, "rope": {"theta": 1}})
    two = write(tmp_path / "b", [spec("w.weight", "F32", 4, 3)], {**LM_CONFIG, "rope": {"theta": 1.0}, "new": None})
    (one / "tokenizer.json").write_text("a")
    (two / "tokenizer.json").write_text("b")
    (two / "LICENSE").write_text("b")
    document = found(one, two)
    assert nonzero(document) == {"shapes": 1, "config": 2, "side_files": 2}
    assert [(row["key"], row["only"]) for row in document["config"]] == [("new", "b"), ("rope.theta", None)]
    assert document["side_files"] == [
        {"path": "LICENSE", "what": "only b"}, {"path": "tokenizer.json", "what": "differs"},
    ]  # fmt: skip


def test_a_pack_and_its_expansion_hold_the_same_values(tmp_path: Path) -> None:
    pack_nvfp4(DRAFTER, tmp_path / "pack")
    dequant(tmp_path / "pack", tmp_path / "dense")
    document = found(tmp_path / "pack", tmp_path / "dense")
    assert (document["summary"]["dtypes"], document["summary"]["values"]) == (15, 0)
    assert found(tmp_path / "pack", DRAFTER)["summary"]["values"] == 15


def test_a_respelled_pack_differs_by_what_its_report_counts(tmp_path: Path) -> None:
    pack_nvfp4(DRAFTER, tmp_path / "pack")
    made = convert(tmp_path / "pack", tmp_path / "ct", to="nvfp4-ct")
    assert isinstance(made, Result)
    [note] = [item for item in made.findings if item.code == "W_RECIPROCAL"]
    document = found(tmp_path / "pack", tmp_path / "ct")
    assert document["summary"]["elements"] == sum(note.data["changed_values"].values()) > 0
    assert {(row["codes"], row["scales"], row["rounded_to"]) for row in document["values"]} == {(0, 0, "BF16")}
    again = convert(tmp_path / "ct", tmp_path / "again", to="nvfp4-ct")  # a second run inverts nothing
    assert isinstance(again, Result)
    assert nonzero(found(tmp_path / "ct", tmp_path / "again")) == {}


def test_codes_scales_and_global_scales_are_told_apart(tmp_path: Path) -> None:
    module = "model.layers.0.mlp.down_proj"
    one = write(tmp_path / "a", planes(module), LM_CONFIG)
    two = write(tmp_path / "b", planes(module), LM_CONFIG, values={f"{module}.weight": b"\x21" * 511 + b"\x31"})
    [row] = found(one, two)["values"]
    assert (row["codes"], row["scales"], row["differing"], row["nibbles_swapped"]) == (1, 0, 1, False)
    three = write(
        tmp_path / "c", planes(module), LM_CONFIG, values={f"{module}.weight_scale_2": struct.pack("<f", 2.0)}
    )
    [row] = found(one, three)["values"]
    assert (row["codes"], row["scales"], row["global_scale"], row["differing"]) == (0, 0, True, 32 * 32)


def test_a_last_bit_of_a_global_scale_is_a_difference_where_no_value_shows_it(tmp_path: Path) -> None:
    module = "model.layers.0.mlp.down_proj"
    one = write(tmp_path / "a", planes(module), LM_CONFIG)
    values = {f"{module}.weight_scale_2": struct.pack("<I", 0x3F800001)}
    document = found(one, write(tmp_path / "b", planes(module), LM_CONFIG, values=values))
    [row] = document["values"]
    assert (row["codes"], row["scales"], row["global_scale"], row["differing"]) == (0, 0, True, 0)
    assert document["verdict"] == "different"


@pytest.mark.parametrize("words", [{}, {"headers": True}])
def test_recorded_digests_are_believed(tmp_path: Path, words: dict[str, bool]) -> None:
    one = write(tmp_path / "a", causal_lm(), LM_CONFIG)
    two = write(tmp_path / "b", [spec(f"x.{item.name}", item.dtype, *item.shape) for item in causal_lm()], LM_CONFIG)
    manifest(one)
    manifest(two)
    for folder in (one, two):  # neither is read: both could hold anything
        path = folder / "model.safetensors"
        start = open_checkpoint(folder).files[0].data_start
        size = path.stat().st_size
        with path.open("r+b") as stream:
            stream.truncate(start)
            stream.truncate(size)
    assert nonzero(found(one, two, **words)) == {"renamed": len(causal_lm())}


def test_headers_alone_say_that_values_were_not_compared(tmp_path: Path) -> None:
    one = write(tmp_path / "a", [spec("w.weight", "F32", 2)], LM_CONFIG)
    two = write(tmp_path / "b", [spec("w.weight", "F32", 2)], LM_CONFIG, values={"w.weight": b"abcdefgh"})
    document = found(one, two, headers=True)
    assert (document["verdict"], document["values_compared"]) == ("same", False)
    assert json.loads(json.dumps(document)) == document
