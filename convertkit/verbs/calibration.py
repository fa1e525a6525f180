"""``calibration``: files of hidden states and tokens for the functional gate; generated, or made from others' dumps."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from convertkit.checks.reference import widened
from convertkit.containers.folder import open_checkpoint
from convertkit.containers.reader import Reader
from convertkit.dtypes import DTYPES, FLOATS
from convertkit.errors import ConvertError, refusal, shown
from convertkit.forward.calibration import Calibration, calibration_of, encoded, read_calibration
from convertkit.forward.generated import POSITIONS, generated_calibration
from convertkit.hub.arguments import from_hub
from convertkit.release.replace import replace_files

__all__ = ["generate_calibration", "read_calibration", "record_calibration", "write_calibration"]

SUFFIX = ".safetensors"
INTEGERS = {"I64": "<i8", "I32": "<i4"}


def write_calibration(
    path: str | os.PathLike[str],
    hidden: Mapping[int, NDArray[Any]],
    tokens: Sequence[int] | NDArray[Any],
    *,
    target: str,
    dtype: str,
    store: str = "BF16",
    force: bool = False,
    **more: Any,
) -> Calibration:
    """Write a calibration from arrays; the bytes depend on the arguments only.

    ``hidden`` are floats [positions, width] by target layer, counted from 0 by the layer's output, ``tokens`` the ids
    [positions]. ``target`` and ``dtype`` say what computed them, ``store`` (BF16, F16, F32) is how they are kept.
    ``more`` are ``positions``, ``sequences``, ``recorded`` and ``more`` as for ``calibration_of``.

    Raises:
        ConvertError: E_CALIBRATION, E_USAGE, E_OUT_EXISTS without ``force``, E_WRITE.
    """
    made = calibration_of(hidden, tokens, target=target, dtype=dtype, **more)
    _write(Path(path), made, store, force)
    return made


@from_hub("drafter")
def generate_calibration(
    path: str | os.PathLike[str],
    drafter: str | os.PathLike[str],
    *,
    positions: int = POSITIONS,
    seed: int = 0,
    store: str = "BF16",
    force: bool = False,
) -> Calibration:
    """Write generated states for the layers that ``drafter`` taps: those that the gate would make itself.

    Raises:
        ConvertError: E_FORWARD for what is no drafter that can be run, and as ``write_calibration``.
    """
    from convertkit.forward.specs import spec_of

    spec = spec_of(open_checkpoint(drafter), "drafter", None)
    width = spec.target_hidden or spec.hidden
    assert width is not None
    assert spec.vocabulary is not None
    made = generated_calibration(spec.taps or (), width, spec.vocabulary, positions=positions, seed=seed)
    _write(Path(path), made, store, force)
    return made


def record_calibration(
    path: str | os.PathLike[str],
    dumps: Sequence[str | os.PathLike[str]],
    *,
    layers: Sequence[int],
    target: str,
    dtype: str,
    recorded_from: int = 0,
    store: str = "BF16",
    force: bool = False,
) -> Calibration:
    """Write a calibration from dumps as speculators records them: one safetensors file per sequence, with ``token_ids``
    [positions] and ``hidden_states`` [positions, layers, width] (speculators 0.9.0 ``data_generation/offline.py``).

    ``layers`` names the target layers of the dump's second dimension, by their outputs, counted from 0; speculators
    and vLLM count the inputs, so theirs are one more. ``recorded_from`` is the first position of each sequence that
    the target itself chose: the length of the prompt.

    Raises:
        ConvertError: E_CALIBRATION for a dump of another form, and as ``write_calibration``.
    """
    if not dumps:
        raise refusal("E_USAGE", "no dump is named")
    if len(set(layers)) != len(layers):
        raise refusal("E_USAGE", "a target layer is named twice")
    parts = [_dump(Path(dump), len(layers)) for dump in dumps]
    tokens = np.concatenate([ids for ids, _ in parts])
    states = np.concatenate([values for _, values in parts])
    counts = [ids.size for ids, _ in parts]
    made = calibration_of(
        {layer: states[:, place] for place, layer in enumerate(layers)},
        tokens,
        target=target,
        dtype=dtype,
        sequences=np.repeat(np.arange(len(parts)), counts),
        recorded=np.concatenate([np.arange(count) >= recorded_from for count in counts]),
    )
    _write(Path(path), made, store, force)
    return made


def _dump(path: Path, layers: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Token ids and hidden states of one sequence."""
    opened = open_checkpoint(path)
    wanted = {name: opened.tensors.get(name) for name in ("token_ids", "hidden_states")}
    ids, states = wanted["token_ids"], wanted["hidden_states"]
    if ids is None or states is None or ids.spec.dtype not in INTEGERS or states.spec.dtype not in FLOATS:
        message = "a dump holds 'token_ids' (integers) and 'hidden_states' (floats)"
        raise refusal("E_CALIBRATION", message, file=path.name)
    if len(states.spec.shape) != 3 or states.spec.shape[:2] != (ids.spec.elements, layers):
        message = f"hidden_states are {list(states.spec.shape)}, not [{ids.spec.elements}, {layers}, width]"
        raise refusal("E_CALIBRATION", message, file=path.name, fix="name one layer for each that the dump holds")
    with Reader(opened) as reader:
        bits = np.frombuffer(reader.bytes_of("hidden_states"), f"<u{DTYPES[states.spec.dtype].bits // 8}")
        tokens = np.frombuffer(reader.bytes_of("token_ids"), INTEGERS[ids.spec.dtype]).astype(np.int64)
    return tokens, widened(bits, states.spec.dtype).reshape(states.spec.shape)


def _write(path: Path, made: Calibration, store: str, force: bool) -> None:
    if path.suffix != SUFFIX:
        raise refusal("E_USAGE", f"a calibration's name must end in {SUFFIX}: '{shown(path.name)}'")
    if os.path.lexists(path) and not (force and _is_calibration(path)):
        fix = "give it another name" if force else "replace a calibration with --force"
        raise refusal("E_OUT_EXISTS", "the output exists" + (" and is no calibration" if force else ""),
                      file=path.name, fix=fix)  # fmt: skip
    if not path.parent.is_dir():
        raise refusal("E_OUT_PARENT", f"there is no folder '{shown(path.parent)}'")
    replace_files(path.parent, {path.name: encoded(made, store)})


def _is_calibration(path: Path) -> bool:
    try:
        read_calibration(path, [])
    except ConvertError:
        return False
    return True
