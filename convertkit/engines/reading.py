"""What an engine is to convertkit: for every drafter format, how it reads the config and what it will not load."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from convertkit.drafter import DrafterSpec, differences
from convertkit.layouts.configs import Reading
from convertkit.layouts.layout import Layout
from convertkit.layouts.reading import read_spec, with_tensors

Doubt = Callable[[DrafterSpec, Mapping[str, Any]], bool]


@dataclass(frozen=True, slots=True)
class Refusal:
    """A state of a drafter that an engine refuses or cannot serve: the field, when, and what happens."""

    field: str
    when: Doubt
    why: str


def _out_of_order(spec: DrafterSpec, config: Mapping[str, Any]) -> bool:
    return list(spec.taps or ()) != sorted(set(spec.taps or ()))


ORDER = Refusal("taps", _out_of_order, "layers are captured from the first to the last, each once, whatever the list")
"""A target notes its layers as they run (vLLM 0.33 ``interfaces.py:1617``, SGLang 0.5.23 ``qwen3.py:530``), so the
fusion layer of a drafter with another order gets features in the wrong columns."""


@dataclass(frozen=True, slots=True)
class Serving:
    """How an engine reads one format. ``asks`` is what the user must give because the engine does not read it."""

    reading: Reading
    refusals: tuple[Refusal, ...] = ()
    asks: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Engine:
    """One reader in one version. ``formats`` maps layout names to readings; ``hints`` say of some others what helps,
    ``others`` why the rest fails."""

    name: str
    version: str
    formats: Mapping[str, Serving]
    others: str = "does not read this format"
    hints: Mapping[str, str] = field(default_factory=dict)

    @property
    def title(self) -> str:
        return f"{self.name} {self.version}"


@dataclass(frozen=True, slots=True)
class Understanding:
    """What an engine makes of one drafter. ``spec`` is None if it does not read the format, and ``why`` says so;
    ``differing`` are the fields in which it departs from what the format's own package understands."""

    engine: Engine
    spec: DrafterSpec | None
    differing: tuple[str, ...] = ()
    refused: tuple[tuple[str, str], ...] = ()
    given: Mapping[str, Any] = field(default_factory=dict)
    why: str = ""


INFORMATIVE = frozenset(
    {"target_layers", "draft_tokens", "activation", "block_size", "confidence_head", "confidence_with_markov"}
)
"""Fields that an engine may leave unread without understanding another drafter."""


def understand(
    engine: Engine, layout: Layout, config: Mapping[str, Any], names: Iterable[str], stated: DrafterSpec
) -> Understanding:
    """Read a config as ``engine`` does and compare it with ``stated``, what its own package understands."""
    serving = engine.formats.get(layout.name)
    if serving is None:
        return Understanding(engine, None, why=engine.hints.get(layout.name, engine.others))
    spec = with_tensors(read_spec(serving.reading, config)[0], names)
    read = {row.here for row in serving.reading.fields}
    skip = {name for name in INFORMATIVE if getattr(spec, name) is None or name not in read}
    refused = tuple((row.field, row.why) for row in serving.refusals if row.when(stated, config))
    given = {option: getattr(stated, name) for option, name in serving.asks.items()}
    differing = tuple(name for name in differences(spec, stated) if name not in skip and name != "draft_tokens")
    return Understanding(engine, spec, differing, refused, given)
