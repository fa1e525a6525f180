"""From an engine in a version to its model of loading: the one place that knows all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from convertkit.engines import (
    llamacpp_load,
    sglang_load,
    tensorrt_llm_load,
    transformers_drafter,
    transformers_load,
    vllm_load,
)
from convertkit.engines.config_kinds import wrong_kinds
from convertkit.engines.files import RULES as FILE_RULES
from convertkit.engines.files import stopped_at_files
from convertkit.engines.model import Load
from convertkit.engines.rules import Asked, Rule, holds
from convertkit.engines.source import Source
from convertkit.engines.vllm_params import Target
from convertkit.engines.vllm_rules import RULES as VLLM_RULES

Loader = Callable[[Source, Target, int, str], Load]

DRAFTERS: Mapping[str, Loader] = {
    "vllm": vllm_load.load_drafter,
    "sglang": sglang_load.load_drafter,
    "llama.cpp": llamacpp_load.load_drafter,
    "tensorrt-llm": tensorrt_llm_load.load_drafter,
    "transformers": transformers_drafter.load_drafter,
}
"""How each engine loads a drafter."""

SETTLES_KINDS = ("vllm", "sglang", "transformers")
"""Engines whose tables say what values of the wrong kind in a config lead to."""

SETTLES_KINDS_OF_FILE = ("vllm",)
"""Those whose tables say it of ``hf_quant_config.json`` too."""

RULES: Mapping[str, Rule] = {
    **VLLM_RULES,
    **sglang_load.RULES,
    **llamacpp_load.RULES,
    **tensorrt_llm_load.RULES,
    **transformers_load.RULES,
    **FILE_RULES,
}
"""Every rule of every engine by name."""


def drafter_in(asked: Asked, source: Source, target: Target, ranks: int, dtype: str) -> Load:
    """A drafter in an engine; ``unknown`` for a version that the tables do not describe."""
    if not asked.proven:
        known = ", ".join(asked.engine.proven)
        return Load(unknown=f"convertkit's tables describe {asked.engine.title} {known}, not {asked.version}")
    stated = {} if asked.engine.name in SETTLES_KINDS else source.config
    beside = {} if asked.engine.name in SETTLES_KINDS_OF_FILE else source.quant_config
    bad = next(iter((*wrong_kinds(stated), *wrong_kinds(beside))), None)
    if bad is not None:
        unknown = Load(unknown=f"'{bad}' in the config has a value of the wrong kind or size")
        return stopped_at_files(unknown, source)
    return stopped_at_files(DRAFTERS[asked.engine.name](source, target, ranks, dtype), source)


def rules_of(asked: Asked) -> tuple[Rule, ...]:
    """The rules that hold in a version of an engine."""
    return tuple(rule for name, rule in RULES.items()
                 if name.startswith(f"{asked.engine.name}.") and holds(rule, asked.version))  # fmt: skip
