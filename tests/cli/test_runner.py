"""How outcomes and failures become text, JSON and exit statuses."""

import errno
import json
import signal
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest

from convertkit.cli.runner import Outcome, Shared, findings_of, run
from convertkit.cli.signals import Interrupted, raised_signals
from convertkit.errors import ConvertError, finding, refusal
from convertkit.progress import Progress
from convertkit.release.schemas import load_schema


def raising(error: BaseException) -> Callable[[Progress], Outcome]:
    def work(progress: Progress) -> Outcome:
        raise error

    return work


def error_schema() -> dict[str, Any]:
    return load_schema("error")


@pytest.mark.parametrize("status", [0, 1, 6])
def test_outcome_decides_the_status(status: int, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(Shared(), lambda progress: Outcome({"a": 1}, "said", status)) == status
    assert capfd.readouterr() == ("said\n", "")


def test_json_is_one_document_and_nothing_else(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(Shared(as_json=True), lambda progress: Outcome({"b": "é\udc80", "a": None}, "text", 1)) == 1
    out, err = capfd.readouterr()
    assert json.loads(out) == {"a": None, "b": "é\udc80"}
    assert (out[0], out[-2:], err) == ("{", "}\n", "")


def test_json_refuses_what_is_not_json(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="Out of range"):
        run(Shared(as_json=True), lambda progress: Outcome({"a": float("nan")}, ""))
    assert capfd.readouterr().out == ""


def test_quiet_says_nothing_but_errors(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(Shared(quiet=True), lambda progress: Outcome({}, "text")) == 0
    assert capfd.readouterr() == ("", "")
    assert run(Shared(quiet=True), raising(refusal("E_NOT_FOUND", "no such folder", file="x"))) == 3
    assert capfd.readouterr() == ("", "error E_NOT_FOUND: no such folder [x]\n")


def test_refusal_prints_every_finding_with_its_cure(capfd: pytest.CaptureFixture[str]) -> None:
    both = ConvertError(
        [finding("E_WIDTH", "error", "one", tensor="a", fix="do this"), finding("E_WIDTH", "error", "two", tensor="b")]
    )
    assert run(Shared(), raising(both)) == 3
    out, err = capfd.readouterr()
    assert out == ""
    assert err == "error E_WIDTH: one [tensor 'a']\n  fix: do this\nerror E_WIDTH: two [tensor 'b']\n"


@pytest.mark.parametrize(
    ("error", "code", "status"),
    [
        (refusal("E_OUT_EXISTS", "exists"), "E_OUT_EXISTS", 5),
        (refusal("E_GATE", "no", status=3), "E_GATE", 3),
        (refusal("E_INTERRUPTED", "stopped", status=143), "E_INTERRUPTED", 143),
        (KeyboardInterrupt(), "E_INTERRUPTED", 130),
        (OSError(errno.ENOSPC, "No space left on device", "/x/out"), "E_NO_SPACE", 4),
        (PermissionError(errno.EACCES, "Permission denied", "/x/out"), "E_OS", 4),
        (MemoryError(), "E_MEMORY", 4),
        (ValueError("surprise"), "E_INTERNAL", 70),
        (RecursionError("deep"), "E_INTERNAL", 70),
    ],
)
def test_failures_have_a_code_and_a_status(
    error: BaseException, code: str, status: int, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(Shared(as_json=True), raising(error)) == status
    out, err = capfd.readouterr()
    document = json.loads(out)
    jsonschema.validate(document, error_schema())
    assert (document["status"], document["findings"][0]["code"]) == (status, code)
    assert err.startswith(f"error {code}: ")
    assert "Traceback" not in err


def test_traceback_only_when_asked(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(Shared(traceback=True), raising(ValueError("surprise"))) == 70
    err = capfd.readouterr().err
    assert "Traceback" in err
    assert err.rstrip().splitlines()[-2] == "error E_INTERNAL: ValueError: surprise"


def test_notes_of_an_exception_become_the_cure() -> None:
    error = KeyboardInterrupt()
    error.add_note("go on with --resume")
    findings, _ = findings_of(error)
    assert findings[0].fix == "go on with --resume"


def test_control_characters_of_a_foreign_error_are_escaped() -> None:
    findings, _ = findings_of(ValueError("bad \x1b[31m name"))
    assert "\x1b" not in str(findings[0])


def test_signals_raise_and_are_put_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with raised_signals():
        with pytest.raises(Interrupted, match="SIGTERM"):
            signal.raise_signal(signal.SIGTERM)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert signal.getsignal(signal.SIGTERM) is before


def test_ignored_signals_stay_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with raised_signals():
            signal.raise_signal(signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
