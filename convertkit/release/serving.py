"""How each engine is started with a folder of the release, from the settings that the audit derived."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from convertkit.release.summary import View

Settings = Sequence[Mapping[str, Any]]

TARGET = "TARGET"
"""Stands for the target model where the recipe does not name it."""

KEPT = ("required", "limit")
"""Kinds of settings that follow from the checkpoint; choices are the user's."""


@dataclass(frozen=True)
class Quickstart:
    """One engine: the folder it takes, lines to copy, and why each setting has its value."""

    title: str
    folder: str
    language: str
    lines: tuple[str, ...]
    reasons: tuple[tuple[str, str], ...]


def quickstarts(view: View) -> Iterator[Quickstart]:
    """One per engine that loads a folder of the release: the first such folder."""
    if view.release is None or view.release["summary"]["kind"] != "drafter":
        return
    target = view.release["summary"]["target_id"] or TARGET
    weights = {row["folder"]: row["weights"][0]["path"] for row in view.variants if row["weights"]}
    for name, write in WRITERS.items():
        rows = [row for row in view.engines if row["engine"] == name]
        chosen = next((row for row in rows if row["verdict"] == "loads"), None)
        if chosen is None:
            continue
        settings: Settings = next((row["settings"] for row in (chosen, *rows) if row["settings"]), ())
        path = chosen["variant"].rstrip("/") if chosen["variant"] != "." else "."
        lines = write(target, path, weights.get(chosen["variant"], ""), settings)
        language = "yaml" if name == "tensorrt-llm" else "sh"
        kept = [item for item in settings if item["kind"] in (*KEPT, "environment")]
        reasons = tuple((str(item["name"]), str(item["why"])) for item in kept)
        yield Quickstart(f"{chosen['title']} {chosen['version']}", chosen["variant"], language, tuple(lines), reasons)


def _environment(settings: Settings) -> list[str]:
    return [f"export {item['name']}={item['value']}" for item in settings if item["kind"] == "environment"]


def _flags(settings: Settings) -> list[str]:
    return [f"    {item['name']} {item['value']}" for item in settings if item["kind"] in KEPT]


def _continued(lines: Sequence[str]) -> list[str]:
    return [f"{line} \\" for line in lines[:-1]] + list(lines[-1:])


def _vllm(target: str, path: str, weights: str, settings: Settings) -> list[str]:
    words: dict[str, Any] = {item["name"]: item["value"] for item in settings if item["kind"] in KEPT}
    words["model"] = path
    config = json.dumps(words, sort_keys=True)
    return [*_environment(settings), *_continued([f"vllm serve {target}", f"    --speculative-config '{config}'"])]


def _sglang(target: str, path: str, weights: str, settings: Settings) -> list[str]:
    start = [f"python -m sglang.launch_server --model-path {target}", f"    --speculative-draft-model-path {path}"]
    return [*_environment(settings), *_continued([*start, *_flags(settings)])]


def _llamacpp(target: str, path: str, weights: str, settings: Settings) -> list[str]:
    file = weights if path == "." else f"{path}/{weights}"
    return [*_environment(settings), *_continued(["llama-server -m TARGET.gguf", f"    -md {file}", *_flags(settings)])]


def _tensorrt_llm(target: str, path: str, weights: str, settings: Settings) -> list[str]:
    words = [f"  {item['name']}: {item['value']}" for item in settings if item["kind"] in KEPT]
    return ["speculative_config:", *words, f"  speculative_model: {path}"]


WRITERS: Mapping[str, Callable[[str, str, str, Settings], list[str]]] = {
    "vllm": _vllm,
    "sglang": _sglang,
    "llama.cpp": _llamacpp,
    "tensorrt-llm": _tensorrt_llm,
}
"""By engine; transformers serves no drafter."""
