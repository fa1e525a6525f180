"""The vocabulary of a GGUF: read from a Hugging Face folder, or copied from another GGUF.

Format facts: llama.cpp 0.5.0-dev ``conversion/base.py`` (what is written) and ``src/llama-vocab.cpp`` (what the names
of pre-tokenizers stand for).
Whether a text begins with BOS or ends with EOS is what the tokenizer's own post-processor does, as there.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from operator import itemgetter
from pathlib import Path
from typing import Any

from convertkit.containers.files import read_small
from convertkit.containers.folder import CONFIG
from convertkit.containers.gguf_values import Scalar, Strings, Value, numbers, strings, text, truth, u32
from convertkit.containers.strict_json import parse_json
from convertkit.conversion.gguf_pretokenizer import described, ends_of, recognise
from convertkit.conversion.gguf_sentencepiece import CONTROL, NORMAL, UNUSED, USER_DEFINED, adds_prefix, sentencepieces
from convertkit.errors import refusal

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

DOCUMENT = "tokenizer.json"
TEMPLATE = "chat_template.jinja"
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
    settings, document = _json(folder, "tokenizer_config.json"), _json(folder, DOCUMENT)
    if (folder / "tokenizer.model").is_file():
        made, ids = _sentencepiece(folder, settings, size)
    else:
        made, ids = _byte_level(document, size, pre)
    made.update(_special_tokens(folder, settings, ids, size))
    made.update(_ends(document, settings))
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


def _byte_level(document: Mapping[str, Any], size: int, pre: str | None) -> tuple[dict[str, Value], dict[str, int]]:
    vocabulary = _vocabulary(document)
    name = pre or recognise(document)
    if name is None:
        raise _refuse(f"unknown pre-tokenizer: {described(document.get('pre_tokenizer'))}", DOCUMENT,
                      "name llama.cpp's own with --pre NAME, if it has one for these steps")  # fmt: skip
    tokens, types, ids = _numbered(vocabulary, document.get("added_tokens"), size)
    return {
        "tokenizer.ggml.model": text("gpt2"),
        "tokenizer.ggml.pre": text(name),
        "tokenizer.ggml.tokens": strings(tokens),
        "tokenizer.ggml.token_type": numbers("i32", types),
        "tokenizer.ggml.merges": strings(_merges(document["model"].get("merges"))),
    }, ids


def _vocabulary(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Tokens to their numbers, of a byte-level BPE. Raises E_TOKENIZER for any other tokenizer, or none."""
    file, model = DOCUMENT, document.get("model", {})
    if not document:
        raise _refuse(
            "the folder that the vocabulary is taken from has no tokenizer", file,
            "put the model's tokenizer files there; a drafter can take it from a GGUF: --target-model TARGET.gguf",
        )  # fmt: skip
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    if (
        not isinstance(vocabulary, dict)
        or not vocabulary
        or model.get("byte_fallback")
        or model.get("type", "BPE") != "BPE"
    ):
        raise _refuse(
            "no byte-level BPE tokenizer", file, "copy the vocabulary from a GGUF: --target-model TARGET.gguf"
        )
    return vocabulary


def _numbered(
    vocabulary: Mapping[str, Any], added_tokens: Any, size: int
) -> tuple[list[str], list[int], dict[str, int]]:
    """Tokens [size] and their types [size], by number, and the number of each token."""
    file = DOCUMENT
    ids: dict[str, int] = {}
    tokens = [f"[PAD{i}]" for i in range(size)]
    types = [UNUSED] * size
    for row in vocabulary.items():
        token, number = _token(*row, size, file)
        ids[token] = number
        if types[number] != UNUSED:
            raise _refuse(f"tokens {tokens[number]!r} and {token!r} have the same number", file, "fetch the file again")
        tokens[number], types[number] = token, NORMAL
    for added in _rows(added_tokens):
        token, number = _token(added.get("content"), added.get("id"), size, file)
        ids[token] = number
        control = added.get("special") or _looks_special(token)
        tokens[number], types[number] = (
            token if control else token.replace("▁", " "),
            CONTROL if control else USER_DEFINED,
        )
    return tokens, types, ids


