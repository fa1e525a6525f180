"""Stored tensors against what should be there: the plan of a conversion, or the table of a layout."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from convertkit.checkpoint import Checkpoint, TensorSpec
from convertkit.containers.folder import CONFIG
from convertkit.dialects.planes import PackedModule
from convertkit.dtypes import FLOATS
from convertkit.errors import MAX_LISTED, Finding, finding
from convertkit.layouts.expected import Expected, expected_tensors, fits
from convertkit.layouts.layout import Layout, config_value
from convertkit.layouts.rules import families, without_model

KINDS_OF_DTYPE: Mapping[str, tuple[str, ...]] = {"float": tuple(FLOATS), "ids": ("I64", "I32")}
"""What a rule's word for a dtype stands for; any other word is a dtype."""

LAYER_PREFIXES = ("model.layers.", "model.language_model.layers.", "language_model.model.layers.")
"""Where language models keep their layers (transformers 5, vLLM 0.33)."""


def plan_findings(checkpoint: Checkpoint, expected: Iterable[TensorSpec]) -> Iterator[Finding]:
    """What was written against what was announced, tensor by tensor."""
    announced = {spec.name: spec for spec in expected}
    stored = {name: ref.spec for name, ref in checkpoint.tensors.items()}
    missing = [name for name in announced if name not in stored]
    extra = [name for name in stored if name not in announced]
    yield from _by_family("E_LAYOUT_MISSING", missing, "was announced and is not there")
    yield from _by_family("E_LAYOUT_EXTRA", extra, "is there and was not announced")
    for name, spec in announced.items():
        found = stored.get(name, spec)
        if found != spec:
            message = f"is {found.dtype} {list(found.shape)}, announced was {spec.dtype} {list(spec.shape)}"
            yield finding("E_LAYOUT_SHAPE", "error", message, tensor=name)


def layout_findings(
    checkpoint: Checkpoint, layout: Layout, packed: Mapping[str, PackedModule], kv_scales: Iterable[str]
) -> Iterator[Finding]:
    """A drafter against the table of its layout: missing and unknown tensors, shapes and dtypes from the config."""
    table = expected_tensors(layout, checkpoint.config)
    if table is None:
        return
    stored = _dense_view(checkpoint, packed, frozenset(kv_scales))
    missing = [name for name, row in table.items() if row.required and name not in stored]
    extra = [name for name in stored if name not in table]
    yield from _by_family("E_LAYOUT_MISSING", missing, f"is needed by {layout.name} and not there")
    yield from _by_family("E_LAYOUT_EXTRA", extra, f"is not a tensor of {layout.name} with this config")
    for name, spec in stored.items():
        row = table.get(name)
        if row is not None:
            yield from _row_findings(spec, row)


def _dense_view(
    checkpoint: Checkpoint, packed: Mapping[str, PackedModule], kv_scales: frozenset[str]
) -> dict[str, TensorSpec]:
    """Tensors by their dense name without ``model.``: a packed linear is one weight of its logical shape."""
    taken = {ref.spec.name for module in packed.values() for ref in module.refs} | kv_scales
    view = {without_model(name): ref.spec for name, ref in checkpoint.tensors.items() if name not in taken}
    for name, module in packed.items():
        shape = (module.out_features, module.in_features)
        view[without_model(f"{name}.weight")] = TensorSpec(f"{name}.weight", "BF16", shape)
    return view


def _row_findings(spec: TensorSpec, row: Expected) -> Iterator[Finding]:
    if row.shape is not None and not fits(spec.shape, row.shape):
        wanted = [size if size is not None else "any" for size in row.shape]
        message = f"the shape is {list(spec.shape)}; the config implies {wanted}"
        yield finding("E_LAYOUT_SHAPE", "error", message, tensor=spec.name, data={"expected": wanted})
    dtypes = KINDS_OF_DTYPE.get(row.dtype, (row.dtype,))
    if spec.dtype not in dtypes:
        message = f"the dtype is {spec.dtype}, not {'/'.join(dtypes)}"
        yield finding("E_LAYOUT_DTYPE", "error", message, tensor=spec.name)


def _by_family(code: str, names: Iterable[str], what: str) -> Iterator[Finding]:
    for family in families(names).values():
        count = len(family.names)
        message = what if count == 1 else f"{count} x '{family.template}': each {what}"
        data = {"count": count, "template": family.template, "tensors": list(family.names[:MAX_LISTED])}
        yield finding(code, "error", message, tensor=family.names[0], data=data)


def layer_findings(checkpoint: Checkpoint, layout: Layout) -> Iterator[Finding]:
    """Layers of a language model that have no tensor at all: a shard was lost, or the config counts too many."""
    count = config_value(checkpoint.config, "num_hidden_layers")
    if layout.kind not in ("causal-lm", "multimodal-lm") or not isinstance(count, int):
        return
    found: set[str] = set()
    for prefix in LAYER_PREFIXES:
        cut = len(prefix)
        found.update(name[cut:].partition(".")[0] for name in checkpoint.tensors if name.startswith(prefix))
    missing = [layer for layer in range(count) if str(layer) not in found]
    if found and missing:
        message = f"{len(missing)} of {count} layers have no tensor, the first is layer {missing[0]}"
        data = {"layers": missing[:MAX_LISTED]}
        yield finding("E_LAYOUT_MISSING", "error", message, file=CONFIG, key="num_hidden_layers", data=data)
