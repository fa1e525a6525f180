"""Renaming in a checkpoint of 122,880 expert tensors and one file of 23 GB, sparse on the disk.

``python benchmarks/fix_keys.py [FOLDER] [--full] [--copies [--scale small]]`` makes a compressed-tensors checkpoint of
the shape of Qwen3.6-35B-A3B (40 layers, 256 experts, 333 vision tensors one level too deep) and times, each in a
process of its own:

- ``in place``: seconds in all, seconds in system calls that write (journal and header, fsync included), peak memory
- ``in place, listed``: the same beside a manifest that lists the digests of all tensors (30 MB), which follows
- ``quick copy``: a new output whose payload the kernel copies (holes stay holes)
- ``scaling``: the same in place with a third of the tensors; the ratio of CPU seconds beyond those of an empty process
  should be about 3
- ``diff``: the checkpoint before against that after, both with recorded digests of tensors, beside parsing the header
- with ``--full``: the default new output, which hashes every byte, beside hashing the file once

``--copies`` measures something else instead: conversions that only rename, on a generated DFlash 2 drafter with real
bytes (3.85 GB; ``--scale small`` and ``tiny`` for less): ``to-speculators``, and ``fix-keys`` to a new output, as
processes of their own, beside ``cp`` of the same file and hashing it once in one thread. ``ratio`` is to 1.3 ``cp`` and
one pass of hashlib over the source; ``ratio, both`` counts a pass over the output too, since both files get a digest;
``ratio, sha256sum`` is to 1.3 ``cp`` and one pass of that program.

Prints one JSON document. FOLDER needs a filesystem with sparse files; ext4 and xfs can also insert blocks.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.measure import (
    convertkit,
    copy,
    files_in,
    generate,
    hash_seconds,
    prepare_cache,
    sha256sum_seconds,
)  # fmt: skip
from convertkit.checkpoint import TensorSpec
from convertkit.containers.safetensors import encode_header
from convertkit.verbs.manifest import manifest

HIDDEN, EXPERT, EXPERTS, VOCABULARY, VISION = 2048, 512, 256, 248_320, 333
RULE = "model.language_model.visual.{rest}=model.visual.{rest}"
ZEROS_BYTES = 1 << 20
LIMIT_SECONDS = 0.3
"""Most seconds in system calls that write in place."""

CHILD = """
import json, resource, sys, time
from convertkit.conversion.syscalls import Kernel
from convertkit.verbs.fix_keys import fix_keys
began = time.perf_counter()
seconds = {"io": 0.0}
def timed(name):
    def call(self, *words):
        start = time.perf_counter()
        try:
            return getattr(Kernel, name)(self, *words)
        finally:
            seconds["io"] += time.perf_counter() - start
    return call
