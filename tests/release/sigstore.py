"""A Sigstore of the tests' own: a certificate authority, a certificate log and a transparency log, all in memory.

It signs as keyless signing does, and gives the trust configuration with which sigstore-python checks that, offline.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import json
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID, ObjectIdentifier

from convertkit.release.signing import encoded

Key = ec.EllipticCurvePrivateKey
SCT_LIST = ObjectIdentifier("1.3.6.1.4.1.11129.2.4.2")
ISSUER, ISSUER_V2 = ObjectIdentifier("1.3.6.1.4.1.57264.1.1"), ObjectIdentifier("1.3.6.1.4.1.57264.1.8")
NAMES = {"content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only",
         "decipher_only"}  # fmt: skip


def new_key() -> Key:
    return ec.generate_private_key(ec.SECP256R1())


def der(key: Key) -> bytes:
    return key.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )  # fmt: skip


def log_id(key: Key) -> bytes:
    return hashlib.sha256(der(key)).digest()


def text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _length(data: bytes) -> bytes:
    """DER's length of less than 256 bytes."""
    return bytes([len(data)] if len(data) < 128 else [0x81, len(data)])


def ecdsa(key: Key, data: bytes) -> bytes:
    return key.sign(data, ec.ECDSA(hashes.SHA256()))


def _usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority, key_cert_sign=authority, crl_sign=authority, **dict.fromkeys(NAMES, False)
    )


