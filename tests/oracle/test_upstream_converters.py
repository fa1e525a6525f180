"""speculators' own converters beside convertkit's: the same tensors, and every config field that differs on purpose."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from convertkit.checkpoint import TensorSpec
from convertkit.verbs.drafters import to_drafter, to_speculators
from tests.drafters.make import SLIDING3, V, config_of, drafter, eagle, fill, read, target, write, zlab
from tests.oracle.test_drafter_classes import load

pytestmark = pytest.mark.oracle
torch: Any = pytest.importorskip("torch")

ID = {"target_id": "Qwen/Qwen3-8B"}
MODEL = {
    "model_type": "qwen3",
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "head_dim": 16,
}


def whole_target(folder: Path) -> Path:
    """A target whose embedding, final norm and head speculators' converters can load."""
    config = {**config_of(target(folder.parent / "config-only")), **MODEL}
    shapes = {"model.embed_tokens.weight": (V, 64), "model.norm.weight": (64,), "lm_head.weight": (V, 64)}
    tensors = {name: ("BF16", shape, fill(name, TensorSpec(name, "BF16", shape))) for name, shape in shapes.items()}
    return write(folder, config, tensors, shards=2)


def flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Every leaf of a config by its dotted name."""
    if not isinstance(value, dict):
        return {prefix: value}
    return {
        name: leaf for key, item in value.items() for name, leaf in flat(item, f"{prefix}.{key}".lstrip(".")).items()
    }


def meaning_apart(ours: Path, theirs: Path) -> dict[str, tuple[Any, Any]]:
    """Config fields that both state, with different values: (ours, theirs)."""
    one, two = flat(config_of(ours)), flat(config_of(theirs))
    return {name: (one[name], two[name]) for name in sorted(one.keys() & two.keys()) if one[name] != two[name]}


DELIBERATE = {
    "sliding_window_non_causal",  # vLLM 0.33 makes every layer causal without it
    "speculators_config.proposal_methods",  # accept_tolerance is spelled out
    "speculators_config.verifier.name_or_path",  # the hub name instead of a local path
    "speculators_version",
    "transformers_version",
}


@pytest.mark.parametrize("over", [{}, {**SLIDING3, "is_causal": False}], ids=["full", "sliding, not causal"])
def test_dflash(over: dict[str, Any], tmp_path: Path) -> None:
    module = pytest.importorskip("speculators.convert.dflash.converter")
    source, big = drafter(tmp_path / "a", "dflash", zlab(**over)), whole_target(tmp_path / "t")
    module.DFlashConverter().convert(source, tmp_path / "theirs", str(big), validate=False)
    to_speculators(source, tmp_path / "ours", target_model=big, **ID)
    assert read(tmp_path / "ours") == read(tmp_path / "theirs")
    apart = meaning_apart(tmp_path / "ours", tmp_path / "theirs")
    assert apart.keys() <= DELIBERATE
    assert apart["sliding_window_non_causal"] == (True, False)
    assert config_of(tmp_path / "ours")["aux_hidden_state_layer_ids"] == [2, 6, 10]


def test_dflash_with_a_tap_on_the_last_layer(tmp_path: Path) -> None:
    """The other converter drops the tap and then finds the fusion layer too narrow; ours keeps it."""
    module = pytest.importorskip("speculators.convert.dflash.converter")
    source = drafter(tmp_path / "a", "dflash", zlab(dflash_config={"target_layer_ids": [1, 5, 11]}))
    big = whole_target(tmp_path / "t")
    with pytest.raises(RuntimeError, match="size mismatch"):
        module.DFlashConverter().convert(source, tmp_path / "theirs", str(big), validate=False)
    to_speculators(source, tmp_path / "ours", target_model=big, **ID)
    load(tmp_path / "ours")


def test_eagle3(tmp_path: Path) -> None:
    """The other converter widens to F32 unless the config says ``torch_dtype``, so this one does."""
    module = pytest.importorskip("speculators.convert.eagle.eagle3_converter")
    source = drafter(tmp_path / "a", "eagle3", eagle(torch_dtype="bfloat16"))
    big = whole_target(tmp_path / "t")
    module.Eagle3Converter().convert(source, tmp_path / "theirs", str(big), validate=False)
    to_speculators(source, tmp_path / "ours", target_model=big, **ID)
    ours, theirs = read(tmp_path / "ours"), read(tmp_path / "theirs")
    assert ours == theirs
    apart = meaning_apart(tmp_path / "ours", tmp_path / "theirs")
    assert apart.keys() <= DELIBERATE | {"architectures", "eagle_aux_hidden_state_layer_ids"}
    assert apart["eagle_aux_hidden_state_layer_ids"] == ([2, 6, 9], None)


def test_eagle3_computes_the_same_there_and_back(tmp_path: Path) -> None:
    source, big = drafter(tmp_path / "a", "eagle3", eagle()), whole_target(tmp_path / "t")
    to_speculators(source, tmp_path / "b", target_model=big, **ID)
    to_drafter(tmp_path / "b", tmp_path / "c", to="eagle3", verb="convert")
    assert read(tmp_path / "c") == read(source)
    to_speculators(tmp_path / "c", tmp_path / "d", target_model=big, **ID)
    words = {
        "hidden_states": torch.randn(1, 6, 3 * 64, generator=torch.Generator().manual_seed(3)),
        "input_ids": torch.arange(6)[None],
        "document_ids": torch.zeros(1, 6, dtype=torch.long),
        "ttt_steps": 1,
    }
    first, second = load(tmp_path / "b"), load(tmp_path / "d")
    with torch.no_grad():
        assert all(torch.equal(a, b) for a, b in zip(logits(first, words), logits(second, words), strict=True))
    assert importlib.import_module("numpy").isfinite(logits(first, words)[0].numpy()).all()


def logits(model: Any, words: dict[str, Any]) -> list[Any]:
    """Outputs of the head during one pass."""
    found: list[Any] = []
    handle = model.lm_head.register_forward_hook(lambda module, given, made: found.append(made.detach()))
    with torch.no_grad():
        type(model).forward(model, **words)
    handle.remove()
    return found
