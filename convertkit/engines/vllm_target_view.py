"""A target under audit in vLLM 0.33: what was found so far, and how rows report what they find."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from convertkit.checkpoint import TensorSpec
from convertkit.engines.model import Fate, Filled, Note, Refused, Shape, Wrong, strange_dtype
from convertkit.engines.target_tables import TargetTable
from convertkit.engines.vllm_linear import strange
from convertkit.engines.vllm_quant import Quantization
from convertkit.engines.vllm_target_shapes import Misfit, Sizes
from convertkit.layouts.rules import Family

Number = int | None
"""A layer, or None for what is there once."""

CACHE = (".k_scale", ".v_scale", ".q_scale", ".kv_scale", ".q_zero_point", ".k_zero_point", ".v_zero_point")
"""Endings that a quantized model fills or may ignore (``quantization/base_config.py:112``)."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A family of stored tensors at its place: the share and the leaf, its engine's name."""

    family: Family
    share: int | None
    leaf: str
    template: str

    def numbers(self) -> Iterator[Number]:
        for index in self.family.indices:
            yield index[0] if index else None

    def inside(self, numbers: Iterable[Number]) -> tuple[list[str], set[Number]]:
        """Names of a family in some layers, and those layers."""
        wanted = set(numbers)
        found = set(self.numbers())
        if found <= wanted:
            return list(self.family.names), found
        names = [name for name, number in zip(self.family.names, self.numbers(), strict=True) if number in wanted]
        return names, found & wanted


@dataclass
class View:
    """A target under audit: what is asked, what is found."""

    table: TargetTable
    sizes: Sizes
    quantization: Quantization
    specs: Mapping[str, TensorSpec]
    placed: dict[str, list[Placed]] = field(default_factory=dict)
    fates: dict[str, Fate] = field(default_factory=dict)
    outcomes: list[Filled] = field(default_factory=list)
    refusals: list[Refused] = field(default_factory=list)
    wrongs: list[Wrong] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)

    @property
    def quantized(self) -> bool:
        return self.quantization.family != "none"

    def refuse(self, message: str, rule: str, tensor: str, stage: str = "load_weights") -> None:
        self.refusals.append(Refused(stage, message, rule, tensor))

    def settle(self, placed: Placed, into: str | None, share: str = "", skipped: str = "") -> None:
        """What becomes of a family: told by its first name and by its template."""
        fate = Fate(into, share, skipped)
        self.fates.setdefault(placed.family.names[0], fate)
        self.fates.setdefault(placed.family.template, fate)

    def fault(self, names: Sequence[str], kind: Misfit, wanted: Shape, rule: str) -> None:
        """One finding for tensors that depart from their place in the same way."""
        first = names[0]
        found, more = list(self.specs[first].shape), f" ({len(names)} such tensors)" if len(names) > 1 else ""
        if kind == "no":
            self.refuse(f"weights of shape {found} do not fit, the config implies {list(wanted)}{more}", rule, first)
        elif kind == "cut":
            message = f"the shape is {found}, the engine takes {list(wanted)} of it and drops the rest{more}"
            self.wrongs.append(Wrong("E_LOAD_CUT", message, rule, first))
        else:
            message = f"the shape is {found}; the rest of {list(wanted)} stays uninitialised{more}"
            self.wrongs.append(Wrong("E_LOAD_UNFILLED", message, rule, first))

    def strange_dtypes(self, names: Iterable[str], dtype: str) -> None:
        """Tensors of a dtype that loads and then means something else, one finding for each dtype."""
        found: dict[str, str] = {}
        for name in names:
            stored = self.specs[name].dtype
            if stored != dtype:
                found.setdefault(stored, name)
        for stored, name in found.items():
            if strange_dtype(stored, dtype):
                self.wrongs.append(strange(self.specs[name], dtype))

    def by_shape(self, names: Iterable[str]) -> dict[Shape, list[str]]:
        found: dict[Shape, list[str]] = {}
        for name in names:
            found.setdefault(self.specs[name].shape, []).append(name)
        return found

    def missing(self, names: Sequence[str], noticed: bool, rule: str, part: str = "") -> None:
        """Parameters that nothing fills: refused if the loader notices, which it does for unquantized models only."""
        if not names:
            return
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        if noticed and not self.quantized:
            message = f"Following weights were not initialized from checkpoint: {names[0]}{more}"
            self.refuse(message, "vllm.target-norm", names[0])
        else:
            message = f"{names[0]}{more} is filled by no stored tensor{part} and stays uninitialised"
            self.wrongs.append(Wrong("E_LOAD_UNFILLED", message, rule, names[0]))

    def uncovered(self, name: str, columns: int) -> None:
        """A rank's columns that no scale of the rank covers; neither compressed-tensors nor experts check that."""
        if columns % 16:
            message = (
                f"{columns} columns a rank are no multiple of 16: its scales do not cover them, the rest is dropped"
            )
            self.wrongs.append(Wrong("E_LOAD_CUT", message, "vllm.width-unchecked", name))


def named(template: str, number: int | None) -> str:
    return template if number is None else template.replace("{i}", str(number))
