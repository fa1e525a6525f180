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
        shifts = [holder.whole(bias) for holder in self.holders] if self.has(bias) else None
        for first, count in self.holders[0].tiles(weight):
            out: list[Tensor] = [flat] * len(self.of)
            probe = None
            for number, holder in enumerate(self.holders):
                tile = holder.tile(weight, first, count)
                shift = None if shifts is None else shifts[number][first : first + count]
                for stream, source in enumerate(self.of):
                    if source == number:
                        out[stream] = functional.linear(flat[stream], tile, shift)
                if self.compared and number == 1:
                    probe = functional.linear(flat[REFERENCE], tile, shift)
            if probe is not None:
                self.modules.setdefault(name, Energy()).add(out[REFERENCE], probe)
            yield first, torch.stack(out)

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
