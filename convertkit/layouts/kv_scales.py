"""How scales of the KV cache are called: one table of spellings, whatever tool wrote them.

vLLM 0.33 (``model_loader/weight_utils.py``: ``maybe_remap_kv_scale_name``) and SGLang 0.5.23 read the first two;
other spellings are dropped there and the scale is taken for 1.
"""

from __future__ import annotations

from collections.abc import Mapping

from convertkit.layouts.rules import compile_template

KV_SPELLINGS: Mapping[str, tuple[str, str]] = {
    "modelopt": ("{rest}.k_proj.k_scale", "{rest}.v_proj.v_scale"),
    "compressed-tensors": ("{rest}.k_scale", "{rest}.v_scale"),
}
"""Spellings that can be written: the scale of the keys, of the values; ``{rest}`` is the attention module."""

_OTHERS = (
    ("{rest}.k_proj.k_scale", "{rest}.v_proj.v_scale"),
    ("{rest}.qkv_proj.k_scale", "{rest}.qkv_proj.v_scale"),
    ("{rest}.k_proj.output_scale", "{rest}.v_proj.output_scale"),
    ("{rest}.attn.k_scale", "{rest}.attn.v_scale"),
    ("{rest}.attn.kv_scale", "{rest}.attn.kv_scale"),
    ("{rest}.kv_scale", "{rest}.kv_scale"),
    ("{rest}.k_scale", "{rest}.v_scale"),
)
"""All spellings that are recognised, the longest endings first. One scale for both stands on both sides."""


def kv_scale_of(name: str) -> tuple[str, tuple[str, ...]] | None:
    """The attention module and what a tensor scales there (``k``, ``v`` or both), or None if it is no such scale."""
    for key, value in _OTHERS:
        hit = compile_template(key).match(name)
        if hit is not None:
            return hit["rest"], ("k", "v") if key == value else ("k",)
        hit = compile_template(value).match(name)
        if hit is not None:
            return hit["rest"], ("v",)
    return None


def kv_scale_name(module: str, what: str, spelling: str) -> str:
    """The name of a scale in a spelling of ``KV_SPELLINGS``."""
    template = KV_SPELLINGS[spelling][0 if what == "k" else 1]
    return compile_template(template).format({"rest": module})
