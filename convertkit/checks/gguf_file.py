"""Whether llama.cpp would load a GGUF and understand it: keys, tensors, shapes, types and ids, from the header alone.

llama.cpp loads files with a missing ``attn_v``, shifted layer ids or no mask token and drafts nonsense; it aborts on
norms that are not F32. The expectations are those of its loaders (0.5.0-dev ``src/models/*.cpp``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from convertkit.checkpoint import Checkpoint, TensorSpec
from convertkit.checks.gguf_tables import (
    ARCH_SHAPES,
    BIASED,
    BY_LAYER,
    DEFAULTED,
    LINEARS,
    OWN_KEYS,
    OWN_TYPED_KEYS,
    REQUIRED_KEYS,
    SHAPES,
    SYMBOLS,
    TYPED_KEYS,
    UNREAD,
    VOCABULARIES,
)
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
from convertkit.layouts.gguf_vocabulary import DEFAULT_END, MODEL, TOKENS, unnamed_ends, vocabulary_faults
from convertkit.layouts.layout import evaluate

USE = {"stage": "use"}
"""Data of a finding that libllama does not notice while it loads: it shows at the first step, or never."""


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
    arch = view.arch.name
    for suffix, kind in {**REQUIRED_KEYS, **OWN_KEYS.get(arch, {})}.items():
        key = f"{arch}.{suffix}"
        value = view.metadata.get(key)
        if value is None and (arch, suffix) not in UNREAD:
            loads = suffix in DEFAULTED and not (suffix == "block_size" and "selector_hidden.weight" in view.specs)
            more = "; llama.cpp takes a value of its own" if loads else ""
            yield finding("E_GGUF_METADATA", "error", f"the key is missing{more}", key=key, data=USE if loads else None)
        elif value is not None and not _typed(value, kind, suffix):
            yield finding("E_GGUF_METADATA", "error", f"the key is not of type {kind}", key=key)
    for suffix, kind in {**TYPED_KEYS, **OWN_TYPED_KEYS.get(arch, {})}.items():
        value = view.metadata.get(f"{arch}.{suffix}")
        if value is not None and not _typed(value, kind, suffix):
            yield finding("E_GGUF_METADATA", "error", f"the key is not of type {kind}", key=f"{arch}.{suffix}")
    yield from _count_findings(view)
    alignment = view.metadata.get(ALIGNMENT_KEY)
    if isinstance(alignment, Scalar) and alignment.kind in INTEGER_KINDS and int(alignment.value) < 32:
        yield finding("E_GGUF_METADATA", "error", "llama.cpp aborts on alignments below 32", key=ALIGNMENT_KEY)


def _typed(value: Value, kind: str, suffix: str) -> bool:
    return (isinstance(value, Scalar) and value.kind == kind) or (
        suffix in BY_LAYER and isinstance(value, Numbers) and value.kind in INTEGER_KINDS
    )


def _count_findings(view: View) -> Iterator[Finding]:
    """Numbers that llama.cpp compares with each other while it loads."""
    arch, tokens = view.arch.name, view.metadata.get(TOKENS)
    used, experts = view.number("expert_used_count"), view.number("expert_count")
    if used is not None and experts is not None and used > experts:
        yield finding("E_GGUF_METADATA", "error", f"{used} of {experts} experts are used",
                      key=f"{arch}.expert_used_count")  # fmt: skip
    chosen = view.number("selector_top_k")
    if chosen is not None and isinstance(tokens, Strings) and chosen > len(tokens):
        yield finding("E_GGUF_METADATA", "error", f"{chosen} of {len(tokens)} tokens are chosen",
                      key=f"{arch}.selector_top_k")  # fmt: skip
    turned, size = view.number("rope.dimension_count"), _symbols(view).get("hd")
    if arch == "llama" and turned is not None and size is not None and turned != size:
        yield finding("E_GGUF_METADATA", "error", f"{turned} of {size} dimensions are rotated; llama.cpp refuses that",
                      key="llama.rope.dimension_count")  # fmt: skip


def _symbols(view: View) -> dict[str, int]:
    symbols = {name: value for name, key in SYMBOLS.items() if (value := view.number(key)) is not None}
    if "H" in symbols:
        heads = symbols.get("nh")
        symbols["hd"] = view.number("attention.key_length") or (symbols["H"] // heads if heads else 0)
        symbols["hv"] = view.number("attention.value_length") or symbols["hd"]
        symbols["in"] = symbols["H"] * (2 if view.arch.name == "eagle3" else 1)
        symbols["Ht"] = view.number("target_hidden_size") or symbols["H"]
    tokens = view.metadata.get(TOKENS)
    if isinstance(tokens, Strings):
        symbols["V"] = len(tokens)
        ids = view.specs.get("d2t")
        symbols["DV"] = ids.shape[0] if ids is not None else len(tokens)
    markov = view.specs.get("markov_w2.weight" if view.number("markov_rank") is None else "")
    symbols["mr"] = view.number("markov_rank") or (markov.shape[-1] if markov is not None else 0)
    taps = view.metadata.get(f"{view.arch.name}.target_layers")
    if isinstance(taps, Numbers):
        symbols["T"] = len(taps)
    return symbols


def _tensor_findings(view: View) -> Iterator[Finding]:
    for name in expected_names(view.arch, view.number("block_count") or 0):
        if name not in view.specs:
            late = USE if view.arch.name == "qwen2" and name.endswith(".bias") else None
            yield finding("E_LAYOUT_MISSING", "error", "the tensor is missing", tensor=name, data=late)
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
        yield from _shape_findings(view, named.rule.gguf, spec, symbols)


def _shape_findings(view: View, template: str, spec: TensorSpec, symbols: Mapping[str, int]) -> Iterator[Finding]:
    """A shape that the loader refuses, or that it loads and then computes with wrongly."""
    asked, computed = ARCH_SHAPES.get(view.arch.name, {}).get(template), SHAPES.get(template)
    for wanted, late in ((asked or computed, None), (computed, USE)):
        sizes = None if wanted is None else tuple(evaluate(part, symbols) for part in wanted)
        group = symbols.get("g")
        split = template.endswith("conv_proj.weight") and bool(group) and symbols.get("H", 0) % (group or 1) != 0
        if sizes is not None and (split or (None not in sizes and sizes != spec.shape)):
            message = f"shape {list(spec.shape)}, the keys imply {list(sizes)}"
            yield finding("E_LAYOUT_SHAPE", "error", message, tensor=spec.name, data=late)
            return


def _scalar_findings(view: View, name: str) -> Iterator[Finding]:
    """A tensor that is not a weight must be the scale of an NVFP4 one, or generated."""
    stem, _, leaf = name.rpartition(".")
    weight = view.specs.get(f"{stem}.weight")
    part = stem.rpartition(".")[2]
    biased = leaf == "bias" and part in LINEARS and weight is not None and view.arch.name in BIASED
    if name in GENERATED_GGUF or biased:
        return
    if leaf not in ("scale", "input_scale") or weight is None or weight.dtype != "NVFP4" or part not in SCALED:
        yield finding("E_LAYOUT_EXTRA", "error", "llama.cpp refuses a file with a tensor it does not know", tensor=name)
    elif leaf == "input_scale" and part in WITHOUT_INPUT_SCALE:
        yield finding("E_LAYOUT_EXTRA", "error", "llama.cpp loads no activation scale here", tensor=name)
    elif view.specs[name].dtype != "F32":
        yield finding("E_SCALE_DTYPE", "error", "the scale is not F32", tensor=name)


def _vocabulary_findings(view: View) -> Iterator[Finding]:
    for key in (MODEL, TOKENS):
        if key not in view.metadata:
            yield finding("E_GGUF_TOKENIZER", "error", "llama.cpp needs a vocabulary", key=key)
    kind = view.metadata.get(MODEL)
    if isinstance(kind, Scalar) and kind.value not in VOCABULARIES:
        yield finding("E_GGUF_TOKENIZER", "error", f"llama.cpp knows no vocabulary '{kind.value}'",
                      key=MODEL)  # fmt: skip
    for stage, message in vocabulary_faults(view.metadata).items():
        yield finding("E_GGUF_TOKENIZER", "error", message, key=TOKENS, data=USE if stage == "use" else None)
    flags = (item for item in view.metadata if item.startswith("tokenizer.ggml.add_"))
    for key in flags:
        value = view.metadata[key]
        if not isinstance(value, Scalar) or value.kind != "bool":
            yield finding("E_GGUF_METADATA", "error", "the key is not of type bool", key=key)
    if "tokenizer.ggml.pre" not in view.metadata:
        yield finding("W_GGUF_PRE", "warning", "without it llama.cpp splits text in a way of its own",
                      key="tokenizer.ggml.pre")  # fmt: skip
    for key in unnamed_ends(view.metadata):
        yield finding("W_GGUF_ENDS", "warning", f"without it llama.cpp takes token {DEFAULT_END}", key=key)
    yield from _token_id_findings(view)


def _token_id_findings(view: View) -> Iterator[Finding]:
    """Keys that name a token by its number, such as that of the end."""
    tokens = view.metadata.get(TOKENS)
    count = len(tokens) if isinstance(tokens, Strings) else 0
    for key, value in view.metadata.items():
        if not (key.startswith("tokenizer.ggml.") and key.endswith("_token_id") and isinstance(value, Scalar)):
            continue
        if value.kind not in INTEGER_KINDS:
            yield finding("E_GGUF_METADATA", "error", "the key is not of type u32", key=key)
        elif not 0 <= int(value.value) < count:
            message = f"{value.value} is not an id of {count:,} tokens"
            yield finding("E_GGUF_TOKENIZER", "error", message, key=key, data=USE)


def _drafter_findings(view: View) -> Iterator[Finding]:
    arch = view.arch.name
    layers = view.metadata.get(f"{arch}.target_layers")
    if not isinstance(layers, Numbers) or layers.kind not in ("i32", "u32") or not len(layers):
        yield finding("E_GGUF_METADATA", "error", "not a list of 32-bit layer numbers", key=f"{arch}.target_layers")
    elif min(layers.tolist()) < 0 or (arch == "eagle3" and len(layers) != 3):
        yield finding("E_GGUF_METADATA", "error", f"layers {layers.tolist()}", key=f"{arch}.target_layers")
    if arch == "dflash" and "tokenizer.ggml.mask_token_id" not in view.metadata:
        yield finding("E_GGUF_METADATA", "error", "without it llama.cpp loads the drafter and fails at the first draft",
                      key="tokenizer.ggml.mask_token_id", data=USE)  # fmt: skip
    if arch == "dflash" and "token_embd.weight" in view.specs and "output.weight" not in view.specs:
        yield finding("E_LAYOUT_MISSING", "error", "embeddings without a head: llama.cpp would use them as the head",
                      tensor="output.weight", data=USE)  # fmt: skip
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
