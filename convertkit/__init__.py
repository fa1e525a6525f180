"""Checkpoint conversion and quantization for LLMs and speculative-decoding drafters.

The Python API is the verbs: ``convertkit.pack_nvfp4``, ``dequant``, ``convert``, ``gate``, ``audit``, ``inspect``,
``manifest``, ``verify``. Each is imported when it is first used, so importing the package costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from convertkit.errors import ConvertError as ConvertError
    from convertkit.verbs.audit import audit as audit
    from convertkit.verbs.calibration import generate_calibration as generate_calibration
    from convertkit.verbs.calibration import read_calibration as read_calibration
    from convertkit.verbs.calibration import record_calibration as record_calibration
    from convertkit.verbs.calibration import write_calibration as write_calibration
    from convertkit.verbs.case import Options as Options
    from convertkit.verbs.convert import convert as convert
    from convertkit.verbs.dequant import dequant as dequant
    from convertkit.verbs.diff import diff as diff
    from convertkit.verbs.doctor import doctor as doctor
    from convertkit.verbs.drafters import to_dflash as to_dflash
    from convertkit.verbs.drafters import to_dspark as to_dspark
    from convertkit.verbs.drafters import to_speculators as to_speculators
    from convertkit.verbs.fix_keys import fix_keys as fix_keys
    from convertkit.verbs.from_gguf import from_gguf as from_gguf
    from convertkit.verbs.from_torch import from_torch as from_torch
    from convertkit.verbs.gate import gate as gate
    from convertkit.verbs.gate_forward import gate_forward as gate_forward
    from convertkit.verbs.inspect import inspect as inspect
    from convertkit.verbs.manifest import manifest as manifest
    from convertkit.verbs.pack import pack_nvfp4 as pack_nvfp4
    from convertkit.verbs.repair import repair as repair
    from convertkit.verbs.report import report as report
    from convertkit.verbs.sign import sign as sign
    from convertkit.verbs.to_gguf import to_gguf as to_gguf
    from convertkit.verbs.verify import verify as verify

_HOMES = {
    "ConvertError": "convertkit.errors",
    "Options": "convertkit.verbs.case",
    "audit": "convertkit.verbs.audit",
    "convert": "convertkit.verbs.convert",
    "dequant": "convertkit.verbs.dequant",
    "diff": "convertkit.verbs.diff",
    "doctor": "convertkit.verbs.doctor",
    "fix_keys": "convertkit.verbs.fix_keys",
    "from_gguf": "convertkit.verbs.from_gguf",
    "from_torch": "convertkit.verbs.from_torch",
    "gate": "convertkit.verbs.gate",
    "gate_forward": "convertkit.verbs.gate_forward",
    "generate_calibration": "convertkit.verbs.calibration",
    "inspect": "convertkit.verbs.inspect",
    "manifest": "convertkit.verbs.manifest",
    "pack_nvfp4": "convertkit.verbs.pack",
    "read_calibration": "convertkit.verbs.calibration",
    "record_calibration": "convertkit.verbs.calibration",
    "repair": "convertkit.verbs.repair",
    "report": "convertkit.verbs.report",
    "sign": "convertkit.verbs.sign",
    "to_dflash": "convertkit.verbs.drafters",
    "to_dspark": "convertkit.verbs.drafters",
    "to_gguf": "convertkit.verbs.to_gguf",
    "to_speculators": "convertkit.verbs.drafters",
    "verify": "convertkit.verbs.verify",
    "write_calibration": "convertkit.verbs.calibration",
}

__all__ = ["ConvertError", "Options", "__version__", *sorted(name for name in _HOMES if name.islower())]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'convertkit' has no attribute '{name}'")
    from importlib import import_module

    value = getattr(import_module(home), name)
    globals()[name] = value
    return value
