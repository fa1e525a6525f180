"""The output of a plan as a checkpoint that can be planned with, before a byte of it is written."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from convertkit.checkpoint import Checkpoint, FileStamp, TensorRef, WeightFile
from convertkit.containers.folder import CONFIG, QUANT_CONFIG
from convertkit.containers.strict_json import parse_json
from convertkit.conversion.plan import Plan
from convertkit.errors import Finding, finding


def foresee(plan: Plan) -> Checkpoint:
    """The safetensors folder that ``plan`` will make: its headers, config and side files.

    The files are not there, so it can be identified and planned with and not be read. Its root is that of the plan's
    source, where the side files are.
    """
    files = tuple(
        WeightFile(
            file.name,
            FileStamp(0, 0, file.header.size_bytes, 0),
            len(file.header.prefix),
            plan.metadata,
        )
        for file in plan.files
    )
    tensors = {
        spec.name: TensorRef(spec, file.name, file.header.starts[spec.name])
        for file in plan.files
        for spec in file.header.order
    }
    return Checkpoint(
        plan.source.root,
        "safetensors",
        files,
        dict(sorted(tensors.items())) if len(files) > 1 else tensors,
        _object(plan, CONFIG),
        _object(plan, QUANT_CONFIG),
        plan.side_files,
        findings=tuple(_notes(plan)),
        planned=True,
    )


def _notes(plan: Plan) -> Iterator[Finding]:
    """What opening the folder will find; its headers and index are ours, and so without fault."""
    if CONFIG not in (*plan.documents, *plan.side_files):
        yield finding("W_NO_CONFIG", "warning", "no config.json", file=CONFIG)


def _object(plan: Plan, name: str) -> dict[str, Any]:
    """A document of the plan; ``config.json`` is the source's where the plan writes none anew."""
    if name in plan.documents:
        value = parse_json(plan.documents[name], name)
        assert isinstance(value, dict)
        return value
    return dict(plan.source.config) if name == CONFIG and name in plan.side_files else {}
