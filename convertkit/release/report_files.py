"""Writing a report where the user asks for it: beside what it is about, perhaps, but never over it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from convertkit.containers.files import read_small
from convertkit.containers.strict_json import parse_json
from convertkit.errors import ConvertError, refusal, shown
from convertkit.release.replace import replace_files

SUFFIX = ".json"
FAMILY = "convertkit."
"""How the schema of every report of ours begins."""


def check_report_place(path: Path) -> None:
    """Whether a report may be written at ``path``; ask before the work, not after it.

    Raises ``ConvertError``: E_USAGE for a name that does not end in .json, E_WRITE without a folder, E_OUT_EXISTS for
    a file that is no report of convertkit: a config, an index, or something that is no file at all.
    """
    if path.suffix != SUFFIX:
        raise refusal("E_USAGE", f"the report's name must end in {SUFFIX}: '{shown(path.name)}'")
    if not path.parent.is_dir():
        raise refusal("E_WRITE", f"there is no folder '{shown(path.parent)}' to write the report in")
    if os.path.lexists(path) and not is_report(path):
        raise refusal("E_OUT_EXISTS", f"'{shown(path.name)}' exists and is no report of convertkit",
                      fix="give the report another name")  # fmt: skip


def is_report(path: Path) -> bool:
    """Whether a file is a report of ours, whatever it is called."""
    try:
        document = parse_json(read_small(path.parent, path.name), path.name)
    except (ConvertError, OSError):
        return False
    schema = document.get("schema") if isinstance(document, dict) else None
    return isinstance(schema, str) and schema.startswith(FAMILY)


def write_report_files(path: Path, files: Mapping[str, bytes]) -> None:
    """Write a rendered report (and its rows) in the folder of ``path``, each file whole or not at all.

    Raises ``ConvertError`` as ``check_report_place``, and E_NO_SPACE, E_WRITE.
    """
    check_report_place(path)
    replace_files(path.parent, files)
