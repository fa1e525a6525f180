"""What is odd about a checkpoint that opens: config and names that readers are known to stumble over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any

from convertkit.checkpoint import Checkpoint
from convertkit.containers.folder import CONFIG
from convertkit.conversion.oddities_layout import layout_oddities
from convertkit.dtypes import FLOATS
from convertkit.errors import Finding, finding
from convertkit.layouts.layout import Layout, config_value
from convertkit.layouts.models import PREDICTION_KEYS, VISION_SEGMENTS

DTYPE_NAMES: Mapping[str, str] = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
"""Values of ``torch_dtype`` / ``dtype`` in configs."""

LABELS: tuple[tuple[str, str], ...] = (
    ("dflash2", "dflash2"),
    ("dflash", "dflash"),
    ("dspark", "dspark"),
    ("peagle", "peagle"),
    ("eagle3", "eagle3"),
    ("xpress", "xpress"),
    ("mtp", "mtp"),
)
"""Words in a config's label and the drafter family they mean; the first that occurs counts."""

CODEBOOKS = ("candidate_selector.predecessor_codebook", "candidate_selector.successor_codebook")


def oddities(checkpoint: Checkpoint, layout: Layout, modules: Iterable[str]) -> tuple[Finding, ...]:
    """All oddities, as warnings and notes."""
    modules = tuple(modules)
    config = checkpoint.config
    return (
        *_label(config, layout),
        *_sliding_window(config, layout),
        *_prefixes(checkpoint, layout),
        *_dtype(checkpoint),
        *_codebooks(checkpoint),
        *_absent(config, modules),
        *layout_oddities(checkpoint, layout),
    )


def _warning(code: str, message: str, **place: Any) -> Finding:
    return finding(code, "warning", message, **place)


def family_named(label: str) -> str | None:
    """The drafter family that a config's label means, or None."""
    plain = label.lower().replace("-", "").replace("_", "")
    return next((family for word, family in LABELS if word in plain), None)


def _label(config: Mapping[str, Any], layout: Layout) -> Iterator[Finding]:
    label = config.get("speculators_model_type") or next(iter(config.get("architectures") or ()), None)
    if not isinstance(label, str):
        return
    named = family_named(label)
    shown = layout.name.removeprefix("speculators-") if layout.kind == "drafter" else None
    if named == shown or (named is None and layout.kind != "drafter") or layout.kind == "unknown":
        return
    message = f"the config says {label}, the tensors are those of {layout.name}"
    fix = "engines choose their model by the config: correct 'architectures'"
    yield _warning("W_LAYOUT_LABEL", message, file=CONFIG, key="architectures", fix=fix)


def _sliding_window(config: Mapping[str, Any], layout: Layout) -> Iterator[Finding]:
    """transformers 5.15 drops the window of a flat Qwen3 config unless all three fields are there."""
    types = config_value(config, "layer_types")
    sliding = isinstance(types, list) and "sliding_attention" in types
    if layout.kind != "drafter" or not sliding:
        return
    missing = [] if config_value(config, "sliding_window") else ["sliding_window"]
    if not layout.speculators and config_value(config, "use_sliding_window") is not True:
        missing.append("use_sliding_window")
    for key in missing:
        message = f"layers are sliding_attention, but '{key}' is not set: readers ignore the window or refuse"
        yield _warning("W_SLIDING_WINDOW", message, file=CONFIG, key=key, fix=f"set '{key}'")


NESTED_VISION = tuple(f"model.language_model.{segment}." for segment in VISION_SEGMENTS)


