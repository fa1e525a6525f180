"""``--json``: every document of every command names its schema and follows it, and every schema is of some document."""

from __future__ import annotations

import io
import json
import re
from contextlib import chdir, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import torch
from jsonschema import Draft202012Validator
from safetensors.torch import load_file

from convertkit import __version__
from convertkit.cli.main import COMMANDS, main
from convertkit.cli.text import PAGE_WIDTH
from convertkit.cli.writing import TIMINGS
from convertkit.demo.generate import generate
from convertkit.drafter import FIELDS
from convertkit.engines.rules import ENGINES
from convertkit.layouts.gguf_names import ARCHS
from convertkit.layouts.tables import LAYOUTS
from convertkit.release.schemas import load_schema, schema_names
from tests.documents import check_document
from tests.gguf.models import write_model
from tests.release.recipes import write_recipe
from tests.release.test_signing import write_key

RENAME = "--rename layers.{rest}=model.layers.{rest}"

SAID: tuple[tuple[str, str, int], ...] = (
    ("inspect drafter --tensors", "inspect", 0),
    ("inspect drafter --scan", "inspect", 0),
    ("inspect target", "inspect", 0),
    ("pack-nvfp4 drafter pack --dry-run", "plan", 0),
    ("pack-nvfp4 drafter pack", "result", 0),
    ("pack-nvfp4 drafter pack", "error", 5),
    ("pack-nvfp4 rough poor --max-rel-rms 0.01", "error", 1),
    ("pack-nvfp4 rough poor --max-rel-rms 0.01 --publish-anyway", "result", 1),
    ("inspect pack --tensors", "inspect", 0),
    ("dequant pack dense --dry-run", "plan", 0),
    ("dequant pack dense", "result", 0),
    ("convert pack ct --to nvfp4-ct --dry-run", "plan", 0),
    ("convert pack ct --to nvfp4-ct", "result", 0),
    ("to-speculators drafter spec --target-model target --target-id a/b --dry-run", "plan", 0),
    ("to-speculators drafter spec --target-model target --target-id a/b", "result", 0),
    ("inspect spec", "inspect", 0),
    ("to-dflash spec back --dry-run", "plan", 0),
    ("to-dflash spec back", "result", 0),
    ("to-dspark dspark dspark-again --dry-run", "plan", 0),
    ("to-dspark dspark dspark-again", "result", 0),
    ("to-gguf small small.gguf --target-model words --dry-run", "plan", 0),
    ("to-gguf small small.gguf --target-model words", "result", 0),
    ("to-gguf small parts --target-model words --split-max-tensors 20", "result", 0),
    ("inspect small.gguf --tensors", "inspect", 0),
    ("audit small.gguf", "audit", 0),
    ("from-gguf small.gguf unboxed --dry-run", "plan", 0),
    ("from-gguf small.gguf unboxed", "result", 0),
    ("from-torch drafter.bin torch --dry-run", "plan", 0),
    ("from-torch drafter.bin torch", "result", 0),
    ("gate pack --reference drafter", "fidelity-gate", 0),
    ("gate poor --reference rough --max-rel-rms 0.01 --report gate.json", "fidelity-gate", 1),
    ("gate pack --reference drafter --forward --target-model target", "fidelity-gate", 0),
    ("calibration states.safetensors --drafter drafter", "calibration", 0),
    ("calibration states.safetensors", "calibration", 0),
    ("audit pack", "audit", 0),
    ("audit pack --engine all --scan", "audit", 1),
    ("audit pack --engine vllm --target-model target --report audit.json", "load-shape-audit", 0),
    ("diff drafter dense", "diff", 0),
    ("diff drafter spec --headers", "diff", 1),
    ("fix-keys --list", "presets", 0),
    (f"fix-keys drafter named {RENAME} --dry-run", "plan", 0),
    (f"fix-keys target named {RENAME}", "error", 2),
    ("fix-keys right nested --preset nested-vision --reverse --quick", "result", 0),
    ("fix-keys nested named --preset nested-vision --dry-run", "plan", 0),
    ("fix-keys nested named --preset nested-vision", "result", 0),
    ("fix-keys named other --preset nested-vision", "keys", 0),
    ("fix-keys named --in-place --preset nested-vision --reverse --dry-run", "keys", 0),
    ("fix-keys named --in-place --preset nested-vision --reverse", "keys", 0),
    ("fix-keys named --in-place --preset nested-vision --prove", "keys", 0),
    ("fix-keys named --in-place --recover", "keys", 0),
    ("repair pack tied --tie-scales", "untouched", 0),
    ("repair drafter cut --shard 100kB --dry-run", "plan", 0),
    ("repair drafter cut --shard 100kB", "result", 0),
    ("inspect cut", "inspect", 0),
    ("release init drafter", "release-init", 0),
    ("release init drafter --output drafter.toml", "release-init", 0),
    ("release recipe.toml out --dry-run", "release-plan", 0),
    ("release recipe.toml out", "release", 0),
    ("report out", "report-page", 0),
    ("manifest out --dry-run", "manifest-result", 0),
    ("manifest out", "manifest-result", 0),
    ("verify out", "verify", 0),
    ("verify drafter", "verify", 1),
    ("sign out --key key.pem --output out.sig", "sign", 0),
    ("formats", "formats", 0),
    ("schema", "schemas", 0),
    ("demo shown --scale tiny", "demo", 0),
    ("doctor", "doctor", 0),
    ("completion zsh", "completion", 0),
    ("inspect nothing", "error", 3),
)
"""Command lines in order, what their document is, and the exit status."""

