"""``gate --forward``: what two drafters compute for the same text, and which part of the candidate differs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from convertkit.checkpoint import Checkpoint
from convertkit.checks.gate import Weight, weights_of
from convertkit.checks.served import ENGINES, as_report
from convertkit.checks.serving import Serving
from convertkit.containers.folder import CONFIG, open_checkpoint
from convertkit.containers.reader import Reader
from convertkit.conversion.desk import Desk
from convertkit.conversion.stop import Stop, stop_on_signals
from convertkit.conversion.target import Target
from convertkit.conversion.tiles import Buffers
from convertkit.drafter import DrafterSpec
from convertkit.errors import ConvertError, Finding, refusal
from convertkit.forward.calibration import Calibration, read_calibration
from convertkit.forward.limits import DEFAULT_FORWARD_LIMITS, FORWARD_LIMITS, judge_forward
from convertkit.grids.nvfp4.devices import DEVICES
from convertkit.hub.arguments import from_hub
from convertkit.progress import SILENT, Progress
from convertkit.release.digests import sha256_files
from convertkit.release.report_files import check_report_place
from convertkit.verbs.gate import STORED, GateResult, Judgement, gate_result, served_by
from convertkit.verbs.target import open_target
from convertkit.workers import worker_count

if TYPE_CHECKING:
    from convertkit.forward.holder import Holder


@dataclass(frozen=True)
class Asked:
    """What a functional gate is asked for, apart from the two drafters."""

    calibration: Path | None
    target: Target | None
    device: str
    stored: str | None
    as_served: str | None
    fuse: tuple[str, ...]
    seed: int
    workers: int


@from_hub("candidate", "reference", "target_model")
def gate_forward(
    candidate: str | os.PathLike[str],
    reference: str | os.PathLike[str],
    *,
    calibration: str | os.PathLike[str] | None = None,
    target_model: str | os.PathLike[str] | None = None,
    device: str = "cpu",
    limits: Mapping[str, float | None] = DEFAULT_FORWARD_LIMITS,
    stored: str | None = None,
    as_served: str | None = None,
    fuse: Sequence[str] = (),
    seed: int = 0,
    report: str | os.PathLike[str] | None = None,
    workers: int = 0,
    progress: Progress = SILENT,
) -> GateResult:
    """Run two DFlash, DFlash 2, DSpark or EAGLE-3 drafters for the same text and judge the candidate.

    The text and the target's hidden states are those of the ``calibration`` file, or generated from ``seed``. What a
    drafter does not hold itself (embedding, head) comes from the folder ``target_model``. ``device`` is cpu or cuda.
    ``stored``, ``as_served``, ``fuse``, ``report`` and ``workers`` are as for ``gate``. Rows are about the gathered
    inputs, every module, every layer, and what is proposed.

    Raises:
        ConvertError: E_FORWARD, E_NEEDS_TARGET, E_CALIBRATION, E_DEVICE, and what ``gate`` raises.
    """
    _check_words(limits, stored, as_served, device)
    if report is not None:
        check_report_place(Path(report))
    target = None if target_model is None else open_target(target_model)
    place = None if calibration is None else Path(calibration)
    asked = Asked(place, target, device, STORED[stored], as_served, tuple(fuse), seed, worker_count(workers))
    theirs, mine = open_checkpoint(reference), open_checkpoint(candidate)
    with stop_on_signals() as stop:
        rows, findings, used = _run(theirs, mine, asked, limits, stop, progress)
    parameters = {"forward": True, "limits": dict(limits), "stored": stored, "as_served": as_served, "fuse": list(fuse)}
    judgement = Judgement(parameters, _summary(rows, asked, limits, used, workers), rows, findings)
    return gate_result((theirs, mine), judgement, report, workers)


def _check_words(limits: Mapping[str, float | None], stored: str | None, as_served: str | None, device: str) -> None:
    from convertkit.checks.fidelity import check_limits

    check_limits(limits)
    unknown = [name for name in limits if name not in FORWARD_LIMITS]
    if unknown:
        raise refusal("E_USAGE", f"unknown limits of a functional gate: {', '.join(unknown)}")
    if stored not in STORED or (as_served is not None and (as_served not in ENGINES or stored is not None)):
        raise refusal("E_USAGE", f"--as-served takes one of {', '.join(ENGINES)}, and no --stored beside it")
    if device not in DEVICES:
        raise refusal("E_USAGE", f"unknown device '{device}'")
    if device == "cuda":
        from convertkit.grids.nvfp4.cuda import require_cuda

        require_cuda()


Found = tuple[list[dict[str, Any]], list[Finding], Calibration]


def _run(
    theirs: Checkpoint,
    mine: Checkpoint,
    asked: Asked,
    limits: Mapping[str, float | None],
    stop: Stop,
    progress: Progress,
) -> Found:
    """Rows, findings, and the calibration that was used."""
    import torch

    from convertkit.forward.specs import spec_findings, spec_of

    depth = None if asked.target is None else asked.target.layers
    specs = spec_of(theirs, "reference", depth), spec_of(mine, "candidate", depth)
    found = list(spec_findings(*specs))
    if any(item.code == "E_REFERENCE" for item in found):
        raise ConvertError(found, status=1)
    used = _calibration(asked, specs)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(asked.workers)
        with ExitStack() as stack, torch.inference_mode():
            holders, serving = _holders(stack, (theirs, mine), specs, asked, stop, progress)
            rows, more = _compare(holders, specs, used, asked)
            for desk in {id(place.desk): place.desk for one in holders for place in one.places.values()}.values():
                desk.reader.assert_unchanged()
    finally:
        torch.set_num_threads(threads)
    return rows, [*found, *more, *serving.findings, *judge_forward(rows, limits)], used


def _calibration(asked: Asked, specs: tuple[DrafterSpec, DrafterSpec]) -> Calibration:
    """What was given, or generated states of all tapped layers."""
    from convertkit.forward.generated import generated_calibration

    taps = sorted({tap for spec in specs for tap in spec.taps or ()})
    width = specs[0].target_hidden or specs[0].hidden
    assert width is not None
    assert specs[0].vocabulary is not None
    if asked.calibration is None:
        return generated_calibration(taps, width, specs[0].vocabulary, seed=asked.seed)
    used = read_calibration(asked.calibration, taps)
    absent = [tap for tap in taps if tap not in used.hidden]
    if absent and specs[0].taps != specs[1].taps:
        raise _tap_refusal(specs, absent)
    for tap in taps:
        if used.hidden_of(tap).shape[1] != width:
            message = f"hidden states are {used.hidden_of(tap).shape[1]} wide, the drafter reads {width}"
            raise refusal("E_CALIBRATION", message, file=asked.calibration.name)
    if int(used.tokens.max()) >= specs[0].vocabulary:
        message = f"token {int(used.tokens.max())} is beyond the vocabulary of {specs[0].vocabulary}"
        raise refusal("E_CALIBRATION", message, file=asked.calibration.name)
    return used


def _tap_refusal(specs: tuple[DrafterSpec, DrafterSpec], absent: list[int]) -> ConvertError:
    """The gate's verdict where the candidate taps layers that nobody recorded, since the reference does not."""
    message = (
        f"the candidate reads the outputs of target layers {list(specs[1].taps or ())}, the reference those of "
        f"{list(specs[0].taps or ())}; the calibration holds none of layers {absent}"
    )
    return refusal("E_GATE", message, file=CONFIG, fix="correct the tapped layers in the candidate's config")


