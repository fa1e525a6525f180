"""``release``: from a recipe to one folder with all variants, reports, card, manifest; whole or not at all."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from convertkit import __version__
from convertkit.checkpoint import Checkpoint
from convertkit.containers.folder import open_checkpoint
from convertkit.conversion.carry import carry_over
from convertkit.conversion.place import check_place, check_space
from convertkit.conversion.publish import publish
from convertkit.conversion.side_files import side_bytes
from convertkit.conversion.staging import open_staging
from convertkit.conversion.stop import stop_on_signals
from convertkit.errors import ConvertError, Finding
from convertkit.release.digests import sha256_files
from convertkit.release.paths import CARD, MANIFEST, PAGE, SUMS
from convertkit.release.provenance import PROVENANCE
from convertkit.release.recipe import Recipe, read_recipe
from convertkit.release.summary import RELEASE_REPORT
from convertkit.release.tree import walk
from convertkit.verbs.case import Options
from convertkit.verbs.line import Clock
from convertkit.verbs.release_checks import check_engines, check_references
from convertkit.verbs.release_folder import assemble, finish
from convertkit.verbs.release_foreseen import require_inputs, require_names
from convertkit.verbs.release_run import make_variants
from convertkit.verbs.release_variants import Job, plan_jobs, require_against


@dataclass(frozen=True)
class ReleasePlan:
    """A release that was planned and not made; ``document`` lists everything that will exist."""

    recipe: Recipe
    jobs: tuple[Job, ...] = field(repr=False)
    fingerprint: str
    document: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True)
class ReleaseResult:
    """``status`` is 0, or 1 if a check said no and it was published anyway. ``report`` is RELEASE_REPORT.json,
    ``manifest`` what ``verbs.manifest`` gave back."""

    out: Path
    status: int
    findings: tuple[Finding, ...]
    report: Mapping[str, Any] = field(repr=False)
    manifest: Mapping[str, Any] = field(repr=False)
    timings: Mapping[str, float] = field(default_factory=dict, repr=False)


def release(
    recipe: str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
    *,
    only_plan: bool = False,
    options: Options = Options(),
) -> ReleaseResult | ReleasePlan:
    """Make the release that a recipe file describes in the new folder ``out`` (its name beside the recipe if None).

    Every variant is planned before any weight is read, made and proven in staging, and audited; then card, page,
    provenance and manifest are written, and the folder appears in one step. The same recipe and source give the
    same bytes. ``only_plan`` writes nothing.

    Raises:
        ConvertError: E_RECIPE, whatever planning or making a variant raises; a report, engine or reference that
            says no (1); a source that changed since the interrupted run (E_RESUME). Nothing is published then. Names
            that collide, and a reference or superseded release that is not there, are found before anything is made.
    """
    made = read_recipe(recipe)
    folder = Path(recipe).parent / made.name if out is None else Path(out)
    source = open_checkpoint(made.source)
    jobs = plan_jobs(made, source)
    require_against(jobs)
    require_names(made, jobs)
    require_inputs(made)
    print_ = _fingerprint(made, jobs)
    if only_plan:
        check_place(folder, _sources(made, source), force=True)
        return ReleasePlan(made, jobs, print_, describe(made, jobs, print_, folder))
    return _carry_out(made, source, jobs, print_, folder, options)


def _carry_out(
    recipe: Recipe, source: Checkpoint, jobs: Sequence[Job], print_: str, out: Path, options: Options
) -> ReleaseResult:
    place = check_place(out, _sources(recipe, source), force=options.force)
    needed = sum(job.plan.output_bytes + side_bytes(job.plan.source.root, job.plan.side_files) for job in jobs)
    check_space(place, needed, reuse=print_ if options.resume else None)
    clock = Clock()
    with open_staging(place, print_, resume=options.resume, keep=options.keep) as staging:
        with clock.stage("variants"):
            made = make_variants(recipe, source, jobs, staging, options)
        with clock.stage("checks"):
            engines = check_engines(recipe, made)
            references = check_references(recipe, made, options.workers)
        found = [*staging.findings, *(item for one in made for item in one.findings)]
        found += [*engines.findings, *references.findings]
        errors = [item for item in (*engines.findings, *references.findings) if item.severity == "error"]
        if errors and not options.publish_anyway:
            raise ConvertError(errors, status=1)
        with stop_on_signals() as stop, clock.stage("documents"):
            assemble(recipe, made, staging, stop)
            carried = carry_over(staging)
            document, listed = finish(recipe, made, engines, references, print_, staging, carried.carried, options)
            published = publish(staging, stop)
    options.progress.done()
    failed = bool(errors) or any(one.status for one in made)
    return ReleaseResult(
        published.out, int(failed), (*found, *published.findings), document, listed, dict(clock.seconds)
    )  # fmt: skip


def _sources(recipe: Recipe, source: Checkpoint) -> list[Path]:
    """Everything that is read and must not be the output."""
    others = [recipe.target_model, *(item.path for item in recipe.references)]
    against = [recipe.against(variant) for variant in recipe.variants]
    return [*source.paths, *(path for path in (*others, *against) if path is not None)]


def _fingerprint(recipe: Recipe, jobs: Sequence[Job]) -> str:
    """SHA-256 over all that decides the release's bytes, except the payload of the checkpoints that it reads."""
    files = {path.name: sha256_files(path.parent, [path.name])[path.name].sha256 for path in recipe.files}
    parts = [
        ["convertkit", __version__, "release"],
        dict(recipe.words),
        files,
        [[job.variant.folder, job.plan.fingerprint] for job in jobs],
    ]
    return hashlib.sha256(json.dumps(parts, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def describe(recipe: Recipe, jobs: Sequence[Job], print_: str, out: Path) -> dict[str, Any]:
    """What will exist, as JSON values: files with their sizes in bytes, None for those whose size is not known yet."""
    return {
        "verb": "release",
        "name": recipe.name,
        "output": out.name,
        "fingerprint": print_,
        "variants": [
            {
                "folder": job.variant.title,
                "format": job.variant.format,
                "made_from": "source" if job.variant.made_from is None else job.variant.made_from or ".",
                "tensors": len(job.plan.outputs),
                "size_bytes": sum(file.header.size_bytes for file in job.plan.files),
                "fingerprint": job.plan.fingerprint,
                "reports": list(job.reports),
            }
            for job in jobs
        ],
        "files": [{"path": path, "size_bytes": size} for path, size in sorted(_planned_files(recipe, jobs).items())],
        "engines": [str(wish.asked) for wish in recipe.engines],
        "references": [item.name for item in recipe.references],
        "replaces": sorted(walk(out).paths) if out.is_dir() else [],
        "findings": [item.as_json() for job in jobs for item in job.plan.findings],
    }


def _planned_files(recipe: Recipe, jobs: Sequence[Job]) -> dict[str, int | None]:
    files: dict[str, int | None] = dict.fromkeys((CARD, PAGE, RELEASE_REPORT, PROVENANCE, MANIFEST, SUMS))
    for job in jobs:
        base = f"{job.variant.folder}/" if job.variant.folder else ""
        files.update({f"{base}{name}": None for name in (*job.reports, CARD, MANIFEST, SUMS)})
        files.update({f"{base}{file.name}": file.header.size_bytes for file in job.plan.files})
        files.update({f"{base}{name}": len(data) for name, data in job.plan.documents.items()})
        root = job.plan.source.root
        sides = (name for name in job.plan.side_files if name.lower() != "readme.md")
        files.update({f"{base}{name}": os.stat(root / name).st_size for name in sides})
        files.update({f"{base}{path.name}": path.stat().st_size for path in recipe.files})
    return files
