"""Tests of what drafter conversions make: tensors of the target by digest, vocabulary maps by counting again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from convertkit.checks.bench import Bench, broken
from convertkit.conversion.drafter_units import Borrow, Mask, Offsets
from convertkit.errors import Finding

Checked = tuple[tuple[Finding, ...], tuple[Any, ...]]


def _verdict(name: str, good: bool, what: str) -> Checked:
    return (() if good else (broken(name, what),)), ()


def _verify_borrow(bench: Bench, unit: Borrow) -> Checked:
    return bench.copy_faults(unit.name, "differs from the target's"), ()


def _verify_offsets(bench: Bench, unit: Offsets) -> Checked:
    """Each offset plus its place must be the absolute id again."""
    stored = bench.desk.reader.array(unit.source.spec.name).tolist()
    written = bench.output.array(unit.name).tolist()
    ids, offsets = (written, stored) if unit.back else (stored, written)
    good = len(ids) == len(offsets) and all(place + offset == ids[place] for place, offset in enumerate(offsets))
    return _verdict(unit.name, good, "does not lead to the target ids of its source")


def _verify_mask(bench: Bench, unit: Mask) -> Checked:
    """The places that are set must be the target ids, one by one."""
    stored = bench.desk.reader.array(unit.source.spec.name).tolist()
    shift = 1 if unit.form == "offsets" else 0
    wanted = sorted(place * shift + value for place, value in enumerate(stored))
    mask = np.frombuffer(bench.output.bytes_of(unit.name), np.uint8)
    good = np.flatnonzero(mask == 1).tolist() == wanted and int(mask.max(initial=0)) <= 1
    return _verdict(unit.name, good, "does not mark the target ids of d2t")


DRAFTER_VERIFIERS: Mapping[type, Callable[[Bench, Any], Checked]] = {
    Borrow: _verify_borrow,
    Offsets: _verify_offsets,
    Mask: _verify_mask,
}
"""What tests the promise of each kind of unit: faults, and details of which there are none."""
