"""What the options of ``repair`` do, one function per option.

``repair_config`` and ``repair_maps`` hold those that are about the config and the vocabulary map.
"""

from __future__ import annotations

from convertkit.containers.folder import open_checkpoint
from convertkit.conversion.repair_config import (
    planes_after,
    remove_quantization,
    set_everywhere,
)
from convertkit.conversion.repair_work import RepairRequest, Work, same_bytes
from convertkit.conversion.surgery import plan_surgery
from convertkit.conversion.surgery_units import Rearrange, Swap, whole
from convertkit.conversion.tying import tie_group
from convertkit.dialects.planes import KV_SCALES
from convertkit.dialects.scheme import blocks_of
from convertkit.dtypes import FLOATS
from convertkit.errors import ConvertError, Finding, finding, raise_all, refusal
from convertkit.layouts.fused import fused_groups, idle_members, user_groups
from convertkit.layouts.fusions import FUSIONS
from convertkit.layouts.kv_scales import kv_scale_name, kv_scale_of
from convertkit.layouts.rules import families, module_of

INDEX_CODES = (
    *("E_INDEX", "E_INDEX_MISMATCH", "E_INDEX_TOTAL", "W_INDEX_TOTAL", "E_AMBIGUOUS_WEIGHTS"),
    *("E_SHARD_UNLISTED", "W_SHARD_UNLISTED"),
)
"""What can be wrong about an index."""


def rebuild_index(work: Work, request: RepairRequest) -> None:
    """The index is made from the headers; what the old one listed and no file holds, and files that it did not name,
    are told. An index that is right is left alone."""
    if _index_is_right(work):
        return
    work.effect("--rebuild-index")
    for name in work.strays:
        count = sum(ref.file == name for ref in work.source.tensors.values())
        taken = f"its {count} tensors are taken in" if count else "other files hold all of its tensors too"
        message = f"the old index does not name this file; {taken}"
        fix = "if it does not belong to the model, move it out of the folder first"
        work.findings.append(finding("W_SHARD_UNLISTED", "warning", message, file=name, fix=fix))
    if work.lost:
        message = f"the old index listed {len(work.lost)} tensors that no file holds; they are lost"
        work.findings.append(
            finding("W_INDEX_LOST", "warning", message, tensor=work.lost[0], data={"tensors": list(work.lost[:20])})
        )


def _index_is_right(work: Work) -> bool:
    """Whether the folder opens by its index, or needs none, and nothing is wrong about it."""
    try:
        opened = open_checkpoint(work.source.root)
    except ConvertError:
        return False
    wrong = [item.code for item in opened.findings if item.code in INDEX_CODES]
    return not wrong and opened.tensors.keys() == work.source.tensors.keys()


def dedupe(work: Work, request: RepairRequest) -> None:
    """Names that several files hold: kept once if the bytes are equal. Raises E_DUPLICATE_DIFFERS otherwise."""
    faults = []
    for name, refs in work.repeated.items():
        work.effect("--dedupe")
        if all(same_bytes(work.reader, refs[0], other) for other in refs[1:]):
            work.note("N_DROPPED", f"held by {len(refs)} files with equal bytes; kept once", tensor=name)
            continue
        files = ", ".join(ref.file for ref in refs)
        message = f"{files} hold it with different bytes"
        fix = "find out which file is the model's and remove the other"
        faults.append(finding("E_DUPLICATE_DIFFERS", "error", message, tensor=name, fix=fix))
    if faults:
        raise ConvertError(faults)


def drop_tied(work: Work, request: RepairRequest) -> None:
    """A stored head that repeats the embeddings goes, with all its planes. Raises E_TIED_DIFFERS where it does not
    repeat them."""
    option = "--drop-tied"
    heads = [name for name in work.source.tensors if module_of(name).rpartition(".")[2] == "lm_head"]
    bases = [name for name in work.source.tensors if module_of(name).endswith("embed_tokens") and "mtp." not in name]
    if not heads:
        return
    table = {name.rpartition(".")[2]: work.source.tensors[name] for name in bases}
    faults = []
    for name in heads:
        other = table.get(name.rpartition(".")[2])
        if other is None or not same_bytes(work.reader, work.source.tensors[name], other):
            message = "the head is not the embeddings byte for byte, so dropping it would change the model"
            fix = "set tie_word_embeddings to false: repair --set-config"
            faults.append(finding("E_TIED_DIFFERS", "error", message, tensor=name, fix=fix))
    if faults:
        raise ConvertError(faults)
    for name in heads:
        work.drop(name, "equal to the embeddings, byte for byte", option)
    set_everywhere(work, "tie_word_embeddings", True)


