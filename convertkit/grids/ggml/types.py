"""The ggml block types that are encoded and decoded here."""

from __future__ import annotations

OWN_TYPES = ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "MXFP4")
"""Blocks of 32, encoded by the loops of ``kernels``."""
K_TYPES = ("Q4_K", "Q5_K", "Q6_K")
"""Blocks of 256, encoded by ``k_quants``."""
DECODED_TYPES = (*OWN_TYPES, *K_TYPES)
"""Block types that ``decode`` knows; NVFP4 is planes in another order."""
