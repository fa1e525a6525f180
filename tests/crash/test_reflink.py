"""Renaming on real filesystems: payloads are shared where blocks can be, and moved where they can be inserted."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import pytest

from convertkit.verbs.case import Result
from convertkit.verbs.fix_keys import Keys, fix_keys
from convertkit.verbs.manifest import manifest
from convertkit.verbs.verify import verify
from tests.dialects.tiny import LM_CONFIG, spec, write
from tests.verbs.test_pack_and_expand import tensors

SIZE_BYTES = 400 << 20
PAYLOAD_BYTES = 48 << 20
LONG = "a.{rest}=a.name.that.is.longer.than.any.padding.of.the.header.by.more.than.a.block." + "x" * 400 + ".{rest}"


@dataclass(frozen=True)
class Disk:
    """A mounted filesystem, whether it shares blocks, and how it makes room at the start of a file."""

    folder: Path
    shares: bool
    method: str


REQUIRED = "CONVERTKIT_DISKS"
"""Environment variable: kinds of disks whose tests must not skip, set by ``make disks``."""

KINDS = {
    "xfs": (["mkfs.xfs", "-q"], True, "blocks moved"),
    "btrfs": (["mkfs.btrfs", "-q"], True, "rewritten"),
    "ext4": (["mkfs.ext4", "-q"], False, "blocks moved"),
}


def _missing(kind: str, why: str) -> NoReturn:
    """Skip a filesystem that cannot be mounted here, unless it is one of those that must be."""
    if kind in os.environ.get(REQUIRED, "").split():
        pytest.fail(f"{REQUIRED} asks for {kind}: {why}")
    pytest.skip(why)


@pytest.fixture(params=list(KINDS))
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    make, shares, method = KINDS[request.param]
    if shutil.which(make[0]) is None:
        _missing(request.param, f"there is no {make[0]} here")
    image, folder = tmp_path / "image", tmp_path / "disk"
    with image.open("wb") as stream:
        stream.truncate(SIZE_BYTES)
    folder.mkdir()
    subprocess.run([*make, str(image)], check=True, capture_output=True)
    mounted = subprocess.run(
        ["mount", "-o", "loop", str(image), str(folder)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        _missing(request.param, f"mounting {request.param} needs privileges: {mounted.stderr.strip()}")
    try:
        yield Disk(folder, shares, method)
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def used_bytes(folder: Path) -> int:
    os.sync()
    space = os.statvfs(folder)
    return (space.f_blocks - space.f_bfree) * space.f_frsize


@pytest.mark.slow
def test_a_new_output_shares_its_payload_and_in_place_moves_it(disk: Disk) -> None:
    elements = PAYLOAD_BYTES // 4
    source = write(
        disk.folder / "source", [spec("a.w", "F32", elements)], LM_CONFIG, values={"a.w": os.urandom(PAYLOAD_BYTES)}
    )
    manifest(source)
    before, used = tensors(source), used_bytes(disk.folder)
    made = fix_keys(source, disk.folder / "out", rename=["a.{x}=b.{x}"], quick=True)
    assert isinstance(made, Result)
    grown = used_bytes(disk.folder) - used
    assert (grown < PAYLOAD_BYTES // 8) == disk.shares
    assert tensors(disk.folder / "out") == {"b.w": before["a.w"]}
    manifest(disk.folder / "out")
    assert verify(disk.folder / "out", strict=True).status == 0
    edited = fix_keys(source, in_place=True, rename=[LONG], prove=True)
    assert isinstance(edited, Keys)
    assert [row["method"] for row in edited.document["files"]] == [disk.method]
    assert list(tensors(source).values()) == list(before.values())
    assert verify(source, strict=True).status == 0
