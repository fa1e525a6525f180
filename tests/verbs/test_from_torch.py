"""``from-torch``: the bytes of ``torch.save`` under the names of the state dict, and nothing of the pickle is run."""

from __future__ import annotations

import io
import json
import pickle
import subprocess
import sys
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from convertkit.cli.main import main
from convertkit.conversion.from_torch import open_torch
from convertkit.errors import ConvertError
from convertkit.verbs.audit import audit
from convertkit.verbs.case import Options, Result
from convertkit.verbs.diff import diff
from convertkit.verbs.from_torch import from_torch
from convertkit.verbs.verify import verify
from tests.dialects.tiny import DFLASH_CONFIG, dflash, write

DTYPES = (
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.int64,
    torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool, torch.uint16, torch.uint32, torch.uint64,
)  # fmt: skip


def every_dtype() -> dict[str, torch.Tensor]:
    found = {}
    for number, dtype in enumerate(DTYPES):
        numbers = torch.arange(number, number + 24).reshape(2, 3, 4)
        found[f"layers.{number}.weight"] = (numbers > 9 if dtype == torch.bool else numbers).to(dtype)
    return found


def refused(source: Path, out: Path) -> ConvertError:
    with pytest.raises(ConvertError) as caught:
        from_torch(source, out)
    assert not out.exists()
    return caught.value


def test_every_dtype_has_the_bytes_that_safetensors_itself_writes(tmp_path: Path) -> None:
    tensors = every_dtype()
    torch.save(tensors, tmp_path / "weights.bin")
    save_file(tensors, tmp_path / "wanted.safetensors", metadata={"format": "pt"})
    made = from_torch(tmp_path / "weights.bin", tmp_path / "out")
    assert isinstance(made, Result)
    written = (tmp_path / "out" / "model.safetensors").read_bytes()
    assert written == (tmp_path / "wanted.safetensors").read_bytes()
    assert verify(tmp_path / "out").status == 0


def test_views_parameters_scalars_empty_and_tied_tensors(tmp_path: Path) -> None:
    whole = torch.arange(40, dtype=torch.float32).reshape(10, 4)
    module = torch.nn.Linear(3, 2)
    state: OrderedDict[str, Any] = OrderedDict(module.state_dict())
    state |= {"rows": whole[3:5], "again": whole, "scalar": torch.tensor(7), "empty": torch.zeros(0, 5)}
    state |= {"one column": whole[:1].T[:, 0:1], "parameter": torch.nn.Parameter(torch.ones(2))}
    torch.save(state, tmp_path / "m.pt")
    from_torch(tmp_path / "m.pt", tmp_path / "out")
    loaded = load_file(tmp_path / "out" / "model.safetensors")
    assert loaded.keys() == state.keys()
    assert all(torch.equal(loaded[name], state[name]) and loaded[name].dtype == state[name].dtype for name in state)


def test_a_folder_keeps_its_config_and_side_files_and_counts_as_the_same_checkpoint(tmp_path: Path) -> None:
    whole = write(tmp_path / "whole", dflash(), DFLASH_CONFIG)
    source = tmp_path / "source"
    source.mkdir()
    torch.save(load_file(whole / "model.safetensors"), source / "pytorch_model.bin")
    torch.save({"lr": 1}, source / "training_args.bin")
    (source / "config.json").write_bytes((whole / "config.json").read_bytes())
    (source / "README.md").write_text("A drafter.\n")
    made = from_torch(source, tmp_path / "out")
    assert isinstance(made, Result)
    assert diff(whole, tmp_path / "out").status == 1  # the card alone
    assert (tmp_path / "out" / "config.json").read_bytes() == (whole / "config.json").read_bytes()
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    assert (tmp_path / "out" / "README.md").read_text() == "A drafter.\n"
    assert not list((tmp_path / "out").glob("*.bin"))
    assert audit(tmp_path / "out").status == 0
    assert verify(tmp_path / "out", recompute=True).status == 0


def test_shards_and_their_index(tmp_path: Path) -> None:
    tensors = every_dtype()
    names = sorted(tensors)
    shards = {"pytorch_model-00001-of-00002.bin": names[:8], "pytorch_model-00002-of-00002.bin": names[8:]}
    for file, part in shards.items():
        torch.save({name: tensors[name] for name in part}, tmp_path / file)
    index = tmp_path / "pytorch_model.bin.index.json"
    weight_map = {name: file for file, part in shards.items() for name in part}
    index.write_text(json.dumps({"weight_map": weight_map}))
    (tmp_path / "config.json").write_text("{}")
    from_torch(tmp_path, tmp_path.parent / f"{tmp_path.name}-out")
    loaded = load_file(tmp_path.parent / f"{tmp_path.name}-out" / "model.safetensors")
    assert {name: str(value.dtype) for name, value in loaded.items()} == {
        name: str(value.dtype) for name, value in tensors.items()
    }
    other = {**weight_map, names[0]: "pytorch_model-00002-of-00002.bin"}
    out = tmp_path.parent / f"{tmp_path.name}-wrong"
    for wrong in (other, {**weight_map, "absent": "pytorch_model-00001-of-00002.bin"}):
        index.write_text(json.dumps({"weight_map": wrong}))
        assert refused(tmp_path, out).code == "E_INDEX_MISMATCH"
    index.write_text(json.dumps({"weight_map": {**weight_map, names[0]: "../elsewhere.bin"}}))
    assert refused(tmp_path, out).code == "E_INDEX"
    index.unlink()
    assert refused(tmp_path, out).code == "E_AMBIGUOUS_WEIGHTS"


