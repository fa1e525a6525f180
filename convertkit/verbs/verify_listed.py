"""What a folder holds against what its manifest states: files, tensors, claims, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from convertkit import __version__
from convertkit.codes import CODES
from convertkit.errors import Finding, finding, refusal, shown
from convertkit.progress import Progress
from convertkit.release.claims import check_claims
from convertkit.release.expected import Expected
from convertkit.release.manifest import FileEntry
from convertkit.release.matching import match
from convertkit.release.paths import (
    MANIFEST,
    OWN_FILES,
    SUMS,
    folder_of,
    is_signature,
    matches,
    selected,
)
from convertkit.release.structure import check_structure, is_weights
from convertkit.release.tree import Tree

SEVERITIES = ("error", "warning", "note")
STATUS_ORDER = (70, 4, 2, 3, 1, 6)
"""When findings stand for several exit statuses the first of these counts: a folder that cannot be read or is
malformed is not merely different, and one with other faults is not merely an earlier release."""


@dataclass(frozen=True)
class VerifyResult:
    """Findings, errors first; the exit status; counts and digests."""

    findings: tuple[Finding, ...]
    status: int
    summary: Mapping[str, Any]

    def as_json(self) -> dict[str, Any]:
        return {
            "schema": "convertkit.verify/1",
            "tool": {"name": "convertkit", "version": __version__},
            "verdict": "fail" if self.status else "pass",
            "status": self.status,
            "summary": dict(self.summary),
            "findings": [item.as_json() for item in self.findings],
        }


@dataclass(frozen=True)
class Choice:
    """What of a folder is verified, and what may lie in it unlisted."""

    only: tuple[str, ...]
    allow_extra: tuple[str, ...]
    card: bool = False
    signature: str | None = None
    signed: bool = False

    def wants(self, path: str) -> bool:
        return selected(path, self.only)

    def allows(self, path: str) -> bool:
        return matches(path, self.allow_extra)


def verify_listed(
    root: Path, tree: Tree, expected: Expected, choice: Choice, strict: bool, workers: int, progress: Progress
) -> VerifyResult:
    """The folder against ``expected``: structure, every chosen file and tensor, what reports claim. Raises
    E_PATTERN_EMPTY for a choice that nothing listed meets; every other problem is a finding."""
    listed = {path: entry for path, entry in expected.files.items() if choice.wants(path) or path in OWN_FILES}
    refuse_empty_patterns(choice, expected.files)
    unlisted = [path for path in tree.paths if path not in expected.files and path not in (MANIFEST, SUMS)]
    unlisted = [path for path in unlisted if choice.wants(path)]
    allowed = [path for path in unlisted if choice.allows(path)]
    passed = {*allowed, choice.signature}
    signatures = [path for path in unlisted if is_signature(path) and path not in passed]
    passed.update(signatures)
    extra = [path for path in unlisted if path not in passed]
    paths = {*tree.files, *expected.files}
    weights = [path for path in paths if is_weights(path) and choice.wants(path) and path not in passed]
    structure = check_structure(root, paths, weights)
    matched = match(
        root, tree, listed, extra, expected.tensors, structure.tensors, expected.supersedes, workers, progress
    )  # fmt: skip
    findings = [*structure.findings, *expected.findings, *matched.findings]
    findings.extend(
        finding("W_SIGNATURE_UNCHECKED", "warning", "a signature lies there and was not checked", file=path)
        for path in signatures
    )
    stated = {path: entry.sha256 for path, entry in expected.files.items()}
    other = {item.where.file for item in matched.findings}  # what a report of other bytes claims is no news
    claimants = sorted(path for path in set(listed) & set(tree.files) if path not in other)
    findings.extend(check_claims(root, claimants, stated, rows=strict))
    counts = empty_summary(expected, listed, allowed)
    if choice.signed:
        counts["signed"] = not any(item.severity == "error" for item in findings)
    if choice.card:
        from convertkit.release.cards import check_cards

        checked = check_cards(root, sorted(set(listed) & set(tree.files)), expected, structure.tensors)
        findings.extend(checked.findings)
        counts["card_claims"] = checked.claims
    findings = _without_twins(findings)
    counts.update(files_ok=matched.files_ok, size_bytes=matched.size_bytes, tensors=matched.tensors_ok)
    return verify_result(findings, strict, counts)


def without_manifest(root: Path, tree: Tree, expected: Expected, choice: Choice, strict: bool) -> VerifyResult:
    """No manifest, or one that cannot be trusted: structure only, and never a pass."""
    structure = check_structure(root, tree.files, [path for path in tree.files if choice.wants(path)])
    findings = [*structure.findings, *expected.findings]
    if not expected.manifests:
        findings.append(_manifest_missing(root, tree))
    return verify_result(findings, strict, empty_summary(expected, {}, ()))


def _manifest_missing(root: Path, tree: Tree) -> Finding:
    """Says where a manifest is, if one is near: in a subfolder, or in the folder above."""
    message = f"there is neither {MANIFEST} nor {SUMS}, so only the structure was checked"
    below = sorted({folder_of(path) for path in tree.files if path.rpartition("/")[2] in (MANIFEST, SUMS)})
    above = root.resolve().parent
    if below:
        fix = f"verify the subfolder that has one: {', '.join(shown(name) for name in below[:3])}"
    elif any((above / name).is_file() for name in (MANIFEST, SUMS)):
        fix = f"verify the folder above with --only '{shown(root.resolve().name)}/*'"
    else:
        fix = "fetch them, or, if you trust these files, write them with `convertkit manifest`"
    return finding("E_MANIFEST_MISSING", "error", message, fix=fix)


def refuse_empty_patterns(choice: Choice, files: Mapping[str, FileEntry]) -> None:
    """Raises E_PATTERN_EMPTY for a pattern of ``only`` that matches no file."""
    for pattern in choice.only:
        if not any(matches(path, [pattern.removeprefix("!")]) for path in files):
            raise refusal("E_PATTERN_EMPTY", f"--only '{shown(pattern)}' matches no file that the manifest lists",
                          fix="quote the pattern, as in --only 'bf16/*'")  # fmt: skip


def _without_twins(findings: Sequence[Finding]) -> list[Finding]:
    """Each problem once: structure and manifest may both meet a link that leads out, or a file that changes."""
    return list({(item.code, item.where, item.message): item for item in findings}.values())


def empty_summary(expected: Expected, listed: Mapping[str, FileEntry], allowed: Sequence[str]) -> dict[str, Any]:
    """The summary before anything was compared."""
    return {
        "manifests": list(expected.manifests),
        "release_sha256": expected.release_sha256,
        "files": len(listed),
        "files_ok": 0,
        "size_bytes": 0,
        "tensors": 0,
        "allowed": list(allowed),
    }


def verify_result(findings: Sequence[Finding], strict: bool, summary: Mapping[str, Any]) -> VerifyResult:
    """Findings in order and the status they stand for; with ``strict`` a warning is a failure."""
    ordered = sorted(findings, key=lambda item: SEVERITIES.index(item.severity))
    statuses = {CODES[item.code].status for item in ordered if item.severity == "error"}
    if strict and any(item.severity == "warning" for item in ordered):
        statuses.add(1)
    status = next((number for number in STATUS_ORDER if number in statuses), max(statuses, default=0))
    return VerifyResult(tuple(ordered), status, summary)
