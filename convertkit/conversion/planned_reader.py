"""Values of an output that is planned and not written: worked out from the source when they are asked for.

With ``foreseen.foresee`` an output can be audited before a byte of it is written. What is packed or expanded is not
worked out here. Meant for small tensors.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping
from typing import Any

from convertkit.checkpoint import Checkpoint, TensorRef
from convertkit.containers.reader import Reader
from convertkit.conversion.drafter_run import masked, shifted
from convertkit.conversion.drafter_units import Borrow, Mask, Offsets
from convertkit.conversion.plan import Plan, Unit
from convertkit.conversion.surgery_units import Fold, Rearrange, row_elements
from convertkit.conversion.units import Copy, Relabel, Respell
from convertkit.dtypes import size_bytes
from convertkit.errors import refusal
from convertkit.grids.nvfp4.numbers import swap_sense


class NotWorkedOut(Exception):
    """Values that only the run itself makes."""


class PlannedBytes:
    """The bytes of a checkpoint that ``foresee`` gave for ``plan``; ``source`` is open for the plan's source and
    belongs to the caller."""

    def __init__(self, checkpoint: Checkpoint, plan: Plan, source: Reader) -> None:
        self._source = source
        self._units: dict[str, Unit] = {}
        self._copied: dict[str, TensorRef] = {}
        for unit in plan.units:
            if isinstance(unit, Relabel):
                self._copied.update(zip(unit.names, unit.sources, strict=True))
            elif isinstance(unit, Copy):
                self._copied[unit.name] = unit.source
            else:
                self._units.update((spec.name, unit) for spec in unit.outputs)
        self._places: dict[str, list[tuple[int, str]]] = {}
        for name, ref in checkpoint.tensors.items():
            if ref.size_bytes:
                self._places.setdefault(ref.file, []).append((ref.start, name))
        for places in self._places.values():
            places.sort()

    def read_into(self, file: str, offset: int, buffer: memoryview) -> None:
        """Bytes of one tensor, or of a part of it."""
        if not len(buffer):
            return
        places = self._places[file]
        start, name = places[bisect_right(places, offset, key=lambda item: item[0]) - 1]
        if name in self._copied:
            self._source.read_into(self._copied[name], offset - start, buffer)
        else:
            buffer[:] = self._made(name)[offset - start : offset - start + len(buffer)]

    def fd(self, file: str) -> int:
        raise refusal("E_INTERNAL", "a planned file cannot be opened", file=file)

    def assert_unchanged(self) -> None:
        self._source.assert_unchanged()

    def close(self) -> None:
        """Nothing is open here."""

    def _made(self, name: str) -> bytes:
        unit = self._units[name]
        maker = MAKERS.get(type(unit))
        if maker is None:
            raise NotWorkedOut(name)
        return maker(self._source, unit, name)


def _rearranged(source: Reader, unit: Rearrange, name: str) -> bytes:
    parts = []
    for piece in unit.pieces:
        row_bytes = size_bytes(unit.spec.dtype, (row_elements(piece.source.spec.shape),))
        part = bytearray(piece.count * row_bytes)
        source.read_into(piece.source, piece.first * row_bytes, memoryview(part))
        parts.append(bytes(part))
    return b"".join(parts)


def _folded(source: Reader, unit: Fold, name: str) -> bytes:
    if name == unit.packed.global_scale.spec.name:
        return unit.global_bits.to_bytes(4, "little")
    return source.bytes_of(name).translate(unit.table)


def _respelled(source: Reader, unit: Respell, name: str) -> bytes:
    packed = unit.packed
    names = [spec.name for spec in unit.outputs]
    refs = (packed.codes, packed.block_scale, packed.global_scale, packed.input_scale)
    ref = refs[names.index(name)]
    assert ref is not None
    if ref in refs[:2]:
        return source.bytes_of(ref.spec.name)
    bits = source.f32_bits(ref)
    stored = bits if packed.spelling.sense == unit.spelling.sense else swap_sense(bits)[0]
    return stored.to_bytes(4, "little")


def _borrowed(source: Reader, unit: Borrow, name: str) -> bytes:
    with Reader(unit.lender) as lender:
        return lender.bytes_of(unit.lent.spec.name)


def planned_reader(checkpoint: Checkpoint, plan: Plan, source: Reader) -> Reader:
    """Reads a checkpoint that ``foresee`` gave for ``plan``. Raises ``NotWorkedOut`` for values that only the run
    makes."""
    return Reader(checkpoint, PlannedBytes(checkpoint, plan, source))


MAKERS: Mapping[type, Callable[[Reader, Any, str], bytes]] = {
    Rearrange: _rearranged,
    Fold: _folded,
    Respell: _respelled,
    Borrow: _borrowed,
    Offsets: lambda source, unit, name: shifted(source, unit).tobytes(),
    Mask: lambda source, unit, name: masked(source, unit).tobytes(),
}
