"""Does the quantization config say what the tensors show? Names against names, no weights.

A packed linear must be covered by the config, a dense one must not be, and every entry should mean something:
engines allocate what the config says and then fail, or worse do not, when the tensors differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from convertkit.checkpoint import TensorSpec
from convertkit.dialects.linears import fused_alias, roles_of
from convertkit.dialects.patterns import Matcher, Syntax
from convertkit.dialects.scheme import Scheme, mismatch_finding
from convertkit.dialects.substrings import names_around
from convertkit.errors import MAX_LISTED, Finding, Severity, finding
from convertkit.layouts.layout import Layout
from convertkit.layouts.rules import compile_template, families, without_model

MINOR_ROLES = frozenset({"router", "vision", "other", "markov", "confidence", "selector", "refiner"})
"""Roles that engines build unquantized whatever the config says, so an entry they lack is a warning only."""


BY_HAND = "correct the config; convertkit does not write it where it cannot read all that is quantized"
LOST_SCALES = "fetch the scales; if there are none, say so: convert --to nvfp4-modelopt-mixed states it per layer"
CURE = "repair --set-config writes it anew from the tensors"

TIED = ("lm_head", "embed_tokens")
"""Modules that configs name although nothing is stored for them when embeddings are tied."""

_SWAPS = (("model.language_model.", "language_model.model."), ("language_model.model.", "model.language_model."))


class NameSet:
    """Entries of a config (exact names, ``re:`` expressions or globs) and which of them were hit."""

    def __init__(self, entries: Iterable[str], unread: Iterable[str], globs: bool) -> None:
        skip = set(unread)
        self.parents = globs
        self.entries = tuple(dict.fromkeys(entries))  # blocks may state a name twice, also under two keys
        self.exact = {entry: number for number, entry in enumerate(self.entries)}
        kept = [(n, e) for n, e in enumerate(self.entries) if e not in skip and _is_pattern(e, globs)]
        syntax: Syntax = "glob" if globs else "regex"
        self.numbers = [number for number, _ in kept]
        self.matcher = Matcher([(syntax, entry.removeprefix("re:")) for _, entry in kept])
        self.hit: set[int] = set()

    def meets(self, names: Iterable[str]) -> bool:
        """Whether an entry means one of these names. All are asked, so that every entry met counts as used."""
        found = [self.has(name) for name in names]
        return any(found)

    def has(self, name: str) -> bool:
        """Whether an entry is this name, matches it, or (ModelOpt) is a parent of it."""
        hits = self.matcher.hits(name) if self.numbers else ()
        if not hits and (not self.exact or (not self.parents and name not in self.exact)):
            return False
        found, place = {self.numbers[number] for number in hits}, name
        while place:
            if place in self.exact:
                found.add(self.exact[place])
            place = place.rpartition(".")[0] if self.parents else ""
        self.hit |= found
        return bool(found)

    def unused(self) -> list[str]:
        """Entries that no name asked for has met."""
        return [entry for number, entry in enumerate(self.entries) if number not in self.hit]


def _is_pattern(entry: str, globs: bool) -> bool:
    return any(sign in entry for sign in "*?[") if globs else entry.startswith("re:")


def _spellings_of(module: str) -> tuple[str, ...]:
    """Names under which configs speak of a module: as stored, with and without ``model.``, with the language
    model's prefix in either order, and as part of a fused matrix."""
    names = [module, without_model(module), f"model.{without_model(module)}"]
    names += [new + module.removeprefix(old) for old, new in _SWAPS if module.startswith(old)]
    names += [alias for name in tuple(names) if (alias := fused_alias(name)) is not None]
    return tuple(dict.fromkeys(names))


@dataclass(frozen=True)
class Coverage:
    """The config as a question about modules: ``covers`` is True (quantized), False (not) or None (cannot tell). What
    is left out counts before what is listed (vLLM 0.33 ``modelopt.py:1748``)."""

    scheme: Scheme
    targets: NameSet
    ignore: NameSet
    linear: bool
    sure: bool
    known: dict[str, bool | None] = field(default_factory=dict)
    """Answers already given: a model of 30,000 packed linears is asked twice."""

    def covers(self, module: str) -> bool | None:
        if module not in self.known:
            self.known[module] = self._asked(module)
        return self.known[module]

    def _asked(self, module: str) -> bool | None:
        names = _spellings_of(module)
        ignored = self.ignore.meets(names)
        targeted = self.targets.meets(names)
        if ignored:
            return False
        if self.scheme.dialect == "modelopt-mixed" and not targeted:
            return False
        return (targeted or self.linear) if self.sure else None


