"""Checkpoints on the Hugging Face hub, through its own client (extra ``hub``)."""
