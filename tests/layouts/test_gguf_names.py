"""The name tables are total, injective and involutive, and agree with gguf's own map where that knows the names."""

from __future__ import annotations

import subprocess
import sys

import pytest

from convertkit.layouts.gguf_names import ARCHS, Arch, expected_names, from_gguf, from_hub, stored_name

LAYERS, EXPERTS = 12, 3

THEIR_NAMES = """
import sys, copy, gguf
arch, layers = sys.argv[1], int(sys.argv[2])
number = next(key for key, value in gguf.MODEL_ARCH_NAMES.items() if value == arch)
names = gguf.get_tensor_name_map(number, layers)
for line in sys.stdin.read().split():
    print(names.get_name(line, try_suffixes=(".weight", ".bias")))
"""


def hub_names(arch: Arch) -> list[str]:
    names = []
    for rule in arch.rules:
        for layer in range(LAYERS if "{i}" in rule.hub else 1):
            for expert in range(EXPERTS if rule.stacked else 1):
                names.append(rule.hub.replace("{i}", str(layer)).replace("{e}", str(expert)))
    return names


@pytest.mark.parametrize("arch", ARCHS.values(), ids=ARCHS)
def test_forward_and_back_is_the_identity(arch: Arch) -> None:
    for hub in hub_names(arch):
        there = from_hub(arch, stored_name(arch, hub))
        assert there is not None
        back = from_gguf(arch, there.gguf)
        assert back is not None
        assert back.hub(int(there.captures["e"]) if "e" in there.captures else None) == hub


@pytest.mark.parametrize("arch", ARCHS.values(), ids=ARCHS)
def test_every_name_meets_one_rule_and_none_collide(arch: Arch) -> None:
    hubs = hub_names(arch)
    targets = {(named.gguf, named.captures.get("e")) for hub in hubs if (named := from_hub(arch, hub)) is not None}
    assert len(targets) == len(hubs)
    assert len({rule.hub for rule in arch.rules}) == len({rule.gguf for rule in arch.rules}) == len(arch.rules)
    assert from_hub(arch, "layers.0.self_attn.unknown.weight") is None
    assert set(expected_names(arch, LAYERS)) <= {name for name, _ in targets}


@pytest.mark.parametrize("arch", [arch for arch in ARCHS.values() if not arch.drafter], ids=lambda arch: arch.name)
def test_names_are_ggufs(arch: Arch) -> None:
    """In a process of its own, since building one map of gguf 0.19 can change another."""
    hubs = [hub for hub in hub_names(arch) if ".experts." not in hub]
    text = "\n".join(stored_name(arch, hub) for hub in hubs)
    result = subprocess.run(
        [sys.executable, "-c", THEIR_NAMES, arch.name, str(LAYERS)],
        input=text,
        capture_output=True,
        text=True,
        check=True,
    )
    ours = [named.gguf for hub in hubs if (named := from_hub(arch, hub)) is not None]
    assert result.stdout.split() == ours


def test_stored_spellings_of_drafters() -> None:
    dflash, eagle = ARCHS["dflash"], ARCHS["eagle3"]
    pairs = {
        "midlayer.hidden_norm.weight": "blk.0.attn_norm_2.weight",
        "layers.0.hidden_norm.weight": "blk.0.attn_norm_2.weight",
        "model.layers.0.self_attn.q_proj.weight": "blk.0.attn_q.weight",
        "d2t": "d2t",
    }
    for stored, expected in pairs.items():
        named = from_hub(eagle, stored)
        assert named is not None
        assert named.gguf == expected
    for stored in ("candidate_selector.successor_codebook", "candidate_selector.successor_codebook.weight"):
        named = from_hub(dflash, stored)
        assert named is not None
        assert named.gguf == "selector_successor.weight"
