"""``release init``: a commented recipe for a checkpoint, made from what is found in it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from convertkit.checkpoint import Checkpoint
from convertkit.containers.files import read_small
from convertkit.containers.folder import open_checkpoint
from convertkit.conversion.identify import Identity, identify
from convertkit.engines.rules import ENGINES
from convertkit.errors import check_text, refusal
from convertkit.hub.address import is_address
from convertkit.release.paths import CARD
from convertkit.release.recipe import SCHEMA

LEGAL = ("LICENSE", "LICENSE.txt", "LICENSE.md", "NOTICE", "NOTICE.txt")


def release_init(
    source: str | os.PathLike[str],
    *,
    target_model: str | os.PathLike[str] | None = None,
    target_id: str | None = None,
    output: str | os.PathLike[str] | None = None,
    force: bool = False,
) -> str:
    """The text of a recipe for ``source``; written to ``output`` if that is given, with paths relative to it.

    Source and target may be addresses on the hub, of which headers are read. They stay addresses in the recipe.
    A dense drafter or model gets the seeds of a release: the NVFP4 pack in the root and its expansion in ``bf16/``; a
    drafter with a target a GGUF too. Raises ``ConvertError``: E_OUT_EXISTS, E_WRITE, and as opening the source.
    """
    base = Path.cwd() if output is None else Path(output).resolve().parent
    checkpoint = open_checkpoint(_here(source))
    target = None if target_model is None else _spelled(target_model, base)
    text = "\n".join(_lines(checkpoint, _spelled(source, base), base, target, target_id)) + "\n"
    if output is not None:
        _write(Path(output), text, force)
    return text


def _write(place: Path, text: str, force: bool) -> None:
    try:
        with place.open("w" if force else "x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError:
        raise refusal("E_OUT_EXISTS", "the recipe exists", file=place.name, fix="use --force") from None
    except OSError as error:
        raise refusal("E_WRITE", f"cannot write: {error.strerror}", file=place.name) from None


def _quoted(value: Any) -> str:
    """A TOML basic string: JSON's escapes are TOML's, which wants DEL escaped too. Raises E_USAGE for surrogates."""
    check_text(str(value), "what the recipe would name")
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")


def _here(source: str | os.PathLike[str]) -> Path:
    """A folder; of one on the hub, its headers."""
    if not is_address(str(source)):
        return Path(source)
    from convertkit.hub.download import fetch

    return fetch(str(source), headers_only=True)


def _spelled(place: str | os.PathLike[str], base: Path) -> str:
    """A path or address as a recipe in ``base`` says it."""
    return _quoted(place) if is_address(str(place)) else _relative(Path(place), base)


def _relative(path: Path, base: Path) -> str:
    return _quoted(os.path.relpath(path.resolve(), base.resolve()))


def _lines(checkpoint: Checkpoint, source: str, base: Path, target: str | None, target_id: str | None) -> Iterator[str]:
    """``source`` and ``target`` as the recipe spells them."""
    identity = identify(checkpoint)
    called = checkpoint.root.resolve().name.removesuffix("-bf16")
    name = re.sub(r"[^0-9A-Za-z._-]+", "-", called).strip("._-")[:96] or "release"
    drafter = identity.kind == "drafter"
    yield "# A recipe for `convertkit release`. Paths are relative to this file."
    what = f"{identity.layout.name} ({identity.kind}), {identity.dialect}"
    yield f"# The source is {what}: {len(checkpoint.tensors)} tensors."
    yield f"schema = {_quoted(SCHEMA)}"
    yield f"name = {_quoted(name)}"
    yield '# version = "1.0.0"'
    yield f"source = {source}"
    yield f"target_model = {target}" if target else '# target_model = "target"  # a GGUF needs it'
    yield f"target_id = {_quoted(target_id)}" if target_id else '# target_id = "ORG/NAME"'
    yield '# supersedes = "old-release"  # users of the old files are told so by `convertkit verify`'
    local = not is_address(source.strip('"'))
    files = [_relative(checkpoint.root / item, base) for item in LEGAL if local and item in checkpoint.side_files]
    yield f"files = [{', '.join(files)}]"
    yield ""
    yield from _variants(identity, target)
    yield "# Compare a variant with another checkpoint; with judge = true the thresholds must hold for it too, with"
    yield "# drop_in = true the variant must have its names, shapes and meaning."
    yield '# [[references]]\n# name = "the drafter before"\n# path = "old-bf16"\n# variant = "."\n# judge = false'
    yield ""
    yield from _engines(drafter)
    yield "# Limits of the fidelity gate, as in `convertkit gate --help`."
    yield "[thresholds]\n# max_rel_rms = 0.125\n"
    yield from _card(identity, name, target_id, _license(checkpoint))


def _license(checkpoint: Checkpoint) -> str | None:
    """The licence that the source's own card states in its front matter."""
    if CARD not in checkpoint.side_files:
        return None
    text = read_small(checkpoint.root, CARD).decode("utf-8", "replace")
    front = re.match(r"---\n(.*?)\n---\n", text, re.DOTALL)
    found = re.search(r"""^license: *["']?([A-Za-z0-9.+-]+)["']? *$""", front[1] if front else "", re.MULTILINE)
    return found[1] if found else None


