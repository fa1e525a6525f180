"""``demo``: the whole line on a small generated drafter, as a program would call it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from convertkit.demo.generate import generate
from convertkit.errors import refusal
from convertkit.progress import SILENT, Progress
from convertkit.verbs.audit import audit
from convertkit.verbs.case import Options, Result
from convertkit.verbs.dequant import dequant
from convertkit.verbs.gate import gate
from convertkit.verbs.inspect import inspect
from convertkit.verbs.pack import pack_nvfp4
from convertkit.verbs.planned import DryRun
from convertkit.verbs.verify import verify

SOURCE, PACKED, EXPANDED = "drafter-bf16", "drafter-nvfp4", "drafter-expanded"
PAGE = "README.md"
FIRST_LINE = "# Made by `convertkit demo`"
"""How a folder of the demo is known; ``force`` removes nothing else."""

PAGE_TEXT = f"""{FIRST_LINE}

- `{SOURCE}/`: a generated DFlash 2 drafter; its weights are random, its names, shapes and config are not
- `{PACKED}/`: the same drafter with its MLP packed to NVFP4, with reports and manifest
- `{EXPANDED}/`: the pack expanded back to BF16, with reports and manifest

`convertkit demo --force` makes this folder anew.
"""


@dataclass(frozen=True)
class Step:
    """One step: its kind, what was done, the folder to look at, what came out as JSON values, its exit status."""

    kind: Literal["generated", "written", "expanded", "gated", "audited", "verified"]
    title: str
    folder: Path
    facts: dict[str, Any]
    status: int = 0


@dataclass(frozen=True)
class DemoResult:
    """All steps, and the first exit status that is not 0."""

    out: Path
    steps: tuple[Step, ...]

    @property
    def status(self) -> int:
        return next((step.status for step in self.steps if step.status), 0)


def demo(
    out: str | os.PathLike[str],
    *,
    scale: str = "small",
    force: bool = False,
    workers: int = 0,
    progress: Progress = SILENT,
) -> DemoResult:
    """Generate a DFlash 2 drafter in ``out``, pack, expand, gate, audit and verify it.

    ``scale`` is ``small`` (36 MB) or ``tiny`` (0.4 MB). ``force`` replaces what an earlier demo left in ``out``.

    Raises:
        ConvertError: ``E_OUT_EXISTS`` if ``out`` holds anything else; whatever the verbs raise.
    """
    folder = Path(out)
    _clear(folder, force)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / PAGE).write_text(PAGE_TEXT, encoding="utf-8")
    return DemoResult(folder, tuple(_steps(folder, scale, workers, progress)))


def _steps(folder: Path, scale: str, workers: int, progress: Progress) -> Iterator[Step]:
    source, packed, expanded = folder / SOURCE, folder / PACKED, folder / EXPANDED
    options = Options(workers=workers, progress=progress)
    generate("dflash2", source, scale=scale)
    seen = inspect(source)
    yield Step("generated", "generated", source, {"tensors": seen["tensors"], "parameters": seen["parameters"]})
    yield _written("written", "packed", packed, pack_nvfp4(source, packed, options=options))
    yield _written("expanded", "expanded", expanded, dequant(packed, expanded, options=options))
    yield _gated("gate: pack against source", packed, source, None, workers)
    yield _gated("gate: pack against expansion", packed, expanded, "bf16", workers)
    for written in (packed, expanded):
        audited = audit(written, scan=True, workers=workers)
        yield Step("audited", "audited", written, dict(audited.document["summary"]), audited.status)
        found = verify(written, workers=workers)
        yield Step("verified", "verified", written, dict(found.summary), found.status)


def _written(kind: Literal["written", "expanded"], title: str, folder: Path, made: Result | DryRun) -> Step:
    assert isinstance(made, Result)
    reports = {
        name: {"verdict": report["verdict"], "summary": report["summary"]} for name, report in made.reports.items()
    }
    return Step(kind, title, folder, {"reports": reports}, made.status)


def _gated(title: str, candidate: Path, reference: Path, stored: str | None, workers: int) -> Step:
    made = gate(candidate, reference, stored=stored, workers=workers)
    return Step("gated", title, candidate, dict(made.document["summary"]), made.status)


def _clear(folder: Path, force: bool) -> None:
    """Make room: nothing there, or with ``force`` what a demo left there."""
    if not os.path.lexists(folder) or (folder.is_dir() and not any(folder.iterdir())):
        return
    ours = _is_ours(folder / PAGE)
    if not ours or not force:
        cure = "give --force to make it anew" if ours else "choose another folder"
        raise refusal("E_OUT_EXISTS", "the output exists", file=str(folder), fix=cure)
    for name in (SOURCE, PACKED, EXPANDED):
        if (folder / name).is_dir():
            shutil.rmtree(folder / name)


def _is_ours(page: Path) -> bool:
    if not page.is_file():
        return False
    with page.open("rb") as stream:
        return stream.readline(len(FIRST_LINE) + 1) == f"{FIRST_LINE}\n".encode()
