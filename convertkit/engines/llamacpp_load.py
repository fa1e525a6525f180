"""What llama.cpp does with a drafter's folder: it reads GGUF only, so this says what the conversion would meet."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from convertkit.containers.gguf_values import Scalar, Value
from convertkit.engines.model import Load, Note, Refused, Setting
from convertkit.engines.rules import Rule
from convertkit.engines.rules import Source as Place
from convertkit.engines.source import Source
from convertkit.engines.vllm_params import Target
from convertkit.engines.vllm_serving import block_size
from convertkit.layouts.gguf_fields import ARCH_OF_MODEL

VERSION = "0.6.0"

_ROWS = (
    Rule(
        "llama.cpp.gguf",
        "only GGUF files are read",
        Place("llama.cpp", VERSION, "src/llama-model-loader.cpp", 0, "run"),
    ),
    Rule(
        "llama.cpp.tensors",
        "a tensor that is missing, has another shape or is unknown ends the loading",
        Place("llama.cpp", VERSION, "src/llama-model-loader.cpp", 0, "run"),
    ),
    Rule(
        "llama.cpp.keys",
        "hyperparameters are read with one type each, the vocabulary is needed",
        Place("llama.cpp", VERSION, "src/llama-model.cpp", 0, "run"),
    ),
    Rule(
        "llama.cpp.silent",
        "a missing attn_v is not noticed: the layer uses its keys as values",
        Place("llama.cpp", VERSION, "src/llama-model.cpp", 0, "run"),
    ),
    Rule("llama.cpp.bias", "arch dflash has no biases", Place("llama.cpp", VERSION, "src/models/dflash.cpp", 0, "run")),
    Rule(
        "llama.cpp.drafts",
        "drafters by --spec-type",
        Place("llama.cpp", VERSION, "common/speculative.cpp", 2287, "run"),
    ),
)
RULES: Mapping[str, Rule] = {rule.name: rule for rule in _ROWS}

SPEC_TYPES = (("dspark", "draft-dspark"), ("dflash", "draft-dflash"), ("eagle3", "draft-eagle3"))


def load_drafter(source: Source, target: Target, ranks: int = 1, dtype: str = "BF16") -> Load:
    """A folder of safetensors is refused; the settings are those of its GGUF."""
    message = "llama.cpp reads GGUF files only; write one with: convertkit to-gguf SRC OUT.gguf --target-model DIR"
    refused = Refused("open", message, "llama.cpp.gguf", foreign=True)
    return Load((refused,), notes=tuple(_notes(source)), settings=tuple(spec_settings(source.config)))


def _notes(source: Source) -> Iterator[Note]:
    biased = [spec.name for spec in source.tensors if spec.name.endswith("_proj.bias")]
    if biased:
        yield Note(
            "arch dflash has no biases, so a GGUF of this drafter would not load", "llama.cpp.bias", biased[0], True
        )


def load_target(source: Source, ranks: int = 1) -> Load:
    """A target's folder of safetensors: refused, with what its conversion would meet."""
    kind = str(source.config.get("model_type"))
    known = kind in ARCH_OF_MODEL
    how = (
        "write one with: convertkit to-gguf SRC OUT.gguf" if known else f"to-gguf does not write models of type {kind}"
    )
    message = f"llama.cpp reads GGUF files only; {how}"
    return Load((Refused("open", message, "llama.cpp.gguf", foreign=True),))


def gguf_settings(metadata: Mapping[str, Value], names: Collection[str]) -> Iterator[Setting]:
    """``--spec-type`` and the largest ``--spec-draft-n-max`` of a drafter's GGUF."""
    stated = metadata.get("general.architecture")
    arch = stated.value if isinstance(stated, Scalar) else ""
    if arch == "eagle3":
        yield Setting("--spec-type", "draft-eagle3", "the architecture is eagle3")
    block = metadata.get("dflash.block_size")
    if arch == "dflash" and isinstance(block, Scalar) and isinstance(block.value, int):
        kind = "draft-dspark" if "markov_w1.weight" in names else "draft-dflash"
        yield Setting("--spec-type", kind, "the architecture is dflash")
        why = f"block {block.value} is one anchor and {block.value - 1} drafts; more is clamped"
        yield Setting("--spec-draft-n-max", block.value - 1, why, "limit")


def spec_settings(config: Mapping[str, Any]) -> Iterator[Setting]:
    """``--spec-type`` and the largest ``--spec-draft-n-max`` of a drafter."""
    label = str(config.get("speculators_model_type") or " ".join(map(str, config.get("architectures") or ()))).lower()
    kind = next((name for word, name in SPEC_TYPES if word in label), None)
    if kind is None:
        return
    yield Setting("--spec-type", kind, "the kind of drafter")
    block = block_size(config)
    if block and kind != "draft-eagle3":
        why = f"block {block} is one anchor and {block - 1} drafts; more is clamped"
        yield Setting("--spec-draft-n-max", block - 1, why, "limit")
