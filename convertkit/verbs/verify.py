"""``verify``: whether a folder is the release that its manifest states, byte for byte, and nothing else."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from convertkit.containers.folder import open_any
from convertkit.errors import ConvertError, finding, refusal
from convertkit.hub.address import is_address
from convertkit.hub.arguments import from_hub
from convertkit.progress import SILENT, Progress
from convertkit.release.expected import Expected, read_expected
from convertkit.release.listing import read_listing
from convertkit.release.paths import (
    HUB_EXTRAS,
    MANIFEST,
    SUMS,
)
from convertkit.release.signed import signed_expectation, trust_of
from convertkit.release.summary import reports_blamed
from convertkit.release.tree import Tree, walk
from convertkit.verbs.verify_listed import (
    Choice,
    VerifyResult,
    empty_summary,
    verify_listed,
    verify_result,
    without_manifest,
)


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
    download: bool = True,
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
        download: false: of a repository on the hub read small files only, and take the hub's word for the digests of
            those in LFS, see ``verbs.verify_stated``.

    Returns:
        The findings and the status: 0 passed, 1 different, 3 malformed, 4 unreadable or changing, 6 every difference
        is explained by an earlier release that the manifest supersedes.

    Raises:
        ConvertError: E_NOT_FOUND, E_USAGE, E_PATTERN_EMPTY (an ``only`` pattern that nothing listed matches).
    """
    if not download:
        _refuse_words_about_files({
            "--card": card, "--recompute": recompute, "--from": sums, "--signature": signature, "--key": key,
            "--source": source, "--target-model": target_model, "--certificate": certificates,
            "--trust-config": trust_config,
        })  # fmt: skip
        return _stated(folder, Choice(tuple(only), (*allow_extra, *(() if strict else HUB_EXTRAS))), strict, workers)
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
    if trust and signature is None:
        raise refusal("E_USAGE", "--key, --certificate and --trust-config go with --signature")
    if signature is not None:
        expected = signed_expectation(root, expected, Path(signature), trust)
        choice = replace(choice, signature=_inside(root, Path(signature)), signed=True)
    if not expected.readable:
        return without_manifest(root, tree, expected, choice, strict)
    with reports_blamed([root]):
        result = verify_listed(root, tree, expected, choice, strict, workers, progress)
        if not recompute or any(item.severity == "error" for item in result.findings):
            return result
        asked = [path for path in tree.files if choice.wants(path)]
        return _recomputed(result, root, asked, source, target_model, strict, workers, progress)


def _refuse_words_about_files(words: Mapping[str, object]) -> None:
    """Raise E_USAGE for the first option, by its name, that was given and needs files that are not downloaded."""
    for word in (word for word, given in words.items() if given):
        raise refusal("E_USAGE", f"{word} needs the files, so not --no-download")


def _recomputed(
    result: VerifyResult,
    root: Path,
    asked: Sequence[str],
    source: str | os.PathLike[str] | None,
    target_model: str | os.PathLike[str] | None,
    strict: bool,
    workers: int,
    progress: Progress,
) -> VerifyResult:
    """The result with what computing the reports anew adds to it."""
    from convertkit.verbs.recompute import recompute

    found = recompute(root, asked, source, target_model, workers, progress)
    summary = {**result.summary, "recomputed": list(found.reports)}
    return verify_result([*result.findings, *found.findings], strict, summary)


def _stated(folder: str | os.PathLike[str], choice: Choice, strict: bool, workers: int) -> VerifyResult:
    if not (isinstance(folder, str) and is_address(folder)):
        raise refusal("E_USAGE", "--no-download is for a repository on the hub", fix="name it: hf://org/name")
    from convertkit.verbs.verify_stated import verify_stated

    return verify_stated(folder, choice, strict, workers)


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
            return without_manifest(path.parent, tree, expected, alone, strict)
        return verify_listed(path.parent, tree, expected, alone, strict, workers, progress)
    try:
        findings = list(open_any(path).findings)
    except ConvertError as error:
        findings = list(error.findings)
    message = "no manifest lists the file; only its structure was checked"
    findings.append(finding("W_MANIFEST_MISSING", "warning", message, file=path.name))
    return verify_result(findings, strict, empty_summary(Expected(), {}, ()))
