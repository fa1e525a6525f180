"""From rules to a plan that renames: same files, same bytes in the same order, new headers, config that follows."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from convertkit.checkpoint import Checkpoint, TensorRef, TensorSpec, WeightFile
from convertkit.containers.files import read_small
from convertkit.containers.folder import CONFIG, INDEX_SUFFIX, QUANT_CONFIG
from convertkit.containers.safetensors import EncodedHeader, encode_ordered, name_fault
from convertkit.containers.strict_json import dump_config, parse_json
from convertkit.conversion.metadata import METADATA
from convertkit.conversion.plan import Draft, Plan, PlannedFile, settle
from convertkit.conversion.syscalls import BLOCK_BYTES
from convertkit.conversion.units import Relabel
from convertkit.dialects.planes import find_packed
from convertkit.dialects.renaming import RenamedConfig, rename_config
from convertkit.errors import MAX_FAULTS, ConvertError, Finding, finding, raise_all, refusal
from convertkit.layouts.likeness import Form
from convertkit.layouts.renames import RenameRule, Renaming, apply_rules, idle_rules
from convertkit.layouts.rules import families, module_of

RUN_BYTES = 256 << 20
"""Neighbouring tensors are one piece of work until they have so many bytes."""


@dataclass(frozen=True)
class Rename:
    """A renaming worked out for one checkpoint. ``documents`` are the JSON files as they will be, byte for byte those
    of the source where no entry changes."""

    renaming: Renaming
    config: RenamedConfig
    documents: Mapping[str, bytes]

    @property
    def is_idle(self) -> bool:
        return not self.renaming.names and not self.config.changed


def work_out(source: Checkpoint, rules: Sequence[RenameRule], *, each: bool) -> Rename:
    """Apply rules to names and config. ``each``: every rule must have an effect or be in effect already, otherwise
    one of them must. Raises ``ConvertError``: those of ``apply_rules``, E_ST_NAME and E_PATTERN_EMPTY."""
    renaming = apply_rules(rules, tuple(source.tensors))
    _refuse_names(renaming)
    modules = [module_of(name) for name in source.tensors]
    config = rename_config(source.config, source.quant_config, renaming, modules)
    idle = idle_rules(renaming, config.hits)
    if idle and (each or len(idle) == len(rules)):
        raise _idle(idle, source)
    documents = {
        name: dump_config(after) if after != before else read_small(source.root, name)
        for name, before, after in (
            (CONFIG, dict(source.config), config.config),
            (QUANT_CONFIG, dict(source.quant_config), config.quant_config),
        )
        if before or (name == CONFIG and has_config(source))
    }
    config = replace(config, findings=(*renaming.findings, *config.findings))
    return Rename(renaming, config, documents)


def _refuse_names(renaming: Renaming) -> None:
    """Raise E_ST_NAME for new names that no reader would accept."""
    faults = ((old, name_fault(new)) for old, new in renaming.names.items())
    found = [(old, fault) for old, fault in faults if fault is not None]
    raise_all(
        finding(code, "error", f"its new name: {what}", tensor=old) for old, (code, what) in found[:MAX_FAULTS]
    )  # fmt: skip


def _idle(idle: Sequence[RenameRule], source: Checkpoint) -> ConvertError:
    templates = list(families(source.tensors))
    more = f" and {len(templates) - 6} more" if len(templates) > 6 else ""
    fix = f"names here: {', '.join(templates[:6])}{more}"
    return ConvertError(
        finding("E_PATTERN_EMPTY", "error", f"the rule '{rule}' fits no tensor name and no config entry", fix=fix)
        for rule in idle
    )


def has_config(source: Checkpoint) -> bool:
    """Whether a ``config.json``, perhaps an empty object, belongs to the source."""
    return not source.is_file and os.path.lexists(source.root / CONFIG)


def logical_forms(checkpoint: Checkpoint) -> dict[str, Form | None]:
    """Dtype and shape of every tensor by its dense name; a packed linear is one ``weight`` of any dtype."""
    planes = find_packed(checkpoint)
    whole = {ref.spec.name for module in planes.packed.values() for ref in module.refs}
    forms: dict[str, Form | None] = {
        name: (ref.spec.dtype, ref.spec.shape) for name, ref in checkpoint.tensors.items() if name not in whole
    }
    for name, module in planes.packed.items():
        forms[f"{name}.weight"] = (None, (module.out_features, module.in_features))
    return forms


def plan_rename(
    source: Checkpoint,
    change: Rename,
    recorded: Mapping[str, str],
    parameters: Mapping[str, Any],
    slack_bytes: int = 0,
    notes: Sequence[Finding] = (),
) -> Plan:
    """A new output with the source's files and payloads. ``recorded`` are SHA-256 of tensors (old names) as the
    source's manifest states them."""
    by_file = tensors_by_file(source)
    units = [
        Relabel(
            run,
            tuple(change.renaming.new_name(ref.spec.name) for ref in run),
            tuple(recorded.get(ref.spec.name) for ref in run),
        )
        for refs in by_file.values()
        for run in _runs(refs)
    ]
    files = [
        PlannedFile(file.name, _aligned(file, by_file[file.name], change.renaming, slack_bytes))
        for file in source.files
    ]
    documents = {**change.documents, **dict(renamed_indexes(source, change.renaming))}
    draft = Draft("fix-keys", parameters, units, (), documents, (*notes, *change.config.findings), files)
    return settle(source, draft, slack_bytes=slack_bytes)


