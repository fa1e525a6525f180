"""Our model of vLLM 0.33 against what vLLM 0.33.0's own loader did with every case (``golden/vllm-0.33.0.json``)."""

from __future__ import annotations

from functools import cache

import pytest

from convertkit.checkpoint import TensorSpec
from convertkit.engines.files import stopped_at_files
from convertkit.engines.model import Load
from convertkit.engines.registry import RULES
from convertkit.engines.vllm_load import load_drafter
from convertkit.engines.vllm_params import Target
from tests.engines.cases import Case, build, cases, slug
from tests.engines.drafters import H, N, V, draft
from tests.engines.loads import by_outcome, check_holes, check_start, named_rules, read_golden, source_of

GOLDEN = read_golden("vllm-0.33.0")
CASES = dict(cases())

BEYOND_LOADING = {
    "tap beyond target": "E_TAPS",
    "tap twice": "E_TAPS",
    "taps not rising": "E_TAPS",
    "no mask token": "E_MASK_TOKEN",
    "mask token beyond the vocabulary": "E_MASK_TOKEN",
    "no head": "E_VOCABULARY",
    "no head, eagle3": "E_VOCABULARY",
    "tokens are not block - 1": "E_DRAFT_TOKENS",
    "anchor of dflash": "E_DRAFT_TOKENS",
    "anchor not stated": "E_DRAFT_TOKENS",
    "target hidden size": "E_PAIR",
    "output multiplier nested": "E_READER_DIFFERS",
}
"""Cases that load whole and go wrong at the first step, or in what is drafted: nothing that a loader shows."""


@cache
def loaded(name: str, ranks: int = 1) -> Load:
    source = source_of(build(CASES[name]))
    return stopped_at_files(load_drafter(source, Target(N, V, H), ranks), source)


def test_every_case_was_run() -> None:
    assert {slug(name) for name in CASES} == set(GOLDEN["cases"])
    assert len(CASES) > 300


@pytest.mark.parametrize("name", CASES)
def test_agrees_with_the_loader(name: str) -> None:
    load, run = loaded(name), GOLDEN["cases"][slug(name)]
    if load.unknown:
        assert name in UNKNOWN
        return
    if not check_start(load, run):
        return
    holes = check_holes(load, run, by_outcome(load, "defaulted", "borrowed"))
    assert by_outcome(load, "borrowed") == set(run["lent"])
    assert load.status == ("wrong" if holes or name in BEYOND_LOADING or name in CUT_OR_DROPPED else "loads")


UNKNOWN = frozenset({"gemma dspark", "ct, unknown method"})
"""Outside of what the tables describe: the verdict is unknown, whatever the loader does."""

CUT_OR_DROPPED = frozenset(
    name
    for name in CASES
    if name.split(", ")[-1] in ("stray bias", "gate too tall")
    or name
    in (
        "bias stored, not stated",
        "o_proj too wide",
        "q twice",
        "layer 0 twice",
        "head with a bias",
        "bias of a norm",
        "bias below a parameter",
        "eagle qwen3 with a bias",
    )
)
"""Cases in which the loader takes a part of a tensor, or none of one that the model needs."""


@pytest.mark.parametrize("name", BEYOND_LOADING)
def test_what_no_loader_shows(name: str) -> None:
    assert BEYOND_LOADING[name] in {item.code for item in loaded(name).wrongs}


@pytest.mark.parametrize("name", [name for name in CASES if name.endswith(", whole")])
def test_parameters_have_the_shapes_of_the_built_model(name: str) -> None:
    shapes = GOLDEN["cases"][slug(name)]["shapes"]
    ours = {item.parameter.name: list(item.parameter.shape) for item in loaded(name).parameters}
    assert ours == shapes


@pytest.mark.parametrize("name", [name for name in CASES if name.endswith(", whole")])
def test_whole_drafters_load(name: str) -> None:
    load = loaded(name)
    assert (load.status, load.wrongs, load.refusals) == ("loads", (), ())
    assert all(not note.warning for note in load.notes)


def test_every_rule_has_a_source() -> None:
    loads = [loaded(name) for name in CASES]
    named = named_rules(loads) | {
        item.parameter.rule for load in loads for item in load.parameters if item.parameter.rule
    }
    assert named <= set(RULES)
    assert all(RULES[name].source.file for name in named)


def test_ranks_divide_what_is_divided() -> None:
    whole = source_of(build(Case("dflash2", lambda made: None)))
    two = {item.parameter.name: item.parameter.shape for item in load_drafter(whole, Target(N, V, H), 2).parameters}
    assert two["model.layers.0.self_attn.qkv_proj.weight"] == (64, 64)
    assert two["model.layers.0.mlp.gate_up_proj.weight"] == (96, 64)
    assert two["model.layers.0.mlp.down_proj.weight"] == (64, 48)
    assert two["model.fc.weight"] == (64, 192)
    four = load_drafter(whole, Target(N, V, H), 4)
    assert four.status == "loads"
    assert {item.parameter.name: item.parameter.shape for item in four.parameters}[
        "model.layers.0.self_attn.qkv_proj.weight"
    ] == (48, 64)
    three = load_drafter(whole, Target(N, V, H), 3)
    assert (three.status, three.refusals[0].rule) == ("refused", "vllm.tp-divides")


LEAVES = ("self_attn.q_proj.weight.bias", "mlp.up_proj.weight_scale.k_scale", "mlp.gate_proj.x.bias")


@pytest.mark.parametrize("kind", ["dflash", "dspark", "speculators-eagle3"])
@pytest.mark.parametrize("leaf", LEAVES)
def test_names_inside_a_part_of_a_fused_linear_are_refused(kind: str, leaf: str) -> None:
    """Run against vLLM 0.33.0: ``linear.py:1349`` looks for a module of that name, whatever the ending."""
    made = draft(kind)
    name = f"layers.0.{leaf}"
    made.specs = {**made.specs, name: TensorSpec(name, "BF16", (H,))}
    load = load_drafter(source_of(made), Target(N, V, H))
    assert (load.status, load.refusals[0].tensor) == ("refused", name)
