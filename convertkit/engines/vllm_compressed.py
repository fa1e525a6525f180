"""Which linears a compressed-tensors config packs in vLLM 0.33: exact names, expressions, names of classes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import translate
from typing import Any

from convertkit.engines.model import Stop, Unknown, stop
from convertkit.engines.quantized import NVFP4, Ask, Grid, class_meant, ignored_names, matching, scheme_grid
from convertkit.engines.vllm_schemes import check_schemes, settled


def _of_attention(names: Sequence[str]) -> bool:
    """Whether a group is of the KV cache alone, which is passed over."""
    return len(names) == 1 and names[0].endswith("Attention")


Scheme = Grid | Stop
"""How the linears of a group are built, or what happens when one is met."""


def ct_lists(block: Mapping[str, Any]) -> tuple[dict[str, Scheme], list[str]]:
    """Targets with the scheme of their group, and the ignored names of a compressed-tensors config."""
    check_schemes(block, _of_attention)
    block = settled(block)
    targets: dict[str, Scheme] = {}
    for group in block.get("config_groups", {}).values():
        names = [str(name) for name in group["targets"]]
        if not _of_attention(names):
            scheme = _scheme(group, block.get("format"))
            targets.update((name, scheme) for name in names)
    return targets, ignored_names(block, "vllm.quant-ignore")


def _scheme(group: Mapping[str, Any], form: Any) -> Scheme:
    """The scheme of a group, which nothing comes of while no linear is one of it (``compressed_tensors.py:795``)."""
    try:
        grid = scheme_grid({**group, "input_activations": None})
    except Unknown as why:
        return _no_scheme(group, form) or why
    inputs = group.get("input_activations")
    if grid == "dense" or inputs is None:
        return grid
    if all(inputs.get(key) == value for key, value in NVFP4.items()) and inputs.get("symmetric", True) is True:
        return "ct-a4"
    message = "For NVFP4 weights, input quantization must also be NVFP4 format, None for NVFP4A16"
    return stop("create", message, "vllm.ct-arguments", key="input_activations")


def _no_scheme(group: Mapping[str, Any], form: Any) -> Stop | None:
    """Weights in groups, alone, that are neither NVFP4 nor of groups of 32: the last schemes that vLLM tries look at
    activations that are not there (``compressed_tensors.py:922``)."""
    weights = group["weights"]
    strategy = str(weights.get("strategy") or "group").lower()
    alone = not group.get("input_activations") and not group.get("output_activations")
    packed = (group.get("format") or form) == "nvfp4-pack-quantized"
    size = weights.get("group_size")
    if not (alone and packed and strategy in ("group", "tensor_group") and size not in (None, -1, 32)):
        return None
    message = "'NoneType' object has no attribute 'num_bits': no scheme of weights alone is like this one"
    return stop("create", message, "vllm.ct-arguments", key="weights")


def met(scheme: Scheme) -> Grid:
    """The grid of a linear that has a scheme. Raises the Stop that meeting it is."""
    if isinstance(scheme, Stop):
        raise scheme
    return scheme


def compressed_tensors(block: Mapping[str, Any]) -> Ask:
    """Exact names and ``re:`` expressions (from the start of the name) against vLLM's own names, then class names
    that contain a target (``compressed_tensors/utils.py:62``)."""
    targets, left_out = ct_lists(block)
    ignored, matched = (matching(entries, "vllm.quant-ignore") for entries in (left_out, list(targets)))

    def ask(module: str, kind: str) -> Grid:
        if ignored(module) is not None:
            return "dense"
        name = matched(module) or of_class(kind, targets, matched)
        return "dense" if name is None else met(targets[name])

    return ask


def of_class(kind: str, targets: Iterable[str], matched: Callable[[str], str | None]) -> str | None:
    """The first target that means the name of a class: expressions are asked about it too."""
    expression = matched(kind)
    return next((target for target in targets if target == expression or class_meant(target, kind)), None)


MAX_GLOBS, MAX_GLOB = 4096, 4096


def part_or_glob(listed: Sequence[str]) -> Callable[[str], bool]:
    """Whether an entry is a part of a name or matches it as ``fnmatch`` does; one without signs of a glob that matches
    is a part already. Raises Unknown for more globs than any config has: each is compiled."""
    globs = [entry for entry in listed if any(sign in entry for sign in "*?[")]
    if len(globs) > MAX_GLOBS or any(len(entry) > MAX_GLOB for entry in globs):
        raise Unknown(f"more than {MAX_GLOBS:,} patterns, or one of more than {MAX_GLOB:,} characters, are not matched")
    compiled = [re.compile(translate(entry)) for entry in globs]
    return lambda module: (
        any(entry in module for entry in listed) or any(glob.match(module) is not None for glob in compiled)
    )
