"""Running CUDA C on an NVIDIA GPU through torch: compile, launch, and move arrays while others are computed.

Sources are compiled by NVRTC, which comes with every CUDA build of torch, when they are first used; no compiler needs
to be installed. Each thread has its own stream and pinned buffers: while one thread's tile is computed, those of the
others are on their way.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from convertkit.errors import refusal

THREADS = 128
"""Threads of a block, for every kernel."""

OPTIONS = ("--std=c++17", "--fmad=false", "--prec-div=true", "--prec-sqrt=true", "--ftz=false")
"""Arithmetic as on the CPU: no multiplication fused with an addition, subnormals kept."""


class Lane(threading.local):
    """What one thread uses on the device: a stream and pinned host buffers by use, kept between tiles."""

    def __init__(self) -> None:
        self.stream: torch.cuda.Stream | None = None
        self.pinned: dict[str, torch.Tensor] = {}


_LANE = Lane()
_LOADING = threading.Lock()


def require_cuda() -> None:
    """``E_DEVICE`` (status 2) unless torch can use a CUDA device."""
    if not torch.cuda.is_available():
        raise refusal(
            "E_DEVICE",
            "torch finds no CUDA device",
            fix="use --device cpu, or install a CUDA build of torch and its driver",
        )


def stream() -> Any:
    """This thread's stream as a context."""
    if _LANE.stream is None:
        _LANE.stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    return torch.cuda.stream(_LANE.stream)


def pinned_array(size_bytes: int) -> NDArray[np.uint8]:
    """Host memory that the device reads and writes by itself: such an array is never copied on the host."""
    array: NDArray[np.uint8] = torch.empty(size_bytes, dtype=torch.uint8, pin_memory=True).numpy()
    return array


def _pinned(use: str, size_bytes: int) -> torch.Tensor:
    held = _LANE.pinned.get(use)
    if held is None or held.numel() < size_bytes:
        held = _LANE.pinned[use] = torch.empty(size_bytes, dtype=torch.uint8, pin_memory=True)
    return held[:size_bytes]


def upload(array: NDArray[Any], use: str) -> torch.Tensor:
    """The bytes of a contiguous array on the device; ``use`` names the pinned buffer that they may go through.

    Inside ``stream()``; the array must keep its bytes until ``download`` or another wait.
    """
    if not array.flags.c_contiguous:
        raise ValueError(f"{use}: a C-contiguous array is needed")
    raw = torch.from_numpy(_writable(array.reshape(-1).view(np.uint8)))
    if not raw.is_pinned():
        raw = _pinned(use, raw.numel()).copy_(raw)
    return raw.to("cuda", non_blocking=True)