def _prefixes(checkpoint: Checkpoint, layout: Layout) -> Iterator[Finding]:
    names = checkpoint.tensors
    nested = [name for name in names if name.startswith(NESTED_VISION)]
    if nested:
        message = f"{len(nested)} vision tensors lie below the language model, where vLLM and transformers do not look"
        fix = "fix-keys --preset nested-vision"
        yield _warning("W_VISION_NESTED", message, tensor=nested[0], fix=fix, data={"count": len(nested)})
    doubled = [name for name in names if _doubled(name)]
    if doubled:
        message = f"{len(doubled)} names repeat a prefix"
        fix = "fix-keys --preset doubled-language-model"
        yield _warning("W_NAME_PREFIX", message, tensor=doubled[0], fix=fix, data={"count": len(doubled)})
    if layout.kind == "drafter" and names:
        prefixed = [name for name in names if name.startswith("model.")]
        if prefixed and not doubled:
            message = f"{len(prefixed)} names begin with 'model.', which vLLM adds itself and then does not find"
            fix = "fix-keys --preset strip-model"
            yield _warning("W_NAME_PREFIX", message, tensor=prefixed[0], fix=fix, data={"count": len(prefixed)})


def _doubled(name: str) -> bool:
    head = name.split(".", 4)[:4]
    return len(set(head)) < len(head) and any(a == b and not a.isdecimal() for a, b in pairwise(head))


def _dtype(checkpoint: Checkpoint) -> Iterator[Finding]:
    stated = config_value(checkpoint.config, "dtype") or config_value(checkpoint.config, "torch_dtype")
    expected = DTYPE_NAMES.get(str(stated).removeprefix("torch."))
    sizes: Counter[str] = Counter()
    for ref in checkpoint.tensors.values():
        if ref.spec.dtype in FLOATS and len(ref.spec.shape) > 1:
            sizes[ref.spec.dtype] += ref.size_bytes
    if expected is None or not sizes or expected in sizes:
        return
    found = max(sorted(sizes), key=lambda dtype: sizes[dtype])
    message = f"the config states {stated}, the matrices are {found}"
    yield _warning("W_CONFIG_DTYPE", message, file=CONFIG, key="dtype")


def _codebooks(checkpoint: Checkpoint) -> Iterator[Finding]:
    for name in CODEBOOKS:
        ref = checkpoint.tensors.get(f"{name}.weight")
        if ref is not None:
            message = (
                "a DFlash 2 codebook has no '.weight' in its name; vLLM refuses it, SGLang leaves the selector zero"
            )
            fix = f"rename it to {name}: fix-keys --preset codebook"
            yield _warning("W_CODEBOOK_NAME", message, file=ref.file, tensor=ref.spec.name, fix=fix)


def _absent(config: Mapping[str, Any], modules: tuple[str, ...]) -> Iterator[Finding]:
    """Parts that the config advertises and no tensor belongs to: engines build them and leave them random."""
    segments = {segment for module in modules for segment in module.split(".")} if _advertises(config) else set()
    if isinstance(config.get("vision_config"), Mapping) and not segments.intersection(VISION_SEGMENTS):
        message = "the config describes a vision tower, but no tensor belongs to one"
        fix = "fetch the tower's weights, or take the config of the text-only model"
        yield _warning("W_ADVERTISED_ABSENT", message, file=CONFIG, key="vision_config", fix=fix)
    for key in PREDICTION_KEYS:
        count = config_value(config, key)
        layers = config_value(config, "num_hidden_layers")
        extra = isinstance(layers, int) and any(f".layers.{layers}." in f".{module}." for module in modules)
        if (
            isinstance(count, int)
            and count > 0
            and not extra
            and not segments.intersection(("mtp", "mtp_layers", "nextn"))
        ):
            message = f"the config states {count} layers of multi-token prediction, but no tensor belongs to one"
            fix = "fetch them; if they never were there, repair --set-config says so in the config"
            yield _warning("W_ADVERTISED_ABSENT", message, file=CONFIG, key=key, fix=fix)


def _advertises(config: Mapping[str, Any]) -> bool:
    predicts = any(config_value(config, key) for key in PREDICTION_KEYS)
    return predicts or isinstance(config.get("vision_config"), Mapping)
