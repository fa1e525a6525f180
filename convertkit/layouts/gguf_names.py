"""Names of tensors in GGUF files, both ways, for the architectures that convertkit converts.

Format facts: llama.cpp 0.5.0-dev with ggml 0.25.3 (``conversion/llama.py``, ``qwen.py``, ``gemma.py`` and the
loaders ``src/models/*.cpp``); gguf 0.19.0 ``tensor_mapping.py``. Hub names are those of transformers and of the
drafter layouts, without a leading ``model.``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from convertkit.layouts.rules import compile_template

Treatment = Literal["matrix", "table", "plain", "row", "f32", "ids"]
"""``matrix``: any type. ``table``: embeddings and head. ``plain``: a matrix for which llama.cpp knows no scale, or
whose rows it looks up: any type but FP4. ``row``: a matrix of one row, never quantized. ``f32``: norms, biases and the
like. ``ids``: I64."""


@dataclass(frozen=True, slots=True)
class NameRule:
    """One pair of templates. ``heads`` names the config field with the number of heads whose rows llama.cpp wants
    interleaved for its rotary embedding; ``shift`` is added to the values; experts ``{e}`` are stacked."""

    hub: str
    gguf: str
    treatment: Treatment
    heads: str = ""
    shift: int = 0
    required: bool = True

    @property
    def stacked(self) -> bool:
        return "{e}" in self.hub


@dataclass(frozen=True, slots=True)
class Arch:
    """One ``general.architecture``. ``prefix`` is what hub names other than the head's carry in checkpoints;
    ``tied`` says that a missing head means the embeddings."""

    name: str
    rules: tuple[NameRule, ...]
    prefix: str = ""
    drafter: bool = False
    tied: bool = False


@dataclass(frozen=True, slots=True)
class Named:
    """A tensor's place in the tables: its rule and the number of its layer and expert, if it has one."""

    rule: NameRule
    captures: Mapping[str, str]

    @property
    def gguf(self) -> str:
        return compile_template(self.rule.gguf).format(self.captures)

    def hub(self, expert: int | None = None) -> str:
        captures = dict(self.captures) if expert is None else {**self.captures, "e": str(expert)}
        return compile_template(self.rule.hub).format(captures)


def _matrix(hub: str, gguf: str, heads: str = "", required: bool = True) -> NameRule:
    return NameRule(hub + ".weight", gguf + ".weight", "matrix", heads, 0, required)


def _norm(hub: str, gguf: str, shift: int = 0, required: bool = True) -> NameRule:
    return NameRule(hub + ".weight", gguf + ".weight", "f32", "", shift, required)


def _attention(interleaved: bool = False) -> tuple[NameRule, ...]:
    return (
        _matrix("layers.{i}.self_attn.q_proj", "blk.{i}.attn_q", "num_attention_heads" if interleaved else ""),
        _matrix("layers.{i}.self_attn.k_proj", "blk.{i}.attn_k", "num_key_value_heads" if interleaved else ""),
        _matrix("layers.{i}.self_attn.v_proj", "blk.{i}.attn_v"),
        _matrix("layers.{i}.self_attn.o_proj", "blk.{i}.attn_output"),
    )


