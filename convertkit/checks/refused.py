"""The audit of a folder that convertkit refuses to open: engines open what they can, so they are asked all the same."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from convertkit.checkpoint import Checkpoint, TensorRef
from convertkit.checks.audited import Audit
from convertkit.checks.engines import audit_engines
from convertkit.checks.wanted import Wanted
from convertkit.containers.stored import StoredFolder, read_any_folder
from convertkit.conversion.identify import Identity, identify
from convertkit.errors import ConvertError, Finding

NOT_FOR_ENGINES = frozenset({"E_NOT_FOUND", "E_EDIT_UNFINISHED", "E_READ", "E_NO_WEIGHTS"})
"""Refusals after which there is nothing that an engine could be asked about."""


def audit_refused(path: str | os.PathLike[str], error: ConvertError, wanted: Wanted | None) -> tuple[Checkpoint, Audit]:
    """What engines do with a folder that ``containers.folder`` refused with ``error``, and its weight files as far as
    they can be opened. Findings are those of the error and of the engines. Raises the error again if no engine is
    asked, or nothing is there to ask about."""
    root = Path(path)
    if wanted is None or not wanted.engines or error.code in NOT_FOR_ENGINES or not root.is_dir():
        raise error
    folder = read_any_folder(root)
    if not folder.names:
        raise error
    checkpoint = _checkpoint(folder)
    identity = identify(checkpoint)
    found = audit_engines(checkpoint, identity, wanted.engines, wanted.target, wanted.ranks, folder=folder)
    findings = (*error.findings, *found.findings)
    return checkpoint, Audit((), _summary(folder, identity, findings), findings, found.views)


def _checkpoint(folder: StoredFolder) -> Checkpoint:
    """The weight files that convertkit's reader accepts, without configs, which may be what was refused."""
    tensors: dict[str, TensorRef] = {}
    for _, header in folder.opened.values():
        tensors.update(header.tensors)
    return Checkpoint(folder.root, "safetensors", tuple(file for file, _ in folder.opened.values()), tensors)


def _summary(folder: StoredFolder, identity: Identity, findings: Sequence[Finding]) -> dict[str, object]:
    counts = Counter(item.severity for item in findings)
    return {
        "layout": identity.layout.name,
        "kind": identity.kind,
        "dialect": identity.dialect,
        "tensors": len({spec.name for specs in folder.files.values() for spec in specs}),
        "packed_linears": len(identity.packed),
        "dense_linears": len(identity.linears),
        "fused_groups": 0,
        "errors": counts["error"],
        "warnings": counts["warning"],
        "notes": counts["note"],
    }
