"""What Marlin's own device code makes of codes and scale bytes, written as JSON; needs nvcc and an NVIDIA GPU.

    python tests/oracle/marlin_kernel.py FOLDER OUT.json

FOLDER is where the wheel of sglang 0.5.23 is unpacked. Its ``dequant.h`` (vLLM's public source has the same two
functions) is compiled as it stands, with the few types that it names, and run for each byte that a scale can be stored
as and each code; products are those that go to the tensor cores. The preparation of scales and global scales is that of
the wheel's Python functions, which run on a CPU. ``tests/golden/marlin_kernel.json`` is its output on an H200.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

HEADER = "sglang/kernels/jit/csrc/gemm/marlin/dequant.h"
PYTHON = "sglang/srt/layers/quantization/marlin_utils_fp4.py"
GLOBALS = (0x38D1B717, 0x3A83126F, 0x3F800000, 0x2B8CBCCC, 0x39A1B2C3, 0x43FF0000, 0x44010000)

TYPES = """
#pragma once
#include <cstdint>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
namespace sglang { namespace host {
using ScalarTypeId = int64_t;
struct Kind { int64_t number; constexpr int64_t id() const { return number; } };
constexpr Kind kU4B8{1}, kU4{2}, kU8B128{3}, kU8{4}, kFE4M3fn{5}, kFE2M1f{6}, kFE8M0fnu{7};
} namespace device { namespace marlin { namespace host = ::sglang::host; } } }
"""
HARNESS = """
#include "dequant.h"
#include <cstdio>
using namespace sglang::device::marlin;
__global__ void products(unsigned short *out) {
    int scale = blockIdx.x, code = threadIdx.x;
    nv_bfloat162 scales[2], weights[2];
    dequant_fp8_scales<nv_bfloat162>(scale * 0x01010101, scales);
    dequant<nv_bfloat162, sglang::host::kFE2M1f.id(), true>(code * 0x11111111, weights);
    nv_bfloat162 made = __hmul2(weights[0], scales[0]);
    out[16 * scale + code] = *(unsigned short *)&made;
}
int main() {
    unsigned short *place, made[4096];
    cudaMalloc(&place, sizeof(made));
    products<<<256, 16>>>(place);
    if (cudaMemcpy(made, place, sizeof(made), cudaMemcpyDeviceToHost)) return 1;
    for (int i = 0; i < 4096; i++) printf("%d\\n", made[i]);
}
"""


def products(folder: Path) -> list[int]:
    """BF16 bits of 256 stored scale bytes times 16 codes."""
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        (work / "dequant.h").write_text((folder / HEADER).read_text())
        (work / "marlin_dtypes.cuh").write_text(TYPES)
        (work / "main.cu").write_text(HARNESS)
        options = ["--expt-relaxed-constexpr", "-std=c++17", "-arch=native"]
        subprocess.run(["nvcc", *options, "-o", work / "main", work / "main.cu"], check=True)
        done = subprocess.run([work / "main"], check=True, capture_output=True, text=True)
    return [int(line) for line in done.stdout.split()]


def functions(folder: Path) -> Any:
    """The two functions of the wheel's module, without what it imports."""
    import torch

    tree = ast.parse((folder / PYTHON).read_text())
    names = ("nvfp4_marlin_process_scales", "nvfp4_marlin_process_global_scale")
    tree.body = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in names]
    space: dict[str, Any] = {"torch": torch, "logger": SimpleNamespace(warning_once=lambda _: None)}
    exec(compile(tree, PYTHON, "exec"), space)
    return SimpleNamespace(scales=space[names[0]], global_scale=space[names[1]])


def stored_bytes(theirs: Any, first: int) -> list[int]:
    """The stored byte of 127 scale bytes from ``first`` on; the wheel's order of four is undone."""
    import torch

    given = torch.tensor([*range(first, first + 127), first], dtype=torch.uint8).view(torch.float8_e4m3fn)
    made = theirs.scales(given.to(torch.bfloat16).reshape(1, -1)).view(torch.uint8).reshape(-1, 4)
    return [int(byte) for byte in made[:, [0, 2, 1, 3]].reshape(-1)[:127]]


def global_scale(theirs: Any, bits: int) -> int:
    """FP32 bits of a prepared global scale."""
    import torch

    scale = torch.tensor([bits], dtype=torch.int32).view(torch.float32).to(torch.bfloat16)
    return int(theirs.global_scale(scale).float().view(torch.int32).item())


def main() -> None:
    folder = Path(sys.argv[1])
    theirs = functions(folder)
    document = {
        "sglang": "0.5.23",
        "products": products(folder),
        "positive": stored_bytes(theirs, 0),
        "negative": stored_bytes(theirs, 128),
        "globals": {f"0x{bits:08x}": global_scale(theirs, bits) for bits in GLOBALS},
    }
    Path(sys.argv[2]).write_text(json.dumps(document) + "\n")


if __name__ == "__main__":
    main()
