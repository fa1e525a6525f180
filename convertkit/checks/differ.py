"""Where two weights differ: counts, the largest difference and the first differing element, for any two spellings.

Weights of one dtype are compared by their bits. Others are compared as values: dense ones exactly, planes rounded
once to the dtype of the dense weight on the other side, and planes whose global scales have another sense or other
bits rounded to BF16, as they expand.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from convertkit.checkpoint import Checkpoint, TensorRef
from convertkit.checks.gate import Weight
from convertkit.checks.tiles import flat_tiles, row_tiles
from convertkit.conversion.desk import Desk
from convertkit.conversion.survey import STORAGE
from convertkit.conversion.tiles import byte_chunks, bytes_view
from convertkit.dialects.planes import PackedModule, find_packed
from convertkit.dialects.spelling import GROUP, Sense
from convertkit.dtypes import DTYPES, FLOATS

INTEGERS = ("I8", "I16", "I32", "I64", "U8", "U16", "U32", "U64")
PLAIN = (*FLOATS, "F64")

SIGN, INFINITE, ONE = 0x8000_0000, 0x7F80_0000, 0x3F80_0000
"""Bits of an FP32: the sign, infinity, and one."""

STORED = "BF16"
"""What planes are rounded to where neither side is dense."""


@dataclass(frozen=True, slots=True)
class Difference:
    """What differs in one weight. ``first`` is the flat index of the first differing element; ``largest`` the largest
    difference of values (None if they are no numbers). ``codes`` and ``scales`` count differing bytes of planes where
    both sides are packed, ``global_scale`` says whether that of two planes of one sense has other bits; ``stored`` is
    the dtype that planes were rounded to, if they were. ``nibbles_swapped``: the codes are equal once the two nibbles
    of every byte are exchanged."""

    elements: int
    differing: int
    first: int | None
    largest: float | None
    codes: int | None = None
    scales: int | None = None
    global_scale: bool | None = None
    stored: str | None = None
    nibbles_swapped: bool = False

    @property
    def is_none(self) -> bool:
        return not (self.differing or self.codes or self.scales or self.global_scale)


def weights_and_rest(checkpoint: Checkpoint) -> dict[str, Weight]:
    """Every logical weight by its dense name, and every other tensor (scales, damaged planes) by its own."""
    planes = find_packed(checkpoint)
    whole = {ref.spec.name for module in planes.packed.values() for ref in module.planes}
    weights = {name: Weight(name, ref.spec.shape, ref) for name, ref in checkpoint.tensors.items() if name not in whole}
    for module, packed in planes.packed.items():
        name = f"{module}.weight"
        weights[name] = Weight(name, (packed.out_features, packed.in_features), packed)
    return weights


def difference(desks: tuple[Desk, Desk], mine: Weight, yours: Weight) -> Difference:
    """Compare two weights of one shape. Both are read in tiles."""
    left, right = mine.stored, yours.stored
    if isinstance(left, PackedModule) and isinstance(right, PackedModule):
        return _planes(desks, mine, yours, left, right)
    if isinstance(left, TensorRef) and isinstance(right, TensorRef) and left.spec.dtype == right.spec.dtype:
        return _bits(desks, left, right)
    if isinstance(left, TensorRef) and isinstance(right, TensorRef) and not (mine.is_float and yours.is_float):
        return _numbers(desks, left, right)
    if not (mine.is_float and yours.is_float):
        return Difference(mine.elements, mine.elements, 0 if mine.elements else None, None)
    dense = left if isinstance(left, TensorRef) else right if isinstance(right, TensorRef) else None
    packed = isinstance(left, PackedModule) or isinstance(right, PackedModule)
    return _values(desks, mine, yours, dense.spec.dtype if dense is not None and packed else None)


def _numbers(desks: tuple[Desk, Desk], left: TensorRef, right: TensorRef) -> Difference:
    """Two dense tensors of two dtypes, integers and floats exactly. Others, such as FP8, have values only by a scale:
    that their dtypes differ is all that is said."""
    one, two = left.spec.dtype, right.spec.dtype
    if not any(one in kind and two in kind for kind in (INTEGERS, PLAIN)):
        return Difference(left.spec.elements, 0, None, None)
    differing, first, largest = 0, None, 0.0
    for start, count in flat_tiles(left.spec.elements):
        mine, yours = _flat(desks[0], left, start, count), _flat(desks[1], right, start, count)
        wrong = np.flatnonzero((mine != yours) & ((mine == mine) | (yours == yours)))
        if len(wrong):
            differing += len(wrong)
            first = start + int(wrong[0]) if first is None else first
            largest = max(largest, _largest(mine[wrong].astype(np.float64), yours[wrong].astype(np.float64)))
    return Difference(left.spec.elements, differing, first, largest)


def _flat(desk: Desk, ref: TensorRef, start: int, count: int) -> NDArray[Any]:
    """Numbers of a dense tensor: integers as they are, floats as float64."""
    desk.stop.check()
    dtype = ref.spec.dtype
    width = DTYPES[dtype].bits // 8
    data = np.empty(count * width, np.uint8)
    desk.reader.read_into(ref, start * width, bytes_view(data))
    desk.progress.advance(len(data))
    return _wide(data.view(STORAGE[dtype]), dtype) if dtype in FLOATS else data.view(DTYPES[dtype].storage)


def _bits(desks: tuple[Desk, Desk], left: TensorRef, right: TensorRef) -> Difference:
    """Two stored tensors of one dtype and shape, bit by bit."""
    dtype, differing, first, largest = left.spec.dtype, 0, None, 0.0
    width = max(1, DTYPES[dtype].bits // 8)
    for offset, length in byte_chunks(left.size_bytes):
        one, two = _chunk(desks[0], left, offset, length), _chunk(desks[1], right, offset, length)
        if np.array_equal(one, two):
            continue
        words = f"<u{width}"
        wrong = np.flatnonzero(one.view(words) != two.view(words))
        differing += len(wrong)
        first = offset // width + int(wrong[0]) if first is None else first
        if dtype in (*PLAIN, *INTEGERS):
            largest = max(largest, _largest(_wide(one.view(words)[wrong], dtype), _wide(two.view(words)[wrong], dtype)))
    factor = 2 if DTYPES[dtype].bits == 4 else 1
    return Difference(left.spec.elements, differing, None if first is None else first * factor,
                      largest if dtype in (*PLAIN, *INTEGERS) else None)  # fmt: skip


def _chunk(desk: Desk, ref: TensorRef, offset: int, length: int) -> NDArray[np.uint8]:
    desk.stop.check()
    chunk: NDArray[np.uint8] = desk.rows("mine", ref, offset, (length,), "|u1")
    desk.progress.advance(length)
    return chunk


def _wide(bits: NDArray[Any], dtype: str) -> NDArray[np.float64]:
    from convertkit.checks.reference import widened

    if dtype not in FLOATS:
        return bits.view(DTYPES[dtype].storage).astype(np.float64)
    with np.errstate(invalid="ignore"):  # a signalling NaN
        return widened(bits.view(STORAGE[dtype]), dtype).astype(np.float64)


def _largest(one: NDArray[np.float64], two: NDArray[np.float64]) -> float:
    """Largest absolute difference of finite values; infinity where only one side is finite."""
    with np.errstate(invalid="ignore", over="ignore"):
        gaps = np.abs(one - two)
    gaps[(one == two) | (np.isnan(one) & np.isnan(two))] = 0.0
    gaps[np.isnan(gaps)] = np.inf
    return float(gaps.max()) if gaps.size else 0.0


def _planes(
    desks: tuple[Desk, Desk], mine: Weight, yours: Weight, left: PackedModule, right: PackedModule
) -> Difference:
    """Codes and block scales byte by byte; values only if something differs."""
    codes, scales = _bits(desks, left.codes, right.codes), _bits(desks, left.block_scale, right.block_scale)
    other: bool | None = None
    if left.spelling.sense == right.spelling.sense:
        other = desks[0].reader.f32_bits(left.global_scale) != desks[1].reader.f32_bits(right.global_scale)
    if codes.is_none and scales.is_none and other is False:
        return Difference(mine.elements, 0, None, 0.0, 0, 0, False)
    values = _values(desks, mine, yours, STORED)
    swapped = bool(codes.differing) and _are_swapped(desks, left.codes, right.codes)
    return Difference(
        mine.elements,
        values.differing,
        values.first,
        values.largest,
        codes.differing,
        scales.differing,
        other,
        STORED,
        swapped,
    )


def _are_swapped(desks: tuple[Desk, Desk], left: TensorRef, right: TensorRef) -> bool:
    """Whether the codes of one side are those of the other with exchanged nibbles (even column in the high one)."""
    for offset, length in byte_chunks(left.size_bytes):
        one, two = _chunk(desks[0], left, offset, length), _chunk(desks[1], right, offset, length)
        if not np.array_equal(one >> 4 | one << 4, two):
            return False
    return True


def _values(desks: tuple[Desk, Desk], mine: Weight, yours: Weight, stored: str | None) -> Difference:
    """Two spellings as values, tile by tile."""
    differing, first, largest, position = 0, None, 0.0, 0
    for one, two in _tiles(desks, mine, yours, stored):
        wrong = np.flatnonzero(~((one == two) | (np.isnan(one) & np.isnan(two))))
        if len(wrong):
            differing += len(wrong)
            first = position + int(wrong[0]) if first is None else first
            largest = max(largest, _largest(one[wrong], two[wrong]))
        position += one.size
    return Difference(mine.elements, differing, first, largest, stored=stored)


def _tiles(
    desks: tuple[Desk, Desk], mine: Weight, yours: Weight, stored: str | None
) -> Iterator[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    rows = mine.shape[0] if len(mine.shape) == 2 else 1
    width = mine.elements // rows if rows else 0
    bits = [
        desk.reader.f32_bits(side.stored.global_scale) if isinstance(side.stored, PackedModule) else 0
        for desk, side in zip(desks, (mine, yours), strict=True)
    ]
    for first, count in row_tiles(rows, width) if width else ():
        desks[0].stop.check()
        yield (
            _side(desks[0], mine, bits[0], first, count, width, stored),
            _side(desks[1], yours, bits[1], first, count, width, stored),
        )


def _side(
    desk: Desk, weight: Weight, bits: int, first: int, rows: int, width: int, stored: str | None
) -> NDArray[np.float64]:
    """Flat values of some rows."""
    packed = weight.stored
    if isinstance(packed, TensorRef):
        dtype = packed.spec.dtype
        tile = _rows(desk, packed, first, rows, width * DTYPES[dtype].bits // 8)
        return _wide(tile.view(STORAGE[dtype]), dtype)
    codes = _rows(desk, packed.codes, first, rows, width // 2).reshape(rows, width // 2)
    scales = _rows(desk, packed.block_scale, first, rows, width // GROUP).reshape(rows, width // GROUP)
    return _decoded(codes, scales, bits, packed.spelling.sense, stored)


def _decoded(
    codes: NDArray[np.uint8], scales: NDArray[np.uint8], bits: int, sense: Sense, stored: str | None
) -> NDArray[np.float64]:
    """Values of planes; those of a global scale that is no scale (negative, zero, infinite, NaN) as IEEE has them."""
    from convertkit.checks.compare import Planes, values_of

    magnitude, count = bits & ~SIGN, codes.size * 2
    if 0 < magnitude < INFINITE:
        values = values_of(Planes(codes, scales, magnitude, sense), 0, count, stored)
    else:
        values = values_of(Planes(codes, scales, ONE, sense), 0, count, stored)
        scale = np.float64(np.array(magnitude, np.uint32).view(np.float32))
        with np.errstate(all="ignore"):
            values = values * scale if sense == "multiplier" else values / scale
    return -values if bits & SIGN else values


def _rows(desk: Desk, ref: TensorRef, first: int, rows: int, row_bytes: int) -> NDArray[np.uint8]:
    data = np.empty(rows * row_bytes, np.uint8)
    desk.reader.read_into(ref, first * row_bytes, bytes_view(data))
    return data


def index_of(flat: int, shape: tuple[int, ...]) -> list[int]:
    """A flat index as one index per dimension."""
    return [int(number) for number in np.unravel_index(flat, shape)] if shape else []


def known_equal(mine: Weight, yours: Weight, left: Mapping[str, str], right: Mapping[str, str]) -> bool:
    """Whether recorded digests of all stored tensors say that two weights are the same, in the same spelling."""
    one, two = mine.stored, yours.stored
    if isinstance(one, PackedModule) and isinstance(two, PackedModule):
        if one.spelling != two.spelling:
            return False
        pairs = list(zip(one.planes, two.planes, strict=True))
    elif isinstance(one, TensorRef) and isinstance(two, TensorRef):
        pairs = [(one, two)]
    else:
        return False
    return all(
        a.spec.dtype == b.spec.dtype
        and a.spec.shape == b.spec.shape
        and a.spec.name in left
        and left[a.spec.name] == right.get(b.spec.name)
        for a, b in pairs
    )