def _holders(
    stack: ExitStack,
    opened: tuple[Checkpoint, Checkpoint],
    specs: tuple[DrafterSpec, DrafterSpec],
    asked: Asked,
    stop: Stop,
    progress: Progress,
) -> tuple[tuple[Holder, Holder], Serving]:
    """Both drafters with their files open, and how an engine serves the candidate."""
    from convertkit.forward.opening import holder_of

    def desk(checkpoint: Checkpoint) -> Desk:
        return Desk(stack.enter_context(Reader(checkpoint)), stop, progress, Buffers())

    lender = None
    if asked.target is not None:
        weights = asked.target.weights
        lender = asked.target, desk(weights if weights is not None else opened[0])
    desks = desk(opened[0]), desk(opened[1])
    weights_here: list[Mapping[str, Weight]] = [weights_of(item) for item in opened]
    serving = served_by(opened[1], desks[1], asked.as_served, asked.workers, asked.fuse)
    progress.stage("forward", sum(item.weight_bytes for item in opened))
    first = holder_of(opened[0], desks[0], weights_here[0], specs[0], lender, device=asked.device)
    second = holder_of(
        opened[1], desks[1], weights_here[1], specs[1], lender, device=asked.device, stored=asked.stored,
        tables=serving.tables,
    )  # fmt: skip
    return (first, second), serving


