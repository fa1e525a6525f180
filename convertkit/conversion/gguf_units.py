"""The kinds of work that lead to a GGUF file and back. Data only, as ``units``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from convertkit.checkpoint import TensorRef, TensorSpec
from convertkit.conversion.units import planes_of
from convertkit.dialects.planes import PackedModule
from convertkit.dialects.spelling import Spelling
from convertkit.dtypes import BLOCK_TYPES


@dataclass(frozen=True, slots=True)
class BlockWeight:
    """One NVFP4 matrix of a GGUF and the scale of the whole matrix; None means 1."""

    weight: TensorRef
    scale: TensorRef | None


Source = TensorRef | PackedModule | BlockWeight
Order = Literal["keep", "interleave", "deinterleave"]


def shape_of(source: Source) -> tuple[int, ...]:
    """Shape of a stored tensor, or of the weight that planes stand for."""
    if isinstance(source, PackedModule):
        return (source.out_features, source.in_features)
    return source.weight.spec.shape if isinstance(source, BlockWeight) else source.spec.shape


def dtype_of(source: Source) -> str:
    """The stored dtype; NVFP4 for planes and blocks."""
    return source.spec.dtype if isinstance(source, TensorRef) else "NVFP4"


def names_of(source: Source) -> tuple[str, ...]:
    """Stored tensors that a weight is made from; an activation scale is not part of it."""
    if isinstance(source, PackedModule):
        return tuple(ref.spec.name for ref in source.planes)
    if isinstance(source, BlockWeight):
        return tuple(ref.spec.name for ref in (source.weight, source.scale) if ref is not None)
    return (source.spec.name,)


@dataclass(frozen=True, slots=True)
class Recode:
    """One or more weights of equal shape to one tensor of any type; several are stacked in a new first dimension.

    Rows may change their order within each of ``heads`` heads (``interleave``: the two halves of a head's rows are
    dealt alternately, as llama.cpp's rotary embedding of Llama wants them), and ``shift`` may be added in FP32.
    """

    sources: tuple[Source, ...]
    spec: TensorSpec
    order: Order = "keep"
    heads: int = 0
    shift: int = 0
    operation = "recode"

    @property
    def promise(self) -> str:
        """``bytes`` copied, ``elements`` in another order or stacked, ``exact`` decoded and rounded once,
        ``rounded`` to another float type, ``quantized`` to blocks."""
        dtype = dtype_of(self.sources[0])
        if dtype == self.spec.dtype and not self.shift:
            return "bytes" if self.order == "keep" and len(self.sources) == 1 else "elements"
        if self.spec.dtype in BLOCK_TYPES:
            return "quantized"
        return "exact" if dtype in BLOCK_TYPES else "rounded"

    @property
    def key(self) -> str:
        return self.spec.name

    @property
    def bundle(self) -> str:
        return self.spec.name

    @property
    def inputs(self) -> tuple[str, ...]:
        return tuple(name for source in self.sources for name in names_of(source))

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        return (self.spec,)


@dataclass(frozen=True, slots=True)
class Regroup:
    """Planes of one linear, or of a layer's experts, as one NVFP4 tensor with its ``.scale`` and perhaps
    ``.input_scale`` (F32, one value per linear). Codes and block scales are moved, never decoded."""

    modules: tuple[PackedModule, ...]
    name: str
    stacked: bool = False
    order: Order = "keep"
    heads: int = 0
    input_scales: bool = False
    operation = "regroup"
    promise = "planes"

    @property
    def key(self) -> str:
        return self.name

    @property
    def bundle(self) -> str:
        return self.name

    @property
    def inputs(self) -> tuple[str, ...]:
        refs = [ref for module in self.modules for ref in module.refs]
        kept = self.input_scales
        dropped = {module.input_scale.spec.name for module in self.modules if module.input_scale and not kept}
        return tuple(ref.spec.name for ref in refs if ref.spec.name not in dropped)

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        count = len(self.modules)
        shape = (self.modules[0].out_features, self.modules[0].in_features)
        weight = TensorSpec(self.name, "NVFP4", (count, *shape) if self.stacked else shape)
        stem = self.name.removesuffix("weight")
        scalars = ("scale", "input_scale") if self.input_scales else ("scale",)
        return (weight, *(TensorSpec(stem + leaf, "F32", (count,)) for leaf in scalars))


@dataclass(frozen=True, slots=True)
class Quantize:
    """Dense weights that share one global scale, to NVFP4 tensors with a ``.scale`` each.

    ``names`` are the GGUF names of ``sources``, in parallel; with ``experts`` so many sources in a row are stacked
    under each name, and those of one expert share a scale. The arithmetic is ModelOpt's (two levels).
    """

    sources: tuple[TensorRef, ...]
    names: tuple[str, ...]
    orders: tuple[tuple[Order, int], ...]
    experts: int = 0
    operation = "quantize"
    promise = "quantized"
    arithmetic = "amax"

    @property
    def key(self) -> str:
        return self.names[0]

    @property
    def bundle(self) -> str:
        return self.names[0]

    @property
    def dtype(self) -> str:
        return self.sources[0].spec.dtype

    @property
    def inputs(self) -> tuple[str, ...]:
        return tuple(ref.spec.name for ref in self.sources)

    @property
    def members(self) -> tuple[tuple[str, tuple[tuple[TensorRef, str], ...]], ...]:
        """For each name its weights, each with the key of those that it shares its scale with."""
        count = max(self.experts, 1)
        keys = [f"{self.key}#{expert}" if self.experts else self.key for expert in range(count)]
        return tuple(
            (name, tuple(zip(self.sources[place * count : (place + 1) * count], keys, strict=True)))
            for place, name in enumerate(self.names)
        )

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        specs: list[TensorSpec] = []
        for name, parts in self.members:
            shape = parts[0][0].spec.shape
            specs.append(TensorSpec(name, "NVFP4", (self.experts, *shape) if self.experts else shape))
            specs.append(TensorSpec(name.removesuffix("weight") + "scale", "F32", (len(parts),)))
        return tuple(specs)


@dataclass(frozen=True, slots=True)
class Ungroup:
    """One NVFP4 matrix of a GGUF as planes of a dialect. ``scale`` None means 1. References to scalars point at
    the one value that belongs to this matrix."""

    weight: TensorRef
    scale: TensorRef | None
    input_scale: TensorRef | None
    module: str
    spelling: Spelling
    order: Order = "keep"
    heads: int = 0
    operation = "ungroup"
    promise = "planes"

    @property
    def key(self) -> str:
        return self.module

    @property
    def bundle(self) -> str:
        return self.module

    @property
    def inputs(self) -> tuple[str, ...]:
        return tuple(ref.spec.name for ref in (self.weight, self.scale, self.input_scale) if ref is not None)

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        rows, width = self.weight.spec.shape
        return planes_of(self.module, self.spelling, rows, width, self.input_scale is not None)


@dataclass(frozen=True, slots=True)
class Ids:
    """``d2t``: offsets of draft ids (checkpoints) to absolute target ids (GGUF), ``sign`` 1, or back, -1."""

    source: TensorRef
    name: str
    sign: int
    limit: int
    operation = "ids"
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
        return (TensorSpec(self.name, "I64", self.source.spec.shape),)


@dataclass(frozen=True, slots=True)
class Membership:
    """``t2d``: which target ids the draft vocabulary holds, from a GGUF's ``d2t``; ``limit`` is the target's size."""

    source: TensorRef
    name: str
    limit: int
    operation = "membership"
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
        return (TensorSpec(self.name, "BOOL", (self.limit,)),)


@dataclass(frozen=True, slots=True)
class Given:
    """A small tensor whose bytes the plan fixes."""

    spec: TensorSpec
    data: bytes
    operation = "given"
    promise = "bytes"
    inputs: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        return self.spec.name

    @property
    def bundle(self) -> str:
        return self.spec.name

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        return (self.spec,)
