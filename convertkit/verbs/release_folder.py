"""Putting a release together in its staging folder: variants, report, card, page, provenance, manifests."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from convertkit.checks.code_counts import code_counts
from convertkit.containers.files import read_small
from convertkit.containers.folder import open_any
from convertkit.conversion.carry import CARRIED_KEY, link_or_copy
from convertkit.conversion.failures import write_failure
from convertkit.conversion.staging import Staging
from convertkit.conversion.stop import Stop
from convertkit.conversion.syscalls import KERNEL, remove_tree, write_new
from convertkit.release.card import render_card, render_variant_card
from convertkit.release.page import render_page
from convertkit.release.paths import CARD, MANIFEST, OWN_FILES, PAGE, ROWS, join
from convertkit.release.provenance import PROVENANCE, render_statement
from convertkit.release.recipe import Recipe
from convertkit.release.reports import envelope, render_report
from convertkit.release.summary import RELEASE_REPORT, View, read_view, variant_row
from convertkit.verbs.case import Options
from convertkit.verbs.inspect import inspect
from convertkit.verbs.manifest import manifest
from convertkit.verbs.release_checks import Checked
from convertkit.verbs.release_run import Made


def assemble(recipe: Recipe, made: Sequence[Made], staging: Staging, stop: Stop) -> None:
    """Link every variant's files into the output, and copy the recipe's files into each of its folders.

    Links, so that an interrupted run loses nothing: the variants themselves go with the staging folder.
    """
    try:
        for name in os.listdir(staging.files):
            path = staging.files / name
            remove_tree(KERNEL, path) if path.is_dir() else os.unlink(path)
        for one in made:
            folder = staging.files / one.job.variant.folder
            folder.mkdir(exist_ok=True)
            for entry in one.manifest.files:
                stop.check()
                if entry.path.lower() != CARD.lower() and entry.path not in OWN_FILES:
                    link_or_copy(staging.syscalls, one.folder / entry.path, folder / entry.path)
            _add_files(recipe, folder)
        _add_files(recipe, staging.files)
    except OSError as error:
        raise write_failure(error, staging.files) from error


def _add_files(recipe: Recipe, folder: Path) -> None:
    for path in recipe.files:
        place = folder / path.name
        if os.path.lexists(place):
            os.unlink(place)  # a link to the variant's file
        shutil.copyfile(path, place)


def finish(
    recipe: Recipe,
    made: Sequence[Made],
    engines: Checked,
    references: Checked,
    print_: str,
    staging: Staging,
    carried: Sequence[str],
    options: Options,
) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Write report, cards, page, provenance and manifests; the report's document, and what the manifest says."""
    root = staging.files
    report, files = _report(recipe, made, engines, references, print_, options.workers)
    for name, data in files.items():
        _write(staging, name, data)
    digests = _nested_manifests(recipe, made, report, staging, options)
    source = _source_files(made)
    plan = {"verb": "release", "fingerprint": print_, "parameters": _parameters(recipe, made, carried)}
    root_variant = next((one for one in made if not one.job.variant.folder), None)
    if root_variant is not None:
        digests.update({name: sha256 for name, sha256 in root_variant.digests.items() if _is_kept(recipe, name)})
    _write(staging, PROVENANCE, render_statement(report, plan, _byproducts(root, made, digests)))
    view = read_view(root, digests)
    _write(staging, CARD, render_card(recipe.card, view))
    _write(staging, PAGE, render_page(view))
    if root_variant is not None:
        _copy_own(root_variant, root)
    listed = manifest(
        root,
        supersedes=recipe.supersedes,
        follows=staging.place.out if staging.place.existing == "old" else None,
        digests=digests,
        lineage={"source": {"files": source}, "plan": plan},
        workers=options.workers,
    )
    return report, listed


def _parameters(recipe: Recipe, made: Sequence[Made], carried: Sequence[str]) -> dict[str, Any]:
    plans = [{"folder": one.job.variant.title, **dict(one.manifest.plan)} for one in made]
    return {"recipe": dict(recipe.words), "variants": plans, **({CARRIED_KEY: list(carried)} if carried else {})}


