"""``hf://`` through the real client, against a hub on loopback."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from convertkit.checkpoint import TensorSpec
from convertkit.containers.safetensors import encode_header
from convertkit.demo.generate import generate
from convertkit.errors import ConvertError
from convertkit.hub.address import Address, origin_of, parse_address
from convertkit.verbs.case import Options
from convertkit.verbs.pack import pack_nvfp4
from tests.documents import check_document
from tests.hub.server import COMMIT, Hub, serve
from tests.release.recipes import LOSSY

ROOT = Path(__file__).parents[2]


def settings(hub: Hub, home: Path, **more: str) -> dict[str, str]:
    environment = {**os.environ, "HF_ENDPOINT": hub.address, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1",
                   "HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1", **more}  # fmt: skip
    environment.pop("HF_TOKEN", None)
    return environment


def convertkit(hub: Hub, home: Path, *words: object, **more: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own: the client reads its settings when it is imported."""
    command = [sys.executable, "-m", "convertkit", *map(str, words)]
    environment = settings(hub, home, **more)
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def drafter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository: the dense drafter in a subfolder, its pack in the root, no manifest in either."""
    folder = tmp_path_factory.mktemp("hub")
    generate("dflash2", folder / "dense")
    pack_nvfp4(folder / "dense", folder / "repo", options=Options(workers=2))
    for name in ("MANIFEST.json", "SHA256SUMS"):
        (folder / "repo" / name).unlink()
    shutil.copytree(folder / "dense", folder / "repo" / "bf16")
    return folder / "repo"


@pytest.fixture
def hub(drafter: Path) -> Iterator[Hub]:
    with serve(drafter) as running:
        yield running


def test_inspect_and_audit_read_headers_only(hub: Hub, drafter: Path, tmp_path: Path) -> None:
    here = json.loads(convertkit(hub, tmp_path, "inspect", drafter, "--json").stdout)
    done = convertkit(hub, tmp_path, "inspect", "hf://org/drafter", "--json")
    assert done.returncode == 0, done.stderr
    there = json.loads(done.stdout)
    assert {key: there[key] for key in ("layout", "dialect", "tensors", "packed", "parameters", "drafter")} == {
        key: here[key] for key in ("layout", "dialect", "tensors", "packed", "parameters", "drafter")
    }
    audited = convertkit(hub, tmp_path, "audit", "hf://org/drafter/bf16", "--engine", "vllm")
    assert audited.returncode == 0, audited.stdout + audited.stderr
    assert not any("GET /org/drafter" in name and ".safetensors" in name and count > 20
                   for name, count in hub.requests.items())  # fmt: skip


def test_audit_of_a_large_file_transfers_little(tmp_path: Path) -> None:
    """4 GB that are a hole, but for the header: the same as any other file for who reads its header."""
    repo = tmp_path / "repo"
    generate("dflash2", repo)
    header = encode_header([TensorSpec("fc.weight", "BF16", (40_000, 50_000))], {"format": "pt"})
    with (repo / "model.safetensors").open("wb") as stream:
        stream.write(header.prefix)
        stream.truncate(header.size_bytes)
    assert header.size_bytes > 4_000_000_000
    with serve(repo) as hub:
        hub.known[repo / "model.safetensors"] = (header.size_bytes, "1" * 40, "2" * 64)  # nobody asks for its bytes
        done = convertkit(hub, tmp_path / "home", "audit", "hf://org/drafter", "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["summary"]["tensors"] == 1
        assert hub.sent_bytes < 20_000_000
        scan = convertkit(hub, tmp_path / "home", "audit", "hf://org/drafter", "--scan")
        assert scan.returncode == 3
        assert "E_HUB_PARTIAL" in scan.stderr


def test_a_conversion_downloads_and_records_where_from(hub: Hub, drafter: Path, tmp_path: Path) -> None:
    done = convertkit(hub, tmp_path / "home", "pack-nvfp4", "hf://org/drafter@main/bf16", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == (drafter / "model.safetensors").read_bytes()
    sources = json.loads((tmp_path / "out" / "MANIFEST.json").read_bytes())["source"]["files"]
    assert {(item["repo"], item["revision"]) for item in sources} == {("hf:org/drafter", COMMIT)}
    before = hub.sent_bytes
    again = convertkit(hub, tmp_path / "home", "dequant", "hf://org/drafter", tmp_path / "back", HF_HUB_OFFLINE="1")
    assert again.returncode != 0  # the pack itself was never downloaded
    cached = convertkit(
        hub, tmp_path / "home", "inspect", f"hf://org/drafter@{COMMIT}/bf16", "--json", HF_HUB_OFFLINE="1"
    )
    assert cached.returncode == 0, cached.stderr
    assert hub.sent_bytes == before


@pytest.mark.parametrize("fault", ["cut", "429"])
def test_interruptions_are_taken_up_again(drafter: Path, tmp_path: Path, fault: str) -> None:
    with serve(drafter) as hub:
        hub.faults["bf16/model.safetensors"] = fault
        done = convertkit(hub, tmp_path / "home", "pack-nvfp4", "hf://org/drafter/bf16", tmp_path / "out")
        assert done.returncode == 0, done.stderr
        assert hub.requests["cut bf16/model.safetensors"] + hub.requests["refused bf16/model.safetensors"] > 0
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == (drafter / "model.safetensors").read_bytes()


def test_wrong_content_is_refused(drafter: Path, tmp_path: Path) -> None:
    with serve(drafter) as hub:
        hub.faults["bf16/model.safetensors"] = "wrong"
        done = convertkit(hub, tmp_path / "home", "pack-nvfp4", "hf://org/drafter/bf16", tmp_path / "out")
    assert done.returncode == 3
    assert "E_HUB_DIGEST" in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_server_without_ranges_is_refused_for_headers(drafter: Path, tmp_path: Path) -> None:
    with serve(drafter) as hub:
        hub.faults["model.safetensors"] = "no ranges"
        done = convertkit(hub, tmp_path / "home", "inspect", "hf://org/drafter")
    assert done.returncode == 4
    assert "E_HUB" in done.stderr


def test_other_bytes_than_asked_for_are_refused(drafter: Path, tmp_path: Path) -> None:
    with serve(drafter, **{"model.safetensors": "elsewhere"}) as hub:
        done = convertkit(hub, tmp_path, "inspect", "hf://org/drafter")
    assert done.returncode == 4
    assert "E_HUB: " in done.stderr


@pytest.mark.parametrize("verb", [["inspect"], ["dequant", "OUT"]])
def test_files_of_another_commit_are_refused(drafter: Path, tmp_path: Path, verb: list[str]) -> None:
    out = [str(tmp_path / "out") for _ in verb[1:]]
    with serve(drafter, commit="f" * 40) as hub:
        done = convertkit(hub, tmp_path / "home", verb[0], "hf://org/drafter", *out)
    assert done.returncode == 4
    assert "E_HUB: " in done.stderr
    assert f"of the commit {COMMIT}" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("size", [-5, 10**18, "x", None])
def test_a_list_that_no_repository_has_is_refused(drafter: Path, tmp_path: Path, size: Any) -> None:
    with serve(drafter) as hub:
        hub.known[drafter / "model.safetensors"] = (size, "0" * 40, "0" * 64)
        done = convertkit(hub, tmp_path, "inspect", "hf://org/drafter")
    assert done.returncode == 4
    assert "E_HUB: " in done.stderr


@pytest.mark.parametrize("status", ["401", "403", "404"])
def test_what_waiting_does_not_open_is_said(drafter: Path, tmp_path: Path, status: str) -> None:
    with serve(drafter, closed=status) as hub:
        done = convertkit(hub, tmp_path, "inspect", "hf://org/drafter")
    assert done.returncode == 4
    assert "HF_TOKEN" in done.stderr


def test_gguf_files_are_not_read_by_parts(tmp_path: Path) -> None:
    (tmp_path / "repo").mkdir()
    with (tmp_path / "repo" / "model.gguf").open("wb") as stream:
        stream.truncate(40_000_000)
    with serve(tmp_path / "repo") as hub:
        done = convertkit(hub, tmp_path / "home", "inspect", "hf://org/drafter")
        assert (done.returncode, "E_HUB_PARTIAL" in done.stderr) == (3, True), done.stderr
        assert hub.sent_bytes < 100_000


def test_what_is_not_there(hub: Hub, tmp_path: Path) -> None:
    for address in ("hf://org/none", "hf://org/drafter@none"):
        done = convertkit(hub, tmp_path, "inspect", address)
        assert (done.returncode, "E_NOT_FOUND" in done.stderr) == (3, True), done.stderr
    assert convertkit(hub, tmp_path, "inspect", "hf://org").returncode == 2


def test_verify_by_the_digests_of_the_hub(drafter: Path, tmp_path: Path) -> None:
    with serve(drafter) as hub:
        done = convertkit(hub, tmp_path / "home", "verify", "hf://org/drafter")
        assert done.returncode == 0, done.stdout + done.stderr
        assert "hub-files.json" in done.stdout
        (blob,) = [path for path in (tmp_path / "home").rglob("config.json") if "bf16" in str(path)]
        real = Path(os.path.realpath(blob))
        real.write_bytes(real.read_bytes().replace(b"64", b"65", 1))
        assert convertkit(hub, tmp_path / "home", "verify", "hf://org/drafter").returncode == 1


def test_a_release_from_the_hub(hub: Hub, tmp_path: Path) -> None:
    text = LOSSY.replace('source = "drafter"', 'source = "hf://org/drafter/bf16"')
    text = text.replace('files = ["drafter/LICENSE", "drafter/NOTICE"]', "")
    (tmp_path / "recipe.toml").write_text(text)
    done = convertkit(hub, tmp_path / "home", "release", tmp_path / "recipe.toml", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    sources = json.loads((tmp_path / "out" / "MANIFEST.json").read_bytes())["source"]["files"]
    assert {(item["repo"], item["revision"]) for item in sources} == {("hf:org/drafter", COMMIT)}


def test_headers_alone_are_compared(hub: Hub, drafter: Path, tmp_path: Path) -> None:
    same = convertkit(hub, tmp_path, "diff", "hf://org/drafter/bf16", drafter / "bf16", "--headers")
    assert same.returncode == 0, same.stdout + same.stderr
    assert "values were not compared" in same.stdout
    other = convertkit(hub, tmp_path, "diff", "--headers", "hf://org/drafter", drafter / "bf16", "--json")
    assert other.returncode == 1, other.stderr
    document = json.loads(other.stdout)
    assert document["summary"]["dtypes"] == 15
    assert not document["values_compared"]
    assert not list(tmp_path.rglob("*.safetensors"))
    whole = convertkit(hub, tmp_path, "diff", "hf://org/drafter/bf16", drafter / "bf16", "--json")
    assert (whole.returncode, json.loads(whole.stdout)["values_compared"]) == (0, True), whole.stderr


def test_fix_keys_from_the_hub_and_like_it(hub: Hub, drafter: Path, tmp_path: Path) -> None:
    away = "layers.{i}.{rest}=blocks.{i}.{rest}"
    done = convertkit(hub, tmp_path / "home", "fix-keys", "hf://org/drafter/bf16", tmp_path / "a", "--rename", away)
    assert done.returncode == 0, done.stderr
    fresh = tmp_path / "other"
    like = ("--like", "hf://org/drafter/bf16")
    done = convertkit(hub, fresh, "fix-keys", tmp_path / "a", tmp_path / "b", *like)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "b" / "model.safetensors").read_bytes() == (drafter / "bf16/model.safetensors").read_bytes()
    assert not list(fresh.rglob("*.safetensors"))
    cached = {path: path.read_bytes() for path in (tmp_path / "home").rglob("*") if path.is_file()}
    refused = convertkit(hub, tmp_path / "home", "fix-keys", "hf://org/drafter/bf16", "--in-place", "--rename", away)
    assert refused.returncode != 0
    assert {path: path.read_bytes() for path in (tmp_path / "home").rglob("*") if path.is_file()} == cached


HEADERS = """
import sys
import convertkit
from convertkit.verbs.release_init import release_init

