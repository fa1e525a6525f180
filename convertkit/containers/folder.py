"""Opening a checkpoint: a folder in the Hugging Face layout, one safetensors file, or a GGUF model."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from convertkit.checkpoint import Checkpoint, TensorRef, WeightFile
from convertkit.containers.gguf_parts import SUFFIX as GGUF_SUFFIX
from convertkit.containers.gguf_parts import first_parts, no_single_model, open_gguf
from convertkit.containers.shards import cannot_be_listed, json_object, open_indexed, open_weights
from convertkit.errors import ConvertError, Finding, finding, refusal, shown

CONFIG = "config.json"
QUANT_CONFIG = "hf_quant_config.json"
INDEX_SUFFIX = ".safetensors.index.json"
WEIGHTS = ".safetensors"

EDIT_FOLDER = ".convertkit-edit"
"""Journal of a change in place (``conversion.inplace``); while it is there the files beside it may be half changed."""

NOT_SIDE_FILES: tuple[tuple[str, str], ...] = (
    # pattern (matched whole), why it does not travel
    (r".*\.safetensors", "weights"),
    (r".*\.safetensors\.index\.json", "index of weights"),
    (r".*\.(bin|pth|ckpt|gguf|h5|msgpack|onnx|npz|pkl|pickle)(\.index\.json)?", "weights of another format"),
    (r"config\.json", "written anew"),
    (r"(hf_quant_config|quantize_config|quant_config|quant_cfg|quantization_config)\.json", "quantization file"),
    (r"MANIFEST\.json|SHA256SUMS|TENSORS\.jsonl|PROVENANCE\.intoto\.json", "manifest"),
    (r".*\.(sig|sigstore|asc)", "signature"),
    (
        r"(DEQUANT_REPORT|FIDELITY_GATE|LOAD_SHAPE_AUDIT|RENAME_REPORT|REPAIR_REPORT|GGUF_REPORT|RELEASE_REPORT|MANIFEST)"
        r"(\.rows\.jsonl|\.json)",
        "report",
    ),
    (r"REPORT\.html", "page made from reports"),
)
"""Top-level files that are not carried to an output. ``.pt`` files are: ``mask_embedding.pt`` is part of a drafter."""

MASK_EMBEDDING = "mask_embedding.pt"
"""Part of a drafter, though PyTorch saved it."""
PICKLED = (".bin", ".pth", ".ckpt")
"""Endings of what PyTorch saves, which ``from-torch`` reads."""

MAX_DIMENSION = 1 << 31
MAX_LAYERS = 10_000
"""Layers are counted one by one when names are expected; no model has a tenth of these."""
INTEGER_FIELDS = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "block_size",
    "num_target_layers",
    "draft_vocab_size",
    "num_experts",
)
SCOPES = ("text_config", "transformer_layer_config", "dflash_config", "eagle_config")
"""Nested configs in which the fields above may stand."""
MODEL_TYPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


def open_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """Open a checkpoint as ``open_any`` does; a GGUF is refused with ``E_CONTAINER``."""
    opened = open_any(path)
    if opened.container != "safetensors":
        raise refusal(
            "E_CONTAINER", "this command reads safetensors, not GGUF", file=opened.files[0].name,
            fix="turn it into safetensors first: convertkit from-gguf",
        )  # fmt: skip
    return opened


def open_any(path: str | os.PathLike[str]) -> Checkpoint:
    """Read headers and JSON of a folder, or of one ``.safetensors`` or ``.gguf`` file (without the files beside it).

    A folder is that of a GGUF model if it holds one and no safetensors. Subfolders are never looked into. Raises
    ``ConvertError`` for anything that two readers could understand differently; what is merely odd is in
    ``Checkpoint.findings``.
    """
    root = Path(path)
    refuse_unfinished(root if root.is_dir() else root.parent)
    if root.is_dir():
        return _open_folder(root)
    if not os.path.lexists(root):
        raise refusal("E_NOT_FOUND", f"no such file or folder: {shown(root)}", fix="check the path")
    if root.name.endswith(GGUF_SUFFIX):
        model = open_gguf(root.parent, root.name)
        return Checkpoint(root.parent, "gguf", model.files, model.tensors, is_file=True, metadata=model.metadata)
    file, header = open_weights(root.parent, root.name)
    return Checkpoint(root.parent, "safetensors", (file,), header.tensors, findings=header.findings, is_file=True)


def refuse_unfinished(folder: Path) -> None:
    """Raises E_EDIT_UNFINISHED for a folder in which a change in place was interrupted."""
    if os.path.lexists(folder / EDIT_FOLDER):
        raise refusal(
            "E_EDIT_UNFINISHED",
            "a change in place was interrupted here, so files may be half changed",
            file=EDIT_FOLDER,
            fix=f"run `convertkit fix-keys {shown(folder)} --in-place --recover` (or --undo), which finishes it or "
            "takes it back",
        )


def _open_folder(root: Path) -> Checkpoint:
    try:
        names = sorted(os.listdir(root))
    except OSError as error:
        raise refusal("E_READ", f"cannot list the folder: {error.strerror}") from None
    models = first_parts([name for name in names if name.endswith(GGUF_SUFFIX)])
    if models and not any(name.endswith((WEIGHTS, INDEX_SUFFIX)) for name in names):
        return _open_gguf_folder(root, names, models)
    config = read_config(root, names)
    quant_config = json_object(root, QUANT_CONFIG) if QUANT_CONFIG in names else {}
    files, tensors, findings = _weights(root, names)
    side_files, skipped = sort_side_files(root, names, {file.name for file in files})
    if CONFIG not in names:
        findings.append(finding("W_NO_CONFIG", "warning", "no config.json", file=CONFIG))
    return Checkpoint(
        root, "safetensors", tuple(files), tensors, config, quant_config, side_files, skipped, tuple(findings)
    )


def _open_gguf_folder(root: Path, names: list[str], models: list[str]) -> Checkpoint:
    """The one GGUF model of a folder. It states its own config, so a ``config.json`` beside it is not read."""
    if len(models) > 1:
        raise no_single_model(models)
    model = open_gguf(root, models[0])
    side_files, skipped = sort_side_files(root, names, {file.name for file in model.files})
    return Checkpoint(
        root, "gguf", model.files, model.tensors, side_files=side_files, skipped=skipped, metadata=model.metadata
    )


def read_config(root: Path, names: list[str]) -> dict[str, Any]:
    """``config.json`` with the few fields checked that everything else relies on."""
    if CONFIG not in names:
        return {}
    config = json_object(root, CONFIG)
    faults: list[Finding] = []
    for scope in (config, *(config.get(section) for section in SCOPES)):
        if isinstance(scope, dict):
            faults.extend(_config_faults(scope))
    if faults:
        raise ConvertError(faults)
    return config


def _config_faults(scope: Mapping[str, Any]) -> Iterable[Finding]:
    for key in INTEGER_FIELDS:
        value = scope.get(key)
        if value is not None and (type(value) is not int or value < 0):
            yield finding("E_CONFIG", "error", f"'{key}' is not a whole number", file=CONFIG, key=key)
        elif value is not None and value > (most := MAX_LAYERS if key.endswith("layers") else MAX_DIMENSION):
            yield finding("E_CONFIG", "error", f"'{key}' is more than {most:,}", file=CONFIG, key=key)
    model_type = scope.get("model_type")
    if model_type is not None and not (isinstance(model_type, str) and MODEL_TYPE.fullmatch(model_type)):
        yield finding("E_CONFIG", "error", "'model_type' is not a plain name", file=CONFIG, key="model_type")
    architectures = scope.get("architectures")
    if architectures is not None and not (
        isinstance(architectures, list) and all(isinstance(item, str) for item in architectures)
    ):
        yield finding("E_CONFIG", "error", "'architectures' is not a list of names", file=CONFIG, key="architectures")


def _weights(root: Path, names: list[str]) -> tuple[list[WeightFile], dict[str, TensorRef], list[Finding]]:
    indexes = [name for name in names if name.endswith(INDEX_SUFFIX)]
    weights = [name for name in names if name.endswith(WEIGHTS)]
    if len(indexes) > 1:
        raise refusal("E_AMBIGUOUS_WEIGHTS", f"several indexes: {', '.join(map(shown, indexes))}", file=indexes[1])
    if indexes:
        return open_indexed(root, indexes[0], weights)
    if not weights:
        raise _no_weights(root, names)
    if len(weights) > 1:
        raise refusal(
            "E_AMBIGUOUS_WEIGHTS",
            f"{len(weights)} weight files and no index: {', '.join(map(shown, weights[:4]))}",
            file=weights[1],
            fix="remove what does not belong to the model, or make its index: repair --rebuild-index",
        )
    file, header = open_weights(root, weights[0])
    return [file], dict(header.tensors), list(header.findings)


def _no_weights(root: Path, names: list[str]) -> ConvertError:
    """Says what is there instead: weights of another format, or subfolders that hold weights."""
    other = [name for name in names if re.fullmatch(NOT_SIDE_FILES[2][0], name)]
    if other:
        pickled = other[0].removesuffix(".index.json").endswith(PICKLED)
        fix = f"convertkit from-torch {shown(root)} OUT" if pickled else "save it as safetensors first"
        return refusal("E_NO_WEIGHTS", f"no safetensors, only {shown(other[0])}", file=other[0], fix=fix)
    holders = [name for name in names if _holds_weights(root / name)]
    where = f"; weights are in the subfolder {', '.join(shown(name) + '/' for name in holders)}" if holders else ""
    return refusal("E_NO_WEIGHTS", f"no weights in this folder{where}", fix="name the folder that holds the weights")


def _holds_weights(folder: Path) -> bool:
    try:
        return folder.is_dir() and any(name.endswith(WEIGHTS) for name in os.listdir(folder))
    except OSError:
        return False


def sort_side_files(root: Path, names: list[str], used: set[str]) -> tuple[tuple[str, ...], dict[str, str]]:
    """Names that travel, and the others with the reason why not."""
    side: list[str] = []
    skipped: dict[str, str] = {}
    for name in names:
        if name in used:
            continue
        reason = next((why for pattern, why in NOT_SIDE_FILES if re.fullmatch(pattern, name)), None)
        if reason is None and not (root / name).is_file():
            reason = "folder" if (root / name).is_dir() else "not a regular file"
        if reason is None and (name.startswith(".") or not name.isprintable() or cannot_be_listed(name)):
            reason = "hidden or unsafe name"
        if reason is None:
            side.append(name)
        else:
            skipped[name] = reason
    return tuple(side), skipped
