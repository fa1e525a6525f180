"""Calibration files: written and read back, refused when odd, made from dumps, and what they add to the gate."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from convertkit.checkpoint import TensorSpec
from convertkit.containers.folder import open_checkpoint
from convertkit.containers.safetensors import encode_header
from convertkit.demo.generate import generate
from convertkit.errors import ConvertError
from convertkit.forward.calibration import read_calibration
from convertkit.forward.generated import generated_calibration
from convertkit.verbs.calibration import generate_calibration, record_calibration, write_calibration
from convertkit.verbs.gate_forward import gate_forward
from tests.forward.damage import copied, shift_taps

STATES = np.arange(24, dtype=np.float32).reshape(6, 4) / 8


def whole(path: Path, **words: Any) -> Path:
    given: dict[str, Any] = {"hidden": {-1: STATES, 7: STATES * 2}, "tokens": [1, 2, 3, 4, 5, 6], "target": "org/name"}
    write_calibration(path, **{**given, "dtype": "bfloat16", **words})
    return path


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    path = whole(tmp_path / "c.safetensors", sequences=[0, 0, 0, 1, 1, 1], recorded=[0, 1, 1, 0, 1, 1], store="F32")
    found = read_calibration(path)
    assert (found.layers, found.target, found.dtype, found.origin) == ((-1, 7), "org/name", "bfloat16", "recorded")
    assert found.positions.tolist() == [0, 1, 2, 0, 1, 2]
    assert found.recorded.tolist() == [False, True, True, False, True, True]
    assert np.array_equal(found.hidden_of(7), STATES * 2)
    assert read_calibration(path, [7]).layers == (7,)
    names = {name: (ref.spec.dtype, ref.spec.shape) for name, ref in open_checkpoint(path).tensors.items()}
    assert names == {
        "hidden.-1": ("F32", (6, 4)), "hidden.7": ("F32", (6, 4)), "tokens": ("I64", (6,)),
        "positions": ("I64", (6,)), "sequences": ("I64", (6,)), "recorded": ("BOOL", (6,)),
    }  # fmt: skip


def test_the_bytes_do_not_change(tmp_path: Path) -> None:
    digest = hashlib.sha256(whole(tmp_path / "c.safetensors").read_bytes()).hexdigest()
    assert digest == "3772b815e44592e233882d53bcb7d6c50729f109e3ce1dd3f459aee7ee19a0c6"
    made = generated_calibration((5, 19), 32, 192, positions=16, seed=3)
    assert (
        hashlib.sha256(made.hidden_of(19).tobytes() + made.tokens.tobytes()).hexdigest()
        == "4b53ea5b1a9d90e6399f91f0021564785bcae410f93c161eb2dc5986efeb646f"
    )


def test_generated_states_depend_on_the_layer_alone() -> None:
    one, two = generated_calibration((5, 19), 32, 192), generated_calibration((19, 20), 32, 192)
    assert np.array_equal(one.hidden_of(19), two.hidden_of(19))
    assert abs(np.corrcoef(one.hidden_of(19).ravel(), two.hidden_of(20).ravel())[0, 1]) < 0.05
    assert not np.array_equal(one.hidden_of(19), generated_calibration((19,), 32, 192, seed=1).hidden_of(19))


WRONG: dict[str, dict[str, Any]] = {
    "one shape": {"tokens": [1, 2, 3]},
    "must be as many": {"recorded": [True, False]},
    "must all have": {"hidden": {1: STATES, 2: STATES[:, :2]}},
    "counted from 0": {"hidden": {-2: STATES}},
    "cannot be negative": {"tokens": [1, 2, -3, 4, 5, 6]},
    "must ascend": {"sequences": [0, 0, 1, 1, 0, 0]},
    "rise by one": {"positions": [0, 1, 2, 4, 5, 6]},
    "below 16777216": {"positions": np.arange(6) + (1 << 24) - 5},
    "NaN": {"hidden": {1: STATES * np.float32("nan")}},
}


@pytest.mark.parametrize("what", list(WRONG))
def test_arrays_that_do_not_belong_together_are_refused(what: str, tmp_path: Path) -> None:
    with pytest.raises(ConvertError, match=f"E_CALIBRATION.*{what}"):
        whole(tmp_path / "c.safetensors", **WRONG[what])
    assert not list(tmp_path.iterdir())


def edited(path: Path, edit: Callable[[dict[str, Any]], None]) -> Path:
    """The file with another header and the same payload."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    edit(header)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + size :])
    return path


