"""What engines would do with an output stands in its audit; engines that are named can reject it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from convertkit.errors import ConvertError
from convertkit.release.reports import validate_report
from convertkit.verbs.case import Options, Result
from convertkit.verbs.drafters import to_speculators
from convertkit.verbs.pack import pack_nvfp4
from convertkit.verbs.to_gguf import to_gguf
from tests.engines.drafters import TARGET, draft, write
from tests.gguf.models import write_model

AUDIT = "LOAD_SHAPE_AUDIT.json"


def verdicts(folder: Path) -> dict[str, str]:
    document: dict[str, Any] = validate_report(folder / AUDIT)
    return {view["engine"]: view["verdict"] for view in document["engines"]}


def test_a_pack_tells_what_the_engines_of_drafters_do(tmp_path: Path) -> None:
    source = write(draft("dflash2"), tmp_path / "source")
    first = pack_nvfp4(source, tmp_path / "one")
    second = pack_nvfp4(source, tmp_path / "two", options=Options(workers=1))
    assert isinstance(first, Result)
    assert isinstance(second, Result)
    assert verdicts(tmp_path / "one") == {"vllm": "loads", "sglang": "refused"}
    assert first.status == 0
    assert "W_NO_ENGINE" not in {item.code for item in first.findings}
    assert (tmp_path / "one" / AUDIT).read_bytes() == (tmp_path / "two" / AUDIT).read_bytes()


def test_a_named_engine_rejects_what_it_would_refuse(tmp_path: Path) -> None:
    source = write(draft("dflash2"), tmp_path / "source")
    with pytest.raises(ConvertError) as caught:
        pack_nvfp4(source, tmp_path / "out", options=Options(engines=("sglang",), report_dir=tmp_path / "kept"))
    assert caught.value.status == 1
    assert "E_LOAD_REFUSED" in {item.code for item in caught.value.findings}
    assert not (tmp_path / "out").exists()
    assert verdicts(tmp_path / "kept") == {"sglang": "refused"}
    made = pack_nvfp4(source, tmp_path / "out", options=Options(engines=("vllm",)))
    assert isinstance(made, Result)
    assert verdicts(tmp_path / "out") == {"vllm": "loads"}


def test_an_output_that_no_engine_loads_right_is_told(tmp_path: Path) -> None:
    made = draft("dflash")
    made.config["architectures"] = ["Qwen3ForCausalLM"]
    made.config["layer_types"] = ["sliding_attention"] * 2
    source = write(made, tmp_path / "source")
    done = pack_nvfp4(source, tmp_path / "out")
    assert isinstance(done, Result)
    assert "W_NO_ENGINE" in {item.code for item in done.findings}
    assert done.status == 0


def test_a_conversion_and_a_gguf_tell_it_too(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (target / "config.json").write_text(json.dumps(dict(TARGET)))
    to_speculators(write(draft("dflash"), tmp_path / "source"), tmp_path / "out", target_model=target,
                   target_id="example/target")  # fmt: skip
    assert verdicts(tmp_path / "out")["vllm"] == "loads"
    whole = write_model(tmp_path / "model", "qwen3")
    to_gguf(write_model(tmp_path / "drafter", "dflash"), tmp_path / "gguf", target_model=whole)
    assert verdicts(tmp_path / "gguf") == {"llama.cpp": "loads"}
    views = json.loads((tmp_path / "gguf" / AUDIT).read_text())["engines"]
    assert {row["name"] for row in views[0]["settings"]} == {"--spec-type", "--spec-draft-n-max"}


def test_an_engine_that_is_none_is_refused_before_the_work(tmp_path: Path) -> None:
    source = write(draft("dflash"), tmp_path / "source")
    with pytest.raises(ConvertError) as caught:
        pack_nvfp4(source, tmp_path / "out", options=Options(engines=("tensorrt",)))
    assert caught.value.status == 2
