"""What a GGUF of a given checkpoint must say, and every reason why it cannot be made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from convertkit.checkpoint import Checkpoint
from convertkit.containers.folder import CONFIG
from convertkit.containers.gguf_values import u32
from convertkit.conversion.gguf_models import context_faults, model_faults, value_faults
from convertkit.conversion.gguf_places import GgufRequest
from convertkit.conversion.gguf_target import EMBEDDINGS, HEADS, Target, copies_of_target, same_bytes
from convertkit.conversion.identify import Identity
from convertkit.drafter import DrafterSpec
from convertkit.errors import Finding, finding, raise_all, refusal
from convertkit.layouts.configs import READINGS
from convertkit.layouts.fields import read_values
from convertkit.layouts.gguf_fields import (
    ARCH_OF_MODEL,
    ROPE_SCALINGS,
    TARGETS_WITH_LAST_OUTPUT,
    TARGETS_WITH_LAYER_INPUTS,
    drafter_metadata,
    model_metadata,
    model_values,
    rope_factors,
)
from convertkit.layouts.gguf_names import ARCHS
from convertkit.layouts.layout import config_value
from convertkit.layouts.meaning import resolve

ARCH_OF_LAYOUT: Mapping[str, str] = {
    "dflash": "dflash",
    "dflash2": "dflash",
    "dspark": "dflash",
    "speculators-dflash": "dflash",
    "speculators-dflash2": "dflash",
    "speculators-dspark": "dflash",
    "eagle3": "eagle3",
    "speculators-eagle3": "eagle3",
}
NEEDED = ("layers", "hidden", "intermediate", "heads", "kv_heads", "head_dim", "eps", "vocabulary")
TIED_BY_DEFAULT = frozenset({"gemma3"})


def _arch_of(identity: Identity, config: Mapping[str, Any]) -> str:
    """The architecture for a checkpoint. Raises ``E_ARCH``."""
    if identity.layout.name in ARCH_OF_LAYOUT:
        return ARCH_OF_LAYOUT[identity.layout.name]
    arch = ARCH_OF_MODEL.get(str(config.get("model_type"))) if identity.layout.name == "causal-lm" else None
    if arch is None:
        kind = config.get("model_type") or identity.layout.name
        raise refusal("E_ARCH", f"'{kind}' ({identity.layout.name}) is not converted to GGUF",
                      fix=f"drafters: {', '.join(ARCH_OF_LAYOUT)}; models: {', '.join(ARCH_OF_MODEL)}")  # fmt: skip
    return arch


def drafter_spec(layout: str, config: Mapping[str, Any]) -> DrafterSpec:
    """What a drafter's config means. Raises ``E_CONFIG``."""
    reading = READINGS[layout]
    values, faults = read_values(reading.fields, config)
    raise_all(faults)
    return resolve(reading.algorithm, values, reading.rules)


def drafter_request(
    source: Checkpoint, identity: Identity, target: Target, type_name: str, pre: str | None, name: str | None
) -> GgufRequest:
    """The request for a drafter. Raises ``ConvertError`` with everything that llama.cpp could not do with it."""
    arch = _arch_of(identity, source.config)
    spec = _with_default_taps(drafter_spec(identity.layout.name, source.config), target)
    missing = [item for item in NEEDED if not getattr(spec, item)]
    raise_all(finding("E_CONFIG", "error", f"the config does not state '{item}'", file=CONFIG) for item in missing)
    assert spec.layers is not None
    assert spec.vocabulary is not None
    assert spec.heads is not None
    assert spec.kv_heads is not None
    raise_all([*context_faults(source.config), *_spec_faults(arch, spec), *_target_faults(arch, spec, target)])
    vocabulary = target.vocabulary(spec.vocabulary, pre)
    if arch == "dflash" and spec.mask_token is not None:
        vocabulary["tokenizer.ggml.mask_token_id"] = u32(spec.mask_token)
    leave, notes = _copies(source, spec, target)
    return GgufRequest(
        type_name,
        ARCHS[arch],
        spec.layers,
        {"num_attention_heads": spec.heads, "num_key_value_heads": spec.kv_heads},
        drafter_metadata(arch, spec, config_value(source.config, "max_position_embeddings"), target.mrope),
        vocabulary,
        spec.vocabulary,
        leave=leave,
        name=name,
        findings=[*notes, *_target_notes(target)],
    )