def renamed_indexes(source: Checkpoint, renaming: Renaming) -> Iterator[tuple[str, bytes]]:
    """The shard indexes of the source's folder with the new names; what else they say stays, but for a wrong total,
    which no manifest would list."""
    total = sum(ref.size_bytes for ref in source.tensors.values())
    for name in sorted(os.listdir(source.root)) if not source.is_file else ():
        if name.endswith(INDEX_SUFFIX):
            document = parse_json(read_small(source.root, name), name)
            weight_map = {renaming.new_name(key): value for key, value in document["weight_map"].items()}
            document["weight_map"] = dict(sorted(weight_map.items()))
            if document.get("metadata", {}).get("total_size", total) != total:
                document["metadata"]["total_size"] = total
            yield name, (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode()


def tensors_by_file(source: Checkpoint) -> dict[str, list[TensorRef]]:
    """Tensors of each weight file in the order of their bytes; empty tensors at one place in the header's order."""
    by_file: dict[str, list[TensorRef]] = {file.name: [] for file in source.files}
    for ref in source.tensors.values():
        by_file[ref.file].append(ref)
    return {
        name: sorted(refs, key=lambda ref: (ref.start, ref.start + ref.size_bytes)) for name, refs in by_file.items()
    }


def _runs(refs: Iterable[TensorRef]) -> Iterator[tuple[TensorRef, ...]]:
    run: list[TensorRef] = []
    size = 0
    for ref in refs:
        if run and size + ref.size_bytes > RUN_BYTES:
            yield tuple(run)
            run, size = [], 0
        run.append(ref)
        size += ref.size_bytes
    if run:
        yield tuple(run)


def renamed_specs(refs: Iterable[TensorRef], renaming: Renaming) -> list[TensorSpec]:
    """Tensors under their new names, in the order given."""
    return [TensorSpec(renaming.new_name(ref.spec.name), ref.spec.dtype, ref.spec.shape) for ref in refs]


def _metadata_of(file: WeightFile) -> dict[str, str]:
    """The header metadata of a file, with the ``format`` that readers ask for."""
    return dict(sorted({**METADATA, **file.metadata}.items()))


def _aligned(file: WeightFile, refs: Sequence[TensorRef], renaming: Renaming, slack_bytes: int) -> EncodedHeader:
    """The new header, padded so that the payload begins at the same place in a block as in the source and can be shared
    with it."""

    def length(needed: int) -> int:
        start = 8 + needed + slack_bytes
        return start + (file.data_start - start) % BLOCK_BYTES - 8

    return encode_ordered(renamed_specs(refs, renaming), _metadata_of(file), length)


def refuse_gguf(source: Checkpoint, verb: str) -> None:
    """Raises E_USAGE for a GGUF model, whose names are fixed by llama.cpp."""
    if source.container != "safetensors":
        raise refusal("E_USAGE", f"{verb} works on safetensors, not on GGUF files", fix="convert it with from-gguf")
