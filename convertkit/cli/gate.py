"""``convertkit gate CANDIDATE --reference REF``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from convertkit.checks.fidelity import THRESHOLDS
from convertkit.cli.common import SourcePath, shared_options, source_argument, workers_option
from convertkit.cli.gate_text import forward_text, gate_text
from convertkit.cli.runner import Outcome, Shared, run
from convertkit.cli.thresholds import forward_options, threshold_options
from convertkit.dtypes import FLOAT_WORDS
from convertkit.forward.limits import FORWARD_LIMITS
from convertkit.grids.nvfp4.devices import DEVICES

ENGINES = ("vllm-marlin", "vllm-emulation", "sglang-marlin", "ggml", "modelopt", "compressed-tensors")
ONLY_FORWARD = ("calibration", "target_model", "seed")


@click.command("gate", epilog="Example: convertkit gate drafter-nvfp4 --reference drafter-bf16 --max-rel-rms 0.1")
@source_argument("candidate")
@click.option("--reference", type=SourcePath(), required=True, metavar="REF", help="What to compare with.")
@click.option("--stored", type=click.Choice(tuple(FLOAT_WORDS)), help="Round the candidate to this type first.")
@click.option("--as-served", type=click.Choice(ENGINES), help="Decode the candidate as this engine would serve it.")
@click.option("--fuse", multiple=True, metavar="A,B", help="Modules that an engine fuses, beside those known.")
@click.option("--report", type=click.Path(path_type=Path), metavar="FILE", help="Write FIDELITY_GATE.json here.")
@threshold_options
@click.option("--forward", is_flag=True, help="Run both drafters instead, and compare what they compute.")
@click.option(
    "--calibration",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="With --forward: recorded hidden states and tokens; without it they are generated.",
)
@click.option(
    "--target-model",
    type=SourcePath(),
    metavar="DIR",
    help="With --forward: the target, for the embedding and head that the drafters borrow.",
)
@click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, help="With --forward: of generated states."
)
@click.option("--device", type=click.Choice(DEVICES), default="cpu", show_default=True,
              help="Where errors are summed (the report is the same), or where --forward runs.")  # fmt: skip
@forward_options
@workers_option
@shared_options
def command(candidate: Path, reference: Path, forward: bool, workers: int, shared: Shared, **words: Any) -> int:
    """Compare CANDIDATE with REF as values, tensor by tensor, and judge it by the limits.

    Either side may be dense or packed in any dialect. With --forward both must be drafters (DFlash, DFlash 2, DSpark,
    EAGLE-3): they are run for the same text, and modules, layers and proposals are compared. Exit status 1 when the
    gate says no.
    """
    alike = {name: words.pop(name) for name in ("stored", "as_served", "fuse", "report")}
    limits, forward_limits = words.pop("limits"), words.pop("forward_limits")
    _refuse_words((*THRESHOLDS,) if forward else (*ONLY_FORWARD, *FORWARD_LIMITS), forward)
    if not forward:
        return run(
            shared,
            lambda progress: _weights(
                candidate,
                reference,
                limits,
                {**alike, "workers": workers, "progress": progress, "device": words["device"]},
            ),
        )
    return run(
        shared,
        lambda progress: _forward(
            candidate, reference, forward_limits, {**alike, **words, "workers": workers, "progress": progress}
        ),
    )


def _refuse_words(names: Sequence[str], forward: bool) -> None:
    """Options that mean nothing with or without --forward are a mistake, not a wish to ignore."""
    context = click.get_current_context()
    for name in names:
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            raise click.UsageError(f"--{name.replace('_', '-')} means nothing with --forward" if forward else
                                   f"--{name.replace('_', '-')} needs --forward")  # fmt: skip


def _weights(candidate: Path, reference: Path, limits: Mapping[str, float | None], words: dict[str, Any]) -> Outcome:
    from convertkit.verbs.gate import gate

    made = gate(candidate, reference, limits=limits, **words)
    return Outcome(made.document, gate_text(made.document, made.rows, made.findings, made.status), made.status)


def _forward(candidate: Path, reference: Path, limits: Mapping[str, float | None], words: dict[str, Any]) -> Outcome:
    from convertkit.verbs.gate_forward import gate_forward

    made = gate_forward(candidate, reference, limits=limits, **words)
    return Outcome(made.document, forward_text(made.document, made.rows, made.findings, made.status), made.status)
