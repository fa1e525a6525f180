"""``python -m convertkit.demo KIND OUT``: write a generated checkpoint."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from convertkit.demo.drafters import KINDS
from convertkit.demo.generate import generate
from convertkit.dtypes import FLOATS
from convertkit.errors import ConvertError

_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9}


def _size(text: str) -> int:
    """``5GB``, ``40MB``, ``200KB`` (powers of ten, as the Hub counts) or bytes."""
    match = re.fullmatch(r"([0-9]+)(KB|MB|GB|)", text.upper())
    if match is None or int(match[1]) == 0:
        raise argparse.ArgumentTypeError(f"'{text}' is not a size such as 5GB or 40MB")
    return int(match[1]) * _UNITS[match[2]]


def main(words: Sequence[str] | None = None) -> int:
    """Exit status: 0, or that of the error."""
    parser = argparse.ArgumentParser(prog="python -m convertkit.demo", description="Write a generated checkpoint.")
    parser.add_argument("kind", choices=tuple(KINDS))
    parser.add_argument("out", type=Path)
    parser.add_argument("--scale", default="tiny", choices=("tiny", "small", "full"))
    parser.add_argument("--on-grid", action="store_true", help="weights on an NVFP4 grid, as trained for it")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max-shard-size", type=_size, default=None, metavar="SIZE", help="such as 5GB or 40MB")
    parser.add_argument("--dtype", default="BF16", choices=FLOATS)
    given = parser.parse_args(words)
    try:
        made = generate(
            given.kind, given.out, scale=given.scale, on_grid=given.on_grid, seed=given.seed,
            max_shard_bytes=given.max_shard_size, dtype=given.dtype,
        )  # fmt: skip
    except ConvertError as error:
        print(error, file=sys.stderr)
        return error.status
    print(f"{made.root}: {made.parameters:,} parameters, {made.tensor_bytes:,} bytes in {len(made.files)} files")
    return 0


if __name__ == "__main__":
    sys.exit(main())
