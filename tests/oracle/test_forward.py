"""The passes of ``convertkit.forward`` beside the real classes: z-lab dflash 0.1.0 and speculators 0.9.0, in FP32.

The same formulas in the same order, but matrices are multiplied in other shapes, so results may differ by the order of
sums: ``TOLERANCE`` of the largest value. A wrong window, norm or frequency is far beyond that, which the last test
shows.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.drafters.make import DV, SLIDING3, V, drafter, eagle, read, speculators, write, zlab, zlab2
from tests.oracle.test_drafter_classes import load, zlab_model

pytestmark = pytest.mark.oracle
torch: Any = pytest.importorskip("torch")

TOLERANCE = 5e-5
CONTEXT, TAPS, WIDTH = 24, 3, 64


def noise(*shape: int, seed: int = 1) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def target_tensors() -> dict[str, Any]:
    from convertkit.checkpoint import TensorSpec
    from tests.drafters.make import fill

    names = {"embed_tokens.weight": (V, WIDTH), "lm_head.weight": (V, WIDTH)}
    return {name: ("BF16", shape, fill(name, TensorSpec(name, "BF16", shape))) for name, shape in names.items()}


def lent_head(x: Any) -> Any:
    return torch.nn.functional.linear(x, weight("lm_head.weight"))


def weight(name: str) -> Any:
    """A lent tensor in FP32."""
    _, shape, data = target_tensors()[name]
    return torch.frombuffer(bytearray(data), dtype=torch.bfloat16).view(shape).float()


def with_target(folder: Path, layout: str, config: dict[str, Any]) -> Path:
    """A drafter beside a copy that holds its target's embedding and head too, for the pass alone."""
    drafter(folder, layout, config)
    return write(folder.parent / f"{folder.name}-whole", config, {**target_tensors(), **read(folder)})


