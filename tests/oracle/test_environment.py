"""The packages that an environment is made for are there: without them the comparisons would skip unseen.

``make oracle`` names them in ``CONVERTKIT_ORACLES``.
"""

import importlib
import os

import pytest

WANTED = os.environ.get("CONVERTKIT_ORACLES", "").split()

pytestmark = pytest.mark.oracle


@pytest.mark.skipif(not WANTED, reason="CONVERTKIT_ORACLES names no package")
def test_packages_import() -> None:
    for name in WANTED:
        importlib.import_module(name)
