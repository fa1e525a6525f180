"""Weights, indexes, configs, planes and places that no verb may accept: each refuses with the same code, writes
nothing, leaves the input as it was and shows no traceback."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from convertkit.cli.main import main
from tests.containers.test_folder import DAMAGE, sharded
from tests.containers.test_strict_reader import ACCEPTED, REFUSED, entry, file_of
from tests.dialects.tiny import LM_CONFIG, MLP, causal_lm, planes, write

CT = "compressed-tensors"
READING = ("inspect", "audit", "gate", "manifest", "verify")
WRITING = ("pack-nvfp4", "dequant", "convert")
PLANES = ("convert", "dequant", "pack-nvfp4")


def words(verb: str, source: Path, out: Path) -> list[str]:
    if verb == "gate":
        return [verb, str(source), "--reference", str(source)]
    if verb in WRITING:
        return [verb, str(source), str(out), *(["--to", "f16"] if verb == "convert" else [])]
    return [verb, str(source)]


def state(root: Path) -> dict[str, str]:
    """Every name below a folder with its kind and digest; FIFOs are not opened."""
    found = {}
    for path in sorted(root.rglob("*")):
        kind = "link" if path.is_symlink() else "folder" if path.is_dir() else "file" if path.is_file() else "other"
        found[str(path.relative_to(root))] = (
            hashlib.sha256(path.read_bytes()).hexdigest() if kind == "file" else f"{kind} {path.lstat().st_mode}"
        )
    return found


def refusals(root: Path, verbs: tuple[str, ...], source: Path, capfd: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Per verb the exit status and the codes of the errors; asserts what holds for all of them."""
    before, seen = state(root), {}
    for verb in verbs:
        status = main([*words(verb, source, root / "out"), "--json"])
        said = capfd.readouterr()
        assert "Traceback" not in said.err
        findings = json.loads(said.out)["findings"]
        seen[verb] = (status, {item["code"] for item in findings if item["severity"] == "error"})
        assert state(root) == before, verb
    return seen


@pytest.mark.parametrize("case", REFUSED)
def test_weights(tmp_path: Path, case: str, capfd: pytest.CaptureFixture[str]) -> None:
    data, code = REFUSED[case]
    source = tmp_path / "source"
    source.mkdir()
    (source / "model.safetensors").write_bytes(data)
    (source / "config.json").write_text("{}")
    for verb, (status, codes) in refusals(tmp_path, (*READING, *WRITING), source, capfd).items():
        assert status == 3, verb
        assert codes >= {code}, verb
        assert codes <= {code, "E_MANIFEST_MISSING"}, verb


@pytest.mark.parametrize("case", DAMAGE)
def test_indexes_and_configs(tmp_path: Path, case: str, capfd: pytest.CaptureFixture[str]) -> None:
    damage, code = DAMAGE[case]
    source = sharded(tmp_path / "source")
    damage(source)
    for verb, (status, codes) in refusals(tmp_path, (*READING, *WRITING), source, capfd).items():
        assert status == 3, verb
        assert code in codes, verb


@pytest.mark.parametrize("case", ACCEPTED)
def test_odd_but_sound_weights(tmp_path: Path, case: str, capfd: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "model.safetensors").write_bytes(ACCEPTED[case])
    (source / "config.json").write_text("{}")
    before = state(source)
    for verb in ("inspect", "audit", "gate", "convert"):
        assert main([*words(verb, source, tmp_path / "out"), "--json"]) == 0, verb
    assert main(["verify", str(tmp_path / "out"), "--json"]) == 0
    assert state(source) == before


