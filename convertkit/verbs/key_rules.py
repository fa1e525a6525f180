"""Which rules ``fix-keys`` was asked for: written out, by name, or worked out from a reference."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from convertkit.checkpoint import Checkpoint
from convertkit.containers.files import read_small
from convertkit.containers.folder import INDEX_SUFFIX, open_checkpoint
from convertkit.containers.safetensors import name_fault
from convertkit.containers.strict_json import parse_json
from convertkit.conversion.renaming import logical_forms
from convertkit.dialects.spelling import SPELLINGS
from convertkit.errors import MAX_LISTED, ConvertError, Finding, finding, refusal, shown
from convertkit.layouts.likeness import Form, likeness
from convertkit.layouts.presets import preset_rules
from convertkit.layouts.renames import NVFP4_LEAVES, RenameRule, parse_rule, parse_rules, reversed_rules

PLANES = frozenset(leaf for row in SPELLINGS.values() for leaf in (*row.leaves, row.input_scale))
"""Last names of the tensors of packed linears."""


@dataclass(frozen=True)
class Wanted:
    """Where rules come from: ``rename`` are FROM=TO, ``rules`` a file of them, ``presets`` rows of ``PRESETS``,
    ``like`` a reference (folder, safetensors, index, or a text file of names). ``reverse`` turns all round."""

    rename: tuple[str, ...] = ()
    rules: Path | None = None
    presets: tuple[str, ...] = ()
    like: Path | None = None
    reverse: bool = False

    @property
    def is_empty(self) -> bool:
        return not (self.rename or self.presets or self.rules or self.like)


def rules_of(source: Checkpoint, wanted: Wanted) -> tuple[tuple[RenameRule, ...], tuple[Finding, ...], bool]:
    """The rules, what is to be said about them, and whether each of them must have an effect."""
    rules = [parse_rule(text) for text in wanted.rename]
    if wanted.rules is not None:
        rules.extend(parse_rules(_text(wanted.rules)))
    each = bool(rules)
    for name in wanted.presets:
        rules.extend(preset_rules(name))
        each = False
    findings: tuple[Finding, ...] = ()
    if wanted.like is not None:
        found, findings = _like(source, wanted.like)
        rules.extend(found)
    return (reversed_rules(rules) if wanted.reverse else tuple(rules)), findings, each


def _text(path: Path) -> str:
    try:
        return read_small(path.parent, path.name).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise refusal("E_USAGE", "the file is not UTF-8 text", file=shown(path)) from None


def _like(source: Checkpoint, reference: Path) -> tuple[tuple[RenameRule, ...], tuple[Finding, ...]]:
    """Rules worked out from a reference, and notes on names without a counterpart."""
    there = _reference_forms(reference)
    if not there:
        raise refusal("E_USAGE", "the reference names no tensor", file=shown(reference), fix="one name a line")
    found = likeness(logical_forms(source), there)
    if found.findings:
        raise ConvertError(found.findings)
    data = {"left": list(found.left[:MAX_LISTED]), "missing": list(found.missing[:MAX_LISTED])}
    if not found.rules and found.missing:
        first = ", ".join(found.missing[:3])
        message = f"no renaming leads to {len(found.missing)} names of the reference that are not here: {first}"
        raise refusal("E_LIKE_NONE", message, fix="say how with --rename FROM=TO", data=data)
    notes = []
    if found.left or found.missing:
        message = f"{len(found.left)} kinds of names are not in the reference, {len(found.missing)} of its are not here"
        notes.append(finding("W_LIKE_LEFT", "warning", message, data=data))
    return found.rules, tuple(notes)


def _reference_forms(path: Path) -> dict[str, Form | None]:
    """Names of a reference, with dtype and shape where it has headers: a folder or weight file, a shard index, or a
    text file with one name a line."""
    if path.is_dir() or path.name.endswith(".safetensors"):
        return logical_forms(open_checkpoint(path))
    if path.name.endswith((INDEX_SUFFIX, ".json")):
        document = parse_json(read_small(path.parent, path.name), path.name)
        names = document.get("weight_map", document) if isinstance(document, dict) else document
        if isinstance(names, (dict, list)) and names and all(isinstance(name, str) for name in names):
            return _listed(names, path)
        raise refusal("E_USAGE", "the reference is neither an index nor a list of names", file=shown(path))
    names = [line.strip() for line in _text(path).splitlines()]
    return _listed([name for name in names if name and not name.startswith("#")], path)


def _listed(names: Iterable[str], path: Path) -> dict[str, Form | None]:
    """Names without forms. Raises E_USAGE for one that no weight file can hold."""
    for name in names:
        fault = name_fault(name)
        if fault is not None:
            raise refusal("E_USAGE", f"'{shown(name)}' names no tensor: {fault[1]}", file=shown(path))
    return dict.fromkeys(_logical(names))


def _logical(names: Iterable[str]) -> Iterator[str]:
    """Names with one ``weight`` in place of the planes of each packed linear, as ``logical_forms`` counts them."""
    listed = tuple(dict.fromkeys(names))
    packed = {name.rpartition(".")[0] for name in listed if name.rpartition(".")[2] in NVFP4_LEAVES}
    for name in listed:
        module, _, leaf = name.rpartition(".")
        if module not in packed or leaf not in PLANES:
            yield name
        elif leaf in NVFP4_LEAVES:
            yield f"{module}.weight"
