"""What the operating system says when it refuses to write, as errors for users."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from convertkit.containers.files import MANY_FILES
from convertkit.errors import ConvertError, refusal, shown

NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
CURES = {errno.EFBIG: "raise the limit on file sizes (ulimit -f)", errno.EMFILE: MANY_FILES}


def write_failure(error: OSError, path: Path, needed_bytes: int | None = None) -> ConvertError:
    """E_NO_SPACE or E_WRITE (status 4) for a failed call on ``path``; ``needed_bytes`` are still to be written."""
    reason = error.strerror or type(error).__name__
    if error.errno in NO_SPACE:
        free = _free_bytes(path)
        need = "" if needed_bytes is None else f"; {needed_bytes:,} bytes are still to be written"
        have = "" if free is None else f", {free:,} bytes are free"
        data = {"needed_bytes": needed_bytes, "free_bytes": free}
        return refusal(
            "E_NO_SPACE", f"{reason}: '{shown(path)}'{need}{have}", fix="free some space, or write elsewhere",
            data={name: value for name, value in data.items() if value is not None},
        )  # fmt: skip
    fix = CURES.get(error.errno or 0, "")
    return refusal("E_WRITE", f"{reason}: '{shown(path)}'", fix=fix, data={"errno": error.errno or 0})


def _free_bytes(path: Path) -> int | None:
    for step in (path, *path.parents):
        try:
            space = os.statvfs(step)
        except OSError:
            continue
        return space.f_bavail * space.f_frsize
    return None
