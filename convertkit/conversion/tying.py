"""One global scale for the parts of a fused matrix: the ratio is folded into the block scales, codes stay.

A block scale s of a part with global scale g becomes s * g / G for the shared G (multipliers; the other way round for
divisors). That is exact if every product is an E4M3 number, which holds for ratios that are powers of two unless a
scale leaves the range. Each part's own scale is tried as the shared one, the largest multiplier first, since engines
keep the largest.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np

from convertkit.containers.reader import Reader
from convertkit.conversion.surgery_units import Fold
from convertkit.conversion.tiles import byte_chunks
from convertkit.dialects.planes import PackedModule
from convertkit.dialects.values import BlockFaults, block_scale_findings, global_scale_findings
from convertkit.dialects.values import block_faults as count_block_faults
from convertkit.dtypes import elements
from convertkit.errors import ConvertError, Finding, finding

LARGEST = 0x7E
"""Byte of 448, the largest finite E4M3 number."""


def _value(byte: int) -> Fraction:
    """Magnitude of an E4M3 byte: bias 7, three fraction bits, subnormals (OCP 8-bit formats v1.0)."""
    exponent, fraction = byte >> 3, byte & 7
    return Fraction(fraction, 512) if exponent == 0 else Fraction(8 + fraction, 8) * Fraction(2) ** (exponent - 7)


VALUES = tuple(_value(byte) for byte in range(LARGEST + 1))


@dataclass(frozen=True)
class Folding:
    """How one part is re-scaled: byte to byte, and which bytes keep their value."""

    table: bytes
    exact: frozenset[int]


@lru_cache(maxsize=4096)
def folding(ratio: Fraction) -> Folding:
    """Every block scale times ``ratio``, rounded to the nearest E4M3 number, ties to even, at most 448."""
    table, exact = bytearray(range(256)), set()
    for byte, value in enumerate(VALUES):
        wanted = value * ratio
        place = min(bisect_left(VALUES, wanted), LARGEST)
        if place and VALUES[place] != wanted:
            low, high = wanted - VALUES[place - 1], VALUES[place] - wanted
            if low < high or (low == high and place % 2):
                place -= 1
        if VALUES[place] == wanted:
            exact.add(byte)
        table[byte], table[byte | 0x80] = place, place | 0x80
    return Folding(bytes(table), frozenset(exact))


@dataclass(frozen=True)
class Tied:
    """The folds of one fused group and how many values they change in all."""

    units: tuple[Fold, ...]
    changed: int


def tie_group(members: Sequence[PackedModule], reader: Reader, bundle: str, allow_loss: bool) -> Tied:
    """Fold one group. Raises E_FUSED_SCALE where no shared scale is exact, unless ``allow_loss``; E_SCALE_* for bad
    scales; E_PACK_AMBIGUOUS for parts in different spellings."""
    bits = {item.module: reader.f32_bits(item.global_scale) for item in members}
    _refuse_bad(members, bits, reader)
    sense = members[0].spelling.sense
    order = sorted(set(bits.values()), reverse=sense == "multiplier")
    used = {item.module: _used(reader, item) for item in members}
    best: tuple[int, int] | None = None
    for shared in order:
        lost = {
            item.module: used[item.module] - folding(_ratio(bits[item.module], shared, sense)).exact for item in members
        }
        changed = sum(_changed(reader, item, lost[item.module]) for item in members if lost[item.module])
        if best is None or changed < best[0]:
            best = (changed, shared)
        if changed == 0:
            break
    assert best is not None
    changed, shared = best
    if changed and not allow_loss:
        raise ConvertError([_lossy(members, changed)])
    units = tuple(
        Fold(item, folding(_ratio(bits[item.module], shared, sense)).table, shared, changed == 0, bundle)
        for item in members
    )
    return Tied(units, changed)


def _ratio(bits: int, shared: int, sense: str) -> Fraction:
    """What block scales are multiplied with when ``shared`` takes the place of ``bits``."""
    mine, other = (Fraction(float(np.uint32(item).view(np.float32))) for item in (bits, shared))
    return mine / other if sense == "multiplier" else other / mine


def _refuse_bad(members: Sequence[PackedModule], bits: Mapping[str, int], reader: Reader) -> None:
    faults: list[Finding] = []
    for item in members:
        faults.extend(global_scale_findings(item.global_scale, bits[item.module], item.spelling.sense))
        row, found = 0, BlockFaults()
        for tile in _tiles(reader, item):
            found += count_block_faults(tile, first_row=row)
            row += len(tile)
        faults.extend(block_scale_findings(item, found))
    if len({item.spelling for item in members}) > 1:
        message = "the parts of a fused matrix are spelled differently"
        faults.append(finding("E_PACK_AMBIGUOUS", "error", message, tensor=members[0].codes.spec.name))
    if faults:
        raise ConvertError(faults)


def _tiles(reader: Reader, packed: PackedModule) -> Iterator[np.ndarray[tuple[int, int], np.dtype[np.uint8]]]:
    """Block scales in whole rows."""
    rows, blocks = packed.block_scale.spec.shape
    for offset, length in byte_chunks(rows, max(1, (1 << 22) // blocks)):
        data = bytearray(length * blocks)
        reader.read_into(packed.block_scale, offset * blocks, memoryview(data))
        yield np.frombuffer(data, np.uint8).reshape(length, blocks)


def _used(reader: Reader, packed: PackedModule) -> set[int]:
    """Block scale bytes that occur."""
    found: set[int] = set()
    for tile in _tiles(reader, packed):
        found.update(int(byte) for byte in np.flatnonzero(np.bincount(tile.reshape(-1), minlength=256)))
    return found


def _changed(reader: Reader, packed: PackedModule, lost: set[int]) -> int:
    """Elements that are not zero in blocks whose scale loses its value."""
    rows, blocks = packed.block_scale.spec.shape
    marks = np.zeros(256, np.bool_)
    marks[list(lost)] = True
    count = first = 0
    for tile in _tiles(reader, packed):
        half = packed.in_features // 2
        data = bytearray(len(tile) * half)
        reader.read_into(packed.codes, first * half, memoryview(data))
        codes = np.frombuffer(data, np.uint8).reshape(len(tile), blocks, half // blocks)
        nonzero = np.count_nonzero(codes & 0x07, axis=2) + np.count_nonzero(codes & 0x70, axis=2)
        count += int(nonzero[marks[tile]].sum())
        first += len(tile)
    assert first == rows
    return count


def _lossy(members: Sequence[PackedModule], changed: int) -> Finding:
    total = sum(elements((item.out_features, item.in_features)) for item in members)
    names = ", ".join(item.module for item in members)
    return finding(
        "E_FUSED_SCALE",
        "error",
        f"no shared scale is exact for {names}: {changed:,} of {total:,} values would change",
        tensor=members[0].codes.spec.name,
        fix="--allow-loss changes them and counts them; packing the group again from dense weights is better",
        data={"changed_values": changed, "elements": total},
    )
