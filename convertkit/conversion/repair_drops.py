"""``repair --drop`` and ``--keep``: leaving tensors out by their names, each with its reason."""

from __future__ import annotations

from collections.abc import Collection

from convertkit.conversion.repair_work import RepairRequest, Work
from convertkit.errors import finding, raise_all, refusal
from convertkit.layouts.rules import compile_template, families, module_of, without_model

CHOSEN = ("--drop", "--keep")
"""The options by which a user leaves tensors out, whatever they are."""


def drop_named(work: Work, request: RepairRequest) -> None:
    """Leave out what ``--drop`` names, or what ``--keep`` does not.

    Raises E_PATTERN, E_PATTERN_EMPTY; E_FAMILY_SPLIT for a part of the planes of a packed weight; E_USAGE where nothing
    would be left.
    """
    option = CHOSEN[0] if request.drop else CHOSEN[1]
    chosen: dict[str, str] = {}
    for template in request.drop or request.keep:
        pattern = compile_template(template)
        hits = [name for name in work.source.tensors if pattern.match(name) or pattern.match(without_model(name))]
        if not hits:
            names = ", ".join(list(families(work.source.tensors))[:6])
            raise refusal("E_PATTERN_EMPTY", f"{option} '{template}' fits no tensor", fix=f"names here: {names}")
        for name in hits:
            chosen.setdefault(name, template)
    if request.drop:
        reasons = {name: f"left out by {option} '{template}'" for name, template in chosen.items()}
    else:
        reasons = {name: f"not named by {option}" for name in work.source.tensors if name not in chosen}
    if len(reasons) == len(work.source.tensors):
        raise refusal("E_USAGE", f"{option} would leave no tensor")
    _refuse_parts(work, reasons.keys())
    for name, reason in reasons.items():
        work.drop(name, reason, option)


def _refuse_parts(work: Work, left_out: Collection[str]) -> None:
    parts = []
    for module, packed in work.identity.packed.items():
        names = [ref.spec.name for ref in packed.refs]
        gone = [name for name in names if name in left_out]
        if gone and len(gone) < len(names):
            parts.append((module, gone[0]))
    raise_all(
        finding("E_FAMILY_SPLIT", "error", "it is a plane of a packed weight whose other planes stay", tensor=name,
                fix=f"end the pattern with {{x}} or {{rest}}, so that it fits all of '{module}'")
        for module, name in parts[:20]
    )  # fmt: skip


def head_is_left_out(work: Work) -> bool:
    """Whether the user left the head out: that it is tied does not follow."""
    return any("lm_head" in module_of(name).split(".") and work.owner.get(name) in CHOSEN for name in work.dropped)
