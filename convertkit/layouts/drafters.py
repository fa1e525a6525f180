"""Layouts of drafters: z-lab DFlash and DFlash 2, DeepSpec DSpark, and the speculators family.

Names and shapes were compared with checkpoints saved by z-lab dflash 0.1.0, speculators 0.9.0, SpecForge 0.2.0 and
DeepSpec afdfa7c. Symbols are those of ``layout.DIMENSIONS``; K is the number of tapped target layers.
"""

from __future__ import annotations

from convertkit.layouts.layout import Layout, Rule

QKV = ("{rest}.q_proj", "{rest}.k_proj", "{rest}.v_proj")
GATE_UP = ("{rest}.gate_proj", "{rest}.up_proj")

DRAFTER_FUSED = (QKV, GATE_UP)
"""Engines fuse q/k/v and gate/up of a draft layer (vLLM 0.33 ``qwen3_dflash.py:851``)."""

MLP_ONLY = frozenset({"mlp"})


def attention(prefix: str, width: str = "H", first: int = 0) -> tuple[Rule, ...]:
    """Projections, biases and norms of one attention block whose input is ``width`` wide."""
    rows = {"q_proj": "nh*hd", "k_proj": "nkv*hd", "v_proj": "nkv*hd", "o_proj": "H"}
    columns = {"o_proj": "nh*hd"}
    weights = tuple(
        Rule(f"{prefix}.self_attn.{leaf}.weight", "attention", (out, columns.get(leaf, width)), first=first)
        for leaf, out in rows.items()
    )
    biases = tuple(
        Rule(f"{prefix}.self_attn.{leaf}.bias", "bias", (out,), "attention bias", first=first)
        for leaf, out in rows.items()
    )
    return weights + biases


def _qk_norms(prefix: str, presence: str = "always", first: int = 0) -> tuple[Rule, ...]:
    """The head norms of Qwen3-style attention."""
    return tuple(
        Rule(f"{prefix}.self_attn.{leaf}.weight", "norm", ("hd",), presence, first=first)
        for leaf in ("q_norm", "k_norm")
    )


def mlp(prefix: str, first: int = 0) -> tuple[Rule, ...]:
    """A gated MLP and the two norms of a layer."""
    return (
        Rule(f"{prefix}.mlp.gate_proj.weight", "mlp", ("I", "H"), first=first),
        Rule(f"{prefix}.mlp.up_proj.weight", "mlp", ("I", "H"), first=first),
        Rule(f"{prefix}.mlp.down_proj.weight", "mlp", ("H", "I"), first=first),
        Rule(f"{prefix}.input_layernorm.weight", "norm", ("H",), first=first),
        Rule(f"{prefix}.post_attention_layernorm.weight", "norm", ("H",), first=first),
    )


BACKBONE = (
    *attention("layers.{i}"),
    *_qk_norms("layers.{i}"),
    *mlp("layers.{i}"),
    Rule("fc.weight", "fusion", ("H", "K*Ht")),
    Rule("hidden_norm.weight", "norm", ("H",)),
    Rule("norm.weight", "norm", ("H",)),
)
"""The DFlash backbone: 11 tensors per layer and 3 more."""

