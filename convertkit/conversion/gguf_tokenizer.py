"""The vocabulary of a GGUF: read from a Hugging Face folder, or copied from another GGUF.

Format facts: llama.cpp 0.5.0-dev ``conversion/base.py`` (what is written) and ``src/llama-vocab.cpp`` (what the names
of pre-tokenizers stand for); sentencepiece ``sentencepiece_model.proto`` (fields 1.1 piece, 1.2 score, 1.3 type).
A pre-tokenizer is recognised by its regular expression, not by the ids that some text gets, so that an extended
vocabulary is no obstacle.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from convertkit.containers.files import read_small
from convertkit.containers.folder import CONFIG
from convertkit.containers.gguf_values import Scalar, Strings, Value, numbers, strings, text, truth, u32
from convertkit.containers.strict_json import parse_json
from convertkit.errors import refusal

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
"""Token types, the same numbers in sentencepiece and in GGUF."""

SPECIAL_TOKENS: Mapping[str, str] = {
    "bos": "bos_token_id",
    "eos": "eos_token_id",
    "unk": "unknown_token_id",
    "sep": "seperator_token_id",
    "pad": "padding_token_id",
    "cls": "cls_token_id",
    "mask": "mask_token_id",
}
"""Names in ``tokenizer_config.json`` and the keys of a GGUF, the misspelt one included (gguf 0.19.0 ``Keys``)."""

_LETTERS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_END = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_CASED = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
PRE_TOKENIZERS: Mapping[str, str] = {
    _LETTERS + r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _END: "qwen2",
    _LETTERS + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _END: "llama-bpe",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|"
    + _END: "qwen35",
    _CASED + r"*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+" + _ENDINGS + "|" + _CASED + r"+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*" + _ENDINGS
    + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _END: "gpt-4o",
    _CASED + r"*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|" + _CASED + r"+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|"
    + _END: "tekken",
    "": "gpt-2",
}  # fmt: skip
"""Expression of the split before byte-level BPE, and llama.cpp's name for it; "" is the built-in one of GPT-2."""

MAX_TOKENS = 1 << 24
PAD_SCORE = -10_000.0
ADDED_SCORE = -1_000.0


def vocabulary_of_gguf(metadata: Mapping[str, Value]) -> dict[str, Value]:
    """All ``tokenizer.*`` keys. Raises ``E_GGUF_TOKENIZER`` if the file has none."""
    keys = {key: value for key, value in metadata.items() if key.startswith("tokenizer.")}
    if not isinstance(keys.get("tokenizer.ggml.tokens"), Strings):
        raise refusal("E_GGUF_TOKENIZER", "the GGUF holds no vocabulary", key="tokenizer.ggml.tokens")
    return keys


def vocabulary_of_folder(folder: Path, size: int, pre: str | None = None) -> dict[str, Value]:
    """Vocabulary of ``size`` tokens (unused ones are added), special tokens and chat template of a folder.

    Reads ``tokenizer.model`` (sentencepiece) or ``tokenizer.json`` (byte-level BPE). Raises ``E_TOKENIZER`` if it is
    of another kind, too large, or its pre-tokenizer is not known and ``pre`` not given.
    """
    if size > MAX_TOKENS:
        raise _refuse(f"a vocabulary of {size:,}; the limit is {MAX_TOKENS:,}", CONFIG, "check 'vocab_size'")
    settings = _json(folder, "tokenizer_config.json")
    if (folder / "tokenizer.model").is_file():
        made, ids = _sentencepiece(folder, settings, size)
    else:
        made, ids = _byte_level(folder, size, pre)
    made.update(_special_tokens(folder, settings, ids, size))
    template = _chat_template(folder, settings)
    return made if template is None else {**made, "tokenizer.chat_template": text(template)}


def _json(folder: Path, name: str) -> dict[str, Any]:
    if not os.path.lexists(folder / name):
        return {}
    value = parse_json(read_small(folder, name), name)
    return value if isinstance(value, dict) else {}


def _refuse(message: str, file: str, fix: str) -> Exception:
    return refusal("E_TOKENIZER", message, file=file, fix=fix)


