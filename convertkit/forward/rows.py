"""Rows of FIDELITY_GATE.json about a pass: inputs, modules, layers, output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from convertkit.drafter import DrafterSpec
from convertkit.forward.compare import rounded
from convertkit.forward.streams import Energy, Streams
from convertkit.layouts.rules import natural_key


def forward_rows(
    streams: Streams, specs: Sequence[DrafterSpec], features: Sequence[torch.Tensor], output: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """In the order of the pass: taps, modules, layers, output. ``judge_forward`` reads them."""
    inputs = Energy()
    inputs.add(features[0], features[1])
    taps = {side: list(spec.taps or ()) for side, spec in zip(("reference", "candidate"), specs, strict=False)}
    rows: list[dict[str, Any]] = [
        {"name": "taps", "scope": "input", "forward": {"rel_rms": rounded(inputs.rel_rms), **taps}}
    ]
    candidate = streams.holders[1]
    for name in sorted(streams.modules, key=natural_key):
        stored = f"{name}.weight" if candidate.has(f"{name}.weight") else name
        error = rounded(streams.modules[name].rel_rms)
        rows.append(
            {"name": name, "scope": "module", "packed": candidate.packed(stored), "forward": {"rel_rms": error}}
        )
    for name, energy in streams.layers.items():
        metrics = {"rel_rms": rounded(energy.rel_rms), "drift": rounded(streams.drift[name].rel_rms)}
        rows.append({"name": name, "scope": "layer", "forward": metrics})
    rows.append({"name": "output", "scope": "output", "forward": dict(output)})
    return rows
