"""``--dry-run`` of all but packing and GGUF: what the audit of the output will say, and the status of the run."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from convertkit.cli.main import main
from convertkit.conversion.repair_work import RepairRequest
from convertkit.errors import ConvertError
from convertkit.verbs.case import Options, Result
from convertkit.verbs.convert import convert
from convertkit.verbs.dequant import dequant
from convertkit.verbs.drafters import to_dflash, to_speculators
from convertkit.verbs.fix_keys import fix_keys
from convertkit.verbs.from_torch import from_torch
from convertkit.verbs.pack import pack_nvfp4
from convertkit.verbs.planned import DryRun
from convertkit.verbs.repair import repair
from tests.dialects.tiny import DFLASH_CONFIG, LM_CONFIG, causal_lm, dflash, planes, write
from tests.drafters.make import DV, maps, target
from tests.engines.drafters import TARGET, draft
from tests.engines.drafters import write as write_draft
from tests.verbs.test_repair import GATE_UP, QKV, packed
from tests.verbs.test_repair_maps import RAMP, drafter
from tests.verbs.test_surgery import model

Case = tuple[Callable[[Path], Path], dict[str, Any], int]
"""What writes the source, words of ``RepairRequest`` or of ``fix_keys``, and the exit status."""

UNTIED = {**LM_CONFIG, "tie_word_embeddings": False}
HALVES = {GATE_UP[0]: 2.0**-10, GATE_UP[1]: 2.0**-11}
THIRDS = dict(zip(QKV, (2.0**-10, 2.0**-11, 2.0**-12), strict=True))


def sharded(folder: Path) -> Path:
    repair(write(folder / "whole", causal_lm(), LM_CONFIG), folder / "s", RepairRequest(shard_bytes=8192))
    return folder / "s"


CASES: dict[str, Case] = {
    "tied": (lambda folder: packed(folder, {**HALVES, **THIRDS}), {"tie_scales": True}, 0),
    "tied divisors": (
        lambda folder: packed(folder, {GATE_UP[0]: 2.0**10, GATE_UP[1]: 2.0**11}, "compressed-tensors"),
        {"tie_scales": True}, 0,
    ),
    "unequal before and after": (lambda folder: packed(folder, HALVES), {"metadata": {"a": "b"}}, 0),
    "fused": (lambda folder: model(folder / "s", "modelopt"), {"fuse": ("qkv",)}, 0),
    "stacked": (lambda folder: model(folder / "s", "modelopt"), {"fuse": ("w13",)}, 0),
    "dense stacks": (lambda folder: model(folder / "s", None), {"fuse": ("experts",)}, 0),
    "scalars split": (
        lambda folder: write(folder / "s", planes("model.layers.0.mlp.gate_up_proj", rows=64), LM_CONFIG),
        {"split_fused_scalars": True}, 0,
    ),
    "nibbles": (lambda folder: packed(folder, dict.fromkeys(QKV, 0.5)), {"swap_nibbles": True}, 0),
    "offsets": (lambda folder: drafter(folder / "s", {"d2t": maps("absolute")["d2t"]}), {"d2t": "offsets"}, 0),
    "absolute ids": (lambda folder: drafter(folder / "s", {}), {"d2t": "absolute"}, 1),
    "a mask": (
        lambda folder: drafter(folder / "s", {"d2t": ("I64", (DV,), RAMP.tobytes()), "t2d": None}),
        {"d2t": "offsets", "d2t_holds": "offsets"}, 0,
    ),
    "no config": (lambda folder: write(folder / "s", causal_lm()), {"shard_bytes": 8192}, 0),
    "renamed": (
        lambda folder: write(folder / "s", causal_lm(), LM_CONFIG),
        {"rename": ["model.layers.{rest}=layers.{rest}"]}, 0,
    ),
    "the head is lost": (
        lambda folder: write(folder / "s", causal_lm(), UNTIED), {"rename": ["lm_head.{x}=elsewhere.{x}"]}, 1,
    ),
    "a norm is lost": (
        lambda folder: write(folder / "s", dflash(), DFLASH_CONFIG),
        {"rename": ["layers.0.input_layernorm.{x}=layers.0.first_norm.{x}"]}, 1,
    ),
    "renamed shards": (
        sharded, {"rename": ["model.layers.{rest}=model.blocks.{rest}"]}, 0,
    ),
}  # fmt: skip


def run(source: Path, out: Path, words: dict[str, Any], **more: Any) -> Any:
    if "rename" in words:
        return fix_keys(source, out, **words, **more)
    return repair(source, out, RepairRequest(**words), **more)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_what_is_foreseen_is_what_is_found(tmp_path: Path, case: Case) -> None:
    make, words, status = case
    source = make(tmp_path)
    seen = run(source, tmp_path / "out", words, only_plan=True)
    assert isinstance(seen, DryRun)
    assert not (tmp_path / "out").exists()
    done = run(source, tmp_path / "out", words, options=Options(publish_anyway=True))
    assert isinstance(done, Result)
    found = done.reports["LOAD_SHAPE_AUDIT.json"]
    assert seen.document["audit"] == {key: found[key] for key in ("verdict", "summary", "findings")}
    assert (seen.status, done.status) == (status, status)


def small_target(folder: Path) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(TARGET))
    return folder


CONVERSIONS: dict[str, tuple[Callable[[Path], Path], Callable[..., Any], dict[str, Any]]] = {
    "to speculators": (
        lambda folder: write_draft(draft("dflash2"), folder / "s"), to_speculators,
        {"target_model": small_target, "target_id": "a/b"},
    ),
    "to dflash": (
        lambda folder: write_draft(draft("speculators-dflash"), folder / "s"), to_dflash,
        {"target_model": small_target},
    ),
    "absolute ids": (
        lambda folder: drafter(folder / "s", {"d2t": maps("absolute")["d2t"]}), to_speculators,
        {"target_model": target, "target_id": "a/b"},
    ),
    "expanded": (lambda folder: packed_drafter(folder, "modelopt-mixed"), dequant, {}),
    "to modelopt": (lambda folder: packed_drafter(folder, "compressed-tensors"), convert, {"to": "nvfp4-modelopt"}),
    "to compressed-tensors": (lambda folder: packed_drafter(folder, "modelopt"), convert, {"to": "nvfp4-ct"}),
    "cast": (lambda folder: write_draft(draft("dspark"), folder / "s"), convert, {"to": "f16"}),
    "torch": (lambda folder: pickled(folder), from_torch, {}),
}  # fmt: skip


def packed_drafter(folder: Path, dialect: str) -> Path:
    pack_nvfp4(write_draft(draft("dflash2"), folder / "dense"), folder / "s", dialect=dialect)
    return folder / "s"


def pickled(folder: Path) -> Path:
    dense = write_draft(draft("dflash2"), folder / "dense")
    (folder / "s").mkdir()
    torch.save(load_file(dense / "model.safetensors"), folder / "s" / "pytorch_model.bin")
    (folder / "s" / "config.json").write_bytes((dense / "config.json").read_bytes())
    return folder / "s"


@pytest.mark.parametrize("engines", [(), ("vllm",), ("sglang",)], ids=["none named", "vllm", "sglang"])
@pytest.mark.parametrize("case", CONVERSIONS.values(), ids=CONVERSIONS)
def test_conversions_foresee_what_their_audit_finds(tmp_path: Path, case: Any, engines: tuple[str, ...]) -> None:
    make, verb, words = case
    source = make(tmp_path)
    words = {name: word(tmp_path / "t") if name == "target_model" else word for name, word in words.items()}
    seen = verb(source, tmp_path / "out", only_plan=True, options=Options(engines=engines), **words)
    done = verb(source, tmp_path / "out", options=Options(publish_anyway=True, engines=engines), **words)
    found = done.reports["LOAD_SHAPE_AUDIT.json"]
    assert seen.document["audit"] == {key: found[key] for key in ("verdict", "summary", "findings")}
    assert seen.status == done.status


def test_the_plan_of_a_pack_says_nothing_of_scales_that_are_not_chosen_yet(tmp_path: Path) -> None:
    planned = convert(write_draft(draft("dflash2"), tmp_path / "s"), tmp_path / "out", to="nvfp4-ct", only_plan=True)
    assert isinstance(planned, DryRun)
    assert (planned.audit, planned.status, "audit" in planned.document) == (None, 0, False)


def test_a_wrong_total_of_an_index_is_put_right(tmp_path: Path) -> None:
    source = sharded(tmp_path)
    (index,) = source.glob("*.index.json")
    document = json.loads(index.read_text())
    index.write_text(json.dumps({**document, "metadata": {"total_size": 7}}))
    words = {"rename": ["model.layers.{rest}=model.blocks.{rest}"]}
    seen = run(source, tmp_path / "out", words, only_plan=True)
    done = run(source, tmp_path / "out", words)
    assert seen.document["audit"]["findings"] == done.reports["LOAD_SHAPE_AUDIT.json"]["findings"]
    assert "W_INDEX_TOTAL" in {item.code for item in done.findings}
    assert json.loads((tmp_path / "out" / index.name).read_text())["metadata"] == document["metadata"]


ENGINES: dict[str, Sequence[str]] = {"vllm": (), "llama.cpp": ("E_LOAD_REFUSED",)}


@pytest.mark.parametrize("engine", ENGINES)
def test_a_named_engine_answers_for_a_renaming_and_a_repair(tmp_path: Path, engine: str) -> None:
    source = write_draft(draft("dflash2"), tmp_path / "s")
    options = Options(engines=(engine,))
    cases: list[dict[str, Any]] = [{"rename": ["nothing.{rest}=more.{rest}"]}, {"metadata": {"a": "b"}}]
    fix_keys(
        source, tmp_path / "named", rename=["layers.0.{rest}=nothing.{rest}"], options=Options(publish_anyway=True)
    )
    cases[0]["rename"] = ["nothing.{rest}=layers.0.{rest}"]
    for number, (place, words) in enumerate(zip((tmp_path / "named", source), cases, strict=True)):
        out = tmp_path / f"out-{number}"
        seen = run(place, out, words, only_plan=True, options=options)
        assert [item.code for item in seen.audit.errors] == list(ENGINES[engine])
        if ENGINES[engine]:
            with pytest.raises(ConvertError) as caught:
                run(place, out, words, options=options)
            assert (caught.value.status, caught.value.code) == (1, *ENGINES[engine])
            assert not out.exists()
        else:
            report = run(place, out, words, options=options).reports["LOAD_SHAPE_AUDIT.json"]
            assert [(view["engine"], view["verdict"]) for view in report["engines"]] == [(engine, "loads")]


def test_the_command_says_it_and_ends_with_the_status_of_the_run(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    source = str(write(tmp_path / "s", causal_lm(), UNTIED))
    words = ["fix-keys", source, str(tmp_path / "out"), "--rename", "lm_head.{x}=elsewhere.{x}"]
    assert main([*words, "--dry-run"]) == 1
    said = capfd.readouterr().out
    assert "error E_HEAD_MISSING" in said
    assert said.endswith("the audit of the output would reject it: 1 error\n")
    assert main([*words, "--dry-run", "--json"]) == 1
    assert json.loads(capfd.readouterr().out)["audit"]["verdict"] == "fail"
    assert main([*words, "--dry-run", "--quick"]) == main([*words, "--quick", "--quiet"]) == 0
    assert main(["repair", source, str(tmp_path / "cut"), "--shard", "8kB", "--dry-run"]) == 0
    assert capfd.readouterr().out.endswith("the audit of the output would pass\n")


def test_names_that_no_reader_accepts_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    source = write(tmp_path / "s", causal_lm(), LM_CONFIG)
    long = "x" * 1100
    for words in ({"only_plan": True}, {}):
        with pytest.raises(ConvertError, match="its new name: a name must have 1 to 1,024 bytes") as caught:
            run(source, tmp_path / "out", {"rename": [f"lm_head.{{x}}={long}.{{x}}"]}, **words)
        assert (caught.value.code, caught.value.status) == ("E_ST_NAME", 3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["s"]
