"""Weight files of a folder: one by one, or all that a shard index names, each checked against it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from convertkit.checkpoint import TensorRef, WeightFile
from convertkit.containers.files import open_regular, read_small, stamp_of
from convertkit.containers.safetensors import UNSAFE_IN_NAMES, Header, read_header
from convertkit.containers.strict_json import parse_json
from convertkit.errors import MAX_FAULTS, ConvertError, Finding, finding, refusal, shown

PLAIN_NAME = re.compile(r"[^/\\:\x00-\x1f~]+\.safetensors")
SHARD_NAME = re.compile(r"(?P<stem>.+)-(?P<number>[0-9]{5})-of-(?P<count>[0-9]{5})\.safetensors", re.DOTALL)


def json_object(root: Path, name: str) -> dict[str, Any]:
    """The JSON object in a file. Raises E_JSON for anything else."""
    value = parse_json(read_small(root, name), name)
    if not isinstance(value, dict):
        raise refusal("E_JSON", "the file does not hold a JSON object", file=name)
    return value


def cannot_be_listed(name: str) -> bool:
    """Whether a manifest must not state this file name (``release.paths.path_fault``)."""
    return bool(UNSAFE_IN_NAMES.search(name) or "\\" in name or re.match("[A-Za-z]:", name))


def open_weights(root: Path, name: str) -> tuple[WeightFile, Header]:
    """One weight file and its header. Raises E_NAME_UNSAFE, and as ``read_header`` and ``open_regular``."""
    if cannot_be_listed(name):
        raise refusal("E_NAME_UNSAFE", "no report or manifest could state this file name", file=name,
                      fix="rename the file")  # fmt: skip
    fd = open_regular(root, name)
    try:
        header = read_header(fd, name)
        return WeightFile(name, stamp_of(fd), header.data_start, header.metadata), header
    finally:
        os.close(fd)


def open_indexed(
    root: Path, index: str, weights: list[str]
) -> tuple[list[WeightFile], dict[str, TensorRef], list[Finding]]:
    """All shards that the index names, each checked against it."""
    document = json_object(root, index)
    weight_map = _weight_map(document, index)
    shards = sorted(set(weight_map.values()))
    single = index.removesuffix(".index.json")
    if single in weights and single not in shards:
        raise refusal(
            "E_AMBIGUOUS_WEIGHTS",
            f"{shown(single)} lies beside an index that does not list it",
            file=single,
            fix="remove the one that is not the model",
        )
    files: list[WeightFile] = []
    tensors: dict[str, TensorRef] = {}
    findings: list[Finding] = []
    faults: list[Finding] = []
    for shard in shards:
        if len(faults) >= MAX_FAULTS:
            break
        try:
            file, header = open_weights(root, shard)
        except ConvertError as error:
            faults.extend(_missing_shard(error, shard))
            continue
        files.append(file)
        findings.extend(header.findings)
        faults.extend(islice(_shard_faults(header.tensors, weight_map, shard), MAX_FAULTS))
        tensors.update((name, ref) for name, ref in header.tensors.items() if weight_map.get(name) == shard)
    found = set(shards) if not faults else set()
    lacking = ((name, shard) for name, shard in weight_map.items() if shard in found and name not in tensors)
    faults.extend(
        finding(
            "E_INDEX_MISMATCH",
            "error",
            f"the index puts it in {shown(shard)}, which lacks it",
            file=index,
            tensor=name,
            fix="fetch the file anew, or make an index of what is there: repair --rebuild-index",
        )
        for name, shard in islice(lacking, MAX_FAULTS)
    )
    if faults:
        raise ConvertError(faults[:MAX_FAULTS])
    findings.extend(_index_notes(document, index, tensors, weights, shards))
    return files, tensors, findings


def _missing_shard(error: ConvertError, shard: str) -> Iterable[Finding]:
    if error.code == "E_NOT_FOUND":
        yield finding(
            "E_SHARD_MISSING",
            "error",
            "the index names a shard that is not there",
            file=shard,
            fix="fetch the missing shard; if the files that are there are whole: repair --rebuild-index",
        )
    else:
        yield from error.findings


def _weight_map(document: dict[str, Any], index: str) -> dict[str, str]:
    weight_map = document.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise refusal("E_INDEX", "'weight_map' is not an object with tensors", file=index, key="weight_map")
    faults = []
    for tensor, shard in weight_map.items():
        if not isinstance(shard, str):
            faults.append(finding("E_INDEX", "error", "the shard name is not a string", file=index, tensor=tensor))
        elif not PLAIN_NAME.fullmatch(shard) or shard.startswith("."):
            faults.append(
                finding(
                    "E_INDEX_PATH",
                    "error",
                    f"'{shown(shard)}' is not a plain file name in the folder",
                    file=index,
                    tensor=tensor,
                    fix="name a .safetensors file beside the index",
                )
            )
        if len(faults) == MAX_FAULTS:
            break
    if faults:
        raise ConvertError(faults)
    folded: dict[str, str] = {}
    for shard in sorted(set(weight_map.values())):
        other = folded.setdefault(shard.casefold(), shard)
        if other != shard:
            raise refusal("E_PATH_CASE", f"shards {shown(other)} and {shown(shard)} differ only in case", file=index)
    return weight_map


def _shard_faults(tensors: Mapping[str, TensorRef], weight_map: Mapping[str, str], shard: str) -> Iterable[Finding]:
    for name in tensors:
        listed = weight_map.get(name)
        if listed != shard:
            what = "the index does not list it" if listed is None else f"the index puts it in {shown(listed)}"
            yield finding(
                "E_INDEX_MISMATCH",
                "error",
                f"{what}, but it is in {shown(shard)}",
                file=shard,
                tensor=name,
                fix="fetch the index that belongs to these shards, or make one: repair --rebuild-index",
            )


def _index_notes(
    document: Mapping[str, Any], index: str, tensors: Mapping[str, TensorRef], weights: list[str], shards: list[str]
) -> Iterable[Finding]:
    metadata = document.get("metadata")
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    real = sum(ref.size_bytes for ref in tensors.values())
    if total is not None and total != real:
        yield finding(
            "W_INDEX_TOTAL",
            "warning",
            f"total_size is {shown(total)}, the tensors have {real} bytes",
            file=index,
            key="total_size",
            data={"stated": shown(total), "real": real},
        )
    listed = set(shards)
    for name in weights:
        if name not in listed:
            yield finding(
                "W_SHARD_UNLISTED", "warning", "a weight file that the index does not list; not read", file=name
            )
