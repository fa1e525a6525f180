"""Vocabularies of GGUF files: byte-level BPE and sentencepiece, special tokens, what is refused."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from convertkit.containers.gguf_values import plain
from convertkit.conversion.gguf_tokenizer import recognise, vocabulary_of_folder
from convertkit.errors import ConvertError
from tests.gguf.models import QWEN2_SPLIT, byte_tokens, write_tokenizer

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


@pytest.mark.parametrize(
    ("split", "name"), [(QWEN2_SPLIT, "qwen2"), (LLAMA3_SPLIT, "llama-bpe"), ("", "gpt-2"), (r"\d", None)]
)
def test_pre_tokenizers_are_known_by_their_expression(split: str, name: str | None, tmp_path: Path) -> None:
    write_tokenizer(tmp_path, split)
    assert recognise(json.loads((tmp_path / "tokenizer.json").read_text())["pre_tokenizer"]) == name


def test_two_expressions_or_no_byte_level_are_not_known() -> None:
    split = {"type": "Split", "pattern": {"Regex": QWEN2_SPLIT}}
    assert recognise({"type": "Sequence", "pretokenizers": [split, split, {"type": "ByteLevel"}]}) is None
    assert recognise({"type": "Sequence", "pretokenizers": [split]}) is None
    assert recognise(None) is None


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
