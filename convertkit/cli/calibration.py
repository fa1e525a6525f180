"""``convertkit calibration OUT``: generated, from dumps, or shown."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from convertkit.cli.common import SourcePath, force_option, shared_options
from convertkit.cli.runner import Outcome, Shared, document_of, run
from convertkit.cli.text import count_text, pairs, path_text
from convertkit.dtypes import FLOAT_WORDS

if TYPE_CHECKING:
    from convertkit.forward.calibration import Calibration


@click.command(
    "calibration", epilog="Example: convertkit calibration demo.safetensors --drafter drafter-bf16 --positions 256"
)
@click.argument("out", type=click.Path(path_type=Path))
@click.argument("dumps", nargs=-1, type=click.Path(path_type=Path))
@click.option("--drafter", type=SourcePath(), metavar="DIR", help="Generate states for the layers that it taps.")
@click.option("--positions", type=click.IntRange(2, 65536), default=128, show_default=True, help="Of generated states.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of generated states.")
@click.option("--layers", metavar="A,B,…", help="Target layers that the dumps hold, by their outputs, counted from 0.")
@click.option("--target-id", metavar="NAME", help="The model that the dumps were recorded from.")
@click.option("--target-dtype", metavar="TYPE", default="bfloat16", show_default=True, help="The type that it ran in.")
@click.option(
    "--recorded-from",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    metavar="N",
    help="First position of each dump that the target itself chose, behind the prompt.",
)
@click.option("--store", type=click.Choice(tuple(FLOAT_WORDS)), default="bf16", show_default=True,
              help="How hidden states are kept.")  # fmt: skip
@force_option
@shared_options
def command(out: Path, dumps: tuple[Path, ...], shared: Shared, **words: Any) -> int:
    """Write OUT, hidden states and tokens for `gate --forward`; or show it.

    With --drafter they are generated. With DUMPS they are taken from files as speculators records them: one per
    sequence, with token_ids [positions] and hidden_states [positions, layers, width]; --layers and --target-id say of
    what. With neither, the calibration OUT is checked and described.
    """
    return run(shared, lambda progress: _outcome(out, _made(out, dumps, words)))


def _made(out: Path, dumps: tuple[Path, ...], words: dict[str, Any]) -> Calibration:
    """The calibration that is generated, recorded from dumps, or read."""
    from convertkit.verbs import calibration

    store, force = words["store"].upper(), words["force"]
    if words["drafter"] is not None and dumps:
        raise click.UsageError("name DUMPS or --drafter, not both")
    _refuse_words("drafter" if words["drafter"] is not None else "dumps" if dumps else "neither")
    if words["drafter"] is not None:
        return calibration.generate_calibration(
            out, words["drafter"], positions=words["positions"], seed=words["seed"], store=store, force=force
        )
    if dumps:
        if words["layers"] is None or words["target_id"] is None:
            raise click.UsageError("DUMPS need --layers and --target-id")
        return calibration.record_calibration(
            out, dumps, layers=_numbers(words["layers"]), target=words["target_id"], dtype=words["target_dtype"],
            recorded_from=words["recorded_from"], store=store, force=force,
        )  # fmt: skip
    return calibration.read_calibration(out)


def _outcome(out: Path, made: Calibration) -> Outcome:
    width = next((values.shape[1] for values in made.hidden.values()), 0)
    sequences = len(set(made.sequences.tolist()))
    about = {
        "path": out.name,
        "origin": made.origin,
        "target": made.target,
        "dtype": made.dtype,
        "layers": list(made.layers),
        "width": width,
        "positions": int(made.tokens.size),
        "sequences": sequences,
        "recorded": int(made.recorded.sum()),
    }
    of = f"recorded, of {made.target}" if made.origin == "recorded" else "generated,"
    positions = f"{about['positions']} in {count_text(sequences, 'sequence')}, {about['recorded']} by the target"
    lines = [
        ("calibration", path_text(out)),
        ("states", f"{of} in {made.dtype}"),
        ("target layers", f"{', '.join(map(str, made.layers))}, {width} wide"),
        ("positions", positions),
    ]
    return Outcome(document_of("calibration", about), pairs(lines))


USED = {
    "drafter": ("positions", "seed", "store", "force"),
    "dumps": ("layers", "target_id", "target_dtype", "recorded_from", "store", "force"),
    "neither": (),
}
"""Options that mean something, by what the states come from."""


def _refuse_words(source: str) -> None:
    context = click.get_current_context()
    for name in dict.fromkeys(name for names in USED.values() for name in names):
        given = context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
        if given and name not in USED[source]:
            raise click.UsageError(f"--{name.replace('_', '-')} means nothing here")


def _numbers(text: str) -> list[int]:
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise click.UsageError(f"--layers takes whole numbers with commas, not '{text}'") from None
