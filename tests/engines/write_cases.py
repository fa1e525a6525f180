"""Write every case as a folder: ``python -m tests.engines.write_cases OUT``, for ``tests/oracle/vllm_loader.py``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.engines import rank_cases
from tests.engines.cases import build, cases, slug
from tests.engines.config_cases import config_cases
from tests.engines.drafters import TARGET, write
from tests.engines.folder_cases import write_folders
from tests.engines.more_cases import more_cases
from tests.engines.target_cases import build_target, target_cases


def write_all(out: Path) -> int:
    """Drafters below ``out/cases``, ``out/config-cases`` and ``out/more-cases``, their target in ``out/target``,
    targets below ``out/targets``, in ``out/ranks`` and ``out/target-ranks`` those that are loaded as ranks, and folders
    of files that do not belong together below ``out/folders`` and ``out/model-folders``; how many drafters."""
    target = out / "target"
    target.mkdir(parents=True)
    (target / "config.json").write_text(json.dumps(dict(TARGET)))
    for name, case in target_cases():
        write(build_target(case), out / "targets" / slug(name))
    drafters, targets = dict(cases()), dict(target_cases())
    for name, ranks in rank_cases.DRAFTERS.items():
        folder = write(build(drafters[name]), out / "ranks" / slug(name))
        (folder / "ranks.json").write_text(json.dumps(ranks))
    for name, ranks in rank_cases.TARGETS.items():
        folder = write(build_target(targets[name]), out / "target-ranks" / slug(name))
        (folder / "ranks.json").write_text(json.dumps(ranks))
    for name, made in config_cases():
        write(build(made), out / "config-cases" / slug(name))
    for name, made in more_cases():
        write(build(made), out / "more-cases" / slug(name))
    write_folders(out)
    written = {slug(name): write(build(case), out / "cases" / slug(name)) for name, case in cases()}
    return len(written)


if __name__ == "__main__":
    print(write_all(Path(sys.argv[1])))
