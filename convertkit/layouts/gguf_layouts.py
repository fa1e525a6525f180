"""The architectures of GGUF files as layouts, for looking at a file: names and roles, nothing to pack or fuse."""

from __future__ import annotations

from functools import lru_cache

from convertkit.layouts.gguf_names import ARCHS, NameRule
from convertkit.layouts.layout import Layout, Rule

_PARTS = (
    # part of the name, role; the first that fits decides
    ("norm", "norm"),
    ("_exps", "expert"),
    ("ffn_gate_inp", "router"),
    ("bias", "bias"),
    ("conv", "conv"),
    ("attn_", "attention"),
    ("ffn_", "mlp"),
    ("token_embd", "embedding"),
    ("output.", "head"),
    ("fc.", "fusion"),
    ("d2t", "vocabulary map"),
    ("selector_hidden", "selector"),
    ("selector_", "codebook"),
    ("markov_", "markov"),
    ("conf_", "confidence"),
)


def _role(rule: NameRule) -> str:
    return next((role for part, role in _PARTS if part in rule.gguf), "other")


@lru_cache(maxsize=64)
def gguf_layout(arch: str) -> Layout:
    """The layout of an architecture; of an unknown one without any rule."""
    known = ARCHS.get(arch)
    if known is None:
        return Layout(f"gguf {arch}", "unknown", (), (), frozenset())
    rules = tuple(Rule(rule.gguf, _role(rule)) for rule in known.rules)
    scales = (Rule("{rest}.scale", "scale"), Rule("{rest}.input_scale", "scale"))
    return Layout(f"gguf {arch}", "drafter" if known.drafter else "causal-lm", (*rules, *scales), (), frozenset())
