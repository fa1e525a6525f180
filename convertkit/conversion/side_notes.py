"""What is to be said of the files beside a source's weights: which do not travel, which state what is true no more."""

from __future__ import annotations

import re
from collections.abc import Iterator

from convertkit.checkpoint import Checkpoint
from convertkit.errors import Finding, finding, shown

TOLD = ("folder", "not a regular file", "hidden or unsafe name", "weights of another format")
"""Why entries are not copied of which the output has no counterpart."""

SIZE_CLAIM = re.compile(rb"\b[0-9a-f]{64}\b|\b\d{1,3}(,\d{3}){2,} bytes")
CARD_BYTES = 1 << 20
"""Most bytes of a card that are read."""


def side_file_findings(source: Checkpoint) -> Iterator[Finding]:
    """W_CARD_STATES_SIZES and N_LEFT_BEHIND; reads cards and nothing else."""
    yield from _cards_with_sizes(source)
    yield from _left_behind(source)


def _cards_with_sizes(source: Checkpoint) -> Iterator[Finding]:
    """A card that is copied but states digests or sizes of the source's files."""
    for name in source.side_files:
        if name.lower() == "readme.md" and SIZE_CLAIM.search(_card(source, name)):
            yield finding(
                "W_CARD_STATES_SIZES",
                "warning",
                "the copied card states sizes or digests, which are those of the source",
                file=name,
                fix="edit the card of the output",
            )


def _card(source: Checkpoint, name: str) -> bytes:
    with open(source.root / name, "rb") as stream:
        return stream.read(CARD_BYTES)


def _left_behind(source: Checkpoint) -> Iterator[Finding]:
    """Folders, weights of other formats, unsafe names: they do not travel, but may belong to the model."""
    kept = ((name, why) for name, why in source.skipped.items() if why in TOLD and not name.startswith("."))
    left = {shown(name): why for name, why in sorted(kept)}
    if left:
        told = ", ".join(f"{name} ({why})" for name, why in list(left.items())[:8])
        message = f"{len(left)} entries of the source are not copied: {told}{', …' if len(left) > 8 else ''}"
        fix = "copy to the output what belongs to the model"
        yield finding("N_LEFT_BEHIND", "note", message, fix=fix, data={"entries": left})