QKV_BIASES = tuple(
    NameRule(f"layers.{{i}}.self_attn.{leaf}_proj.bias", f"blk.{{i}}.attn_{leaf}.bias", "f32") for leaf in "qkv"
)
MLP = tuple(_matrix(f"layers.{{i}}.mlp.{leaf}_proj", f"blk.{{i}}.ffn_{leaf}") for leaf in ("gate", "up", "down"))
EXPERTS = (
    NameRule("layers.{i}.mlp.gate.weight", "blk.{i}.ffn_gate_inp.weight", "f32"),
    *(
        _matrix(f"layers.{{i}}.mlp.experts.{{e}}.{leaf}_proj", f"blk.{{i}}.ffn_{leaf}_exps")
        for leaf in ("gate", "up", "down")
    ),
)
PRE_NORMS = (
    _norm("layers.{i}.input_layernorm", "blk.{i}.attn_norm"),
    _norm("layers.{i}.post_attention_layernorm", "blk.{i}.ffn_norm"),
)
HEAD_NORMS = (
    _norm("layers.{i}.self_attn.q_norm", "blk.{i}.attn_q_norm"),
    _norm("layers.{i}.self_attn.k_norm", "blk.{i}.attn_k_norm"),
)
EMBEDDING = NameRule("embed_tokens.weight", "token_embd.weight", "table")
HEAD = NameRule("lm_head.weight", "output.weight", "table", required=False)
OWN_EMBEDDING = NameRule("embed_tokens.weight", "token_embd.weight", "table", required=False)
FINAL_NORM = _norm("norm", "output_norm")
IDS = NameRule("d2t", "d2t", "ids", required=False)

GEMMA_NORMS = (
    _norm("layers.{i}.input_layernorm", "blk.{i}.attn_norm", 1),
    _norm("layers.{i}.self_attn.q_norm", "blk.{i}.attn_q_norm", 1),
    _norm("layers.{i}.self_attn.k_norm", "blk.{i}.attn_k_norm", 1),
    _norm("layers.{i}.post_attention_layernorm", "blk.{i}.post_attention_norm", 1),
    _norm("layers.{i}.pre_feedforward_layernorm", "blk.{i}.ffn_norm", 1),
    _norm("layers.{i}.post_feedforward_layernorm", "blk.{i}.post_ffw_norm", 1),
    _norm("norm", "output_norm", 1),
)
"""Gemma 3 multiplies by one plus the weight (transformers ``Gemma3RMSNorm``); llama.cpp by the weight."""

DFLASH = (
    NameRule("fc.weight", "fc.weight", "matrix"),
    _norm("hidden_norm", "enc.output_norm"),
    FINAL_NORM,
    *_attention(),
    *HEAD_NORMS,
    *MLP,
    *PRE_NORMS,
    OWN_EMBEDDING,
    HEAD,
    IDS,
)
CONVOLUTIONS = tuple(
    rule
    for hub, gguf in (("attention_conv", "attn_conv"), ("mlp_conv", "ffn_conv"))
    for rule in (
        NameRule(f"layers.{{i}}.{hub}.base_kernel", f"blk.{{i}}.{gguf}_base", "f32", required=False),
        NameRule(
            f"layers.{{i}}.{hub}.kernel_projection.weight", f"blk.{{i}}.{gguf}_proj.weight", "plain", required=False
        ),
    )
)
SELECTOR = (
    NameRule("candidate_selector.predecessor_codebook", "selector_predecessor.weight", "plain", required=False),
    NameRule("candidate_selector.successor_codebook", "selector_successor.weight", "plain", required=False),
    NameRule("candidate_selector.hidden_projection.weight", "selector_hidden.weight", "plain", required=False),
)
MARKOV = (
    NameRule("markov_head.markov_w1.weight", "markov_w1.weight", "plain", required=False),
    NameRule("markov_head.markov_w2.weight", "markov_w2.weight", "plain", required=False),
    NameRule("confidence_head.proj.weight", "conf_proj.weight", "row", required=False),
    NameRule("confidence_head.proj.bias", "conf_proj.bias", "f32", required=False),
)
EAGLE3 = (
    NameRule("fc.weight", "fc.weight", "matrix"),
    FINAL_NORM,
    *_attention(interleaved=True),
    *MLP,
    *PRE_NORMS,
    _norm("layers.{i}.hidden_norm", "blk.{i}.attn_norm_2"),
    _norm("input_norm", "enc.output_norm", required=False),
    OWN_EMBEDDING,
    HEAD,
    IDS,
)

