"""Drafters of ModelOpt's FP8 with one scale for each linear, whole and damaged, alone and beside NVFP4."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.engines.cases import DOWN, MLP, QKV, REST, UP, Damage, _mixed, added, both, dropped, top
from tests.engines.drafters import Draft, H, I, V

MIXED = _mixed(MLP)


def _in_file(made: Draft) -> None:
    inner: dict[str, Any] = {
        "quant_algo": "FP8", "kv_cache_quant_algo": None, "group_size": 16, "exclude_modules": []}  # fmt: skip
    made.quant_config = {"producer": {"name": "modelopt"}, "quantization": inner}


def _keys(**keys: Any) -> Damage:
    return lambda made: made.config["quantization_config"].update(keys)


def _put_fp8(made: Draft, module: str) -> None:
    """A linear of FP8 weights in place of a dense one or of an NVFP4 one."""
    rows, columns = made.specs[f"{module}.weight"].shape
    if made.specs[f"{module}.weight"].dtype == "U8":
        made.drop(f"{module}.weight_scale_2")
        columns *= 2
    made.put(f"{module}.weight", "F8_E4M3", rows, columns)
    for leaf in ("weight_scale", "input_scale"):
        made.put(f"{module}.{leaf}", "F32")


def _fp8(leaves: tuple[str, ...], ignore: list[str]) -> Damage:
    """ModelOpt's FP8, one scale for each linear."""

    def damage(made: Draft) -> None:
        for name in [name for name in made.specs if name.endswith(".weight") and name.split(".")[-2] in leaves]:
            _put_fp8(made, name.removesuffix(".weight"))
        made.config["quantization_config"] = {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ignore}

    return damage


def _fp8_beside(leaves: tuple[str, ...]) -> Damage:
    """Linears of FP8 in a MIXED_PRECISION config of NVFP4."""

    def damage(made: Draft) -> None:
        MIXED(made)
        for layer in (0, 1):
            for leaf in leaves:
                module = f"layers.{layer}.{'mlp' if leaf in MLP else 'self_attn'}.{leaf}"
                _put_fp8(made, module)
                made.config["quantization_config"]["quantized_layers"][module] = {"quant_algo": "FP8"}

    return damage


OWN: Mapping[str, tuple[str, Damage]] = {
    "fp8 mlp": ("dflash2", _fp8(MLP, [*REST, "*conv*"])),
    "fp8 mlp, dspark": ("speculators-dspark", _fp8(MLP, [*REST, "*markov_head*"])),
    "fp8 all": ("speculators-eagle3", _fp8((*MLP, *QKV, "o_proj"), ["*fc*", "lm_head"])),
    "fp8 mlp, no input scale": ("dflash", both(_fp8(MLP, REST), dropped(f"{DOWN}.input_scale"))),
    "fp8 mlp, no scale of down": ("dflash", both(_fp8(MLP, REST), dropped(f"{DOWN}.weight_scale"))),
    "fp8 mlp, no weight": ("dflash", both(_fp8(MLP, REST), dropped(f"{UP}.weight"))),
    "fp8 mlp, scale by channel": ("dflash", both(_fp8(MLP, REST), added(f"{DOWN}.weight_scale", "F32", H))),
    "fp8 mlp, weight as bytes": ("dflash", both(_fp8(MLP, REST), added(f"{DOWN}.weight", "U8", H, I))),
    "fp8 mlp, one of nvfp4": ("dflash", both(
        _fp8(MLP, REST), added(f"{DOWN}.weight", "U8", H, I // 2),
        added(f"{DOWN}.weight_scale", "F8_E4M3", H, I // 16))),
    "fp8 stated, dense": ("dflash", top(quantization_config={
        "quant_method": "modelopt", "quant_algo": "FP8", "ignore": REST})),
    "fp8 stated in the file, dense": ("speculators-dflash-reduced", _in_file),
    "fp8 beside nvfp4": ("dflash", _fp8_beside(("q_proj", "k_proj", "v_proj"))),
    "fp8 for one share of three": ("dflash", _fp8_beside(("q_proj",))),
    "fp8 and nvfp4 in one fused linear": ("dflash", _fp8_beside(("up_proj",))),
    "fp8 group size a word": ("dflash", both(_fp8(MLP, REST), _keys(group_size="x"))),
    "fp8 group size of 7": ("dflash", both(_fp8(MLP, REST), _keys(group_size=7))),
    "fp8 of the head": ("dflash", both(
        added("lm_head.weight", "BF16", V, H), top(has_own_lm_head=True),
        _fp8((*MLP, "lm_head"), REST))),
}  # fmt: skip