def _source_files(made: Sequence[Made]) -> list[Mapping[str, Any]]:
    """Files of the source as the variants that were made from it read them."""
    seen: dict[str, Mapping[str, Any]] = {}
    for one in made:
        if one.job.variant.made_from is None:
            seen.update({str(item["path"]): item for item in one.manifest.source})
    rows = (seen[path] for path in sorted(seen))
    return [{"size_bytes" if key == "size" else key: value for key, value in row.items()} for row in rows]


def _report(
    recipe: Recipe, made: Sequence[Made], engines: Checked, references: Checked, print_: str, workers: int
) -> tuple[Mapping[str, Any], Mapping[str, bytes]]:
    """RELEASE_REPORT.json: one row per variant; engines, references and the drafter in the summary."""
    rows = [
        variant_row(
            one.job.variant, one.job.plan, one.manifest, one.reports, code_counts(open_any(one.folder), workers)
        )
        for one in made
    ]
    outputs = [
        {"path": join(one.job.variant.folder, file["path"]), "size_bytes": file["size_bytes"], "sha256": file["sha256"]}
        for one, row in zip(made, rows, strict=True)
        for file in row["weights"]
    ]
    found = [item for one in made for item in one.findings if item.severity != "note"]
    first = inspect(made[0].folder)
    drafter = first.get("drafter") or {}
    document = envelope(
        "release-report",
        source=_source_files(made),
        output=outputs,
        verb="release",
        fingerprint=print_,
        parameters=dict(recipe.words),
        summary={
            "name": recipe.name,
            "version": recipe.version,
            "layout": first["layout"]["name"],
            "kind": first["layout"]["kind"],
            "target_id": recipe.target_id,
            "drafter": drafter.get("spec"),
            "engines": list(engines.rows),
            "references": list(references.rows),
        },
        findings=[*found, *engines.findings, *references.findings],
    )
    rendered = render_report(RELEASE_REPORT, document, rows)
    return rendered.document, rendered.files


def _nested_manifests(
    recipe: Recipe, made: Sequence[Made], report: Mapping[str, Any], staging: Staging, options: Options
) -> dict[str, str]:
    """Card and manifest of every subfolder, so that it verifies alone; digests of all files below the root."""
    digests: dict[str, str] = {}
    for one in made:
        base = one.job.variant.folder
        if not base:
            continue
        folder = staging.files / base
        view = View(recipe.name, report, {})
        _write(staging, f"{base}/{CARD}", render_variant_card(recipe.card, view, one.job.variant.title))
        _copy_own(one, folder)
        known = {name: sha256 for name, sha256 in one.digests.items() if _is_kept(recipe, name)}
        manifest(folder, digests=known, workers=options.workers)
        digests.update({join(base, name): sha256 for name, sha256 in known.items()})
    return digests


def _is_kept(recipe: Recipe, name: str) -> bool:
    """Whether a variant's file is in the release as it was."""
    return name.lower() != CARD.lower() and name not in {path.name for path in recipe.files} and name not in OWN_FILES


def _copy_own(one: Made, folder: Path) -> None:
    """The variant's manifest, whose digests of tensors the final one takes over."""
    for name in (MANIFEST, ROWS):
        if (one.folder / name).exists():
            shutil.copyfile(one.folder / name, folder / name)


def _byproducts(root: Path, made: Sequence[Made], digests: Mapping[str, str]) -> dict[str, str]:
    """Reports with their digests."""
    of_variants = (join(one.job.variant.folder, name) for one in made for name in one.job.reports)
    return {
        name: digests[name] if name in digests else hashlib.sha256(read_small(root, name)).hexdigest()
        for name in sorted((RELEASE_REPORT, *of_variants))
    }


def _write(staging: Staging, name: str, data: bytes) -> None:
    place = staging.files / name
    try:
        if os.path.lexists(place):
            os.unlink(place)
        write_new(staging.syscalls, str(place), data)
    except OSError as error:
        raise write_failure(error, place, len(data)) from error
