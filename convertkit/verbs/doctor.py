"""``doctor``: what this machine offers to convertkit, and what is missing for what. Nothing heavy is imported."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

from convertkit import __version__
from convertkit.conversion.syscalls import KERNEL
from convertkit.workers import worker_count

State = Literal["ok", "missing", "note"]

NEEDED = ("click", "gguf", "jsonschema", "numba", "numpy", "rich", "safetensors", "torch")
OPTIONAL: tuple[tuple[str, str, str], ...] = (
    # package, what it is for, how it is installed
    ("libgguf", "k-quants checked by ggml itself", "pip install libgguf"),
    ("model-signing", "sign, and verify --certificate", "pip install model-signing"),
    ("pyopenssl", "model-signing, which imports it", "pip install pyopenssl"),
    ("cryptography", "verify --signature", "pip install cryptography"),
    ("huggingface_hub", "hf:// sources", "pip install huggingface_hub"),
    ("nvidia-modelopt", "tests against ModelOpt", "pip install nvidia-modelopt"),
    ("compressed-tensors", "tests against compressed-tensors", "pip install compressed-tensors"),
    ("vllm", "serving; convertkit's own tables need no engine", ""),
    ("sglang", "serving; convertkit's own tables need no engine", ""),
)
PROGRAMS = (("llama-server", "serving GGUF files"), ("nvidia-smi", "a sign of an NVIDIA driver"),
            ("sha256sum", "checking releases without convertkit"))  # fmt: skip


@dataclass(frozen=True)
class Check:
    """One thing looked at: its group and name, whether it is there, what was found, what it is for or how to get it."""

    group: str
    name: str
    state: State
    found: str
    hint: str = ""


def doctor(folder: str | os.PathLike[str] = ".") -> tuple[Check, ...]:
    """Look at packages, programs, GPU and the filesystem of ``folder``, where a few small files are made and removed.

    Only what is *missing* of the first group stops conversions.
    """
    return (*_system(), *_packages(), *_programs(), *_filesystem(Path(folder)))


def _system() -> Iterator[Check]:
    yield Check("convertkit", "convertkit", "ok", __version__)
    good = sys.version_info >= (3, 11)
    yield Check("convertkit", "Python", "ok" if good else "missing", platform.python_version(), "3.11 or newer")
    linux = sys.platform == "linux"
    yield Check("convertkit", "system", "ok" if linux else "note", f"{platform.system()} {platform.machine()}",
                "" if linux else "reading works; writing is untested here")  # fmt: skip
    yield Check("convertkit", "cores", "ok", str(worker_count()))
    for name in NEEDED:
        found = _version(name)
        yield Check("convertkit", name, "missing" if found is None else "ok", found or "", f"pip install {name}")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _packages() -> Iterator[Check]:
    for name, use, how in OPTIONAL:
        found = _version(name)
        yield Check("optional", name, "note" if found is None else "ok", found or "not installed",
                    use if found or not how else f"{use}: {how}")  # fmt: skip


def _programs() -> Iterator[Check]:
    for name, use in PROGRAMS:
        found = shutil.which(name)
        yield Check("programs", name, "note" if found is None else "ok", "there" if found else "not found", use)
    devices = sorted(path.name for path in Path("/dev").glob("nvidia[0-9]*")) if Path("/dev").is_dir() else []
    yield Check("programs", "NVIDIA GPU", "ok" if devices else "note", f"{len(devices)} found" if devices else "none",
                "--device cuda gives the same bytes")  # fmt: skip


def _filesystem(folder: Path) -> Iterator[Check]:
    try:
        space = os.statvfs(folder)
        free = space.f_bavail * space.f_frsize
        with tempfile.TemporaryDirectory(prefix=".convertkit-doctor-", dir=folder) as made:
            yield Check("filesystem", "free space", "ok", f"{free / 1e9:,.1f} GB")
            for name, probe, hint in PROBES:
                yield _probed(name, probe, Path(made), hint)
    except OSError as error:
        yield Check("filesystem", "writing", "note", error.strerror or "failed", "name a folder that can be written")


def _probed(name: str, probe: Callable[[Path], None], folder: Path, hint: str) -> Check:
    try:
        probe(folder)
    except OSError as error:
        return Check("filesystem", name, "note", error.strerror or "failed", hint)
    return Check("filesystem", name, "ok", "works")


def _exchange(folder: Path) -> None:
    for name in ("one", "two"):
        (folder / name).mkdir()
    KERNEL.rename(str(folder / "one"), str(folder / "two"), "exchange")


def _link(folder: Path) -> None:
    (folder / "a").write_bytes(b"x")
    os.link(folder / "a", folder / "b")


def _lock(folder: Path) -> None:
    import fcntl

    with (folder / "lock").open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)


PROBES: tuple[tuple[str, Callable[[Path], None], str], ...] = (
    ("exchange of two folders", _exchange, "--force cannot replace a folder in one step here"),
    ("hard links", _link, "a release is copied together instead of linked"),
    ("locks", _lock, "two runs that write one output cannot see each other"),
)
