"""What TensorRT-LLM 1.3.0rc does with drafters and targets: read from its repository, not run.

Read: ``_torch/models/modeling_dflash.py`` at commit 009d8fa4, ``modeling_dspark_qwen3.py`` at 40289c86,
``dspark/heads.py`` at 06ec703b, ``modeling_utils.py`` (``_load_weights_impl_v2``) and ``modules/linear.py``. The
repository moves, so what these files do not settle is *unknown*: packed weights, EAGLE-3, experts, hybrid targets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from convertkit.checkpoint import TensorSpec
from convertkit.engines.model import Fate, Filled, Load, Parameter, Part, Refused, Setting, Shape, Wrong
from convertkit.engines.rules import Rule
from convertkit.engines.rules import Source as Place
from convertkit.engines.source import Source
from convertkit.engines.vllm_params import Target
from convertkit.layouts.expected import Expected, expected_tensors, fits
from convertkit.layouts.tables import LAYOUTS_BY_NAME


def _rule(name: str, text: str, file: str, commit: str, line: int = 0) -> Rule:
    return Rule(f"tensorrt-llm.{name}", text, Place("TensorRT-LLM", commit, f"_torch/models/{file}", line))


_DFLASH, _DSPARK = ("modeling_dflash.py", "009d8fa4"), ("modeling_dspark_qwen3.py", "40289c86")
RULES: Mapping[str, Rule] = {
    rule.name: rule
    for rule in (
        _rule("flat", "no config of speculators is read", *_DFLASH),
        _rule("partial", "load_weights allows missing names, which stay uninitialised without a word", *_DFLASH),
        _rule("fused", "a fused linear asserts that all of its parts are there", "../modules/linear.py", "main"),
        _rule("names", "modules ask for their names; stored tensors that none asks for are not read",
              "modeling_utils.py", "main"),
        _rule("copy", "a whole tensor is copied, so its shape must be that of the parameter", "../modules/linear.py",
              "main"),
        _rule("block", "block_size is read at the top level only", *_DFLASH),
        _rule("window", "sliding layers are always causal", *_DFLASH),
        _rule("dflash2", "there is no DFlash 2: convolutions and selector are not built", *_DFLASH),
        _rule("strict", "DSpark loads strictly: a missing or extra tensor, such as d2t, is refused", *_DSPARK),
        _rule("copies", "copies of the target's embedding and head are skipped", *_DSPARK),
        _rule("taps", "DSpark reads target_layer_ids at the top level", *_DSPARK),
        _rule("bias", "DSpark has no attention bias", *_DSPARK),
    )
}  # fmt: skip

COPIES = ("embed_tokens.", "lm_head.")
UNKNOWN = "TensorRT-LLM's loader was read in part and not run"


def load_drafter(source: Source, target: Target, ranks: int = 1, dtype: str = "BF16") -> Load:
    """What the files settle; the rest is unknown."""
    config = source.config
    label = " ".join(map(str, config.get("architectures") or ()))
    if config.get("speculators_config") is not None:
        message = "the speculators config is not read: convert the drafter to its flat layout"
        return Load((Refused("config", message, "tensorrt-llm.flat", key="speculators_config", foreign=True),))
    settings = tuple(_settings(config, label))
    packed = bool(config.get("quantization_config")) or any(spec.dtype == "U8" for spec in source.tensors)
    if "DSpark" in label and not packed:
        return _dspark(source, settings)
    if "DFlash" in label:
        return _dflash(source, ranks, packed, settings)
    return Load(settings=settings, unknown=UNKNOWN)


def _expected(layout: str, config: Mapping[str, Any]) -> dict[str, Expected]:
    found = expected_tensors(LAYOUTS_BY_NAME[layout], config) or {}
    return {name: row for name, row in found.items() if row.required}


def _fits(spec: TensorSpec, row: Expected) -> bool:
    return row.shape is None or fits(spec.shape, row.shape)


def _dspark(source: Source, settings: tuple[Setting, ...]) -> Load:
    """``load_state_dict(strict=True)`` over everything but copies of the target's tensors."""
    ids = source.config.get("target_layer_ids")
    confident = bool(source.config.get("enable_confidence_head", False))  # absent is off
    wanted = {name: row for name, row in _expected("dspark", source.config).items()
              if not name.startswith(COPIES) and (confident or not name.startswith("confidence_head."))}  # fmt: skip
    if not isinstance(ids, list) or not ids:
        message = "Qwen3 DSpark drafter config must provide target_layer_ids"
        return Load((Refused("create", message, "tensorrt-llm.taps", key="target_layer_ids"),), settings=settings)
    if not wanted:
        return Load(settings=settings, unknown=UNKNOWN)
    stored = {spec.name: spec for spec in source.tensors if not spec.name.startswith(COPIES)}
    refusals = [Refused("load", f"Missing key in state_dict: '{name}'", "tensorrt-llm.strict", name)
                for name in wanted if name not in stored]  # fmt: skip
    refusals += [Refused("load", f"Unexpected key in state_dict: '{name}'", "tensorrt-llm.strict", name)
                 for name in stored if name not in wanted]  # fmt: skip
    refusals += [Refused("load", f"size mismatch for {name}: {list(stored[name].shape)}", "tensorrt-llm.strict", name)
                 for name, row in wanted.items() if name in stored and not _fits(stored[name], row)]  # fmt: skip
    fates = {spec.name: Fate(None, skipped="the target's is used") for spec in source.tensors
             if spec.name.startswith(COPIES)}  # fmt: skip
    fates |= {name: Fate(name) for name in stored if name in wanted}
    return Load(tuple(refusals), (), (), fates, tuple(_filled(wanted, stored)), settings)


