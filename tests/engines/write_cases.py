"""Write every case as a folder: ``python -m tests.engines.write_cases OUT``, for ``tests/oracle/vllm_loader.py``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.engines.cases import build, cases, slug
from tests.engines.drafters import TARGET, write
from tests.engines.target_cases import build_target, target_cases


def write_all(out: Path) -> int:
    """Drafters below ``out/cases``, their target in ``out/target``, targets below ``out/targets``; the drafters."""
    target = out / "target"
    target.mkdir(parents=True)
    (target / "config.json").write_text(json.dumps(dict(TARGET)))
    for name, case in target_cases():
        if case.run:
            write(build_target(case), out / "targets" / slug(name))
    written = {slug(name): write(build(case), out / "cases" / slug(name)) for name, case in cases()}
    return len(written)


if __name__ == "__main__":
    print(write_all(Path(sys.argv[1])))
