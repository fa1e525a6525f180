"""Signatures of a release: OMS bundles, as model-signing writes them, checked and made.

A bundle (model-signing 1.1.1, ``_signing/sign_sigstore_pb.py`` and ``sign_ec_key.py``) is a Sigstore bundle v0.3 with a
DSSE envelope: an in-toto statement whose predicate lists every file with its SHA-256, signed with ECDSA over DSSE's
pre-authentication encoding. The hint is the SHA-256 of the public key as PEM. Bundles of a key are checked here, with
``cryptography`` alone; those of a certificate, and those of a Sigstore identity with the trust configuration that the
user supplies, by model-signing. Nothing is asked over the network.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from convertkit.containers.files import read_small
from convertkit.containers.strict_json import parse_json
from convertkit.errors import ConvertError, refusal, shown
from convertkit.release.manifest import FileEntry
from convertkit.release.paths import path_fault

PAYLOAD_TYPE = "application/vnd.in-toto+json"
PREDICATE = "https://model_signing/signature/v1.0"
CURVES = {"secp256r1": "SHA256", "secp384r1": "SHA384", "secp521r1": "SHA512"}
"""Curves that model-signing accepts, and the digest that goes with each (``sign_ec_key.get_ec_key_hash``)."""

MAX_BUNDLE_BYTES = 1 << 28
NEEDS = "pip install model-signing cryptography pyopenssl"


@dataclass(frozen=True)
class Bundle:
    """A bundle as it is stored; nothing of it is believed yet. ``hint`` is empty for one made with a certificate."""

    file: str
    hint: str
    payload: bytes
    signature: bytes


def read_bundle(path: Path) -> Bundle:
    """Read an OMS bundle. Raises ``E_SIG_FORMAT`` (status 3) for anything else."""
    name = path.name
    try:
        document = parse_json(read_small(path.parent, name, MAX_BUNDLE_BYTES), name)
        material, envelope = document["verificationMaterial"], document["dsseEnvelope"]
        (signature,) = envelope["signatures"]
        hint = material["publicKey"].get("hint", "") if "publicKey" in material else ""
        parts = [base64.b64decode(text, validate=True) for text in (envelope["payload"], signature["sig"])]
    except ConvertError as error:
        raise _format(name, error.findings[0].message) from None
    except (KeyError, TypeError, ValueError, AttributeError, binascii.Error):
        raise _format(name, "it is not a Sigstore bundle with one DSSE signature") from None
    if envelope.get("payloadType") != PAYLOAD_TYPE or not isinstance(hint, str):
        raise _format(name, "what it signs is not an in-toto statement")
    return Bundle(name, hint, parts[0], parts[1])


def _format(name: str, message: str) -> ConvertError:
    return refusal("E_SIG_FORMAT", f"not a signature of a model: {message}", file=name, fix="fetch the signature again")


def check_key(bundle: Bundle, key: Path) -> None:
    """Whether the bundle was signed with the private half of the PEM public key in ``key``.

    Raises ``ConvertError``: E_SIG_KEY (another key), E_SIG_INVALID (the signature does not fit), E_BACKEND.
    """
    try:
        from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError:
        raise refusal("E_BACKEND", "checking a signature needs the package cryptography", fix=NEEDS) from None
    try:
        public = serialization.load_pem_public_key(read_small(key.parent, key.name))
    except (ValueError, UnsupportedAlgorithm):
        raise refusal("E_SIG_KEY", "not a public key in PEM form", file=key.name) from None
    if not isinstance(public, ec.EllipticCurvePublicKey) or public.curve.name not in CURVES:
        raise refusal("E_SIG_KEY", f"not a key of the curves {', '.join(CURVES)}", file=key.name)
    pem = public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    if bundle.hint and bundle.hint != hashlib.sha256(pem).hexdigest():
        raise refusal("E_SIG_KEY", "it was signed with another key than the one that is trusted", file=bundle.file)
    try:
        digest: hashes.HashAlgorithm = getattr(hashes, CURVES[public.curve.name])()
        public.verify(bundle.signature, encoded(bundle.payload), ec.ECDSA(digest))
    except InvalidSignature:
        raise refusal("E_SIG_INVALID", "the signature does not belong to what it signs", file=bundle.file) from None


def encoded(payload: bytes) -> bytes:
    """What is signed: DSSE's pre-authentication encoding of the payload (secure-systems-lab/dsse, ``protocol.md``)."""
    return b"DSSEv1 %d %s %d %s" % (len(PAYLOAD_TYPE), PAYLOAD_TYPE.encode(), len(payload), payload)


