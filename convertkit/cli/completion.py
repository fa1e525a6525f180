"""``convertkit completion SHELL``: the script that makes the shell complete commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from convertkit.cli.common import shared_options
from convertkit.cli.runner import Outcome, Shared, document_of, run

SHELLS = ("bash", "zsh", "fish")


def script(shell: str) -> str:
    """The completion script for a row of ``SHELLS``."""
    from convertkit.cli.main import COMPLETE_VARIABLE, cli

    kind = get_completion_class(shell)
    if kind is None:
        raise LookupError(f"click knows no completion for {shell}")
    return kind(cli, {}, "convertkit", COMPLETE_VARIABLE).source()


@click.command("completion")
@click.argument("shell", type=click.Choice(SHELLS))
@shared_options
def command(shell: str, shared: Shared) -> int:
    """Print the completion script for SHELL.

    \b
    bash:  convertkit completion bash > ~/.local/share/bash-completion/completions/convertkit
    zsh:   convertkit completion zsh > "${fpath[1]}/_convertkit"
    fish:  convertkit completion fish > ~/.config/fish/completions/convertkit.fish
    """

    def work(progress: object) -> Outcome:
        text = script(shell)
        return Outcome(document_of("completion", {"shell": shell, "script": text}), text)

    return run(shared, work)