@dataclass
class Sigstore:
    """Keys of the authority and of both logs; certificates are valid around ``now``."""

    root: Key = field(default_factory=new_key)
    certificate_log: Key = field(default_factory=new_key)
    rekor: Key = field(default_factory=new_key)
    now: datetime.datetime = field(
        default_factory=lambda: datetime.datetime.now(datetime.UTC).replace(microsecond=0)
    )  # fmt: skip

    def authority(self) -> x509.Certificate:
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority")])
        builder = self._dated(x509.CertificateBuilder(), name, name, self.root, days=1, serial=1)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=1), critical=True)
        builder = builder.add_extension(_usage(authority=True), critical=True)
        builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(self.root.public_key()), False)
        return builder.sign(self.root, hashes.SHA256())

    def _dated(
        self, builder: x509.CertificateBuilder, title: x509.Name, above: x509.Name, key: Key, *, days: int, serial: int
    ) -> x509.CertificateBuilder:
        builder = builder.subject_name(title).issuer_name(above).public_key(key.public_key()).serial_number(serial)
        start = self.now - datetime.timedelta(days=days)
        return builder.not_valid_before(start).not_valid_after(self.now + datetime.timedelta(days=days))

    def certificate(self, key: Key, identity: str, issuer: str) -> x509.Certificate:
        """A certificate of ``identity`` with the timestamp that the certificate log signed."""
        above = self.authority()
        builder = self._dated(x509.CertificateBuilder(), x509.Name([]), above.subject, key, days=0, serial=2)
        builder = builder.add_extension(_usage(authority=False), critical=True)
        builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CODE_SIGNING]), critical=False)
        builder = builder.add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(self.root.public_key()), critical=False
        )
        builder = builder.add_extension(x509.SubjectAlternativeName([x509.RFC822Name(identity)]), critical=True)
        raw = issuer.encode()
        builder = builder.add_extension(x509.UnrecognizedExtension(ISSUER, raw), critical=False)
        builder = builder.add_extension(
            x509.UnrecognizedExtension(ISSUER_V2, b"\x0c" + bytes([len(raw)]) + raw), critical=False
        )
        before = builder.sign(self.root, hashes.SHA256()).tbs_certificate_bytes
        listed = self._timestamp_list(before)
        wrapped = b"\x04" + _length(listed) + listed
        builder = builder.add_extension(x509.UnrecognizedExtension(SCT_LIST, wrapped), critical=False)
        return builder.sign(self.root, hashes.SHA256())

    def _timestamp_list(self, certificate: bytes) -> bytes:
        """RFC 6962: what the log signs of a precertificate, and the list that goes into the certificate."""
        when = int(self.now.timestamp() * 1000)
        entry = log_id(self.root) + struct.pack("!I", len(certificate))[1:] + certificate
        signature = ecdsa(self.certificate_log, struct.pack("!BBQH", 0, 0, when, 1) + entry + b"\0\0")
        one = struct.pack("!B32sQHBBH", 0, log_id(self.certificate_log), when, 0, 4, 3, len(signature)) + signature
        return struct.pack("!HH", len(one) + 2, len(one)) + one

    def sign(self, bundle: dict[str, Any], identity: str, issuer: str) -> dict[str, Any]:
        """The bundle of another signer, signed by ``identity`` instead and entered into the log."""
        key = new_key()
        certificate = self.certificate(key, identity, issuer)
        payload = base64.b64decode(bundle["dsseEnvelope"]["payload"])
        signature = ecdsa(key, encoded(payload))
        envelope = {**bundle["dsseEnvelope"], "signatures": [{"sig": text(signature)}]}
        pem = certificate.public_bytes(serialization.Encoding.PEM)
        digest = hashlib.sha256(json.dumps(envelope).encode()).hexdigest()
        body = {
            "apiVersion": "0.0.1", "kind": "dsse",
            "spec": {
                "envelopeHash": {"algorithm": "sha256", "value": digest},
                "payloadHash": {"algorithm": "sha256", "value": hashlib.sha256(payload).hexdigest()},
                "signatures": [{"signature": text(signature), "verifier": text(pem)}],
            },
        }  # fmt: skip
        material = {
            "certificate": {"rawBytes": text(certificate.public_bytes(serialization.Encoding.DER))},
            "tlogEntries": [self._entry(json.dumps(body).encode())],
        }
        return {**bundle, "verificationMaterial": material, "dsseEnvelope": envelope}

    def _entry(self, body: bytes) -> dict[str, Any]:
        """The only entry of a log of one, with its promise and its proof."""
        when, identity = int(self.now.timestamp()), log_id(self.rekor)
        leaf = hashlib.sha256(b"\0" + body).digest()
        note = f"log.invalid\n1\n{text(leaf)}\n"
        line = f"\u2014 log.invalid {text(identity[:4] + ecdsa(self.rekor, note.encode()))}\n"
        promise = {"body": text(body), "integratedTime": when, "logID": identity.hex(), "logIndex": 0}
        canonical = json.dumps(promise, sort_keys=True, separators=(",", ":")).encode()
        return {
            "logIndex": "0", "logId": {"keyId": text(identity)}, "kindVersion": {"kind": "dsse", "version": "0.0.1"},
            "integratedTime": str(when), "canonicalizedBody": text(body),
            "inclusionPromise": {"signedEntryTimestamp": text(ecdsa(self.rekor, canonical))},
            "inclusionProof": {"logIndex": "0", "rootHash": text(leaf), "treeSize": "1", "hashes": [],
                               "checkpoint": {"envelope": f"{note}\n{line}"}},
        }  # fmt: skip

    def trust_config(self, place: Path) -> Path:
        """Sigstore's ClientTrustConfig with this authority and these logs."""
        start = (self.now - datetime.timedelta(days=30)).isoformat().replace("+00:00", "Z")

        def log(key: Key, name: str) -> dict[str, Any]:
            public = {"rawBytes": text(der(key)), "keyDetails": "PKIX_ECDSA_P256_SHA_256", "validFor": {"start": start}}
            return {"baseUrl": f"https://{name}.invalid", "hashAlgorithm": "SHA2_256", "publicKey": public,
                    "logId": {"keyId": text(log_id(key))}}  # fmt: skip

        chain = [{"rawBytes": text(self.authority().public_bytes(serialization.Encoding.DER))}]
        config = {
            "mediaType": "application/vnd.dev.sigstore.clienttrustconfig.v0.1+json",
            "trustedRoot": {
                "mediaType": "application/vnd.dev.sigstore.trustedroot+json;version=0.1",
                "tlogs": [log(self.rekor, "rekor")], "ctlogs": [log(self.certificate_log, "ct")],
                "certificateAuthorities": [
                    {"subject": {"organization": "tests", "commonName": "authority"}, "uri": "https://ca.invalid",
                     "certChain": {"certificates": chain}, "validFor": {"start": start}}],
            },
            "signingConfig": {"mediaType": "application/vnd.dev.sigstore.signingconfig.v0.2+json"},
        }  # fmt: skip
        place.write_text(json.dumps(config))
        return place
