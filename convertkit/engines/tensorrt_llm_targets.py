"""What TensorRT-LLM 1.3.0rc does with a dense target of plain architecture: read, not run (``tensorrt_llm_load``).

Each module asks for its stored names; one that finds none is left as it is, without a word; a fused linear asserts that
all of its parts are there. The names of the modules are those of the checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator

from convertkit.engines.model import Filled, Load, Parameter, Part, Refused, Shape, Stop, Wrong
from convertkit.engines.source import Source
from convertkit.engines.target_tables import TARGETS, Experts, Module, Row, Single
from convertkit.engines.tensorrt_llm_load import UNKNOWN
from convertkit.engines.vllm_target_shapes import Sizes, sizes_of
from convertkit.engines.vllm_target_view import named

PLAIN = ("LlamaForCausalLM", "Qwen3ForCausalLM")
"""Architectures without experts, whose modules were read."""


def load_target(source: Source, ranks: int = 1) -> Load:
    """A dense target of plain architecture on one rank; the rest is unknown."""
    packed = bool(source.config.get("quantization_config") or source.quant_config)
    if source.architecture not in PLAIN or packed or ranks > 1:
        return Load(unknown=UNKNOWN)
    table = TARGETS[source.architecture]
    sizes = sizes_of(source.config, 1, table.defaults)
    refusals: list[Refused] = []
    wrongs: list[Wrong] = []
    outcomes: list[Filled] = []
    try:
        for row in table.rows:
            if not isinstance(row, Experts) and not (isinstance(row, Module) and row.needs and sizes.tied):
                _follow(row, sizes, source, refusals, wrongs, outcomes)
    except Stop as stopped:
        return Load(unknown=stopped.refused.message)
    return Load(tuple(refusals), tuple(wrongs), parameters=tuple(outcomes))


def _follow(
    row: Row, sizes: Sizes, source: Source, refusals: list[Refused], wrongs: list[Wrong], outcomes: list[Filled]
) -> None:
    for number in sizes.numbers(row.layers):
        parts = list(_parts(row, number, sizes))
        there = [name for name, _ in parts if name in source.specs]
        missing = tuple(name for name, _ in parts if name not in source.specs)
        own = named(row.name, number)
        parameter = Parameter(own, (), "BF16", tuple(Part("", shape) for _, shape in parts))
        outcomes.append(Filled(parameter, "filled" if not missing else "unfilled", tuple(there), missing))
        if missing and len(parts) > 1:
            message = f"'{missing[0]}' is not stored, and {own} needs all of its parts"
            refusals.append(Refused("load_weights", message, "tensorrt-llm.fused", missing[0]))
        elif missing:
            message = f"{missing[0]} is not stored; its module keeps what it holds"
            wrongs.append(Wrong("E_LOAD_UNFILLED", message, "tensorrt-llm.names", missing[0]))
        refusals += [
            Refused("load_weights", f"{list(spec.shape)} does not fit {list(shape)}", "tensorrt-llm.copy", spec.name)
            for spec, shape in ((source.specs[name], shape) for name, shape in parts if name in source.specs)
            if spec.shape != shape
        ]


def _parts(row: Row, number: int | None, sizes: Sizes) -> Iterator[tuple[str, Shape]]:
    """Stored names of a module and their shapes."""
    own = named(row.name, number)
    if isinstance(row, Single):
        yield own, sizes.words(row.shape)
    elif isinstance(row, Module):
        parent = own.rpartition(".")[0]
        for _, leaf, rows in row.parts:
            yield f"{parent}.{leaf}.weight" if parent else f"{leaf}.weight", sizes.words(f"{rows} {row.columns}")
