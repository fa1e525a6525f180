"""A tampered release is caught: by its digests, or, under a manifest made anew, by its own reports and weights."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from convertkit.cli.main import main
from convertkit.errors import ConvertError
from convertkit.verbs.case import Options
from convertkit.verbs.manifest import manifest
from convertkit.verbs.pack import pack_nvfp4
from convertkit.verbs.release import release
from convertkit.verbs.verify import verify
from tests.release.recipes import LOSSY, write_recipe


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    release(write_recipe(folder), folder / "out", options=Options(workers=2))
    release(write_recipe(folder / "lossy", LOSSY, on_grid=False), folder / "lossy" / "out")
    return folder


@pytest.fixture
def out(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made / "out", tmp_path / "out"))


def codes(folder: Path, **words: Any) -> set[str]:
    return {item.code for item in verify(folder, **words).findings if item.severity == "error"}


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


REPORT = "bf16/DEQUANT_REPORT.json"
TAMPERED: dict[str, tuple[Callable[[Path], object], str, int]] = {
    "weight": (lambda out: flip(out / "model.safetensors"), "E_DIGEST", 1),
    "weight below": (lambda out: flip(out / "bf16" / "model.safetensors"), "E_DIGEST", 1),
    "report": (lambda out: edit(out / REPORT, '"differing": 0', '"differing": 1'), "E_DIGEST", 1),
    "card": (lambda out: edit(out / "README.md", "224,252", "224,253"), "E_DIGEST", 1),
    "extra": (lambda out: (out / "extra.py").write_text("x"), "E_FILE_EXTRA", 1),
    "missing": (lambda out: (out / "bf16" / "model.safetensors").unlink(), "E_FILE_MISSING", 1),
    "cut": (lambda out: (out / "model.safetensors").write_bytes(b"\x08"), "E_TRUNCATED", 3),
    "swapped": (lambda out: shutil.copyfile(out / "bf16/config.json", out / "config.json"), "E_SIZE", 1),
}


@pytest.mark.parametrize("name", TAMPERED)
def test_tampering_is_caught(out: Path, name: str) -> None:
    change, code, status = TAMPERED[name]
    change(out)
    found = verify(out)
    assert found.status == status
    assert code in {item.code for item in found.findings} or status == 3


def test_the_good_one_passes_everything(out: Path) -> None:
    found = verify(out, card=True, recompute=True, strict=True)
    assert found.status == 0
    assert found.summary["card_claims"] >= 20
    assert "bf16/DEQUANT_REPORT.json" in found.summary["recomputed"]


@pytest.mark.parametrize(
    ("old", "new"),
    [("224,252", "224,253"), ("| 111 |", "| 112 |"), ("| 122,880 | 0 |", "| 122,880 | 1 |"), ("224 kB", "223 kB")],
)
def test_an_edited_card_is_caught_under_a_new_manifest(out: Path, old: str, new: str) -> None:
    edit(out / "README.md", old, new)
    manifest(out)
    assert verify(out).status == 0
    assert codes(out, card=True) == {"E_CARD"}


def test_a_digest_of_another_file_on_the_card_is_caught(out: Path) -> None:
    text = (out / "README.md").read_text()
    mine, theirs = (hashlib.sha256((out / name).read_bytes()).hexdigest()
                    for name in ("model.safetensors", "bf16/model.safetensors"))  # fmt: skip
    (out / "README.md").write_text(text.replace(mine, theirs))
    manifest(out)
    assert codes(out, card=True) == {"E_CARD"}


def test_the_card_of_a_subfolder_is_checked_too(out: Path) -> None:
    edit(out / "bf16" / "README.md", "398,024", "398,025")
    manifest(out / "bf16")
    manifest(out)
    assert codes(out, card=True) == {"E_CARD"}
    assert codes(out / "bf16", card=True) == {"E_CARD"}


def test_a_part_of_a_release_keeps_a_true_card(out: Path) -> None:
    shutil.rmtree(out / "bf16")
    assert codes(out, card=True, only=["!bf16/*"]) == set()


def test_no_card(out: Path) -> None:
    (out / "README.md").unlink()
    manifest(out)
    assert codes(out, card=True) == {"E_CARD_MISSING"}


def test_an_edited_summary_is_caught_under_a_new_manifest(out: Path) -> None:
    report = out / "bf16" / "DEQUANT_REPORT.json"
    document = json.loads(report.read_bytes())
    document["summary"]["differing"] = 1
    report.write_text(json.dumps(document))
    manifest(out / "bf16")
    manifest(out)
    assert codes(out) == {"E_REPORT_COUNTS", "E_REPORT_BYTES"}


def change(path: Path, edit_: Callable[[Any], object]) -> None:
    document = json.loads(path.read_bytes())
    edit_(document)
    path.write_text(json.dumps(document))


def swap(one: Path, other: Path) -> None:
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)


def from_lossy(name: str) -> Callable[[Path, Path], object]:
    return lambda out, lossy: shutil.copyfile(lossy / name, out / name)


Change = Callable[[Path, Path], object]
REMADE: dict[str, Change] = {
    "gate of another release": from_lossy("FIDELITY_GATE.json"),
    "release report of another": from_lossy("RELEASE_REPORT.json"),
    "provenance of another": from_lossy("PROVENANCE.intoto.json"),
    "weights of another": from_lossy("model.safetensors"),
    "audits exchanged": lambda out, _: swap(out / "LOAD_SHAPE_AUDIT.json", out / "bf16/LOAD_SHAPE_AUDIT.json"),
    "folder of another": lambda out, lossy: shutil.copytree(lossy / "bf16", out / "bf16", dirs_exist_ok=True),
    "folder gone": lambda out, _: shutil.rmtree(out / "bf16"),
    "report gone": lambda out, _: (out / "FIDELITY_GATE.json").unlink(),
    "a size": lambda out, _: change(out / "RELEASE_REPORT.json", lambda d: d["rows"][0].update(size_bytes=1)),
    "differing": lambda out, _: change(
        out / "RELEASE_REPORT.json", lambda d: d["rows"][0]["on_grid"].update(differing=5)
    ),
    "histogram": lambda out, _: change(out / "RELEASE_REPORT.json", lambda d: d["rows"][0]["codes"].reverse()),
    "an engine": lambda out, _: change(
        out / "RELEASE_REPORT.json", lambda d: d["summary"]["engines"][0].update(verdict="unknown")
    ),
    "sqnr": lambda out, _: change(
        out / "FIDELITY_GATE.json", lambda d: d["summary"]["whole"].update(sqnr_db=99.0)
    ),
    "a verdict": lambda out, _: change(out / "FIDELITY_GATE.json", lambda d: d.update(verdict="fail")),
    "a plan": lambda out, _: change(out / "bf16/DEQUANT_REPORT.json", lambda d: d["plan"].update(fingerprint="0" * 64)),
    "a subject": lambda out, _: change(
        out / "PROVENANCE.intoto.json", lambda d: d["subject"][0]["digest"].update(sha256="0" * 64)
    ),
    "a source": lambda out, _: change(
        out / "PROVENANCE.intoto.json",
        lambda d: d["predicate"]["buildDefinition"]["resolvedDependencies"][0]["digest"].update(sha256="0" * 64),
    ),
    "quantization": lambda out, _: change(out / "hf_quant_config.json", lambda d: d.update(x=1)),
    "config below": lambda out, _: change(out / "bf16/config.json", lambda d: d.update(block_size=3)),
}  # fmt: skip


@pytest.mark.parametrize("name", REMADE)
def test_what_was_changed_under_new_manifests_is_caught(made: Path, out: Path, name: str) -> None:
    REMADE[name](out, made / "lossy" / "out")
    for folder in (out / "bf16", out):
        if folder.is_dir():
            manifest(folder)
    assert codes(out) & {"E_REPORT_BYTES", "E_REPORT_COUNTS"}
    assert verify(out).status == 1


def test_another_source_in_the_manifest_is_caught(out: Path) -> None:
    change(out / "MANIFEST.json", lambda d: d["source"]["files"][-1].update(sha256="0" * 64))
    lines = (out / "SHA256SUMS").read_text().splitlines()
    digest = hashlib.sha256((out / "MANIFEST.json").read_bytes()).hexdigest()
    lines = [f"{digest}  MANIFEST.json" if line.endswith("  MANIFEST.json") else line for line in lines]
    (out / "SHA256SUMS").write_text("\n".join(lines) + "\n")
    assert codes(out) == {"E_REPORT_BYTES"}


@pytest.mark.parametrize("text", ["122,881", "122,880</body><script>1</script>"])
def test_another_page_is_caught_by_recomputing(out: Path, text: str) -> None:
    edit(out / "REPORT.html", "122,880", text)
    manifest(out)
    assert codes(out, card=True) == set()
    assert codes(out, recompute=True) == {"E_RECOMPUTE"}


def test_files_that_came_later_are_no_fault_of_the_page(out: Path) -> None:
    (out / "NOTES.md").write_text("new")
    manifest(out)
    found = verify(out, recompute=True)
    assert found.status == 0
    assert "REPORT.html" in found.summary["recomputed"]


def add_folder(out: Path) -> None:
    (out / "more").mkdir()
    (out / "more" / "x").write_text("")


def link_away(out: Path) -> None:
    os.rename(out / "bf16", out.parent / "away")
    os.symlink("../away", out / "bf16")


@pytest.mark.parametrize(
    "change_",
    [
        lambda out: os.rename(out / "model.safetensors", out / "Model.safetensors"),
        lambda out: os.rename(out / "bf16", out / "BF16"),
        lambda out: (out / "README.MD").write_text("x"),
        add_folder,
        link_away,
    ],
)  # fmt: skip
def test_names_are_exact(out: Path, change_: Callable[[Path], object]) -> None:
    change_(out)
    assert "E_FILE_EXTRA" in codes(out)
    assert verify(out).status == 1


def test_a_link_that_leads_out_is_caught(out: Path) -> None:
    os.rename(out / "model.safetensors", out.parent / "model.safetensors")
    os.symlink("../model.safetensors", out / "model.safetensors")
    assert verify(out).status == 3
    assert "E_PATH_ESCAPE" in codes(out)


def test_other_weights_under_reports_that_fit_them_are_caught_by_recomputing(out: Path) -> None:
    """bf16/ is changed in one element, and every digest that states it is changed with it."""
    weights = out / "bf16" / "model.safetensors"
    before = hashlib.sha256(weights.read_bytes()).hexdigest()
    header = int.from_bytes(weights.read_bytes()[:8], "little")
    names = json.loads(weights.read_bytes()[8 : 8 + header])
    first = 8 + header + names["layers.2.mlp.up_proj.weight"]["data_offsets"][0]
    data = bytearray(weights.read_bytes())
    data[first + 1] ^= 0x80  # the sign of its first element
    weights.write_bytes(data)
    after = hashlib.sha256(data).hexdigest()
    for path in (*out.rglob("*.json"), *out.rglob("README.md")):
        path.write_text(path.read_text().replace(before, after))
    statement = out / "PROVENANCE.intoto.json"
    for item in json.loads(statement.read_bytes())["predicate"]["runDetails"]["byproducts"]:
        digest = hashlib.sha256((out / item["name"]).read_bytes()).hexdigest()
        statement.write_text(statement.read_text().replace(item["digest"]["sha256"], digest))
    for name in (out / "bf16", out):
        (name / "MANIFEST.json").unlink()
        (name / "SHA256SUMS").unlink()
        manifest(name)
    assert codes(out, card=True) == set()
    found = verify(out, recompute=True)
    assert {item.code for item in found.findings if item.severity == "error"} == {"E_RECOMPUTE"}
    assert found.status == 1


def test_a_gate_is_measured_again_where_the_source_is_given(made: Path) -> None:
    out = made / "lossy" / "out"
    found = verify(out, recompute=True)
    assert found.status == 0
    assert [item.where.file for item in found.findings if item.code == "W_NOT_RECOMPUTED"] == ["FIDELITY_GATE.json"]
    again = verify(out, recompute=True, source=made / "lossy" / "drafter")
    assert again.status == 0
    assert "FIDELITY_GATE.json" in again.summary["recomputed"]
    wrong = verify(out, recompute=True, source=made / "drafter")
    assert wrong.status == 1
    assert {item.code for item in wrong.findings if item.severity == "error"} == {"E_RECOMPUTE"}


@pytest.mark.parametrize("kept", ["none", "all but one"])
def test_a_gate_without_the_rows_of_some_weights_is_not_believed(made: Path, tmp_path: Path, kept: str) -> None:
    out = tmp_path / "pack"
    pack_nvfp4(made / "lossy" / "drafter", out)
    report = json.loads((out / "FIDELITY_GATE.json").read_bytes())
    assert verify(out, recompute=True, source=made / "lossy" / "drafter").status == 0
    report["rows"] = [{"scope": "tensor", "name": "x"}] if kept == "none" else report["rows"][1:]
    (out / "FIDELITY_GATE.json").write_text(json.dumps(report))
    manifest(out)
    found = verify(out, recompute=True, source=made / "lossy" / "drafter")
    code = "E_RECOMPUTE" if kept == "none" else "E_REPORT_COUNTS"
    assert {(item.code, item.where.file) for item in found.findings} == {(code, "FIDELITY_GATE.json")}
    assert found.status == 1


def test_usage() -> None:
    with pytest.raises(ConvertError, match="E_USAGE"):
        verify(".", source="x")


def hub_list(out: Path, *, siblings: bool) -> Any:
    """The folder as a hub lists it: weights in LFS, everything else as git blobs."""
    rows = []
    for path in sorted(path for path in out.rglob("*") if path.is_file()):
        data, name = path.read_bytes(), str(path.relative_to(out))
        blob = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
        sha256 = hashlib.sha256(data).hexdigest()
        large = name.endswith(".safetensors")
        if siblings:
            lfs = {"lfs": {"sha256": sha256, "size": len(data)}} if large else {}
            rows.append({"rfilename": name, "size": len(data), "blobId": blob, **lfs})
        else:
            lfs = {"lfs": {"oid": sha256, "size": len(data), "pointerSize": 135}} if large else {}
            rows.append({"type": "file", "path": name, "size": len(data), "oid": blob, **lfs})
    return {"siblings": rows} if siblings else [{"type": "directory", "path": "bf16", "oid": "0"}, *rows]


@pytest.mark.parametrize("siblings", [False, True])
def test_a_hub_list_stands_for_the_manifest(out: Path, tmp_path: Path, siblings: bool) -> None:
    for name in ("MANIFEST.json", "SHA256SUMS", "bf16/MANIFEST.json", "bf16/SHA256SUMS"):
        (out / name).unlink()
    (tmp_path / "list.json").write_text(json.dumps(hub_list(out, siblings=siblings)))
    found = verify(out, sums=tmp_path / "list.json", card=True)
    assert found.status == 0
    assert found.summary["files_ok"] == len([path for path in out.rglob("*") if path.is_file()])
    edit(out / "config.json", "64", "65")
    assert codes(out, sums=tmp_path / "list.json") >= {"E_DIGEST"}
    flip(out / "bf16" / "model.safetensors")
    (out / "more").write_text("x")
    files = {item.where.file for item in verify(out, sums=tmp_path / "list.json").findings}
    assert files >= {"config.json", "bf16/model.safetensors", "more"}


def test_sums_of_others(out: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    shutil.move(out / "SHA256SUMS", tmp_path / "SUMS")
    (out / "MANIFEST.json").write_bytes((out / "MANIFEST.json").read_bytes())
    assert main(["verify", str(out), "--from", str(tmp_path / "SUMS"), "--card"]) == 0
    assert "agree with SUMS" in capfd.readouterr().out
    flip(out / "model.safetensors")
    assert main(["verify", str(out), "--from", str(tmp_path / "SUMS")]) == 1


def test_a_manifest_that_was_kept_elsewhere(out: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept.json"
    shutil.copy(out / "MANIFEST.json", kept)
    found = verify(out, sums=kept)
    assert found.status == 0
    assert found.summary["tensors"] == verify(out).summary["tensors"]
    older = tmp_path / "older"
    shutil.copytree(out, older)
    edit(out / "config.json", "64", "65")
    assert codes(out, sums=kept) >= {"E_DIGEST"}
    manifest(out, supersedes=older)
    shutil.copy(out / "MANIFEST.json", kept)
    shutil.copy(older / "config.json", out / "config.json")
    assert codes(out, sums=kept) >= {"E_EARLIER_RELEASE"}


@pytest.mark.parametrize("text", ['{"siblings": 3}', '[{"path": 3}]', '[{"path": "../x", "size": 1}]', "[]"])
def test_lists_that_are_none(out: Path, tmp_path: Path, text: str) -> None:
    (tmp_path / "list.json").write_text(text)
    with pytest.raises(ConvertError) as caught:
        verify(out, sums=tmp_path / "list.json")
    assert caught.value.status == 3


@pytest.mark.parametrize("size", ["x", None, True, 9.5, [], -1])
def test_a_list_whose_sizes_are_none_is_no_crash(out: Path, tmp_path: Path, size: object) -> None:
    row = {"path": "LICENSE", "size": size, "lfs": {"oid": "0" * 64, "size": size}}
    (tmp_path / "list.json").write_text(json.dumps([row]))
    assert verify(out, sums=tmp_path / "list.json", allow_extra=["*"]).status == 1
