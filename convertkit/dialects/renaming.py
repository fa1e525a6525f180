"""Renamed tensors in quantization configs: exact names, parents, expressions and globs follow their modules.

An entry means a set of stored modules. After a renaming it must mean the same modules under their new names; that is
tested for every entry, whatever way its new text was found.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from convertkit.containers.folder import CONFIG, QUANT_CONFIG
from convertkit.dialects.patterns import PatternFault, Syntax, pattern_fault
from convertkit.dialects.rewording import literal_swaps, means_any, meant, replaced, spelled_out
from convertkit.dialects.scheme import blocks_of
from convertkit.errors import Finding, finding, refusal
from convertkit.layouts.renames import Renaming, first_match, module_rules
from convertkit.layouts.rules import compile_template, without_model

LIST_KEYS = ("ignore", "exclude_modules", "targets", "modules_to_not_convert", "ignored_layers")
"""Keys of lists of module names in the blocks that convertkit knows (ModelOpt, compressed-tensors, transformers)."""

MAP_KEYS = ("quantized_layers",)
"""Keys of objects whose own keys are module names."""

GLOB_SIGNS = re.compile(r"[*?\[]")


@dataclass(frozen=True)
class RenamedConfig:
    """The two documents with renamed entries. ``changed`` counts entries, ``hits`` the changes per rule;
    ``findings`` name entries that mean no stored module any more, or never did."""

    config: dict[str, Any]
    quant_config: dict[str, Any]
    changed: int
    hits: tuple[int, ...]
    findings: tuple[Finding, ...] = ()


def rename_config(
    config: Mapping[str, Any], quant_config: Mapping[str, Any], renaming: Renaming, modules: Iterable[str]
) -> RenamedConfig:
    """Rename the entries of every quantization block of ``config.json`` and of ``hf_quant_config.json``.

    ``modules`` are the modules of all stored tensors before the renaming. Nothing else in the documents changes.
    """
    scribe = _Scribe(renaming, tuple(dict.fromkeys(modules)))
    new_config = _deep(config)
    for _, block in blocks_of(new_config):
        scribe.block(block, CONFIG)
    new_quant = _deep(quant_config)
    scribe.block(new_quant, QUANT_CONFIG)
    return RenamedConfig(new_config, new_quant, scribe.changed, tuple(scribe.hits), tuple(scribe.findings))


def _deep(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _deep(item) for key, item in value.items()}
    return [_deep(item) for item in value] if isinstance(value, list) else value


@dataclass
class _Scribe:
    """Rewrites blocks in place and keeps count."""

    renaming: Renaming
    modules: tuple[str, ...]
    changed: int = 0
    hits: list[int] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.hits = [0] * len(self.renaming.rules)
        pairs = [(number, rule) for number, one in enumerate(self.renaming.rules) for rule in module_rules(one)]
        self._numbers = [number for number, _ in pairs]
        self._rules = [rule for _, rule in pairs]
        self._patterns = [(compile_template(rule.source), compile_template(rule.target)) for rule in self._rules]
        self._moved = _moved_modules(self.renaming)
        self._new = tuple(self._moved.get(module, module) for module in self.modules)
        self._known = _with_parents(self.modules)
        self._known_new = _with_parents(self._new)
        self._done: dict[tuple[str, bool], list[str]] = {}

    def block(self, block: Any, file: str) -> None:
        """Rename the entries of one block, nested groups included."""
        if not isinstance(block, dict):
            return
        globs = str(block.get("quant_method", "modelopt")).startswith("modelopt") or "producer" in block
        for holder in _holders(block):
            for key in LIST_KEYS:
                value = holder.get(key)
                if isinstance(value, list):
                    holder[key] = [new for entry in value for new in self._entry(entry, globs, file, key)]
            for key in MAP_KEYS:
                value = holder.get(key)
                if isinstance(value, dict):
                    holder[key] = self._renamed_keys(value, globs, file, key)

    def _renamed_keys(self, value: dict[str, Any], globs: bool, file: str, key: str) -> dict[str, Any]:
        """An object whose keys are entries. Raises E_NAME_COLLISION where two of them, which say different things, get
        one name."""
        renamed: dict[str, Any] = {}
        came: dict[str, str] = {}
        for name, item in value.items():
            for new in self._entry(name, globs, file, key):
                if renamed.setdefault(new, item) != item:
                    message = f"the entries '{came[new]}' and '{name}' would both be called '{new}', and differ"
                    raise refusal("E_NAME_COLLISION", message, file=file, key=key, fix="remove the one that is wrong")
                came[new] = name
        return renamed

    def _entry(self, entry: Any, globs: bool, file: str, key: str) -> list[Any]:
        if not isinstance(entry, str):
            return [entry]
        if (entry, globs) not in self._done:
            found = self._renamed(entry, globs)
            self.changed += found != [entry]
            self._done[entry, globs] = found
            fault = self._fault(entry, globs)
            if fault is not None and self._moved:
                self.findings.append(_unread(entry, fault, file, key))
            for new in found:
                if not self._means_something(new, globs):
                    self.findings.append(_unmatched(entry, new, file, key))
        return list(self._done[entry, globs])

    def _fault(self, entry: str, globs: bool) -> PatternFault | None:
        """Why an entry that is an expression or a glob is not read."""
        if globs:
            return pattern_fault("glob", entry) if GLOB_SIGNS.search(entry) else None
        return pattern_fault("regex", entry.removeprefix("re:")) if entry.startswith("re:") else None

    def _renamed(self, entry: str, globs: bool) -> list[str]:
        if _is_class(entry) and entry not in self._known:
            return [entry]
        if entry.startswith("re:") and not globs:
            return self._renamed_pattern(entry, "regex", entry.removeprefix("re:"))
        if globs and GLOB_SIGNS.search(entry):
            return self._renamed_pattern(entry, "glob", entry)
        number, new = first_match(self._patterns, entry)
        if number < 0 and entry not in self._known:  # configs may leave out a leading 'model.', or add it
            plain = without_model(entry)
            other = plain if plain != entry else f"model.{entry}"
            number, new = first_match(self._patterns, other)
            if number >= 0 and plain == entry:
                new = without_model(new)
        if number < 0 or new == entry or (entry in self._known_new and entry not in self._known):
            return [entry]
        if entry in self._known and new not in self._known_new:
            return [entry]
        self.hits[self._numbers[number]] += 1
        return [new]

    def _renamed_pattern(self, entry: str, syntax: Syntax, text: str) -> list[str]:
        """The expression itself if it still means the same modules, else with a rule's literal parts replaced, else
        one expression per family or the names themselves."""
        if pattern_fault(syntax, text) is not None:
            return [entry]
        # modules that keep their names are meant as before, so an expression is first tried on those that move
        moved = tuple(self._moved)
        hit = meant(syntax, text, moved)
        same = meant(syntax, text, tuple(self._moved.values())) == {self._moved[module] for module in hit}
        if same and (hit or not self._speaks_of_old(text)):
            return [entry]
        before = meant(syntax, text, self.modules)
        if same and before:
            return [entry]
        wanted = {self._moved.get(module, module) for module in before}
        for number, rule in enumerate(self._rules):
            for old, new in literal_swaps(rule):
                candidate = replaced(text, old, new)
                if candidate == text or pattern_fault(syntax, candidate) is not None:
                    continue
                if meant(syntax, candidate, self._new) == wanted:
                    self.hits[self._numbers[number]] += 1
                    return ["re:" + candidate if syntax == "regex" else candidate]
        if not before:
            return [entry]
        return spelled_out(wanted, set(self._new), syntax)

    def _speaks_of_old(self, text: str) -> bool:
        return any(replaced(text, old, new) != text for rule in self._rules for old, new in literal_swaps(rule))

    def _means_something(self, entry: str, globs: bool) -> bool:
        if _is_class(entry):
            return True
        if entry.startswith("re:") and not globs:
            text = entry.removeprefix("re:")
            return pattern_fault("regex", text) is not None or means_any("regex", text, self._new)
        if globs and GLOB_SIGNS.search(entry):
            return pattern_fault("glob", entry) is not None or means_any("glob", entry, self._new)
        plain = without_model(entry)
        leaf = entry.rpartition(".")[2]
        return leaf in ("lm_head", "embed_tokens") or any(
            name in self._known_new for name in (entry, plain, f"model.{plain}")
        )


def _is_class(entry: str) -> bool:
    """Whether an entry is the name of a class, such as ``Linear``: it means modules of every name."""
    return entry[:1].isupper() and "." not in entry


def _moved_modules(renaming: Renaming) -> dict[str, str]:
    """Old to new module of every tensor whose module changes."""
    moved: dict[str, str] = {}
    for old, new in renaming.names.items():
        before, _, leaf = old.rpartition(".")
        after, _, new_leaf = new.rpartition(".")
        if leaf == new_leaf and before != after:
            moved[before] = after
    return moved


def _with_parents(modules: Iterable[str]) -> set[str]:
    known: set[str] = set()
    for module in modules:
        while module and module not in known:
            known.add(module)
            module = module.rpartition(".")[0]
    return known


def _holders(block: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The block and every object inside it that may hold lists of names."""
    yield block
    for key, value in block.items():
        if isinstance(value, dict) and key not in MAP_KEYS:
            yield from _holders(value)


def _unread(entry: str, fault: PatternFault, file: str, key: str) -> Finding:
    message = f"the entry '{entry}' has {fault}, which is not read here, so it stays as it is"
    fix = "see that it means the same modules under their new names"
    return finding("W_ENTRY_UNREAD", "warning", message, file=file, key=key, fix=fix, data={"entry": entry})


def _unmatched(entry: str, new: str, file: str, key: str) -> Finding:
    was = f" (it was '{entry}')" if new != entry else ""
    return finding(
        "W_ENTRY_UNMATCHED",
        "warning",
        f"the entry '{new}'{was} of the quantization config means no stored module",
        file=file,
        key=key,
        fix="correct or remove it: engines ignore such an entry without a word",
        data={"entry": entry, "renamed": new},
    )
