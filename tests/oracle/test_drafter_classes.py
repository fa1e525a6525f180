"""Drafter layouts against the real classes: what they save, what they load, what they compute."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from convertkit.checks.expectations import KINDS_OF_DTYPE
from convertkit.containers.folder import open_checkpoint
from convertkit.layouts.expected import expected_tensors
from convertkit.layouts.tables import LAYOUTS_BY_NAME
from convertkit.verbs.drafters import to_dflash, to_dspark, to_speculators
from tests.drafters.make import (
    DV,
    SLIDING3,
    V,
    config_of,
    drafter,
    eagle,
    read,
    speculators,
    target,
    write,
    zlab,
    zlab2,
)

pytestmark = pytest.mark.oracle
torch: Any = pytest.importorskip("torch")

ID = {"target_id": "Qwen/Qwen3-8B"}
CLASSES = {
    "dflash": ("dflash", "DFlashDraftModel"),
    "dflash2": ("dflash2", "DFlash2DraftModel"),
    "dspark": ("dspark", "DSparkDraftModel"),
    "eagle3": ("eagle3", "Eagle3DraftModel"),
    "peagle": ("peagle", "PEagleDraftModel"),
    "mtp": ("mtp", "MTPDraftModel"),
}
LENT = {"embed_tokens.weight", "lm_head.weight", "verifier_lm_head.weight", "verifier_norm.weight"}
"""What a drafter takes from its target, or rebuilds from it."""


def speculator(config: dict[str, Any]) -> Any:
    """The speculators model of a config, with random weights, computing on the CPU."""
    pytest.importorskip("speculators")
    base = importlib.import_module("speculators").SpeculatorModelConfig
    module, name = CLASSES[config["speculators_model_type"]]
    alone = {**config["speculators_config"], "verifier": {"name_or_path": None, "architectures": []}}
    made = base.from_dict({**config, "speculators_config": alone})
    made.transformer_layer_config._attn_implementation = "eager"
    torch.manual_seed(0)
    model = getattr(importlib.import_module(f"speculators.models.{module}"), name)(made).eval()
    if module == "mtp":
        del model.verifier_lm_head  # as loading the target's weights does (``mtp/core.py`` load_verifier_weights)
    return model


def load(folder: Path) -> Any:
    """A converted drafter in its class, in FP32: no name unexpected, none missing but what the target lends."""
    model = speculator(config_of(folder))
    tensors = importlib.import_module("safetensors.torch").load_file(folder / "model.safetensors")
    result = model.load_state_dict(tensors, strict=False)
    assert result.unexpected_keys == []
    assert set(result.missing_keys) <= LENT
    return model


VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *(("dflash", {"draft_vocab_size": words, "layer": layers}) for words in (V, DV) for layers in ({}, SLIDING3)),
    ("dflash", {"layer": {"attention_bias": True, "num_hidden_layers": 1, "layer_types": ["full_attention"]}}),
    ("dflash2", {}),
    ("dflash2", {"conv_kernel_size": 3, "conv_group_size": 8, "selector_rank": 4}),
    *(
        ("dspark", {"draft_vocab_size": words, "markov_head_type": head})
        for words in (V, DV)
        for head in ("vanilla", "gated", "rnn")
    ),
    ("dspark", {"enable_confidence_head": False}),
    ("dspark", {"confidence_head_with_markov": False}),
    ("dspark", {"markov_rank": 0, "confidence_head_with_markov": False}),
    ("eagle3", {"draft_vocab_size": DV}),
    ("eagle3", {"draft_vocab_size": V, "fc_norm": True, "norm_output": True}),
    ("eagle3", {"draft_vocab_size": DV, "norm_before_fc": True, "layer": {"model_type": "llama"}}),
    ("eagle3", {"draft_vocab_size": DV, "layer": {"num_hidden_layers": 1, "layer_types": ["full_attention"]}}),
    ("peagle", {"draft_vocab_size": DV}),
    ("peagle", {"draft_vocab_size": V, "layer": {"num_hidden_layers": 1, "layer_types": ["full_attention"]}}),
    ("mtp", {}),
]


def saved_by(model: Any, folder: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    model.to(torch.bfloat16).save_pretrained(folder)
    return {name: (ref.spec.dtype, ref.spec.shape) for name, ref in open_checkpoint(folder).tensors.items()}


@pytest.mark.parametrize(
    ("kind", "over"), VARIANTS, ids=lambda value: value if isinstance(value, str) else json.dumps(value)
)
def test_speculators_saves_what_the_table_says(kind: str, over: dict[str, Any], tmp_path: Path) -> None:
    config = speculators(kind, **json.loads(json.dumps(over)))
    saved = saved_by(speculator(config), tmp_path / "a")
    table = expected_tensors(LAYOUTS_BY_NAME[f"speculators-{kind}"], config)
    assert table is not None
    assert {name for name, row in table.items() if row.required} <= saved.keys() <= table.keys()
    for name, (dtype, shape) in saved.items():
        assert shape == table[name].shape, name
        assert dtype in KINDS_OF_DTYPE.get(table[name].dtype, (table[name].dtype,)), name


@pytest.mark.parametrize("layers", [1, 3, 5])
@pytest.mark.parametrize("kind", ["dflash", "dflash2"])
def test_zlab_saves_what_the_table_says(kind: str, layers: int, tmp_path: Path) -> None:
    module = pytest.importorskip("dflash.model")
    config = {"dflash": zlab, "dflash2": zlab2}[kind](num_hidden_layers=layers)
    config["layer_types"] = config["layer_types"][:1] * layers
    made = importlib.import_module("transformers").Qwen3Config(**config)
    saved = saved_by(getattr(module, config["architectures"][0])(made), tmp_path / "a")
    table = expected_tensors(LAYOUTS_BY_NAME[kind], config)
    assert table is not None
    bare = {name.removesuffix(".weight") if "codebook" in name else name: row for name, row in saved.items()}
    assert bare == {name: ("BF16", row.shape) for name, row in table.items() if row.required}


@pytest.mark.parametrize(
    ("layout", "config"),
    [("dflash", zlab()), ("dflash", zlab(**SLIDING3, is_causal=False)), ("dflash2", zlab2()), ("eagle3", eagle())],
    ids=["dflash", "dflash sliding", "dflash2", "eagle3"],
)
def test_conversions_to_speculators_load_strictly(layout: str, config: dict[str, Any], tmp_path: Path) -> None:
    source = drafter(tmp_path / "a", layout, config)
    to_speculators(source, tmp_path / "b", target_model=target(tmp_path / "t"), **ID)
    load(tmp_path / "b")


@pytest.mark.parametrize("words", [V, DV], ids=["full", "reduced"])
def test_a_dspark_computes_the_same_after_a_round_trip(words: int, tmp_path: Path) -> None:
    source = tmp_path / "a"
    saved_by(speculator(speculators("dspark", draft_vocab_size=words)), source)
    if words != V:  # buffers of a new model are empty: give it a map that makes sense
        write(tmp_path / "m", speculators("dspark", draft_vocab_size=words), {**read(source), **_maps()})
        source = tmp_path / "m"
    (source / "config.json").write_text(json.dumps(speculators("dspark", draft_vocab_size=words)))
    big = target(tmp_path / "t")
    to_dspark(source, tmp_path / "b", target_model=big)
    to_speculators(tmp_path / "b", tmp_path / "c", target_model=big, **ID)
    first, second = load(source), load(tmp_path / "c")
    hidden = torch.randn(1, 8, 64, generator=torch.Generator().manual_seed(1))
    tokens = torch.arange(8)[None]
    for model in (first, second):
        assert model.confidence_head is not None
    assert torch.equal(run_speculators(first), run_speculators(second))
    one, two = (model.markov_head.markov_w2(model.markov_head.markov_w1(tokens)) for model in (first, second))
    assert torch.equal(one, two)
    features = torch.cat([hidden, first.markov_head.markov_w1(tokens)], -1)
    assert torch.equal(first.confidence_head.proj(features), second.confidence_head.proj(features))


def _maps() -> dict[str, Any]:
    from tests.drafters.make import maps

    return maps()


CONTEXT, BLOCK = 12, 8


def inputs(taps: int = 3) -> tuple[Any, Any]:
    """Features of the target [1, context, taps * 64] and embeddings of the block [1, 8, 64]."""
    generator = torch.Generator().manual_seed(2)
    return torch.randn(1, CONTEXT, taps * 64, generator=generator), torch.randn(1, BLOCK, 64, generator=generator)


def run_zlab(model: Any) -> Any:
    features, noise = inputs()
    with torch.no_grad():
        positions = torch.arange(CONTEXT + BLOCK)[None]
        return model(position_ids=positions, noise_embedding=noise, target_hidden=features)


def run_speculators(model: Any) -> Any:
    """The same block in a speculators model, behind its own mask for one anchor right after the context."""
    features, noise = inputs()
    padding = torch.zeros(1, BLOCK, features.shape[-1])
    whole = torch.cat([features, padding], 1)  # the mask hides what lies at and behind the anchor
    words = {"total_seq_len": CONTEXT + BLOCK, "anchor_positions": torch.tensor([CONTEXT]), "device": "cpu"}
    documents = torch.zeros(1, CONTEXT + BLOCK, dtype=torch.long)
    full = model._create_attention_mask(document_ids=documents, **words)
    sliding = model._create_attention_mask(
        document_ids=documents,
        sliding_window=model.sliding_window,
        sliding_window_non_causal=model.sliding_window_non_causal,
        **words,
    )
    positions = torch.cat([torch.arange(CONTEXT + BLOCK), torch.arange(CONTEXT, CONTEXT + BLOCK)])[None]
    with torch.no_grad():
        context = model.hidden_norm(model.fc(whole))
        embeddings = model.rotary_emb(context, positions)
        for index, layer in enumerate(model.layers):
            noise = layer(
                hidden_states=noise,
                target_hidden=context,
                attention_mask=sliding if index in model.sliding_window_indices else full,
                position_ids=positions,
                use_cache=False,
                position_embeddings=embeddings,
            )
        return model.norm(noise)


def apart(one: Any, other: Any) -> float:
    """The largest difference, in units of the largest output."""
    return float((one - other).abs().max() / one.abs().max())


def zlab_model(folder: Path) -> Any:
    module = pytest.importorskip("dflash.model")
    name = config_of(folder)["architectures"][0]
    model, info = getattr(module, name).from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    assert {key: value for key, value in info.items() if value} == {}
    return model.eval()


def sources() -> Iterator[Any]:
    causal = {**SLIDING3, "sliding_window": 64}
    yield pytest.param("dflash", zlab(), id="dflash")
    yield pytest.param("dflash", zlab(**causal), id="dflash, windows, causal")
    yield pytest.param("dflash", zlab(**causal, is_causal=False), id="dflash, windows, not causal")
    yield pytest.param(
        "dflash", zlab(rope_parameters={"rope_theta": 500.0, "rope_type": "default"}), id="dflash, theta"
    )
    yield pytest.param("dflash2", zlab2(sliding_window=64), id="dflash2")


@pytest.mark.parametrize(("layout", "config"), list(sources()))
def test_a_drafter_computes_the_same_in_both_projects(layout: str, config: dict[str, Any], tmp_path: Path) -> None:
    """z-lab's class before, speculators' class after, z-lab's class after the way back: FP32. The two attend
    by different kernels, hence 5e-5 of the largest output."""
    source = drafter(tmp_path / "a", layout, config)
    big = target(tmp_path / "t")
    to_speculators(source, tmp_path / "b", target_model=big, **ID)
    to_dflash(tmp_path / "b", tmp_path / "c", target_model=big)
    first, last = run_zlab(zlab_model(source)), run_zlab(zlab_model(tmp_path / "c"))
    assert torch.equal(first, last)
    middle = run_speculators(load(tmp_path / "b"))
    assert apart(first, middle) < 5e-5


def test_causality_and_rope_matter_to_the_comparison(tmp_path: Path) -> None:
    """The comparison above sees a causality that is lost, and one frequency that is a hundredth off."""
    source = drafter(tmp_path / "a", "dflash", zlab(**{**SLIDING3, "sliding_window": 64}, is_causal=False))
    to_speculators(source, tmp_path / "b", target_model=target(tmp_path / "t"), **ID)
    model = load(tmp_path / "b")
    first = run_zlab(zlab_model(source))
    model.sliding_window_non_causal = False
    assert apart(first, run_speculators(model)) > 1e-2
    model.sliding_window_non_causal = True
    model.rotary_emb.inv_freq[1] *= 1.01
    assert apart(first, run_speculators(model)) > 5e-4
