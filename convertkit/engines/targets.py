"""What vLLM 0.33 does with a target: names and shapes by family, so that 122,880 expert tensors cost one pass."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

from convertkit.checkpoint import TensorSpec
from convertkit.engines.config_kinds import wrong_kinds
from convertkit.engines.model import Fate, Filled, Load, Note, Parameter, Part, Refused, Shape, Wrong
from convertkit.engines.rules import Asked
from convertkit.engines.source import Source
from convertkit.engines.target_tables import SYMBOLS, TARGETS, VISION_SYMBOLS, Row, TargetTable
from convertkit.layouts.rules import Family, families

PLANES: Mapping[str, tuple[str, ...]] = {
    "modelopt": ("weight", "weight_scale", "weight_scale_2"),
    "compressed-tensors": ("weight_packed", "weight_scale", "weight_global_scale"),
}
"""Stored tensors of one packed linear; any of the second and third leaf marks one."""

EXTRA = ("input_scale", "input_global_scale")
DROPPED = ("rotary_emb.inv_freq", "rotary_emb.cos_cached", "rotary_emb.sin_cached")
FUSED_EXPERTS = (".experts.gate_up_proj", ".experts.down_proj")
CACHE_SCALES = (".k_scale", ".v_scale", ".q_scale", ".kv_scale")
TIED_HEAD = "lm_head.weight"

Indices = frozenset[tuple[int, ...]]


def target_in(asked: Asked, source: Source, kind: str, ranks: int, doubtful: bool = False) -> Load:
    """A target in an engine. ``doubtful``: the quantization is not readable or contradicts the tensors, so which
    linears the engine builds packed cannot be told."""
    if not asked.proven:
        known = ", ".join(asked.engine.proven)
        return Load(unknown=f"convertkit's tables describe {asked.engine.title} {known}, not {asked.version}")
    if asked.engine.name != "vllm":
        return Load(unknown=f"convertkit's tables of {asked.engine.title} describe drafters only")
    bad = next(wrong_kinds(source.config), None)
    if bad is not None:
        return Load(unknown=f"'{bad}' in the config has a value of the wrong kind")
    names = source.config.get("architectures")
    name = str(names[0]) if isinstance(names, list) and names else "none"
    table = TARGETS.get(name)
    if table is None:
        return Load(unknown=f"the architecture {name} is not one that convertkit's tables of vLLM describe")
    if doubtful:
        return Load(unknown="the quantization is one that convertkit cannot follow into the engine, see above")
    view = View(table, source.config, families(spec.name for spec in source.tensors), source.tensors)
    return _load(view, ranks)


@dataclass
class View:
    """A target under audit: its table, its config, its tensors by family and by name."""

    table: TargetTable
    config: Mapping[str, Any]
    families: Mapping[str, Family]
    tensors: Sequence[TensorSpec]

    @property
    def text(self) -> Mapping[str, Any]:
        inner = self.config.get("text_config")
        return inner if isinstance(inner, Mapping) else self.config

    @property
    def tied(self) -> bool:
        return bool(self.text.get("tie_word_embeddings", self.config.get("tie_word_embeddings", False)))

    @property
    def quantized(self) -> bool:
        return isinstance(self.config.get("quantization_config"), Mapping)

    def sizes(self) -> dict[str, int]:
        """Symbols and their values, with derived defaults."""
        found = {symbol: self.text.get(key) for symbol, key in SYMBOLS.items()}
        tower = self.config.get("vision_config")
        if isinstance(tower, Mapping):
            found |= {symbol: tower.get(key) for symbol, key in VISION_SYMBOLS.items()}
        sizes = {symbol: value for symbol, value in found.items() if isinstance(value, int)}
        sizes.setdefault("nkv", sizes.get("nh", 0))
        if "hd" not in sizes and sizes.get("nh"):
            sizes["hd"] = sizes.get("H", 0) // sizes["nh"]
        for symbol, default in (("merge", 2), ("chan", 3), ("tpatch", 2), ("conv", 4)):
            sizes.setdefault(symbol, default)
        return sizes

    def layers(self, which: str) -> list[int]:
        """Numbers of the layers of a kind."""
        count = self.text.get("num_hidden_layers")
        every = list(range(count)) if isinstance(count, int) else []
        types = self.text.get("layer_types")
        if which in ("full", "linear") and isinstance(types, list):
            return [i for i in every if i < len(types) and ("linear" in str(types[i])) == (which == "linear")]
        if which in ("sparse", "dense"):
            return [i for i in every if self._sparse(i) == (which == "sparse")]
        tower = self.config.get("vision_config")
        depth = tower.get("depth") if isinstance(tower, Mapping) else 0
        return (
            list(range(depth)) if which == "blocks" and isinstance(depth, int) else every if which != "blocks" else []
        )

    def _sparse(self, layer: int) -> bool:
        step = self.text.get("decoder_sparse_step", 1)
        only = self.text.get("mlp_only_layers") or []
        return layer not in only and isinstance(step, int) and step > 0 and (layer + 1) % step == 0


def _shape(words: str, sizes: Mapping[str, int]) -> tuple[int, ...] | None:
    try:
        return tuple(
            sum(
                prod(int(part) if part.isdigit() else sizes[part] for part in term.split("*"))
                for term in word.split("+")
            )
            for word in words.split()
        )
    except KeyError:
        return None


def _indices(row: Row, view: View, sizes: Mapping[str, int]) -> Indices:
    """The numbers that names of a row's family carry."""
    numbers = [(layer,) for layer in view.layers(row.layers)] if "{i}" in row.template else [()]
    if "{e}" in row.template:
        return frozenset((*head, expert) for head in numbers for expert in range(sizes.get("E", 0)))
    return frozenset(numbers)