seconds["start"] = time.process_time()
names = [name for name in vars(Kernel) if not name.startswith("_")]
fix_keys(**json.loads(sys.argv[1]), syscalls=type("Timed", (Kernel,), {name: timed(name) for name in names})())
seconds["total"] = time.perf_counter() - began
seconds["cpu"] = time.process_time()
seconds["peak_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps(seconds))
"""


def specs(layers: int) -> Iterator[TensorSpec]:
    """Names, dtypes and shapes of the model: experts packed, the rest BF16."""
    for layer in range(layers):
        stem = f"model.language_model.layers.{layer}"
        for expert in range(EXPERTS):
            for leaf, rows, columns in (("gate", EXPERT, HIDDEN), ("up", EXPERT, HIDDEN), ("down", HIDDEN, EXPERT)):
                module = f"{stem}.mlp.experts.{expert}.{leaf}_proj"
                yield TensorSpec(f"{module}.weight_packed", "U8", (rows, columns // 2))
                yield TensorSpec(f"{module}.weight_scale", "F8_E4M3", (rows, columns // 16))
                yield TensorSpec(f"{module}.weight_global_scale", "F32", (1,))
                yield TensorSpec(f"{module}.input_global_scale", "F32", (1,))
        yield TensorSpec(f"{stem}.mlp.gate.weight", "BF16", (EXPERTS, HIDDEN))
        yield TensorSpec(f"{stem}.linear_attn.in_proj_qkv.weight", "BF16", (8192, HIDDEN))
        yield TensorSpec(f"{stem}.linear_attn.out_proj.weight", "BF16", (HIDDEN, 4096))
    yield TensorSpec("model.language_model.embed_tokens.weight", "BF16", (VOCABULARY, HIDDEN))
    yield TensorSpec("lm_head.weight", "BF16", (VOCABULARY, HIDDEN))
    for number in range(VISION):
        yield TensorSpec(f"model.language_model.visual.blocks.{number}.attn.qkv.weight", "BF16", (1152, 1152))


CONFIG = {
    "architectures": ["Qwen3_5MoeForConditionalGeneration"],
    "model_type": "qwen3_5_moe",
    "quantization_config": {
        "quant_method": "compressed-tensors",
        "format": "nvfp4-pack-quantized",
        "config_groups": {
            "group_0": {
                "targets": ["re:.*experts.*"],
                "weights": {
                    "num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16, "symmetric": True,
                },
                "input_activations": None,
            }
        },
        "ignore": ["re:model.language_model.visual.*", "re:.*linear_attn.*", "re:.*mlp.gate$", "lm_head"],
    },
}  # fmt: skip


def make(folder: Path, layers: int) -> Path:
    """The checkpoint with a header and nothing else on the disk."""
    folder.mkdir(parents=True)
    header = encode_header(specs(layers), {"format": "pt"})
    with (folder / "model.safetensors").open("wb") as stream:
        stream.write(header.prefix)
        stream.truncate(header.size_bytes)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


DIFF = """
import json, resource, sys, time
from convertkit.containers.folder import open_checkpoint
from convertkit.verbs.diff import diff
a, b = json.loads(sys.argv[1])
began = time.process_time()
open_checkpoint(a)
parsed = time.process_time()
found = diff(a, b)
print(json.dumps({
    "parse": parsed - began, "cpu": time.process_time() - parsed, "status": found.status,
    "renamed": found.document["summary"]["renamed"],
    "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
}))
"""


def record(folder: Path, layers: int) -> None:
    """A manifest with the digests of all tensors, which hold zeros; that of the file stays pending."""
    zeros = {spec.size_bytes: "" for spec in specs(layers)}
    for size in zeros:
        digest = hashlib.sha256()
        for done in range(0, size, ZEROS_BYTES):
            digest.update(bytes(min(ZEROS_BYTES, size - done)))
        zeros[size] = digest.hexdigest()
    manifest(
        folder,
        pending=["model.safetensors"],
        tensors={spec.name: zeros[spec.size_bytes] for spec in specs(layers)},
    )


def child(code: str, words: Any) -> dict[str, Any]:
    """What a new process prints."""
    line = [sys.executable, "-c", code, json.dumps(words)]
    done = subprocess.run(line, stdout=subprocess.PIPE, text=True, check=True)  # what it complains of is shown
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def timed(**words: Any) -> dict[str, Any]:
    """One call of ``fix_keys`` in a new process."""
    return child(CHILD, {"rename": [RULE], **words})


def measure(folder: Path, layers: int, full: bool) -> dict[str, Any]:
    source = make(folder / "source", layers)
    size = (source / "model.safetensors").stat().st_size
    tensors = sum(1 for _ in specs(layers))
    quick = timed(source=str(source), out=str(folder / "quick"), quick=True)
    shutil.rmtree(folder / "quick")
    result: dict[str, Any] = {"tensors": tensors, "size_bytes": size, "quick copy": quick}
    if full:
        result["new output"] = timed(source=str(source), out=str(folder / "new"))
        shutil.rmtree(folder / "new")
        result["hash once"] = {"total": hash_seconds([source / "model.safetensors"])}
    small = timed(source=str(make(folder / "small", max(1, layers // 3))), in_place=True)
    before, listed = make(folder / "before", layers), folder / "listed"
    record(before, layers)
    shutil.copytree(before, listed, copy_function=_copy_sparse)
    result["in place"] = timed(source=str(source), in_place=True)
    result["scaling"] = {
        "tensors": sum(1 for _ in specs(max(1, layers // 3))),
        "cpu": small["cpu"],
        "ratio": (result["in place"]["cpu"] - result["in place"]["start"]) / (small["cpu"] - small["start"]),
    }
    result["in place, listed"] = timed(source=str(listed), in_place=True)
    result["diff"] = child(DIFF, [str(before), str(listed)])
    return result


def _copy_sparse(source: str, target: str) -> str:
    """Weights are a header and a hole; everything else is small."""
    if source.endswith(".safetensors"):
        with open(source, "rb") as stream, open(target, "wb") as copy:
            length = stream.read(8)
            copy.write(length + stream.read(int.from_bytes(length, "little")))
            copy.truncate(Path(source).stat().st_size)
        return target
    return shutil.copy2(source, target)


def write_target(folder: Path, drafter: Path) -> None:
    """The config of a target for the drafter."""
    config = json.loads((drafter / "config.json").read_text())
    folder.mkdir()
    target = {
        **{key: config[key] for key in ("hidden_size", "vocab_size")},
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "num_hidden_layers": config["num_target_layers"],
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(target))


def copies(folder: Path, scale: str, rounds: int = 3) -> dict[str, Any]:
    """Conversions of a drafter that rename only, the quickest of several rounds."""
    source, out, target = folder / "source", folder / "out", folder / "target"
    generate("dflash2", source, scale)
    write_target(target, source)
    verbs = {
        "to-speculators": ["--target-model", str(target), "--target-id", "org/target"],
        "fix-keys": ["--rename", "{rest}=model.{rest}"],
    }
    best: dict[str, float] = {}
    peaks: dict[str, int] = {}
    for _ in range(rounds):
        prepare_cache([source], cold=False)
        found = {"hash": hash_seconds([source]), "sha256sum": sha256sum_seconds([source])}
        found["cp"] = copy(source, out).seconds
        shutil.rmtree(out)
        for name, more in verbs.items():
            prepare_cache([source], cold=False)
            made = convertkit(name, str(source), str(out), *more)
            shutil.rmtree(out)
            found[name], peaks[name] = made.seconds, made.peak_bytes
        best = {name: min(seconds, best.get(name, seconds)) for name, seconds in found.items()}
    rows = {name: {"peak_bytes": peaks[name], **ratios(best, name)} for name in verbs}
    return {"size_bytes": sum(path.stat().st_size for path in files_in(source)), "seconds": best, **rows}


def ratios(seconds: Mapping[str, float], name: str) -> dict[str, float]:
    """To 1.3 ``cp`` plus one pass over the source, by hashlib and ``sha256sum``, or a pass over both files."""
    copied, pass_ = 1.3 * seconds["cp"], seconds["hash"]
    return {
        "ratio": seconds[name] / (copied + pass_),
        "ratio, both": seconds[name] / (copied + 2 * pass_),
        "ratio, sha256sum": seconds[name] / (copied + seconds["sha256sum"]),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, help="where to work; a temporary folder by default")
    parser.add_argument("--layers", type=int, default=40)
    parser.add_argument("--full", action="store_true", help="also the default new output, which reads 23 GB")
    parser.add_argument("--copies", action="store_true", help="conversions that only rename, beside cp and hashing")
    parser.add_argument("--scale", choices=("tiny", "small", "full"), default="full", help="of the drafter of --copies")
    words = parser.parse_args()
    if words.folder:
        words.folder.mkdir(parents=True, exist_ok=True)
    if words.copies:
        with tempfile.TemporaryDirectory(dir=words.folder, prefix="copies-") as folder:
            print(json.dumps(copies(Path(folder), words.scale), indent=2))
        return 0
    with tempfile.TemporaryDirectory(dir=words.folder, prefix="fix-keys-") as folder:
        result = measure(Path(folder), words.layers, words.full)
    print(json.dumps(result, indent=2))
    return 0 if result["in place"]["io"] <= LIMIT_SECONDS else 1


if __name__ == "__main__":
    sys.exit(main())
