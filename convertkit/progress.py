"""How a verb tells the outside how far it is: a protocol, and an implementation that says nothing."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Told of stages and bytes by a verb; may be called from any thread. Never influences what is written."""

    def stage(self, name: str, total_bytes: int) -> None:
        """A new stage begins (the one before, if any, is over); ``total_bytes`` is the work ahead, 0 if unknown."""

    def advance(self, size_bytes: int) -> None:
        """``size_bytes`` more of the current stage are done."""

    def done(self) -> None:
        """The last stage is over."""

    def apart(self, title: str) -> Progress:
        """A progress of its own for work that goes on beside other work; ``title`` leads the names of its stages."""


class Silent:
    """Progress that nobody watches."""

    def stage(self, name: str, total_bytes: int) -> None:
        pass

    def advance(self, size_bytes: int) -> None:
        pass

    def done(self) -> None:
        pass

    def apart(self, title: str) -> Progress:
        return self


SILENT: Progress = Silent()