def coverage_of(scheme: Scheme) -> Coverage:
    """Build the question. Class names other than ``Linear`` among targets or ignored make answers unsure."""
    globs = scheme.dialect != "compressed-tensors"
    listed = tuple(scheme.layers) if scheme.dialect == "modelopt-mixed" else scheme.targets
    linear = scheme.dialect == "modelopt" or "Linear" in scheme.targets
    classes = [name for name in (*scheme.targets, *scheme.ignore) if name[:1].isupper() and name != "Linear"]
    targets = NameSet([name for name in listed if name != "Linear" and name not in classes], scheme.unread, globs)
    ignore = NameSet([name for name in scheme.ignore if name not in classes], scheme.unread, globs)
    return Coverage(scheme, targets, ignore, linear, not classes and not scheme.unread)


def coherence_findings(
    scheme: Scheme,
    packed: Iterable[str],
    dense: Mapping[str, TensorSpec],
    others: Iterable[str],
    layout: Layout,
    severity: Severity = "error",
    coverage: Coverage | None = None,
    foreign: Mapping[str, str] | None = None,
) -> tuple[Finding, ...]:
    """Contradictions between config and tensors. ``dense`` are dense linears, ``others`` further module names,
    ``foreign`` modules that are quantized in another way, with its name.

    ``severity`` error gives E_QCONFIG_MISMATCH, warning gives W_QCONFIG_MISMATCH (the tensors are believed). Entries
    that are not read leave everything unsure, which W_ENTRY_UNREAD says.
    """
    coverage, renamed = coverage or coverage_of(scheme), runtime_names(scheme, layout)
    packed = tuple(packed)
    uncovered = [module for module in packed if coverage.covers(renamed(module)) is False]
    overdone = [module for module in dense if coverage.covers(renamed(module)) is True]
    asked = {*packed, *dense}
    for module in others:
        if module not in asked:
            coverage.covers(renamed(module))
    fix = BY_HAND if foreign else CURE
    strange = [module for module in foreign or {} if coverage.covers(renamed(module)) is False]
    roles = roles_of((f"{module}.weight" for module in overdone), layout)
    minor = [module for module in overdone if roles[f"{module}.weight"] in MINOR_ROLES]
    major = [module for module in overdone if roles[f"{module}.weight"] not in MINOR_ROLES]
    findings = [
        *_unread(scheme),
        *_by_family(uncovered, "packed, but the quantization config leaves it out", scheme, severity, fix),
        *_by_family(
            strange, "quantized in another way, but the quantization config leaves it out", scheme, severity, fix
        ),
        *_by_family(major, "dense, but the quantization config counts it as packed", scheme, severity, fix),
        *_by_family(minor, "dense and not excluded in the quantization config", scheme, "warning", fix),
    ]
    unused = [
        entry
        for entry in (*coverage.ignore.unused(), *coverage.targets.unused())
        if entry not in scheme.unread and entry.rpartition(".")[2] not in TIED
    ]
    if unused and coverage.sure:
        findings += _unused(unused, packed, scheme, fix)
    left_out = set(uncovered)
    covered = [module for module in packed if module not in left_out]
    return (*findings, *_substring_findings(scheme, covered, severity))


def runtime_names(scheme: Scheme, layout: Layout) -> Callable[[str], str]:
    """How a ModelOpt config names the modules of a drafter whose layers it numbers as the engine does: after those
    of the target (``layers.0`` is ``model.layers.{N}``). N is the lowest number the config states."""
    if not layout.names_layers_by_runtime or scheme.dialect == "compressed-tensors":
        return lambda module: module
    pattern = compile_template("layers.{i}.{rest}")
    hits = [pattern.match(without_model(entry)) for entry in (*scheme.layers, *scheme.ignore)]
    first = min((int(hit["i"]) for hit in hits if hit), default=0)
    return lambda module: runtime_name(module, first)


def runtime_name(module: str, target_layers: int) -> str:
    """The name vLLM 0.33 gives a module of an EAGLE-3 drafter behind a target of so many layers."""
    plain = without_model(module)
    if plain.startswith("midlayer."):
        plain = f"layers.0.{plain.removeprefix('midlayer.')}"
    hit = compile_template("layers.{i}.{rest}").match(plain)
    if hit is not None:
        plain = f"layers.{int(hit['i']) + target_layers}.{hit['rest']}"
    return plain if plain == "lm_head" else f"model.{plain}"


