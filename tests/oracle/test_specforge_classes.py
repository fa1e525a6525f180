"""Drafters that SpecForge 0.2.0 trains: what its classes save, and that their conversions compute the same."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from convertkit.checks.expectations import KINDS_OF_DTYPE
from convertkit.containers.folder import open_checkpoint
from convertkit.conversion.identify import identify
from convertkit.layouts.expected import expected_tensors
from convertkit.verbs.drafters import to_dspark, to_speculators
from tests.drafters.make import DV, SLIDING3, drafter, eagle, read, specforge, specforge_peagle, target, write, zlab
from tests.oracle.test_drafter_classes import BLOCK, ID, apart, load, run_speculators, run_zlab

pytestmark = pytest.mark.oracle
torch: Any = pytest.importorskip("torch")
pytest.importorskip("specforge")

KINDS = {
    "dflash": ("dflash", "DFlashDraftModel", "Qwen3Config"),
    "dspark": ("dspark", "DSparkDraftModel", "Qwen3Config"),
    "eagle3": ("llama3_eagle", "LlamaForCausalLMEagle3", "LlamaConfig"),
    "peagle": ("peagle", "PEagleDraftModel", "LlamaConfig"),
}


def made(kind: str, config: dict[str, Any]) -> Any:
    """SpecForge's model of a config, with random weights."""
    module, name, family = KINDS[kind]
    torch.manual_seed(0)
    draft = importlib.import_module(f"specforge.modeling.draft.{module}")
    transformers = importlib.import_module("transformers")
    return getattr(draft, name)(getattr(transformers, family)(**json.loads(json.dumps(config)))).eval()


def loaded(kind: str, folder: Path) -> Any:
    """A folder in SpecForge's class, in FP32: every name, and no other."""
    model = made(kind, json.loads((folder / "config.json").read_text()))
    tensors = importlib.import_module("safetensors.torch").load_file(folder / "model.safetensors")
    model.load_state_dict(tensors, strict=True)
    return model


def heads(**inner: Any) -> dict[str, Any]:
    return specforge(dflash_config=inner)


CASES: list[tuple[str, dict[str, Any]]] = [
    ("dflash", zlab(block_size=8)),
    ("dflash", zlab(**SLIDING3, block_size=8)),
    *(("dspark", heads(markov_head_type=kind)) for kind in ("vanilla", "gated", "rnn")),
    ("dspark", heads(confidence_head_with_markov=False)),
    ("dspark", heads(enable_confidence_head=False)),
    ("eagle3", eagle(head_dim=16, rope_parameters={"rope_theta": 500000.0, "rope_type": "default"})),
    ("peagle", specforge_peagle()),
    ("peagle", specforge_peagle(num_hidden_layers=1)),
]


@pytest.mark.parametrize(("kind", "config"), CASES, ids=[f"{kind}-{at}" for at, (kind, _) in enumerate(CASES)])
def test_specforge_saves_what_the_table_says(kind: str, config: dict[str, Any], tmp_path: Path) -> None:
    made(kind, config).to(torch.bfloat16).save_pretrained(tmp_path / "a")
    saved = open_checkpoint(tmp_path / "a")
    identity = identify(saved)
    assert (identity.layout.name, identity.confidence) == (kind, "certain")
    words = dict(saved.config)
    if kind in ("eagle3", "peagle"):  # neither class states its taps: it is built for three
        words["eagle_aux_hidden_state_layer_ids"] = [2, 6, 9]
    table = expected_tensors(identity.layout, words)
    assert table is not None
    assert {name for name, row in table.items() if row.required} <= saved.tensors.keys() <= table.keys()
    for name, ref in saved.tensors.items():
        assert ref.spec.shape == table[name].shape, name
        assert ref.spec.dtype in KINDS_OF_DTYPE.get(table[name].dtype, (table[name].dtype,)), name


@pytest.mark.parametrize("inner", [{}, {"confidence_head_with_markov": False}], ids=["markov", "alone"])
def test_a_dspark_of_specforge_computes_the_same_in_speculators(inner: dict[str, Any], tmp_path: Path) -> None:
    """SpecForge's class before, speculators' class after: FP32, 5e-5 of the largest output, heads bit for bit."""
    source, big = drafter(tmp_path / "a", "dspark", heads(**inner)), target(tmp_path / "t")
    to_speculators(source, tmp_path / "b", target_model=big, **ID)
    first, second = loaded("dspark", source), load(tmp_path / "b")
    assert apart(run_zlab(first), run_speculators(second)) < 5e-5
    tokens = torch.arange(BLOCK)[None]
    hidden = torch.randn(1, BLOCK, 64, generator=torch.Generator().manual_seed(1))
    one = first.markov_head.project_bias(first.markov_head.get_prev_embeddings(tokens))
    assert torch.equal(one, second.markov_head.markov_w2(second.markov_head.markov_w1(tokens)))
    features = torch.cat([hidden, second.markov_head.markov_w1(tokens)], -1) if not inner else hidden
    confidence = first.predict_confidence(hidden, prev_token_ids=tokens)
    assert torch.equal(confidence, second.confidence_head.proj(features).squeeze(-1))


def test_a_dspark_of_specforge_becomes_deepspec_and_stays_itself(tmp_path: Path) -> None:
    """The tensors are the same ones, so that SpecForge's class loads them under SpecForge's config again."""
    source, big = drafter(tmp_path / "a", "dspark", specforge()), target(tmp_path / "t", weights=False)
    to_dspark(source, tmp_path / "b", target_model=big)
    back = write(tmp_path / "c", specforge(), read(tmp_path / "b"))
    assert torch.equal(run_zlab(loaded("dspark", source)), run_zlab(loaded("dspark", back)))


def test_an_eagle3_of_specforge_loads_strictly_in_speculators(tmp_path: Path) -> None:
    config = eagle(head_dim=16, rope_parameters={"rope_theta": 500000.0, "rope_type": "default"})
    source = drafter(tmp_path / "a", "eagle3", config)
    assert loaded("eagle3", source).lm_head.weight.shape == (DV, 64)
    to_speculators(source, tmp_path / "b", target_model=target(tmp_path / "t"), **ID)
    load(tmp_path / "b")
