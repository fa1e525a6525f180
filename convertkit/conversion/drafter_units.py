"""Kinds of work that only drafters need: borrowing from the target, and spelling the vocabulary map anew."""

from __future__ import annotations

from dataclasses import dataclass

from convertkit.checkpoint import Checkpoint, TensorRef, TensorSpec


@dataclass(frozen=True, slots=True)
class Borrow:
    """One tensor of another checkpoint (the target), byte for byte, under the drafter's name for it."""

    lender: Checkpoint
    lent: TensorRef
    name: str
    operation = "borrow"
    promise = "bytes"

    @property
    def key(self) -> str:
        return self.name

    @property
    def bundle(self) -> str:
        return self.name.rpartition(".")[0]

    @property
    def inputs(self) -> tuple[str, ...]:
        return ()

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        return (TensorSpec(self.name, self.lent.spec.dtype, self.lent.spec.shape),)


@dataclass(frozen=True, slots=True)
class Offsets:
    """d2t stored as absolute ids (integers [DV]), written as offsets of the same dtype; ``back``: the other way."""

    source: TensorRef
    name: str = "d2t"
    back: bool = False
    operation = "offsets"
    promise = "elements"

    @property
    def key(self) -> str:
        return self.name

    @property
    def bundle(self) -> str:
        return self.name

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.source.spec.name,)

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        return (TensorSpec(self.name, self.source.spec.dtype, self.source.spec.shape),)


@dataclass(frozen=True, slots=True)
class Mask:
    """t2d (truth values [V]) made from d2t, where a format needs it and the source has none."""

    source: TensorRef
    form: str
    vocabulary: int
    name: str = "t2d"
    operation = "mask"
    promise = "elements"

    @property
    def key(self) -> str:
        return self.name

    @property
    def bundle(self) -> str:
        return self.name

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.source.spec.name,)

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        return (TensorSpec(self.name, "BOOL", (self.vocabulary,)),)