address, out = "hf://org/drafter/bf16", sys.argv[1]
assert convertkit.inspect(address)["layout"]["name"] == "dflash2"
assert convertkit.audit(address, against="hf://org/drafter/bf16").status == 0
assert convertkit.diff(address, b=address, headers=True).status == 0
text = release_init(address, target_id="Qwen/Qwen3.8-27B", output=out + "/recipe.toml")
assert 'source = "hf://org/drafter/bf16"' in text
"""

WHOLE = """
import sys
import convertkit
from convertkit.conversion.repair_work import RepairRequest
from convertkit.verbs.drafters import to_dflash

address, out = "hf://org/drafter/bf16", sys.argv[1]
convertkit.pack_nvfp4(address, out + "/packed")
convertkit.dequant("hf://org/drafter", out + "/dense")
convertkit.convert(source="hf://org/drafter", out=out + "/ct", to="nvfp4-ct")
convertkit.repair(address, out + "/repaired", RepairRequest(shard_bytes=100_000))
assert convertkit.gate(out + "/packed", address).status == 0
convertkit.fix_keys(address, out + "/renamed", rename=["layers.{i}.{rest}=blocks.{i}.{rest}"])
to_dflash(address, out + "/dflash")
assert convertkit.verify("hf://org/drafter").status == 0
"""


def python(hub: Hub, home: Path, text: str, *words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", text, *map(str, words)]
    return subprocess.run(command, cwd=ROOT, env=settings(hub, home), capture_output=True, text=True, check=False)


def test_the_functions_take_addresses(hub: Hub, drafter: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    done = python(hub, tmp_path / "home", HEADERS, tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert not list((tmp_path / "home").rglob("*.safetensors"))
    done = python(hub, tmp_path / "home", WHOLE, tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out/packed/model.safetensors").read_bytes() == (drafter / "model.safetensors").read_bytes()
    made = convertkit(hub, tmp_path / "home", "release", tmp_path / "out/recipe.toml", tmp_path / "made")
    assert made.returncode == 0, made.stderr


def test_addresses() -> None:
    assert parse_address("hf://org/name") == Address("org/name", "main", "")
    assert parse_address("hf://org/name@v1.0/a/b/") == Address("org/name", "v1.0", "a/b")
    for text in ("hf://org", "hf://org/name/../x", "hf://org/name@", "hf:///x", "hf://a/b/c\\d"):
        with pytest.raises(ConvertError, match="E_USAGE"):
            parse_address(text)


def test_the_origin_of_a_cached_folder(tmp_path: Path) -> None:
    snapshot = tmp_path / "hub" / "models--org--name" / "snapshots" / COMMIT
    assert origin_of(snapshot / "bf16") == {"repo": "hf:org/name", "revision": COMMIT}
    assert origin_of(snapshot) == {"repo": "hf:org/name", "revision": COMMIT}
    assert origin_of(tmp_path / "models--org--name" / "snapshots" / "main") == {}


def test_weights_that_pytorch_pickled_come_from_the_hub_too(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file

    generate("dflash2", tmp_path / "dense")
    (tmp_path / "repo").mkdir()
    torch.save(load_file(tmp_path / "dense" / "model.safetensors"), tmp_path / "repo" / "pytorch_model.bin")
    shutil.copy(tmp_path / "dense" / "config.json", tmp_path / "repo")
    with serve(tmp_path / "repo") as hub:
        done = convertkit(hub, tmp_path / "home", "from-torch", "hf://org/drafter", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert digest(tmp_path / "out" / "model.safetensors") == digest(tmp_path / "dense" / "model.safetensors")
    source = json.loads((tmp_path / "out" / "MANIFEST.json").read_text())["source"]["files"]
    assert {item["path"]: item.get("revision") for item in source}["pytorch_model.bin"] == COMMIT


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def release_repo(tmp_path: Path) -> Path:
    """A repository with a pack, its manifest and what a hub adds."""
    generate("dflash2", tmp_path / "dense")
    pack_nvfp4(tmp_path / "dense", tmp_path / "repo", options=Options(workers=2))
    (tmp_path / "repo" / ".gitattributes").write_text("*.safetensors filter=lfs\n")
    return tmp_path / "repo"


def test_verify_without_downloading_the_weights(release_repo: Path, tmp_path: Path) -> None:
    words = ("verify", "hf://org/drafter", "--no-download")
    with serve(release_repo) as hub:
        done = convertkit(hub, tmp_path / "home", *words, "--json")
        assert done.returncode == 0, done.stdout + done.stderr
        document = json.loads(done.stdout)
        check_document(document)
        assert document["summary"]["files_ok"] == document["summary"]["files"] == 9
        assert document["summary"]["allowed"] == [".gitattributes"]
        (note,) = document["findings"]
        assert (note["code"], note["data"]["files"]) == ("N_STATED_DIGESTS", ["model.safetensors"])
        assert not any(".safetensors" in name for name in hub.requests), hub.requests
        assert convertkit(hub, tmp_path / "home", *words, "--strict").returncode == 1  # .gitattributes
        for more in ("--card", "--recompute"):
            assert convertkit(hub, tmp_path / "home", *words, more).returncode == 2
        assert convertkit(hub, tmp_path / "home", "verify", release_repo, "--no-download").returncode == 2


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda root: (root / "model.safetensors").write_bytes(flipped(root / "model.safetensors")), "E_DIGEST"),
        (lambda root: (root / "model.safetensors").write_bytes(b"short"), "E_SIZE"),
        (lambda root: (root / "model.safetensors").unlink(), "E_FILE_MISSING"),
        (lambda root: (root / "config.json").write_bytes(flipped(root / "config.json")), "E_DIGEST"),
        (lambda root: (root / "SHA256SUMS").write_bytes(b"nonsense"), "E_MANIFEST_LINE"),
        (lambda root: shutil.copy(root / "model.safetensors", root / "more.safetensors"), "E_FILE_EXTRA"),
        (lambda root: [(root / name).unlink() for name in ("MANIFEST.json", "SHA256SUMS")], "E_MANIFEST_MISSING"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_repository_shows_without_its_weights(
    release_repo: Path, tmp_path: Path, change: Any, code: str
) -> None:
    change(release_repo)
    with serve(release_repo) as hub:
        done = convertkit(hub, tmp_path / "home", "verify", "hf://org/drafter", "--no-download", "--json")
        found = json.loads(done.stdout)
        assert not any(".safetensors" in name for name in hub.requests), hub.requests
    assert done.returncode == found["status"] != 0
    assert code in {item["code"] for item in found["findings"] if item["severity"] == "error"}, found["findings"]


def flipped(path: Path) -> bytes:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    return bytes(data)