def _check_size(highest: int, size: int, file: str) -> None:
    if highest >= size:
        raise _refuse(
            f"token {highest} in a model of {size} rows", file, "convert with the tokenizer of this model's target"
        )


def _byte_level(folder: Path, size: int, pre: str | None) -> tuple[dict[str, Value], dict[str, int]]:
    file = "tokenizer.json"
    document = _json(folder, file)
    model = document.get("model", {})
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    if not isinstance(vocabulary, dict) or model.get("byte_fallback") or model.get("type", "BPE") != "BPE":
        raise _refuse(
            "no byte-level BPE tokenizer", file, "copy the vocabulary from a GGUF: --target-model TARGET.gguf"
        )
    name = pre or recognise(document.get("pre_tokenizer"))
    if name is None:
        raise _refuse(f"unknown pre-tokenizer: {split_of(document.get('pre_tokenizer'))}", file,
                      "name llama.cpp's own with --pre NAME, if it has one for this expression")  # fmt: skip
    ids = dict(vocabulary)
    tokens = [f"[PAD{i}]" for i in range(size)]
    types = [UNUSED] * size
    _check_size(max(ids.values(), default=-1), size, file)
    for token, number in vocabulary.items():
        tokens[number], types[number] = token, NORMAL
    for added in document.get("added_tokens", []):
        number, token = added["id"], added["content"]
        _check_size(number, size, file)
        ids[token] = number
        control = added.get("special") or _looks_special(token)
        tokens[number], types[number] = (
            token if control else token.replace("▁", " "),
            CONTROL if control else USER_DEFINED,
        )
    return {
        "tokenizer.ggml.model": text("gpt2"),
        "tokenizer.ggml.pre": text(name),
        "tokenizer.ggml.tokens": strings(tokens),
        "tokenizer.ggml.token_type": numbers("i32", types),
        "tokenizer.ggml.merges": strings([_merge(pair) for pair in model.get("merges", [])]),
    }, ids


def _merge(pair: Any) -> str:
    """``a b``; a space inside a part is shifted out of the way, as in byte-level vocabularies."""
    return pair if isinstance(pair, str) else " ".join(part.replace(" ", "Ġ") for part in pair)


def _looks_special(token: str) -> bool:
    """Control tokens that vocabularies list as ordinary ones (``base.py`` ``does_token_look_special``)."""
    return (
        token in ("<pad>", "<mask>", "<2mass>", "[@BOS@]")
        or (token.startswith("<|") and token.endswith("|>"))
        or (token.startswith("<｜") and token.endswith("｜>"))
        or (token.startswith("<unused") and token.endswith(">"))
    )


def split_of(pre_tokenizer: Any) -> str:
    """The regular expression that splits text before byte-level BPE; "" for GPT-2's own, "?" if there is none."""
    steps = [pre_tokenizer] if isinstance(pre_tokenizer, dict) else []
    if steps and steps[0].get("type") == "Sequence":
        steps = steps[0].get("pretokenizers", [])
    patterns = [step.get("pattern", {}).get("Regex", "?") for step in steps if step.get("type") == "Split"]
    if not any(step.get("type") == "ByteLevel" for step in steps):
        return "?"
    return " then ".join(patterns)


def recognise(pre_tokenizer: Any) -> str | None:
    """llama.cpp's name of a pre-tokenizer in the form of ``tokenizer.json``, or None."""
    return PRE_TOKENIZERS.get(split_of(pre_tokenizer))


