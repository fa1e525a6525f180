"""A target in an engine: which engines can say something about it, and the one place that asks them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from convertkit.engines import llamacpp_load, sglang_targets, tensorrt_llm_targets, transformers_load, vllm_targets
from convertkit.engines.config_kinds import wrong_kinds
from convertkit.engines.files import stopped_at_files
from convertkit.engines.model import Load, Refused
from convertkit.engines.rules import Asked
from convertkit.engines.source import Source

TargetLoader = Callable[[Source, int], Load]

LOADERS: Mapping[str, TargetLoader] = {
    "vllm": vllm_targets.load_target,
    "sglang": sglang_targets.load_target,
    "llama.cpp": llamacpp_load.load_target,
    "tensorrt-llm": tensorrt_llm_targets.load_target,
    "transformers": transformers_load.load_target,
}
"""How each engine loads a target, given the number of ranks."""

NEED_MODEL_TYPE = ("vllm", "sglang", "transformers")
"""Engines that let transformers choose the class of a config."""


def target_in(asked: Asked, source: Source, ranks: int) -> Load:
    """A target in an engine; ``unknown`` for a version that the tables do not describe."""
    if not asked.proven:
        known = ", ".join(asked.engine.proven)
        return Load(unknown=f"convertkit's tables describe {asked.engine.title} {known}, not {asked.version}")
    bad = next(iter((*wrong_kinds(source.config), *wrong_kinds(source.quant_config))), None)
    if bad is not None:
        unknown = Load(unknown=f"'{bad}' in the config has a value of the wrong kind or size")
        return stopped_at_files(unknown, source)
    if source.config.get("model_type") is None and asked.engine.name in NEED_MODEL_TYPE:
        message = "Unrecognized model. Should have a `model_type` key in its config.json."
        rule = f"{asked.engine.name}.model-type"
        return stopped_at_files(Load((Refused("config", message, rule, key="model_type"),)), source)
    return stopped_at_files(LOADERS[asked.engine.name](source, ranks), source)
