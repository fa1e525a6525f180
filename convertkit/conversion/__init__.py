"""The line from an identified source to staged bytes."""
