"""Sizes on the command line, and the table of commands."""

import importlib

import click
import pytest

from convertkit.cli.common import max_shard_size_option, parse_size
from convertkit.cli.main import COMMANDS, main


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("5GB", 5_000_000_000),
        ("500MB", 500_000_000),
        ("2GiB", 2_147_483_648),
        ("1.5GB", 1_500_000_000),
        ("1.1GB", 1_100_000_000),
        ("12 kb", 12_000),
        ("123456", 123_456),
        ("1B", 1),
        ("0.5KiB", 512),
    ],
)
def test_sizes(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize("text", ["", "GB", "5G", "-1GB", "0", "0.1B", "1e9", "5GB5", "0x10", "٣GB", "1_000", "inf"])
def test_not_sizes(text: str) -> None:
    with pytest.raises(ValueError, match=r"size|byte"):
        parse_size(text)


def test_size_option_gives_bytes_or_none() -> None:
    @click.command()
    @max_shard_size_option
    def command(max_shard_bytes: int | None) -> int | None:
        return max_shard_bytes

    assert command.main([], standalone_mode=False) is None
    assert command.main(["--max-shard-size", "1MB"], standalone_mode=False) == 1_000_000
    with pytest.raises(click.BadParameter):
        command.main(["--max-shard-size", "big"], standalone_mode=False)


@pytest.mark.parametrize("name", list(COMMANDS))
def test_each_command_exists_and_has_the_shared_options(name: str) -> None:
    command = importlib.import_module(COMMANDS[name].module).command
    assert isinstance(command, click.Command)
    assert command.name == name
    spelled = {word for parameter in command.params for word in parameter.opts}
    assert spelled >= {"--json", "--quiet", "--traceback"}
    assert len(COMMANDS[name].help) <= 80


def test_a_usage_error_is_three_lines(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["completion"]) == 2
    usage, error, fix = capfd.readouterr().err.splitlines()
    assert usage.startswith("Usage: convertkit completion ")
    assert error == "error E_USAGE: Missing argument '{bash|zsh|fish}'. Choose from: bash, zsh, fish"
    assert fix == "  fix: see `convertkit completion --help`"