def _present(row: Row, view: View) -> bool:
    if row.needs == "own head":
        return not view.tied
    if row.needs == "attention bias":
        return bool(view.text.get("attention_bias"))
    return not (row.kind == "vision" and not isinstance(view.config.get("vision_config"), Mapping))


def _load(view: View, ranks: int) -> Load:
    sizes = view.sizes()
    specs = {spec.name: spec for spec in view.tensors}
    known: set[str] = set()
    outcomes: list[Filled] = []
    wrongs: list[Wrong] = []
    refusals: list[Refused] = []
    for row in view.table.rows:
        if _present(row, view):
            _row(row, view, sizes, specs, known, outcomes, refusals, wrongs)
    notes = list(_unknown(view, known, refusals, wrongs))
    refusals += _divides(sizes, ranks)
    for item in outcomes:
        if item.outcome == "unfilled":
            (refusals if _missed(item, view) else wrongs).append(_unfilled(item, view))  # type: ignore[arg-type]
    fates = {family.names[0]: Fate(template) for template, family in view.families.items() if template in known}
    if view.tied:
        notes.append(Note("the head comes from the embeddings", "vllm.tied"))
    return Load(tuple(refusals), tuple(wrongs), tuple(notes), fates, tuple(outcomes), facts={"run": view.table.run})


DIVIDED = {"nh": "attention heads", "I": "the intermediate size", "Ie": "the experts' intermediate size",
           "Is": "the shared expert's intermediate size", "lk": "linear-attention key heads",
           "lv": "linear-attention value heads"}  # fmt: skip
"""Sizes that are divided evenly among ranks."""


def _divides(sizes: Mapping[str, int], ranks: int) -> Iterator[Refused]:
    for symbol, what in DIVIDED.items():
        if sizes.get(symbol, 0) % ranks:
            message = f"{what} ({sizes[symbol]}) cannot be divided among {ranks} ranks"
            yield Refused("create", message, "vllm.tp-divides")
    kv = sizes.get("nkv", 0)
    if kv and (kv % ranks if kv >= ranks else ranks % kv):
        yield Refused("create", f"{kv} key-value heads cannot be divided among {ranks} ranks", "vllm.tp-divides")


def _row(
    row: Row, view: View, sizes: Mapping[str, int], specs: Mapping[str, TensorSpec], known: set[str],
    outcomes: list[Filled], refusals: list[Refused], wrongs: list[Wrong],
) -> None:  # fmt: skip
    """One row against the stored families: dense, or packed plane by plane, or experts fused on disk."""
    module = row.template.removesuffix(".weight")
    wanted = _indices(row, view, sizes)
    shape = _shape(row.shape, sizes) or ()
    fused = _fused_experts(module, view)
    if fused:
        known.update(fused)
        outcomes.append(Filled(Parameter(row.template, shape, "BF16", (Part("", shape),)), "filled", tuple(fused)))
        return
    dense = view.families.get(row.template)
    have: set[tuple[int, ...]] = set()
    if dense is not None and (module == row.template or specs[dense.names[0]].dtype != "U8"):
        known.add(row.template)
        have |= set(dense.indices)
        for fault in _shape_faults(dense, shape, specs):
            (refusals if isinstance(fault, Refused) else wrongs).append(fault)  # type: ignore[arg-type]
    packed, planes = _packed(module, view) if module != row.template else (set(), [])
    known.update(planes)
    have |= packed
    missing = sorted(wanted - have)
    if wanted - set(missing):
        outcomes.append(Filled(Parameter(row.template, shape, "BF16", (Part("", shape),)), "filled", (row.template,)))
    if missing:
        rule = "vllm.target-norm" if row.kind == "norm" else "vllm.silent"
        parameter = Parameter(_named(row.template, missing[0]), shape, "BF16", (Part("", shape),), rule=rule)
        outcomes.append(Filled(parameter, "unfilled", (), tuple(_named(row.template, number) for number in missing)))


def _named(template: str, numbers: tuple[int, ...]) -> str:
    for key, number in zip(("{i}", "{e}"), numbers, strict=False):
        template = template.replace(key, str(number))
    return template


