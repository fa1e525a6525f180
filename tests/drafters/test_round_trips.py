"""Every exact direction there and back: bytes of every tensor, fields of every config, dense and packed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from convertkit.containers.folder import open_checkpoint
from convertkit.conversion.identify import identify
from convertkit.demo.generate import generate
from convertkit.drafter import DrafterSpec, differences
from convertkit.layouts.reading import stated_spec
from convertkit.verbs.case import Result
from convertkit.verbs.drafters import to_dflash, to_drafter, to_dspark, to_speculators
from convertkit.verbs.pack import pack_nvfp4
from tests.drafters.make import config_of, deepspec, drafter, eagle, read, speculators, target, zlab, zlab2

ID = {"target_id": "Qwen/Qwen3-8B"}


def spec_of(folder: Path) -> DrafterSpec:
    checkpoint = open_checkpoint(folder)
    stated = stated_spec(identify(checkpoint).layout, checkpoint.config, checkpoint.tensors)
    assert stated is not None
    assert stated[1] == ()
    return stated[0]


def lost(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Fields of ``before`` that ``after`` does not hold, nested objects compared by key."""
    gone: dict[str, Any] = {}
    for key, value in before.items():
        other = after.get(key)
        if isinstance(value, dict) and isinstance(other, dict):
            gone.update({f"{key}.{name}": item for name, item in lost(value, other).items()})
        elif other != value:
            gone[key] = value
    return gone


def done(result: Any) -> Path:
    assert isinstance(result, Result)
    assert result.status == 0
    assert result.reports["LOAD_SHAPE_AUDIT.json"]["verdict"] == "pass"
    return result.out


SOURCES = {
    "dflash": ("dflash", zlab()),
    "dflash old block size": ("dflash", {**zlab(dflash_config={"block_size": None}), "block_size": 8}),
    "dflash2": ("dflash2", zlab2()),
    "dspark": ("dspark", deepspec()),
    "dspark without confidence": ("dspark", deepspec(enable_confidence_head=False)),
    "eagle3": ("eagle3", eagle()),
}


@pytest.mark.parametrize("packed", [False, True], ids=["dense", "packed"])
@pytest.mark.parametrize("name", SOURCES)
def test_there_and_back(name: str, packed: bool, tmp_path: Path) -> None:
    layout, config = SOURCES[name]
    big = target(tmp_path / "target", layers=config.get("num_target_layers", 12))
    source = drafter(tmp_path / "a", layout, config, shards=2)
    if packed:
        source = done(pack_nvfp4(source, tmp_path / "p", target_model=big))
    there = done(to_speculators(source, tmp_path / "b", target_model=big, **ID))
    back = done(to_drafter(there, tmp_path / "c", to=layout.rstrip("2"), verb="convert", target_model=big))
    assert read(back) == read(source)
    before, after = config_of(source), config_of(back)
    gone = lost(before, after)
    assert {key: value for key, value in gone.items() if value is not None} == {}
    for one, other in ((source, there), (there, back)):
        skip = {"draft_tokens", "borrowed", "target_layers", "taps"} if layout == "eagle3" else {"borrowed"}
        assert set(differences(spec_of(one), spec_of(other))) <= skip


def test_speculators_drafters_come_back_alike(tmp_path: Path) -> None:
    for kind, verb in (("dflash", to_dflash), ("dflash2", to_dflash), ("dspark", to_dspark)):
        source = drafter(tmp_path / kind, f"speculators-{kind}", speculators(kind))
        big = target(tmp_path / f"target-{kind}")
        flat = done(verb(source, tmp_path / f"flat-{kind}", target_model=big))
        back = done(to_speculators(flat, tmp_path / f"back-{kind}", target_model=big, **ID))
        assert read(back) == read(source)
        gone = lost(config_of(source), config_of(back))
        assert {key: value for key, value in gone.items() if key != "architectures"} == {}


def test_a_reduced_dspark_is_served_natively_and_comes_back(tmp_path: Path) -> None:
    """The 3-layer draft of B8, 32000 of the target's tokens, Markov and confidence heads: 43 tensors."""
    config = speculators(
        "dspark", draft_vocab_size=48, aux_hidden_state_layer_ids=[9, 19, 29], layer={"num_target_layers": 40}
    )
    source = drafter(tmp_path / "a", "speculators-dspark", config)
    assert len(read(source)) == 43
    flat = done(to_dspark(source, tmp_path / "b"))
    written = config_of(flat)
    assert written["architectures"] == ["Qwen3DSparkModel"]
    assert written["target_layer_ids"] == [8, 18, 28]
    assert (written["draft_vocab_size"], written["sample_from_anchor"], written["block_size"]) == (48, True, 8)
    assert read(flat) == read(source)
    back = done(to_speculators(flat, tmp_path / "c", target_model=target(tmp_path / "t", layers=40), **ID))
    assert read(back) == read(source)


def test_a_prefix_and_misspelled_codebooks_are_put_right(tmp_path: Path) -> None:
    source = drafter(tmp_path / "a", "dflash2", zlab2())
    tensors = {}
    for name, row in read(source).items():
        tensors[f"model.{name}.weight" if name.endswith("codebook") else f"model.{name}"] = row
    from tests.drafters.make import write

    odd = write(tmp_path / "b", zlab2(), tensors)
    assert read(done(to_dflash(odd, tmp_path / "c"))) == read(source)


@pytest.mark.parametrize("kind", ["dflash2", "dflash", "dflash-april", "dflash-27b"])
def test_published_drafters(kind: str, tmp_path: Path) -> None:
    """Real config values, tiny tensors; the mixed one needs its loss allowed, for vLLM alone misreads it."""
    generate(kind, tmp_path / "a")
    layers = config_of(tmp_path / "a")["num_target_layers"]
    hidden = config_of(tmp_path / "a")["hidden_size"]
    big = target(tmp_path / "t", layers=layers, nested=True, hidden_size=hidden)
    loss = ("attention",) if kind == "dflash-27b" else ()
    there = done(to_speculators(tmp_path / "a", tmp_path / "b", target_model=big, allow_loss=loss, **ID))
    back = done(to_dflash(there, tmp_path / "c"))
    assert read(back) == read(tmp_path / "a")
    assert lost(config_of(tmp_path / "a"), config_of(back)) == {}
    for name in ("README.md", "LICENSE", "NOTICE"):
        assert (back / name).read_bytes() == (tmp_path / "a" / name).read_bytes()


def test_a_key_that_is_stated_twice_and_differs_is_told(tmp_path: Path) -> None:
    config = speculators("dflash", layer={"num_target_layers": 36, "my_key": 1}, my_key=2)
    flat = to_dflash(drafter(tmp_path / "a", "speculators-dflash", config), tmp_path / "b")
    assert isinstance(flat, Result)
    assert config_of(flat.out)["my_key"] == 1
    assert [item.data for item in flat.findings if item.code == "W_LOSS"] == [{"field": "my_key"}]
