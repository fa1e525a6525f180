"""Which linears a compressed-tensors config packs in vLLM 0.33: exact names, expressions, names of classes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from fnmatch import translate
from typing import Any

from convertkit.engines.model import Unknown
from convertkit.engines.quantized import Ask, Grid, class_meant, grids_of_targets, ignored_names, matching
from convertkit.engines.vllm_schemes import check_schemes, settled


def _of_attention(names: Sequence[str]) -> bool:
    """Whether a group is of the KV cache alone, which is passed over."""
    return len(names) == 1 and names[0].endswith("Attention")


def ct_lists(block: Mapping[str, Any]) -> tuple[dict[str, Grid], list[str]]:
    """Targets with the grid of their group, and the ignored names of a compressed-tensors config."""
    check_schemes(block, _of_attention)
    block = settled(block)
    return grids_of_targets(block, _of_attention), ignored_names(block, "vllm.quant-ignore")


def compressed_tensors(block: Mapping[str, Any]) -> Ask:
    """Exact names and ``re:`` expressions (from the start of the name) against vLLM's own names, then class names
    that contain a target (``compressed_tensors/utils.py:62``)."""
    targets, left_out = ct_lists(block)
    ignored, matched = (matching(entries, "vllm.quant-ignore") for entries in (left_out, list(targets)))

    def ask(module: str, kind: str) -> Grid:
        if ignored(module) is not None:
            return "dense"
        name = matched(module)
        if name is None:  # expressions are asked about the name of the class too
            expression = matched(kind)
            names = (target for target in targets if target == expression or class_meant(target, kind))
            name = next(names, None)
        return "dense" if name is None else targets[name]

    return ask


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
