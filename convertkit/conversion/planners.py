"""From an identified source and a request to a plan: one planner per kind of conversion."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from convertkit.checkpoint import Checkpoint, TensorRef, TensorSpec
from convertkit.containers.folder import CONFIG, QUANT_CONFIG
from convertkit.containers.strict_json import dump_config
from convertkit.conversion.identify import Identity
from convertkit.conversion.plan import DEFAULT_SHARD_BYTES, Draft, Drop, Plan, Unit, settle
from convertkit.conversion.scales import LEAST_NORMAL_SCALE, SCALES, Hints, hints_digest, hints_of
from convertkit.conversion.selection import Chosen, bundles_of, choose, untied_findings
from convertkit.conversion.units import Cast, Copy, Expand, Pack, Respell, Search
from convertkit.dialects.planes import Planes
from convertkit.dialects.scheme import SECTIONS, strip_quantization, with_quantization
from convertkit.dialects.spelling import Spelling, spelling_of
from convertkit.dialects.writing import default_dialect, write_quantization
from convertkit.dtypes import FLOATS, TORCH_NAMES
from convertkit.errors import Finding, raise_all, refusal
from convertkit.layouts.fused import user_groups
from convertkit.layouts.rules import module_of

DTYPE_KEYS = ("torch_dtype", "dtype")


@dataclass(frozen=True)
class Files:
    """How the output is cut into files, in bytes."""

    max_shard_bytes: int = DEFAULT_SHARD_BYTES
    header_slack_bytes: int = 0


@dataclass(frozen=True)
class PackRequest:
    """What ``pack-nvfp4`` was asked for; ``dialect`` None means the default of the layout. ``hints`` are global scales
    to try first when a grid is searched; with ``marlin_safe`` no block scale is below 2^-6."""

    dialect: str | None = None
    scales: str = "auto"
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    fuse: tuple[str, ...] = ()
    reversible_scale: bool = False
    target_layers: int | None = None
    allow_loss: bool = False
    marlin_safe: bool = False
    hints: Hints = field(default_factory=dict)


def plan_pack(source: Checkpoint, identity: Identity, request: PackRequest, files: Files = Files()) -> Plan:
    """Quantize dense linears to NVFP4. Raises ``ConvertError`` with all that stands in the way."""
    raise_all(_errors(identity))
    if identity.planes.packed:
        count = len(identity.planes.packed)
        raise refusal(
            "E_ALREADY_QUANTIZED",
            f"the source has {count} packed linears already",
            fix="expand it first (dequant), or change its spelling (convert --to nvfp4-ct, nvfp4-modelopt)",
        )
    dialect = request.dialect or default_dialect(identity.layout)
    chosen = choose(source, identity.layout, request.include, request.exclude, user_groups(request.fuse))
    units: list[Unit] = [*_packs(chosen, request, spelling_of(dialect))]
    used = {name for unit in units for name in unit.inputs}
    units.extend(_copies((ref for name, ref in source.tensors.items() if name not in used), chosen.bundles))
    parameters = {
        "dialect": dialect,
        "scales": request.scales,
        "arithmetic": SCALES[request.scales].arithmetic,
        "reversible_scale": request.reversible_scale,
        "allow_loss": request.allow_loss,
        "marlin_safe": request.marlin_safe,
        "global_scales_from": hints_digest(request.hints),
        "include": list(request.include),
        "exclude": list(request.exclude),
        "fuse": list(request.fuse),
        "target_layers": request.target_layers,
        "matches": dict(chosen.matches),
        "layout": identity.layout.name,
    }
    documents = _quantized_documents(source, dialect, units, identity, None, request.target_layers)
    told = [item for item in identity.findings if item.severity != "error"]
    told.extend(untied_findings(chosen.groups))
    return settle(
        source,
        Draft("pack-nvfp4", parameters, units, (), documents, told),
        files.max_shard_bytes,
        files.header_slack_bytes,
    )


def _packs(chosen: Chosen, request: PackRequest, spelling: Spelling) -> list[Pack]:
    """One unit per fused group. Raises E_REFERENCE where hints were given and none is for a linear to pack."""
    scales = SCALES[request.scales]
    search: Search = "part" if scales.search == "lossless" and request.allow_loss else scales.search
    packs = [
        Pack(
            group,
            tuple(chosen.weights[module] for module in group),
            spelling,
            scales.arithmetic,
            request.reversible_scale,
            chosen.bundles[group[0]],
            search,
            hints_of(group, request.hints, spelling.sense),
            LEAST_NORMAL_SCALE if request.marlin_safe else 1,
        )
        for group in chosen.groups
    ]
    if request.hints and not any(unit.hints for unit in packs):
        raise refusal("E_REFERENCE", "the checkpoint to take global scales from has none of the linears to pack")
    return packs


@dataclass(frozen=True)
class ExpandRequest:
    """What ``dequant`` was asked for. ``cast`` also rounds dense float weights to ``dtype`` (``convert --to bf16``)."""

    dtype: str = "BF16"
    arithmetic: str = "exact"
    kv_scales: str = "drop"
    cast: bool = False
    verb: str = "dequant"


def plan_expand(source: Checkpoint, identity: Identity, request: ExpandRequest, files: Files = Files()) -> Plan:
    """Expand packed linears to dense weights and leave no trace of quantization."""
    raise_all(_errors(identity))
    planes = identity.planes
    if not planes.packed and not request.cast:
        raise refusal("E_NOT_QUANTIZED", "the source has no NVFP4 linear to expand", fix="nothing needs to be done")
    bundles = bundles_of(source, identity.layout)
    units: list[Unit] = [
        Expand(packed, request.dtype, request.arithmetic, bundles[module]) for module, packed in planes.packed.items()
    ]
    drops = list(_scale_drops(planes, request.kv_scales))
    gone = {drop.name for drop in drops} | {name for unit in units for name in unit.inputs}
    rest = [ref for name, ref in source.tensors.items() if name not in gone]
    scales = set(planes.kv_scales)
    casts = [ref for ref in rest if request.cast and _is_castable(ref, request.dtype, scales)]
    cast_names = {ref.spec.name for ref in casts}
    units.extend(Cast(ref, request.dtype, bundles[module_of(ref.spec.name)]) for ref in casts)
    units.extend(_copies((ref for ref in rest if ref.spec.name not in cast_names), bundles))
    config = _with_dtype(strip_quantization(source.config), request.dtype)
    documents = {CONFIG: dump_config(config)} if source.config else {}
    parameters = {
        "dtype": request.dtype,
        "arithmetic": request.arithmetic,
        "kv_scales": request.kv_scales,
        "cast": request.cast,
        "layout": identity.layout.name,
    }
    return settle(
        source,
        Draft(request.verb, parameters, units, drops, documents),
        files.max_shard_bytes,
        files.header_slack_bytes,
    )


def _scale_drops(planes: Planes, kv_scales: str) -> Iterator[Drop]:
    """Scales that a dense output has no place for: of activations and, unless kept, of the KV cache."""
    for packed in planes.packed.values():
        if packed.input_scale is not None:
            name = packed.input_scale.spec.name
            yield Drop(name, "activation scale of a quantized linear; a dense one has none")
    if kv_scales == "drop":
        for name in planes.kv_scales:
            yield Drop(name, "scale of a quantized KV cache; kept with --kv-scales keep")


def plan_respell(
    source: Checkpoint, identity: Identity, dialect: str, target_layers: int | None = None, files: Files = Files()
) -> Plan:
    """Change the spelling of packed linears without decoding them."""
    raise_all(_errors(identity))
    planes = identity.planes
    if not planes.packed:
        raise refusal("E_NOT_QUANTIZED", "the source has no NVFP4 linear to re-spell", fix="pack it with pack-nvfp4")
    bundles = bundles_of(source, identity.layout)
    spelling = spelling_of(dialect)
    units: list[Unit] = [Respell(packed, spelling, bundles[module]) for module, packed in planes.packed.items()]
    used = {name for unit in units for name in unit.inputs}
    units.extend(_copies((ref for name, ref in source.tensors.items() if name not in used), bundles))
    kv_cache = None if identity.scheme is None else identity.scheme.kv_cache
    documents = _quantized_documents(source, dialect, units, identity, kv_cache, target_layers)
    parameters = {"dialect": dialect, "target_layers": target_layers, "layout": identity.layout.name}
    return settle(
        source, Draft("convert", parameters, units, (), documents), files.max_shard_bytes, files.header_slack_bytes
    )


def _errors(identity: Identity) -> list[Finding]:
    return [item for item in identity.findings if item.severity == "error"]


def _copies(refs: Iterable[TensorRef], bundles: Mapping[str, str]) -> list[Copy]:
    return [Copy(ref, ref.spec.name, bundles[module_of(ref.spec.name)]) for ref in refs]


def _is_castable(ref: TensorRef, dtype: str, kv_scales: set[str]) -> bool:
    return ref.spec.dtype in FLOATS and ref.spec.dtype != dtype and ref.spec.name not in kv_scales


def _quantized_documents(
    source: Checkpoint,
    dialect: str,
    units: Sequence[Unit],
    identity: Identity,
    kv_cache: str | None,
    target_layers: int | None,
) -> dict[str, bytes]:
    """``config.json`` and, for ModelOpt, ``hf_quant_config.json``, from the tensors that will be written."""
    specs: list[TensorSpec] = [spec for unit in units for spec in unit.outputs]
    block, quant_config = write_quantization(
        dialect, specs, identity.layout, kv_cache=kv_cache, target_layers=target_layers
    )
    documents = {CONFIG: dump_config(with_quantization(source.config, block))}
    if quant_config is not None:
        documents[QUANT_CONFIG] = dump_config(quant_config)
    return documents


def _with_dtype(config: Mapping[str, Any], dtype: str) -> dict[str, Any]:
    """The config with its stated dtype changed where it states one, nested configs included."""
    changed = dict(config)
    for key in DTYPE_KEYS:
        if isinstance(changed.get(key), str):
            changed[key] = TORCH_NAMES[dtype]
    for section in SECTIONS:
        if isinstance(changed.get(section), Mapping):
            changed[section] = _with_dtype(changed[section], dtype)
    return changed