ODD: dict[str, Callable[[dict[str, Any]], Any]] = {
    "'calibration' is": lambda header: header["__metadata__"].update(calibration="convertkit.calibration/2"),
    "states no target": lambda header: header["__metadata__"].pop("target"),
    "'origin' is": lambda header: header["__metadata__"].update(origin="guessed"),
    "'tokens' must be": lambda header: header["tokens"].update(dtype="U64"),
    "'heard' is no tensor": lambda header: header.update(heard=header.pop("recorded")),
    "'positions' must be": lambda header: header["positions"].update(shape=[3, 2]),
    "'hidden.x' is no tensor": lambda header: header.update({"hidden.x": header.pop("hidden.7")}),
    "'hidden.07' is no tensor": lambda header: header.update({"hidden.07": header.pop("hidden.7")}),
    "'hidden.9999999999' is no tensor": lambda header: header.update({"hidden.9999999999": header.pop("hidden.7")}),
    "'hidden.-0' is no tensor": lambda header: header.update({"hidden.-0": header.pop("hidden.7")}),
    "'hidden.7' is I16": lambda header: header["hidden.7"].update(dtype="I16"),
}


@pytest.mark.parametrize("what", list(ODD))
def test_reading_is_strict(what: str, tmp_path: Path) -> None:
    path = edited(whole(tmp_path / "c.safetensors"), ODD[what])
    with pytest.raises(ConvertError, match=f"E_CALIBRATION.*{what}") as raised:
        read_calibration(path)
    assert raised.value.status == 3


def test_truth_values_are_0_or_1(tmp_path: Path) -> None:
    path = whole(tmp_path / "c.safetensors")
    ref = open_checkpoint(path).tensors["recorded"]
    with path.open("r+b") as stream:
        stream.seek(ref.start)
        stream.write(b"\x02")
    with pytest.raises(ConvertError, match=r"E_CALIBRATION.*neither 0 nor 1"):
        read_calibration(path)


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConvertError, match="E_NOT_FOUND"):
        read_calibration(tmp_path / "none.safetensors")
    with pytest.raises(ConvertError, match="not a folder"):
        read_calibration(tmp_path)
    (tmp_path / "cut.safetensors").write_bytes(whole(tmp_path / "c.safetensors").read_bytes()[:-1])
    with pytest.raises(ConvertError, match="E_ST_"):
        read_calibration(tmp_path / "cut.safetensors")


def test_an_output_that_exists_is_kept(tmp_path: Path) -> None:
    path = whole(tmp_path / "c.safetensors")
    with pytest.raises(ConvertError, match="E_OUT_EXISTS"):
        whole(path)
    whole(path, force=True, target="org/other")
    assert read_calibration(path).target == "org/other"
    weights = generate("qwen3", tmp_path / "w").root / "model.safetensors"
    before = weights.read_bytes()
    with pytest.raises(ConvertError, match="is no calibration"):
        whole(weights, force=True)
    assert weights.read_bytes() == before


def dump(path: Path, tokens: list[int], states: np.ndarray[Any, Any]) -> Path:
    specs = [TensorSpec("token_ids", "I64", (len(tokens),)), TensorSpec("hidden_states", "F32", states.shape)]
    header = encode_header(specs)
    payload = {"token_ids": np.array(tokens).tobytes(), "hidden_states": states.astype("<f4").tobytes()}
    path.write_bytes(header.prefix + b"".join(payload[spec.name] for spec in header.order))
    return path


def test_dumps_of_speculators(tmp_path: Path) -> None:
    states = np.arange(5 * 2 * 4, dtype=np.float32).reshape(5, 2, 4)
    one = dump(tmp_path / "hs_0.safetensors", [9, 8, 7, 6, 5], states)
    two = dump(tmp_path / "hs_1.safetensors", [1, 2, 3], states[:3] + 100)
    path = tmp_path / "c.safetensors"
    record_calibration(
        path, [one, two], layers=[3, 6], target="org/name", dtype="bfloat16", recorded_from=2, store="F32"
    )
    found = read_calibration(path)
    assert found.tokens.tolist() == [9, 8, 7, 6, 5, 1, 2, 3]
    assert found.sequences.tolist() == [0] * 5 + [1] * 3
    assert found.recorded.tolist() == [False, False, True, True, True, False, False, True]
    assert np.array_equal(found.hidden_of(6)[:5], states[:, 1])
    assert np.array_equal(found.hidden_of(3)[5:], states[:3, 0] + 100)
    with pytest.raises(ConvertError, match="hidden_states are"):
        record_calibration(path, [one], layers=[3], target="org/name", dtype="bfloat16", force=True)