def _by_family(modules: Iterable[str], what: str, scheme: Scheme, severity: Severity, fix: str) -> list[Finding]:
    """One finding per family of modules."""
    findings = []
    for family in families(modules).values():
        count = len(family.names)
        message = f"'{family.names[0]}' is {what}" if count == 1 else f"{count} x '{family.template}': {what}"
        data = {"count": count, "template": family.template, "modules": list(family.names[:MAX_LISTED])}
        findings.append(
            mismatch_finding(severity, message, scheme.place, tensor=f"{family.names[0]}.weight", fix=fix, data=data)
        )
    return findings


def _listed(entries: Sequence[str]) -> str:
    return ", ".join(entries[:4]) + (" …" if len(entries) > 4 else "")


def _unread(scheme: Scheme) -> list[Finding]:
    """One finding for all expressions that convertkit does not understand, such as look-arounds."""
    entries = list(scheme.unread)
    if not entries:
        return []
    message = f"{len(entries)} expressions of the quantization config are not read here: {_listed(entries)}"
    message += "; whether it packs what is stored packed is not told"
    fix = "say the same with plain names, or expressions without look-arounds and flags"
    data = {"count": len(entries), "entries": entries[:MAX_LISTED]}
    return [finding("W_ENTRY_UNREAD", "warning", message, file=scheme.place, fix=fix, data=data)]


def _unused(entries: list[str], packed: Sequence[str], scheme: Scheme, fix: str) -> list[Finding]:
    """Entries that mean nothing: parents of packed linears by themselves, as the tool that wrote them took them for a
    way to leave out what they hold."""
    parents: dict[str, list[str]] = {entry: [] for entry in entries}
    for module in packed if scheme.dialect == "compressed-tensors" else ():
        for name in _spellings_of(module)[:3]:
            while name := name.rpartition(".")[0]:
                if name in parents:
                    parents[name].append(module)
    holds = {entry: list(dict.fromkeys(held)) for entry, held in parents.items() if held and entry in scheme.ignore}
    findings = [
        mismatch_finding(
            "warning",
            f"'{entry}' is left out by the quantization config, but {len(held)} linears in it are packed, such as "
            f"{held[0]}: a name means itself and not what lies in it",
            scheme.place, tensor=f"{held[0]}.weight", fix=fix, data={"entry": entry, "modules": held[:MAX_LISTED]},
        )
        for entry, held in holds.items()
    ]  # fmt: skip
    rest = [entry for entry in entries if entry not in holds]
    if rest:
        what = "1 entry of the quantization config names" if len(rest) == 1 else (
            f"{len(rest)} entries of the quantization config name")  # fmt: skip
        data = {"count": len(rest), "entries": rest[:MAX_LISTED]}
        message = f"{what} no stored module: {_listed(rest)}"
        findings.append(mismatch_finding("warning", message, scheme.place, fix=fix, data=data))
    return findings


def activation_findings(
    coverage: Coverage, inputs: Mapping[str, bool], layout: Layout, severity: Severity
) -> tuple[Finding, ...]:
    """Packed linears (``inputs``: whether each has an activation scale) that lack one although the config quantizes
    activations: engines leave it uninitialised, or take 1."""
    scheme, renamed = coverage.scheme, runtime_names(coverage.scheme, layout)

    def quantizes(module: str) -> bool:
        if not scheme.layers:
            return scheme.algorithms == ("NVFP4",) and coverage.covers(renamed(module)) is True
        stated = (scheme.layers.get(name) for name in _spellings_of(renamed(module)))
        return next((algorithm == "NVFP4" for algorithm in stated if algorithm is not None), False)

    bare = [module for module, there in inputs.items() if not there and quantizes(module)]
    what = "packed without an activation scale, but the quantization config quantizes activations"
    return tuple(_by_family(bare, what, scheme, severity, LOST_SCALES))


def _substring_findings(scheme: Scheme, packed: Iterable[str], severity: Severity) -> list[Finding]:
    """vLLM 0.33 (``modelopt.py:211``) takes an entry that is part of a name for a match: ``mlp.gate`` also leaves
    out ``mlp.gate_proj``, ``layers.1`` also ``layers.10``."""
    if scheme.dialect != "modelopt":
        return []
    names = {name: module for module in packed for name in (module, fused_alias(module) or module)}
    around = names_around((entry for entry in scheme.ignore if not _is_pattern(entry, globs=True)), names)
    bad = [entry for entry in scheme.ignore if entry in around]
    if not bad:
        return []
    victim = around[bad[0]]
    message = f"the excluded name '{bad[0]}' is part of the packed '{victim}': vLLM would load that unquantized"
    return [
        mismatch_finding(
            severity, message, scheme.place, tensor=f"{names[victim]}.weight", data={"entries": bad[:MAX_LISTED]}
        )
    ]
