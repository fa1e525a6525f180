"""``diff``: how two checkpoints differ, headers first, across dialects."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from convertkit import __version__
from convertkit.checkpoint import Checkpoint, TensorRef
from convertkit.checks.differ import Difference, difference, index_of, known_equal, weights_and_rest
from convertkit.checks.gate import Weight
from convertkit.containers.folder import CONFIG, QUANT_CONFIG, open_checkpoint
from convertkit.containers.reader import Reader
from convertkit.containers.strict_json import paused_gc
from convertkit.conversion.desk import Desk
from convertkit.conversion.stop import Stop, stop_on_signals
from convertkit.conversion.tiles import Buffers, in_parallel
from convertkit.dialects.planes import PackedModule
from convertkit.hub.arguments import from_hub
from convertkit.layouts.rules import families
from convertkit.progress import SILENT, Progress
from convertkit.release.digests import sha256_files, sha256_range
from convertkit.release.recorded import recorded
from convertkit.release.reports import settled
from convertkit.workers import worker_count

MAX_ROWS = 2_000
"""Rows of one kind in the document; the summary counts all of them."""


@dataclass(frozen=True)
class DiffResult:
    """``document`` holds everything; ``status`` is 0 if the two are the same, else 1."""

    document: Mapping[str, Any]
    status: int


@dataclass(frozen=True)
class Side:
    """One checkpoint: its weights by dense name, and recorded SHA-256 of stored tensors."""

    checkpoint: Checkpoint
    weights: Mapping[str, Weight]
    sha256: Mapping[str, str]


@dataclass(frozen=True)
class Pairing:
    """Which weight is which: common names, renames (old, new) found by content, and what is left on either side."""

    common: tuple[str, ...]
    renamed: tuple[tuple[str, str], ...]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]


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
        sides = tuple(_side(path) for path in (a, b))
    with paused_gc(), stop_on_signals() as stop, Reader(sides[0].checkpoint) as one, Reader(sides[1].checkpoint) as two:
        readers = (one, two)
        pairing = _pair(sides, readers, headers, stop)
        shapes, dtypes, pairs = _forms(sides, pairing)
        values = [] if headers else _values(sides, readers, pairs, stop, workers, progress)
        one.assert_unchanged()
        two.assert_unchanged()
    document = _document(sides, pairing, shapes, dtypes, values, headers, workers)
    progress.done()
    return DiffResult(document, 0 if document["verdict"] == "same" else 1)


def _side(path: str | os.PathLike[str]) -> Side:
    checkpoint = open_checkpoint(path)
    return Side(checkpoint, weights_and_rest(checkpoint), recorded(checkpoint).tensors)


def _pair(sides: Sequence[Side], readers: Sequence[Reader], headers: bool, stop: Stop) -> Pairing:
    left, right = sides[0].weights, sides[1].weights
    only_a, only_b = [name for name in left if name not in right], [name for name in right if name not in left]
    renamed: list[tuple[str, str]] = []
    if only_a and only_b:
        renamed = _renames(sides, readers, only_a, only_b, headers, stop)
    old, new = {pair[0] for pair in renamed}, {pair[1] for pair in renamed}
    return Pairing(
        tuple(name for name in left if name in right),
        tuple(renamed),
        tuple(name for name in only_a if name not in old),
        tuple(name for name in only_b if name not in new),
    )


def _renames(
    sides: Sequence[Side],
    readers: Sequence[Reader],
    only_a: Sequence[str],
    only_b: Sequence[str],
    headers: bool,
    stop: Stop,
) -> list[tuple[str, str]]:
    """Weights of equal content under different names. Several of one content are paired in the order of their names."""
    forms = {_form(sides[0].weights[name]) for name in only_a} & {_form(sides[1].weights[name]) for name in only_b}
    found: list[dict[tuple[Any, ...], list[str]]] = [{}, {}]
    for number, names in enumerate((only_a, only_b)):
        for name in names:
            weight = sides[number].weights[name]
            content = (
                _content(sides[number], readers[number], weight, headers, stop) if _form(weight) in forms else None
            )
            if content is not None:
                found[number].setdefault((_form(weight), content), []).append(name)
    pairs = [
        (old, new)
        for content, olds in found[0].items()
        for old, new in zip(olds, found[1].get(content, ()), strict=False)
    ]
    place = {name: number for number, name in enumerate(only_a)}
    return sorted(pairs, key=lambda pair: place[pair[0]])


def _form(weight: Weight) -> tuple[Any, ...]:
    stored = weight.stored
    return (weight.shape, "packed" if isinstance(stored, PackedModule) else stored.spec.dtype)


def _content(side: Side, reader: Reader, weight: Weight, headers: bool, stop: Stop) -> tuple[str, ...] | None:
    """Digests of the stored bytes (codes and block scales of a packed weight); None if they are not to be taken."""
    stored = weight.stored
    refs = (stored.codes, stored.block_scale) if isinstance(stored, PackedModule) else (stored,)
    digests = []
    for ref in refs:
        stop.check()
        known = side.sha256.get(ref.spec.name)
        if known is None and headers:
            return None
        digests.append(known or sha256_range(reader.fd(ref.file), ref.start, ref.size_bytes, ref.file))
    return tuple(digests)


Row = dict[str, Any]
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
        "rounded_to": found.stored,
        "nibbles_swapped": found.nibbles_swapped,
    }


def _document(
    sides: Sequence[Side],
    pairing: Pairing,
    shapes: list[Row],
    dtypes: list[Row],
    values: list[Row],
    headers: bool,
    workers: int,
) -> dict[str, Any]:
    left, right = sides[0].checkpoint, sides[1].checkpoint
    config = [
        *_json_rows(CONFIG, left.config, right.config),
        *_json_rows(QUANT_CONFIG, left.quant_config, right.quant_config),
    ]
    side_files = _side_files(left, right, workers)
    moved = dict(pairing.renamed)
    counts = {
        "common": len(pairing.common),
        "renamed": len(pairing.renamed),
        "only_a": len(pairing.only_a),
        "only_b": len(pairing.only_b),
        "shapes": len(shapes),
        "dtypes": len(dtypes),
        "values": len(values),
        "elements": sum(row["differing"] for row in values),
        "config": len(config),
        "side_files": len(side_files),
    }
    same = not any(count for name, count in counts.items() if name not in ("common", "elements"))
    document = {
        "schema": "convertkit.diff/1",
        "tool": {"name": "convertkit", "version": __version__},
        "verdict": "same" if same else "different",
        "values_compared": not headers,
        "summary": counts,
        "names": {
            "renamed": [
                {"template": family.template, "count": len(family.names), "from": family.names[0],
                 "to": moved[family.names[0]]}
                for family in families(moved).values()
            ],
            "only_a": _by_family(pairing.only_a),
            "only_b": _by_family(pairing.only_b),
        },
        "shapes": shapes[:MAX_ROWS],
        "dtypes": _alike(dtypes),
        "values": values[:MAX_ROWS],
        "config": config[:MAX_ROWS],
        "side_files": side_files,
        "files": {"a": _files(left), "b": _files(right)},
    }  # fmt: skip
    result: dict[str, Any] = settled(document)
    return result


def _files(checkpoint: Checkpoint) -> list[Row]:
    return [{"path": file.name, "size_bytes": file.size_bytes} for file in checkpoint.files]


def _by_family(names: Sequence[str]) -> list[Row]:
    return [
        {"template": family.template, "count": len(family.names), "first": family.names[0]}
        for family in families(names).values()
    ]


def _alike(dtypes: Sequence[Row]) -> list[Row]:
    """Differing dtypes by family and pair of spellings."""
    groups: dict[tuple[str, str], list[str]] = {}
    for row in dtypes:
        groups.setdefault((row["a"], row["b"]), []).append(row["name"])
    return [
        {"template": family.template, "count": len(family.names), "first": family.names[0], "a": a, "b": b}
        for (a, b), names in groups.items()
        for family in families(names).values()
    ]


_ABSENT = object()


def _json_rows(file: str, left: Any, right: Any, path: str = "") -> Iterator[Row]:
    """Every place where two JSON values differ; a missing key is null on its side and named in ``only``."""
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        for key in sorted({*left, *right}):
            yield from _json_rows(
                file, left.get(key, _ABSENT), right.get(key, _ABSENT), f"{path}.{key}" if path else str(key)
            )
    elif left is _ABSENT or right is _ABSENT:
        side = "b" if left is _ABSENT else "a"
        yield {"file": file, "key": path, "a": _plain(left), "b": _plain(right), "only": side}
    elif type(left) is not type(right) or left != right:
        yield {"file": file, "key": path, "a": left, "b": right, "only": None}


def _plain(value: Any) -> Any:
    return None if value is _ABSENT else value


def _side_files(left: Checkpoint, right: Checkpoint, workers: int) -> list[Row]:
    """Side files that only one folder has, or that hold other bytes."""
    common = sorted(set(left.side_files) & set(right.side_files))
    one, two = (sha256_files(side.root, common, workers) if common else {} for side in (left, right))
    rows = [{"path": name, "what": "differs"} for name in common if one[name].sha256 != two[name].sha256]
    for what, mine, yours in (("only a", left, right), ("only b", right, left)):
        rows.extend({"path": name, "what": what} for name in sorted(set(mine.side_files) - set(yours.side_files)))
    return sorted(rows, key=lambda row: row["path"])
