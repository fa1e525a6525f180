"""What the tests of the engines' tables share: sources of made checkpoints, golden files, loads against runs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from convertkit.engines.files import INDEX, SINGLE, chosen
from convertkit.engines.model import Load, Outcome
from convertkit.engines.source import Source
from tests.engines.drafters import Draft
from tests.engines.target_cases import specs_of

FOLDER = Path(__file__).parent / "golden"

DTYPES = {"BF16": "bfloat16", "F32": "float32", "U8": "uint8", "F8_E4M3": "float8_e4m3fn"}
"""What torch calls the dtypes of parameters."""

CACHE = re.compile(r"\.attn\.([qkv]_scale|[qkv]_zero_point|prob_scale)$")
"""Scales of the KV cache, which have defaults."""


def read_golden(name: str) -> dict[str, Any]:
    """A file of ``golden/``: ``versions``, and ``cases`` by slug."""
    found: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text())
    return found


def source_of(made: Draft, engine: str = "vllm") -> Source:
    """A drafter as a loader iterates over it: file by file, names in order; without files that are lost."""
    by_name = {name: made.files.get(name, SINGLE) for name in made.specs}
    there = sorted(set(by_name.values()) - set(made.lost_files))
    choice = chosen(engine, there, {INDEX: {"weight_map": by_name, "metadata": {}}} if made.index else {})
    ordered = sorted((file, name) for name, file in by_name.items() if file in (choice.files or there))
    specs = tuple(made.specs[name] for _, name in ordered)
    empty = made.quant_config == {}
    return Source(specs, made.config, made.quant_config or {}, None, choice.refused, empty)


def target_source(made: Draft) -> Source:
    """A target, whole."""
    return Source(specs_of(made), made.config, made.quant_config or {})


def by_outcome(load: Load, *outcomes: Outcome) -> set[str]:
    """Names of the parameters with one of these outcomes."""
    return {item.parameter.name for item in load.parameters if item.outcome in outcomes}


def check_start(load: Load, run: dict[str, Any]) -> bool:
    """Assert that a load is refused where the loader raised, at the same stage; whether there is more to compare."""
    assert (load.status != "refused") == run["loads"], (load.refusals[:1], run.get("error"))
    if not run["loads"]:
        assert load.refusals[0].stage == run["stage"]
    return bool(run["loads"])


def check_holes(load: Load, run: dict[str, Any], unread: set[str], derived: str = "\n") -> bool:
    """Assert that what stays open and which stored tensors are not used is what the loader showed; whether there is a
    hole. ``unread`` parameters may stay open; those that end in ``derived`` are computed after loading."""
    for outcome in ("unfilled", "partly filled"):
        theirs = {name for name in run[outcome] if not name.endswith(derived)}
        assert by_outcome(load, outcome) == theirs - unread
    assert sorted(stored for stored, fate in load.fates.items() if fate.into is None) == run["unused"]
    return bool(by_outcome(load, "unfilled", "partly filled"))


def agrees(load: Load, whole: Load, run: Any) -> bool:
    """Whether a target is refused, or has holes that the whole one has not, where its run (``kind_cases.told``) was."""
    if (load.status == "refused") != (isinstance(run, str) and run != "loads"):
        return False
    open_now, open_then = (by_outcome(one, "unfilled", "partly filled") for one in (load, whole))
    told = load.parameters and load.status != "refused"
    return not told or bool(open_now - open_then) == bool(isinstance(run, list) and run)


def named_rules(loads: list[Load]) -> set[str]:
    """Every rule that some of the loads rest on."""
    refused = {item.rule for load in loads for item in load.refusals}
    wrong = {item.rule for load in loads for item in load.wrongs}
    return refused | wrong | {item.rule for load in loads for item in load.notes}
