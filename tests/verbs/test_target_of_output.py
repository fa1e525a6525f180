"""The audit of an output reads the target that the conversion was given, instead of what the drafter says of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from convertkit.checkpoint import TensorSpec
from convertkit.errors import ConvertError
from convertkit.release.reports import validate_report
from convertkit.verbs.convert import convert
from convertkit.verbs.drafters import to_dflash, to_dspark, to_speculators
from convertkit.verbs.pack import pack_nvfp4
from tests.engines.drafters import TARGET, Draft, H, V, draft, write

AUDIT = "LOAD_SHAPE_AUDIT.json"
PACKED = "packed (U8)"


def target(folder: Path, packed: bool = True, **more: Any) -> Path:
    """A target whose head, its only tensor, is packed or dense."""
    shape, dtype = ((V, H // 2), "U8") if packed else ((V, H), "BF16")
    return write(Draft({**TARGET, **more}, {"lm_head.weight": TensorSpec("lm_head.weight", dtype, shape)}), folder)


def told(folder: Path, engine: str = "sglang") -> list[str]:
    document: dict[str, Any] = validate_report(folder / AUDIT)
    (view,) = (view for view in document["engines"] if view["engine"] == engine)
    return [reason for reason in view["reasons"] if PACKED in reason]


Verb = Callable[[Path, Path, Path], object]
VERBS: dict[str, tuple[str, Verb]] = {
    "to-dflash": ("speculators-dflash", lambda given, out, beside: to_dflash(given, out, target_model=beside)),
    "to-dspark": ("speculators-dspark", lambda given, out, beside: to_dspark(given, out, target_model=beside)),
    "to-speculators": (
        "dflash",
        lambda given, out, beside: to_speculators(given, out, target_model=beside, target_id="example/target"),
    ),
    "convert": ("speculators-dflash", lambda given, out, beside: convert(given, out, to="dflash", target_model=beside)),
    "convert, packed": (
        "dflash",
        lambda given, out, beside: convert(given, out, to="nvfp4-modelopt", target_model=beside),
    ),
    "pack-nvfp4": ("dflash", lambda given, out, beside: pack_nvfp4(given, out, target_model=beside)),
}


@pytest.mark.parametrize("name", VERBS)
def test_a_packed_head_of_the_target_is_told_of_a_drafter_that_borrows_it(name: str, tmp_path: Path) -> None:
    kind, verb = VERBS[name]
    source = write(draft(kind), tmp_path / "source")
    verb(source, tmp_path / "dense", target(tmp_path / "one", packed=False))
    verb(source, tmp_path / "packed", target(tmp_path / "two"))
    assert told(tmp_path / "dense") == []
    assert bool(told(tmp_path / "packed")) == (name != "to-speculators")


def test_a_target_of_other_size_rejects_a_pack(tmp_path: Path) -> None:
    source = write(draft("dflash"), tmp_path / "source")
    other = target(tmp_path / "target", packed=False, num_hidden_layers=6, layer_types=["full_attention"] * 6)
    with pytest.raises(ConvertError) as caught:
        pack_nvfp4(source, tmp_path / "out", target_model=other)
    assert "E_PAIR" in {item.code for item in caught.value.findings}
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("section", ["text_config", "llm_config", "language_config"])
def test_the_language_model_of_a_target_is_found_in_each_section(section: str, tmp_path: Path) -> None:
    source = write(draft("dflash"), tmp_path / "source")
    whole = target(tmp_path / "target")
    (whole / "config.json").write_text(json.dumps({"architectures": ["AnyForCausalLM"], section: dict(TARGET)}))
    pack_nvfp4(source, tmp_path / "out", target_model=whole)
    assert told(tmp_path / "out")


def test_a_target_that_states_no_sizes_is_assumed(tmp_path: Path) -> None:
    source = write(draft("dflash"), tmp_path / "source")
    beside = target(tmp_path / "target")
    (beside / "config.json").write_text(json.dumps({"num_hidden_layers": 8}))
    pack_nvfp4(source, tmp_path / "out", target_model=beside)
    assert told(tmp_path / "out") == []
