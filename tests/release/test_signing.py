"""Signatures: model-signing's own command and convertkit agree on what is signed, and both refuse what is not."""

from __future__ import annotations

import base64
import datetime
import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from convertkit.cli.main import main
from convertkit.errors import ConvertError
from convertkit.release.signing import encoded
from convertkit.verbs.sign import sign
from convertkit.verbs.verify import verify
from convertkit.verbs.verify_listed import VerifyResult
from tests.release.recipes import write_recipe
from tests.release.sigstore import Sigstore, new_key

Key = ec.EllipticCurvePrivateKey


def write_key(folder: Path, name: str, curve: ec.EllipticCurve | None = None) -> Key:
    """A key pair as NAME.pem and NAME.pub."""
    key = ec.generate_private_key(curve or ec.SECP256R1())
    (folder / f"{name}.pem").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )  # fmt: skip
    (folder / f"{name}.pub").write_bytes(public_pem(key))
    return key


def public_pem(key: Key) -> bytes:
    return key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from convertkit.verbs.case import Options
    from convertkit.verbs.release import release

    folder = tmp_path_factory.mktemp("signed")
    release(write_recipe(folder), folder / "out", options=Options(workers=2))
    write_key(folder, "mine")
    write_key(folder, "other")
    return folder


@pytest.fixture
def out(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made / "out", tmp_path / "out")
    for path in made.glob("*.p*"):
        shutil.copy(path, tmp_path)
    return tmp_path / "out"


def codes(found: VerifyResult) -> set[str]:
    return {item.code for item in found.findings if item.severity == "error"}


def model_signing(*words: object) -> int:
    command = [sys.executable, "-m", "model_signing", *map(str, words)]
    return subprocess.run(command, capture_output=True, check=False).returncode


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def test_ours_is_verified_by_model_signing_and_by_us(out: Path) -> None:
    place = sign(out, key=out.parent / "mine.pem")
    public = out.parent / "mine.pub"
    words = ("verify", "key", "--no-ignore-git-paths", "--signature", place, "--public_key", public, out)
    assert model_signing(*words) == 0
    found = verify(out, signature=place, key=out.parent / "mine.pub", strict=True)
    assert (found.status, found.summary["signed"]) == (0, True)
    flip(out / "bf16" / "model.safetensors")
    assert model_signing(*words) != 0
    assert verify(out, signature=place, key=out.parent / "mine.pub").status == 1


def test_theirs_is_verified_by_us(out: Path) -> None:
    place = out.parent / "release.sig"
    assert model_signing("sign", "key", "--private_key", out.parent / "mine.pem", "--signature", place, out) == 0
    assert verify(out, signature=place, key=out.parent / "mine.pub").status == 0
    assert codes(verify(out, signature=place, key=out.parent / "other.pub")) == {"E_SIG_KEY"}


def test_a_signature_stands_in_for_a_manifest(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    key = write_key(tmp_path, "mine")
    write_bundle(tmp_path / "model.sig", key, {"config.json": b"{}"})
    assert verify(tmp_path / "model", signature=tmp_path / "model.sig", key=tmp_path / "mine.pub").status == 0
    (tmp_path / "model" / "extra.py").write_text("x")
    found = verify(tmp_path / "model", signature=tmp_path / "model.sig", key=tmp_path / "mine.pub")
    assert (found.status, codes(found)) == (1, {"E_FILE_EXTRA"})


def test_a_file_that_came_after_the_signature_is_not_covered(out: Path) -> None:
    from convertkit.verbs.manifest import manifest

    sign(out, out.parent / "release.sig", key=out.parent / "mine.pem")
    (out / "more.txt").write_text("x")
    manifest(out)
    found = verify(out, signature=out.parent / "release.sig", key=out.parent / "mine.pub")
    assert found.status == 1
    assert "more.txt" in {item.where.file for item in found.findings if item.code == "E_FILE_EXTRA"}


def write_bundle(place: Path, key: Key, files: dict[str, bytes], **change: Any) -> dict[str, Any]:
    """A bundle made here; ``change`` replaces the statement's predicate type, root or serialization method."""
    rows = [
        {"name": name, "algorithm": "sha256", "digest": hashlib.sha256(data).hexdigest()}
        for name, data in files.items()
    ]
    root = hashlib.sha256(b"".join(bytes.fromhex(row["digest"]) for row in rows)).hexdigest()
    statement = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": "model", "digest": {"sha256": change.get("root", root)}}],
        "predicateType": change.get("kind", "https://model_signing/signature/v1.0"),
        "predicate": {
            "resources": rows,
            "serialization": {"method": change.get("method", "files"), "hash_type": "sha256", "allow_symlinks": False},
        },
    }
    payload = json.dumps(statement).encode()
    signature = key.sign(encoded(payload), ec.ECDSA(hashes.SHA256()))
    bundle = {
        "mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json",
        "verificationMaterial": {"publicKey": {"hint": hashlib.sha256(public_pem(key)).hexdigest()}, "tlogEntries": []},
        "dsseEnvelope": {
            "payload": base64.b64encode(payload).decode(),
            "payloadType": "application/vnd.in-toto+json",
            "signatures": [{"sig": base64.b64encode(signature).decode(), "keyid": ""}],
        },
    }
    place.write_text(json.dumps(bundle))
    return bundle


