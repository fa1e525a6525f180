"""What ``convertkit manifest`` and ``convertkit verify`` print."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from convertkit.cli.main import main
from tests.release.makers import model, put, safetensors, sha256


def test_manifest_says_what_it_did(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    root = model(tmp_path / "release", {".git/HEAD": b"", "model.sig": b""})
    put(tmp_path, {"SHA256SUMS": f"{'0' * 64}  model.safetensors\n".encode()})
    assert main(["manifest", str(root), "--supersedes", str(tmp_path / "SHA256SUMS")]) == 0
    digest = sha256((root / "SHA256SUMS").read_bytes())
    size = (root / "model.safetensors").stat().st_size + (root / "config.json").stat().st_size
    assert capfd.readouterr() == (
        f"""\
wrote           MANIFEST.json, SHA256SUMS
lists           2 files, {size} B, 3 tensors
leaves out      .git/ (belongs to a tool, not to the release)
leaves out      model.sig (a signature is made after the manifest)
supersedes      1 earlier release
release sha256  {digest} (of SHA256SUMS; it pins every file)
""",
        "",
    )


def test_manifest_as_json_and_dry(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    root = model(tmp_path)
    assert main(["manifest", str(root), "--dry-run", "--json"]) == 0
    document = json.loads(capfd.readouterr().out)
    assert (document["schema"], document["dry_run"], document["files"]) == ("convertkit.manifest-result/1", True, 2)
    assert not (root / "SHA256SUMS").exists()
    assert main(["manifest", str(root), "--dry-run"]) == 0
    assert capfd.readouterr().out.startswith("would write     MANIFEST.json, SHA256SUMS\n")


def test_manifest_that_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    root = model(tmp_path, {"MANIFEST.json": b"{}"})
    assert main(["manifest", str(root)]) == 5
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("error E_OUT_EXISTS: ")


def test_verify_prints_problems_first(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    root = model(tmp_path)
    assert main(["manifest", str(root), "--quiet"]) == 0
    put(root, {"log.txt": b"", "model.safetensors": safetensors()[:-1] + b"\xff"})
    assert main(["verify", str(root), "--allow-extra", "*.txt"]) == 1
    lines = capfd.readouterr().out.splitlines()
    assert lines[0] == (
        "error E_DIGEST: the bytes are not those that the manifest states; 1 tensor differs, first 'b.weight' "
        "[model.safetensors]"
    )
    assert lines[1] == "  fix: fetch the file again"
    assert lines[2].startswith("FAILED; 1 problem: 2 of 3 files (")
    assert lines[2].endswith("B) and 2 tensors agree with MANIFEST.json and SHA256SUMS")
    assert lines[3] == "not checked, as allowed: log.txt"
    assert lines[4] == f"release sha256: {sha256((root / 'SHA256SUMS').read_bytes())} (of SHA256SUMS)"


def test_verify_quietly_and_strictly(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    root = model(tmp_path)
    assert main(["manifest", str(root), "--quiet"]) == 0
    assert main(["verify", str(root), "--quiet"]) == 0
    assert capfd.readouterr() == ("", "")
    (root / "SHA256SUMS").unlink()
    assert main(["verify", str(root), "--strict"]) == 1
    assert "FAILED; warnings count with --strict: 2 files" in capfd.readouterr().out
    assert main(["verify", str(root), "--strict", "--hub"]) == 2
    assert "E_USAGE" in capfd.readouterr().err
