"""The command as a process: statuses, streams, signals, and what it imports."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from convertkit.cli.main import COMMANDS
from tests.gguf.models import write_model

ROOT = Path(__file__).resolve().parents[2]

WAITING_COMMAND = """
import sys, time, click
from convertkit.cli.common import shared_options
from convertkit.cli.runner import Outcome, run

@click.command("wait")
@shared_options
def command(shared):
    def work(progress):
        print("ready", file=sys.stderr, flush=True)
        for _ in range(600):  # short naps: a signal just before a long one would be seen only after it
            time.sleep(0.1)
        return Outcome({}, "")
    return run(shared, work)
"""

START_WAITING = """
import sys
from convertkit.cli.main import COMMANDS, Row, main
COMMANDS["wait"] = Row("waiting_command", "Wait.")
sys.exit(main(["wait"]))
"""


def convertkit(*words: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    usual: dict[str, Any] = {"capture_output": True, "env": environment, "stdin": subprocess.DEVNULL, "timeout": 120}
    return subprocess.run([sys.executable, "-m", "convertkit", *words], check=False, **(usual | options))


def test_version_and_help() -> None:
    assert convertkit("--version").stdout.startswith(b"convertkit 0.")
    done = convertkit("--help")
    assert (done.returncode, done.stderr) == (0, b"")
    assert all(f"\n  {name} ".encode() in done.stdout for name in COMMANDS)


@pytest.mark.parametrize("words", [[], ["no-such-command"], ["completion"], ["completion", "tcsh"], ["--no-such"]])
def test_usage_errors_are_status_2(words: list[str]) -> None:
    done = convertkit(*words)
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"Traceback" not in done.stderr


def test_usage_error_as_json() -> None:
    done = convertkit("completion", "tcsh", "--json")
    document = json.loads(done.stdout)
    assert (done.returncode, document["status"], document["findings"][0]["code"]) == (2, 2, "E_USAGE")


def test_double_dash_ends_options() -> None:
    done = convertkit("completion", "--", "--json")
    assert (done.returncode, done.stdout) == (2, b"")


@pytest.mark.parametrize("words", [["--help"], ["completion", "fish"], ["completion", "fish", "--json"]])
def test_full_standard_output_is_status_4(words: list[str]) -> None:
    with open("/dev/full", "wb") as full:
        done = convertkit(*words, capture_output=False, stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 4
    assert done.stderr == b"error E_WRITE: cannot write to standard output: No space left on device\n"


@pytest.mark.parametrize("words", [["--help"], ["completion", "fish"]])
def test_reader_that_went_away_is_status_4_without_noise(words: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = convertkit(*words, capture_output=False, stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    assert (done.returncode, done.stderr) == (4, b"")


def test_closed_standard_output_is_status_4() -> None:
    done = convertkit(
        "completion", "fish", capture_output=False, stderr=subprocess.PIPE, preexec_fn=lambda: os.close(1)
    )
    assert done.returncode == 4
    assert done.stderr.startswith(b"error E_WRITE: ")


def start_waiting(folder: Path, **options: Any) -> subprocess.Popen[bytes]:
    (folder / "waiting_command.py").write_text(WAITING_COMMAND)
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{folder}"}
    child = subprocess.Popen(
        [sys.executable, "-c", START_WAITING],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        **{"preexec_fn": lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL), **options},  # not nohup's, if any
    )
    assert child.stderr is not None
    assert child.stderr.readline() == b"ready\n"
    return child


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_signals_end_with_128_plus_their_number(name: str, tmp_path: Path) -> None:
    child = start_waiting(tmp_path)
    child.send_signal(getattr(signal, name))
    out, err = child.communicate(timeout=30)
    assert child.returncode == 128 + getattr(signal, name)
    assert (out, err) == (b"", f"error E_INTERRUPTED: interrupted by {name}\n".encode())


IN_A_CALLBACK = """
import ctypes, os, signal, time
from contextlib import nullcontext
from convertkit.cli.signals import Interrupted, raised_signals
from convertkit.conversion.stop import stop_on_signals
def callback():
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.01)
with raised_signals():
    try:
        ctypes.CFUNCTYPE(None)(callback)()
        with LISTENING as stop:
            time.sleep(0.5)
            print("stopped by", stop.signum)
    except Interrupted as error:
        print("interrupted by", error.number)
