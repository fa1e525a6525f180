"""The whole line for verbs that write a folder: survey, write, check, report, manifest, publish."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from convertkit.checkpoint import Checkpoint
from convertkit.checks.bench import Evidence
from convertkit.checks.verify import verify_output
from convertkit.containers.folder import open_any
from convertkit.containers.reader import Reader
from convertkit.containers.strict_json import paused_gc
from convertkit.conversion.carry import carry_over
from convertkit.conversion.desk import Desk
from convertkit.conversion.place import Kind, Place, check_place, check_space
from convertkit.conversion.plan import Plan
from convertkit.conversion.publish import publish
from convertkit.conversion.run import execute
from convertkit.conversion.side_files import copy_side_file, side_bytes
from convertkit.conversion.sink import Sink, open_sink
from convertkit.conversion.staging import Staging, open_staging, write_small
from convertkit.conversion.stop import Stop, stop_on_signals
from convertkit.conversion.survey import Facts, survey
from convertkit.conversion.tiles import Buffers
from convertkit.errors import ConvertError, finding, refusal
from convertkit.grids.nvfp4.devices import kernels_of
from convertkit.release.digests import sha256_range
from convertkit.release.follow import Background, follow, source_digests
from convertkit.verbs.case import Case, Options, Reporter, Result
from convertkit.verbs.line_end import judge, list_output, refuse_leftovers, source_rows
from convertkit.workers import worker_count


class Clock:
    """Seconds per stage, for benchmarks only: never part of an output."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began


@dataclass(frozen=True)
class Given:
    """Digests of a source that somebody has taken already, so that they are not taken again: of all its weight files
    (by path; asked for at the end, may wait), and of tensors (by name) that may be copied."""

    files: Callable[[], Mapping[str, str]]
    tensors: Mapping[str, str] = field(default_factory=dict)


def carry_out(
    plan: Plan,
    out: Path,
    reporters: Sequence[Reporter],
    options: Options,
    kind: Kind = "folder",
    *,
    given: Given | None = None,
    stop: Stop | None = None,
) -> Result:
    """Run a plan and publish its output at ``out``, whole or not at all.

    An output of kind ``file`` is the plan's one weight file alone; its reports go to ``options.report_dir``. Runs
    beside others share their ``stop``.

    Raises ``ConvertError``: the place is refused (status 5), values in the source are not acceptable (3), writing
    failed (4), a report says no (1, nothing published), a promise is broken (70, nothing published).
    """
    clock = Clock()
    if options.device != "cpu":
        kernels_of(options.device)
    place = _free_place(plan, out, options, kind)
    # a plan of a hundred thousand tensors is millions of live objects: collecting would only walk them again and again
    with (
        paused_gc(),
        stop_on_signals() if stop is None else nullcontext(stop) as stop,
        Reader(plan.source) as reader,
    ):
        desk = Desk(reader, stop, options.progress, Buffers(pinned=options.device == "cuda"), options.device)
        with (
            open_staging(place, plan.fingerprint, resume=options.resume, keep=options.keep) as staging,
            Background(lambda halt: source_digests(reader, halt) if given is None else {}) as sources,
        ):
            case = _staged(plan, desk, staging, given or Given(sources.result), options, clock)
            with clock.stage("reports"):
                reports = [reporter(case) for reporter in reporters]
                rejected = judge(reports, staging, options)
                carried = carry_over(staging)
            with clock.stage("manifest"):
                listed = list_output(case, reports, carried, staging, options) if kind == "folder" else {}
            with clock.stage("publish"):
                published = publish(staging, stop)
    options.progress.done()
    said = (item for report in reports for item in report.findings)
    found = (*plan.findings, *staging.findings, *published.findings, *said)
    documents = {report.name: report.document for report in reports}
    return Result(published.out, plan, 1 if rejected else 0, found, documents, listed, carried.carried, clock.seconds)


