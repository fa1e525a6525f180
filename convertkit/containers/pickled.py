"""Weights as PyTorch saves them: a zip archive with a pickle of the names and one stored entry per storage.

The pickle is read and not run: names of classes and functions stand for the few that describe a tensor, and everything
else is refused. Storages lie in the archive as they are, so a tensor is a run of bytes of the file.
The format is that of ``torch.save`` since PyTorch 1.6 (torch 2.13.0, ``torch/serialization.py`` ``_save`` and
``torch/_utils.py`` ``_rebuild_tensor_v2``, ``_rebuild_tensor_v3``, ``_rebuild_parameter``).
"""

from __future__ import annotations

import io
import os
import pickle
import struct
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from convertkit.checkpoint import TensorRef, TensorSpec, WeightFile
from convertkit.containers.files import open_regular, read_exactly, stamp_of
from convertkit.containers.safetensors import MAX_TENSORS, name_fault
from convertkit.dtypes import DTYPES, elements
from convertkit.errors import ConvertError, refusal, shown

MAX_PICKLE_BYTES = 256 << 20
LOCAL_HEADER = struct.Struct("<4s22xHH")
"""Of a zip entry: its mark, and how long the name and the extra field are that follow; the data come behind them."""

STORAGES: Mapping[str, str] = {
    "DoubleStorage": "F64",
    "FloatStorage": "F32",
    "HalfStorage": "F16",
    "BFloat16Storage": "BF16",
    "LongStorage": "I64",
    "IntStorage": "I32",
    "ShortStorage": "I16",
    "CharStorage": "I8",
    "ByteStorage": "U8",
    "BoolStorage": "BOOL",
}
TYPES: Mapping[str, str] = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float8_e8m0fnu": "F8_E8M0",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
}
"""Names in ``torch`` and what they are in safetensors."""

WRAPPERS = ("state_dict", "model_state_dict", "model", "module")
"""Keys of a training checkpoint under which the weights may be."""


@dataclass(frozen=True, slots=True)
class Typed:
    """A class of storages, or a dtype; ``dtype`` is None for the storage that has none of its own."""

    dtype: str | None


