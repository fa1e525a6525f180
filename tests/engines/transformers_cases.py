"""Drafters with values that no model has, for ``from_pretrained``: those that were made for vLLM and SGLang, flat ones.

A run is in ``golden/transformers-5.19.0-values.json``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.engines.cases import Case, build, slug
from tests.engines.drafters import Draft, write
from tests.engines.kind_cases import FLAT, PACKS, KindCase, kind_cases
from tests.engines.sglang_more_cases import flat_config_cases, folder, more_cases


@dataclass(frozen=True)
class ValueCase:
    """A case of any of the three sets by its name."""

    name: str
    case: Case | KindCase

    def build(self) -> Draft:
        return self.case.build() if isinstance(self.case, KindCase) else build(self.case)


def value_cases() -> Iterator[tuple[str, ValueCase]]:
    """Every case by the name of its folder."""
    kinds = [case for case in kind_cases() if case.kind in (*FLAT, *PACKS)]
    for number, kind in enumerate(kinds):
        yield f"kind-{number:04d}", ValueCase(kind.name, kind)
    for name, case in flat_config_cases():
        yield f"config-{slug(name)}", ValueCase(name, case)
    for name, case in more_cases():
        yield f"more-{folder(name)}", ValueCase(name, case)


def write_values(out: Path, every: int) -> None:
    """Every ``every``-th case below ``out``."""
    for number, (name, case) in enumerate(value_cases()):
        if number % every == 0:
            write(case.build(), out / name)


def outcome(run: Mapping[str, Any]) -> Any:
    """A run as the golden file holds it: the stage at which it stopped, or the class and the names that do not fit."""
    return {key: run[key] for key in ("class", "missing", "unexpected")} if run["loads"] else run["stage"]
