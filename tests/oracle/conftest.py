"""What the comparisons with real packages need before any of those packages is imported."""

from __future__ import annotations

import sys
from typing import Any

# The packages under test import transformers, which imports these two if they are installed. Nothing here uses
# them, and a wheel built for another torch than the installed one breaks the import: hide them.
_UNUSED: dict[str, Any] = {"torchvision": None, "torchaudio": None}
sys.modules.update(_UNUSED)
