"""What a folder of a release says about itself: the row of each variant, and all its reports as one view."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from convertkit.containers.files import read_small
from convertkit.containers.strict_json import parse_json
from convertkit.conversion.plan import Plan
from convertkit.errors import ConvertError, Finding, refusal
from convertkit.release.manifest import Manifest
from convertkit.release.manifest_reader import read_manifest
from convertkit.release.paths import OWN_FILES, folder_of, is_never_listed, is_signature
from convertkit.release.recipe import SOURCE, Variant
from convertkit.release.reports import MAX_REPORT_BYTES, report_faults
from convertkit.release.tree import walk

RELEASE_REPORT = "RELEASE_REPORT.json"
GATE, EXPANSION, AUDIT, GGUF_REPORT = (
    "FIDELITY_GATE.json", "DEQUANT_REPORT.json", "LOAD_SHAPE_AUDIT.json", "GGUF_REPORT.json",
)  # fmt: skip
SHOWN_REPORTS = (GATE, EXPANSION, AUDIT, GGUF_REPORT)
LARGE = (".safetensors", ".gguf")


@dataclass(frozen=True)
class ListedFile:
    """A file of a release; the digest is None where nobody took it."""

    path: str
    size_bytes: int
    sha256: str | None


@dataclass(frozen=True)
class View:
    """All that a card or a page is made from. ``release`` is RELEASE_REPORT.json or None; ``parts`` maps folders
    (empty for the root) to their reports with rows; ``files`` are sorted by path."""

    title: str
    release: Mapping[str, Any] | None = field(repr=False)
    parts: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(repr=False)
    files: tuple[ListedFile, ...] = ()

    @property
    def variants(self) -> Sequence[Mapping[str, Any]]:
        return () if self.release is None else self.release["rows"]

    @property
    def engines(self) -> Sequence[Mapping[str, Any]]:
        return () if self.release is None else self.release["summary"]["engines"]


def variant_row(
    variant: Variant,
    plan: Plan,
    manifest: Manifest,
    reports: Mapping[str, Mapping[str, Any]],
    codes: Sequence[int] | None,
) -> dict[str, Any]:
    """Row of RELEASE_REPORT.json for a finished variant; ``codes`` from ``checks.code_counts``."""
    names = {file.name: len(file.header.order) for file in plan.files}
    weights = [
        {"path": entry.path, "size_bytes": entry.size_bytes, "sha256": entry.sha256, "tensors": names[entry.path]}
        for entry in manifest.files
        if entry.path in names
    ]
    gate, expansion = reports.get(GATE), reports.get(EXPANSION)
    return {
        "folder": variant.title,
        "format": variant.format,
        "made_from": SOURCE if variant.made_from is None else f"{variant.made_from}/" if variant.made_from else ".",
        "verb": plan.verb,
        "fingerprint": plan.fingerprint,
        "tensors": len(plan.outputs),
        "size_bytes": sum(file.header.size_bytes for file in plan.files),
        "weights": weights,
        "reports": [{"name": name, "verdict": reports[name]["verdict"]} for name in sorted(reports)],
        "expansion": None if expansion is None else expansion_of(expansion),
        "fidelity": None if gate is None else plain(gate["summary"]["whole"]),
        "on_grid": None if gate is None else grid_of(gate.get("rows", ())),
        "codes": None if codes is None else list(codes),
    }


def expansion_of(report: Mapping[str, Any]) -> dict[str, Any]:
    """Counts of a DEQUANT_REPORT that a card states."""
    keys = ("elements", "differing", "unrecovered", "against_differing")
    return {key: report["summary"][key] for key in keys if key in report["summary"]}


def grid_of(rows: Iterable[Mapping[str, Any]]) -> dict[str, int] | None:
    """Weights of a FIDELITY_GATE that lay on a grid, were packed as they are, and come back; None if none did."""
    found = [row for row in rows if row["scope"] == "tensor" and row.get("scales", {}).get("choice") == "grid"]
    if not found:
        return None
    return {
        "linears": len(found),
        "elements": sum(row["metrics"]["elements"] for row in found),
        "differing": sum(row["scales"].get("differing") or 0 for row in found),
    }


def plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values without the nested ones."""
    return {key: value for key, value in values.items() if not isinstance(value, Mapping)}


