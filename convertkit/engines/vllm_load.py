"""What vLLM 0.33 does with a drafter: config, parameters, names, shapes, sharing, checks after loading.

The verdict, unfilled parameters and unused tensors were compared with vLLM 0.33.0's own loader on every case of
``tests/engines/cases.py``; ``tests/oracle/vllm_loader.py`` repeats that.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from convertkit.checkpoint import TensorSpec
from convertkit.engines.loading import Book
from convertkit.engines.model import Fate, Load, Stop, Unknown, stop, strange_dtype
from convertkit.engines.source import Source
from convertkit.engines.vllm_after import check_loaded, drop_notes, dropped, kernel_notes, truncated_head, unfilled
from convertkit.engines.vllm_config import method_of, read_draft
from convertkit.engines.vllm_draft import VllmDraft
from convertkit.engines.vllm_kinds import settle_kinds
from convertkit.engines.vllm_linear import Rank, strange
from convertkit.engines.vllm_own import borrowed, mask_file_fills
from convertkit.engines.vllm_params import (
    Target,
    draft_vocabulary,
    drafter_parameters,
    feature_width,
    norms_before_fc,
    uses_features,
)
from convertkit.engines.vllm_quant import RENAMES, Quantization, read_quantization
from convertkit.engines.vllm_serving import serving_wrongs, vllm_settings

STACKED = ((".q_proj", ".qkv_proj", "q"), (".k_proj", ".qkv_proj", "k"), (".v_proj", ".qkv_proj", "v"),
           (".gate_proj", ".gate_up_proj", "gate"), (".up_proj", ".gate_up_proj", "up"))  # fmt: skip
"""vLLM's names of fused linears and the share each stored linear fills (``qwen3_dflash.py:401``)."""

ROTARY = ("rotary_pos_emb.inv_freq", "rotary_emb.inv_freq", "rotary_emb.cos_cached", "rotary_emb.sin_cached")
"""Parts of names that the loader drops (``models/utils.py:225``)."""

QUANT_SUFFIXES = (".q_scale", ".k_scale", ".v_scale", ".q_zero_point", ".k_zero_point", ".v_zero_point")
"""Endings that a quantized model may ignore (``quantization/base_config.py:112``)."""

_CACHE_SCALES = (
    (re.compile(r"\.kv_scale$"), ".attn.k_scale"),
    (re.compile(r"\.self_attn\.[kv]_proj\.([kv])_scale$"), r".self_attn.attn.\1_scale"),
    (re.compile(r"\.self_attn\.qk(?:qk)?v_proj\.([kv])_scale$"), r".self_attn.attn.\1_scale"),
    (re.compile(r"(?<!\.attn)\.([qkv])_scale$"), r".attn.\1_scale"),
    (re.compile(r"(?<!\.attn)\.([qkv])_zero_point$"), r".attn.\1_zero_point"),
)

OWN_MAP = "draft_id_to_target_id"

BUFFER = re.compile(r"(model\.layers\.\d+\.self_attn)\.attn\._(?:[qkv]|prob)_scale")
"""Scales that an attention keeps beside its parameters, and that a stored tensor of that name fills
(``models/utils.py:343``)."""

PARAMETERLESS = ("rotary_emb", "attn")
"""Modules of an attention block that have no parameters."""


def load_drafter(source: Source, target: Target, ranks: int = 1, dtype: str = "BF16") -> Load:
    """Load a drafter in the mind. Nothing is raised: a refusal is part of the result."""
    try:
        settled = settle_kinds(source.config, method_of)
        if settled.apart:
            return Load(wrongs=tuple(settled.wrongs))
        load = _load(replace(source, config=settled.config), target, Rank(ranks, dtype))
        return replace(load, wrongs=(*settled.wrongs, *load.wrongs))
    except Unknown as why:
        return Load(unknown=why.refused.message)
    except Stop as stopped:
        return Load(refusals=(stopped.refused,))


def _load(source: Source, target: Target, rank: Rank) -> Load:
    draft = read_draft(source.config)
    heads = draft.get("num_attention_heads")
    if isinstance(heads, int) and heads % rank.size:
        message = f"Total number of attention heads ({heads}) must be divisible by tensor parallel size ({rank.size})."
        raise stop("config", message, "vllm.tp-divides", key="num_attention_heads")
    _window(draft)
    shifted = not draft.kind.startswith("eagle3")
    layers = draft.size("num_hidden_layers")
    quantization = read_quantization(source.config, draft.values, source.quant_file, target.layers, layers, shifted)
    parameters = {item.name: item for item in drafter_parameters(draft, quantization, rank, target)}
    book = Book(parameters)
    _before(source, draft, target, book)
    beside = mask_file_fills(source.mask_embedding, draft, book)
    for spec in _mapped(source, book):
        _one(spec, draft, quantization, book, beside)
    outcomes = book.outcomes(borrowed(source.specs, draft, target, book))
    outcomes = check_loaded(outcomes, draft, book, source.specs)
    notes = [*drop_notes(book), *kernel_notes(quantization, outcomes)]
    wrongs = [*book.wrongs, *dropped(book), *unfilled(outcomes), *truncated_head(draft, target, outcomes)]
    wrongs += serving_wrongs(draft, target, source.config)
    settings = vllm_settings(draft, source.config)
    facts = {
        "class": draft.kind,
        "method": draft.method,
        "captured": list(draft.captured or ()),
        "tokens": draft.tokens,
    }
    return Load(tuple(book.refusals), tuple(wrongs), tuple(notes), book.fates, outcomes, settings, facts)


