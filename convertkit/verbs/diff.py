"""``diff``: how two checkpoints differ, headers first, across dialects."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from convertkit.checkpoint import TensorRef
from convertkit.checks.differ import Difference, difference, index_of, known_equal
from convertkit.checks.gate import Weight
from convertkit.containers.reader import Reader
from convertkit.containers.strict_json import paused_gc
from convertkit.conversion.desk import Desk
from convertkit.conversion.stop import Stop, stop_on_signals
from convertkit.conversion.tiles import Buffers, in_parallel
from convertkit.dialects.planes import PackedModule
from convertkit.hub.arguments import from_hub
from convertkit.progress import SILENT, Progress
from convertkit.verbs.diff_pairs import Pairing, Side, open_side, pair_weights
from convertkit.verbs.diff_report import Differences, Row, diff_document
from convertkit.workers import worker_count


@dataclass(frozen=True)
class DiffResult:
    """``document`` holds everything; ``status`` is 0 if the two are the same, else 1."""

    document: Mapping[str, Any]
    status: int


@from_hub("a", "b", headers_if="headers")
def diff(
    a: str | os.PathLike[str],
    b: str | os.PathLike[str],
    *,
    headers: bool = False,
    workers: int = 0,
    progress: Progress = SILENT,
) -> DiffResult:
    """Compare two checkpoints: names (a rename is found by content), shapes, dtypes, values, config and side files.

    Packed weights are compared by their planes where both are packed, and as values otherwise. Digests that the
    manifests record are believed, so what they say is equal is not read. ``headers`` reads no weight at all.
    How the tensors are spread over files is told and is no difference.

    Raises:
        ConvertError: a checkpoint cannot be opened or read.
    """
    with paused_gc():
        sides = tuple(open_side(path) for path in (a, b))
    with paused_gc(), stop_on_signals() as stop, Reader(sides[0].checkpoint) as one, Reader(sides[1].checkpoint) as two:
        readers = (one, two)
        pairing = pair_weights(sides, readers, headers, stop)
        shapes, dtypes, pairs = _forms(sides, pairing)
        values = None if headers else _values(sides, readers, pairs, stop, workers, progress)
        one.assert_unchanged()
        two.assert_unchanged()
    document = diff_document(sides, Differences(pairing, shapes, dtypes, values), workers)
    progress.done()
    return DiffResult(document, 0 if document["verdict"] == "same" else 1)


Pairs = list[tuple[Weight, Weight]]


def _forms(sides: Sequence[Side], pairing: Pairing) -> tuple[list[Row], list[Row], Pairs]:
    """Rows of differing shapes and of differing dtypes, and the pairs whose values can be compared."""
    shapes: list[Row] = []
    dtypes: list[Row] = []
    pairs: Pairs = []
    for old, new in (*((name, name) for name in pairing.common), *pairing.renamed):
        mine, yours = sides[0].weights[old], sides[1].weights[new]
        if mine.shape != yours.shape:
            shapes.append({"name": old, "a": list(mine.shape), "b": list(yours.shape)})
            continue
        left, right = _spelling(mine), _spelling(yours)
        if left != right:
            dtypes.append({"name": old, "a": left, "b": right})
        pairs.append((mine, yours))
    return shapes, dtypes, pairs


def _spelling(weight: Weight) -> str:
    stored = weight.stored
    return f"NVFP4 ({stored.spelling.dialect})" if isinstance(stored, PackedModule) else stored.spec.dtype


def _values(
    sides: Sequence[Side], readers: Sequence[Reader], pairs: Pairs, stop: Stop, workers: int, progress: Progress
) -> list[Row]:
    """One row per weight that differs, in the order of the first checkpoint."""
    todo = [(mine, yours) for mine, yours in pairs if not known_equal(mine, yours, sides[0].sha256, sides[1].sha256)]
    progress.stage("compare", sum(_size(weight) for pair in todo for weight in pair))
    desks = tuple(Desk(reader, stop, progress, Buffers()) for reader in readers)
    order = sorted(range(len(todo)), key=lambda i: -_size(todo[i][0]))
    found = in_parallel(lambda i: difference((desks[0], desks[1]), *todo[i]), order, worker_count(workers))
    by_place = dict(zip(order, found, strict=True))
    return [_row(todo[i], by_place[i]) for i in range(len(todo)) if not by_place[i].is_none]


def _size(weight: Weight) -> int:
    stored = weight.stored
    return stored.size_bytes if isinstance(stored, TensorRef) else stored.codes.size_bytes


def _row(pair: tuple[Weight, Weight], found: Difference) -> Row:
    mine, yours = pair
    largest = found.largest
    return {
        "name": mine.name,
        "to": yours.name,
        "elements": found.elements,
        "differing": found.differing,
        "first": None if found.first is None else index_of(found.first, mine.shape),
        "largest": None if largest is None or largest == float("inf") else largest,
        "codes": found.codes,
        "scales": found.scales,
        "global_scale": found.global_scale,
        "rounded_to": found.stored,
        "nibbles_swapped": found.nibbles_swapped,
    }
