"""Experts of a layer in one tensor or in one linear each, in both directions, scales per expert and half carried."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from convertkit.checkpoint import Checkpoint, TensorRef, TensorSpec
from convertkit.containers.folder import CONFIG
from convertkit.conversion.surgery_units import Piece, Rearrange, row_elements, whole
from convertkit.dialects.stacks import stacks_of
from convertkit.errors import ConvertError, refusal
from convertkit.layouts.fusions import DOWN, GATE, INPUT_FIRST, SCALARS, UP, ExpertForm, scalar_shape
from convertkit.layouts.layout import config_value
from convertkit.layouts.rules import compile_template

_EXPERT = compile_template("{rest}.experts.{e}.{x}.{x}")


def fuse_experts(source: Checkpoint, form: ExpertForm, option: str) -> Iterator[Rearrange]:
    """Stack ``experts.{e}.gate_proj|up_proj|down_proj`` of every layer. Experts must be 0, 1, … and alike.

    Raises E_LAYOUT_SHAPE where they are not."""
    kinds = _kinds(source)
    if form.bare_weight and kinds & INPUT_FIRST:
        message = f"stacks of {sorted(kinds & INPUT_FIRST)[0]} hold the input first, which convertkit does not write"
        raise refusal("E_LAYOUT_SHAPE", message, file=CONFIG, key="model_type", status=3)
    layers: dict[str, dict[tuple[str, str], dict[int, TensorRef]]] = {}
    for name, ref in source.tensors.items():
        hit = _EXPERT.match(name) if ".experts." in name else None
        if hit is not None and hit["x"] in (GATE, UP, DOWN):
            layers.setdefault(hit["rest"], {}).setdefault((hit["x"], hit["x2"]), {})[int(hit["e"])] = ref
    for layer, tables in layers.items():
        home = f"{layer}.experts" if layer else "experts"
        count = max(max(table) for table in tables.values()) + 1
        lone = next((table for (linear, leaf), table in tables.items() if (GATE, leaf) not in tables), None)
        if lone is not None:
            raise _unlike(next(iter(lone.values())), "its experts have no gate_proj with the same tensors")
        for (linear, leaf), table in tables.items():
            _check_alike(table, count)
            if linear == DOWN:
                yield _stacked(home, form.tensor(form.down, leaf), [table], count, leaf, option)
            elif linear == GATE:
                other = tables.get((UP, leaf))
                if other is None:
                    raise _unlike(table[0], "there is no up_proj beside it")
                _check_alike(other, count)
                yield _stacked(home, form.tensor(form.gate_up, leaf), [table, other], count, leaf, option)


def _check_alike(table: Mapping[int, TensorRef], count: int) -> None:
    if len(table) != count:  # of numbers below it: there may be one of twelve digits
        missing = next(number for number in range(count) if number not in table)
        raise _unlike(next(iter(table.values())), f"expert {missing} of {count} has no such tensor")
    forms = {(ref.spec.dtype, ref.spec.shape) for ref in table.values()}
    if len(forms) > 1:
        raise _unlike(table[0], "the experts have different dtypes or shapes")


def _unlike(ref: TensorRef, what: str) -> ConvertError:
    return refusal("E_LAYOUT_SHAPE", f"cannot be stacked: {what}", tensor=ref.spec.name, status=3)


def _stacked(home: str, last: str, halves: list[dict[int, TensorRef]], count: int, leaf: str, option: str) -> Rearrange:
    """All experts one after the other; within an expert the gate half first. Scalars become [experts] or, of two
    halves, [experts, 2]."""
    first = halves[0][0].spec
    if any(table[0].spec.dtype != first.dtype or table[0].spec.shape != first.shape for table in halves):
        raise _unlike(halves[0][0], "its halves have different dtypes or shapes")
    pieces = tuple(whole(table[number]) for number in range(count) for table in halves)
    if leaf in SCALARS or first.elements == 1:
        shape: tuple[int, ...] = (count,) if len(halves) == 1 else (count, 2)
    else:
        shape = (count, first.shape[0] * len(halves), *first.shape[1:])
    return Rearrange(TensorSpec(f"{home}.{last}", first.dtype, shape), pieces, option, home)


def split_experts(source: Checkpoint, form: ExpertForm, option: str) -> Iterator[Rearrange]:
    """One linear per expert from stacked tensors. Scalars may be [experts], [experts, 1] or [experts, 2].

    Raises E_LAYOUT_SHAPE for tensors that are not stacks of two halves, or that hold the input first."""
    _refuse_input_first(source, form)
    for name, ref in source.tensors.items():
        home, _, last = name.rpartition(".")
        if home.rpartition(".")[2] != "experts":
            continue
        for stem, linears in ((form.gate_up, (GATE, UP)), (form.down, (DOWN,))):
            leaf = form.leaf(stem, last)
            if leaf is not None:
                yield from _unstacked(home, leaf, ref, linears, option)


def _kinds(source: Checkpoint) -> set[str]:
    """Every ``model_type`` that the config states, also for its parts."""
    places = [source.config, *(part for part in source.config.values() if isinstance(part, Mapping))]
    return {kind for place in places if isinstance(kind := place.get("model_type"), str)}


def _refuse_input_first(source: Checkpoint, form: ExpertForm) -> None:
    """Raise E_LAYOUT_SHAPE for stacks [experts, in, out]: their halves are columns, or alternate.

    Told by the down tensor beside it ([experts, hidden, intermediate], or the other way round), by the shape of block
    scales, by the ``hidden_size`` of the config, and where none of them helps by its ``model_type``."""
    homes = [ref for name, ref in source.tensors.items() if name.rpartition(".")[0].endswith("experts")]
    by_name = {stack.name: stack for stack in stacks_of(homes)[0]}
    told = form.bare_weight and bool(_kinds(source) & INPUT_FIRST)
    for ref in homes:
        home, _, last = ref.spec.name.rpartition(".")
        leaf = form.leaf(form.gate_up, last)
        if leaf not in ("weight", "weight_packed") or len(ref.spec.shape) != 3:
            continue
        down = source.tensors.get(f"{home}.{form.tensor(form.down, leaf)}")
        straight = _is_straight(ref, down, config_value(source.config, "hidden_size"))
        stack = by_name.get(f"{home}.{form.gate_up}")
        if straight is False or (straight is None and told) or (stack is not None and stack.is_transposed):
            message = f"cannot be unstacked: {list(ref.spec.shape)} holds the input first, so gate and up are columns"
            raise refusal("E_LAYOUT_SHAPE", message, tensor=ref.spec.name, status=3)


def _is_straight(ref: TensorRef, down: TensorRef | None, hidden: object) -> bool | None:
    """Whether a gate-and-up stack is [experts, 2 * intermediate, hidden]; None if its shape does not tell."""
    packed = 2 if ref.spec.dtype == "U8" else 1
    _, rows, columns = ref.spec.shape
    if down is not None and len(down.spec.shape) == 3:
        _, out, inner = down.spec.shape
        if (out, inner * packed * 2) == (columns * packed, rows):
            return True
        if (out * packed * 2, inner) == (columns, rows * packed):
            return False
    if columns * packed == hidden:
        return True if rows != hidden else None
    return False if rows * packed == hidden else None


def _unstacked(home: str, leaf: str, ref: TensorRef, linears: tuple[str, ...], option: str) -> Iterator[Rearrange]:
    shape, parts = ref.spec.shape, len(linears)
    count = shape[0] if shape else 0
    scalars = leaf in SCALARS
    if not count or (scalars and shape[1:] not in ((), (1,), (parts,))) or (not scalars and len(shape) < 2):
        raise refusal("E_LAYOUT_SHAPE", f"cannot be unstacked: shape {list(shape)}", tensor=ref.spec.name, status=3)
    rows = 1 if scalars else shape[1]
    if rows % parts and not scalars:
        raise refusal("E_LAYOUT_SHAPE", f"{rows} rows are not two halves", tensor=ref.spec.name, status=3)
    for expert in range(count):
        for number, linear in enumerate(linears):
            module = f"{home}.{expert}.{linear}"
            if scalars:
                spec = TensorSpec(f"{module}.{leaf}", ref.spec.dtype, scalar_shape(leaf))
                yield Rearrange(spec, _scalar(ref, expert, number, parts), option, module)
                continue
            size = rows // parts
            spec = TensorSpec(f"{module}.{leaf}", ref.spec.dtype, (size, *shape[2:]))
            first = expert * rows + number * size
            if len(shape) == 2:  # one value per row: a row of the piece is a whole expert
                yield Rearrange(spec, _cells(ref, expert, number * size, size), option, module)
            else:
                yield Rearrange(spec, (Piece(ref, first, size),), option, module)


def _scalar(ref: TensorRef, expert: int, half: int, parts: int) -> tuple[Piece, ...]:
    """One value of a stack of scalars; a shape [experts, 2] is read as rows of single values."""
    if ref.spec.shape[1:] == (parts,) and parts > 1:
        return _cells(ref, expert, half, 1)
    return (Piece(ref, expert, 1),)


def _cells(ref: TensorRef, row: int, first: int, count: int) -> tuple[Piece, ...]:
    """Values of one row of a matrix, as a piece of the same bytes seen as one column."""
    column = TensorRef(TensorSpec(ref.spec.name, ref.spec.dtype, (ref.spec.elements,)), ref.file, ref.start)
    return (Piece(column, row * row_elements(ref.spec.shape) + first, count),)