CONVOLUTIONS = tuple(
    rule
    for conv in ("attention_conv", "mlp_conv")
    for rule in (
        Rule(f"layers.{{i}}.{conv}.base_kernel", "conv", ("2", "taps", "H")),
        Rule(f"layers.{{i}}.{conv}.kernel_projection.weight", "conv", ("2*taps*H/group", "H")),
    )
)
SELECTOR = (
    Rule("candidate_selector.predecessor_codebook", "codebook", ("V", "rank")),
    Rule("candidate_selector.successor_codebook", "codebook", ("V", "rank")),
    Rule("candidate_selector.hidden_projection.weight", "selector", ("rank", "H")),
)
REDUCED_VOCABULARY = (
    Rule("lm_head.weight", "head", ("DV", "H"), "reduced vocabulary"),
    Rule("d2t", "vocabulary map", ("DV",), "reduced vocabulary", dtype="ids"),
    Rule("t2d", "vocabulary map", ("V",), "reduced vocabulary", dtype="BOOL"),
)
MARKOV = (
    Rule("markov_head.markov_w1.weight", "markov", ("V", "r"), "markov head"),
    Rule("markov_head.markov_w2.weight", "markov", ("DV", "r"), "markov head"),
    Rule("markov_head.gate_proj.weight", "markov", ("r", "H+r"), "gated markov head"),
    Rule("markov_head.gate_proj.bias", "bias", ("r",), "gated markov head"),
    Rule("markov_head.joint_proj.weight", "markov", ("3*r", "2*r+H"), "rnn markov head"),
    Rule("markov_head.joint_proj.bias", "bias", ("3*r",), "rnn markov head"),
)
CONFIDENCE = (
    Rule("confidence_head.proj.weight", "confidence", ("1", "H+c"), "confidence head"),
    Rule("confidence_head.proj.bias", "bias", ("1",), "confidence head"),
)
TARGET_COPIES = (
    Rule("embed_tokens.weight", "embedding", ("V", "H"), "optional"),
    Rule("lm_head.weight", "head", ("DV", "H"), "optional"),
)
"""Copies that some exports of a drafter still carry; vLLM 0.33 uses them only if they differ from the target's."""

EMBEDDING_COPY = TARGET_COPIES[0]

NATIVE_VOCABULARY = (
    *REDUCED_VOCABULARY[:2],
    Rule("t2d", "vocabulary map", ("V",), "optional", dtype="BOOL"),
    *TARGET_COPIES,
)
"""DeepSpec always writes copies of the target's embeddings and head and knows no reduced vocabulary; vLLM 0.33 needs
no copies and serves a reduced vocabulary, whose mask it skips (``qwen3_dspark.py:312``)."""

REFINER = (
    Rule("refiner_head.token_embed.weight", "embedding", ("V", "r")),
    Rule("refiner_head.down_h.weight", "refiner", ("r", "H")),
    Rule("refiner_head.down_g.weight", "refiner", ("r", "H")),
    Rule("refiner_head.in_proj.weight", "refiner", ("r", "3*r")),
    Rule("refiner_head.mix_l", "refiner", ("r", "B", "B")),
    Rule("refiner_head.mlp_gate.weight", "refiner", ("r*m", "r")),
    Rule("refiner_head.mlp_up.weight", "refiner", ("r*m", "r")),
    Rule("refiner_head.mlp_down.weight", "refiner", ("r", "r*m")),
    Rule("refiner_head.readout.weight", "refiner", ("DV", "r")),
)


def _eagle_layers(first_layer: str) -> tuple[Rule, ...]:
    """EAGLE-3 layers: the first reads embeddings and features side by side, hence twice as wide."""
    return (
        *attention(first_layer, "2*H"),
        *_qk_norms(first_layer, "query and key norms"),
        *mlp(first_layer),
        Rule(f"{first_layer}.hidden_norm.weight", "norm", ("H",)),
        *attention("layers.{i}", first=1),
        *_qk_norms("layers.{i}", "query and key norms", first=1),
        *mlp("layers.{i}", first=1),
    )


