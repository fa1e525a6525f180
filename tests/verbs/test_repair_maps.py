"""``repair --d2t``: the map of a reduced vocabulary in one form, told by evidence or by the user, never guessed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from convertkit.conversion.repair_work import RepairRequest
from convertkit.errors import ConvertError
from convertkit.verbs.audit import audit
from convertkit.verbs.case import Options, Result
from convertkit.verbs.drafters import to_drafter
from convertkit.verbs.repair import Untouched, repair
from tests.drafters.make import DV, Tensor, V, eagle, maps, read, target, tensors_for, write

PLAIN = {"d2t": maps()["d2t"], "t2d": maps()["t2d"]}


def drafter(folder: Path, over: dict[str, Tensor | None], prefix: str = "") -> Path:
    whole = {**tensors_for("eagle3", eagle()), **PLAIN, **over}
    return write(folder, eagle(), {prefix + name: row for name, row in whole.items() if row is not None})


def fixed(source: Path, out: Path, **words: Any) -> dict[str, Tensor]:
    made = repair(source, out, RepairRequest(**words))
    assert isinstance(made, Result)
    assert made.status == 0
    return read(out)


@pytest.mark.parametrize("dtype", ["I64", "I32"])
@pytest.mark.parametrize("masked", [True, False], ids=["with t2d", "without t2d"])
@pytest.mark.parametrize("prefix", ["", "model."])
def test_absolute_ids_become_offsets_of_the_same_dtype(tmp_path: Path, dtype: str, masked: bool, prefix: str) -> None:
    over: dict[str, Tensor | None] = {"d2t": maps("absolute", dtype)["d2t"]}
    source = drafter(tmp_path / "s", over if masked else {**over, "t2d": None}, prefix)
    assert "E_VOCABULARY_MAP" in {item.code for item in audit(source).findings}
    after = fixed(source, tmp_path / "out", d2t="offsets")
    assert after == {**read(source), f"{prefix}d2t": maps("offsets", dtype)["d2t"]}
    assert "E_VOCABULARY_MAP" not in {item.code for item in audit(tmp_path / "out").findings}
    assert isinstance(repair(tmp_path / "out", tmp_path / "again", RepairRequest(d2t="offsets")), Untouched)


def test_there_and_back_is_the_identity_but_no_reader_takes_absolute_ids(tmp_path: Path) -> None:
    source = drafter(tmp_path / "s", {})
    with pytest.raises(ConvertError, match="E_VOCABULARY_MAP") as caught:
        repair(source, tmp_path / "kept", RepairRequest(d2t="absolute"))
    assert (caught.value.status, (tmp_path / "kept").exists()) == (1, False)
    repair(source, tmp_path / "ids", RepairRequest(d2t="absolute"), options=Options(publish_anyway=True))
    assert read(tmp_path / "ids")["d2t"] == maps("absolute")["d2t"]
    assert fixed(tmp_path / "ids", tmp_path / "back", d2t="offsets") == read(source)


RAMP = np.arange(DV, dtype="<i8")


@pytest.mark.parametrize("holds", ["absolute", "offsets"])
def test_a_ramp_needs_a_word_and_is_certain_from_then_on(tmp_path: Path, holds: str) -> None:
    source = drafter(tmp_path / "s", {"d2t": ("I64", (DV,), RAMP.tobytes()), "t2d": None})
    with pytest.raises(ConvertError, match="--d2t-holds absolute"):
        repair(source, tmp_path / "out", RepairRequest(d2t="offsets"))
    after = fixed(source, tmp_path / "out", d2t="offsets", d2t_holds=holds)
    ids = RAMP if holds == "absolute" else 2 * RAMP
    assert np.frombuffer(after["d2t"][2], "<i8").tolist() == (ids - RAMP).tolist()
    assert np.flatnonzero(np.frombuffer(after["t2d"][2], np.uint8)).tolist() == ids.tolist()
    assert after["t2d"][:2] == ("BOOL", (V,))
    made_target = target(tmp_path / "t")
    to_drafter(
        tmp_path / "out", tmp_path / "to", to="speculators", verb="convert", target_model=made_target, target_id="o/n"
    )
    assert read(tmp_path / "to")["d2t"] == after["d2t"]


def test_a_word_that_the_values_contradict_is_refused(tmp_path: Path) -> None:
    source = drafter(tmp_path / "s", {})
    with pytest.raises(ConvertError, match="holds offsets, not absolute"):
        repair(source, tmp_path / "out", RepairRequest(d2t="offsets", d2t_holds="absolute"))


@pytest.mark.parametrize(
    "row",
    [
        ("I64", (DV,), (RAMP + V).tobytes()),
        ("I64", (DV,), np.zeros(DV, "<i8").tobytes()[::-1][:-8] + b"\x01" * 8),
        ("F32", (DV,), RAMP.astype("<f4").tobytes()),
        ("I64", (DV, 1), RAMP.tobytes()),
    ],
    ids=["outside", "strange", "floats", "a matrix"],
)
@pytest.mark.parametrize("holds", [None, "absolute"])
def test_a_map_that_makes_no_sense_is_never_rewritten(tmp_path: Path, row: Tensor, holds: str | None) -> None:
    source = drafter(tmp_path / "s", {"d2t": row, "t2d": None})
    with pytest.raises(ConvertError, match="E_VOCABULARY_MAP"):
        repair(source, tmp_path / "out", RepairRequest(d2t="offsets", d2t_holds=holds))
    assert not (tmp_path / "out").exists()


def test_offsets_that_the_dtype_cannot_hold_are_refused(tmp_path: Path) -> None:
    """An unsigned map whose ids do not grow as fast as their places has negative offsets."""
    ids = np.array([1, 0, *range(2, DV)], "<u4")
    source = drafter(tmp_path / "s", {"d2t": ("U32", (DV,), ids.tobytes()), "t2d": _mask(ids)})
    with pytest.raises(ConvertError, match="U32 cannot hold offsets"):
        repair(source, tmp_path / "out", RepairRequest(d2t="offsets"))


def _mask(ids: Any) -> Tensor:
    mask = np.zeros(V, np.uint8)
    mask[ids] = 1
    return ("BOOL", (V,), mask.tobytes())


def test_without_a_map_there_is_nothing_to_do(tmp_path: Path) -> None:
    source = drafter(tmp_path / "s", {"d2t": None, "t2d": None})
    assert isinstance(repair(source, tmp_path / "out", RepairRequest(d2t="offsets")), Untouched)


def test_the_statement_alone_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(ConvertError, match="E_USAGE"):
        repair(drafter(tmp_path / "s", {}), tmp_path / "out", RepairRequest(d2t_holds="offsets"))
