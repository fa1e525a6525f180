"""The functional gate on drafters on disk: packs pass, and what is damaged is named."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from convertkit.demo.generate import generate
from convertkit.errors import ConvertError
from convertkit.release.reports import report_faults
from convertkit.verbs.drafters import to_speculators
from convertkit.verbs.gate import GateResult
from convertkit.verbs.gate_forward import gate_forward
from convertkit.verbs.manifest import manifest
from convertkit.verbs.pack import pack_nvfp4
from convertkit.verbs.report import report
from convertkit.verbs.verify import verify
from tests.drafters.make import DV, V, drafter, maps, read, speculators, target, write
from tests.forward.damage import DAMAGES, change, copied, shift_taps, swap_scales


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A DFlash 2 drafter, its packs in both spellings, and its target's embedding and head."""
    root = tmp_path_factory.mktemp("forward")
    source = generate("dflash2", root / "bf16").root
    pack_nvfp4(source, root / "mo")
    pack_nvfp4(source, root / "ct", dialect="compressed-tensors")
    return {"bf16": source, "mo": root / "mo", "ct": root / "ct", "target": generate("target", root / "target").root}


def run(made: dict[str, Path], candidate: Path, **words: Any) -> GateResult:
    return gate_forward(candidate, made["bf16"], target_model=made["target"], **words)


def row_of(found: GateResult, name: str) -> dict[str, Any]:
    row = next(row for row in found.rows if row["name"] == name)
    return dict(row["forward"])


@pytest.mark.parametrize("spelling", ["mo", "ct"])
def test_a_pack_passes(made: dict[str, Path], spelling: str) -> None:
    found = run(made, made[spelling])
    assert (found.status, found.findings) == (0, ())
    errors = {row["name"]: row["forward"]["rel_rms"] for row in found.rows if row["scope"] == "module"}
    packed = {name for name, error in errors.items() if error}
    assert packed == {f"layers.{i}.mlp.{leaf}_proj" for i in range(5) for leaf in ("gate", "up", "down")}
    assert all(0.08 < errors[name] < 0.11 for name in packed)
    assert row_of(found, "layers.4")["drift"] > row_of(found, "layers.0")["drift"] > 0
    assert found.document["summary"]["packed"] == 15
    assert report_faults(made["bf16"], "FIDELITY_GATE.json", found.document) == []


def test_a_copy_is_equal_in_every_row(made: dict[str, Path]) -> None:
    found = run(made, made["bf16"])
    assert all(row["forward"]["rel_rms"] == 0 for row in found.rows if "rel_rms" in row["forward"])
    out = row_of(found, "output")
    assert (out["kl"], out["max_kl"], out["cosine"], out["top1_agreement"], out["agreed_length"]) == (0, 0, 1, 1, 7)
    assert out["accept_length"] is None


@pytest.mark.parametrize("what", [name for name in DAMAGES if name != "taps off by one"])
def test_the_damaged_layer_is_named(made: dict[str, Path], what: str, tmp_path: Path) -> None:
    broken = copied(made["mo"], tmp_path / "broken")
    DAMAGES[what](broken)
    found = run(made, broken)
    assert found.status == 1
    named = {item.data["name"] for item in found.findings if item.data.get("scope") in ("module", "layer")}
    assert named
    assert all(name.startswith("layers.2") for name in named)
    assert found.document["summary"]["forward"]["worst_module"].startswith("layers.2.mlp.")
    assert all(item.code == "E_GATE" for item in found.findings)


def test_the_same_scales_swapped_pass_where_they_belong(made: dict[str, Path], tmp_path: Path) -> None:
    """Twice swapped is whole again: the finding is about the scales and not about the test."""
    broken = copied(made["mo"], tmp_path / "broken")
    swap_scales(broken, 2)
    assert run(made, broken).status == 1
    swap_scales(broken, 2)
    assert run(made, broken).status == 0


@pytest.mark.parametrize("by", [1, -1])
def test_taps_off_by_one_are_named(made: dict[str, Path], by: int, tmp_path: Path) -> None:
    broken = copied(made["bf16"], tmp_path / "broken")
    shift_taps(broken, by)
    found = run(made, broken)
    assert found.status == 1
    first = found.findings[0]
    wrong = [tap + by for tap in (5, 19, 33, 47, 61)]
    assert f"layers {wrong}, the reference those of [5, 19, 33, 47, 61]" in first.message
    assert first.data["name"] == "taps"
    assert row_of(found, "taps")["rel_rms"] > 1.3
    assert {item.data["metric"] for item in found.findings} == {"rel_rms", "cosine"}
    # no module and no layer is at fault: on the reference's input each does what it should
    assert all(row["forward"]["rel_rms"] == 0 for row in found.rows if row["scope"] in ("module", "layer"))
    assert row_of(found, "fusion")["drift"] > 1


