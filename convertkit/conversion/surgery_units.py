"""Units that rearrange stored tensors (promise ``elements``) or fold a ratio into block scales (promise ``scales``)."""

from __future__ import annotations

from dataclasses import dataclass

from convertkit.checkpoint import TensorRef, TensorSpec
from convertkit.dialects.planes import PackedModule


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows ``first`` to ``first + count`` of a stored tensor. A row is what one index of all but the last dimension
    selects; a scalar and a vector are rows of one element."""

    source: TensorRef
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class Rearrange:
    """One tensor made of rows of others, one after the other: every element is a stored element, bit for bit.

    Fusing, splitting, stacking and unstacking along leading dimensions are all of this form, for dense weights and for
    the planes of packed ones. ``repair`` is the option that asked for it.
    """

    spec: TensorSpec
    pieces: tuple[Piece, ...]
    repair: str
    bundle: str
    operation = "rearrange"
    promise = "elements"

    @property
    def key(self) -> str:
        return self.spec.name

    @property
    def inputs(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(piece.source.spec.name for piece in self.pieces))

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        return (self.spec,)


@dataclass(frozen=True, slots=True)
class Fold:
    """Block scales and global scale of one packed linear after its ratio to a shared global scale was folded into the
    block scales; its codes are copied by another unit.

    ``table`` maps each E4M3 byte to the one that is written, ``global_bits`` are the FP32 bits of the shared scale.
    ``exact`` promises that no value changes.
    """

    packed: PackedModule
    table: bytes
    global_bits: int
    exact: bool
    bundle: str
    operation = "fold"
    promise = "scales"

    @property
    def key(self) -> str:
        return self.packed.block_scale.spec.name

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.packed.block_scale.spec.name, self.packed.global_scale.spec.name)

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        return (self.packed.block_scale.spec, self.packed.global_scale.spec)


@dataclass(frozen=True, slots=True)
class Swap:
    """The codes of one packed linear with the two nibbles of every byte exchanged."""

    source: TensorRef
    bundle: str
    operation = "swap nibbles"
    promise = "elements"

    @property
    def key(self) -> str:
        return self.source.spec.name

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.source.spec.name,)

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        return (self.source.spec,)


def row_elements(shape: tuple[int, ...]) -> int:
    """Elements of a row as ``Piece`` counts them."""
    return shape[-1] if len(shape) > 1 else 1


def whole(ref: TensorRef) -> Piece:
    """All rows of a tensor."""
    elements = row_elements(ref.spec.shape)
    return Piece(ref, 0, ref.spec.elements // elements if elements else 0)