def _with_default_taps(spec: DrafterSpec, target: Target) -> DrafterSpec:
    """EAGLE-3 without ids reads layers 2, n/2 and n-3 (llama.cpp ``conversion/llama.py``, SGLang alike)."""
    from dataclasses import replace

    if spec.algorithm != "eagle3" or spec.taps is not None or target.layers is None:
        return spec
    return replace(spec, taps=(1, target.layers // 2 - 1, target.layers - 4))


def _spec_faults(arch: str, spec: DrafterSpec) -> Iterable[Finding]:
    def loss(message: str) -> Finding:
        return finding("E_LOSS", "error", message, file=CONFIG)

    if not spec.taps:
        yield finding("E_CONFIG", "error", "the config does not state which target layers are read", file=CONFIG)
    if spec.activation not in (None, "silu"):
        yield loss(f"llama.cpp's {arch} has no activation '{spec.activation}' here")
    if spec.rope is not None and not spec.rope.neox:
        yield loss("interleaved rotary embeddings are not converted")
    if spec.rope is not None and spec.rope.kind not in ("default", *ROPE_SCALINGS):
        yield loss(f"rope scaling '{spec.rope.kind}' cannot be stated in the metadata of {arch}")
    if spec.draft_vocabulary and spec.vocabulary and spec.draft_vocabulary > spec.vocabulary:
        yield finding("E_CONFIG", "error", "the draft vocabulary is larger than the target's", file=CONFIG)
    yield from _dflash_faults(spec) if arch == "dflash" else _eagle_faults(spec)


def _dflash_faults(spec: DrafterSpec) -> Iterable[Finding]:
    if spec.mask_token is None or not 0 <= spec.mask_token < (spec.vocabulary or 0):
        yield finding("E_CONFIG", "error", f"mask token {spec.mask_token} is not an id of the vocabulary: without it "
                      "llama.cpp loads the drafter and fails at the first draft", file=CONFIG)  # fmt: skip
    if len({layer.causal for layer in spec.attention}) > 1:
        yield finding("E_LOSS", "error", "some layers are causal and some are not; llama.cpp has one flag for all",
                      file=CONFIG, fix="state is_causal if all layers are meant alike")  # fmt: skip
    if spec.markov_rank and spec.markov_head not in (None, "vanilla"):
        yield finding("E_LOSS", "error", f"llama.cpp has no Markov head of type '{spec.markov_head}'", file=CONFIG)
    if spec.conv_kernel is not None:
        group, top, hidden = spec.conv_group or 0, spec.selector_top_k or 0, spec.hidden or 0
        if not group or hidden % group or hidden < top * (top + 1):
            yield finding("E_LOSS", "error", f"llama.cpp needs a width ({hidden}) that is a multiple of the group "
                          f"({group}) and at least k(k+1) for k = {top}", file=CONFIG)  # fmt: skip


def _eagle_faults(spec: DrafterSpec) -> Iterable[Finding]:
    if len(spec.taps or ()) != 3 or spec.layers != 1:
        yield finding("E_LOSS", "error", f"llama.cpp's eagle3 has one layer and reads three of the target; this has "
                      f"{spec.layers} and {len(spec.taps or ())}", file=CONFIG)  # fmt: skip
    for flag in ("fc_norm", "norm_output"):
        if getattr(spec, flag):
            yield finding("E_LOSS", "error", f"llama.cpp's eagle3 has no '{flag}'", file=CONFIG)


def _target_faults(arch: str, spec: DrafterSpec, target: Target) -> Iterable[Finding]:
    width = spec.hidden if arch == "dflash" else spec.target_hidden
    if target.hidden is not None and width != target.hidden:
        yield finding("E_TARGET", "error", f"the drafter reads features of width {width}, the target's have "
                      f"{target.hidden}", fix="check --target-model")  # fmt: skip
    if target.rows is not None and spec.vocabulary != target.rows:
        yield finding("E_TARGET", "error", f"the drafter is for a vocabulary of {spec.vocabulary}, the target's has "
                      f"{target.rows}: llama.cpp aborts at a draft", fix="check --target-model")  # fmt: skip
    if target.layers is None:
        return
    if spec.target_layers is not None and spec.target_layers != target.layers:
        yield finding("E_TARGET", "error", f"the drafter is for a target of {spec.target_layers} layers, this one has "
                      f"{target.layers}", fix="check --target-model")  # fmt: skip
    last = target.layers if arch == "eagle3" or target.model_type in TARGETS_WITH_LAST_OUTPUT else target.layers - 1
    for tap in spec.taps or ():
        if not 0 <= tap + 1 <= last:
            yield finding(
                "E_TARGET", "error", f"the drafter reads the output of target layer {tap}; llama.cpp hands out "
                f"those of 0 to {last - 1}", data={"layer": tap, "target_layers": target.layers},
            )  # fmt: skip


def _target_notes(target: Target) -> Iterable[Finding]:
    if target.model_type not in TARGETS_WITH_LAYER_INPUTS:
        yield finding(
            "W_TARGET", "warning", f"llama.cpp 0.5.0-dev does not hand out the layer inputs of '{target.model_type}' "
            "targets: drafting would abort", fix="try it with the release of llama.cpp that will serve it",
        )  # fmt: skip


def _copies(source: Checkpoint, spec: DrafterSpec, target: Target) -> tuple[dict[str, str], list[Finding]]:
    """Embeddings and head that a drafter holds: the target's are left out, own ones are kept.

    llama.cpp takes what is missing from the target, except that a drafter with embeddings and no head gets its
    embeddings as head; so embeddings are never stored without a head.
    """
    embedding = next((name for name in EMBEDDINGS if name in source.tensors), None)
    head = next((name for name in HEADS if name in source.tensors), None)
    if spec.draft_vocabulary != spec.vocabulary:
        if head is None:
            raise refusal("E_LAYOUT_MISSING", "a drafter with its own vocabulary needs its head 'lm_head.weight'")
        return {}, []
    if embedding is None and head is None:
        return {}, []
    equal = copies_of_target(source, target)
    mine = [name for name in (embedding, head) if name is not None]
    own = [name for name in mine if equal.get(name) is False]
    if spec.algorithm == "eagle3" and head is not None and not equal:
        return {}, []
    if own == [embedding] and head is None:
        raise refusal("E_LOSS", "the drafter has own embeddings and no head; llama.cpp would use them as the head",
                      tensor=embedding)  # fmt: skip
    if own:
        return ({}, []) if head is not None else ({str(embedding): "the target's, byte for byte"}, [])
    reason = "the target's, byte for byte" if equal else "llama.cpp takes the target's"
    notes = [] if equal else [
        finding("W_TARGET", "warning", "the target's weights are not at hand: not checked that the drafter's copies "
                f"are equal to them: {', '.join(mine)}", fix="give the target's folder with its weights")
    ]  # fmt: skip
    return dict.fromkeys(mine, reason), notes


def model_request(
    source: Checkpoint, identity: Identity, target: Target, type_name: str, pre: str | None, name: str | None
) -> GgufRequest:
    """The request for a causal model; ``target`` is where its vocabulary comes from."""
    arch = _arch_of(identity, source.config)
    raise_all(value_faults(source.config))
    config = model_values(source.config)
    for key in ("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "vocab_size"):
        if type(config.get(key)) is not int:
            raise refusal("E_CONFIG", f"the config does not state '{key}'", file=CONFIG, key=key)
    raise_all(model_faults(arch, config))
    factors = rope_factors(config)
    return GgufRequest(
        type_name,
        ARCHS[arch],
        config["num_hidden_layers"],
        {key: config[key] for key in ("num_attention_heads", "num_key_value_heads")},
        model_metadata(arch, config),
        target.vocabulary(config["vocab_size"], pre),
        config["vocab_size"],
        experts=(config.get("num_experts") or 0) if arch == "qwen3moe" else 0,
        leave=_tied_head(source, arch),
        given={} if factors is None else {"rope_freqs.weight": factors},
        name=name,
    )


def _tied_head(source: Checkpoint, arch: str) -> dict[str, str]:
    """A head that is the embeddings once more is left out; a model that should have one must have it."""
    embedding = next((name for name in EMBEDDINGS if name in source.tensors), None)
    head = next((name for name in HEADS if name in source.tensors), None)
    stated = source.config.get("tie_word_embeddings")
    tied = arch in TIED_BY_DEFAULT if stated is None else bool(stated)
    if head is None and not tied:
        raise refusal("E_LAYOUT_MISSING", "the embeddings are not tied, and there is no 'lm_head.weight'",
                      fix="state tie_word_embeddings if the embeddings are the head")  # fmt: skip
    if head is not None and tied and embedding is not None and same_bytes(source, embedding, head):
        return {head: "the embeddings once more; llama.cpp uses them as the head"}
    return {}
