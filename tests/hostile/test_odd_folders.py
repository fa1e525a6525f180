"""Folders whose JSON, names or sizes are odd: each is refused once, briefly, with its code, whatever reads it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from convertkit.checkpoint import TensorSpec
from convertkit.containers.folder import open_checkpoint
from convertkit.containers.safetensors import encode_header
from convertkit.conversion.identify import identify
from convertkit.errors import MAX_FAULTS, MAX_MESSAGE, ConvertError, finding
from convertkit.verbs.audit import audit
from tests.dialects.tiny import DFLASH_CONFIG


def fill(root: Path, specs: list[TensorSpec], config: Any = None, name: str = "model.safetensors") -> Path:
    header = encode_header(specs)
    payload = np.full(sum(spec.size_bytes for spec in specs), 0x38, np.uint8).tobytes()
    with open(os.path.join(os.fsencode(root), os.fsencode(name)), "wb") as stream:
        stream.write(header.prefix + payload)
    (root / "config.json").write_text(json.dumps({} if config is None else config))
    return root


def dense(root: Path, config: Any = None, name: str = "model.safetensors") -> Path:
    return fill(root, [TensorSpec("layers.0.mlp.down_proj.weight", "BF16", (4, 16))], config, name)


def refused(work: Callable[[], object]) -> ConvertError:
    with pytest.raises(ConvertError) as caught:
        work()
    return caught.value


@pytest.mark.parametrize(
    "config",
    [{"note": "\ud800"}, {"k\udc00": 1}, {"a": [["\udfff"]]}, {"n": 10**101}, {"n": [-(10**4200)]}],
    ids=["value", "key", "nested", "long", "very long"],
)
def test_json_that_no_file_could_hold_again_is_refused(tmp_path: Path, config: Any) -> None:
    assert refused(lambda: open_checkpoint(dense(tmp_path, config))).code == "E_JSON"


def test_a_whole_surrogate_pair_is_one_character(tmp_path: Path) -> None:
    dense(tmp_path)
    (tmp_path / "config.json").write_text(r'{"note": "\ud83d\ude00"}')
    assert open_checkpoint(tmp_path).config == {"note": "😀"}


@pytest.mark.parametrize("section", ["", "text_config", "transformer_layer_config", "dflash_config", "eagle_config"])
@pytest.mark.parametrize("key", ["num_hidden_layers", "hidden_size"])
def test_numbers_that_would_be_counted_up_to_are_limited(tmp_path: Path, section: str, key: str) -> None:
    fields = {key: 10**12}
    dense(tmp_path, {**DFLASH_CONFIG, **({section: fields} if section else fields)})
    began = time.monotonic()
    assert refused(lambda: audit(tmp_path)).code == "E_CONFIG"
    assert time.monotonic() - began < 2


@pytest.mark.parametrize("method", [[], {}, 1, True, ["modelopt"]])
def test_a_quant_method_of_the_wrong_kind_is_a_finding(tmp_path: Path, method: Any) -> None:
    found = identify(open_checkpoint(dense(tmp_path, {"quantization_config": {"quant_method": method}})))
    assert [item.code for item in found.errors] == ["E_QCONFIG"]


@pytest.mark.parametrize("form", [[], {}, 1])
def test_a_format_of_the_wrong_kind_is_a_finding(tmp_path: Path, form: Any) -> None:
    block = {"quant_method": "compressed-tensors", "format": form, "config_groups": {}}
    found = identify(open_checkpoint(dense(tmp_path, {"quantization_config": block})))
    assert {item.code for item in found.errors} == {"E_QCONFIG"}


@pytest.mark.parametrize("leading", ["", "."])
def test_planes_without_a_module_name_are_refused(tmp_path: Path, leading: str) -> None:
    specs = [
        TensorSpec(leading + "weight_packed", "U8", (4, 16)),
        TensorSpec(leading + "weight_scale", "F8_E4M3", (4, 2)),
        TensorSpec(leading + "weight_global_scale", "F32", (1,)),
    ]
    found = identify(open_checkpoint(fill(tmp_path, specs)))
    assert [item.code for item in found.errors] == ["E_PACK_MISSING"]


@pytest.mark.parametrize("name", ["a\\b", "C:a", "a\nb", b"\xff", "\u202ea", "a\x7f"])
def test_weight_files_that_no_manifest_could_list_are_refused(tmp_path: Path, name: str | bytes) -> None:
    dense(tmp_path, name=os.fsdecode(name) + ".safetensors")
    error = refused(lambda: open_checkpoint(tmp_path))
    assert (error.code, error.status) == ("E_NAME_UNSAFE", 3)


def test_a_file_that_is_wrong_throughout_is_described_by_a_few_of_its_faults(tmp_path: Path) -> None:
    many = {f"t{i}": {"dtype": "Q8", "shape": [0], "data_offsets": [0, 0]} for i in range(100_000)}
    text = json.dumps(many).encode()
    (tmp_path / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text)
    assert len(refused(lambda: open_checkpoint(tmp_path)).findings) == MAX_FAULTS


@pytest.mark.parametrize("shards", [1, 100_000])
def test_so_is_an_index_that_is_wrong_throughout(tmp_path: Path, shards: int) -> None:
    dense(tmp_path, name="s0.safetensors")
    weight_map = {f"t{i}": f"s{i % shards}.safetensors" for i in range(100_000)}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert len(refused(lambda: open_checkpoint(tmp_path)).findings) <= MAX_FAULTS


def test_messages_are_short_and_cannot_steer_a_terminal() -> None:
    item = finding("E_JSON", "error", "\x1b[31m\n\u202e" + "x" * 10**6, fix="\x07" + "y" * 10**6)
    assert item.message.startswith(r"\x1b[31m\n\u202ex")
    assert item.fix.startswith(r"\x07y")
    assert max(len(item.message), len(item.fix)) < MAX_MESSAGE + 50