def _window(draft: VllmDraft) -> None:
    """Keys without a default, and of the DFlash family a window for sliding layers (``qwen3_dflash.py:152``)."""
    needed = ["rms_norm_eps", "hidden_act"] + ["max_position_embeddings"] * (draft.kind != "eagle3-llama")
    for key in needed:
        if draft.get(key) is None and not (
            key == "rms_norm_eps" and key in draft.values
        ):  # null fails at the first step
            raise stop("create", f"the config has no attribute '{key}'", "vllm.config-keys", key=key)
    if draft.get("hidden_act") != "silu":
        message = f"Unsupported activation: {draft.get('hidden_act')}. Only silu is supported for now."
        raise stop("create", message, "vllm.activation", key="hidden_act")
    if draft.kind.startswith("eagle3"):
        if "max_position_embeddings" in draft.values and draft.get("max_position_embeddings") is None:
            raise stop("create", "arange() received None", "vllm.config-keys", key="max_position_embeddings")
        return
    types = draft.get("layer_types")
    swa = bool(draft.dflash.get("use_swa", False))
    sliding = isinstance(types, list) and "sliding_attention" in types
    window = draft.dflash.get("swa_window_size", draft.get("sliding_window"))
    if (sliding or swa) and window is None:
        message = "DFlash sliding attention requires a window size (dflash_config.swa_window_size or sliding_window)"
        raise stop("create", message, "vllm.window", key="sliding_window")


def _mapped(source: Source, book: Book) -> Sequence[TensorSpec]:
    """The stored tensors, of several with one name the last (``qwen3_dflash.py:870``), without those under vLLM's own
    name of the vocabulary map: it takes ``d2t`` only, and drops the other while there is none (``:882``)."""
    specs = tuple(source.specs.values())
    if any("d2t" in name and "t2d" not in name for name in source.specs):
        return specs
    own = [name for name in source.specs if OWN_MAP in name and "t2d" not in name]
    for name in own:
        book.skip(name, "only d2t brings a vocabulary map")
    return [spec for spec in specs if spec.name not in book.fates] if own else specs


def _before(source: Source, draft: VllmDraft, target: Target, book: Book) -> None:
    """What the model's ``load_weights`` refuses before it loads the first tensor."""
    names = [spec.name for spec in source.tensors]
    if draft.kind.startswith("dflash"):
        for name in names:
            if "mask_hidden" in name:
                book.refuse("load_weights", "DFlash should not ship a mask_hidden weight", "vllm.mask-hidden", name)
    elif draft.kind == "dspark":
        _before_dspark(names, draft, target, book)
    elif draft.parallel and not any("mask_hidden" in name for name in names):
        book.refuse("load_weights", "mask_hidden not found in weights but model is configured for parallel drafting",
                    "vllm.mask-hidden")  # fmt: skip


def _before_dspark(names: Sequence[str], draft: VllmDraft, target: Target, book: Book) -> None:
    reduced = draft_vocabulary(draft) < target.vocabulary
    checks = (
        (draft.size("vocab_size") > target.vocabulary, "embed_tokens", "input vocab_size is larger than the target's"),
        (reduced, "lm_head", "the vocabulary is reduced"),
        (reduced, "d2t", "the vocabulary is reduced"),
    )
    for needed, part, why in checks:
        if needed and not any(part in name and "t2d" not in name for name in names):
            message = f"Qwen3 DSpark checkpoints must include {part}: {why}"
            book.refuse("load_weights", message, "vllm.dspark-reduced")


def _one(spec: TensorSpec, draft: VllmDraft, quantization: Quantization, book: Book, mask_file: bool) -> None:
    """One stored tensor: dropped, renamed and loaded, ignored, or refused."""
    name, eagle = spec.name, draft.kind.startswith("eagle3")
    if "t2d" in name:
        book.skip(name, "training only")
        return
    if eagle and "mask_hidden" in name and "d2t" not in name:
        _mask_hidden(spec, draft, book)
        return
    own = "d2t" in name or "lm_head" in name
    engine = name.replace("d2t", OWN_MAP) if own else f"model.{name}"
    why = _dropped_part(engine, draft, book, mask_file)
    if why:
        book.skip(name, why)
        return
    engine, shard = _renamed(engine, eagle, quantization.family != "none")
    if any(part in engine for part in ROTARY) or (quantization.family != "none" and engine.endswith(".g_idx")):
        book.skip(name, "rotary cache")
    elif engine in book.parameters or (not shard and engine[-1:] == "." and engine[:-1] in book.parameters):
        engine = engine.removesuffix(".")  # an empty part at the end of a name is none (``models/utils.py:337``)
        book.load(spec, engine, shard, book.parameters[engine].rule or "vllm.silent")
        if strange_dtype(spec.dtype, book.parameters[engine].dtype):
            book.wrongs.append(strange(spec, book.parameters[engine].dtype))
    elif not _buffer(spec, engine, book):
        _unknown(spec.name, engine, quantization.family != "none", book)


