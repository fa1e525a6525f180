"""Speed of the NVFP4 loops against ModelOpt and compressed-tensors: ratios within one run, same threads.

Run in the environment that holds both packages::

    PYTHONPATH=. python benchmarks/kernels.py [--rows 5120] [--width 17408] [--threads 2] [--rounds 3]

Each step is timed once per round, the steps taking turns, and the least time counts. Ours is amax, tables and
encode (or table and decode) over row tiles in a thread pool; theirs are the packages' own functions with as many
torch threads. Outputs are compared before anything is printed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

# transformers imports these if they are there; wheels for another torch than the installed one would break it.
_UNUSED: dict[str, Any] = {"torchvision": None, "torchaudio": None}
sys.modules.update(_UNUSED)

TILE_ROWS = 64
GOALS = {"pack / ModelOpt quantize": 10, "pack / compressed-tensors": 25, "decode / ModelOpt dequantize": 60}


class Ours:
    """Our two passes and decode over one BF16 matrix, with outputs allocated once."""

    def __init__(self, values: NDArray[np.uint16], threads: int) -> None:
        rows, width = values.shape
        self.values = values
        self.codes = np.zeros((rows, width // 2), np.uint8)
        self.scales = np.zeros((rows, width // 16), np.uint8)
        self.out = np.zeros_like(values)
        self.tiles = [slice(start, start + TILE_ROWS) for start in range(0, rows, TILE_ROWS)]
        self.pool = ThreadPoolExecutor(threads)

    def pack(self, arithmetic: str) -> int:
        """Fill codes and scales; the bits of the global scale."""
        from convertkit.grids.nvfp4.encode import amax_of_tile, encode_tile
        from convertkit.grids.nvfp4.tables import build_encode_tables

        amax = max(self.pool.map(lambda tile: amax_of_tile(self.values[tile]), self.tiles))
        built = build_encode_tables(arithmetic, "BF16", amax)
        list(
            self.pool.map(
                lambda tile: encode_tile(self.values[tile], built, self.codes[tile], self.scales[tile]), self.tiles
            )
        )
        return built.global_bits

    def decode(self, global_bits: int) -> None:
        """Fill ``out`` from codes and scales by ModelOpt's arithmetic."""
        from convertkit.grids.nvfp4.decode import decode_table, decode_tile, paired

        table = paired(decode_table(global_bits, "multiplier", "BF16", "modelopt"))
        list(
            self.pool.map(
                lambda tile: decode_tile(self.codes[tile], self.scales[tile], table, self.out[tile]), self.tiles
            )
        )

    def copy(self) -> None:
        """The memory's speed: a plain copy over the same tiles."""
        list(self.pool.map(lambda tile: np.copyto(self.out[tile], self.values[tile]), self.tiles))


def compressed_tensors_pack(weight: Any) -> dict[str, Any]:
    """What llm-compressor's observer computes, then compressed-tensors' ``compress``."""
    import torch
    from compressed_tensors.compressors.nvfp4 import NVFP4PackedCompressor
    from compressed_tensors.quantization import preset_name_to_scheme
    from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

    scheme = preset_name_to_scheme("NVFP4A16", ["Linear"])
    blocks = weight.view(weight.shape[0], -1, 16)
    low, high = blocks.amin(-1), blocks.amax(-1)
    largest = torch.max(high.max(), -low.min()).reshape(1)
    scale = generate_gparam(-largest, largest)
    scales, _ = calculate_qparams(low, high, scheme.weights, global_scale=scale)
    state = {"weight": weight, "weight_scale": scales, "weight_global_scale": scale}
    packed: dict[str, Any] = NVFP4PackedCompressor.compress(state, scheme)
    return packed


def check(ours: Ours, weight: Any) -> tuple[int, Any]:
    """Both packages' bytes equal ours; ModelOpt's packed tensor and our global scale bits for decoding."""
    import torch
    from modelopt.torch.quantization.qtensor import NVFP4QTensor

    ours.pack("amax-llmcompressor")
    packed = compressed_tensors_pack(weight)
    assert np.array_equal(packed["weight_packed"].numpy(), ours.codes)
    assert np.array_equal(packed["weight_scale"].view(torch.uint8).numpy(), ours.scales)
    global_bits = ours.pack("amax")
    quantized = NVFP4QTensor.quantize(weight, 16)
    assert np.array_equal(quantized[0]._quantized_data.numpy(), ours.codes)
    assert np.array_equal(quantized[1].view(torch.uint8).numpy(), ours.scales)
    ours.decode(global_bits)
    dense = modelopt_dequantize(quantized).view(torch.int16).numpy().view(np.uint16)
    assert np.array_equal(dense, ours.out)
    return global_bits, quantized


def modelopt_dequantize(quantized: Any) -> Any:
    import torch

    packed, scales, scale = quantized
    return packed.dequantize(dtype=torch.bfloat16, scale=scales, double_scale=scale, block_sizes={-1: 16})


def seconds(step: Callable[[], object]) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    for name, default in (("rows", 5120), ("width", 17408), ("threads", 2), ("rounds", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    wanted = parser.parse_args()
    import torch
    from modelopt.torch.quantization.qtensor import NVFP4QTensor

    torch.set_num_threads(wanted.threads)
    weight = (torch.randn(wanted.rows, wanted.width, generator=torch.Generator().manual_seed(0)) * 0.02).bfloat16()
    ours = Ours(weight.view(torch.int16).numpy().view(np.uint16), wanted.threads)
    global_bits, quantized = check(ours, weight)
    steps: dict[str, Callable[[], object]] = {
        "copy": ours.copy,
        "pack": lambda: ours.pack("amax"),
        "pack (llm-compressor arithmetic)": lambda: ours.pack("amax-llmcompressor"),
        "decode": lambda: ours.decode(global_bits),
        "ModelOpt quantize": lambda: NVFP4QTensor.quantize(weight, 16),
        "compressed-tensors": lambda: compressed_tensors_pack(weight),
        "ModelOpt dequantize": lambda: modelopt_dequantize(quantized),
    }
    least = dict.fromkeys(steps, float("inf"))
    for _ in range(wanted.rounds):
        for name, step in steps.items():
            least[name] = min(least[name], seconds(step))
    print(
        f"{wanted.rows} x {wanted.width} BF16, {wanted.threads} threads, least of {wanted.rounds} rounds, bytes equal"
    )
    for name, value in least.items():
        print(f"  {name:34} {value * 1000:10.1f} ms   {ours.values.nbytes / value / 1e9:8.2f} GB/s of BF16")
    mine = {
        "ModelOpt quantize": "pack",
        "compressed-tensors": "pack (llm-compressor arithmetic)",
        "ModelOpt dequantize": "decode",
    }
    for label, goal in GOALS.items():
        peer = label.partition(" / ")[2]
        print(f"  {label:34} {least[peer] / least[mine[peer]]:10.1f} x    goal {goal} x")


if __name__ == "__main__":
    main()
