"""Packs with reports that a newer release supersedes: old files are told from damaged ones."""

from __future__ import annotations

import shutil
from pathlib import Path

from convertkit.verbs.dequant import dequant
from convertkit.verbs.manifest import manifest
from convertkit.verbs.pack import pack_nvfp4
from convertkit.verbs.verify import verify

DRAFTER = Path(__file__).parents[2] / "fixtures" / "dflash2-tiny"


def test_the_files_of_an_old_pack_and_its_expansion_are_old_not_damaged(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    pack_nvfp4(DRAFTER, old, dialect="compressed-tensors")
    dequant(old, tmp_path / "bf16")
    shutil.move(tmp_path / "bf16", old / "bf16")
    manifest(old)
    pack_nvfp4(DRAFTER, new, scales="amax-llmcompressor")
    manifest(new, supersedes=old)
    for name in ("MANIFEST.json", "SHA256SUMS"):
        shutil.copy(new / name, old)
    result = verify(old)
    assert {item.code for item in result.findings} == {"E_EARLIER_RELEASE"}
    assert result.status == 6
    assert {item.where.file for item in result.findings} >= {"FIDELITY_GATE.json", "bf16/DEQUANT_REPORT.json"}
    report = old / "FIDELITY_GATE.json"
    report.write_text(report.read_text().replace("0.", "1.", 1))
    result = verify(old)
    damaged = [(item.code, item.where.file) for item in result.findings if item.code != "E_EARLIER_RELEASE"]
    assert damaged == [("E_SIZE", "FIDELITY_GATE.json")]
    assert result.status == 1