def test_a_training_checkpoint_gives_its_weights_and_names_the_rest(tmp_path: Path) -> None:
    inner = {"a.weight": torch.ones(2, 2), "steps": 9}
    torch.save({"epoch": 3, "model_state_dict": inner}, tmp_path / "last.ckpt")
    made = from_torch(tmp_path / "last.ckpt", tmp_path / "out")
    assert isinstance(made, Result)
    assert [item.data for item in made.findings if item.code == "N_NOT_TENSORS"] == [{"names": ["steps"]}]
    assert list(load_file(tmp_path / "out" / "model.safetensors")) == ["a.weight"]


class Evil:
    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self) -> Any:
        return (Path.touch, (self.place,))


def rewritten(source: Path, change: Callable[[dict[str, bytes]], Mapping[str, bytes]], method: int = 0) -> Path:
    """The archive with other entries."""
    with zipfile.ZipFile(source) as archive:
        entries = {item.filename: archive.read(item) for item in archive.infolist()}
    with zipfile.ZipFile(source, "w", method) as archive:
        for name, data in change(entries).items():
            archive.writestr(name, data)
    return source


def test_nothing_of_a_pickle_is_run(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(2), "b": Evil(tmp_path / "was here")}, tmp_path / "m.bin")
    error = refused(tmp_path / "m.bin", tmp_path / "out")
    assert (error.code, error.status) == ("E_PICKLE", 3)
    assert "nothing of it was run" in str(error)
    assert not (tmp_path / "was here").exists()


def test_state_of_an_object_is_left_out(tmp_path: Path) -> None:
    """A pickle may not set attributes, not even of what it may call."""
    data = io.BytesIO()
    pickle.dump(OrderedDict(), data, 2)
    call = b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\nN}X\x0c\x00\x00\x00__defaults__)s\x86b."
    torch.save({"a": torch.ones(2)}, tmp_path / "m.bin")
    rewritten(tmp_path / "m.bin", lambda entries: {**entries, "m/data.pkl": call})
    assert refused(tmp_path / "m.bin", tmp_path / "out").code == "E_PICKLE"
    from convertkit.containers.pickled import CALLS

    assert CALLS["torch._utils", "_rebuild_tensor_v2"].__defaults__ is None


NESTED = b")" + b"".join(b"q%ch%c\x86" % (place, place) for place in range(60))
"""A pair of a pair of a pair, 60 times, in 300 bytes: its hash and its text have 2^60 steps."""
ORDERED, STORAGE = b"ccollections\nOrderedDict\n", b"ctorch\nFloatStorage\n"


@pytest.mark.parametrize(
    "pickled",
    [
        b"}" + NESTED + b"K\x01s.",
        b"}(" + NESTED + b"K\x01u.",
        b"(" + NESTED + b"K\x01d.",
        b"\x8f(" + NESTED + b"\x90.",
        b"(" + NESTED + b"\x91.",
        ORDERED + b"]" + NESTED + b"K\x01\x86a\x85R.",
        b"(X\x07\x00\x00\x00storage" + STORAGE + NESTED + b"X\x03\x00\x00\x00cpuK\x01tQ.",
        b"}" + NESTED + b"b.",
        b"]" + NESTED + b"a.",
    ],
)
def test_no_small_pickle_takes_long(tmp_path: Path, pickled: bytes) -> None:
    torch.save({"a": torch.ones(2)}, tmp_path / "m.bin")
    rewritten(tmp_path / "m.bin", lambda entries: {**entries, "m/data.pkl": b"\x80\x04" + pickled})
    assert refused(tmp_path / "m.bin", tmp_path / "out").code == "E_PICKLE"


@pytest.mark.parametrize(
    ("change", "method", "says"),
    [
        (lambda entries: entries, zipfile.ZIP_DEFLATED, "compressed"),
        (lambda entries: {**entries, "m/byteorder": b"big"}, 0, "big-endian"),
        (lambda entries: {**entries, "m/data/0": entries["m/data/0"][:4]}, 0, "reaches beyond its storage"),
        (lambda entries: {name: data for name, data in entries.items() if name != "m/data/0"}, 0, "missing"),
        (lambda entries: {**entries, "m/data.pkl": entries["m/data.pkl"][:-9]}, 0, "damaged"),
        (lambda entries: {"x": b""}, 0, "no file of torch.save"),
    ],
)  # fmt: skip
def test_damaged_archives_are_refused(tmp_path: Path, change: Any, method: int, says: str) -> None:
    torch.save({"a": torch.ones(2)}, tmp_path / "m.bin")
    error = refused(rewritten(tmp_path / "m.bin", change, method), tmp_path / "out")
    assert (error.code, error.status) == ("E_PICKLE", 3)
    assert says in str(error)