def strip_quant_residue(work: Work, request: RepairRequest) -> None:
    """Config blocks of a checkpoint without packed weights, and scales beside dense weights."""
    option = "--strip-quant-residue"
    if work.identity.packed:
        count = len(work.identity.packed)
        raise refusal("E_ALREADY_QUANTIZED", f"{count} linears are packed, so its quantization is no residue",
                      fix="expand them with dequant, or correct the config with --set-config")  # fmt: skip
    orphans = [name for name in work.source.tensors if _is_orphan(work, name)]
    for name in orphans:
        work.drop(name, "scale of a weight that is stored dense", option)
    if list(blocks_of(work.config)) or work.quant_config:
        remove_quantization(work, option, planes_after(work))


def _is_orphan(work: Work, name: str) -> bool:
    module, _, leaf = name.rpartition(".")
    weight = work.source.tensors.get(f"{module}.weight")
    scales = ("weight_scale", "weight_scale_2", "weight_global_scale", "input_scale", "input_global_scale")
    return leaf in scales and weight is not None and weight.spec.dtype in FLOATS


def normalise_kv_scales(work: Work, request: RepairRequest) -> None:
    """One spelling for the scales of the KV cache, values kept. Raises E_NAME_COLLISION if a scale is there twice."""
    option, spelling = "--normalise-kv-scales", request.normalise_kv_scales or "modelopt"
    told: dict[str, str] = {}
    for name, ref in work.source.tensors.items():
        hit = kv_scale_of(name) if name.rpartition(".")[2] in (*KV_SCALES, "output_scale") else None
        if hit is None:
            continue
        module, kinds = hit
        names = [kv_scale_name(module, kind, spelling) for kind in kinds]
        if len(names) > 1:
            spec = ref.spec
            units = [Rearrange(type(spec)(new, spec.dtype, spec.shape), (whole(ref),), option, module) for new in names]
            work.make(units, option)
            told[name] = " and ".join(names)
        elif names[0] != name:
            work.rename(name, names[0], option)
            told[name] = names[0]
    for family in families(told).values():
        first, count = family.names[0], len(family.names)
        message = f"becomes {told[first]}" + (f", as {count - 1} more '{family.template}'" if count > 1 else "")
        work.note("W_KV_SCALES", message, tensor=first)


def tie_scales(work: Work, request: RepairRequest) -> None:
    """Fused groups with unequal global scales get one."""
    option = "--tie-scales"
    extra = user_groups(request.groups)
    raise_all(idle_members(extra, work.identity.packed))
    groups = fused_groups(work.identity.packed, work.identity.layout, extra)
    faults: list[Finding] = []
    changed = 0
    for lead, names in groups.items():
        members = [work.identity.packed[name] for name in names]
        if len({work.reader.bytes_of(item.global_scale.spec.name) for item in members}) < 2:
            continue
        try:
            tied = tie_group(members, work.reader, lead, request.allow_loss)
        except ConvertError as error:
            faults.extend(error.findings)
            continue
        work.make(tied.units, option)
        changed += tied.changed
    if faults:
        raise ConvertError(faults)
    if changed:
        message = f"{changed:,} values change, since no shared scale is exact"
        work.findings.append(finding("W_VALUES_CHANGED", "warning", message, data={"changed_values": changed}))


def split_fused_scalars(work: Work, request: RepairRequest) -> None:
    """Packed matrices that are fused on disk become their parts, each with the scalar of the whole."""
    for kind in FUSIONS:
        try:
            units = plan_surgery(work.source, work.reader, "split", kind, "--split-fused-scalars")
        except ConvertError as error:
            if error.code != "E_PATTERN_EMPTY":
                raise
            continue
        packed = {unit.bundle for unit in units if unit.spec.name.endswith(("weight_scale_2", "weight_global_scale"))}
        work.make([unit for unit in units if unit.bundle in packed], "--split-fused-scalars")


def swap_nibbles(work: Work, request: RepairRequest) -> None:
    """Codes whose two nibbles are stored the other way round: the even column belongs into the low one."""
    option = "--swap-nibbles"
    for packed in work.identity.packed.values():
        work.make([Swap(packed.codes, packed.module)], option)
    if work.identity.packed:
        message = (
            f"the values of {len(work.identity.packed):,} weights change, which is right only where nibbles were "
            "stored the other way round; `convertkit diff` against a reference tells"
        )
        work.findings.append(finding("W_VALUES_CHANGED", "warning", message))


def surgery(work: Work, request: RepairRequest) -> None:
    """``--split`` and ``--fuse``; the quantization config follows where it can be made from the tensors."""
    for direction, kinds in (("split", request.split), ("fuse", request.fuse)):
        for kind in kinds:
            option = f"--{direction} {kind}"
            work.make(plan_surgery(work.source, work.reader, direction, kind, option), option)


def metadata(work: Work, request: RepairRequest) -> None:
    """Pairs for the headers of the weight files."""
    work.effect("--metadata")
    work.metadata.update(request.metadata)


def files(work: Work, request: RepairRequest) -> None:
    """Only told here: the planner cuts the files."""
    work.effect("--merge" if request.merge else "--shard")
