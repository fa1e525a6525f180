"""Opening a folder of safetensors whose index is wrong or missing: by the headers of its files alone."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from convertkit.checkpoint import Checkpoint, TensorRef, WeightFile
from convertkit.containers.folder import (
    CONFIG,
    INDEX_SUFFIX,
    QUANT_CONFIG,
    WEIGHTS,
    read_config,
    refuse_unfinished,
    sort_side_files,
)
from convertkit.containers.shards import SHARD_NAME, json_object, open_weights
from convertkit.errors import ConvertError, Finding, finding, raise_all, refusal, shown

MAX_FAULTS = 20


@dataclass(frozen=True)
class Loose:
    """The checkpoint with each name once (the first file that has it), and all places of the names that have
    several. ``lost`` are names that the index lists and no file holds, ``strays`` files that an index which can be
    read does not name."""

    checkpoint: Checkpoint
    repeated: Mapping[str, tuple[TensorRef, ...]]
    lost: tuple[str, ...]
    strays: tuple[str, ...] = ()


def open_loose(root: Path) -> Loose:
    """Open every weight file of a folder. Raises ``ConvertError``: E_NO_WEIGHTS, E_SHARD_MISSING (names of shards
    promise others), and the faults of headers, which no index can cure."""
    refuse_unfinished(root)
    names = sorted(os.listdir(root))
    weights = [name for name in names if name.endswith(WEIGHTS)]
    if not weights:
        raise refusal("E_NO_WEIGHTS", "no weights in this folder", fix="name the folder that holds the weights")
    _refuse_gaps(weights)
    files: list[WeightFile] = []
    tensors: dict[str, TensorRef] = {}
    places: dict[str, list[TensorRef]] = {}
    findings: list[Finding] = []
    for name in weights:
        file, header = open_weights(root, name)
        files.append(file)
        findings.extend(header.findings)
        for tensor, ref in header.tensors.items():
            places.setdefault(tensor, []).append(ref)
            tensors.setdefault(tensor, ref)
    side_files, skipped = sort_side_files(root, names, set(weights))
    quant = json_object(root, QUANT_CONFIG) if QUANT_CONFIG in names else {}
    checkpoint = Checkpoint(
        root, "safetensors", tuple(files), tensors, read_config(root, names) if CONFIG in names else {}, quant,
        side_files, skipped, tuple(findings),
    )  # fmt: skip
    repeated = {tensor: tuple(refs) for tensor, refs in places.items() if len(refs) > 1}
    listed = _listed(root, names)
    named = set(listed.values())
    strays = tuple(name for name in weights if listed and name not in named)
    return Loose(checkpoint, repeated, tuple(sorted(listed.keys() - tensors.keys())), strays)


def _listed(root: Path, names: Iterable[str]) -> dict[str, str]:
    """Tensor to file as the indexes of the folder say."""
    listed: dict[str, str] = {}
    for name in names:
        if name.endswith(INDEX_SUFFIX):
            with suppress(ConvertError):  # an index that cannot be read lists nothing
                weight_map = json_object(root, name).get("weight_map")
                pairs = weight_map.items() if isinstance(weight_map, dict) else ()
                listed.update((key, file) for key, file in pairs if isinstance(file, str))
    return listed


def _refuse_gaps(weights: list[str]) -> None:
    """Shards that the names of others promise (``…-00001-of-00003``) cannot be made up."""
    matches = (SHARD_NAME.fullmatch(name) for name in weights)
    sets = dict.fromkeys((match["stem"], match["count"]) for match in matches if match is not None)
    present = set(weights)
    promised = (f"{stem}-{other:05d}-of-{count}{WEIGHTS}" for stem, count in sets for other in range(1, int(count) + 1))
    raise_all(
        finding("E_SHARD_MISSING", "error", "the names of other shards promise it", file=shown(name),
                fix="fetch the missing shard")
        for name in islice((name for name in promised if name not in present), MAX_FAULTS)
    )  # fmt: skip
