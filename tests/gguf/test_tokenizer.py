"""Vocabularies of GGUF files: byte-level BPE and sentencepiece, special tokens, what is refused."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from convertkit.containers.gguf_values import plain
from convertkit.conversion.gguf_pretokenizer import recognise
from convertkit.conversion.gguf_tokenizer import vocabulary_of_folder
from convertkit.errors import ConvertError
from convertkit.verbs.to_gguf import to_gguf
from tests.gguf.models import QWEN2_SPLIT, byte_tokens, write_model, write_tokenizer

LLAMA3_SPLIT = QWEN2_SPLIT.replace(r"\p{N}|", r"\p{N}{1,3}|", 1)


def vocabulary(folder: Path, size: int = 300, pre: str | None = None) -> dict[str, Any]:
    return {
        key.removeprefix("tokenizer.ggml."): plain(value)
        for key, value in vocabulary_of_folder(folder, size, pre).items()
    }


def edit(path: Path, **changes: Any) -> None:
    document = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**document, **changes}))


def test_byte_level_vocabulary(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    found = vocabulary(tmp_path)
    assert found["model"] == "gpt2"
    assert found["tokens"][:256] == byte_tokens()
    assert found["tokens"][291:294] == ["<|endoftext|>", "<|im_end|>", "<tool>"]
    assert found["token_type"][:294] == [1] * 291 + [3, 3, 4]
    assert found["tokens"][294:] == [f"[PAD{i}]" for i in range(294, 300)]
    assert found["token_type"][294:] == [5] * 6
    assert found["merges"][0] == "e a"
    assert found["eos_token_id"] == 292
    assert found["padding_token_id"] == 291
    assert found["add_bos_token"] is False
    assert "bos_token_id" not in found


CASES = [("qwen2", QWEN2_SPLIT), ("smaug-bpe", LLAMA3_SPLIT), ("gpt-2", ""), (None, r"\d")]


@pytest.mark.parametrize(("name", "split"), CASES)
def test_pre_tokenizers_are_known_by_their_expression(name: str | None, split: str, tmp_path: Path) -> None:
    write_tokenizer(tmp_path, split)
    assert recognise(json.loads((tmp_path / "tokenizer.json").read_text())) == name


def split(regex: str, behavior: str = "Isolated", invert: bool = False) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": behavior, "invert": invert}


def named(*steps: dict[str, Any], whole_words: bool = False) -> str | None:
    return recognise({"pre_tokenizer": {"type": "Sequence", "pretokenizers": list(steps)},
                      "model": {"ignore_merges": whole_words}})  # fmt: skip


BYTES = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
DIGITS = {"type": "Digits", "individual_digits": True}
DEEPSEEK = (
    r"\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+"
    "[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
)
"""As DeepSeek's files spell it, with breaks that are breaks."""


def test_steps_decide() -> None:
    assert named(split(LLAMA3_SPLIT), BYTES, whole_words=True) == "llama-bpe"
    assert named(split(LLAMA3_SPLIT), BYTES) == "smaug-bpe"
    assert named(split(QWEN2_SPLIT, "Removed", True), BYTES) == "qwen2"
    assert named(*map(split, DEEPSEEK), BYTES) == "deepseek-v3"
    assert named(DIGITS, {**BYTES, "use_regex": True}) == "smollm"
    assert recognise({"pre_tokenizer": {**BYTES, "use_regex": True}}) == "gpt-2"


def test_steps_that_split_otherwise_are_not_known() -> None:
    first = split(QWEN2_SPLIT)
    for steps in (
        (first, first, BYTES), (first,), (BYTES, first), (BYTES,), (split(QWEN2_SPLIT, "Removed"), BYTES),
        (split(QWEN2_SPLIT, "MergedWithNext"), BYTES), (first, {**BYTES, "use_regex": True}),
        (first, {**BYTES, "add_prefix_space": True}), (*map(split, DEEPSEEK[:2]), BYTES),
        ({"type": "Whitespace"}, BYTES),
    ):  # fmt: skip
        assert named(*steps) is None
    odd: Any
    for odd in (None, [], "x", {"type": "Sequence"}, {"type": "Sequence", "pretokenizers": [3]}, {"type": "Split"}):
        assert recognise({"pre_tokenizer": odd}) is None


def special(name: str) -> dict[str, Any]:
    return {"SpecialToken": {"id": name, "type_id": 0}}