def _sentencepiece(folder: Path, settings: Mapping[str, Any], size: int) -> tuple[dict[str, Value], dict[str, int]]:
    file = "tokenizer.model"
    tokens = [f"[PAD{i}]" for i in range(size)]
    scores, types = [PAD_SCORE] * size, [UNUSED] * size
    ids: dict[str, int] = {}
    for number, (piece, score, kind) in enumerate(sentencepieces(read_small(folder, file))):
        _check_size(number, size, file)
        tokens[number], scores[number], types[number] = piece, score, kind
        ids[piece] = number
    added = {int(key): row for key, row in settings.get("added_tokens_decoder", {}).items()}
    for number, row in sorted(added.items()):
        token = row["content"]
        _check_size(number, size, "tokenizer_config.json")
        ids[token] = number
        control = row.get("special") or _looks_special(token)
        tokens[number] = token if control else token.replace("▁", " ")
        types[number], scores[number] = CONTROL if control else USER_DEFINED, ADDED_SCORE
    prefix = settings.get("add_prefix_space")
    return {
        "tokenizer.ggml.model": text("llama"),
        "tokenizer.ggml.pre": text("default"),
        "tokenizer.ggml.tokens": strings(tokens),
        "tokenizer.ggml.scores": numbers("f32", scores),
        "tokenizer.ggml.token_type": numbers("i32", types),
        **({"tokenizer.ggml.add_space_prefix": truth(prefix)} if isinstance(prefix, bool) else {}),
    }, ids


def sentencepieces(data: bytes) -> Iterator[tuple[str, float, int]]:
    """Piece, score and type of every entry of a sentencepiece model. Raises ``E_TOKENIZER`` if it is damaged."""
    try:
        for field, value in _fields(data):
            if field == 1 and isinstance(value, bytes):
                row = dict(_fields(value))
                score = struct.unpack("<f", row[2])[0] if isinstance(row.get(2), bytes) else 0.0
                kind = row.get(3, NORMAL)
                yield bytes(row.get(1, b"")).decode(), float(score), kind if isinstance(kind, int) else NORMAL
    except (IndexError, ValueError, struct.error) as error:
        raise _refuse("the file is not a sentencepiece model", "tokenizer.model", "fetch it again") from error


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Fields of a protobuf message: numbers as int, the rest as bytes."""
    position = 0
    while position < len(data):
        tag, position = _varint(data, position)
        kind = tag & 7
        if kind == 0:
            value, position = _varint(data, position)
            yield tag >> 3, value
            continue
        if kind not in (1, 2, 5):
            raise ValueError("unknown wire type")
        length = {1: 8, 5: 4}.get(kind, 0)
        if kind == 2:
            length, position = _varint(data, position)
        if position + length > len(data):
            raise ValueError("cut")
        yield tag >> 3, data[position : position + length]
        position += length


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, position
        shift += 7
        if shift > 63:
            raise ValueError("number too long")


def _special_tokens(folder: Path, settings: Mapping[str, Any], ids: Mapping[str, int], size: int) -> dict[str, Value]:
    """Ids of special tokens: those that the tokenizer names, else those of the configs; and what is added to texts."""
    config, generation = _json(folder, CONFIG), _json(folder, "generation_config.json")
    made: dict[str, Value] = {}
    for name, key in SPECIAL_TOKENS.items():
        token = settings.get(f"{name}_token")
        token = token.get("content") if isinstance(token, dict) else token
        number = ids.get(token) if isinstance(token, str) else None
        for scope in (config, config.get("text_config", {}), generation):
            stated = scope.get(f"{name}_token_id") if isinstance(scope, dict) else None
            stated = stated[0] if isinstance(stated, list) and stated else stated
            number = stated if number is None and type(stated) is int else number
        if number is not None and 0 <= number < size:
            made[f"tokenizer.ggml.{key}"] = u32(number)
    for name in ("bos", "eos"):
        flag = settings.get(f"add_{name}_token")
        if isinstance(flag, bool):
            made[f"tokenizer.ggml.add_{name}_token"] = truth(flag)
    return made


def _chat_template(folder: Path, settings: Mapping[str, Any]) -> str | None:
    """Copied as text; nothing ever renders it here."""
    if os.path.lexists(folder / "chat_template.jinja"):
        return read_small(folder, "chat_template.jinja", 1 << 24).decode()
    template = settings.get("chat_template", _json(folder, "chat_template.json").get("chat_template"))
    if isinstance(template, list):
        named = {row.get("name"): row.get("template") for row in template if isinstance(row, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else None


def token_count(vocabulary: Mapping[str, Value]) -> int:
    tokens = vocabulary["tokenizer.ggml.tokens"]
    return len(tokens) if not isinstance(tokens, Scalar) else 0
