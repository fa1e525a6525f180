"""Whether a written GGUF says what its source's config means: shifted layer ids, another block size or window load and
draft nonsense without a word, so every such number is read back and compared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from convertkit.checkpoint import Checkpoint
from convertkit.containers.gguf import ARCHITECTURE
from convertkit.containers.gguf_values import Scalar, Strings
from convertkit.conversion.gguf_config import check_config
from convertkit.conversion.identify import Identity
from convertkit.errors import Finding, finding
from convertkit.layouts.configs import READINGS
from convertkit.layouts.fields import read_values
from convertkit.layouts.gguf_names import ARCHS
from convertkit.layouts.gguf_reading import read_rope, read_spec
from convertkit.layouts.meaning import resolve

COMPARED: Mapping[str, tuple[str, ...]] = {
    "dflash": (
        "layers", "hidden", "intermediate", "heads", "kv_heads", "head_dim", "eps", "taps", "mask_token", "block_size",
        "attention", "conv_kernel", "conv_group", "selector_rank", "selector_top_k", "softcap", "embedding_scale",
        "output_multiplier", "sample_from_anchor", "confidence_head",
    ),
    "eagle3": (
        "layers", "hidden", "intermediate", "heads", "kv_heads", "head_dim", "eps", "taps", "target_hidden",
        "norm_before_residual", "norm_before_fc",
    ),
}  # fmt: skip
"""Fields of a drafter that its GGUF holds too."""


def written_findings(source: Checkpoint, identity: Identity, staged: Checkpoint) -> Iterator[Finding]:
    """E_GGUF_METADATA or E_CONFIG for every number of the staged GGUF that is not what the source's config means."""
    name = staged.metadata[ARCHITECTURE]
    assert isinstance(name, Scalar)  # as every writer states it
    arch = ARCHS[str(name.value)]
    yield from check_config(source.config, staged.metadata, arch)
    if arch.drafter:
        yield from _spec_findings(arch.name, source, identity, staged)


def _spec_findings(arch: str, source: Checkpoint, identity: Identity, staged: Checkpoint) -> Iterator[Finding]:
    reading = READINGS[identity.layout.name]
    values, _ = read_values(reading.fields, source.config)
    meant = resolve(reading.algorithm, values, reading.rules)
    tokens = staged.metadata.get("tokenizer.ggml.tokens")
    held = read_spec(arch, staged.metadata, meant.algorithm, len(tokens) if isinstance(tokens, Strings) else 0)
    for name in COMPARED[arch]:
        wanted, found = getattr(meant, name), getattr(held, name)
        if wanted is not None and _plain(wanted) != _plain(found):
            yield _fault(name, wanted, found)
    if meant.rope is not None:
        rope = read_rope(arch, staged.metadata)
        if np.float32(rope["rope_theta"]) != np.float32(meant.rope.theta):
            yield _fault("rope_theta", meant.rope.theta, rope["rope_theta"])
        if rope["rope_type"] != meant.rope.kind:
            yield _fault("rope_type", meant.rope.kind, rope["rope_type"])


def _fault(name: str, wanted: Any, found: Any) -> Finding:
    message = f"the file says {found} for '{name}', the config means {wanted}"
    return finding("E_GGUF_METADATA", "error", message, key=name)


def _plain(value: Any) -> Any:
    """Floats as a GGUF holds them."""
    return np.float32(value) if isinstance(value, float) else value