def _buffer(spec: TensorSpec, engine: str, book: Book) -> bool:
    """Load a tensor that has the name of a buffer, which takes one value; whether it has."""
    found = BUFFER.fullmatch(engine)
    if found is None or f"{found[1]}.o_proj" not in book.modules:
        return False
    book.fates[spec.name] = Fate(engine)
    if spec.elements != 1:
        message = f"Attempted to load weight ({list(spec.shape)}) into parameter ([]): {engine}"
        book.refuse("load_weights", message, "vllm.kv-scales", spec.name)
    return True


def _mask_hidden(spec: TensorSpec, draft: VllmDraft, book: Book) -> None:
    if not draft.parallel:
        book.skip(spec.name, "not parallel drafting")
        return
    width = feature_width(draft)
    if spec.elements not in (width, 1):
        message = f"mask_hidden has {spec.elements} elements, the features are {width} wide"
        book.refuse("load_weights", message, "vllm.mask-hidden", spec.name)
    book.fates[spec.name] = Fate("mask_hidden")


def _dropped_part(engine: str, draft: VllmDraft, book: Book, mask_file: bool) -> str:
    """Why the model's mapper drops a name before the loader sees it, or empty (``qwen3_dflash.py:879``)."""
    if draft.kind.startswith("eagle3"):
        if not norms_before_fc(draft) and "input_norm." in engine:
            return "norm_before_fc is off"
    elif (draft.kind == "dspark" or not mask_file) and "mask_embedding" in engine:
        return "only mask_embedding.pt is read"
    elif mask_file and engine == "model.mask_embedding":
        return "overwritten by mask_embedding.pt"
    if draft.kind == "dspark":
        off = "model.confidence_head.proj.weight" not in book.parameters
        return "the confidence head is off" if off and "confidence_head" in engine else ""
    return "the features are off" if not uses_features(draft) and "fc." in engine else ""


def _renamed(engine: str, eagle: bool, quantized: bool) -> tuple[str, str]:
    """The name after the mappers of the whole model and of its body, and the share of a fused linear."""
    if quantized:
        for pattern, new in _CACHE_SCALES:
            engine = pattern.sub(new, engine)
    if not engine.startswith("model."):
        return engine, ""
    body = engine.removeprefix("model.")
    if eagle:
        body = body.replace("midlayer.", "layers.0.", 1)
    else:
        for pattern, new in RENAMES:
            body = pattern.sub(new, body)
    shard = ""
    for old, new, share in STACKED:
        if old in body:
            body, shard = body.replace(old, new, 1), share
    return f"model.{body}", shard


def _unknown(stored: str, engine: str, quantized: bool, book: Book) -> None:
    """A name that no parameter has: ignored if it ends like a bias (or scale) of a module that exists, else refused
    (``models/utils.py:423``)."""
    linear, _, inside = engine.partition("_proj.")
    if linear.endswith((".qkv", ".gate_up")) and "." in inside:  # fused linears look for a module of that name
        message = f"AttributeError: `{inside.split('.')[0]}` is not an nn.Module (for the stored '{stored}')"
        book.refuse("load_weights", message, "vllm.unknown-name", stored)
        return
    suffixes = (".bias", *(QUANT_SUFFIXES if quantized else ()))
    place = engine
    while place and not _is_module(place, book) and place not in book.parameters:
        shorter = place.rpartition(".")[0]
        if not shorter or _is_module(shorter, book) or shorter in book.parameters:
            break
        place = shorter
    inside = place.removeprefix("model.")
    nested = place.rpartition(".")[0] in book.parameters
    if (engine if nested else inside).endswith(suffixes) and "." in inside:
        book.skip(stored, "unexpected bias" if engine.endswith(".bias") else "unexpected scale")
    elif nested:
        owner = place.rpartition(".")[0]
        message = f"Attempted to load nested weight '{engine}' into a single parameter '{owner}'"
        book.refuse("load_weights", message, "vllm.unknown-name", stored)
    else:
        message = f"There is no module or parameter named '{inside}' (for the stored '{stored}')"
        book.refuse("load_weights", message, "vllm.unknown-name", stored)


def _is_module(place: str, book: Book) -> bool:
    parent, _, leaf = place.rpartition(".")
    bare = leaf in PARAMETERLESS and parent.endswith("self_attn") and f"{parent}.o_proj" in book.modules
    bare = bare or (leaf == "act_fn" and f"{parent}.down_proj" in book.modules)
    return bare or place in book.modules
