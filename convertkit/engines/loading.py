"""Stored tensors into parameters: the bookkeeping that all engines' loaders share, on shapes alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from convertkit.checkpoint import TensorSpec
from convertkit.engines.model import Fate, Filled, Parameter, Part, Refused, Shape, Wrong


@dataclass
class Book:
    """What has been loaded so far: parameters by name, the parts filled, fates and refusals."""

    parameters: Mapping[str, Parameter]
    filled: dict[str, dict[str, str]] = field(default_factory=dict)
    fates: dict[str, Fate] = field(default_factory=dict)
    refusals: list[Refused] = field(default_factory=list)
    wrongs: list[Wrong] = field(default_factory=list)

    @cached_property
    def modules(self) -> frozenset[str]:
        """Modules of the model: made once, whatever the number of names that none has."""
        return modules_of(self.parameters)

    def skip(self, stored: str, why: str) -> None:
        self.fates[stored] = Fate(None, skipped=why)

    def refuse(self, stage: str, message: str, rule: str, tensor: str | None = None) -> None:
        self.refusals.append(Refused(stage, message, rule, tensor))
        if tensor is not None:
            self.fates.setdefault(tensor, Fate(None, skipped="refused"))

    def load(self, spec: TensorSpec, name: str, shard: str, rule: str) -> None:
        """Put a stored tensor into the parameter ``name``, which exists. A tensor without a shard may hold all parts
        of a fused matrix."""
        parameter = self.parameters[name]
        parts = {part.shard: part for part in parameter.parts}
        wanted = parts.get(shard)
        if wanted is None and shard == "":
            self._whole(spec, parameter, rule)
            return
        if wanted is None:
            message = f"'{spec.name}' would be the share '{shard}' of {name}, which has none"
            self.refuse("load_weights", message, rule, spec.name)
            return
        self._fit(spec, wanted, parameter, rule)
        self._mark(spec.name, name, (shard,))

    def _whole(self, spec: TensorSpec, parameter: Parameter, rule: str) -> None:
        """A matrix that is fused on disk; one scale then counts for every part."""
        parts = parameter.parts
        if parts[0].fit == "scalar":
            self._fit(spec, parts[0], parameter, rule)
            self._mark(spec.name, parameter.name, tuple(part.shard for part in parts))
            return
        rows = sum(part.shape[0] for part in parts)
        self._fit(spec, Part("", (rows, *parts[0].shape[1:]), parts[0].fit), parameter, rule)
        self._mark(spec.name, parameter.name, tuple(part.shard for part in parts))

    def _fit(self, spec: TensorSpec, part: Part, parameter: Parameter, rule: str) -> None:
        fault = misfit(spec.shape, part)
        if fault == "cut":
            message = f"the shape is {list(spec.shape)}, the engine takes {list(part.shape)} of it and drops the rest"
            self.wrongs.append(Wrong("E_LOAD_CUT", message, rule, spec.name))
        elif fault == "short":
            rest = "minus infinity" if parameter.fresh == "minus infinity" else "zeros"
            message = f"the shape is {list(spec.shape)}, the engine fills the rest of {list(part.shape)} with {rest}"
            self.wrongs.append(Wrong("E_LOAD_UNFILLED", message, rule, spec.name))
        elif fault:
            message = f"weights of shape {list(spec.shape)} do not fit {parameter.name}, which takes {list(part.shape)}"
            self.refuse("load_weights", message, rule, spec.name)

    def _mark(self, stored: str, name: str, shards: tuple[str, ...]) -> None:
        filled = self.filled.setdefault(name, {})
        for shard in shards:
            earlier = filled.get(shard)
            if earlier is not None:
                self.fates[earlier] = Fate(name, shard, f"overwritten by {stored}")
            filled[shard] = stored
        self.fates.setdefault(stored, Fate(name, shards[0] if len(shards) == 1 else ""))

    def outcomes(self, borrow: Mapping[str, str] | None = None) -> tuple[Filled, ...]:
        """What became of every parameter; ``borrow`` maps those that the target's tensors replace to the lender."""
        return tuple(self._outcome(parameter, (borrow or {}).get(name)) for name, parameter in self.parameters.items())

    def _outcome(self, parameter: Parameter, lender: str | None) -> Filled:
        filled = self.filled.get(parameter.name, {})
        missing = tuple(part.shard for part in parameter.parts if part.shard not in filled)
        sources = tuple(dict.fromkeys(filled.values()))
        if lender is not None:
            return Filled(parameter, "borrowed", (lender,))
        if not missing:
            return Filled(parameter, "filled", sources)
        if parameter.unread or 0 in parameter.shape:
            return Filled(parameter, "defaulted", sources, missing)
        return Filled(parameter, "partly filled" if filled else "unfilled", sources, missing)


def misfit(shape: Shape, part: Part) -> str:
    """Empty if a shape fits, ``cut`` if it is larger and is cut to size, ``short`` if it is smaller and is padded,
    ``no`` otherwise."""
    wanted = part.shape
    if part.fit == "any" or shape == wanted:
        return ""
    if part.fit == "scalar":
        return "" if shape in ((), (1,)) else "no"
    if part.fit == "up to":
        return "short" if len(shape) == 1 and shape[0] < wanted[0] else "no"
    if part.fit == "exact":
        return "" if {*shape, *wanted} <= {1} else "no"
    along = 0 if part.fit.endswith("rows") else len(wanted) - 1
    if len(shape) != len(wanted):
        return "no"
    others = all(a == b for place, (a, b) in enumerate(zip(shape, wanted, strict=True)) if place != along)
    if others and shape[along] > wanted[along]:
        return "cut"
    return "short" if others and part.fit.startswith("padded") else "no"


def modules_of(names: Iterable[str]) -> frozenset[str]:
    """Every module that has a parameter, at any depth."""
    found: set[str] = set()
    for name in names:
        place = name.rpartition(".")[0]
        while place and place not in found:
            found.add(place)
            place = place.rpartition(".")[0]
    return frozenset(found)
