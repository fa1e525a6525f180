"""Pairs of strings in the headers of weight files: they mean nothing to convertkit and may mean something to others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from convertkit.checkpoint import Checkpoint
from convertkit.errors import Finding, finding, shown

METADATA = {"format": "pt"}
"""What every file says: readers of PyTorch models refuse others."""


def kept_metadata(source: Checkpoint) -> dict[str, str]:
    """Pairs of header metadata that all weight files of a source share; the format is always that of PyTorch."""
    stated = [file.metadata.items() for file in source.files] if source.container == "safetensors" else []
    pairs = set(stated[0]).intersection(*stated[1:]) if stated else set()
    return dict(sorted({**dict(pairs), **METADATA}.items()))


def metadata_findings(source: Checkpoint, metadata: Mapping[str, str]) -> Iterable[Finding]:
    """What the headers of the source say and those of the output do not."""
    stated = source.files if source.container == "safetensors" else ()
    lost = sorted({key for file in stated for key in file.metadata if key != "format"} - metadata.keys())
    if lost:
        message = f"the weight files differ in their metadata, so it is not kept: {', '.join(map(shown, lost[:8]))}"
        yield finding("N_METADATA", "note", message, data={"keys": [shown(key) for key in lost]})
