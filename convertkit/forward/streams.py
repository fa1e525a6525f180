"""The same pass by several drafters side by side, reading each weight once and a tile at a time.

A *stream* is one pass. For a comparison there are three: the reference; the candidate on its own results; and the
candidate *probed*, on the reference's input at every step, which tells the error that a module or layer makes itself
from the one that it inherits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch.nn import functional

from convertkit.forward.holder import Holder

Tensor = torch.Tensor

REFERENCE, CANDIDATE, PROBE = 0, 1, 2


@dataclass
class Energy:
    """Sums of squares, FP64: of errors and of the reference's values."""

    error: Tensor | float = 0.0
    reference: Tensor | float = 0.0

    def add(self, mine: Tensor, yours: Tensor) -> None:
        """``mine`` is the reference."""
        self.error = self.error + (yours - mine).double().square().sum()
        self.reference = self.reference + mine.double().square().sum()

    @property
    def rel_rms(self) -> float | None:
        """sqrt(errors / reference); None where that is not defined or not finite."""
        error, reference = float(self.error), float(self.reference)
        if error == 0:
            return 0.0
        ratio = (error / reference) ** 0.5 if reference > 0 else float("nan")
        return ratio if ratio < float("inf") else None


@dataclass(frozen=True)
class Streams:
    """``of`` tells which holder each stream takes its weights from. ``modules`` collects what each module of the
    candidate does to the reference's input; ``layers`` the same for whole layers, and what the candidate's own
    results are off by then (``drift``)."""

    holders: tuple[Holder, ...]
    of: tuple[int, ...]
    modules: dict[str, Energy] = field(default_factory=dict)
    layers: dict[str, Energy] = field(default_factory=dict)
    drift: dict[str, Energy] = field(default_factory=dict)

    @property
    def compared(self) -> bool:
        return len(self.holders) == 2

    def has(self, name: str) -> bool:
        return self.holders[0].has(name)

    def linear(self, name: str, x: Tensor) -> Tensor:
        """``x`` [streams, ..., in] times the weight ``NAME.weight`` [out, in], plus ``NAME.bias`` if there is one."""
        flat = x.reshape(x.shape[0], -1, x.shape[-1])
        parts = [tile for _, tile in self.products(name, flat)]
        return torch.cat(parts, -1).view(*x.shape[:-1], -1)

    def products(self, name: str, flat: Tensor) -> Iterator[tuple[int, Tensor]]:
        """The same a range of outputs at a time: ``flat`` [streams, n, in], each tile [streams, n, rows]."""
        weight, bias = f"{name}.weight", f"{name}.bias"
        shifts = [holder.whole(bias) if self.has(bias) else None for holder in self.holders]
        alike = self.compared and torch.equal(flat[PROBE], flat[REFERENCE])
        for first, count in self.holders[0].tiles(weight):
            cut = slice(first, first + count)
            parts = [
                (tile, None if shift is None else shift[cut])
                for tile, shift in zip(self._tiles(weight, first, count), shifts, strict=True)
            ]
            made = [functional.linear(flat[stream], *parts[source]) for stream, source in enumerate(self.of[:PROBE])]
            if self.compared:
                made.append(self._probed_product(name, flat, parts, made[REFERENCE], alike))
            yield first, torch.stack(made)

    def _tiles(self, name: str, first: int, count: int) -> list[Tensor]:
        """Rows of a weight of every holder; what both borrow from one target is read once."""
        tiles = [self.holders[0].tile(name, first, count)]
        for other in self.holders[1:]:
            shared = self.holders[0].shares(other, name)
            tiles.append(tiles[0] if shared else other.tile(name, first, count))
        return tiles

    def _probed_product(
        self, name: str, flat: Tensor, parts: list[tuple[Tensor, Tensor | None]], right: Tensor, alike: bool
    ) -> Tensor:
        """The probing stream's product, and the module's own error on the reference's input (``right`` is the
        reference's result). Where weights or inputs are the same, so are products: they are not made twice."""
        (mine, my_shift), (yours, your_shift) = parts
        same = mine is yours or torch.equal(mine, yours)
        same = same and (my_shift is None or your_shift is None or torch.equal(my_shift, your_shift))
        out = right if alike and same else functional.linear(flat[PROBE], yours, your_shift)
        probe = right if same else out if alike else functional.linear(flat[REFERENCE], yours, your_shift)
        self.modules.setdefault(name, Energy()).add(right, probe)
        return out

    def vector(self, name: str) -> Tensor:
        """A small weight [streams, ...]: a norm, a kernel."""
        values = [holder.whole(name) for holder in self.holders]
        if self.compared and name not in self.modules:
            self.modules.setdefault(name, Energy()).add(*values)
        return torch.stack([values[source] for source in self.of])

    def rows(self, name: str, ids: Tensor) -> Tensor:
        """Rows of a table: ``ids`` I64 [streams, ...], the result [streams, ..., width]."""
        made = [self.holders[source].rows(name, ids[stream]) for stream, source in enumerate(self.of)]
        if self.compared:
            probe = self.holders[1].rows(name, ids[REFERENCE])
            self.modules.setdefault(name, Energy()).add(made[REFERENCE], probe)
        return torch.stack(made)

    def probed(self, x: Tensor) -> Tensor:
        """``x`` with the reference's values in the probing stream."""
        return torch.cat([x[:PROBE], x[REFERENCE : REFERENCE + 1]]) if self.compared else x

    def note_layer(self, name: str, before: Tensor, after: Tensor) -> None:
        """What a layer added to the reference's input, by either, and how far the candidate has drifted."""
        if self.compared:
            change = after - before
            self.layers.setdefault(name, Energy()).add(change[REFERENCE], change[PROBE])
            self.drift.setdefault(name, Energy()).add(after[REFERENCE], after[CANDIDATE])
