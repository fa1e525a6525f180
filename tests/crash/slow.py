"""``python -m tests.crash.slow SOURCE OUT SECONDS``: the small pipeline, slowed down, for signals and races.

Says ``begun`` when the first tensor is finished, ends with the exit status of the contract, errors on stderr.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from convertkit.conversion.stop import Stop
from convertkit.errors import ConvertError
from tests.crash.pipeline import convert


def main(source: Path, out: Path, seconds: float) -> int:
    chunks = 0

    def dawdle(_stop: Stop) -> None:
        nonlocal chunks
        chunks += 1
        if chunks == 3:
            print("begun", flush=True)
        time.sleep(seconds)

    try:
        convert(source, out, each_chunk=dawdle)
    except ConvertError as error:
        print(error, file=sys.stderr)
        return error.status
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])))