def claim_other_hint(bundle: dict[str, Any], folder: Path) -> None:
    hint = hashlib.sha256((folder / "other.pub").read_bytes()).hexdigest()
    bundle["verificationMaterial"]["publicKey"]["hint"] = hint


def edit_payload(bundle: dict[str, Any], folder: Path) -> None:
    envelope = bundle["dsseEnvelope"]
    payload = base64.b64decode(envelope["payload"]).replace(b"config.json", b"confug.json")
    envelope["payload"] = base64.b64encode(payload).decode()


BROKEN: dict[str, tuple[str, Callable[[dict[str, Any], Path], object], str, int]] = {
    "other key": ("other", lambda bundle, folder: None, "E_SIG_KEY", 1),
    "other key with the trusted hint": ("other", claim_other_hint, "E_SIG_INVALID", 1),
    "edited payload": ("mine", edit_payload, "E_SIG_INVALID", 1),
    "two signatures": ("mine", lambda bundle, _: bundle["dsseEnvelope"]["signatures"].append({}), "E_SIG_FORMAT", 3),
    "no envelope": ("mine", lambda bundle, _: bundle.pop("dsseEnvelope"), "E_SIG_FORMAT", 3),
    "another type": ("mine", lambda bundle, _: bundle["dsseEnvelope"].update(payloadType="x"), "E_SIG_FORMAT", 3),
    "no base64": ("mine", lambda bundle, _: bundle["dsseEnvelope"].update(payload="*"), "E_SIG_FORMAT", 3),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_bundles_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    write_key(tmp_path, "mine")
    write_key(tmp_path, "other")
    used, change, code, status = BROKEN[name]
    pem = (tmp_path / f"{used}.pem").read_bytes()
    key = serialization.load_pem_private_key(pem, None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    if name == "other key with the trusted hint":
        shutil.copy(tmp_path / "mine.pub", tmp_path / "other.pub")
    bundle = write_bundle(tmp_path / "model.sig", key, {"config.json": b"{}"})
    change(bundle, tmp_path)
    (tmp_path / "model.sig").write_text(json.dumps(bundle))
    found = verify(tmp_path / "model", signature=tmp_path / "model.sig", key=tmp_path / "mine.pub")
    assert (found.status, codes(found)) == (status, {code})


@pytest.mark.parametrize(
    ("change", "code"),
    [({"root": "0" * 64}, "E_SIG_INVALID"), ({"kind": "x"}, "E_SIG_FORMAT"), ({"method": "shards"}, "E_SIG_FORMAT")],
)
def test_statements_of_another_kind_are_refused(tmp_path: Path, change: dict[str, str], code: str) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    write_bundle(tmp_path / "model.sig", write_key(tmp_path, "mine"), {"config.json": b"{}"}, **change)
    assert codes(verify(tmp_path / "model", signature=tmp_path / "model.sig", key=tmp_path / "mine.pub")) == {code}


def test_a_path_that_leads_out_is_never_opened(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    write_bundle(tmp_path / "model.sig", write_key(tmp_path, "mine"), {"../mine.pem": b""})
    found = verify(tmp_path / "model", signature=tmp_path / "model.sig", key=tmp_path / "mine.pub")
    assert (found.status, codes(found)) == (3, {"E_MANIFEST_PATH"})


def test_keys_that_are_none(out: Path, tmp_path: Path) -> None:
    place = sign(out, tmp_path / "release.sig", key=out.parent / "mine.pem")
    (tmp_path / "text.pub").write_text("hello")
    assert codes(verify(out, signature=place, key=tmp_path / "text.pub")) == {"E_SIG_KEY"}
    write_key(tmp_path, "odd", ec.SECP256K1())
    assert codes(verify(out, signature=place, key=tmp_path / "odd.pub")) == {"E_SIG_KEY"}
    with pytest.raises(ConvertError, match="E_SIG_KEY"):
        sign(out, tmp_path / "b.sig", key=tmp_path / "odd.pem")
    with pytest.raises(ConvertError, match="E_USAGE"):
        verify(out, signature=place)
    with pytest.raises(ConvertError, match="E_USAGE"):
        verify(out, key=tmp_path / "odd.pub")


def certificate(folder: Path, name: str, key: Key, issuer: tuple[str, Key] | None) -> Path:
    """A certificate of ``key``: self-signed, or by (name, key) of an issuer."""
    start = datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=1)
    title = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    above = title if issuer is None else x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer[0])])
    builder = x509.CertificateBuilder().subject_name(title).issuer_name(above).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number()).not_valid_before(start)
    builder = builder.not_valid_after(start + datetime.timedelta(days=2))
    builder = builder.add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
    usage = dict.fromkeys(("content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
                           "encipher_only", "decipher_only"), False)  # fmt: skip
    ca = issuer is None
    builder = builder.add_extension(
        x509.KeyUsage(digital_signature=not ca, key_cert_sign=ca, crl_sign=ca, **usage), critical=True
    )
    if not ca:
        builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CODE_SIGNING]), critical=False)
    signed = builder.sign(key if issuer is None else issuer[1], hashes.SHA256())
    place = folder / f"{name}.crt"
    place.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    return place


