"""Do a drafter and its target fit each other? Sizes, head, window against recurrent layers, dtype, names of tensors."""

from __future__ import annotations

from collections.abc import Iterator

from convertkit.checkpoint import Checkpoint
from convertkit.checks.target import TargetModel
from convertkit.containers.folder import CONFIG
from convertkit.conversion.identify import Identity
from convertkit.dtypes import FLOATS
from convertkit.engines.model import Load, Wrong
from convertkit.engines.rules import Asked
from convertkit.errors import Finding, finding
from convertkit.layouts.meaning import spread_taps
from convertkit.layouts.reading import stated_spec


def pair_wrongs(asked: Asked, target: TargetModel, load: Load) -> Iterator[Wrong]:
    """What one engine gets wrong about the pair."""
    head = target.tensor("lm_head.weight") or target.tensor("lm_head.weight_packed")
    borrows = any(item.outcome == "borrowed" and "lm_head" in item.parameter.name for item in load.parameters)
    if head is not None and target.checkpoint is not None and borrows:
        dtype = target.checkpoint.tensors[head].spec.dtype
        if dtype not in FLOATS and asked.engine.name == "sglang":
            message = f"the drafter borrows the target's head, which is packed ({dtype}): the engine cannot use it"
            yield Wrong("E_PAIR", message, "sglang.shared", head)


def pair_findings(checkpoint: Checkpoint, identity: Identity, target: TargetModel) -> Iterator[Finding]:
    """What is odd about the pair in any engine. Codes: E_PAIR, W_PAIR, W_TAPS."""
    stated = stated_spec(identity.layout, checkpoint.config, checkpoint.tensors)
    if stated is None:
        return
    spec, sizes = stated[0], target.sizes
    if spec.vocabulary is not None and spec.vocabulary != sizes.vocabulary:
        message = f"the drafter's vocabulary is {spec.vocabulary}, the target's {sizes.vocabulary}"
        severity = "warning" if spec.vocabulary > sizes.vocabulary else "error"
        code = "W_PAIR" if severity == "warning" else "E_PAIR"
        yield finding(code, severity, message, file=CONFIG, key="vocab_size")  # type: ignore[arg-type]
    if spec.target_layers is not None and spec.target_layers != sizes.layers:
        message = f"the drafter was made for a target of {spec.target_layers} layers, this one has {sizes.layers}"
        yield finding("E_PAIR", "error", message, file=CONFIG, key="num_target_layers")
    if target.hybrid and any(layer.window is not None for layer in spec.attention):
        message = (
            "the drafter has a sliding window and the target recurrent layers: engines older than vLLM 0.33 could not "
            "unify their cache pages and stopped at start"
        )
        yield finding("W_PAIR", "warning", message, file=CONFIG, key="sliding_window")
    yield from _convention(spec.taps, spec.layers, sizes.layers)
    head = target.tensor("lm_head.weight") or target.tensor("lm_head.weight_packed")
    if head is not None and target.checkpoint is not None and "lm_head.weight" in spec.borrowed:
        dtype = target.checkpoint.tensors[head].spec.dtype
        if dtype not in FLOATS:
            message = f"the drafter borrows the target's head, which is packed ({dtype}); SGLang cannot use it"
            yield finding("W_PAIR", "warning", message, tensor=head)


def _convention(taps: tuple[int, ...] | None, layers: int | None, depth: int) -> Iterator[Finding]:
    """Taps that are one off from where z-lab puts them were copied without changing the convention, most likely."""
    if not taps or layers is None or depth < 6:
        return
    usual = spread_taps(depth, len(taps))
    if len(taps) > 1 and taps != usual and taps in (tuple(t - 1 for t in usual), tuple(t + 1 for t in usual)):
        way = "one below" if taps[0] < usual[0] else "one above"
        message = f"the tapped layers {list(taps)} are all {way} the usual {list(usual)}: ids of the other convention?"
        yield finding("W_TAPS", "warning", message, file=CONFIG, key="target_layer_ids",
                      fix="z-lab counts outputs of layers from 0; speculators counts inputs, one more")  # fmt: skip