def signed_files(bundle: Bundle) -> dict[str, FileEntry]:
    """The files that a bundle lists; call it after the signature was checked.

    Raises ``ConvertError``: E_SIG_FORMAT for a statement of another kind, E_SIG_INVALID if its root digest (SHA-256
    over the raw digests, in order) is not that of its files, E_MANIFEST_PATH.
    """
    try:
        statement = parse_json(bundle.payload, bundle.file)
        predicate, (subject,) = statement["predicate"], statement["subject"]
        rows = [(str(item["name"]), str(item["algorithm"]), str(item["digest"])) for item in predicate["resources"]]
        root, method = subject["digest"]["sha256"], predicate["serialization"]["method"]
    except (KeyError, TypeError, ValueError):
        raise _format(bundle.file, "its statement lists no files") from None
    if statement.get("predicateType") != PREDICATE or method != "files" or not rows:
        raise _format(bundle.file, f"convertkit reads lists of whole files, not '{shown(method)}'")
    whole = hashlib.sha256()
    for path, algorithm, digest in rows:
        if algorithm != "sha256" or re.fullmatch("[0-9a-f]{64}", digest) is None:
            raise _format(bundle.file, f"'{shown(path)}' has no SHA-256 digest")
        fault = path_fault(path)
        if fault is not None:
            raise refusal("E_MANIFEST_PATH", f"{fault}: '{shown(path)}'", file=bundle.file)
        whole.update(bytes.fromhex(digest))
    if whole.hexdigest() != root:
        raise refusal("E_SIG_INVALID", "its root digest is not that of the files it lists", file=bundle.file)
    return {path: FileEntry(path, None, digest) for path, _, digest in rows}


@dataclass(frozen=True)
class Identity:
    """Who must have signed by Sigstore: the identity in the certificate (an address of mail or a URI), the OpenID
    Connect issuer that vouched for it, and the file with the trust configuration (Sigstore's ClientTrustConfig: the
    certificates and the keys of the logs)."""

    trust_config: Path
    name: str
    issuer: str


def check_identity(folder: Path, signature: Path, identity: Identity) -> None:
    """Have model-signing check a Sigstore bundle: chain, timestamp of the certificate, log entry, signature, files.

    Raises ``ConvertError``: E_SIG_INVALID, E_BACKEND.
    """
    verifying = _backend("verifying")
    try:
        verifier = verifying.Config().use_sigstore_verifier(
            identity=identity.name, oidc_issuer=identity.issuer, trust_config=identity.trust_config
        )
        verifier.verify(folder, signature)
    except Exception as error:  # the package raises many kinds, all of which mean no
        raise refusal("E_SIG_INVALID", f"model-signing refuses it: {shown(error)}", file=signature.name) from None


def check_certificate(folder: Path, signature: Path, chain: Sequence[Path]) -> None:
    """Have model-signing check a bundle that was made with a certificate, against the certificates in ``chain``.

    Raises ``ConvertError``: E_SIG_INVALID, E_BACKEND.
    """
    verifying = _backend("verifying")
    try:
        verifier = verifying.Config().use_certificate_verifier(certificate_chain=[*chain])
        verifier.verify(folder, signature)
    except Exception as error:  # the package raises many kinds, all of which mean no
        raise refusal("E_SIG_INVALID", f"model-signing refuses it: {shown(error)}", file=signature.name) from None


def sign(
    folder: str | os.PathLike[str],
    signature: str | os.PathLike[str],
    *,
    key: str | os.PathLike[str],
    certificate: str | os.PathLike[str] | None = None,
    chain: Sequence[str | os.PathLike[str]] = (),
) -> None:
    """Sign every file of ``folder`` with the private key in PEM form, or with a certificate of that key.

    The bundle is written to ``signature``; one inside the folder does not sign itself. Raises ``ConvertError``:
    E_BACKEND, E_SIG_KEY, E_WRITE.
    """
    signing, hashing = _backend("signing"), _backend("hashing")
    root, place = Path(folder), Path(signature)
    try:
        config = signing.Config().set_hashing_config(
            hashing.Config().set_ignored_paths(paths=[place.resolve()], ignore_git_paths=False)
        )
        if certificate is None:
            config.use_elliptic_key_signer(private_key=key)
        else:
            config.use_certificate_signer(private_key=key, signing_certificate=certificate, certificate_chain=chain)
        config.sign(root.resolve(), place)
    except OSError as error:
        raise refusal("E_WRITE", f"cannot sign: {error.strerror}", file=place.name) from None
    except (ValueError, TypeError) as error:
        raise refusal("E_SIG_KEY", f"the key cannot sign: {shown(error)}", file=Path(key).name) from None


def _backend(name: str) -> Any:
    try:
        from importlib import import_module

        return import_module(f"model_signing.{name}")
    except ImportError as error:
        missing = shown(error.name or error)
        what = f"signing needs the package model-signing and all that it imports; '{missing}' is missing"
        raise refusal("E_BACKEND", what, fix=NEEDS) from None
