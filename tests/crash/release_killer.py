"""Kills ``release`` in forked children; the rules are ``killer``'s.

``python -m tests.crash.release_killer FOLDER KILLS SEED``
"""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path
from unittest import mock

from convertkit.conversion.staging import open_staging
from convertkit.conversion.syscalls import Syscalls
from convertkit.verbs import line
from convertkit.verbs import release as verb
from convertkit.verbs.case import Options
from tests.crash.killer import kill_many, prepare
from tests.release.recipes import SIDE_BY_SIDE, write_recipe


def make(recipe: Path, out: Path, syscalls: Syscalls, force: bool, resume: bool) -> object:
    """The real verb; the calls of the release's own staging folder and of every variant's are tapped."""
    tapped = functools.partial(open_staging, syscalls=syscalls)
    with mock.patch.object(line, "open_staging", tapped), mock.patch.object(verb, "open_staging", tapped):
        return verb.release(recipe, out, options=Options(force=force, resume=resume, workers=2))


def main(folder: Path, kills: int, seed: int) -> dict[str, int]:
    recipe = write_recipe(folder / "in", SIDE_BY_SIDE)
    place = prepare(folder, functools.partial(make, recipe))
    kill_many(place, kills, seed)
    return dict(place.counts)


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])), sort_keys=True))
