"""What a CPU cannot answer when vLLM builds and loads a model, answered as a CUDA host would, or left out.

Replaced: the compiled kernels of torchvision (never called; only its import asks for them), whether Marlin is
supported and its repacking, the choice of a kernel for NVFP4 linears and experts (emulation, never run), the choice of
a runner by Triton, and the process in which vLLM looks at a model class. ``become_rank`` makes one process load the
share of one rank: the groups of tensor parallelism say so, and no loader communicates.
"""

# mypy: disable-error-code="import-not-found,union-attr,operator"

from __future__ import annotations

import gc
import importlib
import importlib.util
from typing import Any, cast

VISION_KERNELS = ("nms", "qnms", "roi_align", "_roi_align_backward", "ps_roi_align", "_ps_roi_align_backward",
                  "roi_pool", "_roi_pool_backward", "ps_roi_pool", "_ps_roi_pool_backward", "qroi_align",
                  "deform_conv2d", "_deform_conv2d_backward", "_cuda_version")  # fmt: skip
MODELS = ("qwen3_dflash2", "qwen3_dspark", "llama_eagle3", "qwen3_eagle3")
COMPRESSED = "vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors_moe"
_KEPT: list[Any] = []


def prepare() -> None:
    """Import vLLM once, with the answers that a CPU cannot give replaced."""
    import torch

    _name_vision_kernels()
    import vllm.config.vllm as config
    import vllm.model_executor.layers.fused_moe.oracle.nvfp4 as experts
    import vllm.model_executor.layers.quantization.modelopt as modelopt
    import vllm.model_executor.models.registry as registry
    from vllm.model_executor.layers.fused_moe import UnquantizedFusedMoEMethod
    from vllm.model_executor.layers.linear import UnquantizedLinearMethod
    from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod
    from vllm.platforms import current_platform

    packed = importlib.import_module(f"{COMPRESSED}.compressed_tensors_moe_w4a4_nvfp4")
    kernels = importlib.import_module("vllm.model_executor.kernels.linear")
    config.HAS_TRITON = True
    marlin = kernels.MarlinNvFp4LinearKernel
    marlin.is_supported = classmethod(lambda cls, compute_capability=None: (True, None))
    marlin.process_weights_after_loading = lambda self, layer: None
    kernels._POSSIBLE_NVFP4_KERNELS[current_platform._enum] = [kernels.EmulationNvFp4LinearKernel]
    kernels.EmulationNvFp4LinearKernel.process_weights_after_loading = lambda self, layer: None
    emulated = experts.NvFp4MoeBackend.EMULATION
    for module in (packed, modelopt):
        module.select_nvfp4_moe_backend = lambda *rest, **more: (emulated, object)
    for method in (
        packed.CompressedTensorsW4A4Nvfp4MoEMethod,
        modelopt.ModelOptNvFp4FusedMoE,
        UnquantizedFusedMoEMethod,
    ):
        method.process_weights_after_loading = lambda self, layer: None  # repacks with compiled kernels
    for method in (UnquantizedLinearMethod, UnquantizedEmbeddingMethod):
        method.process_weights_after_loading = lambda self, layer: None  # packs for CPU kernels, where there is AMX
    registry._run_in_subprocess = lambda look: look()
    torch.accelerator.empty_cache = lambda: None
    for name in MODELS:
        importlib.import_module(f"vllm.model_executor.models.{name}")
    if _KEPT:
        importlib.import_module("vllm.model_executor.models.qwen3_5")
    for method in ("dflash", "dspark", "eagle3"):
        entry(method)
    gc.freeze()


def _name_vision_kernels() -> None:
    """Hybrid models import torchvision, whose wheel brings kernels for CUDA only: their names are enough."""
    import torch

    if importlib.util.find_spec("torchvision") is None:
        return
    library: Any = cast(Any, torch.library).Library("torchvision", "DEF")
    for name in VISION_KERNELS:
        library.define(f"{name}(Tensor given) -> Tensor")
    importlib.import_module("torchvision")
    _KEPT.append(library)


def has_vision() -> bool:
    """Whether the classes of hybrid models can be imported."""
    return bool(_KEPT)


def entry(method: str) -> Any:
    """vLLM's function that loads a drafter of a method and shares the target's tensors with it."""
    if method == "dflash":
        from vllm.v1.worker.gpu.spec_decode.dflash.utils import load_dflash_model

        return load_dflash_model
    if method == "dspark":
        from vllm.v1.worker.gpu.spec_decode.dspark.utils import load_dspark_model

        return load_dspark_model
    from vllm.v1.worker.gpu.spec_decode.eagle.utils import load_eagle_model

    return load_eagle_model


def become_rank(rank: int, size: int) -> None:
    """The groups of tensor parallelism, made for one process, say that it is one of more."""
    from vllm.distributed import parallel_state

    group = parallel_state.get_tp_group()
    group.world_size, group.rank_in_group = size, rank
    group.ranks = list(range(size))