def _packed(module: str, view: View) -> tuple[set[tuple[int, ...]], list[str]]:
    """The numbers of the modules of a family whose planes are all there, and the families of those planes."""
    found: set[tuple[int, ...]] = set()
    names: list[str] = []
    for leaves in PLANES.values():
        planes = [view.families.get(f"{module}.{leaf}") for leaf in leaves]
        if planes[2] is not None:
            names += [f"{module}.{leaf}" for leaf in (*leaves, *EXTRA) if f"{module}.{leaf}" in view.families]
            whole = [set(plane.indices) if plane is not None else set() for plane in planes]
            found |= set.intersection(*whole)
    return found, names


def _fused_experts(module: str, view: View) -> list[str]:
    """Experts of a layer in one tensor, as transformers 5 saves them."""
    if ".experts.{e}." not in module:
        return []
    at = module.partition(".experts.{e}.")[0]
    names = [f"{at}{leaf}" for leaf in FUSED_EXPERTS]
    return names if all(name in view.families for name in names) else []


SPLIT_ROWS = ("q_proj.weight", "k_proj.weight", "v_proj.weight", "gate_proj.weight", "up_proj.weight")
SPLIT_COLUMNS = ("o_proj.weight", "down_proj.weight")
"""Linears of which a rank takes its share of the rows or columns; a larger tensor is cut without a word."""

Misfit = Literal["", "cut", "short", "no"]


def _misfit(name: str, found: Shape, wanted: Shape) -> Misfit:
    """How a stored shape departs from the wanted one. Experts may be smaller: their loader fills a part of the place
    (``routed_experts``), nothing is said."""
    if found == wanted:
        return ""
    along = 0 if name.endswith(SPLIT_ROWS) else 1 if name.endswith(SPLIT_COLUMNS) else None
    if along is None or len(found) != 2 or len(wanted) != 2 or ".linear_attn." in name:
        return "no"
    across = 1 - along
    if ".experts." in name:
        return "no" if found[0] > wanted[0] or found[1] > wanted[1] else "short"
    return "cut" if found[across] == wanted[across] and found[along] > wanted[along] else "no"


def _shape_faults(family: Family, shape: Shape, specs: Mapping[str, TensorSpec]) -> Iterator[Refused | Wrong]:
    by_kind: dict[Misfit, list[str]] = {}
    for name in family.names if shape else ():
        by_kind.setdefault(_misfit(name, specs[name].shape, shape), []).append(name)
    for kind, names in by_kind.items():
        found, more = list(specs[names[0]].shape), f" ({len(names)} such tensors)" if len(names) > 1 else ""
        if kind == "no":
            message = f"weights of shape {found} do not fit, the config implies {list(shape)}{more}"
            yield Refused("load_weights", message, "vllm.linear", names[0])
        elif kind == "cut":
            message = f"the shape is {found}, the engine takes {list(shape)} of it and drops the rest{more}"
            yield Wrong("E_LOAD_CUT", message, "vllm.linear", names[0])
        elif kind == "short":
            message = f"the shape is {found}; the rest of {list(shape)} stays uninitialised{more}"
            yield Wrong("E_LOAD_UNFILLED", message, "vllm.experts", names[0])


def _unknown(view: View, known: set[str], refusals: list[Refused], wrongs: list[Wrong]) -> Iterator[Note]:
    """Names that the model has no module for: refused, but for what the loader drops or ignores."""
    for template, family in view.families.items():
        if template in known:
            continue
        first, count = family.names[0], len(family.names)
        if first.startswith(view.table.dropped):
            yield Note(
                f"{count} tensors of multi-token prediction are not part of this model", "vllm.target-mtp", first
            )
        elif first.endswith(DROPPED) or (view.quantized and first.endswith(CACHE_SCALES)):
            yield Note(f"{count} tensors are not needed", "vllm.dropped", first)
        elif first == TIED_HEAD and view.tied:
            yield Note(
                "a head is stored although it is tied to the embeddings; it is skipped", "vllm.tied", first, True
            )
        elif first.endswith(".bias"):
            wrongs.append(Wrong("E_LOAD_DROPPED", f"{count} unexpected biases are dropped", "vllm.bias", first))
        else:
            message = f"There is no module or parameter for '{first}'" + (f" and {count - 1} more" if count > 1 else "")
            refusals.append(Refused("load_weights", message, "vllm.unknown-name", first))


def _missed(item: Filled, view: View) -> bool:
    """Whether the loader notices: for unquantized models only, and only parameters without a quantization method."""
    return item.parameter.rule == "vllm.target-norm" and not view.quantized


def _unfilled(item: Filled, view: View) -> Refused | Wrong:
    count, first = len(item.missing), item.parameter.name
    more = f" and {count - 1} more" if count > 1 else ""
    if _missed(item, view):
        message = f"Following weights were not initialized from checkpoint: {first}{more}"
        return Refused("load_weights", message, "vllm.target-norm", first)
    return Wrong("E_LOAD_UNFILLED", f"{first}{more} is not stored and stays uninitialised", "vllm.silent", first)
