"""Values in a target's config that some model might have, and keys that are absent: ropes of every type, defaults,
heads, towers, which layers have experts.

What the engines' own loaders do with each is in ``golden/*-target-values.json``.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.engines.drafters import Draft, write
from tests.engines.hybrid_cases import MOE
from tests.engines.target_cases import model
from tests.engines.target_kind_cases import KINDS

ABSENT = "absent"
PLAIN = ("qwen3", "llama", "qwen3-moe")
ORIGINAL = "original_max_position_embeddings"
YARN = {"rope_type": "yarn", "factor": 4.0, ORIGINAL: 4096}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, ORIGINAL: 8192, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LONG = {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [1.0] * 8, ORIGINAL: 4096, "factor": 2.0}
AXES = {"mrope_section": [2, 1, 1], "mrope_interleaved": True, "partial_rotary_factor": 0.25}
BASE = {"rope_theta": 1000000.0}
DEFAULT = {"rope_type": "default"}


@dataclass(frozen=True)
class ValueCase:
    """A whole model with other values at some places of its config."""

    kind: str
    changes: Mapping[str, Any]

    @property
    def name(self) -> str:
        return f"{self.kind}, " + ", ".join(f"{path} = {value}" for path, value in self.changes.items())

    def build(self) -> Draft:
        made = model(self.kind)
        made.config = copy.deepcopy(made.config)
        for path, value in self.changes.items():
            *places, key = path.split(".")
            section: Any = made.config
            for place in places:
                section = section[place]
            section.pop(key, None)
            if value is not ABSENT:
                section[key] = copy.deepcopy(value)
        return made


ANY: Mapping[str, tuple[Any, ...]] = {"architectures": (None, ABSENT, ["Foo"], ["Foo bar"])}
FLAT: Mapping[str, tuple[Any, ...]] = {
    "head_dim": (ABSENT,),
    "num_key_value_heads": (-2, ABSENT),
    "vocab_size": (ABSENT,),
    "partial_rotary_factor": (0.5, "x"),
    "rope_parameters": (
        {}, ABSENT, DEFAULT,
        *({**BASE, **more} for more in (
            YARN, LLAMA3, LONG, {"rope_type": "linear", "factor": 2.0}, {"rope_type": "linear", "factor": 2},
            {"rope_type": "dynamic", "factor": "x"}, {"rope_type": "dynamic", "factor": 2.0},
            {"rope_type": "proportional"}, {"mrope_section": [1, 1]}, {"rope_type": "yarn"},
            {**YARN, "rope_type": "deepseek_yarn"}, {**DEFAULT, "partial_rotary_factor": 0.5},
            {**DEFAULT, "partial_rotary_factor": "x"}, {**YARN, "partial_rotary_factor": "x"},
            {**DEFAULT, "factor": "x"},
        )),
    ),
}  # fmt: skip
OF_KIND: Mapping[str, Mapping[str, tuple[Any, ...]]] = {
    "qwen3": {},
    "llama": {"head_dim": (None,), "hidden_size": (-4,)},
    "qwen3-moe": {
        "head_dim": (None,), "decoder_sparse_step": (-2, 2), "mlp_only_layers": ([0], [0, 1]), "num_experts": (ABSENT,),
    },
    MOE: {
        "vision_config": (ABSENT, None), "text_config": (ABSENT, None),
        "text_config.shared_expert_intermediate_size": (0,), "text_config.full_attention_interval": (ABSENT, 2, -4, 1),
        "text_config.partial_rotary_factor": (ABSENT, 0.5, 2.0, None), "text_config.layer_types": (ABSENT,),
        "text_config.attn_output_gate": (False, 0, ABSENT, None, 2), "text_config.num_experts": (ABSENT,),
        "text_config.model_type": (ABSENT, "qwen3_5_text", None, "llama"), "text_config.head_dim": (ABSENT,),
        "text_config.vocab_size": (ABSENT,), "text_config.num_key_value_heads": (-2, ABSENT),
        "vision_config.deepstack_visual_indexes": (ABSENT, [1], None), "vision_config.depth": (-2, ABSENT),
        "vision_config.spatial_merge_size": (-2, 0), "vision_config.num_heads": (3, 7, ABSENT, 64),
        "vision_config.model_type": (ABSENT, "x", None),
        "text_config.rope_parameters": (
            ABSENT, {"rope_theta": 1e7}, DEFAULT, {**DEFAULT, "mrope_section": [2, 1, 1]},
            *({**BASE, **more} for more in (
                {**YARN, **AXES}, {"rope_type": "yarn", "factor": 4.0, **AXES}, {"type": "default", **AXES},
                {"rope_type": "linear", "factor": 2, **AXES}, {"rope_type": "linear", "factor": 2.0, **AXES},
                {**LLAMA3, **AXES}, LLAMA3, {"rope_type": "dynamic", "factor": "x", **AXES},
                {"rope_type": "llama3", **AXES}, DEFAULT, {**DEFAULT, **AXES, "mrope_section": [1, 1]},
                {**DEFAULT, **AXES, "mrope_section": [8, 1, 1]},
            )),
        ),
    },
}  # fmt: skip
"""One value at one place, by kind of model."""

LINEAR = {**BASE, "rope_type": "linear", "factor": 2.0}
COMPUTED: tuple[Mapping[str, Any], ...] = (
    {**LINEAR, "beta_fast": "x"}, {**LINEAR, ORIGINAL: 0}, {**LINEAR, "rope_theta": 1.0},
    {**LINEAR, "rope_theta": -5.0}, {**LINEAR, "rope_theta": 0}, {**BASE, **YARN, "beta_fast": "x"},
    {**BASE, **YARN, "mscale": "x", "mscale_all_dim": 1.0}, {**BASE, **YARN, "mscale": 1.0, "mscale_all_dim": 1.0},
    {**BASE, **YARN, "attention_factor": "x"}, {**BASE, **YARN, ORIGINAL: -1},
    {key: value for key, value in {**BASE, **LONG}.items() if key != ORIGINAL}, {**LINEAR, "beta_slow": 0},
    {**BASE, "rope_type": "proportional", "beta_slow": [1]}, {**BASE, **LLAMA3, "factor_": 1}, {**LINEAR, "factor": 1},
)  # fmt: skip
"""Ropes that a class computes with: SGLang's Qwen3-MoE with all but the default one."""
OF_ROPES: tuple[Mapping[str, Any], ...] = (
    *({"partial_rotary_factor": part, "rope_parameters": LINEAR} for part in (None, 0.5, "1", [1])),
    {"partial_rotary_factor": "1"},
    {"max_position_embeddings": ABSENT, "rope_parameters": LINEAR},
    {"max_position_embeddings": 0, "rope_parameters": LINEAR},
    {"max_position_embeddings": 0},
    {"max_position_embeddings": 0, "rope_parameters": {**BASE, **YARN}},
)

