"""What tensors are called and which belong together: tables and template rules."""