FILES_ONLY = {"dequant-report", "gguf-report", "manifest", "recipe", "release-report", "rename-report", "repair-report"}
"""Schemas of files that no command prints as its document."""


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[int, Any]]:
    """Exit status and document of every row of ``SAID``, run one after the other in one folder."""
    folder = tmp_path_factory.mktemp("documents")
    write_recipe(folder)
    generate("dflash2", folder / "rough")
    for kind, name in (("target", "target"), ("qwen3.5-moe", "right")):
        generate(kind, folder / name)
    for kind, name in (("dflash2", "small"), ("dspark", "dspark"), ("qwen3", "words")):
        write_model(folder / name, kind)
    torch.save(load_file(folder / "drafter" / "model.safetensors"), folder / "drafter.bin")
    write_key(folder, "key")
    with chdir(folder):
        return [printed(words.split()) for words, _, _ in SAID]


def printed(words: list[str]) -> tuple[int, Any]:
    """Exit status and document of a command line."""
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="utf-8")
    with redirect_stdout(stream):
        status = main([*words, "--json"])
    return status, json.loads(raw.getvalue())


@pytest.mark.parametrize("row", range(len(SAID)), ids=[words.replace("/", "_") for words, _, _ in SAID])
def test_document_follows_the_schema_that_it_names(row: int, said: list[tuple[int, Any]]) -> None:
    status, document = said[row]
    _, kind, wanted = SAID[row]
    assert (check_document(document), status) == (kind, wanted), document.get("findings")
    assert document["tool"] == {"name": "convertkit", "version": __version__}


def test_timings_have_their_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[tuple[int, Any]]) -> None:
    generate("dflash2", tmp_path / "drafter")
    monkeypatch.setenv(TIMINGS, "1")
    status, document = printed(["convert", str(tmp_path / "drafter"), str(tmp_path / "out"), "--to", "f16"])
    assert (check_document(document), status) == ("result", 0)
    assert document["timings"].keys() >= {"survey", "reports", "publish"}
    plain = said[[words for words, _, _ in SAID].index("pack-nvfp4 drafter pack")][1]
    assert "timings" not in plain


def test_every_command_and_every_schema_is_among_them() -> None:
    assert {words.split()[0] for words, _, _ in SAID} == set(COMMANDS)
    assert {kind for _, kind, _ in SAID} == set(schema_names()) - FILES_ONLY


@pytest.mark.parametrize("command", COMMANDS)
def test_a_mistake_is_an_error_document(command: str) -> None:
    status, document = printed([command, "--no-such-option"])
    assert (check_document(document), status, document["status"]) == ("error", 2, 2)
    assert document["findings"][0]["code"] == "E_USAGE"


@pytest.mark.parametrize("name", schema_names())
def test_schema_is_sound_closed_and_called_as_its_file(name: str) -> None:
    schema = load_schema(name)
    Draft202012Validator.check_schema(schema)
    assert schema["$id"] == f"convertkit.{name}/1"
    assert schema["title"]
    assert schema["additionalProperties"] is False
    assert "schema" in schema["required"]
    if name not in ("recipe", "manifest"):
        assert schema["properties"]["schema"] == {"const": schema["$id"]}
    used = set(re.findall(r'"#/\$defs/([a-z_]+)"', json.dumps(schema)))
    assert used <= set(schema.get("$defs", ()))


def test_the_schema_of_inspect_knows_every_field_of_a_drafter() -> None:
    assert set(load_schema("inspect")["$defs"]["spec"]["properties"]) == set(FIELDS)


def test_formats_lists_what_the_tables_hold(said: list[tuple[int, Any]], capfd: pytest.CaptureFixture[str]) -> None:
    document = said[[words for words, _, _ in SAID].index("formats")][1]
    assert {row["name"] for row in document["engines"]} == set(ENGINES)
    assert {row["name"] for row in document["layouts"]} == {row.name for row in LAYOUTS} - {"unknown"}
    assert document["gguf"]["architectures"] == sorted(ARCHS)
    assert main(["formats"]) == 0
    text = capfd.readouterr().out
    assert all(len(line) <= PAGE_WIDTH for line in text.splitlines())
    assert "vllm          0.33.0 (run)" in text


def test_a_relabelled_tensor_states_the_one_that_it_was(said: list[tuple[int, Any]]) -> None:
    """Not all that lie in its file: a plan of a hundred thousand names would not fit into memory."""
    plan = said[[words for words, _, _ in SAID].index(f"fix-keys drafter named {RENAME} --dry-run")][1]
    assert all(row["inputs"] == [row["name"].removeprefix("model.")] for row in plan["tensors"])
    assert len(plan["tensors"]) == 81
