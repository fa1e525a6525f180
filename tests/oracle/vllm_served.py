"""What vLLM's own functions make of NVFP4 planes, written as JSON: python tests/oracle/vllm_served.py OUT.json

Needs vllm 0.33.0 with any torch: the functions run on a CPU. ``tests/golden/vllm_served.json`` is its output. The
kernel's part, the widening of a stored scale byte to BF16, is done here as the kernel does it: by moving bits.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

GLOBALS = (0x38D1B717, 0x3A83126F, 0x3F800000, 0x2B8CBCCC)
LARGEST = (0x7E, 0x77, 0x76, 0x70, 0x60, 0x40, 0x08, 0x07, 0x01)


def marlin_scales(largest: int) -> dict[str, Any]:
    """Scale bytes 0 to ``largest`` of one matrix, processed; FP32 bits of what the kernel multiplies codes with."""
    import torch
    from vllm.model_executor.layers.quantization.utils import (  # type: ignore[import-not-found]
        marlin_utils_fp4 as marlin,
    )

    padded = [*range(largest + 1), *([0] * (-(largest + 1) % 4))]
    stored = torch.tensor(padded, dtype=torch.uint8).view(torch.float8_e4m3fn).to(torch.bfloat16).reshape(1, -1)
    made, factor = marlin.nvfp4_marlin_process_scales(stored, a_dtype=torch.bfloat16)
    byte = made.view(torch.uint8).to(torch.int32).reshape(-1, 4)[:, [0, 2, 1, 3]].reshape(-1)[: largest + 1]
    wide = ((byte & 0x80) << 7) | ((byte & 0x7F) << 4)
    return {"factor": factor, "widened": wide.tolist()}


def marlin_globals() -> dict[str, int]:
    import torch
    from vllm.model_executor.layers.quantization.utils import (
        marlin_utils_fp4 as marlin,
    )

    found = {}
    for bits in GLOBALS:
        scale = torch.tensor([bits], dtype=torch.int32).view(torch.float32)
        made = marlin.nvfp4_marlin_process_global_scale(scale, torch.bfloat16)
        found[f"0x{bits:08x}"] = int(made.view(torch.int32).item()) & 0xFFFFFFFF
    return found


def emulated() -> dict[str, list[int]]:
    """BF16 bits of codes 0..15 under each positive scale byte, by global scale."""
    import torch
    from vllm.model_executor.layers.quantization.utils import (
        nvfp4_emulation_utils as emulation,
    )

    codes = torch.tensor([0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE], dtype=torch.uint8).repeat(126, 1)
    scales = torch.arange(1, 127, dtype=torch.uint8).reshape(126, 1)
    found = {}
    for bits in GLOBALS[:2]:
        scale = torch.tensor([bits], dtype=torch.int32).view(torch.float32)
        made = emulation.dequantize_to_dtype(codes, scales, scale, torch.bfloat16, 16, swizzle=False)
        found[f"0x{bits:08x}"] = (made.view(torch.int16).to(torch.int32) & 0xFFFF).reshape(-1).tolist()
    return found


def main() -> None:
    import vllm  # type: ignore[import-not-found]

    document = {
        "vllm": vllm.__version__,
        "marlin": {str(largest): marlin_scales(largest) for largest in LARGEST},
        "marlin_globals": marlin_globals(),
        "emulation": emulated(),
    }
    Path(sys.argv[1]).write_text(json.dumps(document) + "\n")


if __name__ == "__main__":
    main()
