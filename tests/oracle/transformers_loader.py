"""Load models with transformers' own ``from_pretrained`` on a CPU, and record what it says of every name.

    python -m tests.oracle.transformers_loader FOLDER_OF_MODELS OUT.json

where the folder is one that ``sglang_cases.write_drafters`` or ``sglang_target_cases.write_targets`` wrote. Targets
with a vision tower go through ``AutoModelForImageTextToText``, all others and drafters through
``AutoModelForCausalLM``, as their users load them.
"""

# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import os
import re
import sys
from functools import partial
from pathlib import Path
from typing import Any

from tests.oracle import conftest  # noqa: F401 - hides packages that a wheel for another torch breaks
from tests.oracle.watching import in_child, lines

SETTINGS = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "TRANSFORMERS_VERBOSITY": "error"}
LONGEST_MESSAGE = 300
DTYPES = {"torch.bfloat16": "BF16", "torch.float32": "F32"}


def prepare() -> None:
    """Import transformers' model classes once."""
    import gc

    import torch
    import transformers.models.llama.modeling_llama
    import transformers.models.qwen3.modeling_qwen3
    import transformers.models.qwen3_5.modeling_qwen3_5
    import transformers.models.qwen3_5_moe.modeling_qwen3_5_moe
    import transformers.models.qwen3_moe.modeling_qwen3_moe  # noqa: F401

    torch.set_num_threads(1)
    gc.freeze()


def load(folder: Path) -> dict[str, Any]:
    """The loading report of one model, or the stage and message at which it stops."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, PreTrainedConfig

    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # progress bars and reports
    stage = "config"
    try:
        config = AutoConfig.from_pretrained(folder)
        stage = "load_weights"
        tower = isinstance(getattr(config, "vision_config", None), PreTrainedConfig)
        auto = AutoModelForImageTextToText if tower else AutoModelForCausalLM
        model, info = auto.from_pretrained(folder, dtype="bfloat16", output_loading_info=True)
    except Exception as error:
        message = " ".join(re.sub(r"\x1b\[[0-9;]*m", "", str(error)).split())
        message = message.replace(str(folder), folder.name)[:LONGEST_MESSAGE]
        return {"loads": False, "stage": stage, "error": f"{type(error).__name__}: {message}"}
    return {
        "loads": True,
        "class": type(model).__name__,
        "missing": sorted(info["missing_keys"]),
        "unexpected": sorted(info["unexpected_keys"]),
        "shapes": {name: [list(one.shape), str(one.dtype).removeprefix("torch.")] for name, one in
                   model.named_parameters()},
    }  # fmt: skip


def versions() -> dict[str, str]:
    from importlib.metadata import version

    return {name: version(name) for name in ("transformers", "torch", "compressed-tensors")}


def one(folder: Path) -> dict[str, Any]:
    found = in_child(partial(load, folder))
    if found["loads"] and not folder.name.endswith("whole"):
        found.pop("shapes")
    return found


def main(words: list[str]) -> int:
    os.environ.update(SETTINGS)
    prepare()
    folders = [item for item in sorted(Path(words[0]).iterdir()) if item.is_dir()]
    document = {"versions": versions(), "cases": {item.name: one(item) for item in folders}}
    Path(words[-1]).write_text(lines(document))
    return 0


if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(status)
