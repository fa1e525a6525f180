"""What a checkpoint is: container, layout, dialect, kind, and what is odd about it. Headers and config only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from convertkit.checkpoint import Checkpoint, TensorSpec
from convertkit.containers.folder import CONFIG
from convertkit.containers.gguf import ARCHITECTURE
from convertkit.containers.gguf_values import Scalar
from convertkit.conversion.oddities import oddities
from convertkit.dialects.coverage import CURE, Coverage, activation_findings, coherence_findings, coverage_of
from convertkit.dialects.linears import dense_linears
from convertkit.dialects.planes import PackedModule, Planes, find_packed
from convertkit.dialects.reading import read_scheme
from convertkit.dialects.scheme import Scheme, mismatch_finding
from convertkit.errors import Finding, Severity, finding
from convertkit.layouts.drafters import DRAFTERS
from convertkit.layouts.gguf_layouts import gguf_layout
from convertkit.layouts.gguf_names import ARCHS
from convertkit.layouts.layout import Kind, Layout, marks_of
from convertkit.layouts.models import CAUSAL_LM, MULTIMODAL_LM, UNKNOWN, VISION_SEGMENTS, with_prediction_layers
from convertkit.layouts.rules import families, module_of, template_of, without_model

Confidence = Literal["certain", "likely", "unknown"]


@dataclass(frozen=True)
class Identity:
    """Where a checkpoint lies on the axes container, layout and dialect.

    ``dialect`` is ``dense``, ``modelopt``, ``modelopt-mixed`` or ``compressed-tensors``: what the tensors show.
    ``linears`` are the dense linears that could be packed. ``findings`` hold errors too; verbs that convert
    refuse them.
    """

    container: str
    layout: Layout
    confidence: Confidence
    reasons: tuple[str, ...]
    dialect: str
    scheme: Scheme | None
    planes: Planes
    linears: Mapping[str, TensorSpec] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    coverage: Coverage | None = None
    """The quantization config as a question about modules; it remembers its answers."""

    @property
    def kind(self) -> Kind:
        return self.layout.kind

    @property
    def packed(self) -> Mapping[str, PackedModule]:
        return self.planes.packed

    @property
    def errors(self) -> tuple[Finding, ...]:
        return tuple(item for item in self.findings if item.severity == "error")


def identify(checkpoint: Checkpoint, mismatch: Severity = "warning") -> Identity:
    """Identify an opened checkpoint. Nothing is raised: faults are findings of severity error.

    ``mismatch`` is the severity of contradictions between config and tensors. Conversions believe the tensors, hence a
    warning; an audit says error.
    """
    planes = find_packed(checkpoint)
    modules = dict.fromkeys(module_of(name) for name in checkpoint.tensors)
    if checkpoint.container == "gguf":
        layout, confidence, reasons = _identify_gguf(checkpoint.metadata)
    else:
        layout, confidence, reasons = identify_layout(modules, checkpoint.tensors, checkpoint.config)
        layout = with_prediction_layers(layout, checkpoint.config)
    specs = [ref.spec for name, ref in checkpoint.tensors.items() if name not in planes.plane_names]
    linears = dense_linears(specs, layout)
    scheme, faults = read_scheme(checkpoint.config, checkpoint.quant_config, mismatch)
    findings = [*checkpoint.findings, *planes.findings, *faults]
    coverage = None if scheme is None else coverage_of(scheme)
    if scheme is not None and coverage is not None and not any(item.code == "E_QCONFIG" for item in faults):
        findings += coherence_findings(
            scheme, planes.packed, linears, modules, layout, mismatch, coverage, planes.foreign
        )
        inputs = {module: packed.input_scale is not None for module, packed in planes.packed.items()}
        findings += activation_findings(coverage, inputs, layout, mismatch)
    findings += _dialect_findings(checkpoint, planes, scheme, mismatch)
    findings += [_escalated(item) if mismatch == "error" else item for item in oddities(checkpoint, layout, modules)]
    return Identity(
        checkpoint.container,
        layout,
        confidence,
        reasons,
        _dialect_of(planes, scheme),
        scheme,
        planes,
        linears,
        tuple(findings),
        coverage,
    )


ESCALATED: Mapping[str, str] = {
    "W_ADVERTISED_ABSENT": "E_ADVERTISED_ABSENT",
    "W_HEAD_MISSING": "E_HEAD_MISSING",
}
"""Oddities that leave parts of a model uninitialised in engines. A conversion carries them over and warns; an audit
says no."""


def _escalated(item: Finding) -> Finding:
    code = ESCALATED.get(item.code)
    return item if code is None else replace(item, code=code, severity="error")


def _identify_gguf(metadata: Mapping[str, Any]) -> tuple[Layout, Confidence, tuple[str, ...]]:
    """The layout of a GGUF: it states its architecture."""
    value = metadata.get(ARCHITECTURE)
    name = str(value.value) if isinstance(value, Scalar) else ""
    return gguf_layout(name), ("certain" if name in ARCHS else "likely"), (f"the file says {ARCHITECTURE} = {name}",)


def identify_layout(
    modules: Iterable[str], names: Iterable[str], config: Mapping[str, Any]
) -> tuple[Layout, Confidence, tuple[str, ...]]:
    """The layout that module and tensor names show, how sure that is, and why. The config decides between
    layouts that share their names and adds certainty; it never overrules the names."""
    templates = {template_of(without_model(module))[0] for module in families(modules)}
    templates |= {template_of(without_model(name))[0] for name in names if "." not in name}
    speculators = "speculators_model_type" in config or "speculators_config" in config
    fitting = [layout for layout in DRAFTERS if marks_of(layout) <= templates]
    if fitting:
        return _drafter(fitting, speculators, config)
    return _model(templates, config)


def _drafter(
    fitting: list[Layout], speculators: bool, config: Mapping[str, Any]
) -> tuple[Layout, Confidence, tuple[str, ...]]:
    layout = next((layout for layout in fitting if layout.speculators == speculators), fitting[0])
    reasons = [f"tensors named {', '.join(layout.marks)}"]
    label = _label_of(config)
    agrees = label is not None and any(word in label for word in layout.labels)
    if agrees:
        reasons.append(f"the config says {label}")
    elif label is None:
        reasons.append("no config names an architecture")
    return layout, ("certain" if agrees and layout.speculators == speculators else "likely"), tuple(reasons)


def _label_of(config: Mapping[str, Any]) -> str | None:
    """What the config calls the model: ``speculators_model_type``, else the first architecture."""
    label = config.get("speculators_model_type")
    if isinstance(label, str):
        return label
    architectures = config.get("architectures")
    return architectures[0] if isinstance(architectures, list) and architectures else None


def _model(templates: set[str], config: Mapping[str, Any]) -> tuple[Layout, Confidence, tuple[str, ...]]:
    attention = sorted(t for t in templates if t.endswith((".self_attn.q_proj", ".self_attn.qkv_proj")))
    mlps = sorted(t for t in templates if t.endswith((".mlp.down_proj", ".experts.{e}.down_proj", ".mlp.gate")))
    layers = [t for t in (*attention, *mlps) if ".layers.{i}." in f".{t}"]
    if not layers:
        return UNKNOWN, "unknown", ("no tensor is named as in a language model or drafter that convertkit knows",)
    reasons = [f"tensors named {layers[0]}"]
    vision = sorted(t for t in templates if any(segment in t.split(".") for segment in VISION_SEGMENTS))
    nested = any("language_model" in t.split(".") for t in templates)
    label = _label_of(config)
    named = label is not None and label.endswith(("ForCausalLM", "ForConditionalGeneration", "ForImageTextToText"))
    if named:
        reasons.append(f"the config says {label}")
    if vision:
        reasons.append(f"a tower named {vision[0].split('.{i}')[0]}")
    multimodal = bool(vision) or nested or isinstance(config.get("vision_config"), Mapping)
    return (MULTIMODAL_LM if multimodal else CAUSAL_LM), ("certain" if named else "likely"), tuple(reasons)


def _dialect_of(planes: Planes, scheme: Scheme | None) -> str:
    """The dialect that the tensors show; a config decides only between the two forms of ModelOpt."""
    found = {module.spelling.dialect for module in planes.packed.values()}
    if not found:
        return "dense"
    if found == {"modelopt"}:
        return "modelopt-mixed" if scheme is not None and scheme.dialect == "modelopt-mixed" else "modelopt"
    return "compressed-tensors" if found == {"compressed-tensors"} else "several"


def _dialect_findings(
    checkpoint: Checkpoint, planes: Planes, scheme: Scheme | None, mismatch: Severity
) -> list[Finding]:
    found = sorted({module.spelling.dialect for module in planes.packed.values()})
    findings: list[Finding] = []
    if len(found) > 1:
        message = "some packed linears are spelled as ModelOpt does, others as compressed-tensors does"
        findings.append(finding("E_PACK_AMBIGUOUS", "error", message))
    if found and scheme is None and not checkpoint.is_file:
        findings.append(
            mismatch_finding(mismatch, "there are packed linears, but no quantization config", CONFIG, fix=CURE)
        )
    elif found and scheme is not None and found[0] != scheme.dialect.removesuffix("-mixed"):
        message = f"the config speaks of {scheme.dialect}, the tensors are spelled as {found[0]} does"
        findings.append(mismatch_finding(mismatch, message, scheme.place, fix=CURE))
    if planes.kv_scales:
        count = len(planes.kv_scales)
        message = f"{count} scales of the KV cache are stored" if count > 1 else "a scale of the KV cache is stored"
        findings.append(finding("W_KV_SCALES", "note", message, tensor=planes.kv_scales[0]))
    inputs = [module.input_scale for module in planes.packed.values() if module.input_scale is not None]
    if inputs:
        message = f"{len(inputs)} of {len(planes.packed)} packed linears have an activation scale (W4A4)"
        findings.append(finding("W_INPUT_SCALES", "note", message, file=inputs[0].file, tensor=inputs[0].spec.name))
    return findings
