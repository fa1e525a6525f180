"""Damaged drafters and targets by rule: every family of tensors and every config value lost, misshapen, renamed, null.

``golden/vllm-0.33.0-damaged.json`` holds what vLLM's own loader did with a sample of them, which it names.
``python -m tests.engines.damaged OUT`` writes that sample, for ``tests/oracle/vllm_loader.py``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from convertkit.checkpoint import TensorSpec
from convertkit.layouts.rules import template_of
from tests.engines import hybrid_cases as hybrid
from tests.engines.cases import MLP, MLP_ONLY, REST, _ct, _mixed, _uniform
from tests.engines.drafters import TARGET, Draft, draft, write
from tests.engines.target_cases import model

Make = Callable[[], Draft]
Damage = Callable[[Draft], object]
GOLDEN = Path(__file__).parent / "golden" / "vllm-0.33.0-damaged.json"
ROWS = 16
"""By how many rows a tensor is too long or too short."""


def _drafter(kind: str, damage: Damage = lambda made: None) -> Make:
    def make() -> Draft:
        made = draft(kind)
        damage(made)
        return made

    return make


def _target(kind: str, damage: Damage = lambda made: None) -> Make:
    def make() -> Draft:
        made = model(kind)
        damage(made)
        return made

    return make


DRAFTERS: Mapping[str, Make] = {
    **{kind: _drafter(kind) for kind in (
        "dflash2", "dspark", "speculators-dflash-reduced", "speculators-dspark-reduced", "speculators-eagle3-qwen3",
        "speculators-peagle", "eagle3", "speculators-dflash2")},
    "mixed-dflash2": _drafter("dflash2", _mixed(MLP)),
    "ct-dspark": _drafter("speculators-dspark-reduced", _ct(MLP, MLP_ONLY, [])),
    "uni-dflash": _drafter("dflash", _uniform(MLP, REST)),
}  # fmt: skip
TARGETS: Mapping[str, Make] = {
    "llama": _target("llama"),
    "moe": _target("qwen3-moe"),
    "hybrid": _target(hybrid.MOE),
    "hybrid-ct": _target(hybrid.MOE, hybrid.CT),
    "hybrid-mixed": _target(hybrid.MOE, hybrid.MIXED),
    "uni-qwen3": _target("qwen3", hybrid.QWEN_UNIFORM),
    "ct-moe": _target("qwen3-moe", hybrid.ct(hybrid.BODY, ["lm_head", r"re:.*mlp\.gate$"], a4=True)),
}


def _put(name: str, spec: TensorSpec, *shape: int) -> Damage:
    return lambda made: made.put(name, spec.dtype, *shape)


def _tensor_damages(name: str, spec: TensorSpec) -> Iterator[tuple[str, Damage]]:
    yield f"no {name}", lambda made: made.drop(name)
    yield f"ren {name}", lambda made: made.rename(name, f"{name}_old")
    if spec.shape:
        yield f"long {name}", _put(name, spec, spec.shape[0] + ROWS, *spec.shape[1:])
        if spec.shape[0] > ROWS:
            yield f"short {name}", _put(name, spec, spec.shape[0] - ROWS, *spec.shape[1:])
    if len(spec.shape) == 2:
        yield f"turn {name}", _put(name, spec, *spec.shape[::-1])
        if spec.shape[1] > 4:
            yield f"narrow {name}", _put(name, spec, spec.shape[0], spec.shape[1] // 2)
        yield f"wide {name}", _put(name, spec, spec.shape[0], spec.shape[1] * 2)


def _paths(config: Mapping[str, Any], before: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in config.items():
        if isinstance(value, dict) and key != "rope_parameters":
            yield from _paths(value, (*before, key))
        yield (*before, key)


def _at(path: tuple[str, ...], change: Callable[[dict[str, Any], str], object]) -> Damage:
    def damage(made: Draft) -> None:
        place = made.config
        for key in path[:-1]:
            place = place[key]
        change(place, path[-1])

    return damage


def _value_damages(value: object) -> Iterator[tuple[str, Callable[[dict[str, Any], str], object]]]:
    yield "nokey", lambda place, key: place.pop(key)
    yield "null", lambda place, key: place.update({key: None})
    if type(value) is int:
        yield "plus", lambda place, key: place.update({key: place[key] + 1})
        yield "dbl", lambda place, key: place.update({key: place[key] * 2})
    if type(value) is bool:
        yield "flip", lambda place, key: place.update({key: not place[key]})
    if isinstance(value, list) and value:
        yield "less", lambda place, key: place.update({key: place[key][:-1]})
    if isinstance(value, str):
        yield "word", lambda place, key: place.update({key: "x"})


def damages(made: Draft) -> Iterator[tuple[str, Damage]]:
    """Every damage of one checkpoint: the first tensor of each family, every value of its config."""
    seen: set[str] = set()
    for name in sorted(made.specs):
        if template_of(name)[0] not in seen:
            seen.add(template_of(name)[0])
            yield from _tensor_damages(name, made.specs[name])
    for path in sorted(set(_paths(made.config))):
        value: Any = made.config
        for key in path:
            value = value[key]
        for word, change in _value_damages(value):
            yield f"{word} {'.'.join(path)}", _at(path, change)


def every(bases: Mapping[str, Make]) -> Iterator[tuple[str, Make, Damage]]:
    """Names, and how to make each."""
    for base, make in bases.items():
        for what, damage in damages(make()):
            yield f"{base} {what}", make, damage


def built(make: Make, damage: Damage) -> Draft:
    made = make()
    damage(made)
    return made


def write_sample(out: Path, names: Mapping[str, Any]) -> None:
    """Those named: drafters in ``out/damaged``, their target in ``out/target``, targets in ``out/damaged-targets``."""
    (out / "target").mkdir(parents=True)
    (out / "target" / "config.json").write_text(json.dumps(dict(TARGET)))
    for bases, folder in ((DRAFTERS, "damaged"), (TARGETS, "damaged-targets")):
        for name, make, damage in every(bases):
            if name in names:
                write(built(make, damage), out / folder / name)


if __name__ == "__main__":
    write_sample(Path(sys.argv[1]), json.loads(GOLDEN.read_text())["cases"])