@pytest.fixture(scope="module")
def drafter(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("calibrated")
    return {"drafter": generate("dflash2", root / "d").root, "target": generate("target", root / "t").root}


def test_a_generated_file_is_what_the_gate_makes_itself(drafter: dict[str, Path], tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"
    generate_calibration(path, drafter["drafter"], seed=4, store="F32")
    words: dict[str, Any] = {"target_model": drafter["target"]}
    broken = copied(drafter["drafter"], tmp_path / "b")
    config = json.loads((broken / "config.json").read_text())
    config["rope_parameters"]["rope_theta"] = 1000
    (broken / "config.json").write_text(json.dumps(config))
    from_file = gate_forward(broken, drafter["drafter"], calibration=path, **words)
    itself = gate_forward(broken, drafter["drafter"], seed=4, **words)
    assert from_file.rows == itself.rows
    about = from_file.document["summary"]["forward"]["calibration"]
    assert about["file"]["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert about["layers"] == [5, 19, 33, 47, 61]


def test_accept_lengths_of_recorded_tokens(drafter: dict[str, Path], tmp_path: Path) -> None:
    """The text is what the reference itself would draft, for one token behind each known one."""
    made = generated_calibration((5, 19, 33, 47, 61), 64, 192, positions=40)
    path = tmp_path / "c.safetensors"
    write_calibration(path, made.hidden, made.tokens, target="org/name", dtype="bfloat16", store="F32")
    found = gate_forward(drafter["drafter"], drafter["drafter"], calibration=path, target_model=drafter["target"])
    out = next(row["forward"] for row in found.rows if row["scope"] == "output")
    assert out["accept_drop"] == 0
    assert out["accept_length"]["reference"] == out["accept_length"]["candidate"] >= 1
    assert 1 < out["expected_accept_length"]["reference"] < 8


def test_only_what_anchors_need_is_used(drafter: dict[str, Path], tmp_path: Path) -> None:
    """A long tail without anchors changes nothing, nor does a sequence too short for one."""
    torch = pytest.importorskip("torch")
    from convertkit.forward.inputs import inputs_of

    short = generated_calibration((5,), 4, 192, positions=12)
    sequences = np.array([0] * 8 + [1] * 4)
    path = tmp_path / "c.safetensors"
    recorded = np.arange(12) < 6
    write_calibration(path, short.hidden, short.tokens, target="org/name", dtype="bfloat16", sequences=sequences,
                      recorded=recorded)  # fmt: skip
    inputs = inputs_of(read_calibration(path), [5], (1, 2), torch.float64, "cpu")
    assert inputs.anchors.tolist() == [1, 2, 3]
    assert inputs.tokens.tolist() == short.tokens[:6].tolist()
    assert inputs.hidden[5].shape == (6, 4)


def test_taps_that_nobody_recorded_are_named(drafter: dict[str, Path], tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"
    generate_calibration(path, drafter["drafter"])
    broken = copied(drafter["drafter"], tmp_path / "b")
    shift_taps(broken)
    words: dict[str, Any] = {"calibration": path, "target_model": drafter["target"]}
    with pytest.raises(ConvertError) as raised:
        gate_forward(broken, drafter["drafter"], **words)
    assert (raised.value.code, raised.value.status) == ("E_GATE", 1)
    assert "[6, 20, 34, 48, 62], the reference those of [5, 19, 33, 47, 61]" in str(raised.value)
    with pytest.raises(ConvertError) as raised:
        gate_forward(broken, broken, **words)
    assert (raised.value.code, raised.value.status) == ("E_CALIBRATION", 3)


def test_a_calibration_of_another_model_is_refused(drafter: dict[str, Path], tmp_path: Path) -> None:
    made = generated_calibration((5, 19, 33, 47, 61), 32, 192, positions=40)
    path = tmp_path / "c.safetensors"
    for hidden, tokens, what in (
        (made.hidden, made.tokens, "32 wide"),
        ({layer: np.tile(values, 2) for layer, values in made.hidden.items()}, made.tokens + 100, "beyond"),
        ({layer: np.tile(values[:5], 2) for layer, values in made.hidden.items()}, made.tokens[:5], "no sequence"),
    ):
        write_calibration(path, hidden, tokens, target="org/name", dtype="bfloat16", force=True)
        with pytest.raises(ConvertError, match=f"E_CALIBRATION.*{what}"):
            gate_forward(drafter["drafter"], drafter["drafter"], calibration=path, target_model=drafter["target"])


def test_the_command(drafter: dict[str, Path], tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"
    words = [sys.executable, "-m", "convertkit", "calibration", str(path), "--json"]
    made = subprocess.run([*words, "--drafter", str(drafter["drafter"])], capture_output=True, check=True)
    shown = subprocess.run(words, capture_output=True, check=True)
    assert json.loads(made.stdout) == json.loads(shown.stdout)
    assert json.loads(shown.stdout)["positions"] == 128
    wrong = subprocess.run([*words, "--layers", "1"], capture_output=True, check=False)
    assert wrong.returncode == 2
