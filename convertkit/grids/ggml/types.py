"""Which ggml block types are encoded here, and which only by ggml's library."""

from __future__ import annotations

OWN_TYPES = ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "MXFP4")
"""Encoded by the loops of ``kernels``."""
LIBRARY_TYPES = ("Q4_K", "Q5_K", "Q6_K")
"""Encoded by ``backends.ggml_library``."""
DECODED_TYPES = (*OWN_TYPES, *LIBRARY_TYPES)
"""Block types that ``decode`` knows; NVFP4 is planes in another order."""