ARCHS: Mapping[str, Arch] = {
    arch.name: arch
    for arch in (
        Arch("dflash", (*DFLASH, *CONVOLUTIONS, *SELECTOR, *MARKOV), drafter=True),
        Arch("eagle3", EAGLE3, drafter=True),
        Arch(
            "llama",
            (EMBEDDING, HEAD, FINAL_NORM, *_attention(interleaved=True), *MLP, *PRE_NORMS),
            "model.",
            tied=True,
        ),
        Arch("qwen2", (EMBEDDING, HEAD, FINAL_NORM, *_attention(), *QKV_BIASES, *MLP, *PRE_NORMS), "model.", tied=True),
        Arch("qwen3", (EMBEDDING, HEAD, FINAL_NORM, *_attention(), *HEAD_NORMS, *MLP, *PRE_NORMS), "model.", tied=True),
        Arch(
            "qwen3moe",
            (EMBEDDING, HEAD, FINAL_NORM, *_attention(), *HEAD_NORMS, *EXPERTS, *PRE_NORMS),
            "model.",
            tied=True,
        ),
        Arch("gemma3", (EMBEDDING, HEAD, *_attention(), *MLP, *GEMMA_NORMS), "model.", tied=True),
    )
}

DROPPED_HUB: Mapping[str, str] = {
    "t2d": "llama.cpp needs only d2t, and t2d follows from it",
    "layers.{i}.self_attn.rotary_emb.inv_freq": "follows from the config",
    "rotary_emb.inv_freq": "follows from the config",
}
"""Tensors that no GGUF holds, and why."""

GENERATED_GGUF: Mapping[str, str] = {"rope_freqs.weight": "follows from the rope scaling in the config"}
"""Tensors that llama.cpp wants in a file and checkpoints have no tensor for."""

SCALED = frozenset({"fc", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down",
                    "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"})  # fmt: skip
"""Matrices for which llama.cpp loads a ``.scale``, hence those that may be NVFP4 (``llama-model.cpp`` 0.5.0-dev)."""
WITHOUT_INPUT_SCALE = frozenset({"fc"})
"""Of those, the ones for which an ``.input_scale`` would be a tensor too many."""

LEGACY_EAGLE = "midlayer."
"""How EAGLE-3 checkpoints outside the speculators layout call their first layer."""


def hub_name(stored: str) -> str:
    """A checkpoint's tensor name as the tables spell it."""
    plain = stored.removeprefix("model.")
    if plain.startswith(LEGACY_EAGLE):
        plain = "layers.0." + plain.removeprefix(LEGACY_EAGLE)
    if plain.endswith("_codebook.weight"):
        plain = plain.removesuffix(".weight")
    return plain


def from_hub(arch: Arch, stored: str) -> Named | None:
    """The place of a checkpoint's tensor, or None if the architecture knows no such name."""
    return _find(((rule, rule.hub) for rule in arch.rules), hub_name(stored))


def from_gguf(arch: Arch, name: str) -> Named | None:
    """The place of a GGUF's tensor, or None; for stacked experts without ``e``."""
    return _find(((rule, rule.gguf) for rule in arch.rules), name)


def _find(candidates: Iterable[tuple[NameRule, str]], name: str) -> Named | None:
    for rule, template in candidates:
        captures = compile_template(template).match(name)
        if captures is not None:
            return Named(rule, captures)
    return None


def stored_name(arch: Arch, hub: str) -> str:
    """A hub name as checkpoints of the architecture spell it."""
    return hub if hub == "lm_head.weight" else arch.prefix + hub


def expected_names(arch: Arch, layers: int) -> Sequence[str]:
    """GGUF names that a file of so many layers must hold."""
    names: list[str] = []
    for rule in arch.rules:
        if not rule.required:
            continue
        pattern = compile_template(rule.gguf)
        names.extend(pattern.format({"i": str(layer)}) for layer in range(layers if "{i}" in rule.gguf else 1))
    return names
