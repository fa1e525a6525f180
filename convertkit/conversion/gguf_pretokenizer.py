"""Recognising a pre-tokenizer by its structure: the steps of ``tokenizer.json`` and llama.cpp's name for them.

Format facts: llama.cpp 0.5.0-dev ``src/llama-vocab.cpp`` (``llm_tokenizer_bpe``), which quotes the expressions of the
original files or splits by the same ones. The ids that some text gets are not asked, so that an extended vocabulary is
no obstacle.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""What ``ByteLevel`` splits by unless it is told not to (tokenizers 0.23 ``byte_level.rs``)."""
DIGIT, DIGITS = r"\p{N}", r"\p{N}+"

_SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_END = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n]*|"
_CASED = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_SMALL = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_O200K = f"{_CASED}*{_SMALL}+{_SHORT}?|{_CASED}+{_SMALL}*{_SHORT}?|" + r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _END
_TEKKEN = f"{_CASED}*{_SMALL}+|{_CASED}+{_SMALL}*|" + r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _END
_LLAMA3 = f"{_SHORT}|{_WORD}|" + r"\p{N}{1,3}|" + _SIGNS + _END
_MARKED = r"[\p{L}\p{M}]+"
_CJK = "[一-龥぀-ゟ゠-ヿ]+"
_ASCII_SIGN = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"""
_DEEPSEEK = _ASCII_SIGN + r"[A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?" + _MARKED + r"| ?[\p{P}\p{S}]+[\r\n]*|" + _END

PRE_TOKENIZERS: Mapping[tuple[str, ...], str] = {
    (f"{_SHORT}|{_WORD}|" + r"\p{N}|" + _SIGNS + _END,): "qwen2",
    (_LLAMA3,): "llama-bpe",
    (_SHORT + r"|[^\r\n\p{L}\p{N}]?" + _MARKED + r"|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|" + _END,): "qwen35",
    (_O200K,): "gpt-4o",
    (_TEKKEN,): "tekken",
    (r"\p{N}{1,3}", _CJK, _DEEPSEEK): "deepseek-v3",
    (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", DIGIT): "deepseek-coder",
    (r"\p{N}{1,3}", f"{_SHORT}|{_WORD}|" + r"\p{N}+|" + _SIGNS + _END): "minicpm5",
    (r"\d{1,3}(?=(?:\d{3})*\b)", _O200K): "tiny_aya",
    (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",):
        "bailingmoe",
    (f"{_SHORT}|{_WORD}|" + r"\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|" + _END,): "seed-coder",
    (DIGIT, GPT2): "smollm",
    (GPT2,): "gpt-2",
}  # fmt: skip
"""Expressions by which text is split one after the other, and llama.cpp's name for them."""
WITH_MERGES = {"llama-bpe": "smaug-bpe"}
"""Of those that stand for ``ignore_merges`` (whole words are taken as they are), the name of the same split without."""

BREAKS = str.maketrans({"\r": r"\r", "\n": r"\n", "\t": r"\t"})


def recognise(document: Mapping[str, Any]) -> str | None:
    """llama.cpp's name for the pre-tokenizer of a ``tokenizer.json``, or None."""
    steps = _steps_of(document.get("pre_tokenizer"))
    name = None if steps is None else PRE_TOKENIZERS.get(steps)
    model = document.get("model")
    whole_words = isinstance(model, Mapping) and bool(model.get("ignore_merges"))
    return name if name is None or whole_words else WITH_MERGES.get(name, name)


def _steps_of(pre_tokenizer: Any) -> tuple[str, ...] | None:
    """Expressions by which the pre-tokenizer splits, in order; None if it is not one for byte-level BPE that only
    splits. Breaks written as such and as escapes are the same."""
    found = list(_steps(pre_tokenizer))
    if not found or found[-1] != BYTE_LEVEL or found.count(BYTE_LEVEL) != 1 or None in found:
        return None
    return tuple(str(step).translate(BREAKS) for step in found if step != BYTE_LEVEL)


BYTE_LEVEL = ""
"""The step that only spells bytes as characters."""


def _steps(value: Any) -> Iterator[str | None]:
    if not isinstance(value, Mapping):
        yield None
        return
    kind = value.get("type")
    if kind == "Sequence":
        inner = value.get("pretokenizers")
        for step in inner if isinstance(inner, list) else [None]:
            yield from _steps(step)
    elif kind == "Split":
        yield _split(value)
    elif kind == "Digits":
        yield DIGIT if value.get("individual_digits") is True else DIGITS
    elif kind == "ByteLevel" and not value.get("add_prefix_space"):
        yield from (GPT2, BYTE_LEVEL) if value.get("use_regex", True) else (BYTE_LEVEL,)
    else:
        yield None


def _split(step: Mapping[str, Any]) -> str | None:
    """The expression of a step that keeps everything: matches apart, or what is not matched removed where that is
    nothing."""
    pattern, behavior = step.get("pattern"), step.get("behavior")
    regex = pattern.get("Regex") if isinstance(pattern, Mapping) else None
    covers = isinstance(regex, str) and regex.endswith(r"|\s+")
    kept = (behavior == "Isolated" and not step.get("invert")) or (
        behavior == "Removed" and step.get("invert") is True and covers
    )
    return regex if isinstance(regex, str) and regex and kept else None


def described(pre_tokenizer: Any) -> str:
    """The pre-tokenizer for a message."""
    steps = [step for step in _steps(pre_tokenizer) if step != BYTE_LEVEL]
    return " then ".join("a step of another kind" if step is None else step for step in steps) or "none"


def ends_of(document: Mapping[str, Any], named: Mapping[str, str | None]) -> dict[str, bool]:
    """Whether a text gets a BOS and an EOS, by the post-processor of a ``tokenizer.json``; nothing if it has none.

    ``named`` are the tokens that the tokenizer's settings call ``bos``, ``cls`` and ``eos``. Where they name no BOS,
    the template's first token is it (gguf 0.19.0 ``SpecialVocab``).
    """
    top = document.get("post_processor")
    inner = top.get("processors") if isinstance(top, Mapping) else None
    ends: dict[str, bool] = {}
    for step in inner if isinstance(inner, list) else [top]:
        if not isinstance(step, Mapping):
            continue
        if step.get("type") == "ByteLevel":
            ends = {"bos": False, "eos": False} | ends
        elif step.get("type") == "TemplateProcessing":
            single = step.get("single")
            pieces = single if isinstance(single, list) and len(single) > 1 else [None, None]
            first, last = _special(pieces[0]), _special(pieces[-1])
            if first is not None:
                ends["bos"] = first in (named.get("bos") or first, named.get("cls"))
            if last is not None:
                ends["eos"] = last == named.get("eos")
    return ends


def _special(piece: Any) -> str | None:
    token = piece.get("SpecialToken") if isinstance(piece, Mapping) else None
    name = token.get("id") if isinstance(token, Mapping) else None
    return name if isinstance(name, str) else None
