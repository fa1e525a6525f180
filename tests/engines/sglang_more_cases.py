"""Values that only SGLang reads, as no model has them: keys of ``dflash_config`` and ``eagle_config``, rope of both
families, arguments of packs that SGLang takes.

What SGLang's own loader does with each is in ``golden/sglang-0.5.23-more.json``; our model must say the same.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.engines.cases import Case, Damage, both, build, dflash, inner, slug, top, undflash, untop
from tests.engines.config_cases import ROPES, config_cases, rope
from tests.engines.drafters import H, N, write
from tests.engines.kind_cases import OBJECT, STRANGE
from tests.engines.sglang_cases import EAGLE_IDS, mixed, packed_ct, uniform

NESTED: Mapping[str, Any] = {
    "num_target_layers": N, "output_multiplier": 1.0, "final_logit_softcapping": 1.0, "conv_kernel_size": 2,
    "conv_group_size": 16, "selector_rank": 16, "selector_top_k": 4, "mask_token": "x", "attention_sink_bias": False,
    "attention_value_scale": None, "projector_type": None, "markov_rank": 16,
}  # fmt: skip
"""Keys of ``dflash_config`` with a value that they could have."""
IDS = "eagle_aux_hidden_state_layer_ids"
BARE_KEYS = ("block_size", "mask_token_id", "target_layer_ids")
EAGLE: Mapping[str, Any] = {
    "num_aux_hidden_states": 3, "fc_norm": False, "use_aux_norm": False, "bias": False, "norm_output": False,
    "eagle_config": {}, "partial_rotary_factor": 1.0, "original_max_position_embeddings": 128,
    "rope_is_neox_style": True, "is_causal": False,
}  # fmt: skip
QUANTIZED: Mapping[str, Damage] = {
    "uniform": uniform([]), "mixed": mixed(["gate_up_proj", "down_proj"]), "ct": packed_ct(["Linear"], []),
    "uniform eagle3": uniform(["lm_head"]), "mixed eagle3": mixed(["model.gate_up_proj", "model.down_proj"]),
    "ct eagle3": packed_ct(["Linear"], ["lm_head"]),
}  # fmt: skip
MORE_OF_A_PACK: Mapping[str, Any] = {
    "group_size": 16, "kv_cache_scheme": None, "kv_cache_quant_algo": None, "producer": {}, "quantization": {},
    "sparsity_config": None, "modules_to_not_convert": [], "exclude_modules": [], "config_groups": {}, "format": "x",
    "quantized_layers": {},
}  # fmt: skip
WHOLE: Mapping[str, Mapping[str, Any]] = {
    "nothing is no config": {"quantization_config": {}}, "method alone": {"quantization_config": {"quant_method": "x"}},
    "layers legacy, all full": {"layer_types": ["attention"] * 2}, "no kv heads": {"num_key_value_heads": None},
    "head null": {"head_dim": None}, "act swiglu": {"hidden_act": "swigluoai"}, "act gelu": {"hidden_act": "gelu"},
    "act swiglu with limits": {"hidden_act": "swigluoai", "swiglu_alpha": 1.7, "swiglu_limit": "7"},
    "text config": {"text_config": {"num_attention_heads": 4}}, "language config": {"language_config": {}},
    "target of two layers": {"num_target_layers": 2},
    "rope dim": {"rope_parameters": {"rope_theta": 1e6, "rope_dim": 8}},
    "rope dim a word": {"rope_parameters": {"rope_theta": 1e6, "rope_dim": "8"}},
    "rope dim a list": {"rope_parameters": {"rope_theta": 1e6, "rope_dim": [8]}},
    "partial a half": {"partial_rotary_factor": 0.5}, "partial a word": {"partial_rotary_factor": "0.5"},
    "fope": {"rope_parameters": {"rope_theta": 1e6, "use_fope": True}},
    "fope with heads": {"rope_parameters": {"rope_theta": 1e6, "use_fope": True, "num_kv_heads": 2}},
    "sections of two": {"rope_parameters": {"rope_theta": 1e6, "mrope_section": [4, 4]}},
    "sections of words": {"rope_parameters": {"rope_theta": 1e6, "mrope_section": ["x"]}},
    "sections null": {"rope_parameters": {"rope_theta": 1e6, "mrope_section": None}},
    "deepseek": {"rope_parameters": {"rope_theta": 1e6, "rope_type": "deepseek_yarn", "factor": 2.0}},
    "proportional": {"rope_parameters": {"rope_theta": 1e6, "rope_type": "proportional"}},
    "mrope": {"rope_parameters": {"rope_theta": 1e6, "rope_type": "mrope", "mrope_section": [2, 3, 3]}},
    "yarn attn": {"rope_parameters": {"rope_theta": 1e6, "rope_type": "yarn", "factor": 2.0, "attn_factor": "x"}},
    "yarn mscale": {"rope_parameters": {"rope_theta": 1e6, "rope_type": "yarn", "factor": 2.0, "mscale": "x"}},
    "yarn negative": {"rope_parameters": {"rope_theta": 1e6, "rope_type": "yarn", "factor": -2.0}},
    "no layers": {"num_hidden_layers": 0, "layer_types": []}, "no layers, no types": {"num_hidden_layers": 0},
    "odd head": {"head_dim": 15}, "tied": {"tie_word_embeddings": True}, "an odd name": {"architectures": ["Foo"]},
    "a base model": {"architectures": ["LlamaForCausalLM"]}, "dspark block": {"dspark_block_size": 4},
    "dspark rank": {"dspark_markov_rank": 4}, "all windows": {
        "layer_types": None, "use_sliding_window": True, "sliding_window": 32, "max_window_layers": -1},
}  # fmt: skip


def _values(name: str, make: Damage, place: tuple[Any, ...], value: Any) -> Iterator[tuple[str, Damage]]:
    """Every strange value at a place of a config."""
    for strange in (*STRANGE[type(value)], *(("16", "16.0", " 16 ") if type(value) in (int, float) else ())):
        if not (strange == value and type(strange) is type(value)):
            yield f"{name}, {'.'.join(map(str, place))} = {json.dumps(strange)}", both(make, _put(place, strange))


def _put(place: tuple[Any, ...], value: Any) -> Damage:
    def damage(made: Any) -> None:
        made.config = copy.deepcopy(made.config)
        section: Any = made.config
        for key in place[:-1]:
            section = section[key]
        section[place[-1]] = json.loads(json.dumps(value))

    return damage


def _as_it_is(made: Any) -> None:
    """Nothing."""


def _drafts() -> Iterator[tuple[str, str, Damage]]:
    for kind in ("dflash", "dspark"):
        for key, value in NESTED.items():
            make = top(dflash_config={}) if kind == "dspark" else _as_it_is
            yield from ((kind, *one) for one in _values(kind, make, ("dflash_config", key), value))
    for key in BARE_KEYS:
        usual: Any = [1, 3, 5] if key == "target_layer_ids" else 8
        yield from (("dflash", *one) for one in _values("dflash at the top", undflash(key), (key,), usual))
        yield "dflash", f"dflash, {key} null before the top", both(dflash(**{key: None}), top(**{key: usual}))
    for key, value in EAGLE.items():
        yield from (("eagle3", *one) for one in _values("eagle3", _as_it_is, (key,), value))
    stated = top(eagle_config={IDS: [1, 3, 6]})
    yield from (("eagle3", *one) for one in _values("eagle3", stated, ("eagle_config", IDS), [1, 3, 6]))
    more = (("norm_before_fc", False), ("use_aux_hidden_state", True))
    for key, value in more:
        yield from (("eagle3", *one) for one in _values("eagle3", stated, ("eagle_config", key), value))
    yield (
        "eagle3",
        "eagle3, tied and no draft vocabulary",
        both(inner(tie_word_embeddings=True), untop("draft_vocab_size")),
    )
    yield "eagle3", "eagle3, wide target a fraction", both(top(target_hidden_size=H * 1.5), top(**EAGLE_IDS))


def _walk(section: Mapping[str, Any], place: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    for key, value in section.items():
        yield (*place, key), value
        if isinstance(value, dict) and value and len(place) < 4:
            yield from _walk(value, (*place, key))


def _packs() -> Iterator[tuple[str, str, Damage]]:
    for name, make in QUANTIZED.items():
        kind = "eagle3" if name.endswith("eagle3") else "dflash"
        block = build(Case(kind, make)).config["quantization_config"]
        stated = list(_walk(block, ("quantization_config",)))
        stated += [(("quantization_config", key), value) for key, value in MORE_OF_A_PACK.items() if key not in block]
        for place, value in stated:
            if "quantized_layers" not in place[:-1] or "down_proj" in str(place[2]):
                yield from ((kind, *one) for one in _values(name, make, place, value))


def more_cases() -> Iterator[tuple[str, Case]]:
    """Every case by name."""
    for kind, name, damage in (*_drafts(), *_packs()):
        yield name, Case(kind, damage)
    for name, value in ROPES.items():
        yield f"eagle3, every rope {name}", Case("eagle3", rope(value))
    for kind in ("dflash", "eagle3"):
        for name, keys in WHOLE.items():
            yield f"{kind}, {name}", Case(kind, inner(**keys))
    yield "strange object", Case("dflash", dflash(block_size=OBJECT))


def flat_config_cases() -> Iterator[tuple[str, Case]]:
    """Those of ``config_cases`` that SGLang reads."""
    return ((name, case) for name, case in config_cases() if not case.kind.startswith("speculators"))


def write_more(out: Path, every: int = 1) -> None:
    """Every ``every``-th case below ``out/more``, and every flat one of ``config_cases`` below ``out/config``."""
    for number, (name, case) in enumerate(more_cases()):
        if number % every == 0:
            write(build(case), out / "more" / folder(name))
    for name, case in flat_config_cases():
        write(build(case), out / "config" / slug(name))


def folder(name: str) -> str:
    """The folder of a case: values differ in signs that a slug has not."""
    return f"{slug(name)[:60]}-{sum(name.encode()) % 9973:04d}"


def outcome(run: Mapping[str, Any]) -> Any:
    """A run as the golden files hold it: the stage at which it stopped, or what stayed open, unused and lent."""
    if not run["loads"]:
        return run["stage"]
    return {key: run[key] for key in ("unfilled", "partly filled", "unused", "lent") if run[key]}
