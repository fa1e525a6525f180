"""All cards of a release, each compared with the part of it that lies beside and below the card."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from convertkit.checkpoint import TensorRef
from convertkit.containers.files import read_small
from convertkit.errors import ConvertError, Finding, finding
from convertkit.release.card import VERDICTS
from convertkit.release.card_check import CardCheck, Reality, check_card
from convertkit.release.expected import Expected
from convertkit.release.manifest_reader import read_manifest
from convertkit.release.paths import CARD, MANIFEST, folder_of, join
from convertkit.release.summary import EXPANSION, GATE, RELEASE_REPORT, read_report


def check_cards(
    root: Path, present: Sequence[str], expected: Expected, stored: Mapping[str, Sequence[TensorRef]]
) -> CardCheck:
    """Compare every README.md among the ``present`` files of a release.

    ``expected`` is what the manifest states, whose bytes were compared with the files before; ``stored`` are the
    tensors that headers show. Codes: E_CARD, E_CARD_MISSING, W_CARD_EMPTY.
    """
    cards = [path for path in present if path.rpartition("/")[2] == CARD]
    if CARD not in cards:
        return CardCheck(0, (finding("E_CARD_MISSING", "error", f"there is no {CARD}", file=CARD),))
    sizes = {path: entry.size_bytes for path, entry in expected.files.items()}
    for path in present:
        sizes[path] = (root / path).stat().st_size
    counts = Counter(row.file for row in expected.tensors)
    counts.update({path: len(refs) - counts[path] for path, refs in stored.items()})
    findings: list[Finding] = []
    reports = _reports(root, present, findings)
    known = _other_digests(root, present, expected)
    claims = 0
    for path in cards:
        base = folder_of(path)
        whole = Reality(
            _below({name: size for name, size in sizes.items() if size is not None}, base),
            _below({name: entry.sha256 for name, entry in expected.files.items()}, base),
            _below(counts, base),
            known,
            _below(reports, base),
            _answers(root, join(base, RELEASE_REPORT), present),
        )
        found = check_card(read_small(root, path), path, whole)
        claims += found.claims
        findings.extend(item for item in found.findings if item.code != "W_CARD_EMPTY" or path == CARD)
    return CardCheck(claims, tuple(findings))


def _below(values: Mapping[str, Any], base: str) -> dict[str, Any]:
    """Those of the paths that lie below ``base``, as a card there calls them."""
    start = f"{base}/" if base else ""
    return {path.removeprefix(start): value for path, value in values.items() if path.startswith(start)}


def _reports(root: Path, present: Iterable[str], findings: list[Finding]) -> dict[str, Mapping[str, Any]]:
    reports: dict[str, Mapping[str, Any]] = {}
    for path in present:
        if path.rpartition("/")[2] in (GATE, EXPANSION):
            try:
                reports[path] = read_report(root, path)
            except ConvertError as error:
                findings.extend(error.findings)
    return reports


def _answers(root: Path, path: str, present: Sequence[str]) -> dict[tuple[str, str, str], str]:
    """What each engine does, in the words of a card, by title, version and folder; nothing without a sound report."""
    if path not in present:
        return {}
    try:
        rows = read_report(root, path)["summary"]["engines"]
    except ConvertError:
        return {}  # what is wrong with it is told by ``claims``
    return {(row["title"], row["version"], row["variant"]): VERDICTS[row["verdict"]] for row in rows}


def _other_digests(root: Path, present: Iterable[str], expected: Expected) -> frozenset[str]:
    """Digests that a card may state besides those of files: of tensors, sources, earlier releases."""
    known = {row.sha256 for row in expected.tensors}
    for release in expected.supersedes:
        known.update(entry.sha256 for entry in release.files)
        known.update(item for item in (release.manifest_sha256, release.sums_sha256) if item)
    for path in present:
        if path.rpartition("/")[2] == MANIFEST:
            try:
                known.update(str(item["sha256"]) for item in read_manifest(root, folder_of(path)).manifest.source)
            except ConvertError:
                continue
    return frozenset(known)