OVER: dict[str, tuple[dict[str, Any], str]] = {
    "codes are floats": ({"weight_packed": ("F32", (32, 16))}, "E_PACK_DTYPE"),
    "codes are flat": ({"weight_packed": ("U8", (512,))}, "E_PACK_SHAPE"),
    "a width of 24": ({"weight_packed": ("U8", (32, 12)), "weight_scale": ("F8_E4M3", (32, 1))}, "E_WIDTH"),
    "no codes": ({"weight_packed": None}, "E_PACK_MISSING"),
    "no block scale": ({"weight_scale": None}, "E_PACK_MISSING"),
    "no global scale": ({"weight_global_scale": None}, "E_PACK_MISSING"),
    "too few block scales": ({"weight_scale": ("F8_E4M3", (32, 1))}, "E_SCALE_SHAPE"),
    "block scales in FP32": ({"weight_scale": ("F32", (32, 2))}, "E_SCALE_DTYPE"),
    "two global scales": ({"weight_global_scale": ("F32", (2,))}, "E_SCALE_SHAPE"),
    "a dense weight beside": ({"weight": ("BF16", (32, 32))}, "E_PACK_AMBIGUOUS"),
    "global scales of two dialects": ({"weight_scale_2": ("F32", ())}, "E_PACK_AMBIGUOUS"),
}
VALUES: dict[str, tuple[str, bytes, str]] = {
    "NaN block scale": ("weight_scale", b"\x7f" + b"\x38" * 63, "E_SCALE_NONFINITE"),
    "negative block scale": ("weight_scale", b"\xb8" + b"\x38" * 63, "E_SCALE_SIGN"),
    "zero block scale": ("weight_scale", b"\0" + b"\x38" * 63, "E_SCALE_ZERO"),
    "NaN global scale": ("weight_global_scale", b"\0\0\xc0\x7f", "E_SCALE_NONFINITE"),
    "infinite global scale": ("weight_global_scale", b"\0\0\x80\x7f", "E_SCALE_NONFINITE"),
    "negative global scale": ("weight_global_scale", b"\0\0\x80\xbf", "E_SCALE_SIGN"),
    "zero global scale": ("weight_global_scale", b"\0\0\0\0", "E_SCALE_ZERO"),
    "a divisor without reciprocal": ("weight_global_scale", b"\1\0\0\0", "E_SCALE_RANGE"),
}
MODULE = "model.layers.0.mlp.up_proj"


def pack_with(folder: Path, over: dict[str, Any], values: dict[str, bytes]) -> Path:
    specs = [item for item in causal_lm(MLP, CT) if not item.name.startswith(f"{MODULE}.")]
    return write(folder, [*specs, *planes(MODULE, CT, over=over)], LM_CONFIG, values=values)


@pytest.mark.parametrize("case", OVER)
def test_planes(tmp_path: Path, case: str, capfd: pytest.CaptureFixture[str]) -> None:
    over, code = OVER[case]
    source = pack_with(tmp_path / "source", over, {})
    for verb, (status, codes) in refusals(tmp_path, PLANES, source, capfd).items():
        assert (status, code in codes) == (3, True), verb


@pytest.mark.parametrize("case", VALUES)
def test_values_of_scales(tmp_path: Path, case: str, capfd: pytest.CaptureFixture[str]) -> None:
    leaf, data, code = VALUES[case]
    source = pack_with(tmp_path / "source", {}, {f"{MODULE}.{leaf}": data})
    for verb, (status, codes) in refusals(tmp_path, ("dequant", "convert"), source, capfd).items():
        assert (status, code in codes) == (3, True), verb
    (status, codes) = refusals(tmp_path, ("gate",), source, capfd)["gate"]
    assert (status, code in codes) == (1, True)
    assert main(["audit", str(source), "--scan", "--json"]) == 1
    assert code in capfd.readouterr().out
    assert main(["inspect", str(source)]) == 0


def hard_link(source: Path) -> Path:
    out = source.parent / "out"
    out.mkdir()
    os.link(source / "model.safetensors", out / "model.safetensors")
    return out


def link_to(target: str) -> Callable[[Path], Path]:
    def make(source: Path) -> Path:
        (source.parent / "out").symlink_to(target)
        return source.parent / "out"

    return make


def full(source: Path) -> Path:
    shutil.copytree(source, source.parent / "out")
    return source.parent / "out"


def outer(source: Path) -> Path:
    return source.parent


PLACES: dict[str, tuple[Callable[[Path], Path], list[str], str]] = {
    "the source": (lambda source: source, ["--force"], "E_OUT_IS_IN"),
    "the source in other words": (lambda source: source / ".." / source.name, ["--force"], "E_OUT_IS_IN"),
    "a link to the source": (link_to("source"), ["--force"], "E_OUT_IS_IN"),
    "hard links to the source": (hard_link, ["--force"], "E_OUT_IS_IN"),
    "inside the source": (lambda source: source / "out", [], "E_OUT_INSIDE_IN"),
    "around the source": (outer, ["--force"], "E_OUT_INSIDE_IN"),
    "a folder with files": (full, [], "E_OUT_EXISTS"),
    "a link to nowhere": (link_to("nowhere"), [], "E_OUT_EXISTS"),
}


@pytest.mark.parametrize("case", PLACES)
def test_places(tmp_path: Path, case: str, capfd: pytest.CaptureFixture[str]) -> None:
    place, options, code = PLACES[case]
    source = tmp_path / "a" / "source"
    source.mkdir(parents=True)
    (source / "model.safetensors").write_bytes(file_of({"a": entry()}))
    (source / "config.json").write_text("{}")
    out = place(source)
    before = state(tmp_path)
    assert main(["convert", str(source), str(out), "--to", "bf16", "--json", *options]) == 5
    assert [item["code"] for item in json.loads(capfd.readouterr().out)["findings"]] == [code]
    assert state(tmp_path) == before
