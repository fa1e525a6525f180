"""Whether llama.cpp would load a GGUF and understand it: keys, tensors, shapes, types and ids, from the header alone.

llama.cpp loads files with a missing ``attn_v``, shifted layer ids or no mask token and drafts nonsense; it aborts on
norms that are not F32. The expectations are those of its loaders (0.5.0-dev ``src/models/*.cpp``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from convertkit.checkpoint import Checkpoint, TensorSpec
from convertkit.containers.gguf import ALIGNMENT_KEY, ARCHITECTURE
from convertkit.containers.gguf_values import INTEGER_KINDS, Numbers, Scalar, Strings, Value
from convertkit.errors import Finding, finding
from convertkit.layouts.gguf_names import (
    ARCHS,
    GENERATED_GGUF,
    SCALED,
    WITHOUT_INPUT_SCALE,
    Arch,
    expected_names,
    from_gguf,
)
from convertkit.layouts.layout import evaluate

REQUIRED_KEYS: Mapping[str, str] = {
    "block_count": "u32",
    "context_length": "u32",
    "embedding_length": "u32",
    "feed_forward_length": "u32",
    "attention.head_count": "u32",
    "attention.head_count_kv": "u32",
    "attention.layer_norm_rms_epsilon": "f32",
    "rope.freq_base": "f32",
}
"""Keys that every architecture here needs, with the one type that llama.cpp reads."""
DFLASH_KEYS: Mapping[str, str] = {"block_size": "u32", "attention.causal": "bool"}
EAGLE_KEYS: Mapping[str, str] = {"target_hidden_size": "u32"}

SHAPES: Mapping[str, tuple[str, ...]] = {
    "token_embd.weight": ("V", "H"),
    "output.weight": ("DV", "H"),
    "output_norm.weight": ("H",),
    "blk.{i}.attn_norm.weight": ("H",),
    "blk.{i}.attn_norm_2.weight": ("H",),
    "blk.{i}.ffn_norm.weight": ("H",),
    "blk.{i}.post_attention_norm.weight": ("H",),
    "blk.{i}.post_ffw_norm.weight": ("H",),
    "blk.{i}.attn_q.weight": ("nh*hd", "in"),
    "blk.{i}.attn_k.weight": ("nkv*hd", "in"),
    "blk.{i}.attn_v.weight": ("nkv*hd", "in"),
    "blk.{i}.attn_q.bias": ("nh*hd",),
    "blk.{i}.attn_k.bias": ("nkv*hd",),
    "blk.{i}.attn_v.bias": ("nkv*hd",),
    "blk.{i}.attn_output.weight": ("H", "nh*hd"),
    "blk.{i}.attn_q_norm.weight": ("hd",),
    "blk.{i}.attn_k_norm.weight": ("hd",),
    "blk.{i}.ffn_gate.weight": ("I", "H"),
    "blk.{i}.ffn_up.weight": ("I", "H"),
    "blk.{i}.ffn_down.weight": ("H", "I"),
    "blk.{i}.ffn_gate_inp.weight": ("E", "H"),
    "blk.{i}.ffn_gate_exps.weight": ("E", "Ie", "H"),
    "blk.{i}.ffn_up_exps.weight": ("E", "Ie", "H"),
    "blk.{i}.ffn_down_exps.weight": ("E", "H", "Ie"),
    "blk.{i}.attn_conv_base": ("2", "k", "H"),
    "blk.{i}.ffn_conv_base": ("2", "k", "H"),
    "blk.{i}.attn_conv_proj.weight": ("2*k*H/g", "H"),
    "blk.{i}.ffn_conv_proj.weight": ("2*k*H/g", "H"),
    "selector_predecessor.weight": ("V", "r"),
    "selector_successor.weight": ("V", "r"),
    "selector_hidden.weight": ("r", "H"),
    "fc.weight": ("H", "T*Ht"),
    "d2t": ("DV",),
}
"""GGUF name to its shape in NumPy order, over the symbols of ``_symbols``."""
SYMBOLS = {
    "H": "embedding_length",
    "I": "feed_forward_length",
    "nh": "attention.head_count",
    "nkv": "attention.head_count_kv",
    "E": "expert_count",
    "Ie": "expert_feed_forward_length",
    "k": "conv_kernel_size",
    "g": "conv_group_size",
    "r": "selector_rank",
}


@dataclass(frozen=True)
class View:
    """A GGUF as the checks see it."""

    arch: Arch
    metadata: Mapping[str, Value]
    specs: Mapping[str, TensorSpec]

    def number(self, key: str) -> int | None:
        value = self.metadata.get(f"{self.arch.name}.{key}")
        return int(value.value) if isinstance(value, Scalar) and value.kind in INTEGER_KINDS else None


def file_findings(opened: Checkpoint) -> Iterator[Finding]:
    """Everything in a GGUF that llama.cpp would refuse, abort on or misread. Of unknown architectures only a note."""
    name = opened.metadata[ARCHITECTURE]
    arch = ARCHS.get(str(name.value)) if isinstance(name, Scalar) else None
    if arch is None:
        yield finding(
            "W_GGUF_ARCH", "note", "convertkit does not know this architecture; only the container was checked"
        )
        return
    view = View(arch, opened.metadata, {tensor: ref.spec for tensor, ref in opened.tensors.items()})
    if (view.number("block_count") or 0) > len(view.specs):
        yield finding("E_GGUF_METADATA", "error", "more layers are stated than there are tensors",
                      key=f"{arch.name}.block_count")  # fmt: skip
        return
    yield from _key_findings(view)
    yield from _tensor_findings(view)
    yield from _vocabulary_findings(view)
    if arch.drafter:
        yield from _drafter_findings(view)


def _key_findings(view: View) -> Iterator[Finding]:
    own = {"dflash": DFLASH_KEYS, "eagle3": EAGLE_KEYS}.get(view.arch.name, {})
    for suffix, kind in {**REQUIRED_KEYS, **own}.items():
        key = f"{view.arch.name}.{suffix}"
        value = view.metadata.get(key)
        if not isinstance(value, Scalar) or value.kind != kind:
            what = "is missing" if value is None else f"is not of type {kind}"
            yield finding("E_GGUF_METADATA", "error", f"the key {what}", key=key)
    alignment = view.metadata.get(ALIGNMENT_KEY)
    if isinstance(alignment, Scalar) and int(alignment.value) < 32:
        yield finding("E_GGUF_METADATA", "error", "llama.cpp aborts on alignments below 32", key=ALIGNMENT_KEY)


def _symbols(view: View) -> dict[str, int]:
    symbols = {name: value for name, key in SYMBOLS.items() if (value := view.number(key)) is not None}
    if "H" in symbols:
        heads = symbols.get("nh")
        symbols["hd"] = view.number("attention.key_length") or (symbols["H"] // heads if heads else 0)
        symbols["in"] = symbols["H"] * (2 if view.arch.name == "eagle3" else 1)
        symbols["Ht"] = view.number("target_hidden_size") or symbols["H"]
    tokens = view.metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, Strings):
        symbols["V"] = len(tokens)
        ids = view.specs.get("d2t")
        symbols["DV"] = ids.shape[0] if ids is not None else len(tokens)
    taps = view.metadata.get(f"{view.arch.name}.target_layers")
    if isinstance(taps, Numbers):
        symbols["T"] = len(taps)
    return symbols


def _tensor_findings(view: View) -> Iterator[Finding]:
    for name in expected_names(view.arch, view.number("block_count") or 0):
        if name not in view.specs:
            yield finding("E_LAYOUT_MISSING", "error", "the tensor is missing", tensor=name)
    symbols = _symbols(view)
    for name, spec in view.specs.items():
        named = from_gguf(view.arch, name)
        if named is None:
            yield from _scalar_findings(view, name)
            continue
        if int(named.captures.get("i", 0)) >= (view.number("block_count") or 0) and "i" in named.captures:
            yield finding("E_LAYOUT_EXTRA", "error", "the tensor belongs to a layer beyond the last", tensor=name)
        treatment = named.rule.treatment
        if treatment == "f32" and spec.dtype != "F32":
            yield finding(
                "E_LAYOUT_DTYPE", "error", f"{spec.dtype} where llama.cpp aborts unless it is F32", tensor=name
            )
        if treatment == "ids" and spec.dtype != "I64":
            yield finding("E_LAYOUT_DTYPE", "error", f"{spec.dtype}, not I64", tensor=name)
        wanted = SHAPES.get(named.rule.gguf)
        sizes = None if wanted is None else tuple(evaluate(part, symbols) for part in wanted)
        if sizes is not None and None not in sizes and sizes != spec.shape:
            message = f"shape {list(spec.shape)}, the keys imply {list(sizes)}"
            yield finding("E_LAYOUT_SHAPE", "error", message, tensor=name)


def _scalar_findings(view: View, name: str) -> Iterator[Finding]:
    """A tensor that is not a weight must be the scale of an NVFP4 one, or generated."""
    stem, _, leaf = name.rpartition(".")
    weight = view.specs.get(f"{stem}.weight")
    part = stem.rpartition(".")[2]
    if name in GENERATED_GGUF:
        return
    if leaf not in ("scale", "input_scale") or weight is None or weight.dtype != "NVFP4" or part not in SCALED:
        yield finding("E_LAYOUT_EXTRA", "error", "llama.cpp refuses a file with a tensor it does not know", tensor=name)
    elif leaf == "input_scale" and part in WITHOUT_INPUT_SCALE:
        yield finding("E_LAYOUT_EXTRA", "error", "llama.cpp loads no activation scale here", tensor=name)
    elif view.specs[name].dtype != "F32":
        yield finding("E_SCALE_DTYPE", "error", "the scale is not F32", tensor=name)


def _vocabulary_findings(view: View) -> Iterator[Finding]:
    tokens = view.metadata.get("tokenizer.ggml.tokens")
    for key in ("tokenizer.ggml.model", "tokenizer.ggml.tokens"):
        if key not in view.metadata:
            yield finding("E_GGUF_TOKENIZER", "error", "llama.cpp needs a vocabulary", key=key)
    if "tokenizer.ggml.pre" not in view.metadata:
        yield finding("W_GGUF_PRE", "warning", "without it llama.cpp splits text in a way of its own",
                      key="tokenizer.ggml.pre")  # fmt: skip
    count = len(tokens) if isinstance(tokens, Strings) else 0
    for key, value in view.metadata.items():
        named = key.startswith("tokenizer.ggml.") and key.endswith("_token_id") and isinstance(value, Scalar)
        if named and isinstance(value, Scalar) and not 0 <= int(value.value) < count:
            yield finding("E_GGUF_TOKENIZER", "error", f"{value.value} is not an id of {count:,} tokens", key=key)


def _drafter_findings(view: View) -> Iterator[Finding]:
    arch = view.arch.name
    layers = view.metadata.get(f"{arch}.target_layers")
    if not isinstance(layers, Numbers) or layers.kind not in ("i32", "u32") or not len(layers):
        yield finding("E_GGUF_METADATA", "error", "not a list of 32-bit layer numbers", key=f"{arch}.target_layers")
    elif min(layers.tolist()) < 0 or (arch == "eagle3" and len(layers) != 3):
        yield finding("E_GGUF_METADATA", "error", f"layers {layers.tolist()}", key=f"{arch}.target_layers")
    if arch == "dflash" and "tokenizer.ggml.mask_token_id" not in view.metadata:
        yield finding("E_GGUF_METADATA", "error", "without it llama.cpp loads the drafter and fails at the first draft",
                      key="tokenizer.ggml.mask_token_id")  # fmt: skip
    if arch == "dflash" and "token_embd.weight" in view.specs and "output.weight" not in view.specs:
        yield finding("E_LAYOUT_MISSING", "error", "embeddings without a head: llama.cpp would use them as the head",
                      tensor="output.weight")  # fmt: skip
    yield from _dflash_parts(view) if arch == "dflash" else ()


def _dflash_parts(view: View) -> Iterable[Finding]:
    """The optional parts of a DFlash drafter come whole."""
    groups = (
        ("selector_predecessor.weight", "selector_successor.weight", "selector_hidden.weight"),
        ("markov_w1.weight", "markov_w2.weight"),
        ("conf_proj.weight", "markov_w1.weight"),
    )
    for names in groups:
        if names[0] in view.specs or (names[-1] in view.specs and len(names) == 3):
            for name in names:
                if name not in view.specs:
                    yield finding("E_LAYOUT_MISSING", "error", "a part of the drafter is missing", tensor=name)
    if "selector_hidden.weight" in view.specs:
        for suffix in ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k"):
            if view.number(suffix) is None:
                yield finding("E_GGUF_METADATA", "error", "the key is missing", key=f"dflash.{suffix}")
        for layer in range(view.number("block_count") or 0):
            for leaf in ("attn_conv_base", "attn_conv_proj.weight", "ffn_conv_base", "ffn_conv_proj.weight"):
                if f"blk.{layer}.{leaf}" not in view.specs:
                    yield finding("E_LAYOUT_MISSING", "error", "a convolution is missing", tensor=f"blk.{layer}.{leaf}")
