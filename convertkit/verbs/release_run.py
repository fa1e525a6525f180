"""Making the variants of a release, side by side where they can be, and trusting those that an interrupted run has
finished."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from convertkit.checkpoint import Checkpoint
from convertkit.containers.files import read_small
from convertkit.containers.folder import open_any
from convertkit.containers.reader import Reader
from convertkit.containers.strict_json import dump_json, parse_json
from convertkit.conversion.place import check_place
from convertkit.conversion.staging import Staging
from convertkit.conversion.stop import Stop, stop_on_signals
from convertkit.conversion.syscalls import KERNEL, remove_tree, write_new
from convertkit.conversion.tiles import in_parallel
from convertkit.errors import ConvertError, Finding, refusal
from convertkit.release.follow import Background, source_digests
from convertkit.release.manifest import Manifest
from convertkit.release.manifest_reader import read_manifest
from convertkit.release.recipe import Recipe
from convertkit.verbs.case import Options
from convertkit.verbs.line import Given, carry_out
from convertkit.verbs.release_variants import Job, plan_job, reporters_of
from convertkit.verbs.verify import verify

AT_ONCE = 2
"""Variants that are made at the same time: one waits for its digests or the disk while the other computes."""
VARIANTS = "variants"
STAMPS = "source.json"
"""In the staging folder: the variants, each whole, and what the source's files looked like when the run began."""


@dataclass(frozen=True)
class Made:
    """A finished variant: where it lies, its manifest, its reports by file name, findings and status."""

    job: Job
    folder: Path
    manifest: Manifest = field(repr=False)
    reports: Mapping[str, Mapping[str, Any]] = field(repr=False)
    findings: tuple[Finding, ...] = ()
    status: int = 0

    @property
    def digests(self) -> dict[str, str]:
        return {entry.path: entry.sha256 for entry in self.manifest.files}

    def tensor_digests(self) -> dict[str, str]:
        return {entry.name: entry.sha256 for entry in self.manifest.tensors}

    def source_digests(self) -> dict[str, str]:
        return {str(item["path"]): str(item["sha256"]) for item in self.manifest.source}


def make_variants(
    recipe: Recipe, source: Checkpoint, jobs: Sequence[Job], staging: Staging, options: Options
) -> tuple[Made, ...]:
    """Every variant in its own folder of the staging folder; those whose input is there are made side by side.

    The files of the source and of each variant are hashed once: what is made from them takes the digests over. A
    resumed run keeps a finished variant if every byte of it verifies, it was made by this plan, and its input is what
    it was made from. Raises E_RESUME if the source is another one than before, E_CHANGED if it changed between two
    variants, and whatever making a variant raises.
    """
    work = staging.base / VARIANTS
    if not work.is_dir():
        staging.syscalls.mkdir(str(work))
    unchanged = _note_stamps(source, staging)
    staging.tensors_planned = sum(len(job.plan.outputs) for job in jobs)
    tasks = [Task(job, work / f"{number}-{job.variant.folder or 'root'}") for number, job in enumerate(jobs)]
    made: dict[str, Made] = {}
    try:
        with _digests_of(source) as digests:
            run = Run(recipe, source, digests, options)
            while len(made) < len(tasks):
                ready = [task for task in tasks if task.folder_name not in made and _has_input(task, made)]
                if staging.resumed:
                    made |= _trusted(run, ready, made)
                rest = [task for task in ready if task.folder_name not in made]
                if not (unchanged or made) and rest:
                    raise _other_source("the source was touched since, and nothing proves that it is the same")
                made |= _side_by_side(run, rest, made)
    except BaseException:  # a full disk keeps what is finished too, and so does a signal that no variant listens for
        staging.tensors_done = sum(_finished_tensors(task) for task in tasks)
        raise
    found = tuple(made[task.folder_name] for task in tasks)
    _refuse_changed(found)
    staging.tensors_done = staging.tensors_planned
    return found


@dataclass(frozen=True)
class Task:
    """A variant and the folder in which it is made."""

    job: Job
    folder: Path

    @property
    def folder_name(self) -> str:
        return self.job.variant.folder


@dataclass(frozen=True)
class Run:
    """What all variants of a run share. ``digests`` of the source's weight files: asking may wait for them."""

    recipe: Recipe
    source: Checkpoint
    digests: Callable[[], Mapping[str, str]] = field(repr=False)
    options: Options


def _has_input(task: Task, made: Mapping[str, Made]) -> bool:
    return task.job.variant.made_from is None or task.job.variant.made_from in made


@contextmanager
def _digests_of(source: Checkpoint) -> Iterator[Callable[[], Mapping[str, str]]]:
    """SHA-256 of the source's weight files, once for all variants, taken in the background."""
    with Reader(source) as reader, Background(lambda halt: source_digests(reader, halt)) as digests:
        yield digests.result


def _side_by_side(run: Run, tasks: Sequence[Task], made: Mapping[str, Made]) -> dict[str, Made]:
    """Make the variants; of several failures the one of the earliest is raised."""
    if len(tasks) < 2:
        return {task.folder_name: _make(run, task, made, None) for task in tasks}
    with stop_on_signals() as stop:
        found = in_parallel(lambda task: _make(run, task, made, stop), tasks, AT_ONCE)
    return {task.folder_name: one for task, one in zip(tasks, found, strict=True)}


