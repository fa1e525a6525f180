"""Drafters in the speculators layout become the same GGUF as their originals, and keep a vocabulary of their own."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from convertkit.containers.folder import open_any, open_checkpoint
from convertkit.containers.gguf_values import plain
from convertkit.containers.reader import Reader
from convertkit.verbs.from_gguf import from_gguf
from convertkit.verbs.to_gguf import to_gguf
from tests.gguf.models import DRAFT_VOCABULARY, HIDDEN, TAPS, VOCABULARY, write_model

MOVED = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
         "head_dim",
         "vocab_size", "max_position_embeddings", "rms_norm_eps", "hidden_act", "attention_bias", "rope_parameters",
         "model_type")  # fmt: skip


def speculators(flat: dict[str, Any], kind: str, **more: Any) -> dict[str, Any]:
    """A flat config in speculators form."""
    nested = {key: flat[key] for key in MOVED}
    inner = flat.get("dflash_config", flat)
    return {
        "architectures": ["SpeculatorModel"], "speculators_model_type": kind, "transformer_layer_config": nested,
        "speculators_config": {"algorithm": kind, "verifier": {"name_or_path": "a/b", "architectures": []},
                               "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 7}]},
        "draft_vocab_size": VOCABULARY, "mask_token_id": inner.get("mask_token_id"), "dtype": "bfloat16",
        "block_size": inner.get("block_size"), "aux_hidden_state_layer_ids": [tap + 1 for tap in TAPS], **more,
    }  # fmt: skip


def in_speculators_form(source: Path, folder: Path, kind: str, **more: Any) -> Path:
    shutil.copytree(source, folder)
    flat = json.loads((source / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(speculators(flat, kind, **more)))
    return folder


@pytest.mark.parametrize("kind", ["dflash", "dflash2"])
def test_both_forms_give_one_file(kind: str, tmp_path: Path, target: Path) -> None:
    source = write_model(tmp_path / "flat", kind)
    inner = json.loads((source / "config.json").read_text())["dflash_config"]
    extra = {
        key: inner[key]
        for key in ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")
        if key in inner
    }
    other = in_speculators_form(source, tmp_path / "spec", kind, sliding_window_non_causal=True, **extra)
    to_gguf(source, tmp_path / "a.gguf", target_model=target)
    to_gguf(other, tmp_path / "b.gguf", target_model=target)
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()


def test_eagle3_in_speculators_form(tmp_path: Path, target: Path) -> None:
    source = write_model(tmp_path / "flat", "eagle3")
    other = in_speculators_form(
        source, tmp_path / "spec", "eagle3", draft_vocab_size=DRAFT_VOCABULARY, norm_before_residual=True,
        eagle_aux_hidden_state_layer_ids=[2, 3, 5],
    )  # fmt: skip
    config = json.loads((other / "config.json").read_text())
    del config["aux_hidden_state_layer_ids"]
    (other / "config.json").write_text(json.dumps(config))
    rename(other / "model.safetensors", b'"midlayer.', b'"layers.0.')
    to_gguf(other, tmp_path / "b.gguf", target_model=target)
    keys = {key: plain(value) for key, value in open_any(tmp_path / "b.gguf").metadata.items()}
    assert keys["eagle3.target_layers"] == [2, 3, 5]
    assert keys["eagle3.norm_before_residual"] is True
    from_gguf(tmp_path / "b.gguf", tmp_path / "back", config_from=other)
    assert stored(tmp_path / "back") == stored(other)


def rename(path: Path, old: bytes, new: bytes) -> None:
    """Rename in a header; names of one length or the header is padded anew."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = data[8 : 8 + length].replace(old, new)
    path.write_bytes(len(header).to_bytes(8, "little") + header + data[8 + length :])


def stored(folder: Path) -> dict[str, bytes]:
    opened = open_checkpoint(folder)
    with Reader(opened) as reader:
        return {name: reader.bytes_of(name) for name in opened.tensors}


def test_d2t_is_absolute_in_the_file(tmp_path: Path, target: Path) -> None:
    source = write_model(tmp_path / "flat", "eagle3")
    to_gguf(source, tmp_path / "a.gguf", target_model=target)
    with Reader(open_any(tmp_path / "a.gguf")) as written, Reader(open_checkpoint(source)) as read:
        ids = written.array("d2t").astype(np.int64)
        assert np.array_equal(ids, read.array("d2t").astype(np.int64) + np.arange(DRAFT_VOCABULARY))
        assert np.array_equal(np.flatnonzero(read.array("t2d")), ids)


def write_reduced_dspark(folder: Path, dtype: str = "BF16") -> Path:
    """A DSpark drafter of speculators with its own vocabulary: a head of its own, no embeddings, d2t and t2d."""
    from tests.gguf import models

    config, shapes = models.KINDS["dspark"]()
    shapes |= {"markov_head.markov_w2.weight": (DRAFT_VOCABULARY, 32), "lm_head.weight": (DRAFT_VOCABULARY, HIDDEN),
               "d2t": (DRAFT_VOCABULARY,), "t2d": (VOCABULARY,)}  # fmt: skip
    del shapes["embed_tokens.weight"]
    more = {key: config[key] for key in ("markov_rank", "markov_head_type", "enable_confidence_head")}
    document = speculators(
        config, "dspark", **more, draft_vocab_size=DRAFT_VOCABULARY, confidence_head_with_markov=True,
        sample_from_anchor=True,
    )  # fmt: skip
    return models.write_shapes(folder, document, shapes, dtype)


def test_a_vocabulary_of_its_own_goes_there_and_back(tmp_path: Path, target: Path) -> None:
    source = write_reduced_dspark(tmp_path / "small")
    to_gguf(source, tmp_path / "a.gguf", target_model=target)
    written = open_any(tmp_path / "a.gguf").tensors
    assert {"output.weight", "d2t"} <= written.keys()
    assert "token_embd.weight" not in written
    from_gguf(tmp_path / "a.gguf", tmp_path / "back", config_from=source)
    assert stored(tmp_path / "back") == stored(source)
