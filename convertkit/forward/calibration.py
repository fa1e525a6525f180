"""Calibration files: what a target model computed for some text, as safetensors. ``docs/forward.md`` is the format.

A file holds for each tapped target layer its output at every position, the tokens, and which of them the target
itself chose. Reading is strict: a file that states something else than this is refused, never guessed at.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from convertkit.checkpoint import Checkpoint, TensorRef, TensorSpec
from convertkit.containers.folder import open_checkpoint
from convertkit.containers.reader import Reader
from convertkit.containers.safetensors import encode_header
from convertkit.dtypes import DTYPES, FLOATS
from convertkit.errors import refusal

FORMAT = "convertkit.calibration/1"
ORIGINS = ("recorded", "generated")
FIELDS: Mapping[str, str] = {"tokens": "I64", "positions": "I64", "sequences": "I64", "recorded": "BOOL"}
"""Tensors of every file beside ``hidden.LAYER``, all of shape [positions]."""

HIDDEN = "hidden."
LAYER = r"-1|0|[1-9][0-9]{0,8}"
STATED = ("calibration", "origin", "target", "dtype")
"""Metadata that every file states, beside ``format``."""

MAX_POSITIONS = 1 << 16
POSITION_LIMIT = 1 << 24
"""Beyond any context; angles of much larger positions lose their digits, and then depend on the machine."""

INTEGERS = {"I64": "<i8", "BOOL": "|b1"}

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Calibration:
    """``hidden`` holds float32 [positions, width] by target layer: the layer's *output*, counted from 0, -1 being the
    embedding. ``tokens``, ``positions``, ``sequences`` I64 and ``recorded`` truth values, all [positions].

    ``target`` and ``dtype`` say which model computed it and in what type; ``origin`` is a row of ``ORIGINS``.
    ``more`` is further metadata.
    """

    hidden: Mapping[int, Floats]
    tokens: Ints
    positions: Ints
    sequences: Ints
    recorded: NDArray[np.bool_]
    target: str
    dtype: str
    origin: str
    more: Mapping[str, str] = field(default_factory=dict)

    @property
    def layers(self) -> tuple[int, ...]:
        return tuple(sorted(self.hidden))

    def hidden_of(self, layer: int) -> Floats:
        """Raises E_CALIBRATION if the layer is not there."""
        if layer not in self.hidden:
            raise _missing_layers([layer], self.layers)
        return self.hidden[layer]


def _missing_layers(layers: Sequence[int], held: Sequence[int]) -> Exception:
    """The refusal of a pass whose layers a calibration does not hold."""
    message = f"no hidden states of target layers {list(layers)}; it holds those of {list(held)}"
    return refusal("E_CALIBRATION", message, fix="record the outputs of the layers that the drafter taps")


def calibration_of(
    hidden: Mapping[int, NDArray[Any]],
    tokens: Sequence[int] | NDArray[Any],
    *,
    target: str,
    dtype: str,
    positions: Sequence[int] | NDArray[Any] | None = None,
    sequences: Sequence[int] | NDArray[Any] | None = None,
    recorded: Sequence[bool] | NDArray[Any] | None = None,
    origin: str = "recorded",
    more: Mapping[str, str] | None = None,
) -> Calibration:
    """A calibration from arrays.

    ``hidden``: for each target layer whose output was recorded, floats [positions, width]. ``tokens``: ids of the
    target's vocabulary. ``positions`` default to 0, 1, … of each sequence, ``sequences`` to one sequence, ``recorded``
    (the target itself chose this token) to all true. ``dtype`` is the type that the target ran in.

    Raises:
        ConvertError: E_CALIBRATION for arrays that do not belong together.
    """
    ids = np.asarray(tokens, np.int64)
    rows = np.zeros(ids.size, np.int64) if sequences is None else np.asarray(sequences, np.int64)
    made = Calibration(
        {int(layer): np.asarray(values, np.float32) for layer, values in hidden.items()},
        ids,
        _counted(rows) if positions is None else np.asarray(positions, np.int64),
        rows,
        np.ones(ids.size, np.bool_) if recorded is None else np.asarray(recorded, np.bool_),
        target,
        dtype,
        origin,
        dict(more or {}),
    )
    _check(made)
    return made


def _counted(sequences: Ints) -> Ints:
    """0, 1, 2 … from the start of each sequence."""
    starts = np.flatnonzero(np.diff(sequences, prepend=sequences[:1] - 1)) if sequences.size else np.zeros(0, np.int64)
    lengths = np.diff(np.append(starts, sequences.size))
    return np.arange(sequences.size) - np.repeat(starts, lengths)


def encoded(made: Calibration, store: str) -> bytes:
    """The bytes of a file; ``store`` (BF16, F16, F32) is the type of its hidden states, rounded to nearest even.

    Raises ``ConvertError``: E_USAGE for another type.
    """
    from convertkit.checks.reference import narrowed

    if store not in FLOATS:
        raise refusal("E_USAGE", f"hidden states are stored as one of {', '.join(FLOATS)}, not '{store}'")
    payload: dict[str, bytes] = {name: getattr(made, name).tobytes() for name in FIELDS}
    specs = [TensorSpec(name, dtype, (made.tokens.size,)) for name, dtype in FIELDS.items()]
    for layer, values in made.hidden.items():
        name = f"{HIDDEN}{layer}"
        specs.append(TensorSpec(name, store, values.shape))
        payload[name] = narrowed(np.ascontiguousarray(values), store).tobytes()
    stated = {"calibration": FORMAT, "format": "pt", "origin": made.origin, "target": made.target, "dtype": made.dtype}
    header = encode_header(specs, {**made.more, **stated})
    return b"".join([header.prefix, *(payload[spec.name] for spec in header.order)])


def read_calibration(path: str | os.PathLike[str], layers: Sequence[int] | None = None) -> Calibration:
    """Read a calibration file, of its hidden states only those of ``layers`` (all when None) that it holds.

    Raises:
        ConvertError: E_NOT_FOUND, the faults of any safetensors file, E_CALIBRATION for one that is none of ours,
            of an unknown version, or whose tensors do not belong together.
    """
    place = Path(path)
    if place.is_dir():
        raise refusal("E_CALIBRATION", "a calibration is one file, not a folder", file=place.name)
    opened = open_checkpoint(place)
    stated = opened.files[0].metadata
    if stated.get("calibration") != FORMAT:
        message = f"the metadata says 'calibration' is {stated.get('calibration')!r}, not '{FORMAT}'"
        raise _fault(message, "make one with `convertkit calibration`")
    absent = [name for name in STATED if not stated.get(name)]
    if absent:
        raise _fault(f"the metadata states no {', '.join(absent)}")
    with Reader(opened) as reader:
        made = _read(opened, reader, stated, layers)
        reader.assert_unchanged()
    _check(made)
    return made


def _read(opened: Checkpoint, reader: Reader, stated: Mapping[str, str], layers: Sequence[int] | None) -> Calibration:
    tapped = _layers(opened.tensors)
    fields: dict[str, Any] = {}
    for name, dtype in FIELDS.items():
        ref = opened.tensors.get(name)
        if ref is None or ref.spec.dtype != dtype or len(ref.spec.shape) != 1:
            raise _fault(f"'{name}' must be {dtype} of shape [positions]")
        data = reader.bytes_of(name)
        if dtype == "BOOL" and not set(data) <= {0, 1}:
            raise _fault(f"'{name}' holds bytes that are neither 0 nor 1")
        fields[name] = np.frombuffer(data, INTEGERS[dtype]).copy()
    hidden = {layer: _floats(reader, ref) for layer, ref in tapped.items() if layers is None or layer in layers}
    more = {key: value for key, value in stated.items() if key not in (*STATED, "format")}
    return Calibration(hidden, **fields, target=stated["target"], dtype=stated["dtype"], origin=stated["origin"],
                       more=more)  # fmt: skip


def _layers(tensors: Mapping[str, TensorRef]) -> dict[int, TensorRef]:
    """Hidden states by layer. Every other name must be one of ``FIELDS``."""
    found: dict[int, TensorRef] = {}
    for name, ref in tensors.items():
        if name in FIELDS:
            continue
        word = name.removeprefix(HIDDEN)
        if not name.startswith(HIDDEN) or re.fullmatch(LAYER, word) is None:
            raise _fault(f"'{name}' is no tensor of a calibration")
        if ref.spec.dtype not in FLOATS:
            raise _fault(f"'{name}' is {ref.spec.dtype}, not one of {', '.join(FLOATS)}")
        found[int(word)] = ref
    return dict(sorted(found.items()))


def _floats(reader: Reader, ref: TensorRef) -> Floats:
    from convertkit.checks.reference import widened

    bits = np.frombuffer(reader.bytes_of(ref.spec.name), f"<u{DTYPES[ref.spec.dtype].bits // 8}")
    return widened(bits, ref.spec.dtype).reshape(ref.spec.shape)


def _check(made: Calibration) -> None:
    """E_CALIBRATION unless the arrays belong together and make sense."""
    count = made.tokens.size
    if not 2 <= count <= MAX_POSITIONS or any(getattr(made, name).shape != (count,) for name in FIELDS):
        raise _fault(f"tokens, positions, sequences and recorded must be as many, from 2 to {MAX_POSITIONS}")
    widths = {values.shape for values in made.hidden.values()}
    if len(widths) > 1 or any(len(shape) != 2 or shape[0] != count for shape in widths):
        raise _fault(f"hidden states must all have one shape [{count}, width]; there are {sorted(widths)}")
    if any(layer < -1 for layer in made.hidden):
        raise _fault("target layers are counted from 0; -1 is the embedding")
    if made.origin not in ORIGINS:
        raise _fault(f"'origin' is '{made.origin}', not one of {', '.join(ORIGINS)}")
    if int(made.tokens.min()) < 0 or int(made.positions.min()) < 0:
        raise _fault("tokens and positions cannot be negative")
    if int(made.positions.max()) >= POSITION_LIMIT:
        raise _fault(f"positions must be below {POSITION_LIMIT}")
    steps, same = np.diff(made.positions), np.diff(made.sequences) == 0
    if (np.diff(made.sequences) < 0).any() or (steps[same] != 1).any():
        raise _fault("sequences must ascend, and positions rise by one inside each")
    if not all(bool(np.isfinite(values).all()) for values in made.hidden.values()):
        raise _fault("hidden states hold NaN or infinity")


def _fault(message: str, fix: str = "") -> Exception:
    return refusal("E_CALIBRATION", message, fix=fix)