def _variants(identity: Identity, target: str | None) -> Iterator[str]:
    yield '# Variants are made in this order. folder "." is the root; from is "source" or the folder of one above.'
    if identity.packed:
        yield f'[[variants]]\nfolder = "."\nformat = {_quoted(_packed_format(identity))}\n'
    else:
        yield '[[variants]]\nfolder = "."\nformat = "nvfp4-modelopt-mixed"'
        yield 'scales = "auto"  # without loss where the weights lie on an NVFP4 grid, amax elsewhere\n'
    yield '[[variants]]\nfolder = "bf16"\nformat = "bf16"\nfrom = "."'
    yield '# against = "source"  # for weights on a grid: a single differing element fails the release\n'
    start = "" if target is not None and identity.kind == "drafter" else "# "
    lines = ("[[variants]]", 'folder = "gguf"', 'format = "gguf"', 'from = "bf16"', 'type = "bf16"')
    yield "\n".join(f"{start}{line}" for line in lines) + "\n"


def _packed_format(identity: Identity) -> str:
    names = {"modelopt": "nvfp4-modelopt", "modelopt-mixed": "nvfp4-modelopt-mixed", "compressed-tensors": "nvfp4-ct"}
    return names[identity.dialect]


def _engines(drafter: bool) -> Iterator[str]:
    yield "# Engines to audit each variant with. One that is named in variants must load, or the release fails."
    names = [name for name in ENGINES if name != "transformers"] if drafter else ["vllm"]
    for name in names:
        yield f'[[engines]]\nname = {_quoted(name)}\nversion = {_quoted(ENGINES[name].proven[0])}\n# variants = ["."]\n'


def _card(identity: Identity, name: str, target_id: str | None, license_: str | None) -> Iterator[str]:
    """No word of it stands for another: a recipe that nobody edited makes a card without gaps."""
    drafter = identity.kind == "drafter"
    yield "# Front matter and text of README.md. Everything in it that is a number is generated."
    yield f'[card]\ntitle = {_quoted(name)}\n# summary = "What it is, and for whom."'
    yield f"license = {_quoted(license_)}" if license_ else '# license = "apache-2.0"'
    if target_id:
        yield f"base_model = [{_quoted(target_id)}]"
    else:
        yield '# base_model = ["ORG/NAME"]'
    yield '# base_model_relation = "finetune"  # adapter, finetune, merge or quantized'
    yield 'library_name = "vllm"\npipeline_tag = "text-generation"'
    tags = ["speculative-decoding", identity.layout.name] if drafter else [identity.layout.name]
    yield f"tags = [{', '.join(map(_quoted, ['nvfp4', *tags]))}]"