def test_with_a_certificate(out: Path, tmp_path: Path) -> None:
    authority, holder, stranger = (write_key(tmp_path, name) for name in ("authority", "holder", "stranger"))
    root = certificate(tmp_path, "authority", authority, None)
    other = certificate(tmp_path, "stranger", stranger, None)
    mine = certificate(tmp_path, "holder", holder, ("authority", authority))
    place = sign(out, tmp_path / "release.sig", key=tmp_path / "holder.pem", certificate=mine, chain=[root])
    assert verify(out, signature=place, certificates=[root]).status == 0
    assert codes(verify(out, signature=place, certificates=[other])) == {"E_SIG_INVALID"}
    flip(out / "model.safetensors")
    assert verify(out, signature=place, certificates=[root]).status == 1


def test_the_commands(out: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["sign", str(out), "--key", str(out.parent / "mine.pem"), "--output", str(tmp_path / "a.sig")]) == 0
    words = ["verify", str(out), "--signature", str(tmp_path / "a.sig"), "--key", str(out.parent / "mine.pub")]
    assert main(words) == 0
    assert "it covers every file" in capfd.readouterr().out
    (out / "SHA256SUMS").unlink()
    assert main(["sign", str(out), "--key", str(out.parent / "mine.pem")]) == 1


IDENTITY, ISSUER = "releases@example.org", "https://login.example.org"


def keyless(out: Path, place: Path, world: Sigstore, identity: str = IDENTITY) -> Path:
    """What keyless signing would write for the folder."""
    by_key = sign(out, place, key=out.parent / "mine.pem")
    place.write_text(json.dumps(world.sign(json.loads(by_key.read_bytes()), identity, ISSUER)))
    return place


def test_by_an_identity_with_a_supplied_trust_configuration(out: Path, tmp_path: Path) -> None:
    world = Sigstore()
    place = keyless(out, tmp_path / "release.sig", world)
    trust = world.trust_config(tmp_path / "trust.json")
    words: dict[str, Any] = {"signature": place, "trust_config": trust, "identity": IDENTITY, "oidc_issuer": ISSUER}
    theirs = ("verify", "sigstore", "--no-ignore-git-paths", "--signature", place, "--trust_config", trust,
              "--identity", IDENTITY, "--identity_provider", ISSUER, out)  # fmt: skip
    assert model_signing(*theirs) == 0
    assert verify(out, **words, strict=True).status == 0
    assert codes(verify(out, **{**words, "identity": "other@example.org"})) == {"E_SIG_INVALID"}
    assert codes(verify(out, **{**words, "oidc_issuer": "https://other.example.org"})) == {"E_SIG_INVALID"}
    other = Sigstore().trust_config(tmp_path / "other.json")
    assert codes(verify(out, **{**words, "trust_config": other})) == {"E_SIG_INVALID"}
    assert codes(verify(out, **{**words, "trust_config": tmp_path / "none.json"})) == {"E_SIG_INVALID"}
    line = ["verify", str(out), "--signature", str(place), "--trust-config", str(trust), "--identity", IDENTITY,
            "--oidc-issuer", ISSUER]  # fmt: skip
    assert main(line) == 0
    assert main(line[:-2]) == 2
    flip(out / "model.safetensors")
    assert verify(out, **words).status == 1


@pytest.mark.parametrize("log", ["rekor", "certificate_log", "root"])
def test_an_identity_that_no_trusted_log_knows(out: Path, tmp_path: Path, log: str) -> None:
    world = Sigstore()
    trust = world.trust_config(tmp_path / "trust.json")
    setattr(world, log, new_key())
    place = keyless(out, tmp_path / "release.sig", world)
    words: dict[str, Any] = {"trust_config": trust, "identity": IDENTITY, "oidc_issuer": ISSUER}
    assert codes(verify(out, signature=place, **words)) == {"E_SIG_INVALID"}


def test_what_signing_misses_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """model-signing may be there and what it imports not."""
    import importlib

    from convertkit.release import signing

    def without(name: str) -> Any:
        raise ModuleNotFoundError("No module named 'OpenSSL'", name="OpenSSL")

    monkeypatch.setattr(importlib, "import_module", without)
    with pytest.raises(ConvertError) as caught:
        signing._backend("signing")
    assert caught.value.code == "E_BACKEND"
    assert "'OpenSSL' is missing" in caught.value.findings[0].message
    assert caught.value.findings[0].fix == "pip install model-signing cryptography pyopenssl"
