"""How bytes are boxed: strict readers and deterministic writers."""
