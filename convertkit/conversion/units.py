"""The kinds of work a plan is made of. Each is data only; ``run`` carries them out, ``checks`` prove them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from convertkit.checkpoint import TensorRef, TensorSpec
from convertkit.dialects.planes import PackedModule
from convertkit.dialects.spelling import GROUP, Spelling

EXPANSIONS = ("exact", "modelopt", "compressed-tensors")
"""How a packed linear is decoded, see ``Expand``."""
Search = Literal["no", "auto", "lossless", "part"]
"""What is done about the grid of a group, see ``Pack``."""


@dataclass(frozen=True, slots=True)
class Copy:
    """One tensor, byte for byte, perhaps under another name."""

    source: TensorRef
    name: str
    bundle: str
    operation = "copy"
    promise = "bytes"

    @property
    def key(self) -> str:
        return self.name

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.source.spec.name,)

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        return (TensorSpec(self.name, self.source.spec.dtype, self.source.spec.shape),)


@dataclass(frozen=True, slots=True)
class Relabel:
    """Neighbouring tensors of one source file, byte for byte and in the same order, under the names given.

    ``recorded`` are their SHA-256 as the source's manifest states them, None where it does not; a recorded digest is
    not taken again from the source, but the written bytes must have it.
    """

    sources: tuple[TensorRef, ...]
    names: tuple[str, ...]
    recorded: tuple[str | None, ...]
    operation = "relabel"
    promise = "bytes"

    @property
    def key(self) -> str:
        return self.names[0]

    @property
    def bundle(self) -> str:
        return self.names[0]

    @property
    def inputs(self) -> tuple[str, ...]:
        return tuple(ref.spec.name for ref in self.sources)

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        pairs = zip(self.sources, self.names, strict=True)
        return tuple(TensorSpec(name, ref.spec.dtype, ref.spec.shape) for ref, name in pairs)


@dataclass(frozen=True, slots=True)
class Cast:
    """One dense float tensor rounded to another float type (to nearest, ties to even)."""

    source: TensorRef
    dtype: str
    bundle: str
    operation = "cast"
    promise = "rounded"

    @property
    def key(self) -> str:
        return self.source.spec.name

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.source.spec.name,)

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        return (TensorSpec(self.source.spec.name, self.dtype, self.source.spec.shape),)


@dataclass(frozen=True, slots=True)
class Pack:
    """The dense linears of one fused group (or one linear), quantized with one shared global scale.

    ``arithmetic`` is a row of ``grids.nvfp4.arithmetics``, of ``ARITHMETICS`` or ``SEARCHED``. ``modules`` and
    ``sources`` run in parallel; all sources have one dtype, shape [out, in] and in % 16 == 0. No block scale is less
    than the byte ``least_scale``, but where a grid needs it. ``search``: first look whether BF16 sources lie on a grid.
    ``auto`` encodes them without loss if every block does; ``lossless`` refuses them if one does not; ``part`` keeps
    the blocks that do. ``hints`` are stored bits of global scales to try first, in the sense of ``spelling``.
    """

    modules: tuple[str, ...]
    sources: tuple[TensorRef, ...]
    spelling: Spelling
    arithmetic: str
    reversible: bool
    bundle: str
    search: Search = "no"
    hints: tuple[int, ...] = ()
    least_scale: int = 1
    operation = "pack"
    promise = "quantized"

    @property
    def key(self) -> str:
        return self.modules[0]

    @property
    def dtype(self) -> str:
        return self.sources[0].spec.dtype

    @property
    def inputs(self) -> tuple[str, ...]:
        return tuple(ref.spec.name for ref in self.sources)

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        return tuple(
            spec
            for module, ref in zip(self.modules, self.sources, strict=True)
            for spec in planes_of(module, self.spelling, ref.spec.shape[0], ref.spec.shape[1])
        )


@dataclass(frozen=True, slots=True)
class Expand:
    """One packed linear decoded to a dense weight ``module.weight`` of ``dtype``; its input scale is not kept.

    ``arithmetic`` is one of ``EXPANSIONS``: exact products rounded once, or a package's own steps.
    """

    packed: PackedModule
    dtype: str
    arithmetic: str
    bundle: str
    operation = "expand"
    promise = "exact"

    @property
    def key(self) -> str:
        return self.packed.module

    @property
    def inputs(self) -> tuple[str, ...]:
        return tuple(ref.spec.name for ref in self.packed.planes)

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        return (
            TensorSpec(f"{self.packed.module}.weight", self.dtype, (self.packed.out_features, self.packed.in_features)),
        )


@dataclass(frozen=True, slots=True)
class Respell:
    """One packed linear under another dialect's names: codes and block scales copied, scalars inverted if needed."""

    packed: PackedModule
    spelling: Spelling
    bundle: str
    operation = "respell"
    promise = "planes"

    @property
    def key(self) -> str:
        return self.packed.module

    @property
    def inputs(self) -> tuple[str, ...]:
        return tuple(ref.spec.name for ref in self.packed.refs)

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        packed = self.packed
        with_input = packed.input_scale is not None
        return planes_of(packed.module, self.spelling, packed.out_features, packed.in_features, with_input)


def planes_of(
    module: str, spelling: Spelling, out_features: int, in_features: int, with_input: bool = False
) -> tuple[TensorSpec, ...]:
    """Codes, block scales and global scale of one linear of shape [out_features, in_features]; ``with_input`` the
    scale of its activations too."""
    planes = (
        TensorSpec(f"{module}.{spelling.codes}", "U8", (out_features, in_features // 2)),
        TensorSpec(f"{module}.{spelling.block_scale}", "F8_E4M3", (out_features, in_features // GROUP)),
        TensorSpec(f"{module}.{spelling.global_scale}", "F32", spelling.global_shape),
    )
    activation = TensorSpec(f"{module}.{spelling.input_scale}", "F32", spelling.global_shape)
    return (*planes, activation) if with_input else planes
