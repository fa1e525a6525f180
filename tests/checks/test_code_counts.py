"""Codes are counted as a plain loop counts them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np

from convertkit.checks.code_counts import code_counts
from convertkit.checks.kernels_counts import count_bytes
from convertkit.containers.folder import open_checkpoint
from convertkit.containers.reader import Reader
from convertkit.demo.generate import generate
from convertkit.verbs.case import Options
from convertkit.verbs.pack import pack_nvfp4


def test_bytes_are_counted() -> None:
    for size in (0, 1, 3, 4, 5, 1001):
        data = np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8)
        counts = np.zeros(1024, np.int64)
        count_bytes(data, counts)
        assert np.array_equal(counts.reshape(4, 256).sum(axis=0), np.bincount(data, minlength=256))


def test_codes_are_counted(tmp_path: Path) -> None:
    generate("dflash2", tmp_path / "dense")
    pack_nvfp4(tmp_path / "dense", tmp_path / "packed", options=Options(workers=2))
    opened = open_checkpoint(tmp_path / "packed")
    expected: Counter[int] = Counter()
    with Reader(opened) as reader:
        for name, ref in opened.tensors.items():
            if ref.spec.dtype == "U8":
                for byte in reader.bytes_of(name):
                    expected[byte & 15] += 1
                    expected[byte >> 4] += 1
    assert code_counts(opened) == [expected[code] for code in range(16)]
    assert code_counts(open_checkpoint(tmp_path / "dense")) is None
