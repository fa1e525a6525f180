"""Renaming tensors: rules as pairs of templates, and their application to all names of a checkpoint at once.

Every name meets the first rule that fits it, so rules may swap names. What is checked is the whole: no two tensors
under one name, no quantized layer torn apart, no part of a name written twice by a rule that was applied before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from convertkit.errors import MAX_LISTED, ConvertError, Finding, check_text, finding, refusal, shown
from convertkit.layouts.rules import PLACEHOLDERS, Pattern, compile_template, families, template_fault

FAMILY_LEAVES = frozenset(
    (
        *("weight", "bias", "weight_packed", "weight_scale", "weight_scale_2", "weight_global_scale"),
        *("input_scale", "input_global_scale", "weight_shape", "weight_zero_point", "weight_scale_inv"),
        *("weight_blocks", "weight_scales", "scales", "biases", "qweight", "qzeros", "g_idx", "scales_and_zp"),
        *("absmax", "quant_map", "quant_state", "pre_quant_scale", "k_scale", "v_scale", "q_scale", "prob_scale"),
    )
)
"""Last names of the tensors that together are one layer: planes and scales of the dialects that convertkit reads or
knows (ModelOpt, compressed-tensors, MLX, GPTQ, MXFP4, bitsandbytes). They move together."""

STACK_LEAVES = (
    *("weight_scale_2", "weight_global_scale", "weight_packed", "weight_scale", "weight"),
    *("input_global_scale", "input_scale", "blocks", "scales", "bias"),
)
"""What follows the stem of a tensor that holds all experts (``gate_up_proj_weight_scale``); those tensors, and the bare
stem, are together one layer too."""

WEIGHT_SCALES = frozenset(("weight_scale", "weight_scale_inv", "weight_scales", "scales"))
"""Names of the scales of a weight that is stored as one tensor and its scales."""

NVFP4_LEAVES = frozenset(("weight_packed", "weight_scale_2", "weight_global_scale"))
"""Planes that only NVFP4 layers have: there ``weight_scale`` holds block scales, elsewhere (FP8) one scale or one per
row, so that a rule which is right for the one breaks the other."""

MAX_RUN = 8
"""Longest run of segments whose repetition is looked for: ``model.language_model`` twice is a run of two."""


@dataclass(frozen=True, slots=True)
class RenameRule:
    """One rule. ``source`` and ``target`` are templates; every placeholder of the target is one of the source."""

    source: str
    target: str

    def __str__(self) -> str:
        return f"{self.source}={self.target}"

    @property
    def reversed(self) -> RenameRule:
        return RenameRule(self.target, self.source)


@dataclass(frozen=True)
class Renaming:
    """What rules do to the names of a checkpoint.

    ``names`` maps old to new and holds only names that change, in the order given. ``counts`` and ``settled`` run in
    parallel to ``rules``: names that each changes, and names that have its final form already.
    """

    rules: tuple[RenameRule, ...]
    names: Mapping[str, str]
    counts: tuple[int, ...]
    settled: tuple[int, ...]
    findings: tuple[Finding, ...] = ()

    def new_name(self, name: str) -> str:
        return self.names.get(name, name)


def parse_rule(text: str) -> RenameRule:
    """``FROM=TO``. Raises E_PATTERN for a malformed template or a placeholder that FROM does not have."""
    source, equals, target = (part.strip() for part in text.partition("="))
    check_text(text, "a rule")
    if not equals or not source or not target or "=" in target:
        raise refusal("E_PATTERN", f"'{shown(text)}' is not FROM=TO", fix="for example a.{rest}=b.{rest}")
    for template in (source, target):
        fault = template_fault(template)
        if fault:
            raise refusal("E_PATTERN", f"the pattern '{shown(template)}' {fault}", fix="for example a.{rest}=b.{rest}")
    strange = set(compile_template(target).keys) - set(compile_template(source).keys)
    if strange:
        names = ", ".join(f"{{{key.rstrip('2')}}}" for key in sorted(strange))
        raise refusal("E_PATTERN", f"'{shown(target)}' has {names}, which '{shown(source)}' does not have")
    return RenameRule(source, target)


def parse_rules(text: str) -> tuple[RenameRule, ...]:
    """Rules of a file: one FROM=TO a line; empty lines and lines that start with ``#`` are left out."""
    lines = (line.strip() for line in text.splitlines())
    return tuple(parse_rule(line) for line in lines if line and not line.startswith("#"))


