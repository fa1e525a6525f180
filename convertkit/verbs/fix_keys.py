"""``fix-keys``: give tensors other names, in a new output or in place; no payload byte changes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from convertkit import __version__
from convertkit.containers.folder import open_checkpoint, refuse_unfinished
from convertkit.containers.strict_json import paused_gc
from convertkit.conversion.exclusive import locked
from convertkit.conversion.inplace import recover
from convertkit.conversion.place import check_place
from convertkit.conversion.renaming import Rename, plan_rename, refuse_gguf, work_out
from convertkit.conversion.syscalls import KERNEL, Syscalls
from convertkit.errors import Finding, finding, refusal, shown
from convertkit.hub.arguments import from_hub
from convertkit.release.recorded import recorded
from convertkit.release.report_files import check_report_place, write_report_files
from convertkit.verbs.beside import Beside
from convertkit.verbs.case import Options, Result
from convertkit.verbs.edit_keys import edit_in_place
from convertkit.verbs.key_rules import Wanted, rules_of
from convertkit.verbs.line import carry_out
from convertkit.verbs.planned import DryRun, dry_run
from convertkit.verbs.quick import carry_quickly
from convertkit.verbs.rename_report import edited_report, rename_report, report_parts

Recovery = Literal["finish", "undo"]
NAMED_ONLY = ("E_FUSED_SCALE",)
"""Faults of values that right names only bring to light; ``repair`` finds what they are about when it has the names."""

SIDES: Mapping[Recovery, Literal["new", "old"]] = {"finish": "new", "undo": "old"}


@dataclass(frozen=True)
class Keys:
    """What came of a call that wrote no new output: nothing to do, a plan for in place, or a change in place.

    ``action`` is ``nothing``, ``planned``, ``edited`` or ``recovered``. ``document`` is for ``--json``.
    """

    action: Literal["nothing", "planned", "edited", "recovered"]
    document: Mapping[str, Any]
    findings: tuple[Finding, ...]


@from_hub("source", headers=("like",))
def fix_keys(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
    *,
    rename: Sequence[str] = (),
    rules: str | os.PathLike[str] | None = None,
    presets: Sequence[str] = (),
    like: str | os.PathLike[str] | None = None,
    reverse: bool = False,
    in_place: bool = False,
    recovery: Recovery | None = None,
    prove: bool = False,
    quick: bool = False,
    report: str | os.PathLike[str] | None = None,
    header_slack_bytes: int = 0,
    only_plan: bool = False,
    options: Options = Options(),
    syscalls: Syscalls = KERNEL,
) -> Result | DryRun | Keys:
    """Rename tensors of ``source`` into the new folder ``out``, or where they lie with ``in_place``.

    Index and quantization configs follow. A new output has the files, the order and the bytes of the source, under
    new headers; the kernel copies the payload, or shares it where the filesystem can. ``quick`` does not read it, so
    digests of files stay pending. In place only headers and small files are written, ``prove`` reads the payload
    before and after. If nothing is to be renamed nothing is written.

    Args:
        recovery: only with ``in_place``: bring an interrupted change to its end first (``finish``, also the default
            when there is one) or take it back (``undo``). Without rules that is all that is done.
        report: where to write RENAME_REPORT.json of a change in place.

    Raises:
        ConvertError: see ``docs/errors.md``.
    """
    wanted = Wanted(
        tuple(rename),
        None if rules is None else Path(rules),
        tuple(presets),
        None if like is None else Path(like),
        reverse,
    )
    _refuse_mixed(wanted, out, in_place, recovery, prove, quick)
    _refuse_idle(in_place, quick, report, options)
    if not in_place:
        assert out is not None
        with paused_gc():
            return _to_new(Path(source), Path(out), wanted, quick, header_slack_bytes, only_plan, options)
    root = Path(source)
    if root.is_file():
        raise refusal("E_USAGE", "--in-place changes a whole folder: config and index go with the weights",
                      fix=f"name the folder: {shown(root.parent)}")  # fmt: skip
    with paused_gc(), locked(root):
        if only_plan:
            refuse_unfinished(root)  # even an interrupted change stays as it is
        found = () if only_plan else recover(root, SIDES[recovery or "finish"], syscalls)
        if wanted.is_empty:
            return _recovered(found)
        return _edit(root, wanted, prove, only_plan, report, found, header_slack_bytes, options, syscalls)


def _refuse_mixed(
    wanted: Wanted, out: Any, in_place: bool, recovery: Recovery | None, prove: bool, quick: bool
) -> None:
    """Raise E_USAGE for words that do not fit together."""
    if in_place == (out is not None):
        raise refusal(
            "E_USAGE", "name either an output or --in-place", fix="fix-keys SRC OUT, or fix-keys SRC --in-place"
        )
    if wanted.is_empty and not (in_place and recovery):
        raise refusal("E_USAGE", "no rule is given", fix="--rename FROM=TO, --rules FILE, --preset NAME or --like REF")
    if quick and (prove or in_place):
        raise refusal("E_USAGE", "--quick is for a new output, and the contrary of --prove")
    if recovery and not in_place:
        raise refusal("E_USAGE", "--recover and --undo go with --in-place")


def _refuse_idle(in_place: bool, quick: bool, report: Any, options: Options) -> None:
    """Raise E_USAGE for options that would do nothing: who asks for a check must not believe that it was made."""
    if report is not None and not in_place:
        raise refusal("E_USAGE", "--report goes with --in-place", fix="a new output holds its RENAME_REPORT.json")
    checks = {
        "--report-dir": options.report_dir is not None,
        "--publish-anyway": options.publish_anyway,
        "--engine": bool(options.engines),
    }
    outputs = {"--force": options.force, "--resume": options.resume, "--no-keep": not options.keep}
    given = [name for name, is_given in {**outputs, **checks}.items() if is_given]
    if in_place and given:
        raise refusal("E_USAGE", f"{given[0]} is for a new output, not for --in-place", fix="leave it out")
    unread = [name for name, is_given in checks.items() if is_given]
    if quick and unread:
        fix = "leave it out, and audit the output afterwards: convertkit audit OUT"
        raise refusal("E_USAGE", f"{unread[0]} is about checks, and --quick makes none", fix=fix)


def _parameters(change: Rename, wanted: Wanted) -> dict[str, Any]:
    return {
        "rules": [str(rule) for rule in change.renaming.rules],
        "presets": list(wanted.presets),
        "like": wanted.like is not None,
        "reverse": wanted.reverse,
    }


def _to_new(
    source: Path, out: Path, wanted: Wanted, quick: bool, slack_bytes: int, only_plan: bool, options: Options
) -> Result | DryRun | Keys:
    checkpoint = open_checkpoint(source)
    refuse_gguf(checkpoint, "fix-keys")
    check_place(out, checkpoint.paths, force=options.force or only_plan)
    rules, notes, each = rules_of(checkpoint, wanted)
    change = work_out(checkpoint, rules, each=each)
    if change.is_idle:
        return _nothing(change, notes)
    known = recorded(checkpoint)
    plan = plan_rename(checkpoint, change, known.tensors, _parameters(change, wanted), slack_bytes, notes)
    beside = Beside(checkpoint, NAMED_ONLY, options.engines)
    if only_plan:
        return dry_run(plan) if quick else beside.foreseen(plan)
    if quick:
        return carry_quickly(plan, out, change, known, options)
    return carry_out(plan, out, [rename_report(change), beside.report], options)


def _nothing(change: Rename, notes: Sequence[Finding], recovered: Sequence[Finding] = ()) -> Keys:
    settled = sum(change.renaming.settled)
    message = f"nothing to do: {settled} names are as the rules would have them" if settled else "nothing to do"
    findings = (*recovered, *notes, *change.config.findings, finding("N_NOTHING_TO_DO", "note", message))
    return Keys("nothing", _document("nothing", report_parts(change), findings), findings)


def _document(action: str, parts: Mapping[str, Any], findings: Sequence[Finding]) -> dict[str, Any]:
    return {
        "schema": "convertkit.keys/1",
        "tool": {"name": "convertkit", "version": __version__},
        "action": action,
        **parts,
        "findings": [item.as_json() for item in findings],
    }


def _recovered(found: Sequence[Finding]) -> Keys:
    if found:
        return Keys("recovered", _document("recovered", {}, found), tuple(found))
    note = (finding("N_NOTHING_TO_DO", "note", "no interrupted change is there"),)
    return Keys("nothing", _document("nothing", {}, note), note)


def _edit(
    root: Path,
    wanted: Wanted,
    prove: bool,
    only_plan: bool,
    report: str | os.PathLike[str] | None,
    found: tuple[Finding, ...],
    slack_bytes: int,
    options: Options,
    syscalls: Syscalls,
) -> Keys:
    checkpoint = open_checkpoint(root)
    refuse_gguf(checkpoint, "fix-keys")
    rules, notes, each = rules_of(checkpoint, wanted)
    change = work_out(checkpoint, rules, each=each)
    if change.is_idle:
        return _nothing(change, notes, found)
    known = recorded(checkpoint)
    said = (*found, *checkpoint.findings, *notes, *change.config.findings)
    if only_plan:
        return Keys("planned", _document("planned", report_parts(change), said), said)
    words = _parameters(change, wanted)
    note = {"verb": "fix-keys", "parameters": words}
    if report is not None:
        check_report_place(Path(report))
    made = edit_in_place(
        checkpoint, change, known, note,
        prove=prove, slack_bytes=slack_bytes, progress=options.progress, syscalls=syscalls,
    )  # fmt: skip
    said = (*said, *made.findings)
    document, files = edited_report(checkpoint, change, known, made, words, said, report is not None)
    if report is not None:
        _write(Path(report), files)
    options.progress.done()
    return Keys("edited", _document("edited", document, said), said)


def _write(path: Path, files: Mapping[str, bytes]) -> None:
    rows = f"{path.stem}.rows.jsonl"
    write_report_files(path, {path.name if name.endswith(".json") else rows: data for name, data in files.items()})