def _filled(wanted: Mapping[str, Expected], stored: Mapping[str, TensorSpec]) -> Iterator[Filled]:
    for name, row in wanted.items():
        shape: Shape = tuple(size or 0 for size in row.shape or ())
        parameter = Parameter(name, shape, "BF16", (Part("", shape),))
        there = name in stored
        yield Filled(parameter, "filled" if there else "unfilled", (name,) if there else (), () if there else (name,))


def _dflash(source: Source, ranks: int, packed: bool, settings: tuple[Setting, ...]) -> Load:
    """Names are looked up module by module, missing ones are allowed; embedding and head are the target's."""
    wrongs = list(_dflash_wrongs(source.config))
    wanted = {name: row for name, row in _expected("dflash", source.config).items() if not name.startswith(COPIES)}
    if packed or ranks > 1 or not wanted:
        return Load((), tuple(wrongs), settings=settings, unknown=UNKNOWN)
    stored = {spec.name.removeprefix("model."): spec for spec in source.tensors}
    refusals = [
        Refused("load", f"{list(stored[name].shape)} does not fit {name}", "tensorrt-llm.copy", stored[name].name)
        for name, row in wanted.items()
        if name in stored and name not in ("fc.weight", "hidden_norm.weight") and not _fits(stored[name], row)
    ]
    for name in wanted:
        if name not in stored:
            message = f"{name} is filled by no stored tensor and stays uninitialised"
            wrongs.append(Wrong("E_LOAD_UNFILLED", message, "tensorrt-llm.partial", name))
    fates = {
        spec.name: Fate(name) if name in wanted else Fate(None, skipped="no module asks for it")
        for name, spec in stored.items()
    }
    return Load(tuple(refusals), tuple(wrongs), (), fates, tuple(_filled(wanted, stored)), settings)


def _dflash_wrongs(config: Mapping[str, Any]) -> Iterator[Wrong]:
    inner = config.get("dflash_config")
    inner = inner if isinstance(inner, Mapping) else {}
    if "selector_rank" in inner:
        message = "DFlash 2 is served as DFlash: its convolutions and selector are not built"
        yield Wrong("E_LOAD_DROPPED", message, "tensorrt-llm.dflash2", key="dflash_config.selector_rank", foreign=True)
    if "block_size" not in config:
        message = "'block_size' is read at the top level only and is not there"
        yield Wrong("E_READER_DIFFERS", message, "tensorrt-llm.block", key="block_size", foreign=True)
    types = config.get("layer_types")
    if isinstance(types, list) and "sliding_attention" in types and config.get("is_causal") is False:
        message = "sliding layers are taken for causal ones, the config says is_causal: false"
        yield Wrong("E_READER_DIFFERS", message, "tensorrt-llm.window", key="is_causal", foreign=True)


def _settings(config: Mapping[str, Any], label: str) -> Iterator[Setting]:
    """``speculative_config``: DFlash by its own class, DSpark reads the block from the config."""
    block = config.get("block_size")
    if "DFlash" in label:
        yield Setting("decoding_type", "DFlash", f"the architecture is {label}")
    if "DFlash" in label and isinstance(block, int):
        yield Setting("max_draft_len", block - 1, f"block {block} is one anchor and {block - 1} drafts", "limit")