def reversed_rules(rules: Iterable[RenameRule]) -> tuple[RenameRule, ...]:
    """The rules the other way round. Raises E_PATTERN where a rule loses something that FROM captures."""
    return tuple(parse_rule(str(rule.reversed)) for rule in rules)


def apply_rules(rules: Sequence[RenameRule], names: Sequence[str]) -> Renaming:
    """Rename. Raises ``ConvertError`` with every fault: E_NAME_COLLISION, E_FAMILY_SPLIT, E_NAME_DOUBLED.

    A name that has the final form of the rule already, and would only get it twice, stays as it is.
    """
    patterns = [(compile_template(rule.source), compile_template(rule.target)) for rule in rules]
    changed: dict[str, str] = {}
    counts, settled = [0] * len(patterns), [0] * len(patterns)
    doubled: dict[str, str] = {}
    packed = {layer for layer, leaf in map(_layer_of, names) if leaf in NVFP4_LEAVES}
    spared: dict[str, str] = {}
    for name in names:
        number, new = first_match(patterns, name)
        if number < 0 or new == name:
            continue
        if _layer_of(name)[0] in packed and _is_respelled(name, new):
            spared[name] = new
            continue
        if is_doubled(new) and not is_doubled(name):
            if patterns[number][1].match(name) is not None:
                settled[number] += 1
            else:
                doubled[name] = new
            continue
        changed[name] = new
        counts[number] += 1
    faults = [*_doubled_findings(doubled), *_collisions(names, changed), *_torn_families(names, changed)]
    if spared and not changed and not {_layer_of(new)[1] for new in spared.values()} & {_layer_of(n)[1] for n in names}:
        faults += _torn_families(names, spared)  # nothing else is to be renamed, or was before
    if faults:
        raise ConvertError(faults)
    for number, (source, target) in enumerate(patterns):
        if not counts[number] and not settled[number]:
            settled[number] = sum(target.match(name) is not None and source.match(name) is None for name in names)
    return Renaming(tuple(rules), changed, tuple(counts), tuple(settled), tuple(_spared_findings(spared)))


def first_match(patterns: Sequence[tuple[Pattern, Pattern]], name: str) -> tuple[int, str]:
    """Number of the first rule that fits and the name it gives; -1 and the name itself if none does."""
    for number, (source, target) in enumerate(patterns):
        captures = source.match(name)
        if captures is not None and (new := target.format(captures)):
            return number, new
    return -1, name


def is_doubled(name: str) -> bool:
    """Whether a run of up to eight segments, not all of them numbers, is followed by itself."""
    parts = name.split(".")
    if len(set(parts)) == len(parts):
        return False
    for run in range(1, MAX_RUN + 1):
        for start in range(len(parts) - 2 * run + 1):
            if parts[start] != parts[start + run]:
                continue
            piece = parts[start : start + run]
            if piece == parts[start + run : start + 2 * run] and not all(part.isdecimal() for part in piece):
                return True
    return False


def _is_respelled(name: str, new: str) -> bool:
    """Whether a scale stays in its layer and gets another name that scales of weights have."""
    old, other = _layer_of(name), _layer_of(new)
    return old[0] == other[0] and old[1] != other[1] and {old[1], other[1]} <= WEIGHT_SCALES


def _spared_findings(spared: Mapping[str, str]) -> Iterable[Finding]:
    for family in families(spared).values():
        count, first = len(family.names), family.names[0]
        message = f"{count} x '{family.template}' stay as they are: NVFP4 layers have no {_layer_of(spared[first])[1]}"
        yield finding("W_RULE_SCOPED", "warning", message, tensor=first, data={"count": count})


