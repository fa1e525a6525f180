"""One drafter as a source of weights: by the name that its layout's hub gives them, decoded, a tile at a time.

Names are those of z-lab and speculators without ``model.``; an EAGLE-3 of the older form has its one layer as
``layers.0``. Packed weights become the exact value of their planes, or what an engine makes of them, so that a pass
measures the file and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import torch

from convertkit.checkpoint import Checkpoint
from convertkit.checks.gate import Weight
from convertkit.checks.reference import PlaneTables, plane_tables
from convertkit.conversion.desk import Desk
from convertkit.conversion.survey import STORAGE
from convertkit.conversion.target import Target
from convertkit.conversion.tiles import bytes_view
from convertkit.dialects.planes import PackedModule, find_packed
from convertkit.dialects.spelling import GROUP
from convertkit.dialects.values import sound_global_bits
from convertkit.drafter import DrafterSpec
from convertkit.errors import refusal
from convertkit.layouts.rules import without_model

Tensor = torch.Tensor

TILE_ELEMENTS = 1 << 21
"""Elements of a weight decoded at a time: 16 MiB in FP64."""

TORCH = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}
LEGACY = ("midlayer.", "layers.0.")
CODEBOOKS = ("predecessor_codebook.weight", "successor_codebook.weight")


@dataclass(frozen=True)
class Place:
    """One weight and the open files that hold it: those of the drafter or of its target."""

    desk: Desk
    weight: Weight


@dataclass(frozen=True)
class Holder:
    """``places`` by name; ``tables`` for packed weights that are to be decoded as an engine does, by stored name.

    ``stored`` (BF16, F16, F32) rounds every weight to what an expanded file would hold. ``mask`` is a trained
    embedding of the mask token, F32 [hidden], where one lies beside the weights.
    """

    spec: DrafterSpec
    places: Mapping[str, Place]
    dtype: torch.dtype = torch.float64
    device: str = "cpu"
    stored: str | None = None
    tables: Mapping[str, PlaneTables] = field(default_factory=dict)
    mask: Tensor | None = None

    def has(self, name: str) -> bool:
        return name in self.places

    def place(self, name: str) -> Place:
        """Raises E_LAYOUT_MISSING, or E_NEEDS_TARGET for what the target lends."""
        found = self.places.get(name)
        if found is not None:
            return found
        if name in self.spec.borrowed:
            message = f"the drafter takes '{name}' from its target, which is not named or does not hold it"
            raise refusal("E_NEEDS_TARGET", message, fix="name the folder of the target's weights with --target-model")
        raise refusal("E_LAYOUT_MISSING", "the drafter's pass needs it and it is not there", tensor=name)

    def shares(self, other: Holder, name: str) -> bool:
        """Whether two holders take a weight from the same place and decode it alike."""
        mine, yours = self.place(name), other.place(name)
        return mine.desk is yours.desk and mine.weight == yours.weight and self.stored == other.stored

    def packed(self, name: str) -> bool:
        return isinstance(self.place(name).weight.stored, PackedModule)

    def shape(self, name: str) -> tuple[int, ...]:
        return self.place(name).weight.shape

    def tiles(self, name: str) -> Iterator[tuple[int, int]]:
        """Row ranges (first, count) of a matrix, of about ``TILE_ELEMENTS`` each."""
        rows, width = self.shape(name)
        step = max(1, TILE_ELEMENTS // max(width, 1))
        for first in range(0, rows, step):
            yield first, min(step, rows - first)

    def tile(self, name: str, first: int, count: int) -> Tensor:
        """Rows ``first`` to ``first + count`` of a matrix, in the holder's dtype on its device."""
        place = self.place(name)
        place.desk.stop.check()
        width = place.weight.shape[-1]
        if isinstance(place.weight.stored, PackedModule):
            return self._packed_tile(place, place.weight.stored, first, count, width)
        return self._dense(place, first * width, (count, width))

    def whole(self, name: str) -> Tensor:
        """A small tensor in its own shape."""
        place = self.place(name)
        if isinstance(place.weight.stored, PackedModule):
            return self.tile(name, 0, place.weight.shape[0])
        return self._dense(place, 0, place.weight.shape)

    def rows(self, name: str, ids: Tensor) -> Tensor:
        """Rows of a matrix by number: ``ids`` I64 of any shape, the result [*ids.shape, width]."""
        unique, back = torch.unique(ids.cpu(), return_inverse=True)
        limit = self.shape(name)[0]
        if unique.numel() and (int(unique[0]) < 0 or int(unique[-1]) >= limit):
            raise refusal("E_FORWARD", f"a token is not one of the {limit} rows", tensor=name)
        made = torch.cat([self.tile(name, int(row), 1) for row in unique])
        return made[back.to(made.device)]

    def _dense(self, place: Place, first: int, shape: Sequence[int]) -> Tensor:
        ref = place.weight.stored
        assert not isinstance(ref, PackedModule)
        if ref.spec.dtype not in TORCH:
            raise refusal("E_FORWARD", f"a weight of {ref.spec.dtype} cannot be computed with", tensor=ref.spec.name)
        values = _read(place.desk, ref, "forward", first, tuple(shape), STORAGE[ref.spec.dtype])
        made = torch.from_numpy(values.view(STORAGE[ref.spec.dtype])).view(TORCH[ref.spec.dtype])
        return self._rounded(made.to(self.device, copy=True)).to(self.dtype)

    def _packed_tile(self, place: Place, packed: PackedModule, first: int, count: int, width: int) -> Tensor:
        codes = _read(place.desk, packed.codes, "forward codes", first * width // 2, (count, width // 2), "|u1")
        blocks = width // GROUP
        scales = _read(place.desk, packed.block_scale, "forward scales", first * blocks, (count, blocks), "|u1")
        table = torch.tensor(self._table(place, packed).values.reshape(-1), device=self.device)
        pairs = torch.from_numpy(codes).to(self.device, torch.int64)
        nibbles = torch.stack([pairs & 15, pairs >> 4], -1).view(count, blocks, GROUP)
        nibbles += torch.from_numpy(scales).to(self.device, torch.int64).mul_(16)[..., None]
        return self._rounded(table[nibbles].view(count, width)).to(self.dtype)

    def _table(self, place: Place, packed: PackedModule) -> PlaneTables:
        name = f"{packed.module}.weight"
        if name in self.tables:
            return self.tables[name]
        bits = sound_global_bits(place.desk.reader, (packed,), status=1)
        return plane_tables(bits[packed.module], packed.spelling.sense, self.stored)

    def _rounded(self, values: Tensor) -> Tensor:
        """Values as a file of ``stored`` would hold them; planes come rounded once from their table."""
        if self.stored is None or values.dtype == torch.float64:
            return values
        return values.to(TORCH[self.stored])


def _read(desk: Desk, ref: Any, use: str, first: int, shape: tuple[int, ...], storage: str) -> np.ndarray[Any, Any]:
    """Elements of a stored tensor from ``first`` on, in a buffer that the next reading overwrites."""
    array = desk.buffers.take(use, storage, shape)
    if prod(shape):
        desk.reader.read_into(ref, first * array.dtype.itemsize, bytes_view(array))
        desk.progress.advance(array.nbytes)
    return array


def places_of(desk: Desk, weights: Mapping[str, Weight]) -> dict[str, Place]:
    """The drafter's own weights by their names in the pass."""
    return {_plain(name): Place(desk, weight) for name, weight in weights.items()}


def _plain(name: str) -> str:
    name = without_model(name)
    if name.startswith(LEGACY[0]):
        return LEGACY[1] + name.removeprefix(LEGACY[0])
    return name.removesuffix(".weight") if name.endswith(CODEBOOKS) else name


def lent_places(desk: Desk, target: Target, names: Sequence[str]) -> dict[str, Place]:
    """Of ``names``, those that the target holds, dense or packed."""
    assert target.weights is not None
    packed = find_packed(target.weights).packed
    lent = ((name, _lent(target.weights, packed, target.names_of(name))) for name in names)
    return {name: Place(desk, weight) for name, weight in lent if weight is not None}


def _lent(checkpoint: Checkpoint, packed: Mapping[str, PackedModule], names: Sequence[str]) -> Weight | None:
    for name in names:
        module = packed.get(name.removesuffix(".weight"))
        if module is not None:
            return Weight(name, (module.out_features, module.in_features), module)
        if name in checkpoint.tensors:
            return Weight(name, checkpoint.tensors[name].spec.shape, checkpoint.tensors[name])
    return None