def test_outputs_alone_see_the_taps(made: dict[str, Path], tmp_path: Path) -> None:
    """Without the row about inputs the proposals still give it away."""
    broken = copied(made["bf16"], tmp_path / "broken")
    shift_taps(broken)
    out, whole = row_of(run(made, broken), "output"), row_of(run(made, made["mo"]), "output")
    assert out["kl"] > 3 * whole["kl"]
    assert out["cosine"] < 0.2 < 0.7 < whole["cosine"]


def test_a_config_that_means_something_else_is_named(made: dict[str, Path], tmp_path: Path) -> None:
    broken = copied(made["bf16"], tmp_path / "broken")
    path = broken / "config.json"
    config = json.loads(path.read_text())
    config["is_causal"] = True
    path.write_text(json.dumps(config))
    found = run(made, broken)
    assert "'attention' of the candidate" in found.findings[0].message
    assert row_of(found, "layers.0")["rel_rms"] > 0
    assert row_of(found, "layers.0.mlp.up_proj")["rel_rms"] == 0
    config["dflash_config"]["block_size"] = config["block_size"] = 4
    path.write_text(json.dumps(config))
    with pytest.raises(ConvertError) as raised:
        run(made, broken)
    assert (raised.value.status, {item.code for item in raised.value.findings}) == (1, {"E_GATE", "E_REFERENCE"})


def test_the_report_is_the_same_bytes_for_any_number_of_threads(made: dict[str, Path], tmp_path: Path) -> None:
    place = tmp_path / "FIDELITY_GATE.json"
    reports = []
    for workers in (1, 2, 3):
        run(made, made["mo"], workers=workers, report=place)
        reports.append(place.read_bytes())
    assert reports[0] == reports[1] == reports[2]
    assert run(made, made["mo"], seed=1).files != run(made, made["mo"], seed=2).files


def test_what_is_borrowed_must_come_from_somewhere(made: dict[str, Path]) -> None:
    with pytest.raises(ConvertError) as raised:
        gate_forward(made["mo"], made["bf16"])
    assert (raised.value.code, raised.value.status) == ("E_NEEDS_TARGET", 2)
    assert "--target-model" in raised.value.findings[0].fix


def test_as_served_and_stored_change_what_is_run(made: dict[str, Path]) -> None:
    exact = row_of(run(made, made["mo"]), "layers.0.mlp.up_proj")["rel_rms"]
    served = run(made, made["mo"], as_served="modelopt")
    assert served.document["summary"]["as_served"]["engine"] == "modelopt"
    rounded = row_of(run(made, made["mo"], stored="bf16"), "layers.0.mlp.up_proj")["rel_rms"]
    assert row_of(served, "layers.0.mlp.up_proj")["rel_rms"] != exact != rounded
    with pytest.raises(ConvertError, match="E_USAGE"):
        run(made, made["mo"], as_served="modelopt", stored="bf16")


def test_values_that_are_not_finite_fail(made: dict[str, Path], tmp_path: Path) -> None:
    broken = copied(made["bf16"], tmp_path / "broken")
    change(broken, "layers.1.mlp.down_proj.weight", lambda data: b"\xc0\x7f" + data[2:])
    found = run(made, broken)
    assert found.status == 1
    assert row_of(found, "layers.1.mlp.down_proj")["rel_rms"] is None
    assert any(item.data["name"] == "layers.1.mlp.down_proj" for item in found.findings)
    assert row_of(found, "output")["nonfinite"] > 0


def test_another_spelling_of_the_same_drafter_computes_the_same(made: dict[str, Path], tmp_path: Path) -> None:
    """z-lab's form against speculators', dense and packed: other config, same pass."""
    to_speculators(made["bf16"], tmp_path / "s", target_model=made["target"], target_id="org/target")
    found = run(made, tmp_path / "s")
    assert found.status == 0
    assert all(row["forward"]["rel_rms"] == 0 for row in found.rows if "rel_rms" in row["forward"])


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "dflash, reduced": ("dflash", {"draft_vocab_size": DV}),
    "dspark": ("dspark", {"draft_vocab_size": DV, "markov_head_type": "gated"}),
    "dspark, rnn": ("dspark", {"markov_head_type": "rnn"}),
    "eagle3": ("eagle3", {"draft_vocab_size": DV}),
}


@pytest.mark.parametrize("case", list(CASES))
def test_other_kinds(case: str, tmp_path: Path) -> None:
    """Packs of all linears pass; one matrix a row off is named."""
    kind, over = CASES[case]
    source = drafter(tmp_path / "a", f"speculators-{kind}", speculators(kind, **over))
    big = target(tmp_path / "t", weights=True)
    pack_nvfp4(source, tmp_path / "p", include=["layers.{i}.{rest}"], dialect="compressed-tensors")
    found = gate_forward(tmp_path / "p", source, target_model=big, limits={"max_module_error": 0.15})
    assert found.status == 0
    errors = [row["forward"]["rel_rms"] for row in found.rows if row.get("packed")]
    assert len(errors) == 21
    assert min(errors) > 0.05
    broken = copied(source, tmp_path / "b")
    change(broken, "layers.1.self_attn.k_proj.weight", lambda data: data[128:] + data[:128])
    found = gate_forward(broken, source, target_model=big, limits={"max_module_error": 0.15})
    assert [item.data["name"] for item in found.findings] == ["layers.1.self_attn.k_proj"]


