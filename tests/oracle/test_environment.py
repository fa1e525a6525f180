"""The packages that an environment is made for are there: without them the comparisons would skip unseen.

``make oracle`` and its like name them in ``CONVERTKIT_ORACLES``.
"""

import importlib
import os
from importlib.metadata import version

import pytest

WANTED = os.environ.get("CONVERTKIT_ORACLES", "").split()

pytestmark = pytest.mark.oracle


@pytest.mark.skipif(not WANTED, reason="CONVERTKIT_ORACLES names no package")
def test_packages_import() -> None:
    for name in WANTED:
        if name == "sglang":  # its import asks for compiled packages, for which its tests have stand-ins
            assert version(name)
        else:
            importlib.import_module(name)
