"""What TensorRT-LLM 1.3.0rc does with a drafter: read from two files of its repository, not run.

``modeling_dflash.py`` at commit 009d8fa4 and ``modeling_dspark_qwen3.py`` at commit 40289c86. The repository moves, so
what is not certain is *unknown*.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from convertkit.engines.model import Load, Refused, Setting, Wrong
from convertkit.engines.rules import Rule
from convertkit.engines.rules import Source as Place
from convertkit.engines.source import Source
from convertkit.engines.vllm_params import Target


def _rule(name: str, text: str, file: str, commit: str) -> Rule:
    return Rule(f"tensorrt-llm.{name}", text, Place("TensorRT-LLM", commit, file, 0))


_DFLASH, _DSPARK = ("modeling_dflash.py", "009d8fa4"), ("modeling_dspark_qwen3.py", "40289c86")
RULES: Mapping[str, Rule] = {
    rule.name: rule
    for rule in (
        _rule("flat", "no config of speculators is read", *_DFLASH),
        _rule("partial", "missing names are allowed, so they stay uninitialised without a word", *_DFLASH),
        _rule("block", "block_size is read at the top level only", *_DFLASH),
        _rule("window", "sliding layers are always causal", *_DFLASH),
        _rule("dflash2", "there is no DFlash 2: convolutions and selector are not built", *_DFLASH),
        _rule("strict", "DSpark loads strictly: an extra tensor such as d2t is refused", *_DSPARK),
        _rule("bias", "DSpark has no attention bias", *_DSPARK),
    )
}


def load_drafter(source: Source, target: Target, ranks: int = 1, dtype: str = "BF16") -> Load:
    """What the two files settle; the rest is unknown."""
    config = source.config
    label = " ".join(map(str, config.get("architectures") or ()))
    if config.get("speculators_config") is not None:
        message = "the speculators config is not read: convert the drafter to its flat layout"
        return Load((Refused("config", message, "tensorrt-llm.flat", key="speculators_config", foreign=True),))
    unknown = "TensorRT-LLM's loader was read in part and not run"
    refusals = tuple(_dspark_refusals(source)) if "DSpark" in label else ()
    wrongs = tuple(_dflash_wrongs(config)) if "DFlash" in label else ()
    return Load(refusals, wrongs, settings=tuple(_settings(config, label)), unknown=unknown)


def _dspark_refusals(source: Source) -> Iterator[Refused]:
    for spec in source.tensors:
        if spec.name in ("d2t", "t2d"):
            yield Refused("load", f"Unexpected key in state_dict: '{spec.name}'", "tensorrt-llm.strict", spec.name)


def _dflash_wrongs(config: Mapping[str, Any]) -> Iterator[Wrong]:
    inner = config.get("dflash_config")
    inner = inner if isinstance(inner, Mapping) else {}
    if "selector_rank" in inner:
        message = "DFlash 2 is served as DFlash: its convolutions and selector are not built"
        yield Wrong("E_LOAD_DROPPED", message, "tensorrt-llm.dflash2", key="dflash_config.selector_rank")
    if "block_size" not in config:
        message = "'block_size' is read at the top level only and is not there"
        yield Wrong("E_READER_DIFFERS", message, "tensorrt-llm.block", key="block_size")
    types = config.get("layer_types")
    if isinstance(types, list) and "sliding_attention" in types and config.get("is_causal") is False:
        message = "sliding layers are taken for causal ones, the config says is_causal: false"
        yield Wrong("E_READER_DIFFERS", message, "tensorrt-llm.window", key="is_causal")


def _settings(config: Mapping[str, Any], label: str) -> Iterator[Setting]:
    block = config.get("block_size")
    if "DFlash" in label:
        yield Setting("decoding_type", "DFlash", f"the architecture is {label}")
    if "DFlash" in label and isinstance(block, int):
        yield Setting("max_draft_len", block - 1, f"block {block} is one anchor and {block - 1} drafts", "limit")
