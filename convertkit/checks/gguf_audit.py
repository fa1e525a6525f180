"""Audit a GGUF: what llama.cpp would refuse or silently misread, and with a scan values that are not finite."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from math import prod

import numpy as np

from convertkit.checkpoint import Checkpoint, TensorRef
from convertkit.checks.audited import Audit
from convertkit.checks.gguf_file import file_findings
from convertkit.checks.gguf_rows import STORAGE, dequantized, stored_rows
from convertkit.checks.reference import widened
from convertkit.checks.tiles import row_tiles
from convertkit.containers.reader import Reader
from convertkit.conversion.identify import identify
from convertkit.dtypes import BLOCK_TYPES
from convertkit.errors import Finding, finding
from convertkit.layouts.rules import families


def audit_gguf(checkpoint: Checkpoint, *, scan: bool = False) -> Audit:
    """Keys, tensors, shapes, types and ids of an opened GGUF; with ``scan`` all values are decoded."""
    layout = identify(checkpoint).layout
    found = [*checkpoint.findings, *file_findings(checkpoint)]
    if scan:
        found += _scan_values(checkpoint)
    rows = []
    for family in families(checkpoint.tensors).values():
        spec = checkpoint.tensors[family.names[0]].spec
        rows.append({
            "name": family.template, "count": len(family.names), "first": family.names[0],
            "role": layout.role_of(family.names[0]), "grid": "as stored", "dtype": spec.dtype,
            "shape": list(spec.shape),
            "planes": [], "config": None,
        })  # fmt: skip
    counts = Counter(item.severity for item in found)
    summary = {
        "layout": layout.name, "kind": layout.kind, "dialect": "ggml", "tensors": len(checkpoint.tensors),
        "packed_linears": 0, "dense_linears": 0, "fused_groups": 0, "errors": counts["error"],
        "warnings": counts["warning"], "notes": counts["note"],
    }  # fmt: skip
    return Audit(tuple(rows), summary, tuple(found))


def _scan_values(checkpoint: Checkpoint) -> Iterator[Finding]:
    """Tensors with NaN or infinity, as gguf decodes them."""
    with Reader(checkpoint) as reader:
        for name, ref in checkpoint.tensors.items():
            try:
                count = _nonfinite(reader, ref)
            except NotImplementedError:  # gguf 0.19.0 decodes all types but Q1_0, Q8_1 and Q8_K
                message = f"{ref.spec.dtype} blocks cannot be decoded, so their values are not known to be finite"
                yield finding("E_UNSUPPORTED_QUANT", "error", message, file=ref.file, tensor=name)
                continue
            if count:
                yield finding("E_WEIGHT_NONFINITE", "error", f"{count} values are NaN or infinite", file=ref.file,
                              tensor=name, data={"count": count})  # fmt: skip


def _nonfinite(reader: Reader, ref: TensorRef) -> int:
    dtype, shape = ref.spec.dtype, ref.spec.shape
    if dtype not in STORAGE and dtype not in BLOCK_TYPES:
        return 0
    count = 0
    for first, rows in row_tiles(prod(shape[:-1]), shape[-1]):
        data = stored_rows(reader, ref, first, rows)
        values = dequantized(data, dtype) if dtype in BLOCK_TYPES else widened(data.view(STORAGE[dtype]), dtype)
        count += int(np.count_nonzero(~np.isfinite(values)))
    return count
