"""What would stop a release at its end, found before it begins: names that collide, and inputs that are not there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from convertkit.containers.folder import open_any
from convertkit.errors import ConvertError, Finding, finding, shown
from convertkit.release.manifest_reader import read_earlier
from convertkit.release.paths import CARD, OWN_FILES, PAGE, join
from convertkit.release.provenance import PROVENANCE
from convertkit.release.recipe import Recipe
from convertkit.release.summary import RELEASE_REPORT
from convertkit.verbs.release_variants import Job

OF_THE_WHOLE = (CARD, PAGE, RELEASE_REPORT, PROVENANCE, *OWN_FILES)
"""What every release has in its root."""


def require_inputs(recipe: Recipe) -> None:
    """Open the headers of what the release is compared with, and the list of what it supersedes.

    Raises ``ConvertError`` as opening a checkpoint and as ``read_earlier``.
    """
    against = (recipe.against(variant) for variant in recipe.variants)
    for path in (*(item.path for item in recipe.references), *against):
        if path is not None and path != recipe.source:
            open_any(path)
    if recipe.supersedes is not None:
        read_earlier(recipe.supersedes)


def require_names(recipe: Recipe, jobs: Sequence[Job]) -> None:
    """``E_RECIPE`` for a variant's folder that has the name of a file in the root, and for one of the recipe's files
    that would take the place of something made. Files that are only copied from the source may be replaced."""
    faults = [*_folder_faults(recipe, jobs), *_file_faults(recipe, jobs)]
    if faults:
        raise ConvertError(faults)


def _made_names(job: Job) -> set[str]:
    """Names in the folder of a variant that hold what was made, and not what was copied from the source."""
    rows = (name.removesuffix(".json") + ".rows.jsonl" for name in job.reports)
    return {CARD, *OWN_FILES, *job.reports, *rows, *(file.name for file in job.plan.files), *job.plan.documents}


def _folder_faults(recipe: Recipe, jobs: Sequence[Job]) -> Iterator[Finding]:
    taken = {name.casefold(): name for name in (*OF_THE_WHOLE, *(path.name for path in recipe.files))}
    for job in jobs:
        if not job.variant.folder:
            names = (*_made_names(job), *job.plan.side_files)
            taken.update({top.casefold(): top for name in names for top in [name.partition("/")[0]]})
    for number, variant in enumerate(recipe.variants):
        name = taken.get(variant.folder.casefold())
        if name is not None:
            message = f"the release has '{shown(name)}' in its root, which a folder cannot have beside it"
            yield finding("E_RECIPE", "error", message, key=f"variants[{number}].folder", fix="choose another name")


def _file_faults(recipe: Recipe, jobs: Sequence[Job]) -> Iterator[Finding]:
    made: Mapping[str, str] = {
        name.casefold(): join(job.variant.folder, name) for job in reversed(jobs) for name in _made_names(job)
    }
    for number, path in enumerate(recipe.files):
        place = made.get(path.name.casefold())
        if place is not None:
            message = f"'{shown(path.name)}' would take the place of '{shown(place)}', which is made"
            yield finding("E_RECIPE", "error", message, key=f"files[{number}]", fix="give the file another name")