def test_what_is_added_is_what_the_post_processor_adds(tmp_path: Path) -> None:
    """It has the last word; without one the settings have it."""
    write_tokenizer(tmp_path)
    edit(tmp_path / "tokenizer_config.json", bos_token="<|endoftext|>", add_bos_token=False, add_eos_token=True)
    assert (vocabulary(tmp_path)["add_bos_token"], vocabulary(tmp_path)["add_eos_token"]) == (False, True)
    sequence = {"Sequence": {"id": "A", "type_id": 0}}
    template = {"type": "TemplateProcessing", "single": [special("<|endoftext|>"), sequence], "pair": []}
    edit(
        tmp_path / "tokenizer.json",
        post_processor={"type": "Sequence", "processors": [{"type": "ByteLevel"}, template]},
    )
    assert (vocabulary(tmp_path)["add_bos_token"], vocabulary(tmp_path)["add_eos_token"]) == (True, False)
    template = {**template, "single": [sequence, special("<|im_end|>")]}
    edit(tmp_path / "tokenizer.json", post_processor=template)
    assert (vocabulary(tmp_path)["add_bos_token"], vocabulary(tmp_path)["add_eos_token"]) == (False, True)


def test_a_sentencepiece_model_says_whether_a_space_is_put_first(tmp_path: Path) -> None:
    body = piece("<unk>", 0.0, 2) + piece("▁a", -1.0)
    for normalizer, found in ((b"", None), (b"\x1a\x02\x18\x01", None), (b"\x1a\x02\x18\x00", False)):
        (tmp_path / "tokenizer.model").write_bytes(body + normalizer)
        assert vocabulary(tmp_path, 4).get("add_space_prefix") is found


