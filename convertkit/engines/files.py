"""Which weight files of a folder each engine reads, and in which order.

Read from vLLM 0.33.0 ``model_executor/model_loader/default_loader.py:147`` and ``weight_utils.py:590``, SGLang 0.5.23
``srt/model_loader/loader.py:480`` and ``weight_utils.py:757``, transformers 5.19.0 ``modeling_utils.py:535`` and
``utils/hub.py:938``, TensorRT-LLM ``models/checkpoints/hf/weight_loader.py``; the first three were run on folders
(``tests/engines/folder_cases.py``).
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from convertkit.engines.model import Load, Refused
from convertkit.engines.rules import How, Rule
from convertkit.engines.rules import Source as Place
from convertkit.engines.source import Source

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
MISTRAL = re.compile(r"consolidated.*\.safetensors")
MISTRAL_INDEX = "consolidated.safetensors.index.json"


def _rules(engine: str, package: str, version: str, how: How, rows: Mapping[str, tuple[str, str, int]]) -> list[Rule]:
    return [Rule(f"{engine}.{name}", text, Place(package, version, file, line, how))
            for name, (text, file, line) in rows.items()]  # fmt: skip


_LOST, _NONE = "a file that the index names must be there", "there must be a weight file to read"
_INDEX = "an index holds a weight_map of file names"
_JSON, _READER = "config.json is read first, by Python", "weight files are read by the safetensors library"

RULES: Mapping[str, Rule] = {
    rule.name: rule
    for rule in (
        *_rules("vllm", "vllm", "0.33.0", "run", {
            "lost-files": (_LOST, "model_executor/model_loader/weight_utils.py", 612),
            "index": (_INDEX, "model_executor/model_loader/weight_utils.py", 602),
            "no-weights": (_NONE, "model_executor/model_loader/default_loader.py", 258),
            "config-json": (_JSON, "transformers_utils/config.py", 0),
            "safetensors": (_READER, "model_executor/model_loader/weight_utils.py", 1200),
        }),
        *_rules("sglang", "sglang", "0.5.23", "run", {
            "lost-files": (_LOST, "srt/model_loader/weight_utils.py", 801),
            "index": (_INDEX, "srt/model_loader/weight_utils.py", 780),
            "no-weights": (_NONE, "srt/model_loader/loader.py", 580),
            "config-json": (_JSON, "srt/utils/hf_transformers_utils.py", 0),
            "safetensors": (_READER, "srt/model_loader/weight_utils.py", 0),
        }),
        *_rules("transformers", "transformers", "5.19.0", "run", {
            "lost-files": (_LOST, "modeling_utils.py", 4451),
            "index": ("an index holds a weight_map and metadata", "utils/hub.py", 969),
            "files": (f"weights are in {SINGLE}, or in files that {INDEX} names", "modeling_utils.py", 593),
            "config-json": (_JSON, "configuration_utils.py", 0),
            "safetensors": (_READER, "modeling_utils.py", 4451),
        }),
        *_rules("tensorrt-llm", "TensorRT-LLM", "main", "read", {
            "files": (_NONE, "_torch/models/checkpoints/hf/weight_loader.py", 0),
            "config-json": (_JSON, "_torch/model_config.py", 0),
            "safetensors": (_READER, "_torch/models/checkpoints/hf/weight_loader.py", 0),
        }),
    )
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Choice:
    """The files that are read, in order; or why the engine stops before it reads one."""

    files: tuple[str, ...] = ()
    refused: Refused | None = None


def _natural(name: str) -> list[tuple[bool, int, str]]:
    """Runs of digits as numbers (``weight_utils.py:152``)."""
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in re.split(r"(\d+)", name)]


def _listed(index: str, document: Any, rule: str) -> Choice | tuple[str, ...]:
    """The files that an index names, in its order, or the error that it ends with."""
    weight_map = document.get("weight_map") if isinstance(document, Mapping) else None
    if not isinstance(weight_map, Mapping):
        return _no(f"{index} has no 'weight_map' that is an object", rule, key="weight_map")
    if not all(isinstance(file, str) for file in weight_map.values()):
        return _no(f"a file in the 'weight_map' of {index} is not a name", rule, key="weight_map")
    return tuple(dict.fromkeys(weight_map.values()))


def _no(message: str, rule: str, key: str | None = None) -> Choice:
    return Choice(refused=Refused("load_weights", message, rule, key=key))


def _filtered(engine: str, names: Sequence[str], index: str, indexes: Mapping[str, Any]) -> Choice:
    """The files that are there and that the index names; all without an index."""
    if index in indexes and names:
        listed = _listed(index, indexes[index], f"{engine}.index")
        if isinstance(listed, Choice):
            return listed
        missing = sorted(set(listed) - set(names))
        if missing:
            message = f"Weight files referenced in index but missing: {', '.join(missing[:4])}"
            return _no(message, f"{engine}.lost-files")
        names = [name for name in names if name in listed]
    return Choice(tuple(names)) if names else _no("Cannot find any model weights", f"{engine}.no-weights")


def _vllm(names: Sequence[str], indexes: Mapping[str, Any]) -> Choice:
    mistral = [name for name in names if MISTRAL.fullmatch(name)]
    found = sorted(mistral or names, key=_natural)
    return _filtered("vllm", found, MISTRAL_INDEX if mistral else INDEX, indexes)


def _sglang(names: Sequence[str], indexes: Mapping[str, Any]) -> Choice:
    if INDEX not in indexes and sorted(names) == ["consolidated.safetensors", SINGLE]:
        return Choice((SINGLE,))
    return _filtered("sglang", sorted(names), INDEX, indexes)


def _transformers(names: Sequence[str], indexes: Mapping[str, Any]) -> Choice:
    if SINGLE in names:
        return Choice((SINGLE,))
    if INDEX not in indexes:
        return _no(f"no file named {SINGLE} found in the folder", "transformers.files")
    document = indexes[INDEX]
    listed = _listed(INDEX, document, "transformers.index")
    if isinstance(listed, Choice):
        return listed
    if not isinstance(document.get("metadata"), Mapping):
        return _no(f"{INDEX} has no 'metadata' that is an object", "transformers.index", key="metadata")
    paths = sorted(posixpath.normpath(file) for file in listed)
    missing = [path for path in paths if path not in names]
    if missing or not listed:
        return _no(f"No such file or directory: {', '.join(missing[:4])}", "transformers.lost-files")
    return Choice(tuple(paths))


def _tensorrt_llm(names: Sequence[str], indexes: Mapping[str, Any]) -> Choice:
    found = sorted(name for name in names if "consolidated" not in name) or sorted(names)
    return Choice(tuple(found)) if found else _no("No weight files found", "tensorrt-llm.files")


def _all(names: Sequence[str], indexes: Mapping[str, Any]) -> Choice:
    return Choice(tuple(sorted(names)))


CHOICES: Mapping[str, Callable[[Sequence[str], Mapping[str, Any]], Choice]] = {
    "vllm": _vllm,
    "sglang": _sglang,
    "llama.cpp": _all,
    "tensorrt-llm": _tensorrt_llm,
    "transformers": _transformers,
}


def chosen(engine: str, names: Sequence[str], indexes: Mapping[str, Any]) -> Choice:
    """What ``engine`` reads of the weight files ``names``, beside ``indexes`` (parsed JSON by file name)."""
    return CHOICES[engine](names, indexes)


def stopped_at_files(load: Load, source: Source) -> Load:
    """``load``, or the refusal of a file where the engine comes to that first: configs are read and classes created
    before weights are."""
    refusal = source.refusal
    if refusal is None:
        return load
    first = load.refusals[0] if load.refusals else None
    before = () if refusal.stage == "config" else ("config", "create")
    if first is not None and (first.foreign or first.stage in before):
        return load
    return Load(refusals=(refusal,), settings=load.settings)
