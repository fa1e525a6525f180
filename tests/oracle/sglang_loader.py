"""Run SGLang's own configs, model classes and loader on a CPU, and record what became of each tensor.

    python -m tests.oracle.sglang_loader FOLDER_OF_DRAFTERS TARGET_FOLDER OUT.json
    python -m tests.oracle.sglang_loader FOLDER_OF_TARGETS OUT.json

where the folders are those that ``python -m tests.engines.write_cases OUT`` writes.

Needs the Python part of sglang 0.5.23 with a CPU torch (``constraints-sglang.txt``); packages with compiled kernels are
stand-ins (``sglang_stubs``), since no step is run. Arguments are resolved as for a CUDA device, everything is built on
the CPU. The target of a drafter is the real class with values that nothing filled. Not run: what repacks weights after
loading, which needs a GPU.
"""

# mypy: disable-error-code="import-not-found,union-attr"

from __future__ import annotations

import logging
import os
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from tests.oracle import sglang_stubs
from tests.oracle.sglang_worker import attach, reading
from tests.oracle.watching import Watch, in_child, lines, stated_config

SETTINGS = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "SGLANG_RAGGED_VERIFY_MODE": "static"}
LONGEST_MESSAGE = 300
BLACKWELL = (10, 0)
"""The device that is asked what it can do with packed weights."""


def prepare() -> None:
    """Import SGLang once, with all its model classes."""
    import gc

    import torch

    sglang_stubs.install()
    logging.disable(logging.ERROR)
    import sglang.srt.speculative.dflash_worker_v2
    import sglang.srt.speculative.dspark_components.dspark_worker_v2
    import sglang.srt.speculative.eagle_worker_v2  # noqa: F401
    from sglang.srt.models.registry import ModelRegistry
    from sglang.srt.runtime_context import override_platform

    ModelRegistry.get_supported_archs()
    torch.cuda.get_device_capability = lambda device=None: BLACKWELL
    override_platform(is_blackwell=True, is_sm100=True).install()
    logging.disable(logging.NOTSET)
    gc.freeze()


def algorithm(config: dict[str, Any]) -> str:
    """``--speculative-algorithm`` for a drafter."""
    label = " ".join(map(str, config.get("architectures") or ())) + str(config.get("speculators_model_type") or "")
    for word, name in (("dspark", "DSPARK"), ("dflash", "DFLASH")):
        if word in label.lower():
            return name
    return "DFLASH" if config.get("dflash_config") else "EAGLE3"


def arguments(target: Path, draft: Path | None, ranks: int) -> Any:
    """SGLang's own arguments, resolved as for CUDA."""
    from sglang.srt.runtime_context import override_platform
    from sglang.srt.server_args import ServerArgs

    given: dict[str, Any] = {}
    if draft is not None:
        kind = algorithm(stated_config(draft))
        given = {"speculative_algorithm": kind, "speculative_draft_model_path": str(draft)}
        if kind == "EAGLE3":
            given |= {"speculative_num_steps": 3, "speculative_eagle_topk": 1, "speculative_num_draft_tokens": 4}
    made = ServerArgs(
        model_path=str(target), device="cuda", dtype="bfloat16", skip_tokenizer_init=True, mem_fraction_static=0.5,
        attention_backend="triton", tp_size=ranks, **given,
    )  # fmt: skip
    with override_platform(is_cuda=True):
        made.resolve_once()
    return made


