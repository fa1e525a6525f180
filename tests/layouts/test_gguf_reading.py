"""What the metadata and the names of a GGUF say, without a file."""

from __future__ import annotations

import pytest

from convertkit.containers.gguf_values import Scalar, Value, f32, text, u32
from convertkit.drafter import Rope
from convertkit.layouts.gguf_layouts import gguf_layout
from convertkit.layouts.gguf_reading import read_spec

DFLASH: dict[str, Value] = {
    "dflash.rope.freq_base": f32(1e7),
    "dflash.rope.scaling.type": text("yarn"),
    "dflash.rope.scaling.factor": f32(4.0),
    "dflash.rope.scaling.original_context_length": u32(32768),
    "dflash.rope.scaling.yarn_beta_fast": f32(32.0),
    "dflash.sample_from_anchor": Scalar("bool", True),
    "dflash.has_confidence_head": Scalar("bool", True),
}


@pytest.mark.parametrize(("algorithm", "own"), [("dspark", True), ("dflash", False)])
def test_flags_of_dspark_are_read_for_dspark_only(algorithm: str, own: bool) -> None:
    spec = read_spec("dflash", DFLASH, algorithm, 64)
    assert (spec.sample_from_anchor, spec.confidence_head) == (own, own)


def test_numbers_of_a_scaled_rope_are_those_beside_base_and_kind() -> None:
    numbers = (("beta_fast", 32.0), ("factor", 4.0), ("original_max_position_embeddings", 32768))
    assert read_spec("dflash", DFLASH, "dflash", 64).rope == Rope(1e7, "yarn", numbers)


@pytest.mark.parametrize(
    ("arch", "name", "role"),
    [
        ("dflash", "token_embd.weight", "embedding"),
        ("dflash", "output.weight", "head"),
        ("dflash", "output_norm.weight", "norm"),
        ("dflash", "fc.weight", "fusion"),
        ("dflash", "blk.3.attn_q.weight", "attention"),
        ("dflash", "blk.3.ffn_down.weight", "mlp"),
        ("dflash", "selector_hidden.weight", "selector"),
        ("dflash", "selector_successor.weight", "codebook"),
        ("dflash", "markov_w1.weight", "markov"),
        ("dflash", "d2t", "vocabulary map"),
        ("qwen3moe", "blk.0.ffn_gate_inp.weight", "router"),
        ("qwen3moe", "blk.0.ffn_up_exps.weight", "expert"),
        ("qwen2", "blk.0.attn_q.bias", "bias"),
    ],
)
def test_roles_follow_from_the_parts_of_names(arch: str, name: str, role: str) -> None:
    assert gguf_layout(arch).role_of(name) == role
