"""A checked signature and a manifest together: both must list the same files with the same digests."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from convertkit.errors import ConvertError, Finding, finding, refusal
from convertkit.release.expected import Expected
from convertkit.release.manifest import FileEntry
from convertkit.release.paths import MANIFEST, SUMS
from convertkit.release.signing import (
    Identity,
    check_certificate,
    check_identity,
    check_key,
    read_bundle,
    signed_files,
)

PathLike = str | os.PathLike[str]


@dataclass(frozen=True)
class Trust:
    """What a signature is checked with: one of a public key, certificates, or a Sigstore identity."""

    key: PathLike | None = None
    certificates: Sequence[PathLike] = ()
    identity: Identity | None = None

    def __bool__(self) -> bool:
        return self.key is not None or bool(self.certificates) or self.identity is not None


def trust_of(
    key: PathLike | None,
    certificates: Sequence[PathLike],
    trust_config: PathLike | None,
    identity: str | None,
    oidc_issuer: str | None,
) -> Trust:
    """Raises E_USAGE for words that do not make one kind of trust."""
    words = (trust_config, identity, oidc_issuer)
    if any(words) and not all(words):
        raise refusal("E_USAGE", "--trust-config, --identity and --oidc-issuer go together")
    who = None
    if trust_config is not None and identity is not None and oidc_issuer is not None:
        who = Identity(Path(trust_config), identity, oidc_issuer)
    if (key is not None) + bool(certificates) + (who is not None) > 1:
        raise refusal("E_USAGE", "name one of --key, --certificate and --trust-config")
    return Trust(key, certificates, who)


def signed_expectation(root: Path, expected: Expected, signature: Path, trust: Trust) -> Expected:
    """What the folder must hold by a signature that was checked, and by its manifest if it has one.

    Problems of the signature are findings, and then no file is expected, so nothing can pass. Raises E_USAGE.
    """
    if not trust:
        raise refusal("E_USAGE", "a signature is checked with --key, --certificate or --trust-config")
    try:
        bundle = read_bundle(signature)
        if trust.key is not None:
            check_key(bundle, Path(trust.key))
        elif trust.identity is not None:
            check_identity(root, signature, trust.identity)
        else:
            check_certificate(root, signature, [Path(name) for name in trust.certificates])
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