def _rows(value: Any) -> list[dict[str, Any]]:
    return [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []


def _token(token: Any, number: Any, size: int, file: str) -> tuple[str, int]:
    """A token and its number, once they are known to be that."""
    if not isinstance(token, str) or type(number) is not int or number < 0:
        raise _refuse(f"token {token!r} has the number {number!r}", file, "fetch the file again")
    _check_size(number, size, file)
    return token, number


def _merges(pairs: Any) -> list[str]:
    """``a b`` each; a space inside a part is shifted out of the way, as in byte-level vocabularies."""
    made = []
    for pair in pairs if isinstance(pairs, list) else []:
        parts = pair.split(" ") if isinstance(pair, str) else pair
        if not isinstance(parts, list) or len(parts) != 2 or not all(isinstance(part, str) for part in parts):
            raise _refuse(f"{pair!r} is not a merge of two tokens", DOCUMENT, "fetch the file again")
        made.append(" ".join(part.replace(" ", "Ġ") for part in parts))
    return made


def _looks_special(token: str) -> bool:
    """Control tokens that vocabularies list as ordinary ones (``base.py`` ``does_token_look_special``)."""
    return (
        token in ("<pad>", "<mask>", "<2mass>", "[@BOS@]")
        or (token.startswith("<|") and token.endswith("|>"))
        or (token.startswith("<｜") and token.endswith("｜>"))
        or (token.startswith("<unused") and token.endswith(">"))
    )


def _sentencepiece(folder: Path, settings: Mapping[str, Any], size: int) -> tuple[dict[str, Value], dict[str, int]]:
    file = "tokenizer.model"
    tokens = [f"[PAD{i}]" for i in range(size)]
    scores, types = [PAD_SCORE] * size, [UNUSED] * size
    ids: dict[str, int] = {}
    data = read_small(folder, file)
    for number, (piece, score, kind) in enumerate(sentencepieces(data)):
        _check_size(number, size, file)
        tokens[number], scores[number], types[number] = piece, score, kind
        ids[piece] = number
    for place, row in _decoder(settings):
        token, number = _token(row.get("content"), place, size, "tokenizer_config.json")
        ids[token] = number
        control = row.get("special") or _looks_special(token)
        tokens[number] = token if control else token.replace("▁", " ")
        types[number], scores[number] = CONTROL if control else USER_DEFINED, ADDED_SCORE
    prefix = settings.get("add_prefix_space")
    prefix = prefix if isinstance(prefix, bool) else adds_prefix(data)
    return {
        "tokenizer.ggml.model": text("llama"),
        "tokenizer.ggml.pre": text("default"),
        "tokenizer.ggml.tokens": strings(tokens),
        "tokenizer.ggml.scores": numbers("f32", scores),
        "tokenizer.ggml.token_type": numbers("i32", types),
        **({} if prefix is None else {"tokenizer.ggml.add_space_prefix": truth(prefix)}),
    }, ids


def _decoder(settings: Mapping[str, Any]) -> list[tuple[int, dict[str, Any]]]:
    """Added tokens of ``tokenizer_config.json`` in the order of their numbers; twenty digits are too large already."""
    rows = settings.get("added_tokens_decoder")
    listed = rows.items() if isinstance(rows, dict) else ()
    return sorted(
        ((int(key[:20]), row) for key, row in listed if key.isdecimal() and isinstance(row, dict)), key=itemgetter(0)
    )


def _special_tokens(folder: Path, settings: Mapping[str, Any], ids: Mapping[str, int], size: int) -> dict[str, Value]:
    """Ids of special tokens: those that the tokenizer names, else those of the configs."""
    config, generation = _json(folder, CONFIG), _json(folder, "generation_config.json")
    made: dict[str, Value] = {}
    for name, key in SPECIAL_TOKENS.items():
        number = ids.get(_named(settings, name) or "")
        for scope in (config, config.get("text_config", {}), generation):
            stated = scope.get(f"{name}_token_id") if isinstance(scope, dict) else None
            stated = stated[0] if isinstance(stated, list) and stated else stated
            number = stated if number is None and type(stated) is int else number
        if number is not None and 0 <= number < size:
            made[f"tokenizer.ggml.{key}"] = u32(number)
    return made


def _ends(document: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Value]:
    """Whether BOS and EOS are added to a text: what the tokenizer does, else what its settings say."""
    stated = {name: settings.get(f"add_{name}_token") for name in ("bos", "eos")}
    done = ends_of(document, {name: _named(settings, name) for name in ("bos", "cls", "eos")})
    flags = {**stated, **done}
    return {f"tokenizer.ggml.add_{name}_token": truth(flag) for name, flag in flags.items() if isinstance(flag, bool)}


def _named(settings: Mapping[str, Any], name: str) -> str | None:
    token = settings.get(f"{name}_token")
    token = token.get("content") if isinstance(token, dict) else token
    return token if isinstance(token, str) else None


def _chat_template(folder: Path, settings: Mapping[str, Any]) -> str | None:
    """Copied as text; nothing ever renders it here."""
    if os.path.lexists(folder / TEMPLATE):
        try:
            return read_small(folder, TEMPLATE, 1 << 24).decode()
        except UnicodeDecodeError:
            raise _refuse("the chat template is not UTF-8", TEMPLATE, "fetch the file again") from None
    template = settings.get("chat_template", _json(folder, "chat_template.json").get("chat_template"))
    if isinstance(template, list):
        named = {row.get("name"): row.get("template") for row in template if isinstance(row, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else None


def token_count(vocabulary: Mapping[str, Value]) -> int:
    """Tokens of a vocabulary, padding included."""
    tokens = vocabulary["tokenizer.ggml.tokens"]
    return len(tokens) if not isinstance(tokens, Scalar) else 0