def test_a_storage_that_lies_outside_of_the_file_is_refused(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(2)}, tmp_path / "m.bin")
    data = bytearray((tmp_path / "m.bin").read_bytes())
    place = data.index(b"PK\x01\x02", data.index(b"m/data/0", data.index(b"PK\x01\x02")) - 46)
    assert data[place + 46 : place + 54] == b"m/data/0"
    for offset in (len(data), len(data) - 40):
        data[place + 42 : place + 46] = offset.to_bytes(4, "little")
        (tmp_path / "m.bin").write_bytes(data)
        error = refused(tmp_path / "m.bin", tmp_path / "out")
        assert (error.code, error.status) == ("E_PICKLE", 3)
        assert "does not lie in the file" in str(error)


def test_whatever_is_damaged_is_a_finding(tmp_path: Path) -> None:
    torch.save({f"layers.{number}.weight": torch.ones(3, 4) for number in range(4)}, tmp_path / "m.bin")
    data = (tmp_path / "m.bin").read_bytes()
    start = data.index(b"\x80\x02")
    random = Random(7)
    codes = set()
    for number in range(600):
        damaged = bytearray(data[: random.randrange(len(data))] if number % 5 == 0 else data)
        for _ in range(random.randint(1, 6)):
            place = start + random.randrange(500) if number % 2 else random.randrange(len(data))
            if damaged:
                damaged[place % len(damaged)] = random.randrange(256)
        (tmp_path / "x.bin").write_bytes(damaged)
        try:
            opened = open_torch(tmp_path / "x.bin")
        except ConvertError as error:
            codes.add(error.code)
        else:
            assert all(ref.start >= 0 and ref.start + ref.size_bytes <= len(damaged) for ref in opened.tensors.values())
    assert codes <= {"E_PICKLE", "E_ST_NAME"}


@pytest.mark.parametrize(
    ("value", "code"),
    [
        ({"a": torch.ones(3, 2).T}, "E_PICKLE"),
        ({"a": torch.ones(1).expand(5)}, "E_PICKLE"),
        ({"a\n": torch.ones(1)}, "E_ST_NAME"),
        (torch.ones(2), "E_PICKLE"),
        ({"lr": 3}, "E_PICKLE"),
        ({"a": torch.ones(2).to_sparse()}, "E_PICKLE"),
    ],
)
def test_what_is_no_state_dict_of_plain_tensors_is_refused(tmp_path: Path, value: Any, code: str) -> None:
    torch.save(value, tmp_path / "m.bin")
    assert refused(tmp_path / "m.bin", tmp_path / "out").code == code


def test_files_of_old_versions_and_folders_without_weights_are_told(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(2)}, tmp_path / "old.bin", _use_new_zipfile_serialization=False)
    assert "before 1.6" in str(refused(tmp_path / "old.bin", tmp_path / "out"))
    (tmp_path / "empty").mkdir()
    assert refused(tmp_path / "empty", tmp_path / "out").code == "E_NO_WEIGHTS"
    assert refused(tmp_path / "nothing", tmp_path / "out").code == "E_NOT_FOUND"


def test_the_command(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "m.bin"
    torch.save({"a.weight": torch.ones(4, 4)}, source)
    assert main(["from-torch", str(source), str(tmp_path / "out"), "--dry-run", "--json"]) == 0
    plan = json.loads(capfd.readouterr().out)
    assert [row["promise"] for row in plan["tensors"]] == ["bytes"]
    assert main(["from-torch", str(source), str(tmp_path / "out")]) == 0
    assert "check it: convertkit verify" in capfd.readouterr().out
    code = "import sys; from convertkit.cli.main import main; main(sys.argv[1:]); assert 'torch' not in sys.modules"
    words = [sys.executable, "-c", code, "from-torch", str(source), str(tmp_path / "again"), "-q"]
    subprocess.run(words, cwd=Path(__file__).parents[2], check=True)
    before = source.read_bytes()
    assert main(["from-torch", str(source), str(source), "--force"]) == 5
    assert source.read_bytes() == before


def test_what_the_source_lacks_already_does_not_stop_it(tmp_path: Path) -> None:
    whole = write(
        tmp_path / "whole", [item for item in dflash() if item.name != "layers.0.input_layernorm.weight"], DFLASH_CONFIG
    )
    source = tmp_path / "source"
    source.mkdir()
    torch.save(load_file(whole / "model.safetensors"), source / "pytorch_model.bin")
    (source / "config.json").write_bytes((whole / "config.json").read_bytes())
    assert audit(whole).status == 1
    made = from_torch(source, tmp_path / "out", options=Options(workers=1))
    assert isinstance(made, Result)
    assert made.status == 0
