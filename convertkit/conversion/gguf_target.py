"""What a GGUF drafter must know of its target: sizes and vocabulary, from a folder or from the target's GGUF."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from convertkit.checkpoint import Checkpoint, TensorRef
from convertkit.containers.files import read_small
from convertkit.containers.folder import CONFIG, WEIGHTS, open_any
from convertkit.containers.gguf_parts import SUFFIX
from convertkit.containers.gguf_values import Numbers, Scalar, Value
from convertkit.containers.reader import Reader
from convertkit.containers.strict_json import parse_json
from convertkit.conversion.gguf_tokenizer import token_count, vocabulary_of_folder, vocabulary_of_gguf
from convertkit.conversion.target import TEXT_SECTIONS
from convertkit.conversion.tiles import byte_chunks
from convertkit.errors import refusal, shown
from convertkit.layouts.gguf_vocabulary import vocabulary_faults

EMBEDDINGS = ("model.embed_tokens.weight", "embed_tokens.weight", "model.language_model.embed_tokens.weight",
              "language_model.model.embed_tokens.weight")  # fmt: skip
HEADS = ("lm_head.weight", "language_model.lm_head.weight", "model.lm_head.weight")
GGUF_MODEL_TYPES: Mapping[str, str] = {"qwen3moe": "qwen3_moe", "qwen35": "qwen3_5", "qwen35moe": "qwen3_5_moe",
                                       "gpt-oss": "gpt_oss", "qwen3next": "qwen3_next"}  # fmt: skip


@dataclass(frozen=True)
class Target:
    """The target model. ``place`` is its folder or GGUF; ``mrope`` says that its positions have sections; ``rows`` are
    those of its embeddings by its config."""

    place: Path
    model_type: str
    hidden: int | None
    layers: int | None
    mrope: bool
    tied: bool
    gguf: Mapping[str, Value] | None = None
    rows: int | None = None

    def vocabulary(self, size: int, pre: str | None) -> dict[str, Value]:
        """The ``tokenizer.*`` keys for a model of ``size`` tokens. Raises ``E_TOKENIZER``."""
        keys = vocabulary_of_folder(self.place, size, pre) if self.gguf is None else vocabulary_of_gguf(self.gguf)
        if token_count(keys) != size:
            raise refusal("E_TOKENIZER", f"the target's GGUF has {token_count(keys):,} tokens, the model {size:,} rows",
                          file=self.place.name)  # fmt: skip
        for message in vocabulary_faults(keys).values():
            raise refusal("E_TOKENIZER", message, file=self.place.name, fix="correct the tokenizer's files")
        return keys


def open_target(place: Path) -> Target:
    """Read a target's config, or the header of its GGUF: a file, or a folder without a config. No weight is read."""
    if not os.path.lexists(place / CONFIG) and (place.name.endswith(SUFFIX) or any(place.glob(f"*{SUFFIX}"))):
        opened = open_any(place)
        if opened.container == "gguf":
            return _of_gguf(place, opened)
    if not place.is_dir():
        raise refusal("E_NOT_FOUND", f"the target is neither a folder nor a GGUF: {shown(str(place))}",
                      fix="check --target-model")  # fmt: skip
    config = parse_json(read_small(place, CONFIG), CONFIG)
    if not isinstance(config, dict):
        raise refusal("E_JSON", "the file does not hold a JSON object", file=CONFIG)
    text = next((config[key] for key in TEXT_SECTIONS if isinstance(config.get(key), dict)), config)
    rope = text.get("rope_parameters") or text.get("rope_scaling") or {}
    return Target(
        place,
        str(text.get("model_type") or config.get("model_type") or ""),
        _whole(text.get("hidden_size")),
        _whole(text.get("num_hidden_layers")),
        isinstance(rope, dict) and "mrope_section" in rope,
        bool(config.get("tie_word_embeddings", text.get("tie_word_embeddings", False))),
        rows=_whole(text.get("vocab_size")),
    )


def _whole(value: Any) -> int | None:
    return value if type(value) is int and value > 0 else None


def _of_gguf(place: Path, opened: Checkpoint) -> Target:
    metadata: Mapping[str, Value] = opened.metadata
    arch = _scalar(metadata, "general.architecture")

    def number(key: str) -> int | None:
        return _whole(_scalar(metadata, f"{arch}.{key}"))

    mrope = isinstance(metadata.get(f"{arch}.rope.dimension_sections"), Numbers)
    tied = "output.weight" not in opened.tensors
    kind = GGUF_MODEL_TYPES.get(str(arch), str(arch))
    return Target(place, kind, number("embedding_length"), number("block_count"), mrope, tied, metadata)


def _scalar(metadata: Mapping[str, Value], key: str) -> Any:
    value = metadata.get(key)
    return value.value if isinstance(value, Scalar) else None


def copies_of_target(source: Checkpoint, target: Target) -> dict[str, bool]:
    """Which of the source's embeddings and head are the target's, byte for byte; empty if the target's weights are not
    at hand. Names are those of the source."""
    own = {kind: next((name for name in names if name in source.tensors), None)
           for kind, names in (("embedding", EMBEDDINGS), ("head", HEADS))}  # fmt: skip
    if target.gguf is not None or not any(own.values()) or not any(target.place.glob(f"*{WEIGHTS}")):
        return {}
    opened = open_any(target.place)
    found: dict[str, bool] = {}
    with Reader(source) as one, Reader(opened) as two:
        for kind, names in (("embedding", EMBEDDINGS), ("head", EMBEDDINGS if target.tied else HEADS)):
            name = own[kind]
            theirs = next((other for other in names if other in opened.tensors), None)
            if name is not None and theirs is not None:
                found[name] = _equal(one, source.tensors[name], two, opened.tensors[theirs])
    return found


def _equal(one: Reader, left: TensorRef, two: Reader, right: TensorRef) -> bool:
    if (left.spec.dtype, left.spec.shape) != (right.spec.dtype, right.spec.shape):
        return False
    return all(a == b for a, b in zip(_chunks(one, left), _chunks(two, right), strict=True))


def same_bytes(source: Checkpoint, one: str, other: str) -> bool:
    """Whether two tensors of a checkpoint are equal in type, shape and bytes."""
    with Reader(source) as reader:
        return _equal(reader, source.tensors[one], reader, source.tensors[other])


def _chunks(reader: Reader, ref: TensorRef) -> Iterator[bytes]:
    for offset, length in byte_chunks(ref.size_bytes):
        buffer = bytearray(length)
        reader.read_into(ref, offset, memoryview(buffer))
        yield bytes(buffer)
