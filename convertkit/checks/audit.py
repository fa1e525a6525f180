"""The audit of what is stored: names, shapes, dtypes, whole planes, config against tensors, fused scales.

It asks what a loader would ask, before a loader is there: engines load incomplete drafters silently and serve
fused parts with unequal scales wrong by their ratio. Rows are families of tensors that are alike; what is not as it
should be is a finding.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from convertkit.checkpoint import Checkpoint, TensorSpec
from convertkit.checks.audited import Audit
from convertkit.checks.drafters import drafter_findings
from convertkit.checks.expectations import layer_findings, layout_findings, plan_findings
from convertkit.checks.fused_scales import fused_groups_of, fused_scale_findings, global_bits, grouping_findings
from convertkit.checks.gguf_engines import gguf_views
from convertkit.checks.odd_values import odd_value_findings
from convertkit.checks.scales import inverted_scales
from convertkit.checks.scan import scan_findings
from convertkit.checks.tied import tied_findings
from convertkit.checks.wanted import Wanted, nowhere
from convertkit.containers.reader import Reader
from convertkit.conversion.identify import Identity, identify
from convertkit.dialects.coverage import Coverage, runtime_names
from convertkit.dialects.planes import PackedModule
from convertkit.dialects.values import global_scale_findings
from convertkit.errors import MAX_LISTED, Finding
from convertkit.layouts.fused import Group
from convertkit.layouts.rules import families


def audit_written(
    checkpoint: Checkpoint,
    expected: Iterable[TensorSpec] | None = None,
    *,
    fuse: Sequence[Group] = (),
    scan: bool = False,
    wanted: Wanted | None = None,
    values: Callable[[Checkpoint], Reader] = Reader,
) -> Audit:
    """Audit an opened checkpoint.

    ``expected`` are the tensors that a plan announced, compared exactly; drafters are also compared with the table
    of their layout. ``fuse`` adds fused groups. Global scales are read; with ``scan`` also block scales, codes and
    dense weights (bad values become errors). Codes: all of E_PACK_*, E_SCALE_*, E_QCONFIG*, E_LAYOUT_*,
    E_FUSED_SCALE, E_FUSED_SPLIT, and with ``scan`` E_WEIGHT_NONFINITE, and N_ON_GRID or W_PART_GRID for dense linears
    on a grid.
    ``wanted`` adds engines, a target and a reference. ``values`` reads those of a checkpoint that is only planned.
    """
    if checkpoint.container == "gguf":
        return _gguf_audit(checkpoint, scan, wanted)
    identity = identify(checkpoint, "error")
    findings = list(identity.findings)
    if expected is not None:
        findings += plan_findings(checkpoint, expected)
    findings += layout_findings(checkpoint, identity.layout, identity.packed, identity.planes.kv_scales)
    findings += layer_findings(checkpoint, identity.layout)
    with values(checkpoint) as reader:
        groups = fused_groups_of(identity, fuse)
        bits = global_bits(reader, identity.packed)
        findings += _scale_findings(identity.packed, bits)
        findings += inverted_scales(identity.packed, bits)
        findings += fused_scale_findings(checkpoint, identity, reader, groups, bits, fuse)
        findings += grouping_findings(checkpoint, identity, groups, bits, fuse)
        findings += drafter_findings(checkpoint, identity, reader)
        if scan:
            findings += scan_findings(checkpoint, identity.planes, reader)
            findings += odd_value_findings(checkpoint, identity.planes, reader)
            findings += tied_findings(checkpoint, reader)
            from convertkit.checks.grid_scan import grid_findings

            findings += grid_findings(checkpoint, identity.linears, identity.layout, reader, fuse)
        reader.assert_unchanged()
    rows: tuple[Mapping[str, Any], ...] = tuple(_rows(checkpoint, identity))
    views: tuple[Mapping[str, Any], ...] = ()
    if wanted is not None:
        more = wanted.audit(checkpoint, identity, rows, findings, scan)
        rows, views = more.rows, more.views
        findings += more.findings
    return Audit(rows, _summary(checkpoint, identity, groups, findings), tuple(findings), views)


def _gguf_audit(checkpoint: Checkpoint, scan: bool, wanted: Wanted | None) -> Audit:
    from convertkit.checks.gguf_audit import audit_gguf

    found = audit_gguf(checkpoint, scan=scan)
    if wanted is None:
        return found
    answers = gguf_views(checkpoint, found.findings, wanted.engines_for("gguf"))
    told = nowhere(answers) if wanted.unasked else ()
    return replace(found, engines=answers, findings=(*found.findings, *told))


def _scale_findings(packed: Mapping[str, PackedModule], bits: Mapping[str, int]) -> Iterator[Finding]:
    """Bad global scales: one finding per code and family, which names the first and counts the others."""
    bad: dict[str, dict[str, Finding]] = {}
    for name, module in packed.items():
        for item in global_scale_findings(module.global_scale, bits[name], module.spelling.sense):
            bad.setdefault(item.code, {})[name] = item
    for by_module in bad.values():
        for family in families(by_module).values():
            first, count = by_module[family.names[0]], len(family.names)
            message = first.message if count == 1 else f"{first.message}, as in {count - 1} more '{family.template}'"
            yield replace(first, message=message, data={"count": count, "modules": list(family.names[:MAX_LISTED])})


def _rows(checkpoint: Checkpoint, identity: Identity) -> Iterator[dict[str, Any]]:
    """Packed linears by family, then all other tensors by family; one row per family, shape and dtype."""
    packed = identity.packed
    coverage = identity.coverage
    rename = runtime_names(identity.scheme, identity.layout) if identity.scheme is not None else str
    taken = {ref.spec.name for module in packed.values() for ref in module.refs}
    for family in families(packed).values():
        alike: dict[tuple[Any, ...], list[str]] = {}
        for name in family.names:
            module = packed[name]
            leaves = tuple(ref.spec.name.rpartition(".")[2] for ref in module.refs)
            key = ((module.out_features, module.in_features), leaves, _stated(coverage, rename(name)))
            alike.setdefault(key, []).append(name)
        for (shape, leaves, stated), names in alike.items():
            yield {
                "name": family.template,
                "count": len(names),
                "first": names[0],
                "role": identity.layout.role_of(f"{names[0]}.weight"),
                "grid": "nvfp4",
                "dtype": "U8",
                "shape": list(shape),
                "planes": list(leaves),
                "config": stated,
            }
    for family in families(name for name in checkpoint.tensors if name not in taken).values():
        yield from _plain_rows(family.template, family.names, checkpoint, identity, coverage)


def _plain_rows(
    template: str,
    names: Sequence[str],
    checkpoint: Checkpoint,
    identity: Identity,
    coverage: Coverage | None,
) -> Iterator[dict[str, Any]]:
    alike: dict[tuple[str, tuple[int, ...], str | None], list[str]] = {}
    for name in names:
        spec = checkpoint.tensors[name].spec
        module = name.removesuffix(".weight")
        compared = module in identity.linears or (module in identity.planes.foreign and len(spec.shape) == 2)
        stated = _stated(coverage, module) if compared else None
        alike.setdefault((spec.dtype, spec.shape, stated), []).append(name)
    for (dtype, shape, stated), members in alike.items():
        yield {
            "name": template,
            "count": len(members),
            "first": members[0],
            "role": identity.layout.role_of(members[0]),
            "grid": "as stored",
            "dtype": dtype,
            "shape": list(shape),
            "planes": [],
            "config": stated,
        }


def _stated(coverage: Coverage | None, module: str) -> str | None:
    """What the quantization config says of a linear: ``packed``, ``dense``, or None if it cannot be told."""
    covered = None if coverage is None else coverage.covers(module)
    return None if covered is None else "packed" if covered else "dense"


def _summary(
    checkpoint: Checkpoint, identity: Identity, groups: Mapping[str, Sequence[str]], findings: Sequence[Finding]
) -> dict[str, Any]:
    counts = Counter(item.severity for item in findings)
    return {
        "layout": identity.layout.name,
        "kind": identity.kind,
        "dialect": identity.dialect,
        "tensors": len(checkpoint.tensors),
        "packed_linears": len(identity.packed),
        "dense_linears": len(identity.linears),
        "fused_groups": len(groups),
        "errors": counts["error"],
        "warnings": counts["warning"],
        "notes": counts["note"],
    }
