"""Stand-ins for packages that SGLang imports and that loading never calls: compiled kernels, image and web packages.

A name of such a module is a function that returns nothing of use, or a class where the name begins with a capital.
None of them takes part in creating or filling a parameter.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

STUBBED = frozenset({"IPython", "sgl_kernel", "torchaudio", "torchvision", "triton", "uvicorn", "vllm"})
ABSENT = frozenset({("triton", "runtime"), ("triton.runtime", "driver")})
"""Asked for in order to find a device, which is then taken to be a CPU."""


class Nothing:
    """Takes every call; as a decorator it returns the function."""

    def __init__(self, *rest: Any, **more: Any) -> None: ...

    def __call__(self, *rest: Any, **more: Any) -> Any:
        alone = len(rest) == 1 and not more and callable(rest[0]) and not isinstance(rest[0], type)
        return rest[0] if alone else Nothing()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing()

    def __getitem__(self, key: Any) -> Any:
        return Nothing()

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __bool__(self) -> bool:
        return False

    def __or__(self, other: Any) -> Any:
        return Nothing()

    __ror__ = __or__


class Stub(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name == "__version__":
            return "9.9.9"
        if name.startswith("__") or (self.__name__, name) in ABSENT:
            raise AttributeError(name)
        return type(name, (Nothing,), {}) if name[:1].isupper() else Nothing()


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] in STUBBED:
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return Stub(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        module.__path__ = []


def install() -> None:
    """Put the stand-ins in place, after transformers has looked which of those packages are really there."""
    import torch.utils.flop_counter  # noqa: F401 - looks for triton
    import transformers.utils.import_utils as looked

    for name in dir(looked):
        asks: Callable[[], Any] = getattr(looked, name)
        if name.startswith("is_torch") and name.endswith("_available"):
            try:
                asks()
            except Exception:
                continue
    sys.meta_path.insert(0, Finder())