TOGETHER: tuple[ValueCase, ...] = (
    *(ValueCase(kind, {"rope_theta": "x", "rope_parameters": ABSENT}) for kind in PLAIN),
    ValueCase("qwen3-moe", {"hidden_act": "x", "mlp_only_layers": [0]}),
    ValueCase("qwen3-moe", {"intermediate_size": -1, "mlp_only_layers": [0]}),
    ValueCase("qwen3-moe", {"decoder_sparse_step": 0, "mlp_only_layers": [0, 1]}),
    ValueCase("qwen3-moe", {"decoder_sparse_step": 0, "num_experts": 0}),
    ValueCase(MOE, {"text_config.hidden_act": "x", "text_config.shared_expert_intermediate_size": 0}),
    ValueCase(MOE, {"text_config.layer_types": ABSENT, "text_config.full_attention_interval": ABSENT}),
    ValueCase(MOE, {"text_config.layer_types": ABSENT, "text_config.full_attention_interval": 2}),
    ValueCase(MOE, {"text_config.layer_types": ["full_attention"] * 4}),
)


def value_cases() -> Iterator[ValueCase]:
    """Every case."""
    for kind in KINDS:
        for table in (ANY, FLAT if kind in PLAIN else {}, OF_KIND[kind]):
            for path, values in table.items():
                yield from (ValueCase(kind, {path: value}) for value in values)
    yield from TOGETHER
    for kind in ("qwen3-moe", "qwen3"):
        yield from (ValueCase(kind, {"rope_parameters": rope}) for rope in COMPUTED)
    yield from (ValueCase("qwen3-moe", changes) for changes in OF_ROPES)


def write_target_values(out: Path, every: int) -> dict[str, ValueCase]:
    """Every ``every``-th case below ``out/target-values``, and every whole model as its kind; the cases by folder."""
    found = {f"{number:04d}": case for number, case in enumerate(value_cases()) if number % every == 0}
    for name, case in found.items():
        write(case.build(), out / "target-values" / name)
    for kind in KINDS:
        write(model(kind), out / "target-values" / kind)
    return found
