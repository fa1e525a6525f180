"""Does a written config say to every reader what its source said? Where not, the conversion loses something."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from convertkit.drafter import DrafterSpec, plain, value_text
from convertkit.engines.reading import Engine, Serving, Understanding, understand
from convertkit.engines.tables import ENGINES, MUST_AGREE
from convertkit.errors import Finding, finding
from convertkit.layouts.configs import READINGS
from convertkit.layouts.layout import Layout

CONFIG_FILE = "config.json"

FORMAT = Engine("the format", "itself", {name: Serving(reading) for name, reading in READINGS.items()})
"""What a config states at all: a field that does not come back is one the format cannot hold."""


@dataclass(frozen=True)
class Statement:
    """A config in a layout, with the names of the tensors beside it."""

    layout: Layout
    config: Mapping[str, Any]
    names: Collection[str]

    def read_by(self, engine: Engine, meant: DrafterSpec) -> Understanding:
        return understand(engine, self.layout, self.config, self.names, meant)


def loss(field: str, message: str, allowed: Collection[str], **place: Any) -> Finding:
    """E_LOSS of a field, or W_LOSS where the user allowed it."""
    if field in allowed:
        return finding("W_LOSS", "warning", f"{field}: {message}", data={"field": field}, **place)
    fix = f"--allow-loss {field} converts all the same"
    return finding("E_LOSS", "error", f"{field}: {message}", fix=fix, data={"field": field}, **place)


def agreement(source: Statement, out: Statement, meant: DrafterSpec, allowed: Collection[str]) -> Iterator[Finding]:
    """Findings for every reader of the written config that does not understand ``meant``.

    Readers that the format must satisfy give E_LOSS (W_LOSS if allowed), unless they misread the source in the same
    way and load it; that and the other readers give W_READER_DIFFERS.
    """
    must = (FORMAT, *MUST_AGREE.get(out.layout.name, ()))
    told: set[str] = set()
    for engine in (*must, *(engine for engine in ENGINES if engine not in must)):
        after = out.read_by(engine, meant)
        if after.spec is None:
            continue
        before = source.read_by(engine, meant)
        for field, message, value in _complaints(after, meant):
            if engine in must and not _same_before(before, after, field):
                if field not in told:
                    yield loss(field, message, allowed, file=CONFIG_FILE)
                told.add(field)
            else:
                yield reader_finding(field, message, value)


def _complaints(read: Understanding, meant: DrafterSpec) -> Iterator[tuple[str, str, Any]]:
    assert read.spec is not None
    for field in read.differing:
        theirs, ours = getattr(read.spec, field), getattr(meant, field)
        text = f"{read.engine.title} understands {value_text(field, theirs)}; meant is {value_text(field, ours)}"
        yield field, text, theirs
    for field, why in read.refused:
        yield field, f"{read.engine.title}: {why}", None


def _same_before(before: Understanding, after: Understanding, field: str) -> bool:
    """Whether a reader already misread this field of the source, in the same way; a refusal always counts."""
    if before.spec is None or after.spec is None or any(item[0] == field for item in after.refused):
        return False
    return bool(getattr(before.spec, field) == getattr(after.spec, field))


def reader_finding(field: str, message: str, value: Any = None) -> Finding:
    """W_READER_DIFFERS of a field."""
    data = {"field": field, "value": plain(value)}
    return finding("W_READER_DIFFERS", "warning", f"{field}: {message}", file=CONFIG_FILE, data=data)


def reader_findings(stated: Statement, meant: DrafterSpec) -> Iterator[Finding]:
    """W_READER_DIFFERS for every reader that understands a config otherwise than its own package."""
    for engine in ENGINES:
        read = stated.read_by(engine, meant)
        if read.spec is not None:
            yield from (reader_finding(*complaint) for complaint in _complaints(read, meant))
