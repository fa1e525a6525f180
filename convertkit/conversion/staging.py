"""The staging folder: where an output grows before it is published, and what becomes of it when a run fails.

Beside the destination ``NAME`` a run makes::

    .NAME.lock               held with flock while the run lives; holds its process id
    .NAME.partial-<id>/      <id> comes from the plan's fingerprint, so ``--resume`` finds it
        run.json             for people: which run this is, and what to do with it
        journal              for --resume: one line per finished tensor
        files/               becomes NAME by one rename (a single-file output: the one file in it)

A process killed at any point leaves at most these two names behind; under the lock every ``.NAME.partial-*``
belongs to a dead run. The next run names them and ``--resume`` continues its own.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from convertkit.conversion.failures import write_failure
from convertkit.conversion.lock import drop_lock, take_lock
from convertkit.conversion.place import Place
from convertkit.conversion.stop import Interrupted
from convertkit.conversion.syscalls import KERNEL, UNSUPPORTED, Syscalls, remove_tree, sync_folder, write_new
from convertkit.errors import ConvertError, Finding, finding, refusal, shown

RUN_FILE = "run.json"
JOURNAL = "journal"
FILES = "files"


@dataclass
class Staging:
    """An open staging folder.

    ``findings`` say what earlier runs left and what is carried over. The sink keeps the two counts of tensors;
    ``old_names`` are the files of an old output that ``carry_over`` has decided about.
    """

    place: Place
    fingerprint: str
    base: Path
    syscalls: Syscalls
    findings: list[Finding] = field(default_factory=list)
    resumed: bool = False
    tensors_done: int = 0
    tensors_planned: int = 0
    published: bool = False
    old_names: set[str] | None = None

    @property
    def files(self) -> Path:
        """The folder whose content will be the output: checks and reports work here."""
        return self.base / FILES

    @property
    def journal(self) -> Path:
        return self.base / JOURNAL


@contextmanager
def open_staging(
    place: Place, fingerprint: str, *, resume: bool = False, keep: bool = True, syscalls: Syscalls = KERNEL
) -> Iterator[Staging]:
    """Lock the destination, make or find the staging folder, and tidy up at the end, whatever the end is.

    After ``publish`` nothing of it is left. If the body fails, staging is removed, except after a signal or a
    full disk when at least one tensor is finished: then it is kept and the error says how to go on. ``keep``
    false (``--no-keep``) removes it always, and what dead runs of other plans left for the same destination.
    ``resume`` continues what an earlier run of the plan left, and begins at the start where none left anything.

    Raises ``ConvertError``: E_OUT_LOCKED, E_RESUME (status 5), E_WRITE, E_NO_SPACE (status 4); an ``OSError``
    of the body becomes one of the last two.
    """
    lock = take_lock(place, syscalls)
    try:
        staging = _prepare(place, fingerprint, resume, keep, syscalls)
        try:
            yield staging
        except BaseException as error:
            seen = _after_failure(staging, error, keep)
            if seen is error:
                raise
            raise seen from error
        if not staging.published:
            _remove(syscalls, staging.base)
    except OSError as error:
        raise write_failure(error, place.parent) from error
    finally:
        drop_lock(place, lock, syscalls)


def write_small(staging: Staging, name: str, data: bytes) -> str:
    """Write a file of the output beside the weights, in place of one of that name; its sha256.

    A new file is made: what is there may be a hard link to a user's file. ``publish`` makes it durable.
    Raises ``ConvertError`` E_NO_SPACE, E_WRITE; E_INTERNAL for a name that is not plain.
    """
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise refusal("E_INTERNAL", f"{shown(name)} is not a plain file name")
    path = staging.files / name
    try:
        with suppress(FileNotFoundError):
            staging.syscalls.unlink(str(path))
        write_new(staging.syscalls, str(path), data)
    except OSError as error:
        raise write_failure(error, path, len(data)) from error
    return sha256(data).hexdigest()


def _prepare(place: Place, fingerprint: str, resume: bool, keep: bool, syscalls: Syscalls) -> Staging:
    if place.existing == "absent" and os.path.lexists(place.out):  # another run was faster
        raise refusal("E_OUT_EXISTS", f"'{shown(place.out.name)}' has just appeared", fix="choose another name")
    staging = Staging(place, fingerprint, place.partial(fingerprint), syscalls)
    others = _unfinished(place)
    mine = staging.base in others
    others = [path for path in others if path != staging.base]
    if resume and not mine:
        staging.findings.append(_begun_anew(place, others))
    for path in others:
        staging.findings.append(_debris(path, removed=not keep))
        if not keep:
            _remove(syscalls, path)
    if mine and not resume:
        staging.findings.append(_debris(staging.base, removed=True))
    if mine and not (resume and _is_sound(staging)):
        _remove(syscalls, staging.base)
        mine = False
    try:
        _make(staging, mine)
    except BaseException:
        if not mine:
            _remove(syscalls, staging.base, ignore_errors=True)
        raise
    staging.resumed = mine
    return staging


def _is_sound(staging: Staging) -> bool:
    """Whether what an earlier run left is made of folders and files and not of links, FIFOs or something else."""
    folders = all(path.is_dir() and not path.is_symlink() for path in (staging.base, staging.files))
    notes = (path for path in (staging.journal, staging.base / RUN_FILE) if os.path.lexists(path))
    return folders and all(path.is_file() and not path.is_symlink() for path in notes)


def _make(staging: Staging, exists: bool) -> None:
    syscalls, base = staging.syscalls, staging.base
    if not exists:
        syscalls.mkdir(str(base))
    with suppress(FileNotFoundError):
        syscalls.unlink(str(base / RUN_FILE))
    write_new(syscalls, str(base / RUN_FILE), _run_note(staging))
    if not exists:
        syscalls.mkdir(str(staging.files))
        if staging.place.existing == "old" and staging.place.kind == "folder":
            _probe_exchange(staging)
        sync_folder(syscalls, str(base))
        sync_folder(syscalls, str(staging.place.parent))


def _probe_exchange(staging: Staging) -> None:
    """Swapping two folders is what replaces an old output in one step: find out now, not after the work."""
    syscalls, one, two = staging.syscalls, str(staging.base / "probe-1"), str(staging.base / "probe-2")
    syscalls.mkdir(one)
    syscalls.mkdir(two)
    try:
        syscalls.rename(one, two, "exchange")
    except OSError as error:
        if error.errno in UNSUPPORTED:
            raise refusal(
                "E_WRITE", "this filesystem cannot replace a folder in one step",
                fix="move the old output away and run again without --force",
            ) from None  # fmt: skip
        raise
    finally:
        syscalls.rmdir(one)
        syscalls.rmdir(two)


def _run_note(staging: Staging) -> bytes:
    """Only for people: nothing reads it back, and it is never part of an output."""
    note = {
        "what": "an unfinished output of convertkit",
        "output": staging.place.out.name,
        "plan": staging.fingerprint,
        "process": os.getpid(),
        "boot": _boot_id(),
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "what_to_do": "run the same command with --resume, or remove this folder",
    }
    return json.dumps(note, indent=2, ensure_ascii=False).encode("utf-8", "surrogateescape") + b"\n"


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _unfinished(place: Place) -> list[Path]:
    """Staging folders of this destination, by name. We hold the lock, so no living run uses them."""
    pattern = re.compile(re.escape(place.partial_prefix) + "[0-9a-f]{12}")
    return sorted(place.parent / name for name in os.listdir(place.parent) if pattern.fullmatch(name))


def _debris(path: Path, *, removed: bool) -> Finding:
    message = f"an earlier run left '{shown(path.name)}' unfinished" + ("; it is removed" if removed else "")
    fix = "" if removed else f"run that command again with --resume, or: rm -r '{path}'"
    return finding("W_UNFINISHED", "warning", message, fix=fix)


def _begun_anew(place: Place, others: list[Path]) -> Finding:
    """A note for ``--resume`` where nothing is unfinished. Raises E_RESUME where only something else is."""
    if others:
        names = ", ".join(shown(path.name) for path in others)
        raise refusal(
            "E_RESUME", f"the unfinished output beside '{shown(place.out.name)}' is of another plan: {names}",
            fix="repeat the very command that was interrupted, or run without --resume",
        )  # fmt: skip
    message = f"no unfinished output of '{shown(place.out.name)}' is there, so the run began at the start"
    return finding("N_NOTHING_TO_RESUME", "note", message)


def _after_failure(staging: Staging, error: BaseException, keep: bool) -> BaseException:
    """Remove or keep what is staged, and give the error that the user sees."""
    seen = write_failure(error, staging.files) if isinstance(error, OSError) else error
    if staging.published:
        return seen
    stopped = isinstance(seen, (Interrupted, KeyboardInterrupt)) or (
        isinstance(seen, ConvertError) and seen.code == "E_NO_SPACE"
    )
    if not (keep and stopped and staging.tensors_done):
        _remove(staging.syscalls, staging.base, ignore_errors=True)
        return seen
    note = finding(
        "W_STAGING_KEPT", "note",
        f"{staging.tensors_done} of {staging.tensors_planned} tensors are finished and kept in"
        f" '{shown(staging.base.name)}'",
        fix=f"run the same command with --resume to go on, or remove it: rm -r '{staging.base}'",
    )  # fmt: skip
    if isinstance(seen, Interrupted):
        return Interrupted(seen.signum, (note,))
    if not isinstance(seen, ConvertError):
        return seen
    # what a run inside this one kept lies in its folder, and is told of by this note
    return ConvertError((*(item for item in seen.findings if item.code != note.code), note), seen.status)


def _remove(syscalls: Syscalls, path: Path, *, ignore_errors: bool = False) -> None:
    try:
        remove_tree(syscalls, path)
    except OSError:
        if not ignore_errors:
            raise
        shutil.rmtree(path, ignore_errors=True)
