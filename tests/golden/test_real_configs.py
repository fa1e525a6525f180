"""The configs convertkit writes for the tensors of real exports, against the configs of those exports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from convertkit.containers.folder import open_checkpoint
from convertkit.conversion.identify import identify
from convertkit.dialects.writing import write_quantization

FIXTURES = Path(__file__).parents[2] / "fixtures"


def written(name: str, dialect: str) -> tuple[dict[str, Any], dict[str, Any] | None, dict[str, Any], dict[str, Any]]:
    """Our block and document, and those of the export, for the same tensors."""
    checkpoint = open_checkpoint(FIXTURES / name)
    specs = [ref.spec for ref in checkpoint.tensors.values()]
    block, document = write_quantization(dialect, specs, identify(checkpoint).layout)
    return block, document, dict(checkpoint.config["quantization_config"]), dict(checkpoint.quant_config)


@pytest.mark.parametrize("name", ["modelopt-export-tiny", "modelopt-export-w4a4-tiny"])
def test_uniform_modelopt_equals_the_export(name: str) -> None:
    block, document, theirs, their_document = written(name, "modelopt")
    assert document == their_document
    assert block == theirs


def test_mixed_modelopt_equals_the_export() -> None:
    block, document, theirs, their_document = written("modelopt-export-mixed-tiny", "modelopt-mixed")
    assert document == their_document
    groups, their_groups = block.pop("config_groups"), theirs.pop("config_groups")
    assert block == theirs
    assert sorted(map(json.dumps, map(_sorted, groups.values()))) == sorted(
        map(json.dumps, map(_sorted, their_groups.values()))
    )  # the export numbers its groups in the order of layers


def _sorted(value: Any) -> Any:
    return json.loads(json.dumps(value, sort_keys=True))


@pytest.mark.parametrize("name", ["llmcompressor-oneshot-tiny", "llmcompressor-oneshot-w4a4-tiny"])
def test_compressed_tensors_says_what_the_export_says(name: str) -> None:
    block, document, theirs, _ = written(name, "compressed-tensors")
    assert document is None
    for key in ("quant_method", "format", "quantization_status", "ignore", "kv_cache_scheme"):
        assert block[key] == theirs[key], key
    (group,), (their_group,) = block["config_groups"].values(), theirs["config_groups"].values()
    assert group["targets"] == their_group["targets"]
    assert group["format"] == their_group["format"]
    for part in ("weights", "input_activations"):
        ours, other = group[part], their_group[part]
        assert (ours is None) == (other is None)
        for key in ("num_bits", "type", "strategy", "group_size", "symmetric", "dynamic", "scale_dtype", "zp_dtype"):
            assert ours is None or ours[key] == other[key], key
