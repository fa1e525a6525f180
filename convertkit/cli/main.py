"""The ``convertkit`` command: a table of commands, each imported only when it is called."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import NamedTuple

import click
from click.shell_completion import CompletionItem, shell_complete

from convertkit import __version__
from convertkit.cli.limits import raise_open_files
from convertkit.cli.runner import (
    STATUS_WRITE,
    Shared,
    failure_document,
    json_text,
    report_failure,
    stdout_failed,
    write_stderr,
    write_stdout,
)
from convertkit.cli.signals import raised_signals
from convertkit.cli.text import finding_text
from convertkit.errors import finding

COMPLETE_VARIABLE = "_CONVERTKIT_COMPLETE"


class Row(NamedTuple):
    """Where a command is, and its line in ``convertkit --help``."""

    module: str
    help: str


COMMANDS: dict[str, Row] = {
    "inspect": Row("convertkit.cli.inspect", "Tell what a checkpoint is and what is odd about it."),
    "pack-nvfp4": Row("convertkit.cli.pack_nvfp4", "Pack BF16, F16 or F32 weights to NVFP4."),
    "dequant": Row("convertkit.cli.dequant", "Expand NVFP4 weights to BF16, F16 or F32."),
    "convert": Row("convertkit.cli.convert", "Convert a checkpoint to any named format."),
    "to-speculators": Row("convertkit.cli.to_speculators", "Convert a drafter to speculators' format."),
    "to-dflash": Row("convertkit.cli.to_dflash", "Convert a DFlash drafter to z-lab's format."),
    "to-dspark": Row("convertkit.cli.to_dspark", "Convert a DSpark drafter to the format that vLLM serves natively."),
    "to-gguf": Row("convertkit.cli.to_gguf", "Convert a drafter or model to GGUF for llama.cpp."),
    "from-gguf": Row("convertkit.cli.from_gguf", "Convert a GGUF to safetensors."),
    "from-torch": Row("convertkit.cli.from_torch", "Convert weights that PyTorch pickled to safetensors."),
    "gate": Row("convertkit.cli.gate", "Compare a checkpoint with its reference, tensor by tensor."),
    "calibration": Row("convertkit.cli.calibration", "Make hidden states and tokens for gate --forward."),
    "audit": Row("convertkit.cli.audit", "Check names, shapes, dtypes and config against each other."),
    "diff": Row("convertkit.cli.diff", "Show how two checkpoints differ."),
    "fix-keys": Row("convertkit.cli.fix_keys", "Rename tensors, in a new output or in place."),
    "repair": Row("convertkit.cli.repair", "Repair scales, index, config, shards and layout."),
    "release": Row("convertkit.cli.release", "Make a whole release from a recipe: variants, reports, card, manifest."),
    "report": Row("convertkit.cli.report", "Write a page from the reports of a folder."),
    "manifest": Row("convertkit.cli.manifest", "Write MANIFEST.json and SHA256SUMS for a folder."),
    "verify": Row("convertkit.cli.verify", "Verify a folder against its manifest."),
    "sign": Row("convertkit.cli.sign", "Sign a release with a key or a certificate."),
    "formats": Row("convertkit.cli.formats", "List the formats that can be converted to."),
    "schema": Row("convertkit.cli.schema", "Print the JSON Schema of a report or a document of --json."),
    "demo": Row("convertkit.cli.demo", "Make a small drafter, pack, expand, gate, audit and verify it."),
    "doctor": Row("convertkit.cli.doctor", "Tell what is installed and what this machine can do."),
    "completion": Row("convertkit.cli.completion", "Print the completion script for a shell."),
}
"""In the order of ``--help``. Each module's ``command`` is a ``click.Command`` that returns the exit status."""


class LazyGroup(click.Group):
    """A group that knows its commands from ``COMMANDS`` and imports one only to run it or print its help."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = importlib.import_module(COMMANDS[cmd_name].module).command
        if not isinstance(command, click.Command):
            raise TypeError(f"{COMMANDS[cmd_name].module}.command is not a click command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, row.help) for name, row in COMMANDS.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        names = [CompletionItem(name, help=row.help) for name, row in COMMANDS.items() if name.startswith(incomplete)]
        return names + click.Command.shell_complete(self, ctx, incomplete)


@click.command(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit status: 0 done or passed, 1 a check said no, 2 usage, 3 input not acceptable, 4 could not read or "
    "write, 5 output refused, 6 files of an earlier release, 70 internal error, 129/130/143 interrupted.",
)
@click.version_option(__version__, prog_name="convertkit", message="%(prog)s %(version)s")
def cli() -> None:
    """Convert and quantize checkpoints of LLMs and speculative-decoding drafters, and prove the result."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line ``arguments`` (``sys.argv`` when None); the exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if COMPLETE_VARIABLE in os.environ:
        return shell_complete(cli, {}, "convertkit", COMPLETE_VARIABLE, os.environ[COMPLETE_VARIABLE])
    raise_open_files()
    with raised_signals():
        return dispatch(words)


def dispatch(words: list[str]) -> int:
    """Run one command line; its exit status. Failures that no command has reported are reported here."""
    options = words[: words.index("--")] if "--" in words else words
    shared = Shared(as_json="--json" in options, traceback="--traceback" in options)
    try:
        with cli.make_context("convertkit", list(words)) as context:
            status = cli.invoke(context)
            return status if isinstance(status, int) else 0
    except click.exceptions.Exit as exit_:
        return exit_.exit_code
    except click.ClickException as error:
        return _report_usage(error, shared)
    except OSError as error:  # commands report their own; this one is from printing --help or --version
        stdout_failed(error)
        return STATUS_WRITE
    except (Exception, KeyboardInterrupt) as error:
        return report_failure(error, shared)


def _report_usage(error: click.ClickException, shared: Shared) -> int:
    """Say on stderr what is wrong with the command line, and on stdout too with ``--json``; status 2."""
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        write_stderr(error.format_message() + "\n")
        return error.exit_code
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "convertkit"
    usage = context.get_usage() + "\n" if context is not None else ""
    message = " ".join(line.strip() for line in error.format_message().splitlines())
    what = finding("E_USAGE", "error", message, fix=f"see `{path} --help`")
    write_stderr(usage + finding_text(what) + "\n")
    if shared.as_json:
        write_stdout(json_text(failure_document([what], 2)), encoding="utf-8")
    return 2


if __name__ == "__main__":
    sys.exit(main())
