"""One way to run a verb from the command line: call it, print text or JSON, turn any failure into a status.

A command module parses its options and then says::

    return run(shared, lambda progress: outcome_of(verb(..., progress=progress)))
"""

from __future__ import annotations

import errno
import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from convertkit import __version__
from convertkit.cli.progress import shown_progress
from convertkit.cli.signals import last_signal
from convertkit.cli.text import finding_text, findings_text
from convertkit.errors import ConvertError, Finding, finding, shown
from convertkit.progress import Progress

NO_THREAD = "can't start new thread"
"""What Python says when the system has no memory or no process number left for a thread."""

STATUS_WRITE = 4
"""Exit status when the result could not be written to standard output."""


@dataclass(frozen=True, slots=True)
class Shared:
    """What ``--json``, ``--quiet`` and ``--traceback`` said."""

    as_json: bool = False
    quiet: bool = False
    traceback: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a command has to say: one JSON document, the same as text for people, and the exit status."""

    document: Mapping[str, Any]
    text: str
    status: int = 0


def run(shared: Shared, work: Callable[[Progress], Outcome]) -> int:
    """Run ``work`` and print its outcome; the exit status. Only usage errors and ``SystemExit`` pass through."""
    import click

    try:
        with shown_progress(not (shared.quiet or shared.as_json)) as progress:
            outcome = work(progress)
    except (click.ClickException, click.exceptions.Exit, SystemExit):
        raise
    except BaseException as error:
        return report_failure(error, shared)
    if shared.as_json:
        written = write_stdout(json_text(outcome.document), encoding="utf-8")
    else:
        written = shared.quiet or write_stdout(outcome.text.rstrip("\n") + "\n")
    return outcome.status if written else outcome.status or STATUS_WRITE


def report_failure(error: BaseException, shared: Shared) -> int:
    """Say on stderr (and with ``--json`` on stdout too) why the work stopped; the exit status."""
    findings, status = findings_of(error)
    if shared.traceback:
        write_stderr("".join(traceback.format_exception(error)))
    write_stderr(findings_text(findings) + "\n")
    if shared.as_json:
        write_stdout(json_text(failure_document(findings, status)), encoding="utf-8")
    return status


def findings_of(error: BaseException) -> tuple[Sequence[Finding], int]:
    """What to tell the user about an exception, and the exit status. Notes of the exception become the cure."""
    if isinstance(error, ConvertError):
        return error.findings, _interrupted_status(error.status) if error.code == "E_INTERRUPTED" else error.status
    cure = " ".join(getattr(error, "__notes__", ()))
    if isinstance(error, KeyboardInterrupt):
        return [finding("E_INTERRUPTED", "error", str(error) or "interrupted", fix=cure)], _interrupted_status(130)
    if isinstance(error, OSError):
        code = "E_NO_SPACE" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "E_OS"
        return [finding(code, "error", _os_error_text(error), fix=cure)], 4
    if isinstance(error, MemoryError) or (type(error) is RuntimeError and str(error) == NO_THREAD):
        return [finding("E_MEMORY", "error", "out of memory", fix=cure or "use fewer --workers")], 4
    what = shown(f"{type(error).__name__}: {error}")
    cure = cure or "this is a bug in convertkit; please report it with the output of the same command and --traceback"
    return [finding("E_INTERNAL", "error", what, fix=cure)], 70


def _interrupted_status(otherwise: int) -> int:
    """128 plus the number of the signal, as shells count; ``otherwise`` when a verb heard the signal itself."""
    number = last_signal()
    return otherwise if number is None else 128 + number


def _os_error_text(error: OSError) -> str:
    """What the system says, with the file's name where it has one."""
    reason = error.strerror or str(error) or type(error).__name__
    return f"{shown(error.filename)}: {reason}" if error.filename is not None else reason


def document_of(kind: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """What ``--json`` prints: ``values`` with the schema that they follow, a file of ``schemas/``, and the tool."""
    return {"schema": f"convertkit.{kind}/1", "tool": {"name": "convertkit", "version": __version__}, **values}


def failure_document(findings: Sequence[Finding], status: int) -> dict[str, Any]:
    """The JSON document of a command that could not do its work."""
    return document_of("error", {"status": status, "findings": [item.as_json() for item in findings]})


def json_text(document: Mapping[str, Any]) -> str:
    return json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"


def write_stdout(text: str, encoding: str | None = None) -> bool:
    """Write and flush; False when the result could not be delivered, with the reason on stderr.

    A reader that went away (``| head``) is no news and gets no message. Names that the encoding cannot
    spell are escaped, which is also how JSON spells a lone surrogate.
    """
    try:
        if sys.stdout is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        data = text.encode(encoding or sys.stdout.encoding or "utf-8", "backslashreplace")
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    except OSError as error:
        stdout_failed(error)
        return False
    return True


def stdout_failed(error: OSError) -> None:
    """Report a failed write to stdout, and let nothing more go there (Python flushes it again at exit)."""
    if error.errno != errno.EPIPE:
        what = finding("E_WRITE", "error", f"cannot write to standard output: {error.strerror or error}")
        write_stderr(finding_text(what) + "\n")
    if sys.stdout is None:
        return
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
    except (OSError, ValueError):  # stdout has no file descriptor: then Python has nothing to flush to
        pass


def write_stderr(text: str) -> None:
    """Write to stderr; a failure there has nowhere to be told."""
    try:
        if sys.stderr is not None:
            sys.stderr.write(text)
            sys.stderr.flush()
    except OSError:
        pass
