"""Arguments of the verbs that may be ``hf://`` addresses: fetched before the verb begins, so that it sees folders."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

from convertkit.hub.address import is_address

P = ParamSpec("P")
R = TypeVar("R")


def from_hub(
    *whole: str, headers: Sequence[str] = (), headers_if: str = ""
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let the parameters named in ``whole`` and ``headers`` be addresses on the hub.

    Of those in ``headers`` only configs, headers and small tensors are fetched, by byte range; of the others too if the
    parameter ``headers_if`` is true. The verb raises what ``hub.download.fetch`` raises.
    """

    def decorate(verb: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(verb)

        @functools.wraps(verb)
        def fetching(*args: P.args, **kwargs: P.kwargs) -> R:
            if not any(_is_address(value) for value in (*args, *kwargs.values())):
                return verb(*args, **kwargs)
            bound = signature.bind(*args, **kwargs)
            given = bound.arguments
            for name in (*whole, *headers):
                if _is_address(given.get(name)):
                    given[name] = _fetched(given[name], headers_only=name in headers or bool(given.get(headers_if)))
            return verb(*bound.args, **bound.kwargs)

        return fetching

    return decorate


def _is_address(value: Any) -> bool:
    return isinstance(value, str) and is_address(value)


def _fetched(address: str, *, headers_only: bool) -> Any:
    from convertkit.hub.download import fetch

    return fetch(address, headers_only=headers_only)
