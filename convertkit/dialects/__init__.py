"""How one quantized weight is spelled as several tensors, and its config block."""
