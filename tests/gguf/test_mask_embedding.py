"""A drafter's own embedding of the mask token becomes a row of its own embeddings, beside a head."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from convertkit.cli.main import main
from convertkit.containers.folder import open_any, open_checkpoint
from convertkit.containers.reader import Reader
from convertkit.conversion import gguf_run
from convertkit.conversion.gguf_mask import Reembed, run_reembed
from convertkit.errors import ConvertError
from convertkit.verbs.to_gguf import to_gguf
from tests.gguf.models import HIDDEN, write_mask_embedding, write_model

MASK = 500


def bf16(values: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> bytes:
    """Rounded to nearest even."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2").tobytes()


def stored(path: Path, *names: str) -> list[bytes]:
    with Reader(open_any(path)) as reader:
        return [reader.bytes_of(name) for name in names]


@pytest.mark.parametrize("bare", [True, False])
def test_the_row_is_put_into_the_targets_embeddings(bare: bool, target: Path, tmp_path: Path) -> None:
    source = write_model(tmp_path / "m", "dflash")
    row = bf16(write_mask_embedding(source, bare=bare))
    to_gguf(source, tmp_path / "m.gguf", type="q8_0", target_model=target)
    table, head = stored(tmp_path / "m.gguf", "token_embd.weight", "output.weight")
    before, lent = stored(target, "model.embed_tokens.weight", "lm_head.weight")
    size = 2 * HIDDEN
    assert table == before[: MASK * size] + row + before[(MASK + 1) * size :]
    assert head == lent
    assert main(["audit", str(tmp_path / "m.gguf"), "--scan", "--quiet"]) == 0


def test_own_embeddings_and_head_stay_the_drafters(target: Path, tmp_path: Path) -> None:
    source = write_model(tmp_path / "m", "dspark")
    row = bf16(write_mask_embedding(source))
    to_gguf(source, tmp_path / "m.gguf", target_model=target)
    table, head = stored(tmp_path / "m.gguf", "token_embd.weight", "output.weight")
    own = stored(source, "embed_tokens.weight", "lm_head.weight")
    size = 2 * HIDDEN
    assert [table[: MASK * size] + own[0][MASK * size : (MASK + 1) * size] + table[(MASK + 1) * size :], head] == own
    assert table[MASK * size : (MASK + 1) * size] == row


def test_a_wrong_row_is_noticed(target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_model(tmp_path / "m", "dflash")
    write_mask_embedding(source)
    wrong: dict[type, Any] = {Reembed: lambda job, unit: run_reembed(job, replace(unit, row=unit.row - 1))}
    monkeypatch.setattr(gguf_run, "GGUF_RUNNERS", {**gguf_run.GGUF_RUNNERS, **wrong})
    with pytest.raises(ConvertError) as caught:
        to_gguf(source, tmp_path / "m.gguf", target_model=target)
    assert caught.value.code == "E_PROMISE"


@pytest.mark.parametrize("fault", ["width", "token", "eagle3", "no weights", "a gguf"])
def test_what_does_not_fit_is_refused(fault: str, target: Path, tmp_path: Path) -> None:
    source = write_model(tmp_path / "m", "eagle3" if fault == "eagle3" else "dflash")
    write_mask_embedding(source, 499 if fault == "token" else MASK, 64 if fault == "width" else HIDDEN)
    given = target
    if fault == "no weights":
        given = write_model(tmp_path / "bare", "qwen3")
        (given / "model.safetensors").unlink()
    elif fault == "a gguf":
        to_gguf(target, tmp_path / "t.gguf")
        given = tmp_path / "t.gguf"
    with pytest.raises(ConvertError) as caught:
        to_gguf(source, tmp_path / "m.gguf", target_model=given)
    assert caught.value.code == {"eagle3": "E_LOSS", "no weights": "E_TARGET", "a gguf": "E_TARGET"}.get(
        fault, "E_MASK_EMBEDDING"
    )
    assert open_checkpoint(source).side_files == ("mask_embedding.pt",)
