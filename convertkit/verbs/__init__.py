"""One function per verb: the Python API."""
