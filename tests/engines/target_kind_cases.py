"""Values of the wrong kind in a target's config: every key of four models, its text and its tower.

What the engines' own loaders do with each is in ``golden/*-target-kinds.json``.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.engines.drafters import Draft, write
from tests.engines.hybrid_cases import MOE
from tests.engines.kind_cases import STRANGE, KindCase, walk
from tests.engines.target_cases import model

KINDS = ("qwen3", "llama", "qwen3-moe", MOE)


def target_kind_cases() -> Iterator[KindCase]:
    """Every case; ``kind`` is a key of ``target_cases.model``."""
    for kind in KINDS:
        for place, value in walk(model(kind).config):
            for strange in STRANGE.get(type(value), ()):
                if not (strange == value and type(strange) is type(value)):
                    yield KindCase(kind, place, strange)


def build_target(case: KindCase) -> Draft:
    """The model with its one strange value."""
    made = model(case.kind)
    made.config = copy.deepcopy(made.config)
    section: Any = made.config
    for key in case.place[:-1]:
        section = section[key]
    section[case.place[-1]] = copy.deepcopy(case.value)
    return made


def write_target_kinds(out: Path, every: int) -> dict[str, KindCase]:
    """Every ``every``-th case below ``out/target-kinds``, and every whole model as its kind; the cases by folder."""
    picked = {f"{number:04d}": case for number, case in enumerate(target_kind_cases()) if number % every == 0}
    for name, case in picked.items():
        write(build_target(case), out / "target-kinds" / name)
    for kind in KINDS:
        write(model(kind), out / "target-kinds" / kind)
    return picked
