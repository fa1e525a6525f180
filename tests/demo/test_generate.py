"""Generated checkpoints: pinned bytes, published counts, structure, memory."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from convertkit.containers.folder import open_checkpoint
from convertkit.conversion.identify import identify
from convertkit.conversion.selection import choose
from convertkit.demo.__main__ import main
from convertkit.demo.drafters import KINDS, config_of, tensors_of
from convertkit.demo.generate import generate, grid_planes, natural
from convertkit.errors import ConvertError

PINNED_FILES = {
    "dflash2": "e5b3efcb7c913c5e",
    "dflash": "535e04e5a3fe00d5",
    "dflash-april": "23c178caa116dcf4",
    "dflash-27b": "3ca0a599e992dceb",
    "qwen3": "3b2c48401b73f795",
    "qwen3-moe": "d1670898b94e6ae4",
    "qwen3.5-moe": "7a0d389921b63c83",
    "qwen3.5-moe-unfused": "567207b3c496915a",
    "target": "6922ceed60dddcb6",
    "dflash2 grid": "1cf4db642d706b3a",
    "qwen3 grid": "705a150b482ec70e",
    "qwen3.5-moe-unfused grid": "5a1a2babf0290302",
    "qwen3 F16": "98de3d741b2ce194",
    "qwen3 F32": "919f5f65ee57bac3",
    "dflash2 grid F32": "4ea5b2d53e7a49e9",
}
"""Kind, grid and dtype: first half of the SHA-256 of the weight file at tiny scale, seed 0."""

COUNTS = {
    ("dflash2", "full"): (81, 1_924_404_480),
    ("dflash2", "tiny"): (15 * 5 + 6, 194_976),
    ("dflash-april", "full"): (91, 473_995_264),
    ("dflash", "full"): (91, 486_578_176),
    ("dflash-27b", "full"): (11 * 5 + 3, 1_730_213_120),
}


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("words", PINNED_FILES)
def test_bytes_are_pinned(words: str, tmp_path: Path) -> None:
    kind, *rest = words.split()
    dtype = rest[-1] if rest and rest[-1].startswith("F") else "BF16"
    generate(kind, tmp_path / "a", on_grid="grid" in rest, dtype=dtype)
    assert sha256(tmp_path / "a" / "model.safetensors")[:16] == PINNED_FILES[words]


@pytest.mark.parametrize(("kind", "scale"), COUNTS)
def test_counts_are_the_published_ones(kind: str, scale: str) -> None:
    made = tensors_of(kind, scale)
    tensors, parameters = COUNTS[kind, scale]
    assert len(made) == tensors
    assert len({tensor.spec.name for tensor in made}) == tensors
    assert sum(tensor.spec.elements for tensor in made) == parameters


def test_full_dflash2_has_fifteen_linears_to_pack() -> None:
    packed = [tensor.spec for tensor in tensors_of("dflash2", "full") if tensor.grid]
    assert sorted({spec.shape for spec in packed}) == [(5120, 17408), (17408, 5120)]
    assert len(packed) == 15
    assert all(".mlp." in spec.name for spec in packed)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_opens_without_findings(kind: str, tmp_path: Path) -> None:
    made = generate(kind, tmp_path / "a")
    opened = open_checkpoint(tmp_path / "a")
    assert opened.findings == ()
    assert opened.side_files == ("LICENSE", "NOTICE", "README.md")
    assert opened.config == config_of(kind, "tiny")
    assert opened.weight_bytes == made.tensor_bytes
    assert {ref.spec for ref in opened.tensors.values()} == {tensor.spec for tensor in tensors_of(kind, "tiny")}


def test_file_equals_save_file(tmp_path: Path) -> None:
    generate("qwen3.5-moe", tmp_path / "a")
    source = tmp_path / "a" / "model.safetensors"
    save_file(load_file(source), tmp_path / "b.safetensors", {"format": "pt"})
    assert (tmp_path / "b.safetensors").read_bytes() == source.read_bytes()


def test_shards_hold_the_same_tensors_in_natural_order(tmp_path: Path) -> None:
    generate("qwen3-moe", tmp_path / "one")
    made = generate("qwen3-moe", tmp_path / "cut", max_shard_bytes=60_000)
    index = json.loads((tmp_path / "cut" / "model.safetensors.index.json").read_text())
    files = sorted(set(index["weight_map"].values()))
    assert len(files) == int(files[0].split("-")[-1].split(".")[0]) > 2
    assert index["metadata"] == {"total_size": made.tensor_bytes}
    cut = {name: tensor for file in files for name, tensor in load_file(tmp_path / "cut" / file).items()}
    one = load_file(tmp_path / "one" / "model.safetensors")
    assert cut.keys() == one.keys() == index["weight_map"].keys()
    assert all(torch.equal(cut[name].view(torch.int16), one[name].view(torch.int16)) for name in one)
    assert [index["weight_map"][name] for name in sorted(one, key=natural)] == sorted(index["weight_map"].values())
    assert all(sum(t.nbytes for t in load_file(tmp_path / "cut" / file).values()) <= 60_000 for file in files)
    assert open_checkpoint(tmp_path / "cut").findings == ()


def test_natural_order_counts_numbers() -> None:
    names = ["layers.10.a", "layers.2.b", "layers.2.a", "fc", "layers.2", "a1b"]
    assert sorted(names, key=natural) == ["a1b", "fc", "layers.2", "layers.2.a", "layers.2.b", "layers.10.a"]


def test_a_larger_tensor_gets_a_file_of_its_own(tmp_path: Path) -> None:
    generate("target", tmp_path / "a", max_shard_bytes=1)
    assert len(list((tmp_path / "a").glob("*.safetensors"))) == 3


def test_true_planes_decode_to_the_file(tmp_path: Path) -> None:
    generate("dflash2", tmp_path / "a", on_grid=True)
    stored = load_file(tmp_path / "a" / "model.safetensors")
    generate("dflash2", tmp_path / "b")
    plain = load_file(tmp_path / "b" / "model.safetensors")
    gridded = {tensor.spec.name for tensor in tensors_of("dflash2", "tiny") if tensor.grid}
    for name, tensor in stored.items():
        assert torch.equal(tensor, plain[name]) == (name not in gridded)
    shared = set()
    for name in sorted(gridded):
        planes = grid_planes("dflash2", name)
        codes = torch.from_numpy(np.stack([planes.codes & 15, planes.codes >> 4], 1).reshape(-1))
        steps = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6] * 2, dtype=torch.float64)
        steps[8:] *= -1
        scales = torch.from_numpy(planes.block_scale).view(torch.float8_e4m3fn).double().repeat_interleave(16)
        exact = steps[codes.long()] * scales * float(np.uint32(planes.global_bits).view(np.float32))
        # the products have at most 31 bits: a float64 is exact, and a float32 would already be rounded
        error = (exact - stored[name].double().reshape(-1)).abs()
        assert bool((error <= exact.abs() * 2**-8).all())
        shared.add(planes.global_bits)
    assert len(shared) == 10, "one global scale for gate and up and one for down in each of five layers"
    with pytest.raises(KeyError):
        grid_planes("dflash2", "fc.weight")


def test_configs_state_what_loaders_need() -> None:
    config = config_of("dflash2", "full")
    assert config["dflash_config"] == {
        "conv_group_size": 16, "conv_kernel_size": 2, "mask_token_id": 248070, "selector_rank": 256,
        "selector_top_k": 16, "target_layer_ids": [5, 19, 33, 47, 61],
    }  # fmt: skip
    assert (config["use_sliding_window"], config["sliding_window"], config["is_causal"]) == (True, 2048, False)
    assert config["layer_types"] == ["sliding_attention"] * 5
    assert config["block_size"] == 8
    early, late = config_of("dflash-april", "full"), config_of("dflash", "full")
    assert (early["block_size"], "block_size" in early["dflash_config"]) == (16, False)
    assert ("block_size" in late, late["dflash_config"]["block_size"]) == (False, 16)
    assert early["rope_parameters"]["factor"] == 64.0
    assert late["rope_parameters"] == {"rope_theta": 10_000_000, "rope_type": "default"}
    mixed = config_of("dflash-27b", "full")
    assert [kind[0] for kind in mixed["layer_types"]] == ["s", "s", "s", "s", "f"]


@pytest.mark.parametrize("kind", KINDS)
def test_special_tokens_are_in_the_vocabulary(kind: str) -> None:
    for scale in KINDS[kind].scales:
        config = config_of(kind, scale)
        text = config.get("text_config", config)
        inner = config.get("dflash_config", {})
        ids = [value for place in (config, text, inner) for key, value in place.items() if key.endswith("token_id")]
        assert all(value is None or 0 <= value < text["vocab_size"] for value in ids)


def test_refusals(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("")
    for code, words in (
        ("E_USAGE", ("dflash3", "a", "tiny", "BF16")),
        ("E_USAGE", ("qwen3", "a", "full", "BF16")),
        ("E_USAGE", ("qwen3", "a", "tiny", "F64")),
        ("E_OUT_EXISTS", ("qwen3", "full", "tiny", "BF16")),
        ("E_OUT_EXISTS", ("qwen3", "full/x", "tiny", "BF16")),
    ):
        kind, out, scale, dtype = words
        with pytest.raises(ConvertError) as caught:
            generate(kind, tmp_path / out, scale=scale, dtype=dtype)
        assert caught.value.code == code
    assert not (tmp_path / "a").exists()


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["dflash2", str(tmp_path / "a"), "--on-grid", "--seed", "4", "--max-shard-size", "200KB"]
    assert main(words) == 0
    assert "194,976 parameters" in capsys.readouterr().out
    generate("dflash2", tmp_path / "b", on_grid=True, seed=4, max_shard_bytes=200_000)
    files = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert [(tmp_path / "b" / name).read_bytes() for name in files] == [
        (tmp_path / "a" / name).read_bytes() for name in files
    ]
    assert "--on-grid --seed 4 --max-shard-size 200000" in (tmp_path / "a" / "README.md").read_text()
    assert main(words) == 5
    assert "E_OUT_EXISTS" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["dflash2", str(tmp_path / "c"), "--max-shard-size", "0"])


def test_memory_is_bounded_and_files_have_no_holes(tmp_path: Path) -> None:
    code = (
        "import resource, sys; from pathlib import Path; from convertkit.demo.generate import generate\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "generate('dflash2', Path(sys.argv[1]) / 'tiny'); idle = peak()\n"
        "generate('dflash2', Path(sys.argv[1]) / 'small', scale='small', on_grid=True); print(peak() - idle)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, capture_output=True, text=True)
    assert int(done.stdout) < 16 * 1024, "KiB above what the tiny model needs"
    stat = os.stat(tmp_path / "small" / "model.safetensors")
    assert stat.st_size > 36_000_000
    assert stat.st_blocks * 512 >= stat.st_size


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "target"])
def test_the_grid_is_what_is_packed_by_default(kind: str, tmp_path: Path) -> None:
    generate(kind, tmp_path / "a")
    opened = open_checkpoint(tmp_path / "a")
    groups: dict[str, list[str]] = {}
    for tensor in tensors_of(kind, "tiny"):
        if tensor.grid is not None:
            groups.setdefault(tensor.grid, []).append(tensor.spec.name.removesuffix(".weight"))
    chosen = choose(opened, identify(opened).layout, (), ())
    assert {frozenset(group) for group in chosen.groups} == {frozenset(group) for group in groups.values()}
