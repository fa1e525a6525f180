"""Named renamings for damage that is met again and again. ``fix-keys --list`` prints this table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from convertkit.errors import refusal
from convertkit.layouts.models import VISION_SEGMENTS
from convertkit.layouts.renames import RenameRule, parse_rule


@dataclass(frozen=True, slots=True)
class Preset:
    """Rules under a name, and the sentence that ``--list`` prints. ``cures`` are the finding codes it is for."""

    name: str
    summary: str
    rules: tuple[RenameRule, ...]
    cures: tuple[str, ...] = ()


def _preset(name: str, summary: str, *rules: str, cures: tuple[str, ...] = ()) -> Preset:
    return Preset(name, summary, tuple(parse_rule(rule) for rule in rules), cures)


_EXPERT_LINEARS = ("gate_proj", "up_proj", "down_proj", "gate_up_proj", "w1", "w2", "w3")
_LANGUAGE = ("layers", "embed_tokens", "norm")

_ROWS = (
    _preset(
        "nested-vision",
        "vision or audio tower below the language model: model.language_model.visual to model.visual",
        *(f"model.language_model.{segment}.{{rest}}=model.{segment}.{{rest}}" for segment in VISION_SEGMENTS),
        cures=("W_VISION_NESTED",),
    ),
    _preset(
        "doubled-language-model",
        "a prefix written two or three times: language_model.language_model, model.model",
        *(
            f"{prefix}{'language_model.' * count}{{rest}}={prefix}language_model.{{rest}}"
            for prefix in ("model.", "")
            for count in (3, 2)
        ),
        "model.language_model.model.language_model.{rest}=model.language_model.{rest}",
        "model.model.model.{rest}=model.{rest}",
        "model.model.{rest}=model.{rest}",
        cures=("W_NAME_PREFIX",),
    ),
    _preset(
        "strip-language-model",
        "a language model saved as part of a multimodal one, for a text-only class",
        "model.language_model.{rest}=model.{rest}",
        "language_model.model.{rest}=model.{rest}",
        "language_model.lm_head.{rest}=lm_head.{rest}",
    ),
    _preset(
        "add-language-model",
        "a language model's names for a multimodal class: model.layers to model.language_model.layers",
        *(f"model.{part}.{{rest}}=model.language_model.{part}.{{rest}}" for part in _LANGUAGE),
    ),
    _preset(
        "language-model-first",
        "names of older multimodal classes: language_model.model to model.language_model, visual to model.visual",
        "language_model.model.{rest}=model.language_model.{rest}",
        "language_model.lm_head.{rest}=lm_head.{rest}",
        *(f"{segment}.{{rest}}=model.{segment}.{{rest}}" for segment in VISION_SEGMENTS),
    ),
    _preset(
        "experts-transposed",
        "experts.gate_proj.{e} to experts.{e}.gate_proj, for all linears of experts",
        *(f"{{rest}}.experts.{leaf}.{{e}}.{{x}}={{rest}}.experts.{{e}}.{leaf}.{{x}}" for leaf in _EXPERT_LINEARS),
    ),
    _preset(
        "midlayer",
        "EAGLE-3 drafters with one layer called midlayer: midlayer to layers.0",
        "midlayer.{rest}=layers.0.{rest}",
        "model.midlayer.{rest}=model.layers.0.{rest}",
    ),
    _preset(
        "strip-model",
        "drafters whose names begin with 'model.', which engines add themselves",
        "model.{rest}={rest}",
        cures=("W_NAME_PREFIX",),
    ),
    _preset(
        "codebook",
        "DFlash 2 codebooks with '.weight' in their name, which engines do not read",
        *(
            f"candidate_selector.{side}_codebook.weight=candidate_selector.{side}_codebook"
            for side in ("predecessor", "successor")
        ),
        cures=("W_CODEBOOK_NAME",),
    ),
    _preset(
        "wrapped-linear",
        "names, also those in a quantization config, that end in the wrapper's '.linear'",
        "{rest}.linear={rest}",
        "{rest}.linear.{x}={rest}.{x}",
    ),
)

PRESETS: Mapping[str, Preset] = {row.name: row for row in _ROWS}


def preset_rules(name: str) -> tuple[RenameRule, ...]:
    """The rules of a preset. Raises E_USAGE if there is none of that name."""
    row = PRESETS.get(name)
    if row is None:
        raise refusal("E_USAGE", f"no preset is called '{name}'", fix=f"one of: {', '.join(PRESETS)}")
    return row.rules
