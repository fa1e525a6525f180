"""A target in an engine: which engines can say something about it, and the one place that asks them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from convertkit.engines import (
    llamacpp_load,
    sglang_target_kinds,
    sglang_targets,
    tensorrt_llm_targets,
    transformers_load,
    transformers_target_kinds,
    vllm_targets,
)
from convertkit.engines.config_checks import check_fields
from convertkit.engines.config_kinds import wrong_kinds
from convertkit.engines.files import stopped_at_files
from convertkit.engines.hf_fields import parts
from convertkit.engines.model import Load, Refused, Stop, Unknown
from convertkit.engines.rules import Asked
from convertkit.engines.source import Source
from convertkit.engines.target_kinds import Parts
from convertkit.engines.vllm_target_kinds import odd_values, without_unread

TargetLoader = Callable[[Source, int], Load]

LOADERS: Mapping[str, TargetLoader] = {
    "vllm": vllm_targets.load_target,
    "sglang": sglang_targets.load_target,
    "llama.cpp": llamacpp_load.load_target,
    "tensorrt-llm": tensorrt_llm_targets.load_target,
    "transformers": transformers_load.load_target,
}
"""How each engine loads a target, given the number of ranks."""

SETTLED: Mapping[str, Callable[[Mapping[str, Any]], Parts | None]] = {
    "sglang": sglang_target_kinds.settle_target,
    "transformers": transformers_target_kinds.settle_target,
}
"""What each engine makes of values that no model has, before it loads one."""

BY_CLASS = ("vllm", "sglang", "transformers")
"""Engines that read a config with the class of transformers that its ``model_type`` names."""


def target_in(asked: Asked, source: Source, ranks: int) -> Load:
    """A target in an engine; ``unknown`` for a version that the tables do not describe."""
    if not asked.proven:
        known = ", ".join(asked.engine.proven)
        return Load(unknown=f"convertkit's tables describe {asked.engine.title} {known}, not {asked.version}")
    refusal = _class_refusal(asked.engine.name, source)
    if refusal is not None:
        return stopped_at_files(Load((refusal,)), source)
    if asked.engine.name == "vllm":
        odd, settled = odd_values(source.config), without_unread(source.config)
        if odd is not None:
            return stopped_at_files(odd, source)
        source = source if settled is source.config else source.with_config(settled)
    return stopped_at_files(_settled(asked.engine.name, source, ranks), source)


def _settled(engine: str, source: Source, ranks: int) -> Load:
    """A target whose values are those that some model has, or that the engine takes for such."""
    try:
        parts = SETTLED[engine](source.config) if engine in SETTLED else None
    except Unknown as why:
        return Load(unknown=why.refused.message)
    except Stop as stopped:
        return Load((stopped.refused,))
    source = source if parts is None else source.with_config(parts.config)
    bad = next(iter((*wrong_kinds(source.config), *wrong_kinds(source.quant_config))), None)
    if bad is not None:
        return Load(unknown=f"'{bad}' in the config has a value of the wrong kind or size")
    load = LOADERS[engine](source, ranks)
    if parts is None or load.refusals or load.unknown:
        return load
    return Load(unknown=parts.doubt) if parts.doubt else replace(load, wrongs=(*parts.wrongs, *load.wrongs))


def _class_refusal(engine: str, source: Source) -> Refused | None:
    """What transformers' classes refuse of a config, whatever else is in it."""
    if engine not in BY_CLASS:
        return None
    if source.config.get("model_type") is None:
        message = "Unrecognized model. Should have a `model_type` key in its config.json."
        return Refused("config", message, f"{engine}.model-type", key="model_type")
    try:
        for part, fields in parts(source.config):
            check_fields(part, fields, engine)
    except Stop as stopped:
        return stopped.refused
    return None
