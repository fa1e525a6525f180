"""Which linears a compressed-tensors config packs in vLLM 0.33: exact names, expressions, names of classes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from fnmatch import translate
from typing import TYPE_CHECKING, Any

from convertkit.dialects.patterns import Matcher, PatternFault
from convertkit.engines.model import Unknown, stop

if TYPE_CHECKING:
    from convertkit.engines.vllm_quant import Ask, Grid


def ct_lists(block: Mapping[str, Any]) -> tuple[dict[str, Grid], list[str]]:
    """Targets with the grid of their group, and the ignored names of a compressed-tensors config."""
    groups = block.get("config_groups")
    targets: dict[str, Grid] = {}
    for group in groups.values() if isinstance(groups, Mapping) else ():
        listed = group.get("targets") if isinstance(group, Mapping) else None
        if not isinstance(listed, list):
            raise Unknown("a config group of the quantization config has no list of targets")
        names = [str(name) for name in listed]
        if not (len(names) == 1 and names[0].endswith("Attention")):
            grid = scheme_grid(group)
            targets.update((name, grid) for name in names)
    left_out = block.get("ignore", [])
    if left_out is None:
        raise stop("create", "'NoneType' object is not iterable", "vllm.quant-ignore", key="ignore")
    if not isinstance(left_out, list):
        raise Unknown("'ignore' of the quantization config is not a list")
    return targets, [str(item) for item in left_out]


def compressed_tensors(block: Mapping[str, Any]) -> Ask:
    """Exact names and ``re:`` expressions (from the start of the name) against vLLM's own names, then class names
    that contain a target (``compressed_tensors/utils.py:62``)."""
    targets, left_out = ct_lists(block)
    ignored, matched = matching(left_out), matching(list(targets))

    def ask(module: str, kind: str) -> Grid:
        if ignored(module) is not None:
            return "dense"
        name = matched(module)
        if name is None:
            name = next((target for target in targets if class_meant(target, kind)), None)
        return "dense" if name is None else targets[name]

    return ask


def class_meant(target: str, kind: str) -> bool:
    return not target.startswith("re:") and target.lower() in kind.lower()


def scheme_grid(group: Mapping[str, Any]) -> Grid:
    weights = group.get("weights")
    if not isinstance(weights, Mapping):
        return "dense"
    nvfp4 = (weights.get("num_bits"), weights.get("type"), weights.get("strategy"), weights.get("group_size"))
    if nvfp4 != (4, "float", "tensor_group", 16) or weights.get("symmetric", True) is not True:
        raise Unknown("a scheme of the quantization config is not NVFP4, which alone convertkit's tables describe")
    inputs = group.get("input_activations")
    if inputs is None:
        return "ct-a16"
    stated = [inputs.get(key) for key in ("num_bits", "type", "strategy")] if isinstance(inputs, Mapping) else []
    if stated != [4, "float", "tensor_group"]:
        raise Unknown("the activations of a scheme are not NVFP4, which alone convertkit's tables describe")
    return "ct-a4"


def matching(entries: Sequence[str]) -> Callable[[str], str | None]:
    """The first entry that means a name, or None."""
    expressions = [entry for entry in entries if entry.startswith("re:")]
    try:
        matcher = Matcher([("regex", entry.removeprefix("re:")) for entry in expressions])
    except PatternFault as fault:
        raise Unknown(f"an expression of the quantization config is not one that convertkit reads: {fault}") from None
    exact = frozenset(entries) - frozenset(expressions)

    def match(name: str) -> str | None:
        if name in exact:
            return name
        hits = matcher.hits(name) if expressions else ()
        return expressions[min(hits)] if hits else None

    return match


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
