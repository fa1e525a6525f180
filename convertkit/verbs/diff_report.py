"""The document of ``diff``: counts, rows and families of all that differs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from convertkit import __version__
from convertkit.checkpoint import Checkpoint
from convertkit.containers.folder import CONFIG, QUANT_CONFIG
from convertkit.layouts.rules import families
from convertkit.release.digests import sha256_files
from convertkit.release.reports import settled
from convertkit.verbs.diff_pairs import Pairing, Side

Row = dict[str, Any]

MAX_ROWS = 2_000
"""Rows of one kind in the document; the summary counts all of them."""


@dataclass(frozen=True)
class Differences:
    """What was found in the weights: rows of those whose shape, dtype or values differ; ``values`` is None where no
    weight was read."""

    pairing: Pairing
    shapes: Sequence[Row]
    dtypes: Sequence[Row]
    values: Sequence[Row] | None


def diff_document(sides: Sequence[Side], found: Differences, workers: int) -> dict[str, Any]:
    """The document ``convertkit.diff/1``; compares configs, and side files by their bytes."""
    left, right = sides[0].checkpoint, sides[1].checkpoint
    pairing, values = found.pairing, found.values or ()
    config = [
        *_json_rows(CONFIG, left.config, right.config),
        *_json_rows(QUANT_CONFIG, left.quant_config, right.quant_config),
    ]
    side_files = _side_files(left, right, workers)
    counts = {
        "common": len(pairing.common),
        "renamed": len(pairing.renamed),
        "only_a": len(pairing.only_a),
        "only_b": len(pairing.only_b),
        "shapes": len(found.shapes),
        "dtypes": len(found.dtypes),
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
        "values_compared": found.values is not None,
        "summary": counts,
        "names": _names(pairing),
        "shapes": list(found.shapes[:MAX_ROWS]),
        "dtypes": _alike(found.dtypes),
        "values": list(values[:MAX_ROWS]),
        "config": config[:MAX_ROWS],
        "side_files": side_files,
        "files": {"a": _files(left), "b": _files(right)},
    }
    result: dict[str, Any] = settled(document)
    return result


def _files(checkpoint: Checkpoint) -> list[Row]:
    return [{"path": file.name, "size_bytes": file.size_bytes} for file in checkpoint.files]


def _names(pairing: Pairing) -> Row:
    moved = dict(pairing.renamed)
    return {
        "renamed": [
            {"template": family.template, "count": len(family.names), "from": family.names[0],
             "to": moved[family.names[0]]}
            for family in families(moved).values()
        ],
        "only_a": _by_family(pairing.only_a),
        "only_b": _by_family(pairing.only_b),
    }  # fmt: skip


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