def test_another_map_of_the_vocabulary_is_named(tmp_path: Path) -> None:
    source = drafter(tmp_path / "a", "speculators-dflash", speculators("dflash", draft_vocab_size=DV))
    big = target(tmp_path / "t", weights=True)
    tensors = read(source)
    moved = bytearray(maps()["d2t"][2])
    moved[0:8] = (1).to_bytes(8, "little")
    write(tmp_path / "b", speculators("dflash", draft_vocab_size=DV), {**tensors, "d2t": ("I64", (DV,), bytes(moved))})
    found = gate_forward(tmp_path / "b", source, target_model=big)
    assert [(item.code, item.where.tensor) for item in found.findings] == [("E_GATE", "d2t")]
    assert V > DV


def test_weights_that_do_not_fit_are_refused(made: dict[str, Path], tmp_path: Path) -> None:
    config = json.loads((made["bf16"] / "config.json").read_text())
    tensors = read(made["bf16"])
    short = dict(tensors)
    del short["layers.3.mlp.up_proj.weight"]
    wide = {**tensors, "norm.weight": ("BF16", (32,), tensors["norm.weight"][2][:64])}
    for number, (held, code) in enumerate(((short, "E_LAYOUT_MISSING"), (wide, "E_LAYOUT_SHAPE"))):
        with pytest.raises(ConvertError) as raised:
            run(made, write(tmp_path / str(number), config, held))
        assert (raised.value.code, raised.value.status) == (code, 1)


def test_what_cannot_be_run_is_refused(tmp_path: Path) -> None:
    plain = generate("qwen3", tmp_path / "plain").root
    with pytest.raises(ConvertError) as raised:
        gate_forward(plain, plain)
    assert (raised.value.code, raised.value.status) == ("E_FORWARD", 3)
    for over in ({"model_type": "gemma3"}, {"rope_parameters": {"rope_type": "longrope", "rope_theta": 1.0}}):
        odd = drafter(tmp_path / str(len(over) + len(str(over))), "speculators-dflash",
                      speculators("dflash", draft_vocab_size=V, layer=over))  # fmt: skip
        with pytest.raises(ConvertError, match="E_FORWARD"):
            gate_forward(odd, odd)


def test_a_trained_mask_embedding_is_used(made: dict[str, Path], tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    other = copied(made["bf16"], tmp_path / "other")
    torch.save({"embedding": torch.ones(64), "mask_token_id": 187}, other / "mask_embedding.pt")
    out = row_of(run(made, other), "output")
    assert out["kl"] > 0
    assert out["top1_agreement"] < 1


def test_the_command(made: dict[str, Path], tmp_path: Path) -> None:
    broken = copied(made["mo"], tmp_path / "broken")
    swap_scales(broken, 2)
    words = ["gate", str(broken), "--reference", str(made["bf16"]), "--forward", "--target-model", str(made["target"])]
    said = subprocess.run([sys.executable, "-m", "convertkit", *words], capture_output=True, text=True, check=False)
    assert said.returncode == 1
    assert "module 'layers.2.mlp.gate_proj': rel_rms is" in said.stdout
    assert said.stdout.endswith("FAILED\n")
    without = [word for word in words if word != "--forward"]
    said = subprocess.run([sys.executable, "-m", "convertkit", *without], capture_output=True, text=True, check=False)
    assert (said.returncode, "--target-model needs --forward" in said.stderr) == (2, True)


def test_its_report_in_a_folder_breaks_no_reader_of_reports(made: dict[str, Path], tmp_path: Path) -> None:
    folder = copied(made["mo"], tmp_path / "folder")
    run(made, made["mo"], report=folder / "FIDELITY_GATE.json")
    manifest(folder)
    assert verify(folder, strict=True).status == 0
    report(folder, tmp_path / "page.html", compare=made["mo"])
    assert (tmp_path / "page.html").read_bytes()
    found = verify(folder, recompute=True, source=made["bf16"])
    assert "E_INTERNAL" not in {item.code for item in found.findings}


def test_torch_is_not_imported_without_forward(made: dict[str, Path]) -> None:
    code = (
        "import sys, convertkit.cli.gate, convertkit.verbs.gate_forward, convertkit.verbs.calibration\n"
        "assert 'torch' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_specs_that_say_the_same_are_not_reported(made: dict[str, Path]) -> None:
    from convertkit.containers.folder import open_checkpoint
    from convertkit.forward.specs import spec_findings, spec_of

    spec = spec_of(open_checkpoint(made["bf16"]), "reference", None)
    assert list(spec_findings(spec, replace(spec, backbone=None, target_layers=3, taps=(1,)))) == []
    assert [item.code for item in spec_findings(spec, replace(spec, softcap=3.0))] == ["E_GATE"]
    assert [item.code for item in spec_findings(spec, replace(spec, eps=3.0))] == ["E_REFERENCE"]
