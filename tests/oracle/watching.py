"""Watch a loader fill a model: which stored tensor goes where, and what still holds the pattern afterwards.

Every parameter is filled with a pattern after an engine created it and before the engine loads it. Shared by the
oracles that run an engine's own loader on a CPU.
"""

# mypy: disable-error-code="import-not-found,union-attr"

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

PATTERNS = {1: 0xA5, 2: 0x7FA5, 4: 0x7FA5A5A5, 8: 0x5AA55A12345678}
"""By bytes of an element. Floats of two and four bytes are NaN; the models of ``tests/engines`` never hold them."""

NAN_F8 = 0x7F
MEMORY_BYTES = 6 << 30
"""A config that is read wrongly may ask for a model of full size."""


def stated_config(folder: Path) -> dict[str, Any]:
    """A drafter's config, as far as it can be read: what to serve it with follows from it."""
    try:
        config = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return config if isinstance(config, dict) else {}


def bits(tensor: Any) -> Any:
    import torch

    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.detach().view(kinds[tensor.element_size()])


def pattern(tensor: Any) -> int:
    import torch

    return NAN_F8 if tensor.dtype == torch.float8_e4m3fn else PATTERNS[tensor.element_size()]


class Watch:
    """What was created, what wrote what, and what still holds the pattern. ``fallback`` is the engine's loader for
    parameters that have none of their own."""

    def __init__(self, fallback: Callable[..., Any]) -> None:
        self.fallback = fallback
        self.kept: list[tuple[str, Any]] = []
        self.used: dict[str, str] = {}
        self.made: dict[str, tuple[list[int], str]] = {}
        self.state: dict[str, str] = {}

    def created(self, model: Any) -> None:
        for name, parameter in model.named_parameters():
            self.made[name] = list(parameter.shape), str(parameter.dtype).removeprefix("torch.")
            if parameter.numel():
                bits(parameter.data).fill_(pattern(parameter.data))
            inner = getattr(parameter, "weight_loader", None) or self.fallback
            place = "_weight_loader" if hasattr(parameter, "_weight_loader") else "weight_loader"
            setattr(parameter, place, self._watched(name, inner))

    def _watched(self, name: str, inner: Callable[..., Any]) -> Callable[..., Any]:
        def loader(*rest: Any, **more: Any) -> Any:
            loaded = more["loaded_weight"] if "loaded_weight" in more else rest[1]
            done = inner(*rest, **more)
            self._wrote(name, loaded)
            return done

        return loader

    def _wrote(self, name: str, loaded: Any) -> None:
        start = loaded.data_ptr()
        for stored, tensor in self.kept:
            if loaded is tensor or (
                loaded.numel() and tensor.data_ptr() <= start < tensor.data_ptr() + max(tensor.nbytes, 1)
            ):
                self.used[stored] = name

    def read(self, weights: Iterator[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
        for name, tensor in weights:
            self.kept.append((name, tensor))
            yield name, tensor

    def loaded(self, model: Any) -> None:
        for name, parameter in model.named_parameters():
            if name in self.made and parameter.numel():
                left = int((bits(parameter.data) == pattern(parameter.data)).sum())
                state = "filled" if left == 0 else "unfilled" if left == parameter.numel() else "partly filled"
                self.state[name] = state

    def unused(self) -> list[str]:
        return sorted(name for name, _ in self.kept if name not in self.used)

    def left(self, state: str) -> list[str]:
        return sorted(name for name, found in self.state.items() if found == state)


def in_child(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """``work`` in a process of its own: engines keep state, and a wrong config may ask for too much memory."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
        try:
            answer = work()
        except BaseException:
            answer = {"loads": False, "stage": "crashed", "error": traceback.format_exc(limit=-3)}
        with os.fdopen(writer, "w") as stream:
            json.dump(answer, stream)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as stream:
        text = stream.read()
    os.waitpid(child, 0)
    found: dict[str, Any] = json.loads(text) if text else {"loads": False, "stage": "crashed", "error": "no answer"}
    return found


def lines(document: dict[str, Any]) -> str:
    """A golden file: one line per case, so that changes show case by case."""
    cases = document.pop("cases")
    head = json.dumps(document, sort_keys=True)[:-1]
    rows = ",\n".join(f"{json.dumps(name)}: {json.dumps(cases[name], sort_keys=True)}" for name in sorted(cases))
    return f'{head}, "cases": {{\n{rows}\n}}}}\n'
