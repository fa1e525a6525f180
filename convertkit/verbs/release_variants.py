"""The variants of a release: how each is planned from its input, and which reports prove it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from convertkit.checkpoint import Checkpoint
from convertkit.containers.folder import open_checkpoint
from convertkit.conversion.foreseen import foresee
from convertkit.conversion.identify import identify
from convertkit.conversion.plan import Plan
from convertkit.conversion.planners import ExpandRequest, Files, PackRequest, plan_expand, plan_pack, plan_respell
from convertkit.errors import ConvertError, Finding, finding, refusal
from convertkit.formats import FORMATS
from convertkit.release.recipe import GGUF, SOURCE, Recipe, Variant
from convertkit.verbs.case import Reporter
from convertkit.verbs.drafters import plan_to_drafter
from convertkit.verbs.gguf_report import gguf_report
from convertkit.verbs.pack_report import gate_report
from convertkit.verbs.reporting import audit_report, dequant_report
from convertkit.verbs.target import target_layers
from convertkit.verbs.to_gguf import plan_to_gguf


@dataclass(frozen=True)
class Job:
    """A variant with its plan. ``reports`` names the reports that will prove it."""

    variant: Variant
    plan: Plan = field(repr=False)
    reports: tuple[str, ...]


def plan_jobs(recipe: Recipe, source: Checkpoint) -> tuple[Job, ...]:
    """Plan every variant from headers alone; the inputs that are variants themselves are foreseen.

    Raises ``ConvertError`` with the faults of all variants, each of which says its folder.
    """
    jobs: dict[str, Job] = {}
    faults: list[Finding] = []
    for variant in recipe.variants:
        if variant.made_from is not None and variant.made_from not in jobs:
            continue  # what it is made from has faults of its own
        given = source if variant.made_from is None else foresee(jobs[variant.made_from].plan)
        try:
            jobs[variant.folder] = plan_job(recipe, variant, given)
        except ConvertError as error:
            faults.extend(replace(item, message=f"variant {variant.title}: {item.message}") for item in error.findings)
    if faults:
        raise ConvertError(faults)
    return tuple(jobs.values())


def plan_job(recipe: Recipe, variant: Variant, given: Checkpoint) -> Job:
    """Plan one variant from the checkpoint it is made from."""
    if given.container != "safetensors":
        raise refusal("E_CONTAINER", "a variant is made from safetensors, not from GGUF")
    if variant.format == GGUF:
        plan = plan_to_gguf(
            given, type=variant.type, target_model=recipe.target_model, pre=variant.pre, name=recipe.name
        )
        return Job(variant, plan, ("GGUF_REPORT.json",))
    row = FORMATS[variant.format]
    files = Files(variant.max_shard_bytes)
    if row.layout != "keep":
        return Job(variant, _drafter_plan(recipe, variant, given, row.layout, files), ("LOAD_SHAPE_AUDIT.json",))
    identity = identify(given)
    layers = None if recipe.target_model is None else target_layers(recipe.target_model)
    if row.grid != "NVFP4":
        verb = "dequant" if identity.packed else "convert"
        expand = ExpandRequest(row.grid, cast=not identity.packed, verb=verb)
        made = ("DEQUANT_REPORT.json",) if identity.packed else ()
        return Job(variant, plan_expand(given, identity, expand, files), (*made, "LOAD_SHAPE_AUDIT.json"))
    if identity.packed:
        plan = plan_respell(given, identity, row.dialect, layers, files)
        return Job(variant, plan, ("DEQUANT_REPORT.json", "LOAD_SHAPE_AUDIT.json"))
    request = PackRequest(
        row.dialect,
        variant.scales,
        variant.include,
        variant.exclude,
        variant.fuse,
        variant.reversible_scale,
        layers,
        marlin_safe=variant.marlin_safe,
    )
    return Job(
        variant, plan_pack(given, identity, request, files), ("FIDELITY_GATE.json", "LOAD_SHAPE_AUDIT.json")
    )  # fmt: skip


def _drafter_plan(recipe: Recipe, variant: Variant, given: Checkpoint, layout: str, files: Files) -> Plan:
    return plan_to_drafter(
        given,
        to=layout,
        verb="convert",
        target_model=recipe.target_model,
        target_id=recipe.target_id,
        allow_loss=variant.allow_loss,
        files=files,
    )


def reporters_of(recipe: Recipe, job: Job, workers: int, source_sha256: Mapping[str, str]) -> Sequence[Reporter]:
    """What makes the reports that ``job.reports`` names, in that order. ``source_sha256`` are digests of the source's
    weight files, as far as they are known."""
    against = recipe.against(job.variant)
    reference = None if against is None else open_checkpoint(against)
    known = source_sha256 if job.variant.against == SOURCE else None
    makers: Mapping[str, Reporter] = {
        "FIDELITY_GATE.json": gate_report(recipe.limits),
        "DEQUANT_REPORT.json": dequant_report(reference, workers, known),
        "LOAD_SHAPE_AUDIT.json": audit_report(target_model=recipe.target_model),
        "GGUF_REPORT.json": gguf_report(written=True),
    }
    return [makers[name] for name in job.reports]


def require_against(jobs: Sequence[Job]) -> None:
    """``E_RECIPE`` for a variant that is to be compared and is no expansion."""
    faults = [
        finding("E_RECIPE", "error", f"variant {job.variant.title} expands nothing, so 'against' does not apply")
        for job in jobs
        if job.variant.against is not None and "DEQUANT_REPORT.json" not in job.reports
    ]
    if faults:
        raise ConvertError(faults)
