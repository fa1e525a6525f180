"""Run vLLM's own config, model classes and loader over drafters on a CPU, and record what became of each tensor.

    python tests/oracle/vllm_loader.py FOLDER_OF_DRAFTERS TARGET_FOLDER OUT.json
    python tests/oracle/vllm_loader.py FOLDER_OF_TARGETS OUT.json

where the drafters are those that ``python -m tests.engines.write_cases OUT`` writes.

Needs vllm 0.33.0 with a CPU torch (``constraints-vllm.txt``); its compiled kernels are not needed, since no step is
run. Every parameter is filled with a pattern after vLLM created it and before vLLM loads it, so what still holds the
pattern afterwards was filled by nothing. The target is a stub that holds an embedding and a head. Replaced is what a
CPU cannot answer: whether Marlin is supported, Marlin's own repacking, and the choice of a runner by Triton.
"""

# mypy: disable-error-code="import-not-found,union-attr,operator"

from __future__ import annotations

import copy
import json
import os
import sys
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SETTINGS = {
    "VLLM_TARGET_DEVICE": "cpu",
    "VLLM_CONFIGURE_LOGGING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}

sys.path.insert(0, str(Path(__file__).parent))
import vllm_stand_ins as stand_ins  # noqa: E402
from watching import MEMORY_BYTES, bits, pattern, stated_config  # noqa: E402


def speculation(config: dict[str, Any]) -> dict[str, Any]:
    """``--speculative-config`` for a drafter, without the model: from its own config where that states it."""
    from vllm.transformers_utils.configs.speculators.base import SpeculatorsConfig

    if config.get("model_type") is None and config.get("speculators_config") is not None:
        return dict(SpeculatorsConfig.extract_vllm_speculative_config(copy.deepcopy(config)))
    label = " ".join(config.get("architectures") or ())
    inner = config.get("dflash_config") or {}
    if "DSpark" in label:
        return {"method": "dspark"}
    if "DFlash" in label or inner:
        block = config.get("block_size") or inner.get("block_size") or 16
        return {"method": "dflash", "num_speculative_tokens": block - 1}
    return {"method": "eagle3", "num_speculative_tokens": 3}


class Watch:
    """What was created, what wrote what, and what still holds the pattern."""

    def __init__(self) -> None:
        self.model: Any = None
        self.stored: dict[int, str] = {}
        self.kept: list[Any] = []
        self.names: list[str] = []
        self.used: dict[str, str] = {}
        self.shapes: dict[str, list[int]] = {}
        self.state: dict[str, str] = {}

    def created(self, model: Any) -> None:
        from vllm.model_executor.model_loader.weight_utils import default_weight_loader

        self.model = model
        for name, parameter in model.named_parameters():
            self.shapes[name] = list(parameter.shape)
            if parameter.numel():
                bits(parameter.data).fill_(pattern(parameter.data))
            inner = getattr(parameter, "weight_loader", None) or default_weight_loader
            parameter.weight_loader = self.watched(name, inner)

    def watched(self, name: str, inner: Any) -> Any:
        def loader(*rest: Any, **more: Any) -> Any:
            loaded = more["loaded_weight"] if "loaded_weight" in more else rest[1]
            stored = self.stored.get(id(loaded)) or self.by_storage(loaded)
            done = inner(*rest, **more)
            if stored is not None:
                self.used[stored] = name
            return done

        return loader

    def by_storage(self, loaded: Any) -> str | None:
        """A view of a stored tensor, such as the share of one expert."""
        for stored, tensor in zip(self.names, self.kept, strict=True):
            start = tensor.data_ptr()
            if start <= loaded.data_ptr() < start + max(tensor.nbytes, 1) and tensor.dtype == loaded.dtype:
                return stored
        return None

    def read(self, weights: Iterator[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
        for name, tensor in weights:
            self.stored[id(tensor)] = name
            self.names.append(name)
            self.kept.append(tensor)
            yield name, tensor

    def loaded(self) -> None:
        for name, parameter in self.model.named_parameters():
            if name in self.shapes and parameter.numel():
                left = int((bits(parameter.data) == pattern(parameter.data)).sum())
                state = "filled" if left == 0 else "unfilled" if left == parameter.numel() else "partly filled"
                self.state[name] = state


def stub(config: Any) -> Any:
    """A target of which only the embedding and the head are there."""
    import torch
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding

    model = config.model_config
    rows, width = model.get_vocab_size(), model.get_hidden_size()
    with set_current_vllm_config(config):
        inner, outer = torch.nn.Module(), torch.nn.Module()
        inner.embed_tokens = VocabParallelEmbedding(rows, width, params_dtype=model.dtype)
        outer.model = inner
        outer.lm_head = ParallelLMHead(rows, width, params_dtype=model.dtype)
    for part in (inner.embed_tokens, outer.lm_head):
        part.weight.data.fill_(0.125)
    return outer


def load(folder: Path, target: Path, rank: int = 0, size: int = 1) -> dict[str, Any]:
    """What vLLM does with one drafter on one rank: ``loads``, or the stage and the message at which it stops."""
    from vllm.config import set_current_vllm_config
    from vllm.distributed.parallel_state import ensure_model_parallel_initialized, init_distributed_environment
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.model_loader import get_model
    from vllm.model_executor.model_loader.base_loader import BaseModelLoader
    from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

    watch, stage = Watch(), "config"
    make, every, fill = (
        BaseModelLoader.create_model,
        DefaultModelLoader.get_all_weights,
        DefaultModelLoader.load_weights,
    )

    def created(self: Any, *rest: Any, **more: Any) -> Any:
        model = make(self, *rest, **more)
        watch.created(model)
        return model

    def filled(self: Any, model: Any, config: Any) -> None:
        nonlocal stage
        stage = "load_weights"
        fill(self, model, config)
        watch.loaded()
        stage = "process_weights_after_loading"

    BaseModelLoader.create_model = created
    DefaultModelLoader.get_all_weights = lambda self, *rest: watch.read(every(self, *rest))
    DefaultModelLoader.load_weights = filled
    alone = target == folder
    try:
        given: dict[str, Any] = {}
        if not alone:
            method = speculation(stated_config(folder))
            given = {"speculative_config": {**method, "model": str(folder)}}
        config = EngineArgs(
            model=str(target), skip_tokenizer_init=True, enforce_eager=True, dtype="bfloat16", max_model_len=256,
            use_tqdm_on_load=False, tensor_parallel_size=size, **given,
        ).create_engine_config()  # fmt: skip
        stage = "create"
        with set_current_vllm_config(config):
            place = Path(tempfile.mkdtemp()) / "store"
            init_distributed_environment(1, 0, f"file://{place}", 0, "gloo")
            ensure_model_parallel_initialized(1, 1)
            stand_ins.become_rank(rank, size)
            if alone:
                get_model(vllm_config=config)
                return {"loads": True, **parameters(watch, None, None)}
            lender = stub(config)
            model = stand_ins.entry(config.speculative_config.method)(lender, config)
        return {"loads": True, **parameters(watch, model, lender)}
    except Exception as error:
        message = " ".join(str(error).split()).replace(str(folder), folder.name)[:200]
        return {"loads": False, "stage": stage, "error": f"{type(error).__name__}: {message}"}


def parameters(watch: Watch, model: Any, lender: Any) -> dict[str, Any]:
    """State and shape of every parameter, the stored tensors that filled none, what the target lends."""
    lent = []
    if lender is not None and model.model.embed_tokens is lender.model.embed_tokens:
        lent.append("model.embed_tokens.weight")
    if lender is not None and model.lm_head is lender.lm_head:
        lent.append("lm_head.weight")
    buffers = {name.rpartition(".")[2] for name, _ in watch.model.named_buffers()}
    unused = [name for name in watch.names if name not in watch.used and name.rpartition(".")[2] not in buffers]
    state = {name: [found, watch.shapes[name]] for name, found in sorted(watch.state.items())}
    return {"parameters": state, "lent": lent, "unused": sorted(unused)}


def brief(found: dict[str, Any], shapes: bool) -> dict[str, Any]:
    """A report without what is filled; with all shapes only where asked for."""
    if not found["loads"]:
        return found
    made = {"loads": True, "lent": found["lent"], "unused": found["unused"]}
    for state in ("unfilled", "partly filled"):
        made[state] = [name for name, row in found["parameters"].items() if row[0] == state]
    if shapes:
        made["shapes"] = {name: row[1] for name, row in found["parameters"].items()}
    return made


def versions() -> dict[str, str]:
    from importlib.metadata import version

    return {name: version(name) for name in ("vllm", "transformers", "torch")}


def in_child(folder: Path, target: Path, rank: int = 0, size: int = 1) -> dict[str, Any]:
    """``load`` in a process of its own: vLLM keeps state, and a wrong config may ask for too much memory."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
        try:
            answer = load(folder, target, rank, size)
        except BaseException:
            answer = {"loads": False, "stage": "crashed", "error": traceback.format_exc(limit=1)}
        with os.fdopen(writer, "w") as stream:
            json.dump(answer, stream)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as stream:
        text = stream.read()
    os.waitpid(child, 0)
    found: dict[str, Any] = json.loads(text) if text else {"loads": False, "stage": "crashed", "error": "no answer"}
    return found


def run(folder: Path, target: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """One case, alone or as the ranks that it asks for, which are cases of their own."""
    whole = folder.name.endswith("whole")
    ranks = folder / "ranks.json"
    if not ranks.exists():
        yield folder.name, brief(in_child(folder, target), whole)
        return
    for rank, size in json.loads(ranks.read_text()):
        yield f"{folder.name} {rank} of {size}", brief(in_child(folder, target, rank, size), whole and rank == size - 1)


def main(words: list[str]) -> int:
    folder, out = Path(words[0]), Path(words[-1])
    os.environ.update(SETTINGS)
    stand_ins.prepare()
    folders = [item for item in sorted(folder.iterdir()) if item.is_dir()]
    found = {name: made for item in folders for name, made in run(item, Path(words[1]) if len(words) == 3 else item)}
    document = {"versions": versions(), "cases": found}
    out.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")
    return 0


if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(status)