"""


@pytest.mark.parametrize(
    ("listening", "said"),
    [("nullcontext()", b"interrupted by 15\n"), ("stop_on_signals()", b"stopped by 15\n")],
)
def test_a_signal_that_comes_inside_a_callback_is_not_lost(listening: str, said: bytes) -> None:
    code = IN_A_CALLBACK.replace("LISTENING", listening)
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, timeout=30, check=False)
    assert (done.stdout, done.stderr, done.returncode) == (said, b"", 0)


def test_an_interrupt_while_the_command_is_loaded_says_nothing() -> None:
    code = (
        "import os, signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from convertkit import __main__; "
        "finder = type('Finder', (), {'find_spec': lambda *_: os.kill(os.getpid(), signal.SIGINT)}); "
        "sys.meta_path.insert(0, finder()); __main__.run()"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, timeout=30, check=False)
    assert (done.stdout, done.stderr, done.returncode) == (b"", b"", -signal.SIGINT)


def test_inherited_ignored_sigint_stays_ignored(tmp_path: Path) -> None:
    child = start_waiting(tmp_path, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN))
    child.send_signal(signal.SIGINT)
    time.sleep(0.2)
    assert child.poll() is None
    child.terminate()
    child.communicate(timeout=30)
    assert child.returncode == 143


HEAVY = ("torch", "numba", "jsonschema", "rich", "gguf", "transformers")


def modules_after(code: str) -> list[str]:
    """Names of the heavy packages in ``sys.modules`` after running ``code`` in a fresh interpreter."""
    script = f"{code}\nimport sys\nprint(*[name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, check=True, timeout=120)
    return done.stderr.decode().split()


def test_help_imports_nothing_heavy() -> None:
    assert modules_after("from convertkit.cli.main import main\nmain(['--help'])") == []


@pytest.mark.parametrize("name", list(COMMANDS))
def test_help_of_a_command_imports_nothing_heavy(name: str) -> None:
    assert modules_after(f"from convertkit.cli.main import main\nassert main([{name!r}, '--help']) == 0") == []


@pytest.mark.parametrize("name", ["inspect", "verify", "manifest"])
def test_reading_commands_need_neither_torch_nor_numba(name: str, tmp_path: Path) -> None:
    from convertkit.demo.generate import generate

    generate("dflash2", tmp_path / "drafter", scale="tiny")
    if name == "verify":
        assert convertkit("manifest", str(tmp_path / "drafter")).returncode == 0
    loaded = modules_after(
        f"from convertkit.cli.main import main\nassert main([{name!r}, {str(tmp_path / 'drafter')!r}]) == 0"
    )
    assert "torch" not in loaded
    assert "numba" not in loaded


@pytest.mark.parametrize("verb", ["fix-keys", "to-speculators", "to-gguf", "pack-nvfp4"])
def test_what_only_copies_loads_no_compiler(verb: str, tmp_path: Path) -> None:
    """Renaming and BF16 to BF16 need no kernels; neither does saying no."""
    target = write_model(tmp_path / "target", "qwen3")
    source = write_model(tmp_path / "drafter", "dflash")
    out = tmp_path / ("out.gguf" if verb == "to-gguf" else "out")
    words = {
        "fix-keys": [str(source), str(out), "--rename", "{rest}=model.{rest}"],
        "to-speculators": [str(source), str(out), "--target-model", str(target), "--target-id", "org/name"],
        "to-gguf": [str(source), str(out), "--target-model", str(target)],
        "pack-nvfp4": [str(tmp_path / "not there"), str(out)],
    }
    loaded = modules_after(f"from convertkit.cli.main import main\nmain({[verb, *words[verb]]!r})")
    assert out.exists() == (verb != "pack-nvfp4")
    assert not {"torch", "numba"} & set(loaded)


def test_help_starts_quickly() -> None:
    """Under 0.3 s of processor time, the best of three: a loaded machine must not fail it."""
    times = []
    for _ in range(3):
        before = os.times()
        assert convertkit("--help").returncode == 0
        after = os.times()
        times.append(after.children_user + after.children_system - before.children_user - before.children_system)
    assert min(times) < 0.3


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script_names_the_command(shell: str) -> None:
    done = convertkit("completion", shell)
    assert done.returncode == 0
    assert b"_CONVERTKIT_COMPLETE" in done.stdout


def test_completion_offers_commands_without_importing_them() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "_CONVERTKIT_COMPLETE": "bash_complete"}
    words = {"COMP_WORDS": "convertkit pa", "COMP_CWORD": "1"}
    done = convertkit(env=environment | words)
    assert (done.returncode, done.stdout) == (0, b"plain,pack-nvfp4\n")
    words = {"COMP_WORDS": "convertkit completion --qu", "COMP_CWORD": "2"}
    assert convertkit(env=environment | words).stdout == b"plain,--quiet\n"
