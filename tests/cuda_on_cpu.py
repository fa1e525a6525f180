"""Run the CUDA sources on the processor: no thread of theirs talks to another, so a loop over threads is the grid.

The text is compiled by the machine's own C++ compiler, with a few lines that stand for what CUDA brings along. A GPU
runs the same text, but for one instruction of newer ones, which ``arch`` 900 selects here too.
"""

from __future__ import annotations

import ctypes
import hashlib
import re
import shutil
import subprocess
import tempfile
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from convertkit.backends import cuda as gpu

torch = pytest.importorskip("torch")

SHIM = """
#include <cmath>
#include <cstring>
struct Place { unsigned x; };
static thread_local Place threadIdx, blockIdx, blockDim, gridDim;
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(8) uint2 { unsigned x, y; };
template <typename T> static inline T max(T a, T b) { return a > b ? a : b; }
template <typename T> static inline T min(T a, T b) { return a < b ? a : b; }
static inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
    unsigned long long both = a | (unsigned long long)b << 32;
    unsigned made = 0;
    for (int i = 0; i < 4; i++) {
        unsigned pick = selector >> (4 * i) & 15, byte = both >> (8 * (pick & 7)) & 255;
        made |= (pick & 8 ? (byte & 128 ? 255u : 0u) : byte) << (8 * i);
    }
    return made;
}
static inline unsigned halves(unsigned a, unsigned b, unsigned (*f)(unsigned, unsigned)) {
    return f(a & 0xffff, b & 0xffff) | f(a >> 16, b >> 16) << 16;
}
static inline unsigned __vmaxu2(unsigned a, unsigned b) { return halves(a, b, max<unsigned>); }
static inline unsigned __vminu2(unsigned a, unsigned b) { return halves(a, b, min<unsigned>); }
static inline unsigned __viaddmin_s16x2_relu(unsigned a, unsigned b, unsigned c) {
    unsigned made = 0;
    for (int i = 0; i < 2; i++) {
        short sum = (short)((a >> (16 * i)) + (b >> (16 * i))), bound = (short)(c >> (16 * i));
        made |= (unsigned)(unsigned short)max<short>(min<short>(sum, bound), 0) << (16 * i);
    }
    return made;
}
static inline float __uint_as_float(unsigned bits) { float value; std::memcpy(&value, &bits, 4); return value; }
template <typename T> static inline void atomicAdd(T *place, T more) { *place += more; }
template <typename T> static inline void atomicMax(T *place, T more) { *place = max(*place, more); }
"""
KERNEL = re.compile(r'extern "C"\s+void\s+(\w+)\s*\(([^)]*)\)')


def launcher(name: str, parameters: str) -> str:
    names = ", ".join(re.findall(r"(\w+)\s*(?:,|$)", parameters.strip()))
    return f"""extern "C" void launch_{name}(long long threads, {parameters}) {{
        blockDim.x = {gpu.THREADS}; gridDim.x = (threads + blockDim.x - 1) / blockDim.x;
        for (blockIdx.x = 0; blockIdx.x < gridDim.x; blockIdx.x++)
            for (threadIdx.x = 0; threadIdx.x < blockDim.x; threadIdx.x++) {name}({names});
    }}"""


@cache
def library(package: str, name: str, arch: int) -> ctypes.CDLL:
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler on this machine")
    folder = Path(tempfile.gettempdir()) / "convertkit-cuda-on-cpu"
    folder.mkdir(exist_ok=True)
    text = SHIM + gpu.source_text(package, name)
    stem = hashlib.sha256(f"{arch}{text}".encode()).hexdigest()[:16]
    made = folder / f"{stem}.so"
    if not made.exists():
        source = folder / f"{stem}.cpp"
        words = ["-D__global__=", "-D__device__=", "-D__forceinline__=inline", f"-D__CUDA_ARCH__={arch}"]
        source.write_text(text)
        done = subprocess.run([compiler, "-E", "-P", *words, source], capture_output=True, text=True, check=True)
        whole = done.stdout + "\n".join(launcher(*found) for found in KERNEL.findall(done.stdout))
        source.write_text(whole)
        # Arithmetic step by step, as --fmad=false asks of the CUDA compiler.
        options = ["-O1", "-std=c++17", "-ffp-contract=off", "-w", "-fno-strict-aliasing"]
        subprocess.run([compiler, *options, "-shared", "-fPIC", "-o", made, source], check=True)
    return ctypes.CDLL(str(made))


def on_cpu(monkeypatch: pytest.MonkeyPatch, arch: int) -> None:
    """From here on kernels, transfers and device memory are those of the processor."""

    def launch(self: gpu.Program, name: str, threads: int, *arguments: Any) -> None:
        values = [gpu._argument(argument) for argument in arguments]
        getattr(library(*self._place, arch), f"launch_{name}")(ctypes.c_longlong(threads), *values)

    def download(pairs: Any) -> None:
        for tensor, out in pairs:
            out.reshape(-1).view(np.uint8)[:] = tensor.numpy()

    def copied(array: Any) -> Any:
        return torch.from_numpy(np.array(array).reshape(-1).view(np.uint8))

    monkeypatch.setattr(gpu.Program, "launch", launch)
    monkeypatch.setattr(gpu, "stream", nullcontext)
    monkeypatch.setattr(gpu, "upload", lambda array, use: copied(array))
    monkeypatch.setattr(gpu, "download", download)
    monkeypatch.setattr(gpu, "scratch", lambda size: torch.full((size,), 0xAA, dtype=torch.uint8))
    monkeypatch.setattr(gpu, "zeros", lambda count, dtype: torch.zeros(count, dtype=dtype))
    monkeypatch.setattr(gpu, "keep", lambda arrays: tuple(copied(array) for array in arrays))
