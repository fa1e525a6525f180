"""Checkpoint conversion and quantization for LLMs and speculative-decoding drafters."""

__version__ = "0.1.0"
