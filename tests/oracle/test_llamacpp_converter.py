"""llama.cpp's own converter beside ours: the same keys, types and bytes, and each difference that is on purpose."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from convertkit.containers.folder import open_any
from convertkit.containers.gguf_values import Value, encode_value
from convertkit.containers.reader import Reader
from convertkit.verbs.pack import pack_nvfp4
from convertkit.verbs.to_gguf import to_gguf
from tests.gguf.models import DRAFTERS, KINDS, write_mask_embedding, write_model, write_tokenizer
from tests.oracle import their_converter

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytestmark = [
    pytest.mark.oracle,
    pytest.mark.skipif(
        their_converter.tree() is None,
        reason=f"no source tree of llama.cpp: `make oracle` fetches one, or name it in {their_converter.TREE}",
    ),
]

FIXTURES = Path(__file__).parents[2] / "fixtures"
TYPES = ("bf16", "f16", "f32", "q8_0")
DIALECTS = ("modelopt", "compressed-tensors")
PACKS = ("modelopt-export-tiny", "modelopt-export-w4a4-tiny", "modelopt-export-mixed-tiny",
         "llmcompressor-oneshot-tiny", "llmcompressor-oneshot-w4a4-tiny")  # fmt: skip
"""Packs of a Qwen 3 that ModelOpt and llm-compressor wrote."""
CASES = [*((kind, type_) for kind in KINDS for type_ in (*TYPES, *DIALECTS)), *((name, "pack") for name in PACKS),
         ("dflash with a mask embedding", "bf16")]  # fmt: skip
CHANGES: Mapping[str, Mapping[str, Any]] = {"eagle3": {"eagle_aux_hidden_state_layer_ids": [1, 3, 4]}}
"""The converter reads the ids of EAGLE-3 at the top level only, and guesses otherwise."""

INVENTED = {"general.name", "general.size_label"}
"""Keys that it makes from the folder's name and the sizes."""
PRECISION = {"general.tensor_extra.name", "general.tensor_extra.prec_a4"}
"""Which weights want activations of more than four bits: the converter knows that of ModelOpt's packs only."""
OWN_KEYS = {
    **{("dspark", type_): {"dflash.attention.causal"} for type_ in (*TYPES, *DIALECTS)},
    **{(kind, "compressed-tensors"): PRECISION for kind in KINDS},
    ("dspark", "compressed-tensors"): {"dflash.attention.causal", *PRECISION},
    ("llmcompressor-oneshot-tiny", "pack"): PRECISION,
}
"""Keys that only we write: what llama.cpp would otherwise guess."""
OWN_TENSORS = {"dspark": {"output.weight"}}
"""DSpark has its own head; the converter leaves it out, and llama.cpp then takes the embeddings for it."""
OTHER_TYPES = {("dspark", "q8_0"): {"conf_proj.weight"}}
"""A matrix of one row, which ``llama-quantize`` does not quantize either."""
CUT = {"gemma3": {"token_embd.weight"}}
"""Gemma 3: rows of the embeddings without a token are cut off there."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every case converted by both, the other's in one process."""
    root = tmp_path_factory.mktemp("converted")
    target = write_model(root / "qwen3", "qwen3")
    jobs = []
    for kind in KINDS:
        dense = target if kind == "qwen3" else write_model(root / kind, kind, **CHANGES.get(kind, {}))
        given = target if kind in DRAFTERS else None
        for type_ in (*TYPES, *DIALECTS):
            packed = type_ in DIALECTS
            source = root / f"{kind}-{type_}" if packed else dense
            if packed:
                pack_nvfp4(dense, source, dialect=type_, target_model=given)
            to_gguf(source, root / f"{kind}-{type_}.ours.gguf", type="nvfp4" if packed else type_, target_model=given)
            target_words = [] if given is None else ["--target-model-dir", str(given)]
            theirs = str(root / f"{kind}-{type_}.theirs.gguf")
            jobs.append([str(source), *target_words, "--outfile", theirs, "--outtype", "bf16" if packed else type_])
    for name in PACKS:
        source = root / name
        shutil.copytree(FIXTURES / name, source)
        write_tokenizer(source, few=80)
        to_gguf(source, root / f"{name}-pack.ours.gguf", type="nvfp4")
        jobs.append([str(source), "--outfile", str(root / f"{name}-pack.theirs.gguf"), "--outtype", "bf16"])
    masked = write_model(root / "dflash with a mask embedding", "dflash")
    write_mask_embedding(masked)
    to_gguf(masked, root / f"{masked.name}-bf16.ours.gguf", target_model=target)
    out = str(root / f"{masked.name}-bf16.theirs.gguf")
    jobs.append([str(masked), "--target-model-dir", str(target), "--outfile", out, "--outtype", "bf16"])
    their_converter.convert(jobs, root)
    return root


def read(path: Path) -> tuple[dict[str, Value], dict[str, tuple[str, tuple[int, ...], bytes]]]:
    opened = open_any(path)
    with Reader(opened) as reader:
        refs = opened.tensors.items()
        tensors = {name: (ref.spec.dtype, ref.spec.shape, reader.bytes_of(name)) for name, ref in refs}
    return dict(opened.metadata), tensors


@pytest.mark.parametrize(("kind", "type_"), CASES)
def test_the_same_file_but_for_what_differs_on_purpose(kind: str, type_: str, folder: Path) -> None:
    (our_keys, ours), (their_keys, theirs) = (
        read(folder / f"{kind}-{type_}.{side}.gguf") for side in ("ours", "theirs")
    )
    assert their_keys.keys() - our_keys.keys() == INVENTED
    assert our_keys.keys() - their_keys.keys() == OWN_KEYS.get((kind, type_), set())
    unequal = {key for key in our_keys.keys() & their_keys.keys()
               if encode_value(our_keys[key]) != encode_value(their_keys[key])}  # fmt: skip
    assert unequal == set()
    assert theirs.keys() <= ours.keys()
    assert ours.keys() - theirs.keys() == OWN_TENSORS.get(kind, set())
    apart = {name for name in theirs if ours[name] != theirs[name]}
    assert apart == OTHER_TYPES.get((kind, type_), set()) | CUT.get(kind, set())
    for name in CUT.get(kind, set()):
        assert ours[name][0] == theirs[name][0]
        assert ours[name][2].startswith(theirs[name][2])