def _writable(array: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The same memory without its read-only mark, which torch warns about; it is only read."""
    if array.flags.writeable or not array.size:
        return array
    return np.ctypeslib.as_array((ctypes.c_uint8 * array.size).from_address(array.ctypes.data))


def scratch(size_bytes: int) -> torch.Tensor:
    """Device memory for a result, not cleared."""
    return torch.empty(size_bytes, dtype=torch.uint8, device="cuda")


def zeros(count: int, dtype: torch.dtype) -> torch.Tensor:
    """Device memory for counts."""
    return torch.zeros(count, dtype=dtype, device="cuda")


def keep(arrays: Sequence[NDArray[Any]]) -> tuple[torch.Tensor, ...]:
    """The bytes of tables on the device, there before any thread's stream can use them."""
    with _LOADING:
        made = tuple(torch.from_numpy(np.array(array).view(np.uint8)).to("cuda") for array in arrays)
        torch.cuda.synchronize()
    return made


def download(pairs: Sequence[tuple[torch.Tensor, NDArray[Any]]]) -> None:
    """Copy results into arrays of the same number of bytes, and wait for all that this thread has begun."""
    waiting = []
    for number, (tensor, out) in enumerate(pairs):
        target = torch.from_numpy(out.reshape(-1).view(np.uint8))
        place = target if target.is_pinned() else _pinned(f"result {number}", tensor.numel())
        place.copy_(tensor, non_blocking=True)
        if place is not target:
            waiting.append((place, target))
    torch.cuda.current_stream().synchronize()
    for place, target in waiting:
        target.copy_(place)


@cache
def _library(name: str, folder: str) -> ctypes.CDLL:
    """A CUDA library: of the system or already loaded, else that of torch's own wheels."""
    places = sorted(Path(torch.__file__).parents[1].glob(f"nvidia/*/lib/{folder}"))
    for place in (name, *map(str, places)):
        try:
            return ctypes.CDLL(place)
        except OSError:
            continue
    raise refusal("E_DEVICE", f"{name} cannot be loaded", fix="install a CUDA build of torch, or use --device cpu")


def _nvrtc() -> ctypes.CDLL:
    major = str(torch.version.cuda).partition(".")[0]
    return _library(f"libnvrtc.so.{major}", "libnvrtc.so.[0-9]*")


def _driver() -> ctypes.CDLL:
    return _library("libcuda.so.1", "libcuda.so.1")


def _done(result: int, what: str) -> None:
    if result:
        raise refusal("E_DEVICE", f"CUDA error {result} while {what}", fix="use --device cpu")


def compile_source(nvrtc: ctypes.CDLL, text: str, name: str, capability: str) -> bytes:
    """Machine code for a compute capability such as 90. ``E_DEVICE`` with the compiler's words if it fails."""
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    options = [f"--gpu-architecture=sm_{capability}", *OPTIONS]
    words = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    made = nvrtc.nvrtcCreateProgram(ctypes.byref(program), text.encode(), name.encode(), 0, None, None)
    _done(made, f"reading {name}")
    if nvrtc.nvrtcCompileProgram(program, len(options), words):
        nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetProgramLog(program, log)
        raise refusal("E_DEVICE", f"{name} does not compile: {log.value.decode()}", fix="use --device cpu")
    _done(nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size)), f"compiling {name}")
    binary = ctypes.create_string_buffer(size.value)
    _done(nvrtc.nvrtcGetCUBIN(program, binary), f"compiling {name}")
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return binary.raw


def source_text(package: str, name: str) -> str:
    """A CUDA source that is installed beside a package's modules."""
    return files(package).joinpath(name).read_text(encoding="utf-8")


class Program:
    """The kernels of one source, compiled for the current device when the first one is launched."""

    def __init__(self, package: str, name: str) -> None:
        self._place = package, name
        self._module = ctypes.c_void_p()
        self._kernels: dict[str, ctypes.c_void_p] = {}

    def _kernel(self, name: str) -> ctypes.c_void_p:
        with _LOADING:
            if not self._module:
                torch.cuda.current_stream()  # torch makes the context
                major, minor = torch.cuda.get_device_capability()
                text = source_text(*self._place)
                binary = compile_source(_nvrtc(), text, self._place[1], f"{major}{minor}")
                _done(_driver().cuModuleLoadData(ctypes.byref(self._module), binary), "loading kernels")
            if name not in self._kernels:
                found = ctypes.c_void_p()
                _done(
                    _driver().cuModuleGetFunction(ctypes.byref(found), self._module, name.encode()), f"loading {name}"
                )
                self._kernels[name] = found
        return self._kernels[name]

    def launch(self, name: str, threads: int, *arguments: torch.Tensor | int | float) -> None:
        """Run a kernel with at least so many threads on this thread's stream.

        Tensors are passed as pointers, ``int`` as ``long long``, ``float`` as ``double``.
        """
        values = [_argument(argument) for argument in arguments]
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        blocks = -(-threads // THREADS)
        if not blocks:
            return
        current = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        kernel = self._kernel(name)
        _done(
            _driver().cuLaunchKernel(kernel, blocks, 1, 1, THREADS, 1, 1, 0, current, pointers, None),
            f"running {name}",
        )


def _argument(value: torch.Tensor | int | float) -> Any:
    if isinstance(value, torch.Tensor):
        return ctypes.c_void_p(value.data_ptr())
    return ctypes.c_longlong(value) if isinstance(value, int) else ctypes.c_double(value)