@dataclass(frozen=True, slots=True)
class Storage:
    """An entry of the archive with its type."""

    key: str
    dtype: str | None


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor as the pickle describes it; ``offset`` counts elements of its storage."""

    storage: Storage
    dtype: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class Fault(Exception):
    """What is wrong with a file, in words."""


def _tensor(storage: Any, offset: Any, shape: Any, strides: Any, *rest: Any) -> Stored:
    return _stored(storage, storage.dtype if isinstance(storage, Storage) else None, offset, shape, strides)


def _typed_tensor(
    storage: Any, offset: Any, shape: Any, strides: Any, grad: Any, hooks: Any, dtype: Any, *rest: Any
) -> Stored:
    return _stored(storage, dtype.dtype if isinstance(dtype, Typed) else None, offset, shape, strides)


def _stored(storage: Any, dtype: str | None, offset: Any, shape: Any, strides: Any) -> Stored:
    numbers = (offset, *shape, *strides)
    if not isinstance(storage, Storage) or dtype is None or len(shape) != len(strides):
        raise Fault("a tensor is described otherwise than PyTorch does")
    if not all(type(number) is int and 0 <= number < 1 << 62 for number in numbers):
        raise Fault("a tensor has a place or shape that is no number")
    return Stored(storage, dtype, offset, tuple(shape), tuple(strides))


def _parameter(tensor: Any, *rest: Any) -> Any:
    return tensor


def _ordered() -> dict[Any, Any]:
    return {}


def _size(numbers: Any) -> tuple[Any, ...]:
    return tuple(numbers)


CALLS: Mapping[tuple[str, str], Callable[..., Any]] = {
    ("collections", "OrderedDict"): _ordered,
    ("torch._utils", "_rebuild_tensor"): _tensor,
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch._utils", "_rebuild_tensor_v3"): _typed_tensor,
    ("torch._utils", "_rebuild_parameter"): _parameter,
    ("torch._utils", "_rebuild_parameter_with_state"): _parameter,
    ("torch", "Size"): _size,
}
"""What a pickle of weights may call, and what is called instead."""


_UNREAD = frozenset(
    code[0]
    for code in (pickle.EMPTY_SET, pickle.ADDITEMS, pickle.FROZENSET, pickle.INST, pickle.OBJ, pickle.NEWOBJ,
                 pickle.NEWOBJ_EX, pickle.EXT1, pickle.EXT2, pickle.EXT4, pickle.NEXT_BUFFER, pickle.READONLY_BUFFER)
)  # fmt: skip
"""What weights do not need. A set takes the hash of what is in it, and that of a tuple of tuples of tuples, which fits
into a few bytes, takes longer than anybody waits."""


def _keyed(into: dict[Any, Any], items: Sequence[Any]) -> dict[Any, Any]:
    """``items`` are keys and values in turn. Keys are words and numbers, for the same reason."""
    for key, value in zip(items[::2], items[1::2], strict=True):
        if type(key) not in (str, int):
            raise Fault("a key is neither a word nor a number")
        into[key] = value
    return into


def _set(reader: Any, items: Sequence[Any]) -> None:
    into = reader.stack[-1]
    if type(into) is not dict:
        raise Fault("it puts a value by name into something else than a dictionary")
    _keyed(into, items)


class _Names(pickle._Unpickler):
    """Python's own reader of pickles, which keeps its memo in a dictionary: a few bytes cannot make it grow. The state
    that a pickle gives to an object, versions of modules beside the names, is left out."""

    dispatch: ClassVar[Any] = {
        **{code: read for code, read in pickle._Unpickler.dispatch.items() if code not in _UNREAD},
        pickle.BUILD[0]: lambda self: self.stack.pop(),
        pickle.DICT[0]: lambda self: self.append(_keyed({}, self.pop_mark())),
        pickle.SETITEM[0]: lambda self: _set(self, [self.stack.pop() for _ in range(2)][::-1]),
        pickle.SETITEMS[0]: lambda self: _set(self, self.pop_mark()),
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in CALLS:
            return CALLS[module, name]
        if module == "torch" and name in STORAGES:
            return Typed(STORAGES[name])
        if module == "torch" and name in TYPES:
            return Typed(TYPES[name])
        if (module, name) == ("torch.storage", "UntypedStorage"):
            return Typed(None)
        raise Fault(f"it holds '{shown(f'{module}.{name}')}', which is no part of a tensor; nothing of it was run")

    def persistent_load(self, pid: Any) -> Storage:
        if not (isinstance(pid, tuple) and len(pid) == 5 and pid[0] == "storage" and isinstance(pid[1], Typed)) or (
            type(pid[2]) is not str
        ):
            raise Fault("a storage is described otherwise than PyTorch does")
        return Storage(pid[2], pid[1].dtype)


def open_pickled(root: Path, name: str) -> tuple[WeightFile, dict[str, TensorRef], list[str]]:
    """A file of ``torch.save``: its tensors in the order of the pickle, and the names of values that are none.

    Raises ``ConvertError`` with E_PICKLE, E_ST_NAME, and as ``open_regular``.
    """
    fd = open_regular(root, name)
    try:
        stamp = stamp_of(fd)
        with os.fdopen(os.dup(fd), "rb") as stream, zipfile.ZipFile(stream) as archive:
            entries = {entry.filename: entry for entry in archive.infolist()}
            if len(entries) != len(archive.infolist()):
                raise Fault("two entries of the archive have one name")
            (base,) = {path.rpartition("/")[0] for path in entries if path.rpartition("/")[2] == "data.pkl"}
            _check_order(archive, entries, base)
            values, others = _weights(_Names(io.BytesIO(_pickle(archive, entries[f"{base}/data.pkl"]))).load())
        places = {key: _place(fd, name, entries.get(f"{base}/data/{key}"), stamp.size_bytes, key)
                  for key in dict.fromkeys(value.storage.key for value in values.values())}  # fmt: skip
        tensors = {key: _ref(key, value, name, *places[value.storage.key]) for key, value in values.items()}
        return WeightFile(name, stamp, 0, {}), tensors, others
    except ConvertError:
        raise
    except Fault as fault:
        raise refusal("E_PICKLE", str(fault), file=name) from None
    except Exception as error:  # a damaged pickle or archive fails in any way
        fix = "PyTorch before 1.6 wrote another format: load the file with PyTorch and save it again"
        what = f"no file of torch.save, or damaged ({type(error).__name__})"
        raise refusal("E_PICKLE", what, file=name, fix=fix) from None
    finally:
        os.close(fd)


def _check_order(archive: zipfile.ZipFile, entries: Mapping[str, zipfile.ZipInfo], base: str) -> None:
    order = entries.get(f"{base}/byteorder")
    if order is not None and archive.read(order) != b"little":
        raise Fault("its numbers are big-endian")


def _pickle(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes:
    if entry.file_size > MAX_PICKLE_BYTES or entry.compress_type != zipfile.ZIP_STORED:
        raise Fault(f"the pickle has {entry.file_size:,} bytes or is compressed")
    return archive.read(entry)


def _weights(loaded: Any) -> tuple[dict[str, Stored], list[str]]:
    """Tensors by name, and what else lies beside them."""
    for _ in range(2):
        if not isinstance(loaded, dict):
            raise Fault("it holds no weights by name")
        if any(isinstance(value, Stored) for value in loaded.values()):
            break
        inner = [loaded[key] for key in WRAPPERS if isinstance(loaded.get(key), dict)]
        if len(inner) != 1:
            raise Fault("it holds no weights by name")
        loaded = inner[0]
    tensors = {name: value for name, value in loaded.items() if isinstance(value, Stored) and isinstance(name, str)}
    others = [str(name) for name in loaded if name not in tensors]
    if not 0 < len(tensors) <= MAX_TENSORS:
        raise Fault(f"it holds {len(tensors):,} tensors")
    return tensors, others


def _place(fd: int, name: str, entry: zipfile.ZipInfo | None, file_bytes: int, key: str) -> tuple[int, int]:
    """First byte and size of a storage in the file."""
    if entry is None or entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 1:
        raise Fault(f"the storage '{shown(key)}' is missing, compressed or encrypted")
    outside = Fault(f"the storage '{shown(key)}' does not lie in the file")
    if not 0 <= entry.header_offset <= file_bytes - LOCAL_HEADER.size:
        raise outside
    mark, name_bytes, extra_bytes = LOCAL_HEADER.unpack(read_exactly(fd, entry.header_offset, LOCAL_HEADER.size, name))
    start = entry.header_offset + LOCAL_HEADER.size + name_bytes + extra_bytes
    if mark != b"PK\x03\x04" or start + entry.file_size > file_bytes:
        raise outside
    return start, int(entry.file_size)


def _ref(tensor: str, value: Stored, file: str, start: int, size_bytes: int) -> TensorRef:
    fault = name_fault(tensor)
    if fault is not None:
        raise refusal(fault[0], fault[1], file=file, tensor=tensor)
    width = DTYPES[value.dtype].bits // 8
    spec = TensorSpec(tensor, value.dtype, value.shape)
    if value.strides != _contiguous(value.shape, value.strides):
        raise refusal("E_PICKLE", "its elements do not lie one after the other", file=file, tensor=tensor,
                      fix="save it again with .contiguous()")  # fmt: skip
    if (value.offset + elements(value.shape)) * width > size_bytes and elements(value.shape):
        raise refusal("E_PICKLE", "it reaches beyond its storage", file=file, tensor=tensor)
    return TensorRef(spec, file, start + value.offset * width)


def _contiguous(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """Strides of a tensor without gaps; those of dimensions that do not matter are taken as they are."""
    found: list[int] = []
    step = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        found.append(stride if size <= 1 or 0 in shape else step)
        step *= max(size, 1)
    return tuple(reversed(found))
