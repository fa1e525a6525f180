"""Values of the wrong kind in a drafter's config: every key of every kind of drafter, and of quantization configs.

What vLLM's own loader does with each is in ``golden/vllm-0.33.0-kinds.json``, SGLang's in ``sglang-0.5.23-kinds.json``.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.engines.cases import MLP, MLP_ONLY, REST, Case, _ct, _mixed, _uniform, build
from tests.engines.drafters import DV, HD, Draft, H, N, draft, write

OBJECT = {"x": 1}
STRANGE: Mapping[type, tuple[Any, ...]] = {
    int: ("7", 7.5, True, [7], OBJECT, -1, 0),
    float: ("x", -1.0, 0.0, [1.0], OBJECT, 10),
    bool: ("x", 1, 0.5, [True], OBJECT),
    str: (5, "", "odd name!", ["x"], OBJECT, True),
    list: ("x", 5, [], ["x"], [1.5], [-1], [None], OBJECT),
    dict: ("x", 5, [], [1], {}),
    type(None): ("x", 5, -1, OBJECT),
}
"""What stands in place of a value, by the type that it has."""

MORE: Mapping[str, Any] = {
    "num_target_layers": N, "draft_vocab_size": DV, "quantization": {}, "rope_scaling": None, "max_window_layers": 2,
    "target_hidden_size": H, "selector_rank": 4, "selector_top_k": 4, "markov_rank": 8, "num_experts": 2,
    "conv_kernel_size": 3, "conv_group_size": 2, "text_config": None, "quantization_config": None,
    "compression_config": None, "eagle_config": None, "layer_types": None, "sliding_window": None,
    "torch_dtype": "bfloat16", "num_hidden_layers": 2, "head_dim": HD, "vision_config": None, "mask_token_id": 3,
    "tie_word_embeddings": False, "norm_before_fc": False, "input_embedding_scale": 1.0, "output_multiplier": 1.0,
    "final_logit_softcapping": None, "norm_before_residual": False, "target_layer_ids": [1, 2],
    "aux_hidden_state_layer_ids": [1, 2], "logit_scale": 1.0,
}  # fmt: skip
"""Keys that are put at the top where a config has them nowhere in its first levels, with the value they could have."""

KINDS = ("dflash", "dflash2", "dspark", "eagle3", "speculators-dflash", "speculators-dspark", "speculators-eagle3",
         "speculators-peagle")  # fmt: skip
FLAT = tuple(kind for kind in KINDS if not kind.startswith("speculators"))
"""Kinds that SGLang reads."""
PACKS = {"mixed": _mixed(MLP), "uniform": _uniform(MLP, REST), "ct": _ct(MLP, MLP_ONLY, [])}
Place = tuple[str | int, ...]


@dataclass(frozen=True)
class KindCase:
    """A whole drafter (a key of ``KINDS`` or ``PACKS``) with one value at one place of its config."""

    kind: str
    place: Place
    value: Any

    @property
    def path(self) -> str:
        return ".".join(map(str, self.place))

    @property
    def name(self) -> str:
        return f"{self.kind}, {self.path} = {json.dumps(self.value)}"

    def build(self) -> Draft:
        made = build_whole(self.kind)
        made.config = copy.deepcopy(made.config)
        section: Any = made.config
        for key in self.place[:-1]:
            section = section[key]
        section[self.place[-1]] = copy.deepcopy(self.value)
        return made


def build_whole(kind: str) -> Draft:
    """A drafter without a strange value."""
    return build(Case("dflash", PACKS[kind])) if kind in PACKS else draft(kind)


def walk(section: Mapping[str, Any], place: Place = ()) -> Iterator[tuple[Place, Any]]:
    """Every key of a config, down to four levels, and into the first object of a list."""
    for key, value in section.items():
        yield (*place, key), value
        if isinstance(value, dict) and len(place) < 3:
            yield from walk(value, (*place, key))
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            yield from walk(value[0], (*place, key, 0))


def _places(kind: str) -> Iterator[tuple[Place, Any]]:
    config = build_whole(kind).config
    if kind in PACKS:  # of the layers of a mixed config one, since they share their entry
        for place, value in walk(config["quantization_config"]):
            if "quantized_layers" not in place[:-1] or "layers.0.mlp.gate_proj" in place:
                yield ("quantization_config", *place), value
        return
    stated = list(walk(config))
    first = ((), ("transformer_layer_config",), ("dflash_config",))
    have = {place[-1] for place, _ in stated if place[:-1] in first}
    yield from stated
    yield from (((key,), value) for key, value in MORE.items() if key not in have)


def kind_cases() -> Iterator[KindCase]:
    """Every case."""
    for kind in (*KINDS, *PACKS):
        for place, value in _places(kind):
            for strange in STRANGE[type(value)]:
                if not (strange == value and type(strange) is type(value)):
                    yield KindCase(kind, place, strange)


def write_kinds(out: Path, every: int, kinds: Collection[str] = (*KINDS, *PACKS)) -> dict[str, KindCase]:
    """Every ``every``-th case of some kinds below ``out/kinds``, and every whole drafter as ``KIND``; the cases by
    folder."""
    cases = [case for case in kind_cases() if case.kind in kinds]
    picked = {f"{number:04d}": case for number, case in enumerate(cases) if number % every == 0}
    for name, case in picked.items():
        write(case.build(), out / "kinds" / name)
    for kind in kinds:
        write(build_whole(kind), out / "kinds" / kind)
    return picked


def told(run: Mapping[str, Any], whole: Mapping[str, Any]) -> Any:
    """A run as the golden files hold it: the stage at which it stopped, ``loads``, or a list of the parameters that it
    left open and the whole model did not."""
    if not run["loads"]:
        return run["stage"]
    open_now, open_then = (
        {name for key in ("unfilled", "partly filled", "missing") for name in side.get(key, ())}
        for side in (run, whole)
    )
    same = all(run.get(key) == whole.get(key) for key in ("lent", "unused", "unexpected"))
    return "loads" if same and open_now == open_then else sorted(open_now - open_then)
