"""The committed fixtures: rebuilt with identical bytes, listed completely, readable."""

from __future__ import annotations

import hashlib
import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

from convertkit.containers.folder import open_checkpoint

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"


def _script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("regenerate", FIXTURES / "regenerate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SCRIPT = _script()
PACKS = (
    "modelopt-export-tiny",
    "modelopt-export-w4a4-tiny",
    "modelopt-export-mixed-tiny",
    "modelopt-export-mixed-fp8-tiny",
    "llmcompressor-oneshot-tiny",
    "llmcompressor-oneshot-w4a4-tiny",
)


def files(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_regenerating_gives_identical_bytes(tmp_path: Path) -> None:
    SCRIPT.regenerate(tmp_path)
    committed = {name: data for name, data in files(FIXTURES).items() if name.split("/")[0] in SCRIPT.GENERATED}
    assert files(tmp_path) == committed


def test_sums_list_every_file() -> None:
    listed = {}
    for line in (FIXTURES / SCRIPT.SUMS).read_text().splitlines():
        digest, _, name = line.partition("  ")
        listed[name] = digest
    there = {name: data for name, data in files(FIXTURES).items() if "/" in name and "__pycache__" not in name}
    assert listed == {name: hashlib.sha256(data).hexdigest() for name, data in there.items()}
    assert {name.split("/")[0] for name in listed} == {*SCRIPT.GENERATED, *PACKS}


def test_fixtures_stay_small() -> None:
    sizes = {name: len(data) for name, data in files(FIXTURES).items()}
    assert sum(sizes.values()) < 1_800_000
    for pack in PACKS:
        assert sum(size for name, size in sizes.items() if name.startswith(f"{pack}/")) < 150_000


@pytest.mark.parametrize("name", [*SCRIPT.GENERATED, *PACKS])
def test_fixtures_open_without_findings(name: str) -> None:
    opened = open_checkpoint(FIXTURES / name)
    assert opened.findings == ()
    assert opened.config["architectures"]


@pytest.mark.parametrize("name", PACKS)
def test_packs_name_their_makers(name: str) -> None:
    note = json.loads((FIXTURES / name / "VERSIONS.json").read_text())
    maker = "nvidia-modelopt" if name.startswith("modelopt") else "llmcompressor"
    assert note["source"] == "qwen3-tiny"
    assert note["packages"][maker] == {"nvidia-modelopt": "0.47.0", "llmcompressor": "0.14.0.1"}[maker]
    assert not any(
        word in text for text in files(FIXTURES / name).values() for word in (b"/tmp/", b"/root/", b"/home/")
    )