def read_view(root: Path, digests: Mapping[str, str] | None = None) -> View:
    """Every report in ``root`` and its subfolders, and the files with the digests that are known.

    Known are ``digests``, else those of MANIFEST.json, else those of small files, which are taken now. Raises
    ``ConvertError``: E_NO_REPORTS, and as ``read_report``.
    """
    tree = walk(root)
    paths = [path for path in tree.files if not is_never_listed(path)]
    parts: dict[str, dict[str, Mapping[str, Any]]] = {}
    for path in paths:
        name = path.rpartition("/")[2]
        if name in SHOWN_REPORTS:
            parts.setdefault(folder_of(path), {})[name] = read_report(root, path)
    release = read_report(root, RELEASE_REPORT) if RELEASE_REPORT in paths else None
    if not parts and release is None:
        raise refusal("E_NO_REPORTS", "the folder holds no report of convertkit", fix="name a folder that a verb wrote")
    known = _known(root) if digests is None else digests
    shown = [path for path in paths if path not in OWN_FILES and not is_signature(path)]
    files = tuple(ListedFile(path, (root / path).stat().st_size, _digest(root, path, known)) for path in shown)
    title = release["summary"]["name"] if release is not None else root.resolve().name
    return View(title, release, dict(sorted(parts.items())), files)


@contextmanager
def reports_blamed(folders: Iterable[Path]) -> Iterator[None]:
    """Where reading reports fails, their schemas say which of them is to blame. Rows are many, so they are not
    validated before. Raises ``E_REPORT_SCHEMA``, or what was raised if no report has a fault."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        faults = [fault for root in folders for path in walk(root).files for fault in _faults_of(root, path)]
        if faults:
            raise ConvertError(faults) from None
        raise


def _faults_of(root: Path, path: str) -> list[Finding]:
    if path.rpartition("/")[2] not in (*SHOWN_REPORTS, RELEASE_REPORT):
        return []
    document = parse_json(read_small(root, path, MAX_REPORT_BYTES), path)
    return report_faults(root, path, document if isinstance(document, dict) else {})


def _known(root: Path) -> dict[str, str]:
    try:
        return {entry.path: entry.sha256 for entry in read_manifest(root).manifest.files if entry.sha256}
    except ConvertError:
        return {}


def _digest(root: Path, path: str, known: Mapping[str, str]) -> str | None:
    if path in known or path.endswith(LARGE):
        return known.get(path)
    return hashlib.sha256(read_small(root, path)).hexdigest()


def read_report(root: Path, path: str) -> dict[str, Any]:
    """A report with its rows, from wherever they are. Raises ``E_REPORT_SCHEMA`` for what is not one."""
    document = parse_json(read_small(root, path, MAX_REPORT_BYTES), path)
    if not isinstance(document, dict) or not isinstance(document.get("summary"), dict):
        raise refusal("E_REPORT_SCHEMA", "not a report of convertkit", file=path)
    rows_file = document.get("rows_file")
    if isinstance(rows_file, dict) and "rows" not in document:
        place = f"{folder_of(path)}/{rows_file['path']}" if folder_of(path) else str(rows_file["path"])
        lines = read_small(root, place, MAX_REPORT_BYTES).splitlines()
        document["rows"] = [parse_json(line, place) for line in lines]
    return document


def verdict_of(view: View) -> str:
    """``fail`` if any report says so."""
    found = Counter(report["verdict"] for part in view.parts.values() for report in part.values())
    if view.release is not None:
        found[view.release["verdict"]] += 1
    return "fail" if found["fail"] else "pass"