def _doubled_findings(doubled: Mapping[str, str]) -> Iterable[Finding]:
    for family in families(doubled).values():
        first = family.names[0]
        yield finding(
            "E_NAME_DOUBLED",
            "error",
            f"{len(family.names)} x '{family.template}' would become '{shown(doubled[first])}', which repeats itself",
            tensor=first,
            fix="anchor the rule: begin FROM with the literal names that are there now",
            data={"count": len(family.names)},
        )


def _collisions(names: Sequence[str], changed: Mapping[str, str]) -> list[Finding]:
    taken: dict[str, str] = {}
    faults = []
    for name in names:
        new = changed.get(name, name)
        other = taken.setdefault(new, name)
        if other != name:
            faults.append(
                finding(
                    "E_NAME_COLLISION",
                    "error",
                    f"'{shown(other)}' and '{shown(name)}' would both be called so",
                    tensor=new,
                    fix="compare the two with `convertkit diff`; repair --dedupe drops equal ones",
                )
            )
    return faults[:MAX_LISTED]


def _torn_families(names: Sequence[str], changed: Mapping[str, str]) -> Iterable[Finding]:
    """Layers of which some tensors would move and others not, or go to different places, or change their roles."""
    touched = {_layer_of(name)[0] for name in changed}
    layers: dict[str, list[str]] = {}
    for name in names:
        module, leaf = _layer_of(name)
        if module in touched and leaf:
            layers.setdefault(module, []).append(name)
    torn = {module: found for module, found in layers.items() if len(found) > 1 and _is_torn(found, changed)}
    for family in families(torn).values():
        module = family.names[0]
        parts = ", ".join(shown(changed.get(name, name)) for name in torn[module])
        yield finding(
            "E_FAMILY_SPLIT",
            "error",
            f"{len(family.names)} x '{family.template}': the tensors of one layer would become {parts}",
            tensor=torn[module][0],
            fix="end the rule with {x} instead of the last name, so that all tensors of the layer move",
            data={"count": len(family.names), "modules": list(family.names[:MAX_LISTED])},
        )


def _layer_of(name: str) -> tuple[str, str]:
    """The layer that a tensor belongs to and what it is there; "" if it may move alone."""
    module, _, leaf = name.rpartition(".")
    if leaf in FAMILY_LEAVES:
        return module, leaf
    if module.rpartition(".")[2] != "experts":
        return module, ""
    suffix = next((suffix for suffix in STACK_LEAVES if leaf.endswith("_" + suffix)), None)
    return (name, "weight") if suffix is None else (name.removesuffix("_" + suffix), suffix)


def _is_torn(names: Sequence[str], changed: Mapping[str, str]) -> bool:
    homes = set()
    packed = any(_layer_of(name)[1] in NVFP4_LEAVES for name in names)
    for name in names:
        new = changed.get(name, name)
        home, new_leaf = _layer_of(new)
        if new_leaf != _layer_of(name)[1] and (packed or not _is_respelled(name, new)):
            return True
        homes.add(home)
    return len(homes) > 1


def idle_rules(renaming: Renaming, elsewhere: Sequence[int] = ()) -> list[RenameRule]:
    """Rules that change no name, whose final form no name has, and that changed nothing ``elsewhere`` (counts in
    parallel to the rules: entries of configs)."""
    other = elsewhere or (0,) * len(renaming.rules)
    triples = zip(renaming.rules, renaming.counts, renaming.settled, other, strict=True)
    return [rule for rule, count, settled, more in triples if not count and not settled and not more]


def module_rules(rule: RenameRule) -> tuple[RenameRule, ...]:
    """The rule as it applies to names of modules: as it stands, and without a last segment that both sides share."""
    source, _, leaf = rule.source.rpartition(".")
    target, _, other = rule.target.rpartition(".")
    plain = leaf == other and leaf not in ("{rest}", "{i}", "{e}") and source and target
    if not plain or (leaf in PLACEHOLDERS and rule.source.count(leaf) > 1):
        return (rule,)
    shorter = RenameRule(source, target)
    if set(compile_template(target).keys) - set(compile_template(source).keys):
        return (rule,)
    return (shorter, rule) if leaf == "{x}" else (rule, shorter)
