"""Kills ``pack-nvfp4`` itself: the verb in forked children, then the command in processes of its own.

``python -m tests.crash.pack_killer FOLDER KILLS COMMAND_KILLS SEED``; the rules and the output are ``killer``'s. An
old output, packed in the other dialect, is there to be replaced for every other pair of kills.
"""

from __future__ import annotations

import functools
import json
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

from convertkit.conversion.staging import open_staging
from convertkit.conversion.syscalls import Syscalls
from convertkit.verbs import line
from convertkit.verbs.case import Options
from convertkit.verbs.pack import pack_nvfp4
from tests.crash.killer import Field, assert_same, check_after_kill, go_on, kill_many, prepare
from tests.crash.pipeline import contents, snapshot

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "fixtures" / "dflash2-tiny"
COMMAND = (sys.executable, "-m", "convertkit", "pack-nvfp4", "--quiet")


def pack(source: Path, out: Path, syscalls: Syscalls, force: bool, resume: bool) -> object:
    """The real verb with the calls of its sink tapped."""
    tapped = functools.partial(open_staging, syscalls=syscalls)
    with mock.patch.object(line, "open_staging", tapped):
        return pack_nvfp4(source, out, options=Options(force=force, resume=resume, workers=2))


def kill_commands(place: Field, old: Path, kills: int, seed: int) -> None:
    """The command as users run it, killed at random moments of its life."""
    before, rng = snapshot(place.folder / "in"), random.Random(seed)
    command = [*COMMAND, str(place.folder / "in"), str(place.folder / "out")]
    began = time.monotonic()
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    seconds = time.monotonic() - began
    assert_same(contents(place.folder / "out"), place.expected)  # the command and the verb agree
    shutil.rmtree(place.folder / "out")
    turn = 0
    while place.counts["commands killed"] < kills:
        turn += 1
        force = turn % 2 == 1
        if force:
            shutil.copytree(old, place.folder / "out")
        child = subprocess.Popen([*command, *["--force"] * force], cwd=ROOT, stdout=subprocess.DEVNULL)
        time.sleep(rng.uniform(seconds * 0.3, seconds))
        child.kill()
        assert child.wait() in (0, -signal.SIGKILL)
        place.counts["commands killed" if child.returncode else "commands finished"] += 1
        go_on(place, check_after_kill(place, contents(old) if force else None))
    assert snapshot(place.folder / "in") == before


def main(folder: Path, kills: int, command_kills: int, seed: int) -> dict[str, int]:
    shutil.copytree(SOURCE, folder / "in")
    place = prepare(folder, functools.partial(pack, folder / "in"))
    old = folder.parent / (folder.name + "-old")
    pack_nvfp4(folder / "in", old, dialect="compressed-tensors")
    kill_many(place, kills, seed, lambda: shutil.copytree(old, folder / "out"))
    kill_commands(place, old, command_kills, seed)
    return dict(place.counts)


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), *map(int, sys.argv[2:5])), sort_keys=True))
