"""Write every case as a folder: ``python -m tests.engines.write_cases OUT``, for ``tests/oracle/vllm_loader.py``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.engines.cases import build, cases, slug
from tests.engines.drafters import TARGET, write


def write_all(out: Path) -> int:
    """The cases below ``out/cases`` and their target in ``out/target``; how many."""
    target = out / "target"
    target.mkdir(parents=True)
    (target / "config.json").write_text(json.dumps(dict(TARGET)))
    written = {slug(name): write(build(case), out / "cases" / slug(name)) for name, case in cases()}
    return len(written)


if __name__ == "__main__":
    print(write_all(Path(sys.argv[1])))
