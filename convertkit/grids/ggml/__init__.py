"""The block types of ggml: rows of floats to blocks and back."""
