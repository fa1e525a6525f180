"""The Python API: the verbs, as functions, whatever was imported before."""

from __future__ import annotations

import subprocess
import sys

import convertkit
from convertkit.cli.main import COMMANDS


def test_verbs_are_functions_after_every_module_was_imported() -> None:
    code = (
        "import convertkit, importlib, pkgutil\n"
        "for name in ('conversion', 'verbs', 'release', 'checks'):\n"
        "    importlib.import_module(f'convertkit.{name}')\n"
        "convertkit.pack_nvfp4\n"
        "bad = [name for name in convertkit.__all__ if name.islower() and not name.startswith('_')"
        " and not callable(getattr(convertkit, name))]\n"
        "assert not bad, bad\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


ELSEWHERE = {"release", "demo", "formats", "schema", "completion"}
"""``release``, ``demo`` and ``formats`` are modules of these names, with functions in ``convertkit.verbs``; the others
only print."""


def test_every_command_is_a_function_of_its_name() -> None:
    names = {name.replace("-", "_") for name in COMMANDS} - ELSEWHERE - {"calibration"}
    assert names <= set(convertkit.__all__)


def test_importing_the_package_imports_no_heavy_library() -> None:
    code = "import convertkit, sys\nassert not {'torch', 'numba', 'numpy', 'click'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_version_is_stated() -> None:
    assert convertkit.__version__.count(".") == 2
