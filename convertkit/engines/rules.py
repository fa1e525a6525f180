"""Engines, the versions of them that are proven, and where each rule about them comes from.

A rule says what a loader does, in words, with the file and line it was read from. ``run`` means that the engine's own
loader was run and did it, ``read`` that only its source was read. A version that was neither gives the verdict
*unknown*, never *loads*.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from convertkit.errors import refusal

How = Literal["run", "read"]


@dataclass(frozen=True, slots=True)
class Source:
    """Package, version, file inside the package, line (0: the whole file), and whether that code was run or read."""

    package: str
    version: str
    file: str
    line: int
    how: How = "read"

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        return f"{self.package} {self.version}: {place}, {self.how}"


@dataclass(frozen=True, slots=True)
class Rule:
    """One thing that an engine does. It holds from version ``since`` to before version ``until``; empty is open."""

    name: str
    text: str
    source: Source
    since: str = ""
    until: str = ""


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine. ``proven`` are the versions whose loader the tables describe, the first is the default."""

    name: str
    title: str
    proven: tuple[str, ...]
    how: How


@dataclass(frozen=True, slots=True)
class Asked:
    """An engine in a version, as ``--engine NAME@VERSION`` asks for it."""

    engine: Engine
    version: str
    by_name: bool = True
    """False if it is one of all: that it does not read a format is then no error of the checkpoint."""

    @property
    def proven(self) -> bool:
        """Whether the tables describe this version."""
        return any(_same(self.version, version) for version in self.engine.proven)

    def __str__(self) -> str:
        return f"{self.engine.name} {self.version}"


ENGINES: Mapping[str, Engine] = {
    engine.name: engine
    for engine in (
        Engine("vllm", "vLLM", ("0.33.0",), "run"),
        Engine("sglang", "SGLang", ("0.5.23",), "run"),
        Engine("llama.cpp", "llama.cpp", ("0.6.0",), "run"),
        Engine("tensorrt-llm", "TensorRT-LLM", ("1.3.0rc",), "read"),
        Engine("transformers", "transformers", ("5.19.0", "5.20.2"), "run"),
    )
}

_VERSION = re.compile(r"[0-9A-Za-z][0-9A-Za-z.+_-]{0,40}", re.ASCII)


def _numbers(version: str) -> tuple[int, ...]:
    """``0.33`` and ``0.33.0`` as the same numbers."""
    found = [int(part) for part in re.findall(r"[0-9]+", version)]
    while len(found) > 1 and found[-1] == 0:
        found.pop()
    return tuple(found)


def _same(one: str, other: str) -> bool:
    """Equal versions; one that ends early (``0.33``) is its first release."""
    return one == other or (re.sub(r"[0-9.]", "", one + other) == "" and _numbers(one) == _numbers(other))


def parse_engine(text: str) -> Asked:
    """``vllm``, ``vllm@0.33``. Raises E_USAGE for an unknown engine or a version that is none."""
    name, at, version = text.partition("@")
    engine = ENGINES.get(name.lower())
    if engine is None:
        raise refusal("E_USAGE", f"unknown engine '{name}'", fix="choose one of " + ", ".join(ENGINES) + ", or all")
    if at and _VERSION.fullmatch(version) is None:
        raise refusal("E_USAGE", f"'{version}' is not a version", fix=f"for example {engine.name}@{engine.proven[0]}")
    return Asked(engine, version or engine.proven[0])


def parse_engines(texts: Sequence[str]) -> tuple[Asked, ...]:
    """The engines asked for, each once; ``all`` is every engine in its default version."""
    asked: list[Asked] = []
    for text in texts:
        asked += [parse_engine(text)] if text != "all" else []
    if "all" in texts:
        named = {one.engine.name for one in asked}
        asked += [Asked(item, item.proven[0], False) for name, item in ENGINES.items() if name not in named]
    return tuple(dict.fromkeys(asked))


def holds(rule: Rule, version: str) -> bool:
    """Whether a rule holds in a version."""
    numbers = _numbers(version)
    return not (rule.since and numbers < _numbers(rule.since)) and not (rule.until and numbers >= _numbers(rule.until))