def _compare(
    holders: tuple[Holder, Holder], specs: tuple[DrafterSpec, DrafterSpec], used: Calibration, asked: Asked
) -> tuple[list[dict[str, Any]], list[Finding]]:
    import torch

    from convertkit.forward.compare import compared_slots, output_metrics
    from convertkit.forward.inputs import inputs_of, slots_of
    from convertkit.forward.layers import Drafters
    from convertkit.forward.opening import map_findings, target_ids
    from convertkit.forward.rows import forward_rows
    from convertkit.forward.streams import Streams

    taps = [tap for spec in specs for tap in spec.taps or ()]
    inputs = inputs_of(used, taps, slots_of(specs[0]), torch.float64, asked.device)
    features = [inputs.features(spec.taps or ()) for spec in specs]
    ids = torch.stack([target_ids(holder) for holder in holders])
    streams = Streams(holders, (0, 1, 1))
    it = Drafters(streams, (specs[0], specs[1], specs[1]))
    slots = compared_slots(it, inputs, torch.stack([*features, features[0]]), ids)
    rows = forward_rows(streams, specs, features, output_metrics(slots, bool(slots.recorded.any())))
    return rows, map_findings(ids)


def _summary(
    rows: Sequence[Mapping[str, Any]],
    asked: Asked,
    limits: Mapping[str, float | None],
    used: Calibration,
    workers: int,
) -> dict[str, Any]:
    """Counts, and what was run on what. ``tensors`` are the modules."""
    modules = [row for row in rows if row["scope"] == "module"]
    about: dict[str, Any] = {
        "origin": used.origin,
        "target": used.target,
        "dtype": used.dtype,
        "positions": int(used.tokens.size),
        "layers": list(used.layers),
        "seed": asked.seed if asked.calibration is None else None,
        "file": None,
    }
    if asked.calibration is not None:
        name = asked.calibration.name
        digest = sha256_files(asked.calibration.parent, [name], workers)[name]
        about["file"] = {"path": name, "size_bytes": digest.size_bytes, "sha256": digest.sha256}
    return {
        "tensors": len(modules),
        "packed": sum(1 for row in modules if row["packed"]),
        "stored": asked.stored,
        "as_served": None if asked.as_served is None else as_report(asked.as_served),
        "limits": dict(limits),
        "forward": {
            "calibration": about,
            "output": next(row["forward"] for row in rows if row["scope"] == "output"),
            "worst_module": _worst(modules),
            "worst_layer": _worst([row for row in rows if row["scope"] == "layer"]),
        },
    }


def _worst(rows: Sequence[Mapping[str, Any]]) -> str | None:
    """The row of the largest error; one whose error is undefined is worse than any."""

    def error(row: Mapping[str, Any]) -> float:
        value = row["forward"]["rel_rms"]
        return float("inf") if value is None else float(value)

    worst = max(rows, key=error, default=None)
    return None if worst is None or error(worst) == 0 else str(worst["name"])
