"""The tensors a layout needs, computed from the config: names, shapes, and the kind of dtype."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from convertkit.layouts.configs import reading_of
from convertkit.layouts.fields import read_values
from convertkit.layouts.layout import Layout, Rule, dimensions, shape_of
from convertkit.layouts.meaning import MAX_LAYERS
from convertkit.layouts.presence import PRESENCE
from convertkit.layouts.rules import compile_template

Shape = tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class Expected:
    """One tensor in dense spelling. ``shape`` has None where the config does not say; ``dtype`` is ``float``,
    ``ids`` or a storage dtype; ``required`` is False for a tensor that may be absent."""

    name: str
    role: str
    shape: Shape | None
    dtype: str
    required: bool


def fits(shape: tuple[int, ...], wanted: Shape) -> bool:
    """Whether a stored shape is the wanted one, as far as the config says it."""
    return len(shape) == len(wanted) and all(b is None or a == b for a, b in zip(shape, wanted, strict=True))


def expected_tensors(layout: Layout, config: Mapping[str, Any]) -> dict[str, Expected] | None:
    """All tensors that a drafter of this layout has or may have, without a leading ``model.``.

    None if the layout has no exact table (language models) or the config does not state the number of layers.
    """
    if layout.kind != "drafter":
        return None
    dims = dimensions(config, layout.speculators)
    reading = reading_of(layout.name, config)
    if reading is not None and (head := read_values(reading.fields, config)[0]["head_dim"]):
        dims["hd"] = head  # as the format's own package takes it where the config does not say
    layers = 1 if layout.name == "speculators-mtp" else dims.get("L")
    if layers is None or layers > MAX_LAYERS:
        return None
    found: dict[str, Expected] = {}
    for rule in layout.rules:
        present = PRESENCE[rule.presence](config, dims)
        if present is False:
            continue
        shape = shape_of(rule, dims)
        for name in _names(rule, layers, dims.get("K", 0)):
            found.setdefault(name, Expected(name, rule.role, shape, rule.dtype, present is True))
    return found


def _names(rule: Rule, layers: int, taps: int) -> Iterator[str]:
    """The names of a rule: one per layer, or one per tapped layer for ``fc_norm``."""
    pattern = compile_template(rule.template)
    if "i" not in pattern.keys:
        yield rule.template
        return
    count = taps if rule.template.startswith("fc_norm.") else layers
    for layer in range(rule.first, count):
        yield pattern.format({"i": str(layer)})
