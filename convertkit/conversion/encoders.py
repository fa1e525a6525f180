"""How the linears of one fused group are encoded, by what was asked for and what the survey found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from convertkit.conversion.gridsearch import GridFact, zero_byte_of
from convertkit.conversion.survey import Facts
from convertkit.conversion.units import Pack

Encode = Callable[[NDArray[Any], NDArray[np.uint8], NDArray[np.uint8]], None]


@dataclass(frozen=True)
class Encoder:
    """``encode(values, codes, scales)`` fills the planes of a row tile; ``stored_bits`` is the global scale as it is
    stored in the group's spelling."""

    stored_bits: int
    encode: Encode


def grid_of(facts: Facts, unit: Pack) -> GridFact | None:
    """The grid under which a group is encoded without loss, wholly or (``search`` is ``part``) where it lies on it."""
    fact = facts.grids.get(unit.key)
    taken = ("grid", "part") if unit.search == "part" else ("grid",)
    return fact if fact is not None and fact.status in taken else None


def encoder_of(facts: Facts, unit: Pack, device: str = "cpu") -> Encoder:
    """The encoder of one group; its tables are made here, once."""
    from convertkit.grids.nvfp4.devices import kernels_of, search_kernels_of

    fact = grid_of(facts, unit)
    if fact is not None:
        return _on_grid(unit, fact, device)
    from convertkit.grids.nvfp4.arithmetics import ARITHMETICS
    from convertkit.grids.nvfp4.numbers import swap_sense
    from convertkit.grids.nvfp4.tables import build_encode_tables

    amax = facts.group_amax[unit.key]
    encode: Encode
    if unit.arithmetic in ARITHMETICS:
        encode_tile = kernels_of(device).encode

        plain = build_encode_tables(
            unit.arithmetic, unit.dtype, amax, reversible=unit.reversible, least_scale=unit.least_scale
        )
        bits, sense = plain.global_bits, plain.sense
        encode = lambda values, codes, scales: encode_tile(values, plain, codes, scales)  # noqa: E731
    else:
        from convertkit.grids.nvfp4.choice import build_choice_tables

        choose_tile = search_kernels_of(device).choose

        searched = build_choice_tables(
            unit.arithmetic, unit.dtype, amax, reversible=unit.reversible, least_scale=unit.least_scale
        )
        bits, sense = searched.global_bits, "multiplier"
        encode = lambda values, codes, scales: choose_tile(values, searched, codes, scales)  # noqa: E731
    return Encoder(bits if sense == unit.spelling.sense else swap_sense(bits)[0], encode)


def _on_grid(unit: Pack, fact: GridFact, device: str) -> Encoder:
    from convertkit.grids.nvfp4.devices import search_kernels_of
    from convertkit.grids.nvfp4.on_grid import build_grid_tables, otherwise_tables

    solve_tile = search_kernels_of(device).solve
    found = fact.found[0]
    tables = build_grid_tables(
        found.global_bits,
        found.sense,
        zero_byte=zero_byte_of(found.sense),
        least_scale=unit.least_scale,
        arithmetic=found.arithmetic,
    )
    whole = fact.status == "grid"
    otherwise = None if whole else otherwise_tables(found.global_bits, found.sense, unit.least_scale)
    return Encoder(
        found.global_bits, lambda values, codes, scales: solve_tile(values, tables, otherwise, codes, scales)
    )
