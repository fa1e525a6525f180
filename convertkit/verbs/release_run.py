"""Making the variants of a release one after the other, and trusting those that an interrupted run has finished."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from convertkit.checkpoint import Checkpoint
from convertkit.containers.files import read_small
from convertkit.containers.folder import open_any
from convertkit.containers.strict_json import dump_json, parse_json
from convertkit.conversion.place import check_place
from convertkit.conversion.staging import Staging
from convertkit.conversion.stop import Interrupted
from convertkit.conversion.syscalls import KERNEL, remove_tree, write_new
from convertkit.errors import ConvertError, Finding, refusal
from convertkit.progress import Progress
from convertkit.release.digests import sha256_files
from convertkit.release.manifest import Manifest
from convertkit.release.manifest_reader import read_manifest
from convertkit.release.recipe import Recipe
from convertkit.verbs.line import Options, carry_out
from convertkit.verbs.release_variants import Job, plan_job, reporters_of
from convertkit.verbs.verify import verify

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

    def source_digests(self) -> dict[str, str]:
        return {str(item["path"]): str(item["sha256"]) for item in self.manifest.source}


def make_variants(
    recipe: Recipe, source: Checkpoint, jobs: Sequence[Job], staging: Staging, options: Options
) -> tuple[Made, ...]:
    """Every variant in its own folder of the staging folder.

    A resumed run keeps a finished variant if every byte of it verifies, it was made by this plan, and its input is
    what it was made from. Raises E_RESUME if the source is another one than before, E_CHANGED if it changed between
    two variants, and whatever making a variant raises.
    """
    work = staging.base / VARIANTS
    if not work.is_dir():
        staging.syscalls.mkdir(str(work))
    unchanged = _note_stamps(source, staging)
    staging.tensors_planned = sum(len(job.plan.outputs) for job in jobs)
    made: dict[str, Made] = {}
    source_digests: dict[str, str] = {}
    for number, job in enumerate(jobs):
        folder = work / f"{number}-{job.variant.folder or 'root'}"
        given = None if job.variant.made_from is None else made[job.variant.made_from]
        if staging.resumed and folder.is_dir():
            if given is None and not source_digests:
                source_digests = _digests_of(source, options)
            inputs = source_digests if given is None else given.digests
            found = _finished(job, folder, inputs, is_source=given is None, options=options)
            unchanged = unchanged or (given is None and found is not None)
        else:
            found = None
        if found is None:
            if given is None and not unchanged:
                raise _other_source("the source was touched since, and nothing proves that it is the same")
            opened = source if given is None else open_any(given.folder)
            known = _known_weights(source, made.values())
            found = _make(recipe, job, folder, opened, known, staging, options)
        made[job.variant.folder] = found
        staging.tensors_done += len(job.plan.outputs)
    _refuse_changed(tuple(made.values()))
    return tuple(made.values())


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


def _digests_of(source: Checkpoint, options: Options) -> dict[str, str]:
    names = [file.name for file in source.files]
    found = sha256_files(source.root, names, options.workers, options.progress)
    return {name: item.sha256 for name, item in found.items()}


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


def _make(
    recipe: Recipe,
    job: Job,
    folder: Path,
    given: Checkpoint,
    source_sha256: Mapping[str, str],
    staging: Staging,
    options: Options,
) -> Made:
    planned = job.plan.fingerprint
    job = plan_job(recipe, job.variant, given)
    if job.plan.fingerprint != planned:
        raise refusal("E_INTERNAL", f"variant {job.variant.title} is planned otherwise from what was written")
    begun = check_place(folder, (), force=True).partial(planned).is_dir()
    words = replace(
        options,
        force=False,
        resume=options.resume and begun,
        keep=True,
        progress=Named(options.progress, job.variant.title),
        report_dir=None if options.report_dir is None else options.report_dir / job.variant.folder,
    )
    try:
        result = carry_out(job.plan, folder, reporters_of(recipe, job, options.workers, source_sha256), words)
    except Interrupted as error:
        staging.tensors_done += _begun_tensors(folder, planned)
        raise Interrupted(error.signum) from error
    return replace(_read(job, folder), findings=result.findings, status=result.status)


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


@dataclass(frozen=True)
class Named:
    """Progress whose stages say which variant they are about."""

    inner: Progress
    title: str

    def stage(self, name: str, total_bytes: int) -> None:
        self.inner.stage(f"{self.title} {name}", total_bytes)

    def advance(self, size_bytes: int) -> None:
        self.inner.advance(size_bytes)

    def done(self) -> None:
        self.inner.done()
