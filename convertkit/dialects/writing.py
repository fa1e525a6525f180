"""Write the quantization config of a checkpoint from the tensors that were written, never from the request."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from convertkit.checkpoint import TensorSpec
from convertkit.dialects.compressed_tensors import compressed_tensors_config
from convertkit.dialects.coverage import coherence_findings, runtime_name
from convertkit.dialects.linears import dense_linears, embeddings, fused_alias
from convertkit.dialects.modelopt import modelopt_config
from convertkit.dialects.patterns import Matcher
from convertkit.dialects.reading import read_scheme
from convertkit.dialects.spelling import spelling_of
from convertkit.errors import ConvertError, Finding, finding, refusal
from convertkit.layouts.fused import fused_groups
from convertkit.layouts.layout import Layout
from convertkit.layouts.rules import PLACEHOLDERS, families, without_model

DIALECTS = ("modelopt", "modelopt-mixed", "compressed-tensors")


@dataclass(frozen=True, slots=True)
class _Written:
    """What the output holds: packed modules with their algorithm, dense linears, embeddings."""

    packed: Mapping[str, str]
    dense: tuple[str, ...]
    embeddings: tuple[str, ...]


def default_dialect(layout: Layout) -> str:
    """``modelopt-mixed`` for drafters (engines shift its names with the layers), ``modelopt`` for models."""
    return "modelopt-mixed" if layout.kind == "drafter" else "modelopt"


def write_quantization(
    dialect: str,
    specs: Iterable[TensorSpec],
    layout: Layout,
    *,
    kv_cache: str | None = None,
    target_layers: int | None = None,
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """The ``quantization_config`` of ``config.json`` and the document ``hf_quant_config.json`` (None: no file).

    ``specs`` are all tensors of the output, packed ones in the spelling of ``dialect`` (a row of ``DIALECTS``).
    ``kv_cache`` is the format of the KV cache as ``Scheme.kv_cache`` states it. ``target_layers``, the number of
    layers of the target model, is needed for ModelOpt's names of EAGLE-3 drafters: E_NEEDS_TARGET without it.
    Raises E_FUSED_SPLIT where a fused matrix is packed in part, E_LOSS where the dialect cannot say which
    linears are packed. The result is read back and compared with the tensors before it is returned.
    """
    specs = tuple(specs)
    written = _written(specs, spelling_of(dialect).dialect, layout)
    if not written.packed:
        raise refusal("E_NOT_QUANTIZED", "no packed linear was written, so there is nothing to describe")
    partial = partial_groups(written.packed, written.dense, layout)
    if partial:
        raise ConvertError(partial)
    document: dict[str, Any] | None = None
    if dialect == "compressed-tensors":
        block = _write_compressed_tensors(written, layout, kv_cache)
    else:
        block, document = _write_modelopt(dialect, written, layout, kv_cache, target_layers)
    _prove(block, document, written, specs, layout)
    return block, document


def _written(specs: Sequence[TensorSpec], dialect: str, layout: Layout) -> _Written:
    spelling = spelling_of(dialect)
    names = {spec.name for spec in specs}
    packed = {
        module: "NVFP4" if f"{module}.{spelling.input_scale}" in names else "W4A16_NVFP4"
        for name in names
        if name.endswith(f".{spelling.global_scale}")
        for module in (name.removesuffix(f".{spelling.global_scale}"),)
    }
    ordered = {module: packed[module] for module in sorted(packed)}
    return _Written(ordered, tuple(dense_linears(specs, layout)), tuple(embeddings(specs, layout)))


def partial_groups(packed: Iterable[str], dense: Iterable[str], layout: Layout) -> tuple[Finding, ...]:
    """E_FUSED_SPLIT for every family of dense linears whose fused partners are packed: engines allocate a fused
    matrix either packed or dense, so the whole group goes one way."""
    chosen, others = set(packed), list(dense)
    mixed = {name.rpartition(".")[0] for name in chosen} & {name.rpartition(".")[0] for name in others}
    near = [name for name in (*chosen, *others) if name.rpartition(".")[0] in mixed]  # what is fused are siblings
    groups = fused_groups(near, layout).values()
    halves = [module for group in groups if not chosen.isdisjoint(group) for module in group if module not in chosen]
    return tuple(
        finding(
            "E_FUSED_SPLIT",
            "error",
            f"{len(family.names)} x '{family.template}': dense, while the parts that engines fuse with it are packed",
            tensor=f"{family.names[0]}.weight",
            fix="include or exclude the whole group, for example q_proj, k_proj and v_proj; if the source is "
            "packed so, expand it first",
        )
        for family in families(halves).values()
    )


STATE_BOTH = "ModelOpt's mixed form can state both: convert --to nvfp4-modelopt-mixed (where packing: --dialect)"


def _write_modelopt(
    dialect: str, written: _Written, layout: Layout, kv_cache: str | None, target_layers: int | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    mixed = dialect == "modelopt-mixed"
    algorithms = set(written.packed.values())
    if not mixed and len(algorithms) > 1:
        message = "some packed linears have activation scales and others have none"
        raise refusal("E_LOSS", message, fix=STATE_BOTH)
    if layout.names_layers_by_runtime and target_layers is None:
        message = f"ModelOpt names the layers of {layout.name} drafters after those of the target model"
        raise refusal("E_NEEDS_TARGET", message, fix="--target-model DIR, or --dialect compressed-tensors")
    shift = target_layers if layout.names_layers_by_runtime else None

    def named(module: str) -> str:
        return module if shift is None else runtime_name(module, shift)

    layers = {named(module): algorithm for module, algorithm in written.packed.items()}
    ignore = [named(module) for module in (*written.dense, *written.embeddings)]
    if _head_is_tied(written, layout):
        ignore.append("lm_head")
    if layout.kind == "drafter":  # engines do not know which linears of a drafter are fused into which
        ignore += [alias for module in ignore if (alias := fused_alias(module)) is not None]
    return modelopt_config(layers, sorted(set(ignore)), mixed, kv_cache)


def _write_compressed_tensors(written: _Written, layout: Layout, kv_cache: str | None) -> dict[str, Any]:
    algorithms = set(written.packed.values())
    if len(algorithms) > 1:
        message = "some packed linears have activation scales and others have none"
        raise refusal("E_LOSS", message, fix=STATE_BOTH)
    if layout.kind == "drafter":
        return compressed_tensors_config(_drafter_targets(written), (), algorithms == {"NVFP4"}, kv_cache)
    ignore = set(written.dense) | ({"lm_head"} if _head_is_tied(written, layout) else set())
    return compressed_tensors_config(["Linear"], sorted(ignore), algorithms == {"NVFP4"}, kv_cache)


def _head_is_tied(written: _Written, layout: Layout) -> bool:
    """Whether a language model stores no head: readers still build one and must be told to leave it alone."""
    return layout.kind in ("causal-lm", "multimodal-lm") and not any(
        module.endswith("lm_head") for module in (*written.dense, *written.packed)
    )


def _drafter_targets(written: _Written) -> list[str]:
    """Expressions that select the packed linears of a drafter under any layer numbers and fused names.

    vLLM 0.33 renumbers the layers of a drafter and asks for fused matrices, and it does not translate the names in a
    compressed-tensors config, so exact names never match there.
    """
    packed, dense = families(written.packed), families(written.dense)
    split = [template for template in packed if template in dense]
    if split:
        message = f"compressed-tensors cannot say that only some layers of '{split[0]}' are packed in a drafter"
        raise refusal("E_LOSS", message, fix="pack all layers alike, or use --dialect modelopt-mixed")
    targets = sorted({_target(template, packed, dense) for template in packed})
    matcher = Matcher([("regex", target.removeprefix("re:")) for target in targets])
    for module in written.dense:
        if any(matcher.hits(name) for name in (module, fused_alias(module) or module)):
            message = f"compressed-tensors cannot leave out '{module}' in a drafter that packs its neighbours"
            raise refusal("E_LOSS", message, fix="use --dialect modelopt-mixed")
    return targets


def _target(template: str, packed: Iterable[str], dense: Iterable[str]) -> str:
    """The expression for one family: its whole block if all of it is packed, else the module by its last names.
    ``midlayer`` is left out like a layer's number, because vLLM 0.33 calls it ``layers.0`` (``llama_eagle3.py``)."""
    parts = without_model(template).split(".")
    moving = (place + 1 for place, part in enumerate(parts) if part in PLACEHOLDERS or part == "midlayer")
    tail = parts[max(moving, default=0) :]
    parent = template.rpartition(".")[0]
    if len(tail) == 2 and not any(other.rpartition(".")[0] == parent for other in dense):
        return rf"re:.*\.{tail[0]}\..*"
    module = r"\.".join(tail)
    alias = fused_alias(template)
    if alias is not None:
        members = sorted(other.rpartition(".")[2] for other in packed if fused_alias(other) == alias)
        module = r"\.".join((*tail[:-1], f"({'|'.join((*members, alias.rpartition('.')[2]))})"))
    return rf"re:(.*\.)?{module}$"


def _prove(
    block: Mapping[str, Any],
    document: Mapping[str, Any] | None,
    written: _Written,
    specs: Sequence[TensorSpec],
    layout: Layout,
) -> None:
    """Read the config back and compare it with the tensors; a contradiction is refused here, not by an engine."""
    scheme, faults = read_scheme({"quantization_config": block}, document or {})
    if scheme is None or faults:
        raise ConvertError(faults or [finding("E_INTERNAL", "error", "the written quantization config is unreadable")])
    dense = dense_linears(specs, layout)
    problems = [
        item
        for item in coherence_findings(scheme, written.packed, dense, written.embeddings, layout)
        if item.severity == "error"
    ]
    if problems:
        raise ConvertError(
            finding("E_LOSS", "error", item.message, tensor=item.where.tensor, fix="use --dialect modelopt-mixed")
            for item in problems
        )
