"""What a drafter conversion does with each tensor: copied under its new name, dropped, borrowed or spelled anew."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from convertkit.checkpoint import Checkpoint
from convertkit.containers.reader import Reader
from convertkit.conversion.drafter_units import Borrow, Mask, Offsets
from convertkit.conversion.plan import Drop, Unit
from convertkit.conversion.target import Target, equals_lent
from convertkit.conversion.units import Copy
from convertkit.conversion.vocabulary import judge_map, mask_of
from convertkit.drafter import DrafterSpec
from convertkit.dtypes import FLOATS
from convertkit.errors import Finding, finding
from convertkit.layouts.forms import FORMS
from convertkit.layouts.fused import fused_groups
from convertkit.layouts.layout import Layout
from convertkit.layouts.names import from_hub, to_hub
from convertkit.layouts.reading import BORROWABLE
from convertkit.layouts.rules import module_of

SHARING = frozenset({"speculators-dflash", "speculators-dflash2", "speculators-dspark", "dflash", "dflash2"})
"""Layouts that always use the target's embeddings, and its head unless the vocabulary is reduced."""

Lose = Callable[..., Finding]
"""Makes the finding of a loss: of a field, with a message, an error unless the field is among those allowed."""


@dataclass(frozen=True)
class DrafterRequest:
    """What was asked for: the format (a key of ``ROUTES``), the hub name of the target, and accepted losses."""

    to: str
    verb: str
    target_id: str | None = None
    allow_loss: tuple[str, ...] = ()


@dataclass(frozen=True)
class Move:
    """One conversion on its way to a plan: what is moved where, and the units, drops and findings so far.

    ``names`` maps source tensors to their names in the output; ``left`` are those that do not go there. ``planes``
    are the source tensors that belong to packed linears, or scale the KV cache.
    """

    source: Checkpoint
    out: Layout
    spec: DrafterSpec
    target: Target | None
    request: DrafterRequest
    lose: Lose
    names: dict[str, str]
    planes: frozenset[str] = frozenset()
    units: list[Unit] = field(default_factory=list)
    drops: list[Drop] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    left: set[str] = field(default_factory=set)

    @property
    def reduced(self) -> bool:
        return self.spec.draft_vocabulary != self.spec.vocabulary

    def drop(self, name: str, reason: str) -> None:
        if name not in self.left:
            self.drops.append(Drop(name, reason))
            self.left.add(name)


def new_names(source: Checkpoint, here: Layout, out: Layout) -> dict[str, str]:
    """Source tensors and what they are called in the layout ``out``."""
    return {name: from_hub(out.name, to_hub(here.name, name)) for name in source.tensors}


def plan_tensors(move: Move) -> None:
    """Decide about every tensor; faults are findings of the move.

    Reads vocabulary maps and, with a target's weights, copies of its tensors.
    """
    with Reader(move.source) as reader:
        _reduced_head(move)
        _unknown(move)
        _shared_copies(move, reader)
        respelled = _vocabulary_map(move, reader)
    modules = {module_of(name) for name in move.names.values()}
    bundles = {member: lead for lead, members in fused_groups(modules, move.out).items() for member in members}
    for name, ref in move.source.tensors.items():
        if name not in move.left and name not in respelled:
            new = move.names[name]
            move.units.append(Copy(ref, new, bundles[module_of(new)]))
    if move.out.name == "dspark" and not move.reduced:
        _borrow(move)


def _unknown(move: Move) -> None:
    """Tensors that the format does not know: readers drop them in silence, or stop. Dropping one must be allowed."""
    told = ("d2t", "t2d") if move.reduced else ()  # the loss is that of the reduced vocabulary
    for name, new in move.names.items():
        if name not in move.planes | move.left and new not in told and move.out.rule_of(new) is None:
            message = f"a tensor that {move.out.name} has no place for"
            move.findings.append(move.lose(new, message, move.request.allow_loss, tensor=name))
            move.drop(name, "the format has no place for it; left out as allowed")


def _shared_copies(move: Move, reader: Reader) -> None:
    """Copies of the target's tensors that the format does not hold: equal ones are dropped, others are a loss."""
    if move.out.name not in SHARING:
        return
    for name, new in move.names.items():
        if new in BORROWABLE and name not in move.left and not (new == "lm_head.weight" and move.reduced):
            _shared_copy(move, reader, name, new)


def _shared_copy(move: Move, reader: Reader, name: str, new: str) -> None:
    short = new.removesuffix(".weight")
    equal = None if move.target is None else equals_lent(reader, move.source.tensors[name], move.target, new)
    if equal:
        move.drop(name, "equal to the target's tensor, which readers of the format use")
        return
    if equal is None:
        message = (
            "the format uses the target's; without a --target-model with weights nobody knows if this one is equal"
        )
    else:
        message = "it differs from the target's, and the format uses the target's"
    move.findings.append(move.lose(short, message, move.request.allow_loss, tensor=name))
    move.drop(name, "left out as allowed; readers use the target's")


def _reduced_head(move: Move) -> None:
    """The reduced head and its map where a format has none and the loss is allowed."""
    if move.out.name == "dflash" and "draft_vocabulary" in move.request.allow_loss:
        for name, new in move.names.items():
            if new in ("lm_head.weight", "d2t", "t2d"):
                move.drop(name, "the format has no reduced vocabulary; left out as allowed")


def _vocabulary_map(move: Move, reader: Reader) -> set[str]:
    """Check d2t and t2d; write offsets where ids are stored, and t2d where the format needs one that is missing.
    The source tensors that are spelled anew."""
    there = {new: name for name, new in move.names.items() if name not in move.left}
    if "d2t" not in there:
        return set()
    ref = move.source.tensors[there["d2t"]]
    mask = mask_of(reader, move.source.tensors.get(there.get("t2d", "")))
    judged = judge_map(reader.array(ref.spec.name), mask, move.spec.draft_vocabulary, move.spec.vocabulary)
    move.findings.extend(judged.findings)
    if judged.form is None:
        return set()
    if mask is None and FORMS[move.out.name].speculators and move.spec.vocabulary is not None:
        move.units.append(Mask(ref, judged.form, move.spec.vocabulary))
    if judged.form == "offsets":
        return set()
    note = "d2t holds absolute ids; it is written as the offsets that readers expect"
    move.findings.append(finding("W_VOCABULARY_MAP", "warning", note, tensor="d2t"))
    move.units.append(Offsets(ref))
    return {ref.spec.name}


def _borrow(move: Move) -> None:
    """DeepSpec's class wants copies of the target's embeddings and head; engines share the target's anyway."""
    there = set(move.names.values())
    for name in BORROWABLE:
        lent = None if move.target is None else move.target.lends(name)
        if name in there:
            continue
        dense = lent is not None and lent.spec.dtype in FLOATS  # a packed matrix is no copy without its scales
        if lent is not None and dense and move.target is not None and move.target.weights is not None:
            move.units.append(Borrow(move.target.weights, lent, name))
        else:
            message = f"'{name}' is left to the target: engines share it, DeepSpec's own class does not"
            kind = "weights" if lent is None else f"dense weights, not {lent.spec.dtype},"
            fix = f"name a --target-model with {kind} to copy it"
            move.findings.append(finding("W_LOSS", "warning", message, tensor=name, fix=fix))
