"""Opening a GGUF model: one file, or all parts of a split one.

llama.cpp names parts ``PREFIX-00001-of-00003.gguf`` and finds the others by that name (``llama_split_path``);
``split.no`` counts from 0, and only the first part holds the model's metadata.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from convertkit.checkpoint import TensorRef, WeightFile
from convertkit.containers.files import open_regular, stamp_of
from convertkit.containers.gguf import GgufHeader, read_gguf_header
from convertkit.containers.gguf_values import Scalar, Value
from convertkit.errors import ConvertError, refusal, shown

SUFFIX = ".gguf"
PART = re.compile(r"(.+)-([0-9]{5})-of-([0-9]{5})\.gguf")
SPLIT_KEYS = ("split.no", "split.count", "split.tensors.count")
MAX_PARTS = 10_000


@dataclass(frozen=True)
class GgufModel:
    """Files, tensors and metadata of a model, without the keys that only say how it is split."""

    files: tuple[WeightFile, ...]
    tensors: Mapping[str, TensorRef]
    metadata: Mapping[str, Value]


def open_gguf(root: Path, name: str) -> GgufModel:
    """Open ``root/name`` and, if it is a part, the others beside it. Raises E_GGUF_* and those of ``open_regular``."""
    number, count = _part_of(name)
    file, header = _open(root, name, number)
    no, total = _split_of(header, name)
    if total <= 1 and no == 0:
        return GgufModel((file,), header.tensors, _unsplit(header.metadata))
    if no >= total or total > MAX_PARTS:
        raise refusal("E_GGUF_SPLIT", f"part {no} of {total} parts", file=name, key="split.no")
    if (number, count) != (no, total):
        raise refusal("E_GGUF_SPLIT", f"this is part {no + 1} of {total}, and its name does not say so", file=name,
                      fix=f"name the parts NAME-00001-of-{total:05}.gguf and so on, side by side")  # fmt: skip
    return _join(root, name, total)


def _join(root: Path, name: str, total: int) -> GgufModel:
    prefix = name[: -len("-00001-of-00001.gguf")]
    names = [f"{prefix}-{part + 1:05}-of-{total:05}.gguf" for part in range(total)]
    missing = [part for part in names if not os.path.lexists(root / part)]
    if missing:
        raise refusal("E_GGUF_SPLIT", f"{len(missing)} of {total} parts are missing: {shown(missing[0])}", file=name,
                      fix="put all parts into one folder")  # fmt: skip
    opened = [_open(root, part, number) for number, part in enumerate(names)]
    tensors: dict[str, TensorRef] = {}
    for number, (file, header) in enumerate(opened):
        if _split_of(header, file.name) != (number, total):
            raise refusal("E_GGUF_SPLIT", "the part's number or count is not that of its name", file=file.name)
        twice = header.tensors.keys() & tensors.keys()
        if twice:
            raise refusal("E_GGUF_DUP_NAME", "an earlier part holds it too", file=file.name, tensor=min(twice))
        tensors.update(header.tensors)
    metadata = opened[0][1].metadata
    stated = metadata.get("split.tensors.count")
    if not isinstance(stated, Scalar) or stated.value != len(tensors):
        raise refusal("E_GGUF_SPLIT", f"the parts hold {len(tensors):,} tensors, the first states another number",
                      file=names[0], key="split.tensors.count")  # fmt: skip
    return GgufModel(tuple(file for file, _ in opened), tensors, _unsplit(metadata))


def _unsplit(metadata: Mapping[str, Value]) -> dict[str, Value]:
    return {key: value for key, value in metadata.items() if key not in SPLIT_KEYS}


def _open(root: Path, name: str, number: int) -> tuple[WeightFile, GgufHeader]:
    fd = open_regular(root, name)
    try:
        header = read_gguf_header(fd, name, first_part=number <= 0)
        return WeightFile(name, stamp_of(fd), header.data_start, {}), header
    finally:
        os.close(fd)


def _part_of(name: str) -> tuple[int, int]:
    """Number from 0 and count that a file name states; (-1, 1) if none."""
    match = PART.fullmatch(name)
    return (-1, 1) if match is None else (int(match[2]) - 1, int(match[3]))


def _split_of(header: GgufHeader, name: str) -> tuple[int, int]:
    values = []
    for key, default in (("split.no", 0), ("split.count", 1)):
        value = header.metadata.get(key)
        if value is None:
            values.append(default)
        elif isinstance(value, Scalar) and value.kind in ("u16", "u32", "i32") and int(value.value) >= 0:
            values.append(int(value.value))
        else:
            raise refusal("E_GGUF_SPLIT", "not a whole number", file=name, key=key)
    return values[0], values[1]


def first_parts(names: Sequence[str]) -> list[str]:
    """The GGUF models among file names: whole files, and the first present part of each split one."""
    models: dict[str, str] = {}
    for name in sorted(names):
        match = PART.fullmatch(name)
        models.setdefault(f"{match[1]}\0{match[3]}" if match else name, name)
    return list(models.values())


def no_single_model(names: Sequence[str]) -> ConvertError:
    """E_AMBIGUOUS_WEIGHTS for a folder with several GGUF models."""
    message = f"{len(names)} GGUF models: {', '.join(map(shown, names[:4]))}"
    return refusal("E_AMBIGUOUS_WEIGHTS", message, file=names[1],
                   fix="name one of the files instead of the folder")  # fmt: skip