def _note_stamps(source: Checkpoint, staging: Staging) -> bool:
    """Whether the source's files look as they did when the run began, which is recorded for the next run."""
    now = {file.name: [file.stamp.size_bytes, file.stamp.mtime_ns] for file in source.files}
    place = staging.base / STAMPS
    if staging.resumed and place.is_file():
        try:
            return bool(parse_json(place.read_bytes(), STAMPS) == now)
        except ConvertError:  # cut short: then nothing was made yet
            staging.syscalls.unlink(str(place))
    write_new(staging.syscalls, str(place), dump_json(now))
    return True


def _trusted(run: Run, tasks: Sequence[Task], made: Mapping[str, Made]) -> dict[str, Made]:
    """Those variants that an earlier run finished."""
    found: dict[str, Made] = {}
    for task in tasks:
        if task.folder.is_dir():
            made_from = task.job.variant.made_from
            inputs = run.digests() if made_from is None else made[made_from].digests
            one = _finished(task.job, task.folder, inputs, is_source=made_from is None, options=run.options)
            found |= {} if one is None else {task.folder_name: one}
    return found


def _finished(job: Job, folder: Path, inputs: Mapping[str, str], *, is_source: bool, options: Options) -> Made | None:
    """A variant that an earlier run finished, or None after removing one that is not what it should be."""
    if verify(folder, workers=options.workers, progress=options.progress).status == 0:
        found = _read(job, folder)
        weights = {name: sha256 for name, sha256 in found.source_digests().items() if name in inputs}
        same = bool(weights) and all(inputs[name] == sha256 for name, sha256 in weights.items())
        if not same and is_source:
            raise _other_source("the source has other bytes than those that the interrupted run read")
        if same and found.manifest.plan.get("fingerprint") == job.plan.fingerprint:
            return found
    remove_tree(KERNEL, folder)
    return None


def _other_source(message: str) -> ConvertError:
    return refusal("E_RESUME", message, fix="run again without --resume")


def _known_weights(source: Checkpoint, made: Iterable[Made]) -> dict[str, str]:
    """Digests of the source's weight files that a variant has taken already; empty if none has."""
    names = {file.name for file in source.files}
    digests = next((one.source_digests() for one in made if one.job.variant.made_from is None), {})
    return {name: sha256 for name, sha256 in digests.items() if name in names}


def _make(run: Run, task: Task, made: Mapping[str, Made], stop: Stop | None) -> Made:
    job, options = task.job, run.options
    planned = job.plan.fingerprint
    origin = None if job.variant.made_from is None else made[job.variant.made_from]
    job = plan_job(run.recipe, job.variant, run.source if origin is None else open_any(origin.folder))
    if job.plan.fingerprint != planned:
        raise refusal("E_INTERNAL", f"variant {job.variant.title} is planned otherwise from what was written")
    begun = check_place(task.folder, (), force=True).partial(planned).is_dir()
    words = replace(
        options,
        force=False,
        resume=options.resume and begun,
        keep=True,
        progress=options.progress.apart(job.variant.title),
        report_dir=None if options.report_dir is None else options.report_dir / job.variant.folder,
    )
    reporters = reporters_of(run.recipe, job, options.workers, _known_weights(run.source, made.values()))
    given = Given(run.digests) if origin is None else Given(lambda: origin.digests, origin.tensor_digests())
    result = carry_out(job.plan, task.folder, reporters, words, given=given, stop=stop)
    return replace(_read(job, task.folder), findings=result.findings, status=result.status)


def _finished_tensors(task: Task) -> int:
    """How many tensors of a variant are there: all, or those of its interrupted run."""
    if task.folder.is_dir():
        return len(task.job.plan.outputs)
    return _begun_tensors(task.folder, task.job.plan.fingerprint)


def _begun_tensors(folder: Path, fingerprint: str) -> int:
    """Finished tensors of an interrupted variant: one line each in its journal, after the first."""
    try:
        journal = check_place(folder, (), force=True).partial(fingerprint) / "journal"
        return max(0, journal.read_bytes().count(b"\n") - 1)
    except (OSError, ConvertError):
        return 0


def _read(job: Job, folder: Path) -> Made:
    manifest = read_manifest(folder).manifest
    reports = {}
    for name in job.reports:
        document = parse_json(read_small(folder, name), name)
        assert isinstance(document, dict)
        reports[name] = document
    return Made(job, folder, manifest, reports, status=int(any(one["verdict"] != "pass" for one in reports.values())))


def _refuse_changed(made: Sequence[Made]) -> None:
    """Variants of one source must have read the same bytes."""
    seen: dict[str, str] = {}
    for one in made:
        if one.job.variant.made_from is None:
            for name, sha256 in one.source_digests().items():
                if seen.setdefault(name, sha256) != sha256:
                    raise refusal("E_CHANGED", "the source changed between two variants", file=name,
                                  fix="run again when nothing writes to it")  # fmt: skip
