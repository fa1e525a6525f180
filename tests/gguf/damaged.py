"""Damaged GGUF files by rule: every family of tensors and every key of a file missing, misshapen, renamed or retyped.

``python -m tests.gguf.damaged OUT`` writes them all, for ``tests/oracle/gguf_loader.py``, which asks libllama.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from convertkit.checkpoint import TensorSpec
from convertkit.containers.gguf_values import Numbers, Scalar, Strings, numbers, strings, text, u32
from convertkit.layouts.rules import template_of
from convertkit.verbs.to_gguf import to_gguf
from tests.gguf.models import DRAFTERS, KINDS, write_model
from tests.gguf.test_audit import Metadata, Tensors, load, save

Change = Callable[[Metadata, Tensors], None]
FLOATS = {"F32": 4, "F16": 2, "BF16": 2}


def whole_files(folder: Path) -> dict[str, Path]:
    """A GGUF of every kind of model and drafter."""
    target = write_model(folder / "target", "qwen3")
    made = {}
    for kind in KINDS:
        source = write_model(folder / kind, kind)
        made[kind] = folder / f"{kind}.gguf"
        to_gguf(source, made[kind], target_model=target if kind in DRAFTERS else None)
    return made


def _put(tensors: Tensors, name: str, dtype: str, shape: tuple[int, ...]) -> None:
    spec = TensorSpec(name, dtype, shape)
    tensors[name] = spec, bytes(spec.size_bytes)


def _tensor_changes(name: str, spec: TensorSpec) -> Iterator[tuple[str, Change]]:
    """What may be wrong with one tensor."""

    def lost(metadata: Metadata, tensors: Tensors) -> None:
        del tensors[name]

    def renamed(metadata: Metadata, tensors: Tensors) -> None:
        del tensors[name]
        _put(tensors, f"{name}.old", spec.dtype, spec.shape)

    def longer(metadata: Metadata, tensors: Tensors) -> None:
        _put(tensors, name, spec.dtype, (spec.shape[0] + 32, *spec.shape[1:]))

    def wider(metadata: Metadata, tensors: Tensors) -> None:
        _put(tensors, name, spec.dtype, (*spec.shape[:-1], spec.shape[-1] + 32))

    def turned(metadata: Metadata, tensors: Tensors) -> None:
        _put(tensors, name, spec.dtype, spec.shape[::-1])

    def retyped(metadata: Metadata, tensors: Tensors) -> None:
        _put(tensors, name, "F16" if spec.dtype == "F32" else "F32", spec.shape)

    yield f"no {name}", lost
    yield f"{name} renamed", renamed
    yield f"{name} longer", longer
    if len(spec.shape) > 1:
        yield f"{name} wider", wider
        if spec.shape != spec.shape[::-1]:
            yield f"{name} turned", turned
    if spec.dtype in FLOATS:
        yield f"{name} retyped", retyped


def _key_changes(key: str, value: object) -> Iterator[tuple[str, Change]]:
    def lost(metadata: Metadata, tensors: Tensors) -> None:
        del metadata[key]

    def worded(metadata: Metadata, tensors: Tensors) -> None:
        metadata[key] = text("x")

    def more(metadata: Metadata, tensors: Tensors) -> None:
        metadata[key] = Scalar("u32", int(value.value) + 1)  # type: ignore[attr-defined]

    def huge(metadata: Metadata, tensors: Tensors) -> None:
        metadata[key] = u32(1 << 20)

    yield f"no {key}", lost
    yield f"{key} as a word", worded
    if isinstance(value, Scalar) and value.kind == "u32":
        yield f"{key} one more", more
        yield f"{key} huge", huge


def _whole_changes(arch: str, layers: int) -> Iterator[tuple[str, Change]]:
    """What may be wrong with a file as a whole."""

    def extra(metadata: Metadata, tensors: Tensors) -> None:
        _put(tensors, "blk.0.extra.weight", "F32", (32, 32))

    def beyond(metadata: Metadata, tensors: Tensors) -> None:
        _put(tensors, f"blk.{layers}.attn_norm.weight", "F32", (32,))

    def biased(metadata: Metadata, tensors: Tensors) -> None:
        _put(tensors, "blk.0.ffn_down.bias", "F32", (128,))

    def other(metadata: Metadata, tensors: Tensors) -> None:
        metadata["general.architecture"] = text("no-such")

    def few(metadata: Metadata, tensors: Tensors) -> None:
        kept = metadata["tokenizer.ggml.tokens"]
        assert isinstance(kept, Strings)
        metadata["tokenizer.ggml.tokens"] = strings([f"t{i}" for i in range(len(kept) - 32)])
        metadata.pop("tokenizer.ggml.token_type", None)

    def taps(count: int, kind: str = "i32") -> Change:
        return lambda metadata, tensors: metadata.update({
            f"{arch}.target_layers": numbers(kind, range(1, count + 1))
        })  # fmt: skip

    yield "extra tensor", extra
    yield "tensor beyond the last layer", beyond
    yield "stray bias", biased
    yield "another architecture", other
    yield "fewer tokens", few
    if arch in ("dflash", "eagle3"):
        yield from ((f"{count} taps", taps(count)) for count in (1, 2, 3, 4))
        yield "taps of 64 bits", taps(3, "i64")


SKIPPED_KEYS = ("general.", "tokenizer.ggml.tokens", "tokenizer.ggml.merges", "tokenizer.ggml.token_type",
                "tokenizer.chat_template")  # fmt: skip


def changes(metadata: Metadata, tensors: Tensors) -> Iterator[tuple[str, Change]]:
    """Every damage of one file: one tensor of each family, every key of its own, the file as a whole."""
    arch = str(metadata["general.architecture"].value)  # type: ignore[union-attr]
    seen: set[str] = set()
    for name, (spec, _) in sorted(tensors.items()):
        template = template_of(name)[0]
        if template not in seen:
            seen.add(template)
            yield from _tensor_changes(name, spec)
    for key, value in sorted(metadata.items()):
        if not key.startswith(SKIPPED_KEYS) and not isinstance(value, (Strings, Numbers)):
            yield from _key_changes(key, value)
    layers = metadata.get(f"{arch}.block_count")
    yield from _whole_changes(arch, int(layers.value) if isinstance(layers, Scalar) else 0)


def write_all(out: Path, scratch: Path) -> list[str]:
    """Every whole and damaged file in ``out``, as ``KIND, DAMAGE.gguf``; the names without the ending."""
    out.mkdir(parents=True)
    names = []
    for kind, path in whole_files(scratch).items():
        metadata, tensors = load(path)
        every: list[tuple[str, Change]] = [("whole", lambda metadata, tensors: None), *changes(metadata, tensors)]
        for what, change in every:
            changed, kept = dict(metadata), dict(tensors)
            change(changed, kept)
            save(out / f"{kind}, {what}.gguf", changed, kept)
            names.append(f"{kind}, {what}")
    return names


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        print(len(write_all(Path(sys.argv[1]), Path(folder))))
