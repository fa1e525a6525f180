"""What is shipped: the wheel and the source archive, built and then installed outside the checkout."""

import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("hatchling")

ROOT = Path(__file__).resolve().parents[2]
SCHEMAS = sorted(path.name for path in (ROOT / "schemas").glob("*.schema.json"))

pytestmark = pytest.mark.slow


def output_of(*words: str | Path, cwd: Path) -> bytes:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(word) for word in words], cwd=cwd, env=environment, check=True, capture_output=True, timeout=300
    )
    return done.stdout


def build(source: Path, out: Path, *targets: str) -> None:
    output_of(sys.executable, "-m", "hatchling", "build", "-d", out, *targets, cwd=source)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the wheel and the source archive of this tree."""
    folder = tmp_path_factory.mktemp("dist")
    build(ROOT, folder, "-t", "wheel", "-t", "sdist")
    return folder


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment with the wheel installed; its dependencies are borrowed from the running one."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder / "venv", with_pip=False)
    python = folder / "venv" / "bin" / "python"
    (wheel,) = built.glob("*.whl")
    pip: list[str | Path] = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        wheel,
    ]
    output_of(*pip, cwd=folder)
    (site,) = (folder / "venv" / "lib").glob("python3*/site-packages")
    (site / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder


def wheel_names(folder: Path) -> list[str]:
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return sorted(archive.namelist())


def test_wheel_holds_the_package_and_the_schemas_and_nothing_else(built: Path) -> None:
    names = wheel_names(built)
    modules = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "convertkit").rglob("*.py"))
    assert SCHEMAS
    inside = [name for name in names if name.startswith("convertkit/")]
    assert sorted(name for name in inside if name.endswith(".py")) == modules
    assert [name for name in inside if name.endswith(".json")] == [f"convertkit/schemas/{name}" for name in SCHEMAS]
    assert "convertkit/py.typed" in inside
    others = {name.split("/")[0] for name in names if not name.startswith("convertkit/")}
    assert len(others) == 1
    assert others.pop().endswith(".dist-info")
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


def test_source_archive_builds_the_same_wheel(built: Path, tmp_path: Path) -> None:
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        opened.extractall(tmp_path / "source", filter="data")
    (source,) = (tmp_path / "source").iterdir()
    assert (source / "tests" / "cli" / "test_wheel.py").is_file()
    build(source, tmp_path / "dist", "-t", "wheel")
    assert wheel_names(tmp_path / "dist") == wheel_names(built)


def test_metadata_states_the_licence_and_python(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        lines = archive.read(name).decode().splitlines()
    assert "License-Expression: Apache-2.0" in lines
    assert "Requires-Python: >=3.11" in lines


@pytest.mark.parametrize("name", SCHEMAS)
def test_installed_command_prints_each_schema(installed: Path, name: str) -> None:
    command = installed / "venv" / "bin" / "convertkit"
    where = output_of(command.with_name("python"), "-c", "import convertkit; print(convertkit.__file__)", cwd=installed)
    assert str(installed).encode() in where
    said = output_of(command, "schema", name.removesuffix(".schema.json"), "--json", cwd=installed)
    assert json.loads(said) == json.loads((ROOT / "schemas" / name).read_text(encoding="utf-8"))


def test_installed_command_lists_schemas(installed: Path) -> None:
    said = output_of(installed / "venv" / "bin" / "convertkit", "schema", cwd=installed)
    assert said.decode().split() == sorted(name.removesuffix(".schema.json") for name in SCHEMAS)
