"""Plans: accounting, collisions, distribution over files, fingerprints."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from convertkit.checkpoint import Checkpoint, TensorRef, TensorSpec
from convertkit.containers import safetensors
from convertkit.conversion import plan as plan_module
from convertkit.conversion.plan import Draft, Drop, settle
from convertkit.conversion.units import Copy, Pack, planes_of
from convertkit.dialects.spelling import SPELLINGS
from convertkit.errors import ConvertError


def source(*specs: TensorSpec) -> Checkpoint:
    refs = {spec.name: TensorRef(spec, "model.safetensors", 8 * number) for number, spec in enumerate(specs)}
    return Checkpoint(Path("nowhere"), "safetensors", (), refs)


def copy(checkpoint: Checkpoint, name: str, to: str | None = None, bundle: str | None = None) -> Copy:
    return Copy(checkpoint.tensors[name], to or name, bundle or name)


def test_a_tensor_that_nothing_uses_is_an_internal_error() -> None:
    checkpoint = source(TensorSpec("a", "BF16", (2,)), TensorSpec("b", "BF16", (2,)))
    with pytest.raises(ConvertError) as caught:
        settle(checkpoint, Draft("test", {}, [copy(checkpoint, "a")]))
    assert (caught.value.code, caught.value.findings[0].where.tensor) == ("E_INTERNAL", "b")
    plan = settle(checkpoint, Draft("test", {}, [copy(checkpoint, "a")], [Drop("b", "not needed")]))
    assert list(plan.outputs) == ["a"]


def test_a_tensor_cannot_be_used_and_dropped() -> None:
    checkpoint = source(TensorSpec("a", "BF16", (2,)))
    with pytest.raises(ConvertError, match="a"):
        settle(checkpoint, Draft("test", {}, [copy(checkpoint, "a")], [Drop("a", "both")]))


def test_every_collision_is_reported() -> None:
    checkpoint = source(*(TensorSpec(name, "BF16", (2,)) for name in "abcd"))
    units = [copy(checkpoint, name, "x" if name in "ab" else "y") for name in "abcd"]
    with pytest.raises(ConvertError) as caught:
        settle(checkpoint, Draft("test", {}, units))
    assert [(item.code, item.where.tensor) for item in caught.value.findings] == [
        ("E_NAME_COLLISION", "x"),
        ("E_NAME_COLLISION", "y"),
    ]


def test_shards_fill_in_natural_order_and_bundles_stay_together() -> None:
    checkpoint = source(*(TensorSpec(f"layers.{i}.{leaf}", "U8", (40,)) for i in (10, 2, 1) for leaf in ("k", "q")))
    units = [copy(checkpoint, name, bundle=name.rsplit(".", 1)[0]) for name in checkpoint.tensors]
    plan = settle(checkpoint, Draft("test", {}, units), max_shard_bytes=100)
    held = [[spec.name for spec in file.header.order] for file in plan.files]
    assert held == [["layers.1.k", "layers.1.q"], ["layers.2.k", "layers.2.q"], ["layers.10.k", "layers.10.q"]]
    assert [file.name for file in plan.files] == [f"model-{i:05}-of-00003.safetensors" for i in (1, 2, 3)]
    index = json.loads(plan.documents["model.safetensors.index.json"])
    assert index["metadata"]["total_size"] == 240
    assert index["weight_map"]["layers.10.k"] == "model-00003-of-00003.safetensors"


@pytest.mark.parametrize(("size", "shards"), [(79, 3), (80, 3), (159, 3), (160, 2), (239, 2), (240, 1)])
def test_a_shard_may_be_filled_to_its_last_byte(size: int, shards: int) -> None:
    checkpoint = source(*(TensorSpec(f"layers.{i}.k", "U8", (80,)) for i in range(3)))
    units = [copy(checkpoint, name) for name in checkpoint.tensors]
    assert len(settle(checkpoint, Draft("test", {}, units), max_shard_bytes=size).files) == shards


def test_shards_are_cut_before_their_headers_are_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many small tensors, as packed experts have: by size they would fit into one file."""
    for module in (safetensors, plan_module):
        monkeypatch.setattr(module, "MAX_HEADER_BYTES", 1000)
    names = [f"layers.{i}.{leaf}" for i in range(40) for leaf in ("k", "q")]
    checkpoint = source(*(TensorSpec(name, "U8", (4,)) for name in names))
    units = [copy(checkpoint, name, bundle=name.rsplit(".", 1)[0]) for name in names]
    plan = settle(checkpoint, Draft("test", {}, units))
    assert len(plan.files) > 1
    assert all(len(file.header.prefix) <= 1008 for file in plan.files)
    held = [spec.name for file in plan.files for spec in file.header.order]
    assert sorted(held) == sorted(names)
    assert all(plan.file_of[f"layers.{i}.k"] == plan.file_of[f"layers.{i}.q"] for i in range(40))