BROKEN: dict[str, dict[str, Any]] = {
    "an added token without number": {"added_tokens": [{"content": "<x>"}]},
    "an added token below zero": {"added_tokens": [{"id": -1, "content": "<x>"}]},
    "an added token without text": {"added_tokens": [{"id": 5}]},
    "a number that is true": {"added_tokens": [{"id": True, "content": "<x>"}]},
    "a merge of three": {"model": {"vocab": {"a": 0}, "merges": [["a", "b", "c"]]}},
    "a merge of numbers": {"model": {"vocab": {"a": 0}, "merges": [[1, 2]]}},
    "a merge of one": {"model": {"vocab": {"a": 0}, "merges": ["a"]}},
    "a number that is text": {"model": {"vocab": {"a": "0"}, "merges": []}},
    "two tokens of one number": {"model": {"vocab": {"a": 0, "b": 0}, "merges": []}},
    "no token": {"model": {"vocab": {}, "merges": []}},
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_damaged_tokenizer_is_refused(what: str, tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    edit(tmp_path / "tokenizer.json", **BROKEN[what])
    with pytest.raises(ConvertError) as caught:
        vocabulary(tmp_path)
    assert caught.value.code == "E_TOKENIZER"


def test_ids_come_from_configs_if_the_tokenizer_does_not_say(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    edit(tmp_path / "tokenizer_config.json", eos_token=None)
    edit(tmp_path / "config.json", eos_token_id=[7, 8], bos_token_id=5)
    found = vocabulary(tmp_path)
    assert (found["bos_token_id"], found["eos_token_id"]) == (5, 7)


def test_templates_of_all_three_places(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    assert vocabulary(tmp_path)["tokenizer.chat_template"].startswith("{% for")
    named = [{"name": "tool", "template": "T"}, {"name": "default", "template": "D"}]
    edit(tmp_path / "tokenizer_config.json", chat_template=named)
    assert vocabulary(tmp_path)["tokenizer.chat_template"] == "D"
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}")
    assert vocabulary(tmp_path)["tokenizer.chat_template"] == "{{ messages }}"


def piece(text: str, score: float, kind: int | None = None) -> bytes:
    data = text.encode()
    body = b"\x0a" + bytes([len(data)]) + data + b"\x15" + struct.pack("<f", score)
    body += b"" if kind is None else b"\x18" + bytes([kind])
    return b"\x0a" + bytes([len(body)]) + body


def test_sentencepiece_vocabulary(tmp_path: Path) -> None:
    pieces = [
        ("<unk>", 0.0, 2),
        ("<s>", 0.0, 3),
        ("</s>", 0.0, 3),
        ("<0x0A>", 0.0, 6),
        ("▁the", -1.5, None),
        ("é", -2.0, None),
    ]
    data = b"".join(piece(*row) for row in pieces) + b"\x12\x02\x08\x01"
    (tmp_path / "tokenizer.model").write_bytes(data)
    edit(
        tmp_path / "tokenizer_config.json", bos_token={"content": "<s>"}, eos_token="</s>", add_bos_token=True,
        added_tokens_decoder={"6": {"content": "<mask>", "special": False}, "7": {"content": "▁x", "special": False}},
    )  # fmt: skip
    found = vocabulary(tmp_path, 10)
    assert found["model"] == "llama"
    assert found["tokens"] == [*(row[0] for row in pieces), "<mask>", " x", "[PAD8]", "[PAD9]"]
    assert found["token_type"] == [2, 3, 3, 6, 1, 1, 3, 4, 5, 5]
    assert found["scores"] == [0.0, 0.0, 0.0, 0.0, -1.5, -2.0, -1000.0, -1000.0, -10000.0, -10000.0]
    assert (found["bos_token_id"], found["eos_token_id"], found["add_bos_token"]) == (1, 2, True)


@pytest.mark.parametrize(
    "fault", ["too small", "word pieces", "byte fallback", "no tokenizer", "cut sentencepiece", "huge vocabulary"]
)
def test_what_cannot_be_a_vocabulary_is_refused(fault: str, tmp_path: Path) -> None:
    if fault != "no tokenizer":
        write_tokenizer(tmp_path)
    model = json.loads((tmp_path / "tokenizer.json").read_text())["model"] if fault != "no tokenizer" else {}
    size = {"too small": 293, "huge vocabulary": 1 << 40}.get(fault, 300)
    if fault == "word pieces":
        edit(tmp_path / "tokenizer.json", model={**model, "type": "WordPiece"})
    elif fault == "byte fallback":
        edit(tmp_path / "tokenizer.json", model={**model, "byte_fallback": True})
    elif fault == "cut sentencepiece":
        (tmp_path / "tokenizer.model").write_bytes(piece("abc", 0.0)[:-2])
    with pytest.raises(ConvertError) as caught:
        vocabulary(tmp_path, size)
    assert caught.value.code == "E_TOKENIZER"


def test_a_template_that_is_no_text_is_refused(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(ConvertError) as caught:
        vocabulary(tmp_path)
    assert caught.value.code == "E_TOKENIZER"


def test_a_number_of_many_digits_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(piece("<unk>", 0.0, 2))
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"added_tokens_decoder": {"1" * 5000: {"content": "x"}}})
    )
    with pytest.raises(ConvertError) as caught:
        vocabulary(tmp_path, 4)
    assert caught.value.code == "E_TOKENIZER"


@pytest.mark.parametrize(
    "added", [(400, "A"), (400, "[PAD401]"), (400, "a\0b")], ids=["of the vocabulary", "a filler", "zero byte"]
)
def test_tokens_that_llama_cpp_takes_for_one_are_refused(added: tuple[int, str], tmp_path: Path) -> None:
    """It would abort at loading."""
    source = write_model(tmp_path / "m", "qwen3")
    number, content = added
    rows = json.loads((source / "tokenizer.json").read_text())["added_tokens"]
    edit(source / "tokenizer.json", added_tokens=[*rows, {"id": number, "content": content, "special": False}])
    with pytest.raises(ConvertError) as caught:
        to_gguf(source, tmp_path / "m.gguf")
    assert caught.value.code == "E_TOKENIZER"
    assert not (tmp_path / "m.gguf").exists()


def test_a_sentencepiece_model_needs_a_token_for_each_byte(tmp_path: Path) -> None:
    """llama.cpp aborts at a text with another."""
    source = write_model(tmp_path / "m", "llama")
    pieces = [piece("<unk>", 0.0, 2), *(piece(f"<0x{byte:02X}>", 0.0, 6) for byte in range(256) if byte != 65)]
    for more, right in ((b"", False), (piece("A", -1.0), True)):
        (source / "tokenizer.model").write_bytes(b"".join(pieces) + more)
        if right:
            to_gguf(source, tmp_path / "m.gguf")
            continue
        with pytest.raises(ConvertError) as caught:
            to_gguf(source, tmp_path / "m.gguf")
        assert caught.value.code == "E_TOKENIZER"
        assert "<0x41>" in str(caught.value)
