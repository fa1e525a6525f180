"""Independent arithmetic that proves what was written."""
