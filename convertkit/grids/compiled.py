"""How loops are compiled: explicit signatures, cached on disk, without the GIL, never parallel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
from numba import types

from convertkit.errors import refusal

if getattr(numba.config, "DISABLE_JIT", 0):
    raise refusal("E_BACKEND", "NUMBA_DISABLE_JIT is set, and the kernels only run compiled", fix="unset it")

F = TypeVar("F", bound=Callable[..., Any])


def compiled(result: Any, *arguments: Any) -> Callable[[F], F]:
    """``numba.njit`` with the signature ``result(*arguments)``; importing the module compiles or loads it once."""

    def compile_(function: F) -> F:
        try:
            return cast("F", numba.njit(result(*arguments), cache=True, nogil=True)(function))
        except RuntimeError:
            # Neither the package's folder nor the user's cache folder can be written: compile each time.
            return cast("F", numba.njit(result(*arguments), nogil=True)(function))

    return compile_


def read(item: Any, dimensions: int) -> Any:
    """A C-contiguous array that is only read."""
    return types.Array(item, dimensions, "C", readonly=True)


def write(item: Any, dimensions: int) -> Any:
    """A C-contiguous array that is written."""
    return types.Array(item, dimensions, "C")