def test_one_file_has_no_index() -> None:
    checkpoint = source(TensorSpec("a", "U8", (4,)))
    plan = settle(checkpoint, Draft("test", {}, [copy(checkpoint, "a")]))
    assert [file.name for file in plan.files] == ["model.safetensors"]
    assert not plan.documents


def test_a_unit_larger_than_a_shard_gets_its_own() -> None:
    checkpoint = source(TensorSpec("a", "U8", (10,)), TensorSpec("b", "U8", (500,)), TensorSpec("c", "U8", (10,)))
    plan = settle(checkpoint, Draft("test", {}, [copy(checkpoint, name) for name in "abc"]), max_shard_bytes=100)
    assert [[spec.name for spec in file.header.order] for file in plan.files] == [["a"], ["b"], ["c"]]


def test_the_fingerprint_follows_all_that_decides_the_output() -> None:
    checkpoint = source(TensorSpec("a", "BF16", (2, 16)))
    draft = Draft("test", {"x": 1}, [copy(checkpoint, "a")])
    first = settle(checkpoint, draft).fingerprint
    assert settle(checkpoint, draft).fingerprint == first
    others = [
        settle(checkpoint, replace(draft, parameters={"x": 2})).fingerprint,
        settle(checkpoint, replace(draft, verb="other")).fingerprint,
        settle(checkpoint, replace(draft, units=[copy(checkpoint, "a", "b")])).fingerprint,
        settle(checkpoint, replace(draft, documents={"config.json": b"{}"})).fingerprint,
        settle(checkpoint, draft, max_shard_bytes=7).fingerprint,
        settle(checkpoint, draft, slack_bytes=64).fingerprint,
        settle(source(TensorSpec("a", "F16", (2, 16))), draft).fingerprint,
    ]
    assert len({first, *others}) == len(others) + 1


def test_planes_have_the_names_dtypes_and_shapes_of_their_dialect() -> None:
    assert planes_of("m", SPELLINGS["modelopt"], 3, 32) == (
        TensorSpec("m.weight", "U8", (3, 16)),
        TensorSpec("m.weight_scale", "F8_E4M3", (3, 2)),
        TensorSpec("m.weight_scale_2", "F32", ()),
    )
    assert planes_of("m", SPELLINGS["compressed-tensors"], 3, 32) == (
        TensorSpec("m.weight_packed", "U8", (3, 16)),
        TensorSpec("m.weight_scale", "F8_E4M3", (3, 2)),
        TensorSpec("m.weight_global_scale", "F32", (1,)),
    )


def test_a_pack_lists_inputs_and_outputs_of_its_group() -> None:
    checkpoint = source(TensorSpec("g.weight", "BF16", (3, 32)), TensorSpec("u.weight", "BF16", (3, 32)))
    refs = tuple(checkpoint.tensors.values())
    unit = Pack(("g", "u"), refs, SPELLINGS["modelopt"], "amax", False, "g")
    assert unit.inputs == ("g.weight", "u.weight")
    assert [spec.name for spec in unit.outputs] == [
        f"{module}.{leaf}" for module in "gu" for leaf in ("weight", "weight_scale", "weight_scale_2")
    ]
