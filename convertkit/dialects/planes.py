"""Packed linears of a checkpoint, found from headers alone and checked plane by plane.

Nothing is read but names, dtypes and shapes, and every fault is gathered. Faults of values
(``global_scale_findings``, ``block_scale_findings``) are for callers that read the scales anyway.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from convertkit.checkpoint import Checkpoint, TensorRef
from convertkit.dialects.spelling import GROUP, SPELLINGS, Spelling
from convertkit.dialects.stacks import stack_findings, stacks_of
from convertkit.dtypes import FLOATS
from convertkit.errors import Finding, finding

KV_SCALES = frozenset({"k_scale", "v_scale", "kv_scale", "q_scale", "prob_scale"})
"""Leaves of KV-cache scales, on the attention module or on ``k_proj``/``v_proj`` (both tools, vLLM 0.33); early
compressed-tensors wrote ``output_scale`` on the latter."""

FOREIGN: Mapping[str, str] = {
    "qweight": "GPTQ or AWQ",
    "qzeros": "GPTQ or AWQ",
    "weight_blocks": "MXFP4",
    "weight_scale_inv": "FP8 in blocks",
    "weight_zero_point": "integer compressed-tensors",
    "absmax": "bitsandbytes",
    "quant_map": "bitsandbytes",
    "scales_and_zp": "int4",
}
"""Leaves of quantizations that are not NVFP4, and what they belong to."""

_CT, _MO = SPELLINGS["compressed-tensors"], SPELLINGS["modelopt"]
_INTEREST = frozenset((*_CT.leaves, *_MO.leaves, _CT.input_scale, _MO.input_scale))


@dataclass(frozen=True, slots=True)
class PackedModule:
    """One packed linear: its planes where they lie, and the shape [out_features, in_features] it stands for."""

    module: str
    spelling: Spelling
    codes: TensorRef
    block_scale: TensorRef
    global_scale: TensorRef
    input_scale: TensorRef | None
    out_features: int
    in_features: int

    @property
    def planes(self) -> tuple[TensorRef, TensorRef, TensorRef]:
        """Codes, block scales and global scale: what the weight is decoded from."""
        return (self.codes, self.block_scale, self.global_scale)

    @property
    def refs(self) -> tuple[TensorRef, ...]:
        """All stored tensors of the linear."""
        return self.planes if self.input_scale is None else (*self.planes, self.input_scale)


@dataclass(frozen=True, slots=True)
class Planes:
    """What ``find_packed`` found. ``plane_names`` are the tensors that belong to a packed linear, good or bad;
    ``foreign`` maps modules of other quantizations to the name of the quantization."""

    packed: Mapping[str, PackedModule] = field(default_factory=dict)
    plane_names: frozenset[str] = frozenset()
    kv_scales: tuple[str, ...] = ()
    foreign: Mapping[str, str] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()


def find_packed(checkpoint: Checkpoint) -> Planes:
    """All packed linears in natural file order, with the findings of every fault seen in the headers.

    Codes: E_PACK_MISSING, E_PACK_AMBIGUOUS, E_PACK_DTYPE, E_PACK_SHAPE, E_PACK_STACKED, E_SCALE_DTYPE, E_SCALE_SHAPE,
    E_WIDTH, E_UNSUPPORTED_QUANT. A linear with a fault is not in ``packed``.
    """
    modules, kv_scales, foreign, together = _leaves_by_module(checkpoint)
    stacks, other = stacks_of(together)
    foreign.update(other)
    packed: dict[str, PackedModule] = {}
    names = {ref.spec.name for stack in stacks for ref in stack.leaves.values()}
    findings = list(stack_findings(stacks))
    for module, leaves in modules.items():
        spelling, faults = _spelling_here(module, leaves)
        findings += faults
        if spelling is None:
            if _is_fp8(leaves):
                foreign[module] = "FP8"
                names.update(ref.spec.name for ref in leaves.values())
            continue
        names.update(ref.spec.name for leaf, ref in leaves.items() if leaf in (*spelling.leaves, spelling.input_scale))
        if faults:
            continue
        faults = _plane_faults(module, spelling, leaves)
        findings += faults
        if not faults:
            packed[module] = _packed(module, spelling, leaves)
    findings += _foreign_findings(foreign)
    return Planes(packed, frozenset(names), tuple(kv_scales), foreign, tuple(findings))


def _leaves_by_module(
    checkpoint: Checkpoint,
) -> tuple[dict[str, dict[str, TensorRef]], list[str], dict[str, str], list[TensorRef]]:
    """Modules that have a plane or a byte weight, KV scales, modules of foreign quantizations, and tensors directly
    under ``experts``. One pass."""
    modules: dict[str, dict[str, TensorRef]] = {}
    kv_scales: list[str] = []
    foreign: dict[str, str] = {}
    plain: list[tuple[str, TensorRef]] = []
    together: list[TensorRef] = []
    for name, ref in checkpoint.tensors.items():
        module, _, leaf = name.rpartition(".")
        if leaf == "weight" and ref.spec.dtype in FLOATS:
            plain.append((module, ref))
        elif leaf in _INTEREST:
            modules.setdefault(module, {})[leaf] = ref
        elif leaf in KV_SCALES or (leaf == "output_scale" and module.endswith(("k_proj", "v_proj"))):
            kv_scales.append(name)
        elif leaf in FOREIGN:
            foreign[module] = FOREIGN[leaf]
        elif module.endswith("experts"):
            together.append(ref)
    for module, ref in plain:
        if module in modules:
            modules[module]["weight"] = ref
    return modules, kv_scales, foreign, together


def _spelling_here(module: str, leaves: Mapping[str, TensorRef]) -> tuple[Spelling | None, list[Finding]]:
    """Which spelling the leaves of a module belong to (None: not NVFP4), and what contradicts it."""
    if not module:
        return _nameless(leaves)
    is_ct = _CT.codes in leaves or _CT.global_scale in leaves
    weight = leaves.get(_MO.codes)
    is_mo = _MO.global_scale in leaves or (weight is not None and weight.spec.dtype == "U8" and not is_ct)
    if is_ct and is_mo:
        return _CT, [_ambiguous(leaves[_MO.global_scale], "has planes of ModelOpt and of compressed-tensors")]
    if is_ct and weight is not None:
        return _CT, [_ambiguous(weight, "is stored beside packed planes of the same linear")]
    if is_ct or is_mo:
        return (_CT if is_ct else _MO), []
    scale = leaves.get("weight_scale")
    if weight is not None and weight.spec.dtype in FLOATS and scale is not None:
        return _MO, [_ambiguous(scale, "scales a weight that is stored in " + weight.spec.dtype)]
    if weight is None and scale is not None:
        return _CT, [_missing(module, "weight or weight_packed", scale)]
    return None, []


def _nameless(leaves: Mapping[str, TensorRef]) -> tuple[Spelling | None, list[Finding]]:
    """Planes of a linear that has no name (``weight_packed`` alone): no reader could find what they expand to."""
    planes = sorted(leaf for leaf in leaves if leaf not in ("weight", _CT.input_scale, _MO.input_scale))
    if not planes:
        return None, []
    ref = leaves[planes[0]]
    message = "a plane of a packed linear that has no module name"
    fix = "name it MODULE." + planes[0]
    return _CT, [finding("E_PACK_MISSING", "error", message, file=ref.file, tensor=ref.spec.name, fix=fix)]


def _is_fp8(leaves: Mapping[str, TensorRef]) -> bool:
    return "weight" in leaves and leaves["weight"].spec.dtype in ("F8_E4M3", "F8_E5M2", "I8", "F8_E8M0", "F4")


def _ambiguous(ref: TensorRef, what: str) -> Finding:
    fix = "remove one of the two forms; convertkit cannot know which one is the model"
    return finding("E_PACK_AMBIGUOUS", "error", f"the tensor {what}", file=ref.file, tensor=ref.spec.name, fix=fix)


def _missing(module: str, leaf: str, beside: TensorRef) -> Finding:
    message = f"the packed linear has no {leaf}"
    fix = "the file is incomplete: copy it again, or drop the remaining planes"
    return finding("E_PACK_MISSING", "error", message, file=beside.file, tensor=f"{module}.{leaf}", fix=fix)


def _plane_faults(module: str, spelling: Spelling, leaves: Mapping[str, TensorRef]) -> list[Finding]:
    present = [leaves[leaf] for leaf in spelling.leaves if leaf in leaves]
    faults = [_missing(module, leaf, present[0]) for leaf in spelling.leaves if leaf not in leaves]
    if spelling.codes in leaves:
        faults += _codes_faults(leaves[spelling.codes])
    if spelling.block_scale in leaves:
        faults += _block_faults(leaves[spelling.block_scale], leaves.get(spelling.codes))
    for leaf in (spelling.global_scale, spelling.input_scale):
        if leaf in leaves:
            faults += _scalar_faults(leaves[leaf])
    return faults


def _fault(code: str, message: str, ref: TensorRef) -> Finding:
    return finding(code, "error", message, file=ref.file, tensor=ref.spec.name)


def _codes_faults(codes: TensorRef) -> list[Finding]:
    spec = codes.spec
    if spec.dtype != "U8":
        return [_fault("E_PACK_DTYPE", f"packed codes are {spec.dtype}, not U8", codes)]
    if len(spec.shape) != 2:
        message = f"packed codes have shape {list(spec.shape)}; a linear has [out, in/2]"
        return [_fault("E_PACK_SHAPE", message, codes)]
    if 0 in spec.shape:
        return [_fault("E_PACK_SHAPE", f"packed codes of shape {list(spec.shape)} hold nothing", codes)]
    if spec.shape[1] * 2 % GROUP:
        message = f"the input width {spec.shape[1] * 2} is not a multiple of {GROUP}"
        return [_fault("E_WIDTH", message, codes)]
    return []


def _block_faults(scale: TensorRef, codes: TensorRef | None) -> list[Finding]:
    flat = "; a flat array is a swizzled or unknown layout" if len(scale.spec.shape) == 1 else ""
    if scale.spec.dtype != "F8_E4M3":
        return [_fault("E_SCALE_DTYPE", f"block scales are {scale.spec.dtype}, not F8_E4M3{flat}", scale)]
    if codes is None or _codes_faults(codes):
        return []  # the shape they should have is unknown
    rows, half = codes.spec.shape
    expected = (rows, half * 2 // GROUP)
    if scale.spec.shape == expected:
        return []
    message = f"block scales have shape {list(scale.spec.shape)}; the codes need {list(expected)}{flat}"
    return [_fault("E_SCALE_SHAPE", message, scale)]


def _scalar_faults(scale: TensorRef) -> list[Finding]:
    if scale.spec.dtype != "F32":
        return [_fault("E_SCALE_DTYPE", f"the scale is {scale.spec.dtype}, not F32", scale)]
    if scale.spec.shape not in ((), (1,)):
        message = f"the scale has shape {list(scale.spec.shape)}; it must be one value ([] or [1])"
        return [_fault("E_SCALE_SHAPE", message, scale)]
    return []


def _packed(module: str, spelling: Spelling, leaves: Mapping[str, TensorRef]) -> PackedModule:
    codes = leaves[spelling.codes]
    rows, half = codes.spec.shape
    return PackedModule(
        module,
        spelling,
        codes,
        leaves[spelling.block_scale],
        leaves[spelling.global_scale],
        leaves.get(spelling.input_scale),
        rows,
        half * 2,
    )


def _foreign_findings(foreign: Mapping[str, str]) -> list[Finding]:
    """One finding per kind of quantization that cannot be read, with a count and the first module."""
    by_kind: dict[str, list[str]] = {}
    for module, kind in foreign.items():
        by_kind.setdefault(kind, []).append(module)
    return [
        finding(
            "E_UNSUPPORTED_QUANT",
            "error",
            f"{len(found)} {'module is' if len(found) == 1 else 'modules are'} quantized as {kind}, which convertkit "
            "cannot read",
            tensor=found[0],
            data={"count": len(found), "kind": kind},
        )
        for kind, found in sorted(by_kind.items())
    ]