EAGLE = (
    *_eagle_layers("layers.0"),
    Rule("embed_tokens.weight", "embedding", ("V", "H"), "optional"),
    Rule("lm_head.weight", "head", ("DV", "H")),
    Rule("fc.weight", "fusion", ("H", "K*Ht")),
    Rule("norm.weight", "norm", ("H",)),
    Rule("input_norm.weight", "norm", ("K*H",), "norm before fc"),
    Rule("fc_norm.{i}.weight", "norm", ("H",), "optional"),
    Rule("d2t", "vocabulary map", ("DV",), "reduced vocabulary", dtype="ids"),
    Rule("t2d", "vocabulary map", ("V",), "reduced vocabulary", dtype="BOOL"),
)
LEGACY_EAGLE = (
    *_eagle_layers("midlayer"),
    Rule("embed_tokens.weight", "embedding", ("V", "H"), "optional"),
    Rule("lm_head.weight", "head", ("DV", "H"), "optional"),
    Rule("fc.weight", "fusion", ("H", "K*Ht")),
    Rule("norm.weight", "norm", ("H",)),
    Rule("d2t", "vocabulary map", ("DV",), "optional", dtype="ids"),
    Rule("t2d", "vocabulary map", ("V",), "optional", dtype="BOOL"),
)
MTP = (
    Rule("mtp_layers.{i}.input_proj.weight", "fusion", ("H", "2*H")),
    Rule("mtp_layers.{i}.hidden_layernorm.weight", "norm", ("H",)),
    Rule("mtp_layers.{i}.token_layernorm.weight", "norm", ("H",)),
    Rule("mtp_layers.{i}.final_layernorm.weight", "norm", ("H",)),
    *attention("mtp_layers.{i}"),
    *_qk_norms("mtp_layers.{i}", "query and key norms"),
    *mlp("mtp_layers.{i}"),
)


def _drafter(name: str, rules: tuple[Rule, ...], marks: tuple[str, ...], **row: object) -> Layout:
    return Layout(name, "drafter", rules, DRAFTER_FUSED, MLP_ONLY, marks, **row)  # type: ignore[arg-type]


_DFLASH2 = (*BACKBONE, *CONVOLUTIONS, *SELECTOR, *TARGET_COPIES)
_CORE = ("fc", "hidden_norm", "layers.{i}.self_attn.q_proj")
_CONV = (*_CORE, "candidate_selector.hidden_projection")
_DSPARK = (*_CORE, "markov_head.markov_w1")
_EAGLE = ("fc", "layers.{i}.hidden_norm")

DRAFTERS: tuple[Layout, ...] = (
    _drafter("speculators-mtp", MTP, ("mtp_layers.{i}.input_proj",), speculators=True, labels=("mtp",)),
    _drafter(
        "speculators-peagle",
        (*EAGLE, Rule("mask_hidden", "fusion", ("1", "1", "K*H"))),
        (*_EAGLE, "mask_hidden"),
        speculators=True,
        labels=("peagle",),
        names_layers_by_runtime=True,
    ),
    _drafter(
        "peagle",
        (*EAGLE, Rule("mask_hidden", "fusion", ("1", "1", "K*Ht"))),
        (*_EAGLE, "mask_hidden"),
        labels=("PEagle",),
        names_layers_by_runtime=True,
    ),
    _drafter("speculators-eagle3", EAGLE, _EAGLE, speculators=True, labels=("eagle3",), names_layers_by_runtime=True),
    _drafter(
        "eagle3", LEGACY_EAGLE, ("fc", "midlayer.self_attn.q_proj"), labels=("Eagle",), names_layers_by_runtime=True
    ),
    _drafter(
        "speculators-xpress",
        (*BACKBONE, *REDUCED_VOCABULARY, *REFINER),
        (*_CORE, "refiner_head.token_embed"),
        speculators=True,
        labels=("xpress",),
    ),
    _drafter("speculators-dflash2", _DFLASH2, _CONV, speculators=True, labels=("dflash2",)),
    _drafter("dflash2", _DFLASH2, _CONV, labels=("DFlash2",)),
    _drafter(
        "speculators-dspark",
        (*BACKBONE, *REDUCED_VOCABULARY, *MARKOV, *CONFIDENCE, EMBEDDING_COPY),
        _DSPARK,
        speculators=True,
        labels=("dspark",),
    ),
    _drafter("dspark", (*BACKBONE, *NATIVE_VOCABULARY, *MARKOV, *CONFIDENCE), _DSPARK, labels=("DSpark",)),
    _drafter(
        "speculators-dflash",
        (*BACKBONE, *REDUCED_VOCABULARY, EMBEDDING_COPY),
        _CORE,
        speculators=True,
        labels=("dflash",),
    ),
    _drafter("dflash", (*BACKBONE, *TARGET_COPIES), _CORE, labels=("DFlash",)),
)
"""Most specific first: the first whose marks are all there is the layout."""
