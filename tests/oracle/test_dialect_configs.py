"""Configs that convertkit writes, in the readers of the packages that own the formats."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from convertkit.containers.folder import open_checkpoint
from convertkit.conversion.identify import identify
from convertkit.dialects.coverage import coverage_of
from convertkit.dialects.linears import dense_linears
from convertkit.dialects.reading import read_scheme
from convertkit.dialects.scheme import with_quantization
from convertkit.dialects.writing import write_quantization
from convertkit.layouts.tables import LAYOUTS_BY_NAME
from tests.dialects.tiny import ATTENTION, MLP, causal_lm, dflash, spec

pytestmark = pytest.mark.oracle

FIXTURES = Path(__file__).parents[2] / "fixtures"
DRAFTER, MODEL = LAYOUTS_BY_NAME["dflash"], LAYOUTS_BY_NAME["causal-lm"]
CT = "compressed-tensors"

PACKS = [
    (DRAFTER, dflash, MLP),
    (DRAFTER, dflash, (*MLP, *ATTENTION)),
    (DRAFTER, dflash, ("down_proj",)),
    (DRAFTER, dflash, ("q_proj", "k_proj", "v_proj")),
    (MODEL, causal_lm, MLP),
    (MODEL, causal_lm, (*MLP, *ATTENTION)),
]


@pytest.mark.parametrize(("layout", "make", "pack"), PACKS)
@pytest.mark.parametrize("activations", [False, True])
def test_compressed_tensors_own_model_reads_ours(
    layout: Any, make: Any, pack: tuple[str, ...], activations: bool
) -> None:
    quantization = pytest.importorskip("compressed_tensors.quantization")
    specs = make(pack, CT)
    packed = [item.name.removesuffix(".weight_packed") for item in specs if item.name.endswith(".weight_packed")]
    if activations:
        specs += [spec(f"{module}.input_global_scale", "F32", 1) for module in packed]
    block, _ = write_quantization(CT, specs, layout, kv_cache="FP8")
    config = quantization.QuantizationConfig.model_validate(block)
    (scheme,) = config.config_groups.values()
    weights = scheme.weights
    assert (weights.num_bits, weights.type, weights.strategy, weights.group_size) == (4, "float", "tensor_group", 16)
    assert (scheme.input_activations is not None) == activations
    assert (config.format, config.quantization_status) == ("nvfp4-pack-quantized", "compressed")
    assert config.kv_cache_scheme.num_bits == 8
    ours, again = json.loads(json.dumps(block)), config.model_dump(mode="json")
    for key in ("ignore", "format", "quant_method"):
        assert again[key] == ours[key]


@pytest.mark.parametrize(("layout", "make", "pack"), PACKS)
def test_compressed_tensors_selects_exactly_what_is_packed(layout: Any, make: Any, pack: tuple[str, ...]) -> None:
    """Its own matcher on real modules, and our reading of the same config, agree with the tensors."""
    torch = pytest.importorskip("torch")
    match = pytest.importorskip("compressed_tensors.utils.match")
    specs = make(pack, CT)
    packed = {item.name.removesuffix(".weight_packed") for item in specs if item.name.endswith(".weight_packed")}
    dense = set(dense_linears(specs, layout))
    block, _ = write_quantization(CT, specs, layout)
    (group,) = block["config_groups"].values()
    scheme, _ = read_scheme({"quantization_config": block}, {})
    assert scheme is not None
    coverage = coverage_of(scheme)
    linear = torch.nn.Linear(16, 16)
    for module in packed | dense:
        theirs = any(match.is_match(module, linear, target) for target in group["targets"]) and not any(
            match.is_match(module, linear, entry) for entry in block["ignore"]
        )
        assert theirs == (module in packed), module
        assert coverage.covers(module) == theirs, module


@pytest.mark.parametrize("kv_cache", [None, "FP8"])
@pytest.mark.parametrize("dialect", ["modelopt", "modelopt-mixed"])
@pytest.mark.parametrize(("layout", "make", "pack"), PACKS)
def test_modelopt_turns_our_document_into_our_block(
    layout: Any, make: Any, pack: tuple[str, ...], dialect: str, kv_cache: str | None
) -> None:
    export = pytest.importorskip("modelopt.torch.export.convert_hf_config")
    block, document = write_quantization(dialect, make(pack), layout, kv_cache=kv_cache)
    assert export.convert_hf_quant_config_format(document) == block


def test_transformers_loads_a_checkpoint_under_our_config(tmp_path: Path) -> None:
    """llm-compressor's own tensors under the config that convertkit writes for them: nothing missing, same values."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("compressed_tensors")
    source = FIXTURES / "llmcompressor-oneshot-tiny"
    checkpoint = open_checkpoint(source)
    specs = [ref.spec for ref in checkpoint.tensors.values()]
    block, _ = write_quantization(CT, specs, identify(checkpoint).layout)
    shutil.copytree(source, tmp_path / "a")
    (tmp_path / "a" / "config.json").write_text(json.dumps(with_quantization(checkpoint.config, block)))

    def load(folder: Path) -> Any:
        model, info = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="auto", output_loading_info=True)
        assert not info["missing_keys"]
        assert not info["unexpected_keys"]
        return model

    ours, theirs = load(tmp_path / "a"), load(source)
    ids = torch.arange(8)[None]
    with torch.no_grad():
        assert torch.equal(ours(ids).logits, theirs(ids).logits)
