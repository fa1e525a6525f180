"""What an engine builds and what becomes of a checkpoint in it: data that every engine's model makes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Shape = tuple[int, ...]

Fit = Literal["exact", "rows", "columns", "padded rows", "padded columns", "up to", "scalar", "any"]
"""How a stored shape is compared. ``rows`` and ``columns``: a tensor that is larger in that dimension is cut to size
without a word, as loaders that slice a rank's share do; where ``padded``, one that is smaller is filled with zeros.
``up to``: not larger, and filled up. ``scalar``: one value. ``any``: a reshape, or not compared."""

Fresh = Literal["uninitialised", "ones", "zeros", "minus infinity", "refused later"]
"""What a parameter holds that nothing filled; ``refused later`` means that the engine notices after loading."""

Outcome = Literal["filled", "partly filled", "unfilled", "borrowed", "defaulted"]

Status = Literal["loads", "wrong", "refused", "unknown"]


@dataclass(frozen=True, slots=True)
class Part:
    """One stored tensor that goes into a parameter: which share of it, and the whole tensor's shape."""

    shard: str
    shape: Shape
    fit: Fit = "exact"


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of one rank. ``parts`` fill it together. ``lender`` is the target's tensor that replaces it when
    no part is there; ``unread`` means that the engine never reads it then. ``rule`` names the engine's rule."""

    name: str
    shape: Shape
    dtype: str
    parts: tuple[Part, ...]
    fresh: Fresh = "uninitialised"
    lender: str | None = None
    unread: bool = False
    rule: str = ""


@dataclass(frozen=True, slots=True)
class Refused:
    """The engine stops: at which stage, with which message, by which rule; ``tensor`` and ``key`` say at what."""

    stage: str
    message: str
    rule: str
    tensor: str | None = None
    key: str | None = None
    foreign: bool = False
    """The engine does not read this kind of file at all, which is no fault of the checkpoint."""


@dataclass(frozen=True, slots=True)
class Wrong:
    """The engine goes on and serves something else than the checkpoint means. ``code`` is a finding code."""

    code: str
    message: str
    rule: str
    tensor: str | None = None
    key: str | None = None
    fix: str = ""
    foreign: bool = False
    """The engine does not read this kind of file as what it is, which is no fault of the checkpoint."""


@dataclass(frozen=True, slots=True)
class Note:
    """Something that the user should know and that harms nothing."""

    message: str
    rule: str
    tensor: str | None = None
    warning: bool = False


SettingKind = Literal["required", "limit", "choice", "environment"]


@dataclass(frozen=True, slots=True)
class Setting:
    """One serving setting that follows from the checkpoint, and why. ``limit`` is the largest sensible value, not
    advice; ``choice`` is what the publisher proposes; ``environment`` is an environment variable."""

    name: str
    value: Any
    why: str
    kind: SettingKind = "required"


@dataclass(frozen=True, slots=True)
class Fate:
    """What becomes of one stored tensor: the parameter it fills and the share, or why it is not used."""

    into: str | None
    shard: str = ""
    skipped: str = ""


@dataclass(frozen=True, slots=True)
class Filled:
    """What becomes of one parameter, and the stored tensors that fill it."""

    parameter: Parameter
    outcome: Outcome
    sources: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


@dataclass(frozen=True)
class Load:
    """A checkpoint in an engine. ``refusals`` come in the order in which the engine would meet them."""

    refusals: tuple[Refused, ...] = ()
    wrongs: tuple[Wrong, ...] = ()
    notes: tuple[Note, ...] = ()
    fates: Mapping[str, Fate] = field(default_factory=dict)
    parameters: tuple[Filled, ...] = ()
    settings: tuple[Setting, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    unknown: str = ""

    @property
    def status(self) -> Status:
        """Refusals are certain even where the rest is not known."""
        if self.refusals:
            return "refused"
        if self.unknown:
            return "unknown"
        return "wrong" if self.wrongs else "loads"


CONVERTED: Mapping[str, frozenset[str]] = {
    "F8_E4M3": frozenset({"F8_E4M3", "BF16", "F16", "F32", "F64"}),
    "U8": frozenset({"U8", "I8"}),
    "I64": frozenset({"I64", "I32", "I16", "U8"}),
    "F32": frozenset({"F32", "F64", "F16", "BF16"}),
    "BF16": frozenset({"BF16", "F16", "F32", "F64"}),
    "F16": frozenset({"F16", "BF16", "F32", "F64"}),
}
"""By the dtype of a parameter: the stored dtypes whose values mean the same after torch has converted them one by one.
Bytes of FP8 stored as U8 do not, nor do FP8 weights whose scales are elsewhere."""


def strange_dtype(stored: str, parameter: str) -> bool:
    """Whether a stored tensor loads into a parameter and then means something else."""
    return stored not in CONVERTED.get(parameter, frozenset({stored}))


class Stop(Exception):
    """Raised inside an engine's model where the engine itself raises; carries the refusal."""

    def __init__(self, refused: Refused) -> None:
        super().__init__(refused.message)
        self.refused = refused


def stop(stage: str, message: str, rule: str, *, tensor: str | None = None, key: str | None = None) -> Stop:
    """A ``Stop``. Use as ``raise stop(...)``."""
    return Stop(Refused(stage, message, rule, tensor, key))


class Unknown(Stop):
    """The tables do not describe this; nothing can be said."""

    def __init__(self, why: str) -> None:
        super().__init__(stop("config", why, "unknown").refused)