YARN = {"rope_theta": 10000.0, "rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64}
LLAMA3 = {
    "rope_theta": 10000.0, "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
MIXED = {**SLIDING3, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"], "sliding_window": 6}


def zlab_cases() -> Iterator[Any]:
    yield pytest.param("dflash", zlab(), id="dflash")
    yield pytest.param("dflash", zlab(**{**SLIDING3, "sliding_window": 6}), id="windows, causal")
    yield pytest.param("dflash", zlab(**{**SLIDING3, "sliding_window": 6}, is_causal=False), id="windows, not causal")
    yield pytest.param("dflash", zlab(**MIXED), id="mixed windows")
    yield pytest.param("dflash", zlab(num_key_value_heads=1), id="one kv head")
    yield pytest.param("dflash", zlab(num_key_value_heads=4, head_dim=32), id="no groups, wide heads")
    yield pytest.param("dflash", zlab(attention_bias=True), id="bias")
    yield pytest.param("dflash", zlab(hidden_act="gelu_pytorch_tanh", rms_norm_eps=1e-3), id="gelu, eps")
    for name, rope in (("yarn", YARN), ("llama3", LLAMA3), ("linear", {**YARN, "rope_type": "linear"})):
        yield pytest.param("dflash", zlab(rope_parameters=rope), id=name)
    scaled = {"output_multiplier": 0.5, "final_logit_softcapping": 3.0, "input_embedding_scale": 2.0}
    yield pytest.param("dflash", zlab(dflash_config=scaled), id="scaled logits and embeddings")
    yield pytest.param("dflash2", zlab2(sliding_window=6), id="dflash2")
    wide = {"conv_kernel_size": 3, "conv_group_size": 8, "selector_rank": 4, "selector_top_k": 6}
    yield pytest.param("dflash2", zlab2(dflash_config=wide), id="dflash2, three taps")


@pytest.mark.parametrize(("layout", "config"), list(zlab_cases()))
def test_zlab(layout: str, config: dict[str, Any], tmp_path: Path) -> None:
    from convertkit.forward.dflash import run_dflash
    from convertkit.forward.heads import logits_of
    from tests.forward.alone import apart, drafter_alone, inputs_at

    whole = with_target(tmp_path / "a", layout, config)
    model, it = zlab_model(tmp_path / "a"), drafter_alone(whole)
    tokens = torch.arange(CONTEXT + 8) * 5 % V
    features = noise(1, CONTEXT + 8, TAPS * WIDTH)
    anchors = [9, CONTEXT]
    hidden = run_dflash(it, inputs_at(anchors, tokens, 7), features)
    logits = torch.cat([tile for _, tile in logits_of(it, hidden[:, :, 1:].flatten(1, 2))], -1)[0].view(2, 7, V)
    for number, anchor in enumerate(anchors):
        ids = torch.full((1, 8), model.mask_token_id)
        ids[0, 0] = tokens[anchor]
        scale = float(config["dflash_config"].get("input_embedding_scale", 1.0))
        with torch.no_grad():
            real = model(
                position_ids=torch.arange(anchor + 8)[None],
                noise_embedding=weight("embed_tokens.weight")[ids] * scale,
                target_hidden=features[:, :anchor],
            )
            said = model.compute_logits(real, lent_head)
        assert apart(real[0], hidden[0, number]) < TOLERANCE
        assert apart(said[0, 1:], logits[number]) < TOLERANCE


def test_the_pass_is_equal_bit_for_bit_where_matrices_have_the_same_shape(tmp_path: Path) -> None:
    """Full attention, one anchor right behind the context: FP32 bits of z-lab's class, all layers and the final norm,
    if its two projections of keys and values are taken side by side as ours are."""
    from convertkit.forward.arithmetic import beside, rms_norm
    from convertkit.forward.rope import rope_table, turned

    model = zlab_model(with_target(tmp_path / "a", "dflash", zlab()).parent / "a")
    x = noise(1, 8, WIDTH)
    table = rope_table(_rope(), 16, torch.arange(8), torch.float32)
    real = model.rotary_emb(x, torch.arange(8)[None])
    assert torch.equal(table[0], real[0][0])
    assert torch.equal(table[1], real[1][0])
    with torch.no_grad():
        assert torch.equal(rms_norm(x, model.norm.weight[None], 1e-6), model.norm(x))
    assert beside(model.norm.weight[None], x[:, None]).shape == (1, 1, 1, WIDTH)
    heads = noise(1, 4, 8, 16)
    apply = importlib.import_module("dflash.model").apply_rotary_pos_emb
    assert torch.equal(turned(heads, table), apply(heads, heads, *real)[0])


def _rope() -> Any:
    from convertkit.drafter import Rope

    return Rope(10000000.0)


def test_the_selector_takes_the_path_of_zlab(tmp_path: Path) -> None:
    from convertkit.forward.heads import selector_scores
    from tests.forward.alone import drafter_alone

    whole = with_target(tmp_path / "a", "dflash2", zlab2())
    model, it = zlab_model(tmp_path / "a"), drafter_alone(whole)
    hidden, logits = noise(1, 7, WIDTH) * 3, noise(1, 7, V, seed=2)
    with torch.no_grad():
        path, candidates, _ = model.candidate_selector.select(hidden, logits, torch.tensor([11]), 0.0)
    unary, ids = logits.topk(4, -1)
    token, ours = torch.tensor([11]), []
    for place in range(7):
        scores = selector_scores(
            it, hidden[:, place : place + 1], token[None], ids[:, place : place + 1], unary[:, place : place + 1]
        )
        token = ids[0, place, scores[0, 0].argmax()][None]
        ours.append(int(token))
    assert ours == path[0].tolist()
    assert [sorted(row) for row in ids[0].tolist()] == [sorted(row) for row in candidates[0].tolist()]


def speculators_cases() -> Iterator[Any]:
    small = {**SLIDING3, "sliding_window": 6}
    for words in (V, DV):
        yield pytest.param("dflash", {"draft_vocab_size": words}, id=f"dflash {words}")
    yield pytest.param("dflash", {"layer": small, "sliding_window_non_causal": False}, id="windows, causal")
    yield pytest.param("dflash", {"layer": small, "sliding_window_non_causal": True}, id="windows, not causal")
    yield pytest.param("dflash", {"layer": {"rope_parameters": YARN, "num_key_value_heads": 1}}, id="yarn, one kv head")
    yield pytest.param("dflash2", {"layer": small}, id="dflash2")
    yield pytest.param("dflash2", {"conv_kernel_size": 3, "conv_group_size": 8}, id="dflash2, three taps")
    for head in ("vanilla", "gated", "rnn"):
        for words in (V, DV):
            yield pytest.param("dspark", {"markov_head_type": head, "draft_vocab_size": words}, id=f"{head} {words}")
    yield pytest.param("dspark", {"sample_from_anchor": False, "markov_head_type": "rnn"}, id="not from the anchor")


@pytest.mark.parametrize(("kind", "over"), list(speculators_cases()))
def test_speculators(kind: str, over: dict[str, Any], tmp_path: Path) -> None:
    """The whole training pass of the real class: its own anchors, masks, mask tokens, heads."""
    from convertkit.forward.compare import hidden_of
    from convertkit.forward.heads import logits_of, selector_scores
    from tests.forward.alone import apart, drafter_alone, inputs_at

    config = speculators(kind, **json.loads(json.dumps(over)))
    whole = with_target(tmp_path / "a", f"speculators-{kind}", config)
    model = load(tmp_path / "a")
    lend(model, config["draft_vocab_size"] == V)
    it = drafter_alone(whole, windows="anchor")
    tokens = torch.arange(CONTEXT + 8) * 5 % V
    features = noise(1, CONTEXT + 8, TAPS * WIDTH)
    mask = torch.zeros(1, CONTEXT + 8)
    mask[0, [7, 9, 16]] = 1
    seen = record(model, features, tokens, mask)
    slots = it.spec.draft_tokens or 0
    inputs = inputs_at([7, 9, 16], tokens, slots)
    hidden, latents = hidden_of(it, inputs, features)
    logits = torch.cat([tile for _, tile in logits_of(it, hidden, latents)], -1)[0]
    first = 0 if it.spec.sample_from_anchor else 1
    real = seen["logits"].view(3, 8, -1)[:, first:]
    assert apart(real.flatten(0, 1), logits) < TOLERANCE
    if kind == "dflash2":
        ids = seen["candidates"].view(3, 8, -1)[:, first:].flatten(0, 1)[None]
        previous = inputs.tokens[inputs.proposed - 1].flatten()[None]
        ours = selector_scores(it, hidden, previous, ids, logits[None].gather(-1, ids))
        assert apart(seen["scores"].view(3, 8, -1)[:, first:].flatten(0, 1), ours[0]) < TOLERANCE
    if it.spec.confidence_head and kind == "dspark":
        assert it.streams.has("confidence_head.proj.weight")


def lend(model: Any, head: bool) -> None:
    with torch.no_grad():
        model.embed_tokens.weight.copy_(weight("embed_tokens.weight"))
        if head:
            model.lm_head.weight.copy_(weight("lm_head.weight"))
        model.verifier_lm_head.weight.zero_()


def record(model: Any, features: Any, tokens: Any, mask: Any) -> dict[str, Any]:
    """Final logits of a training pass, and for DFlash 2 its candidates and their scores."""
    core: Any = importlib.import_module(type(model).__module__)
    seen: dict[str, Any] = {}

    def spy(*args: Any, **words: Any) -> Any:
        seen["logits"] = words.get("unary_logits", args[0] if args else None)
        seen["candidates"], seen["scores"] = words.get("training_candidate_ids"), words.get("candidate_logits")
        return torch.tensor(0.0), {}

    real, core.compute_metrics = core.compute_metrics, spy
    try:
        with torch.no_grad():
            type(model).forward(
                model, hidden_states=features, input_ids=tokens[None], loss_mask=mask,
                verifier_last_hidden_states=torch.zeros(1, tokens.numel(), WIDTH),
                document_ids=torch.zeros(1, tokens.numel(), dtype=torch.long), max_anchors=3,
            )  # fmt: skip
    finally:
        core.compute_metrics = real
    return seen


def eagle_cases() -> Iterator[Any]:
    one = {"num_hidden_layers": 1, "layer_types": ["full_attention"]}
    yield pytest.param({"draft_vocab_size": DV, "layer": one}, id="one layer")
    yield pytest.param({"draft_vocab_size": V, "fc_norm": True, "norm_output": True}, id="fc_norm, norm_output")
    yield pytest.param({"draft_vocab_size": DV, "norm_before_fc": True, "layer": {"model_type": "llama"}}, id="llama")
    yield pytest.param({"norm_before_residual": False, "layer": {"rope_parameters": LLAMA3}}, id="residual, llama3")
    yield pytest.param({"layer": {**SLIDING3, "sliding_window": 6}}, id="windows")


@pytest.mark.parametrize("over", list(eagle_cases()))
def test_eagle3(over: dict[str, Any], tmp_path: Path) -> None:
    """Three steps of the real class, each with the recorded token fed back."""
    from convertkit.forward.eagle3 import run_eagle3
    from convertkit.forward.heads import logits_of
    from tests.forward.alone import apart, drafter_alone, inputs_at

    config = speculators("eagle3", **json.loads(json.dumps(over)))
    optional = {"optional": bool(over.get("fc_norm"))}
    tensors = {**target_tensors(), **_eagle_tensors(config, **optional)}
    whole = write(tmp_path / "a", config, tensors)
    model = load(whole)
    it = drafter_alone(whole, windows="anchor")
    assert (it.spec.taps, it.spec.draft_tokens) == ((1, 5, 9), 7)
    tokens = torch.arange(CONTEXT) * 5 % V
    features = noise(1, CONTEXT, TAPS * WIDTH)
    anchors = [1, 8, 15, 20]
    hidden = run_eagle3(it, inputs_at(anchors, tokens, 3), features)
    logits = torch.cat([tile for _, tile in logits_of(it, hidden.flatten(1, 2))], -1)[0].view(4, 3, -1)
    found: list[Any] = []
    handle = model.lm_head.register_forward_hook(lambda module, given, made: found.append(made.detach()))
    with torch.no_grad():
        type(model).forward(
            model, hidden_states=features[:, :-1], input_ids=tokens[None, 1:],
            document_ids=torch.zeros(1, CONTEXT - 1, dtype=torch.long), ttt_steps=3,
        )  # fmt: skip
    handle.remove()
    for step, real in enumerate(found):
        rows = real[0, [anchor - 1 for anchor in anchors]]
        assert apart(rows, logits[:, step]) < TOLERANCE, step


def _eagle_tensors(config: dict[str, Any], *, optional: bool) -> dict[str, Any]:
    from tests.drafters.make import tensors_for

    made = tensors_for("speculators-eagle3", config, optional=optional)
    if optional:
        for number in range(TAPS):
            name = f"fc_norm.{number}.weight"
            if name not in made:
                made[name] = next(row for key, row in made.items() if key == "norm.weight")
    left_out = () if config["norm_before_fc"] else ("input_norm.weight",)
    return {name: row for name, row in made.items() if not name.endswith((".bias", *left_out))}


def test_an_eagle3_of_the_older_form_computes_the_same(tmp_path: Path) -> None:
    from convertkit.forward.eagle3 import run_eagle3
    from convertkit.verbs.drafters import to_speculators
    from tests.drafters.make import target
    from tests.forward.alone import drafter_alone, inputs_at

    source = drafter(tmp_path / "a", "eagle3", eagle())
    to_speculators(source, tmp_path / "b", target_model=target(tmp_path / "t"), target_id="Qwen/Qwen3-8B")
    inputs = inputs_at([3, 9], torch.arange(CONTEXT), 3)
    one, two = (
        run_eagle3(drafter_alone(path), inputs, noise(1, CONTEXT, TAPS * WIDTH)) for path in (source, tmp_path / "b")
    )
    assert torch.equal(one, two)


def test_the_comparison_sees_small_mistakes(tmp_path: Path) -> None:
    """A window one token shorter, a frequency a hundredth off, an eps of another size: far beyond the tolerance."""
    from convertkit.forward.dflash import run_dflash
    from tests.forward.alone import apart, drafter_alone, inputs_at

    whole = with_target(tmp_path / "a", "dflash", zlab(**{**SLIDING3, "sliding_window": 6}))
    it = drafter_alone(whole)
    inputs, features = inputs_at([16], torch.arange(CONTEXT), 7), noise(1, CONTEXT, TAPS * WIDTH)
    right = run_dflash(it, inputs, features)
    spec = it.spec
    assert spec.rope is not None
    layers = tuple(replace(layer, window=5) for layer in spec.attention)
    for wrong in (
        replace(spec, attention=layers),
        replace(spec, rope=replace(spec.rope, theta=spec.rope.theta * 1.01)),
        replace(spec, eps=1e-3),
    ):
        assert apart(right, run_dflash(replace(it, specs=(wrong,)), inputs, features)) > 4 * TOLERANCE
