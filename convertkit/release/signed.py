"""A checked signature and a manifest together: both must list the same files with the same digests."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from convertkit.errors import ConvertError, Finding, finding, refusal
from convertkit.release.expected import Expected
from convertkit.release.manifest import FileEntry
from convertkit.release.paths import MANIFEST, SUMS
from convertkit.release.signing import check_certificate, check_key, read_bundle, signed_files

PathLike = str | os.PathLike[str]


def signed_expectation(
    root: Path, expected: Expected, signature: Path, key: PathLike | None, certificates: Sequence[PathLike]
) -> Expected:
    """What the folder must hold by a signature that was checked, and by its manifest if it has one.

    Problems of the signature are findings, and then no file is expected, so nothing can pass. Raises E_USAGE.
    """
    if (key is None) == (not certificates):
        raise refusal("E_USAGE", "a signature is checked with --key or with --certificate")
    try:
        bundle = read_bundle(signature)
        if key is not None:
            check_key(bundle, Path(key))
        else:
            check_certificate(root, signature, [Path(name) for name in certificates])
        signed = signed_files(bundle)
    except ConvertError as error:
        faults = [replace(item, where=replace(item.where, file=signature.name)) for item in error.findings]
        return Expected(findings=(*expected.findings, *faults), manifests=(*expected.manifests, signature.name))
    manifests = (*expected.manifests, signature.name)
    if not expected.manifests:
        return Expected(signed, manifests=manifests)
    conflicts = tuple(_conflicts(expected, signed, signature.name))
    return replace(
        expected, files={**signed, **expected.files}, findings=(*expected.findings, *conflicts), manifests=manifests
    )  # fmt: skip


def _conflicts(expected: Expected, signed: dict[str, FileEntry], name: str) -> Iterator[Finding]:
    for path in sorted({*expected.files, *signed} - {MANIFEST, SUMS}):
        if path not in signed:
            yield finding("E_FILE_EXTRA", "error", f"{name} does not cover it", file=path, fix="sign the release anew")
        elif path not in expected.files:
            yield finding("E_MANIFEST_CONFLICT", "error", f"{name} lists it, the manifest does not", file=path)
        elif expected.files[path].sha256 != signed[path].sha256:
            yield finding("E_MANIFEST_CONFLICT", "error", f"{name} and the manifest state different digests", file=path)
    for path in (MANIFEST, SUMS):
        if path in expected.manifests and path not in signed:
            yield finding("E_FILE_EXTRA", "error", f"{name} does not cover it", file=path, fix="sign the release anew")
