"""Working side by side: one result for any number of workers, and an end that does not wait for what has not begun."""

from __future__ import annotations

import signal
import threading
import time

import pytest

from convertkit.conversion.tiles import in_parallel

MANY = 400
MAIN = threading.main_thread().ident or 0


@pytest.mark.parametrize("workers", [1, 4])
def test_results_are_in_the_order_of_the_items(workers: int) -> None:
    assert in_parallel(lambda item: item * item, range(MANY), workers) == [item * item for item in range(MANY)]


@pytest.mark.parametrize("workers", [1, 4])
def test_of_several_failures_the_earliest_is_raised(workers: int) -> None:
    def fail(item: int) -> None:
        if item in (1, 2, 3):
            time.sleep(0.02 / item)
            raise ValueError(item)

    with pytest.raises(ValueError, match=r"^1$"):
        in_parallel(fail, range(MANY), workers)


@pytest.mark.parametrize("error", ["failure", "signal"])
def test_what_has_not_begun_is_left_out(error: str) -> None:
    begun: list[int] = []

    def work(item: int) -> None:
        begun.append(item)
        if item == 3 and error == "failure":
            raise ValueError
        if item == 3:
            signal.pthread_kill(MAIN, signal.SIGINT)
        time.sleep(0.01)

    with pytest.raises((ValueError, KeyboardInterrupt)):
        in_parallel(work, range(MANY), 2)
    assert len(begun) < MANY // 2
