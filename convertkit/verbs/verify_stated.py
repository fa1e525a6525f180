"""A repository on the hub against its manifest, without its weights: by the digests that the hub states of them."""

from __future__ import annotations

from convertkit.checkpoint import FileStamp
from convertkit.errors import Finding, finding
from convertkit.hub.download import fetch_small
from convertkit.progress import SILENT
from convertkit.release.claims import check_claims
from convertkit.release.digests import Digests, FileDigest, sha256_all
from convertkit.release.expected import read_expected
from convertkit.release.matching import Earlier, Seen, compare
from convertkit.release.paths import MANIFEST, OWN_FILES, SUMS
from convertkit.release.tree import Tree, byte_order
from convertkit.verbs.verify_listed import Choice, VerifyResult, empty_summary, refuse_empty_patterns, verify_result


def verify_stated(address: str, choice: Choice, strict: bool, workers: int) -> VerifyResult:
    """Sizes and digests of all files, unlisted files, and what reports claim. Files that the hub keeps in LFS are not
    read: it computes their SHA-256 when they are uploaded.

    Raises ``ConvertError`` as ``hub.download.fetch_small``, and E_PATTERN_EMPTY.
    """
    root, files = fetch_small(address)
    paths = tuple(sorted((file.path for file in files), key=byte_order))
    tree = Tree(paths, {})
    expected = read_expected(root, tree)
    if not expected.readable:
        missing = [] if expected.manifests else [_missing()]
        return verify_result([*expected.findings, *missing], strict, empty_summary(expected, {}, ()))
    refuse_empty_patterns(choice, expected.files)
    listed = {path: entry for path, entry in expected.files.items() if choice.wants(path) or path in OWN_FILES}
    unlisted = [path for path in paths if path not in (*expected.files, MANIFEST, SUMS) and choice.wants(path)]
    allowed = [path for path in unlisted if choice.allows(path)]
    extra = [path for path in unlisted if path not in allowed]
    stated = {file.path: (file.size_bytes, file.sha256) for file in files if not (root / file.path).is_file()}
    here = {file.path: file.size_bytes for file in files if (root / file.path).is_file()}
    read = sha256_all(root, {path: size for path, size in here.items() if path in listed}, {}, workers, SILENT)
    digests = {
        path: FileDigest(size, sha256 or "", FileStamp(0, 0, size, 0)) for path, (size, sha256) in stated.items()
    }
    seen = Seen({file.path: file.size_bytes for file in files}, Digests({**digests, **read.files}, {}, read.findings))
    matched = compare(tree, listed, extra, seen, Earlier(expected.supersedes))
    other = {item.where.file for item in matched.findings}
    claimants = sorted(path for path in set(listed) & set(here) if path not in other)
    claimed = {path: entry.sha256 for path, entry in expected.files.items()}
    findings = [*expected.findings, *matched.findings, *check_claims(root, claimants, claimed, rows=False)]
    unread = sorted(set(stated) & set(listed))
    if unread:
        findings.append(_unread(unread, sum(stated[path][0] for path in unread)))
    counts = empty_summary(expected, listed, allowed)
    counts.update(files_ok=matched.files_ok, size_bytes=matched.size_bytes)
    return verify_result(findings, strict, counts)


def _missing() -> Finding:
    message = f"there is neither {MANIFEST} nor {SUMS}, so there is nothing to compare with"
    return finding("E_MANIFEST_MISSING", "error", message, fix="verify it without --no-download")


def _unread(paths: list[str], size_bytes: int) -> Finding:
    message = f"{len(paths)} files ({size_bytes:,} bytes) were not read: their digests are those that the hub states"
    return finding("N_STATED_DIGESTS", "note", message, data={"files": paths[:50]})
