"""``verify``: whether a folder is the release that its manifest states, byte for byte, and nothing else."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from convertkit import __version__
from convertkit.codes import CODES
from convertkit.containers.folder import open_any
from convertkit.errors import ConvertError, Finding, finding, refusal, shown
from convertkit.hub.address import is_address
from convertkit.hub.arguments import from_hub
from convertkit.progress import SILENT, Progress
from convertkit.release.claims import check_claims
from convertkit.release.expected import Expected, read_expected
from convertkit.release.listing import read_listing
from convertkit.release.manifest import FileEntry
from convertkit.release.matching import match
from convertkit.release.paths import (
    HUB_EXTRAS,
    MANIFEST,
    OWN_FILES,
    SUMS,
    is_signature,
    matches,
    selected,
)
from convertkit.release.signed import signed_expectation, trust_of
from convertkit.release.structure import check_structure, is_weights
from convertkit.release.summary import reports_blamed
from convertkit.release.tree import Tree, walk

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


@from_hub("source", headers=("target_model",))
def verify(
    folder: str | os.PathLike[str],
    *,
    only: Iterable[str] = (),
    allow_extra: Iterable[str] = (),
    hub: bool = False,
    strict: bool = False,
    card: bool = False,
    sums: str | os.PathLike[str] | None = None,
    recompute: bool = False,
    source: str | os.PathLike[str] | None = None,
    target_model: str | os.PathLike[str] | None = None,
    signature: str | os.PathLike[str] | None = None,
    key: str | os.PathLike[str] | None = None,
    certificates: Sequence[str | os.PathLike[str]] = (),
    trust_config: str | os.PathLike[str] | None = None,
    identity: str | None = None,
    oidc_issuer: str | None = None,
    workers: int = 0,
    progress: Progress = SILENT,
) -> VerifyResult:
    """Check the weights' structure, then every byte against MANIFEST.json and SHA256SUMS, and report all problems.

    ``folder`` may be an address on the hub: the repository is downloaded, what a hub adds is allowed (but not with
    ``strict``), and where it has no manifest the hub's own digests count.

    Without a manifest only the structure is checked and the result is a failure (E_MANIFEST_MISSING). ``folder`` may
    also be one weight file: it is checked against the manifest beside it, or else only its structure is, which
    passes with a warning.

    Args:
        only: globs of paths to verify; ``*`` crosses ``/``; a pattern that starts with ``!`` leaves paths out.
        allow_extra: globs of files that may lie in the folder unlisted.
        hub: also allow what a hub download adds: ``.gitattributes`` and ``.cache/huggingface/``.
        strict: warnings are failures, rows of reports are validated too; excludes the two above.
        card: compare every size, digest, count and exactness that a README.md states (E_CARD).
        sums: a SHA256SUMS or a hub's file list that somebody else published, instead of the folder's own manifests.
        recompute: compute the reports anew from the weights (E_RECOMPUTE), see ``verbs.recompute``; ``source`` is what
            the weights were made from, ``target_model`` the target's folder.
        signature: an OMS bundle that must cover every file; with ``key``, the trusted public key (PEM), or with
            ``certificates``, the trusted ones (PEM), or of Sigstore with ``trust_config`` (a file with its
            ClientTrustConfig), the ``identity`` that must have signed and the ``oidc_issuer`` that vouched for it.
            Without a manifest its list of files is what is verified.

    Returns:
        The findings and the status: 0 passed, 1 different, 3 malformed, 4 unreadable or changing, 6 every difference
        is explained by an earlier release that the manifest supersedes.

    Raises:
        ConvertError: E_NOT_FOUND, E_USAGE, E_PATTERN_EMPTY (an ``only`` pattern that nothing listed matches).
    """
    if isinstance(folder, str) and is_address(folder):
        root, sums, hub = _from_hub(folder, sums, strict)
    else:
        root = Path(folder)
    choice = Choice(tuple(only), (*allow_extra, *(HUB_EXTRAS if hub else ())), card)
    if (source is not None or target_model is not None) and not recompute:
        raise refusal("E_USAGE", "--source and --target-model go with --recompute")
    if strict and choice.allow_extra:
        raise refusal("E_USAGE", "--strict accepts no exception, so neither --allow-extra nor --hub goes with it")
    if root.is_file():
        if card or recompute or sums is not None:
            raise refusal("E_USAGE", "--card, --recompute and --from go with a folder")
        return _verify_file(root, choice, strict, workers, progress)
    tree = walk(root)
    expected = read_expected(root, tree) if sums is None else read_listing(root, Path(sums))
    trust = trust_of(key, certificates, trust_config, identity, oidc_issuer)
    if signature is not None:
        expected = signed_expectation(root, expected, Path(signature), trust)
        choice = replace(choice, signature=_inside(root, Path(signature)), signed=True)
    elif trust:
        raise refusal("E_USAGE", "--key, --certificate and --trust-config go with --signature")
    if not expected.readable:
        return _without_manifest(root, tree, expected, choice, strict)
    with reports_blamed([root]):
        result = _verify_listed(root, tree, expected, choice, strict, workers, progress)
        if not recompute or any(item.severity == "error" for item in result.findings):
            return result
        from convertkit.verbs.recompute import recompute as again

        asked = [path for path in tree.files if choice.wants(path)]
        found = again(root, asked, source, target_model, workers, progress)
        summary = {**result.summary, "recomputed": list(found.reports)}
        return _result([*result.findings, *found.findings], strict, summary)


def _from_hub(
    address: str, sums: str | os.PathLike[str] | None, strict: bool
) -> tuple[Path, str | os.PathLike[str] | None, bool]:
    """The downloaded repository, the list it is verified against if not its own, and whether hub files are allowed."""
    from convertkit.hub.download import write_listing

    root, listing = write_listing(address)
    listed = any((root / name).is_file() for name in (MANIFEST, SUMS))
    return root, sums if listed or sums is not None else listing, not strict


def _inside(root: Path, path: Path) -> str | None:
    """The path of a file below ``root``, or None for one that lies elsewhere."""
    whole = path.resolve()
    return whole.relative_to(root.resolve()).as_posix() if whole.is_relative_to(root.resolve()) else None


def _verify_file(path: Path, choice: Choice, strict: bool, workers: int, progress: Progress) -> VerifyResult:
    """One weight file: against the manifest beside it if that lists it, else only its header."""
    if choice.only:
        raise refusal("E_USAGE", "--only goes with a folder")
    present = [name for name in (MANIFEST, SUMS) if os.path.lexists(path.parent / name)]
    tree = Tree((*present, path.name), {})
    expected = read_expected(path.parent, tree)
    if present and (path.name in expected.files or not expected.readable):
        alone = Choice((glob.escape(path.name),), choice.allow_extra)
        if not expected.readable:
            return _without_manifest(path.parent, tree, expected, alone, strict)
        return _verify_listed(path.parent, tree, expected, alone, strict, workers, progress)
    try:
        findings = list(open_any(path).findings)
    except ConvertError as error:
        findings = list(error.findings)
    message = "no manifest lists the file; only its structure was checked"
    findings.append(finding("W_MANIFEST_MISSING", "warning", message, file=path.name))
    return _result(findings, strict, _counts(Expected(), {}, ()))


def _without_manifest(root: Path, tree: Tree, expected: Expected, choice: Choice, strict: bool) -> VerifyResult:
    """No manifest, or one that cannot be trusted: structure only, and never a pass."""
    structure = check_structure(root, tree.files, [path for path in tree.files if choice.wants(path)])
    findings = [*structure.findings, *expected.findings]
    if not expected.manifests:
        findings.append(_manifest_missing(root, tree))
    return _result(findings, strict, _counts(expected, {}, ()))


def _manifest_missing(root: Path, tree: Tree) -> Finding:
    """Says where a manifest is, if one is near: in a subfolder, or in the folder above."""
    message = f"there is neither {MANIFEST} nor {SUMS}, so only the structure was checked"
    below = sorted({path.rpartition("/")[0] for path in tree.files if path.rpartition("/")[2] in (MANIFEST, SUMS)})
    above = root.resolve().parent
    if below:
        fix = f"verify the subfolder that has one: {', '.join(shown(name) for name in below[:3])}"
    elif any((above / name).is_file() for name in (MANIFEST, SUMS)):
        fix = f"verify the folder above with --only '{shown(root.resolve().name)}/*'"
    else:
        fix = "fetch them, or, if you trust these files, write them with `convertkit manifest`"
    return finding("E_MANIFEST_MISSING", "error", message, fix=fix)


def _verify_listed(
    root: Path, tree: Tree, expected: Expected, choice: Choice, strict: bool, workers: int, progress: Progress
) -> VerifyResult:
    listed = {path: entry for path, entry in expected.files.items() if choice.wants(path) or path in OWN_FILES}
    _refuse_empty_patterns(choice, expected.files)
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
    counts = _counts(expected, listed, allowed)
    if choice.signed:
        counts["signed"] = not any(item.severity == "error" for item in findings)
    if choice.card:
        from convertkit.release.cards import check_cards

        checked = check_cards(root, sorted(set(listed) & set(tree.files)), expected, structure.tensors)
        findings.extend(checked.findings)
        counts["card_claims"] = checked.claims
    findings = _without_twins(findings)
    counts.update(files_ok=matched.files_ok, size_bytes=matched.size_bytes, tensors=matched.tensors_ok)
    return _result(findings, strict, counts)


def _refuse_empty_patterns(choice: Choice, files: Mapping[str, FileEntry]) -> None:
    for pattern in choice.only:
        if not any(matches(path, [pattern.removeprefix("!")]) for path in files):
            raise refusal("E_PATTERN_EMPTY", f"--only '{shown(pattern)}' matches no file that the manifest lists",
                          fix="quote the pattern, as in --only 'bf16/*'")  # fmt: skip


def _without_twins(findings: Sequence[Finding]) -> list[Finding]:
    """Each problem once: structure and manifest may both meet a link that leads out, or a file that changes."""
    return list({(item.code, item.where, item.message): item for item in findings}.values())


def _counts(expected: Expected, listed: Mapping[str, FileEntry], allowed: Sequence[str]) -> dict[str, Any]:
    return {
        "manifests": list(expected.manifests),
        "release_sha256": expected.release_sha256,
        "files": len(listed),
        "files_ok": 0,
        "size_bytes": 0,
        "tensors": 0,
        "allowed": list(allowed),
    }


def _result(findings: Sequence[Finding], strict: bool, summary: Mapping[str, Any]) -> VerifyResult:
    ordered = sorted(findings, key=lambda item: SEVERITIES.index(item.severity))
    statuses = {CODES[item.code].status for item in ordered if item.severity == "error"}
    if strict and any(item.severity == "warning" for item in ordered):
        statuses.add(1)
    status = next((number for number in STATUS_ORDER if number in statuses), max(statuses, default=0))
    return VerifyResult(tuple(ordered), status, summary)