def _free_place(plan: Plan, out: Path, options: Options, kind: Kind) -> Place:
    """Where the output goes, with room for it and nothing in the way."""
    place = check_place(out, plan.source.paths, force=options.force, kind=kind)
    refuse_leftovers(place)
    needed_bytes = plan.output_bytes + side_bytes(plan.source.root, plan.side_files)
    check_space(place, needed_bytes, reuse=plan.fingerprint if options.resume else None)
    return place


def _staged(plan: Plan, desk: Desk, staging: Staging, given: Given, options: Options, clock: Clock) -> Case:
    """Write the output in staging and test every promise; what reports are made from."""
    with clock.stage("survey"):
        facts = survey(plan, desk, worker_count(options.workers))
    written = _write(plan, facts, desk, staging, options, clock, given.tensors)
    _refuse_broken(written.evidence, staging.resumed)
    with clock.stage("source digest"):
        source_files = source_rows(plan, given.files())
    desk.reader.assert_unchanged()
    return Case(
        plan,
        facts,
        written.evidence,
        staging.files,
        written.output,
        written.tensors,
        written.files,
        source_files,
    )


@dataclass(frozen=True)
class Written:
    """What the checks found in the staged output, its headers, and SHA-256 of its tensors and files by name."""

    evidence: Sequence[Evidence]
    output: Checkpoint
    tensors: Mapping[str, str]
    files: Mapping[str, str]


def _write(
    plan: Plan,
    facts: Facts,
    desk: Desk,
    staging: Staging,
    options: Options,
    clock: Clock,
    known: Mapping[str, str],
) -> Written:
    """Documents, side files, weights; then every promise is tested while the last digests are taken."""
    workers = worker_count(options.workers)
    with (
        open_sink(
            staging,
            plan.files,
            desk.stop,
            stamps={file.name: file.stamp for file in plan.source.files},
            digest_source=lambda name: known.get(name) or _digest_of(desk, name),
            workers=workers,
        ) as sink,
        Background(lambda halt: follow(sink, plan.files, halt)) as follower,
        _stopping(sink),
    ):
        for name, data in plan.documents.items():
            write_small(staging, name, data)
        for name in plan.side_files:
            copy_side_file(plan.source.root, name, staging, desk.stop)
        with clock.stage("write"):
            made = execute(plan, facts, desk, sink, workers, sink.done, known)
        with clock.stage("check"), Reader(open_any(staging.files)) as output:
            evidence = verify_output(plan, facts, desk, output, made.differing, workers)
        with clock.stage("flush"):
            sink.finish()  # first: it refuses a byte that was never written, which the follower would wait for
            digests: Mapping[str, str] = follower.result()
    return Written(evidence, output.checkpoint, made.digests, digests)


def _digest_of(desk: Desk, name: str) -> str:
    """SHA-256 of a source tensor's stored bytes, for a resumed run; empty for a name that the source lacks."""
    ref = desk.reader.checkpoint.tensors.get(name)
    if ref is None:
        return ""
    return sha256_range(desk.reader.fd(ref.file), ref.start, ref.size_bytes, ref.file, lambda _: desk.stop.check())


@contextmanager
def _stopping(sink: Sink) -> Iterator[None]:
    """Whatever fails while the sink is written, the reader behind it must hear of it: it would wait forever."""
    try:
        yield
    except ConvertError as error:
        sink.abort(error)
        raise
    except BaseException as error:
        sink.abort(refusal("E_INTERNAL", f"{type(error).__name__} while writing"))
        raise


def _refuse_broken(evidence: Sequence[Evidence], resumed: bool) -> None:
    """A broken promise is our bug, except that a resumed run may have met another source than it began with."""
    broken = [fault for item in evidence for fault in item.faults]
    if broken and resumed:
        what = "tensors of the interrupted run do not belong to this source"
        broken.insert(0, finding("E_RESUME", "error", what, fix="run again without --resume"))
    if broken:
        raise ConvertError(broken)
