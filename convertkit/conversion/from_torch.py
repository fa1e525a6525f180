"""A folder, or one file, of weights that PyTorch pickled, and the plan that copies them into safetensors."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from convertkit.checkpoint import Checkpoint, TensorRef, WeightFile
from convertkit.containers.files import read_small
from convertkit.containers.folder import CONFIG, QUANT_CONFIG, read_config, sort_side_files
from convertkit.containers.pickled import open_pickled
from convertkit.containers.shards import json_object
from convertkit.conversion.plan import Draft, Plan, settle
from convertkit.conversion.units import Copy
from convertkit.errors import ConvertError, Finding, finding, refusal, shown

USUAL = "pytorch_model.bin"
INDEX = ".bin.index.json"
WEIGHTS = re.compile(r".*\.(bin|pt|pth|ckpt)")
OF_TRAINING = re.compile(r"(optimizer|scheduler|scaler|training_args|rng_state|random_states|mask_embedding).*")
"""Files beside the weights that PyTorch saves too."""

MAX_LISTED = 50


def open_torch(path: Path) -> Checkpoint:
    """Read names, shapes and places of a folder or of one file of ``torch.save``; no weight is read.

    Raises ``ConvertError``: E_NO_WEIGHTS, E_AMBIGUOUS_WEIGHTS, E_INDEX, E_INDEX_MISMATCH, and as ``open_pickled`` and
    ``read_config``.
    """
    if path.is_dir():
        root, names = path, sorted(item.name for item in path.iterdir())
        chosen, weight_map = _chosen(root, names)
    else:
        root, names, chosen, weight_map = path.parent, [], [path.name], {}
    files: list[WeightFile] = []
    tensors: dict[str, TensorRef] = {}
    notes: list[Finding] = []
    for name in chosen:
        file, found, others = open_pickled(root, name)
        _refuse_other_places(found, tensors, weight_map, name)
        files.append(file)
        tensors |= found
        if others:
            kept = [shown(key) for key in others[:MAX_LISTED]]
            notes.append(finding("N_NOT_TENSORS", "note", f"{len(others)} values are no tensors and not kept: "
                                 f"{', '.join(kept[:8])}", file=name, data={"names": kept}))  # fmt: skip
    _refuse_absent(tensors, weight_map)
    if CONFIG not in names:
        notes.append(finding("W_NO_CONFIG", "warning", "no config.json", file=CONFIG))
    side_files, skipped = sort_side_files(root, names, set(chosen))
    return Checkpoint(
        root, "pickle", tuple(files), tensors, read_config(root, names),
        json_object(root, QUANT_CONFIG) if QUANT_CONFIG in names else {},
        side_files, skipped, tuple(notes), is_file=not path.is_dir(),
    )  # fmt: skip


def _chosen(root: Path, names: Sequence[str]) -> tuple[list[str], Mapping[str, str]]:
    """The weight files of a folder, and which of them holds which tensor if an index says so."""
    indexes = [name for name in names if name.endswith(INDEX)]
    found = [name for name in names if WEIGHTS.fullmatch(name) and not OF_TRAINING.fullmatch(name)]
    if len(indexes) == 1:
        weight_map = json_object(root, indexes[0]).get("weight_map")
        if not isinstance(weight_map, dict) or not all(value in names for value in weight_map.values()):
            raise refusal("E_INDEX", "no list of tensors with a file of this folder for each", file=indexes[0])
        return sorted(set(weight_map.values())), weight_map
    if USUAL in found and not indexes:
        return [USUAL], {}
    if not found:
        raise refusal("E_NO_WEIGHTS", "no weights that PyTorch saved (.bin, .pt, .pth, .ckpt)",
                      fix="name the folder or the file that holds them")  # fmt: skip
    if len(found) > 1 or indexes:
        raise refusal("E_AMBIGUOUS_WEIGHTS", f"{len(found)} files may be the weights: "
                      f"{', '.join(map(shown, found[:8]))}", file=found[0], fix="name the file")  # fmt: skip
    return found, {}


def _refuse_other_places(
    found: Mapping[str, TensorRef], known: Mapping[str, TensorRef], weight_map: Mapping[str, str], file: str
) -> None:
    wrong = [name for name in found if name in known or (weight_map and weight_map.get(name) != file)]
    if wrong:
        raise ConvertError(
            finding("E_INDEX_MISMATCH", "error", "the index does not say that it is here", file=file, tensor=name)
            for name in wrong[:MAX_LISTED]
        )


def _refuse_absent(tensors: Mapping[str, TensorRef], weight_map: Mapping[str, str]) -> None:
    absent = [name for name in weight_map if name not in tensors]
    if absent:
        raise ConvertError(
            finding("E_INDEX_MISMATCH", "error", "it is not where the index says", file=weight_map[name], tensor=name)
            for name in absent[:MAX_LISTED]
        )


def plan_from_torch(source: Checkpoint, max_shard_bytes: int, slack_bytes: int) -> Plan:
    """Every tensor byte for byte under its name; config and side files as they are."""
    units = [Copy(ref, name, name.rpartition(".")[0] or name) for name, ref in source.tensors.items()]
    beside = () if source.is_file else (CONFIG, QUANT_CONFIG)
    documents = {name: read_small(source.root, name) for name in beside if (source.root / name).is_file()}
    return settle(source, Draft("from-torch", {}, units, (), documents), max_shard_bytes, slack_bytes)