class Warned(logging.Handler):
    """Warnings of SGLang's loggers."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(" ".join(record.getMessage().split())[:LONGEST_MESSAGE])


class Run:
    """One checkpoint in SGLang: the stage that it reached, what was watched, what was said."""

    def __init__(self, folder: Path, target: Path, ranks: int, rank: int, store: str) -> None:
        self.folder, self.target, self.ranks, self.rank, self.store = folder, target, ranks, rank, store
        self.stage = "config"
        self.warned = Warned()
        self.watch: Watch | None = None
        self.found: dict[str, Any] = {}

    def load(self) -> dict[str, Any]:
        logging.getLogger().addHandler(self.warned)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # progress bars
        try:
            self._load()
        except Exception as error:
            message = " ".join(str(error).split()).replace(str(self.folder), self.folder.name)[:LONGEST_MESSAGE]
            return {"loads": False, "stage": self.stage, "error": f"{type(error).__name__}: {message}"}
        return {"loads": True, **self.found}

    def _load(self) -> None:
        from sglang.srt.configs.model_config import ModelConfig
        from sglang.srt.distributed import parallel_state
        from sglang.srt.model_executor.model_runner_components import spec_aux_hidden_state as taps
        from sglang.srt.runtime_context import SpawnRanks, publish
        from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

        alone = self.folder == self.target
        args = arguments(self.target, None if alone else self.folder, self.ranks)
        publish(args, role="scheduler", ranks=SpawnRanks(world_rank=self.rank, gpu_id=self.rank))
        parallel_state.init_distributed_environment(
            world_size=self.ranks, rank=self.rank, local_rank=self.rank, backend="gloo",
            distributed_init_method=f"file://{self.store}",
        )  # fmt: skip
        parallel_state.initialize_model_parallel(backend="gloo")
        config = ModelConfig.from_server_args(args)
        if alone:
            self._built(config)
            return
        kind = SpeculativeAlgorithm.from_string(args.resolved_dict()["speculative_algorithm"])
        tapped = taps.resolve_spec_aux_hidden_state_config(
            server_args=args, model_config=config, spec_algorithm=kind, is_draft_worker=False
        )
        draft_config = ModelConfig.from_server_args(args, model_path=str(self.folder), is_draft_model=True)
        lender = self._lender(config, tapped)
        model = self._built(draft_config)
        self.stage = "worker"
        attach(model, lender, config, draft_config, args, self.found)
        self.found |= reading(model, lender, args)

    def _lender(self, config: Any, tapped: Any) -> Any:
        """The target's class, not loaded, told which layers to capture."""
        from sglang.srt.configs.load_config import LoadConfig
        from sglang.srt.model_executor.model_runner_components.attention_backend_setup import (
            configure_aux_hidden_state_capture,
        )
        from sglang.srt.model_loader.loader import _initialize_model
        from sglang.srt.model_loader.utils import set_default_torch_dtype

        with set_default_torch_dtype(config.dtype):
            lender = _initialize_model(config, LoadConfig(), None)
        configure_aux_hidden_state_capture(
            model=lender,
            eagle_use_aux_hidden_state=tapped.eagle_use_aux_hidden_state,
            eagle_aux_hidden_state_layer_ids=tapped.eagle_aux_hidden_state_layer_ids,
            dflash_use_aux_hidden_state=tapped.dflash_use_aux_hidden_state,
            dflash_target_layer_ids=tapped.dflash_target_layer_ids,
            is_dspark=tapped.is_dspark,
        )
        return lender

    def _built(self, config: Any) -> Any:
        """The model as SGLang's loader builds and fills it, watched."""
        from sglang.srt.configs.device_config import DeviceConfig
        from sglang.srt.configs.load_config import LoadConfig
        from sglang.srt.model_loader import get_model, loader
        from sglang.srt.model_loader.weight_utils import default_weight_loader

        watch = self.watch = Watch(default_weight_loader)
        make, every = loader._initialize_model, loader.DefaultModelLoader._get_all_weights

        def made(*rest: Any, **more: Any) -> Any:
            model = make(*rest, **more)
            watch.created(model)
            self.stage = "load_weights"
            self.warned.said.clear()
            return model

        def filled(model: Any, target_device: Any) -> None:
            watch.loaded(model)

        loader._initialize_model = made
        loader.DefaultModelLoader._get_all_weights = lambda own, *rest: watch.read(every(own, *rest))
        loader.DefaultModelLoader.postprocess_weights = staticmethod(filled)
        self.stage = "create"
        model = get_model(model_config=config, load_config=LoadConfig(), device_config=DeviceConfig("cpu"))
        kept = {"class": type(model).__name__, "quantization": config.quantization, "warned": len(self.warned.said)}
        left = {state: watch.left(state) for state in ("unfilled", "partly filled")}
        unused = [name for name in watch.unused() if name != "d2t" or getattr(model, "hot_token_id", None) is None]
        self.found |= {**kept, **left, "unused": unused, "lent": [], "shapes": watch.made}
        return model


def brief(found: dict[str, Any], shapes: bool) -> dict[str, Any]:
    """A report with all shapes only where asked for."""
    if found["loads"] and not shapes:
        found.pop("shapes")
    return found


def second(found: dict[str, Any]) -> dict[str, Any]:
    """What differs from rank to rank."""
    return {key: found[key] for key in ("loads", "error", "unfilled", "partly filled", "shapes") if key in found}


def ranked(folder: Path, target: Path, ranks: int) -> list[dict[str, Any]]:
    """The same on every rank of a group, each in a process of its own, at the same time."""
    from concurrent.futures import ThreadPoolExecutor

    store = str(Path(tempfile.mkdtemp()) / "store")
    with ThreadPoolExecutor(ranks) as pool:
        runs = [Run(folder, target, ranks, rank, store) for rank in range(ranks)]
        return list(pool.map(in_child, [run.load for run in runs]))


def versions() -> dict[str, str]:
    from importlib.metadata import version

    return {name: version(name) for name in ("sglang", "transformers", "torch", "compressed-tensors")}


def one(item: Path, target: Path) -> dict[str, Any]:
    """A folder on one rank and, for whole models, on both ranks of two."""
    whole = item.name.endswith("whole")
    found = brief(ranked(item, target, 1)[0], whole)
    if whole:
        found["of two ranks"] = [second(run) for run in ranked(item, target, 2)]
    return found


def main(words: list[str]) -> int:
    os.environ.update(SETTINGS)
    prepare()
    work = partial(_all, [item for item in sorted(Path(words[0]).iterdir()) if item.is_dir()])
    found = work(Path(words[1]) if len(words) == 3 else None)
    document = {"versions": versions(), "cases": found}
    Path(words[-1]).write_text(lines(document))
    return 0


def _all(folders: list[Path], target: Path | None) -> dict[str, Any]:
    return {item.name: one(item, target or item) for item in folders}


if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(status)
