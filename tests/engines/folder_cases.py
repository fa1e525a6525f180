"""Folders whose files do not belong together, or cannot be read: what engines choose their weights from.

What their loaders do with each is in ``golden/*-folders.json``; ``engines/files.py`` must say the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from convertkit.checkpoint import TensorSpec
from convertkit.containers.safetensors import encode_header
from tests.engines.cases import slug
from tests.engines.drafters import Draft, H, draft, value_of, write
from tests.engines.target_cases import model

FIRST, SECOND = "model-1.safetensors", "model-2.safetensors"
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
Change = Callable[[Path], object]


def halves(made: Draft, first: str = FIRST, second: str = SECOND) -> Draft:
    """Every other tensor in a second file."""
    made.files = {name: second if number % 2 else first for number, name in enumerate(sorted(made.specs))}
    return made


def weights(folder: Path, name: str, specs: Mapping[str, TensorSpec]) -> None:
    """One more weight file."""
    header = encode_header(list(specs.values()), {"format": "pt"})
    (folder / name).write_bytes(header.prefix + b"".join(value_of(spec) for spec in header.order))


def index(**edit: Any) -> Change:
    """Other keys of the index; one that is None is removed."""

    def change(folder: Path) -> None:
        document = json.loads((folder / INDEX).read_text()) | edit
        (folder / INDEX).write_text(json.dumps({key: value for key, value in document.items() if value is not None}))

    return change


def mapped(edit: Callable[[dict[str, Any]], object]) -> Change:
    """A change of the map from names to files."""

    def change(folder: Path) -> None:
        document = json.loads((folder / INDEX).read_text())
        edit(document["weight_map"])
        (folder / INDEX).write_text(json.dumps(document))

    return change


def removed(*names: str) -> Change:
    def change(folder: Path) -> None:
        for name in names:
            (folder / name).unlink()

    return change


def renamed(old: str, new: str) -> Change:
    return lambda folder: (folder / old).rename(folder / new)


def text(name: str, content: str | bytes) -> Change:
    return lambda folder: (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)


def cut(name: str, size: int) -> Change:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:size])


def longer(name: str) -> Change:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes() + b"\0" * 8)


def header(edit: Callable[[str], str]) -> Change:
    """The header of the single file as changed text."""

    def change(folder: Path) -> None:
        data = (folder / SINGLE).read_bytes()
        end = 8 + int.from_bytes(data[:8], "little")
        new = edit(data[8:end].decode()).encode()
        (folder / SINGLE).write_bytes(len(new).to_bytes(8, "little") + new + data[end:])

    return change


def config(edit: Callable[[str], str | bytes]) -> Change:
    def change(folder: Path) -> None:
        new = edit((folder / "config.json").read_text())
        (folder / "config.json").write_bytes(new.encode() if isinstance(new, str) else new)

    return change


def also(name: str, *, wide: int = H, prefix: str = "") -> Change:
    """One more file with a norm that another file holds too."""
    return lambda folder: weights(folder, name, {"n": TensorSpec(f"{prefix}norm.weight", "BF16", (wide,))})


def _copy(name: str) -> Change:
    return lambda folder: (folder / name).write_bytes((folder / SINGLE).read_bytes())


ONE_FILE: Mapping[str, Change] = {
    "whole": lambda folder: None,
    "another name": renamed(SINGLE, "weights.safetensors"),
    "upper case": renamed(SINGLE, "model.SAFETENSORS"),
    "hidden": renamed(SINGLE, ".model.safetensors"),
    "consolidated alone": renamed(SINGLE, "consolidated.safetensors"),
    "consolidated beside": _copy("consolidated.safetensors"),
    "consolidated part": also("consolidated.00.safetensors"),
    "a copy beside": _copy("other.safetensors"),
    "a norm beside": also("z.safetensors"),
    "a wide norm before": also("a.safetensors", wide=2 * H),
    "a wide norm beside": also("z.safetensors", wide=2 * H),
    "a narrow norm beside": also("z.safetensors", wide=H // 2),
    "an unknown name beside": also("z.safetensors", prefix="nothing."),
    "hidden beside": also(".z.safetensors", prefix="nothing."),
    "index without weights": text(INDEX, "{}"),
    "index of nothing": text(INDEX, '{"metadata": {}, "weight_map": {}}'),
    "index of another": text("other.safetensors.index.json", '{"metadata": {}, "weight_map": {"a": "b.safetensors"}}'),
    "cut short": cut(SINGLE, 4000),
    "cut in the header": cut(SINGLE, 40),
    "cut to nothing": cut(SINGLE, 0),
    "longer": longer(SINGLE),
    "a page": text(SINGLE, "<!doctype html><html></html>"),
    "a pointer": text(SINGLE, "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"),
    "header with a tensor twice": header(lambda old: old.replace("{", '{"a":{"dtype":"F32","shape":[0],'
        '"data_offsets":[0,0]},"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},', 1)),
    "header with an unknown field": header(lambda old: old.replace('"dtype":"BF16"', '"x":1,"dtype":"BF16"', 1)),
    "header of an unknown type": header(lambda old: old.replace('"dtype":"BF16"', '"dtype":"BF17"', 1)),
    "header with numbers in metadata": header(lambda old: old.replace('"format":"pt"', '"format":1', 1)),
    "header without metadata": header(lambda old: old.replace('"__metadata__":{"format":"pt"},', "", 1)),
    "config with a comma": config(lambda old: old.replace("}", ",}")),
    "config with a key twice": config(lambda old: old.replace("{", '{"hidden_size": 7, ', 1)),
    "config with a mark": config(lambda old: b"\xef\xbb\xbf" + old.encode()),
    "config with infinity": config(lambda old: old.replace("{", '{"x": Infinity, ', 1)),
    "config as a list": config(lambda old: f"[{old}]"),
    "config empty": config(lambda old: ""),
    "config of nothing": config(lambda old: "{}"),
    "config in UTF-16": config(lambda old: old.encode("utf-16")),
    "no config": removed("config.json"),
}  # fmt: skip
"""Changes of a folder with ``model.safetensors``."""


def _lost(values: dict[str, Any]) -> None:
    name = next(name for name, file in values.items() if file == SECOND)
    del values[name]


TWO_FILES: Mapping[str, Change] = {
    "no index": removed(INDEX),
    "whole": lambda folder: None,
    "a lost file": removed(SECOND),
    "a lost file and index": removed(SECOND, INDEX),
    "no metadata": index(metadata=None),
    "metadata a list": index(metadata=[]),
    "total wrong": index(metadata={"total_size": 1}),
    "total a word": index(metadata={"total_size": "x"}),
    "no weight map": index(weight_map=None),
    "weight map a list": index(weight_map=[FIRST, SECOND]),
    "weight map empty": index(weight_map={}),
    "index a list": text(INDEX, "[]"),
    "index not JSON": text(INDEX, "{"),
    "one file only": mapped(lambda values: [values.pop(name) for name, file in [*values.items()] if file == SECOND]),
    "a tensor not listed": mapped(_lost),
    "a tensor listed that is not there": mapped(lambda values: values.update(nothing=FIRST)),
    "tensors listed in the other file": mapped(
        lambda values: values.update({name: FIRST if file == SECOND else SECOND for name, file in values.items()})),
    "a file as a number": mapped(lambda values: values.update(nothing=7)),
    "a file with a path": mapped(lambda values: values.update({name: f"./{file}" for name, file in values.items()})),
    "a file in a folder": mapped(lambda values: values.update(nothing="sub/x.safetensors")),
    "a file not listed": also("extra.safetensors", prefix="nothing."),
    "a single file not listed": also(SINGLE, prefix="nothing."),
    "index of another name": renamed(INDEX, "diffusion.safetensors.index.json"),
    "index of another name, a file not listed": lambda folder: (
        renamed(INDEX, "other.safetensors.index.json")(folder), also("extra.safetensors", prefix="nothing.")(folder)),
    "two indexes": text("other.safetensors.index.json", '{"metadata": {}, "weight_map": {"a": "b.safetensors"}}'),
    "second cut short": cut(SECOND, 100),
}  # fmt: skip
"""Changes of a folder with two files and an index."""


def folder_cases() -> Iterator[tuple[str, Callable[[Path], Path]]]:
    """Every case by name: what writes its folder. Drafters first, then models that stand alone."""
    for kind, make in WHOLE.items():
        for name, change in ONE_FILE.items():
            yield f"{kind}, {name}", _writer(make, change)
        for name, change in TWO_FILES.items():
            yield f"{kind}, two files, {name}", _writer(make, change, (FIRST, SECOND), indexed=True)
    order = "model-2.safetensors", "model-10.safetensors"
    yield "dflash, ten after two", _writer(WHOLE["dflash"], also("model-3.safetensors", wide=2 * H), order)


WHOLE: Mapping[str, Callable[[], Draft]] = {"dflash": lambda: draft("dflash"), "qwen3": lambda: model("qwen3")}


def _writer(
    make: Callable[[], Draft], change: Change, files: tuple[str, ...] = (), *, indexed: bool = False
) -> Callable[[Path], Path]:
    def written(folder: Path) -> Path:
        made = halves(make(), *files) if files else make()
        made.index = indexed
        write(made, folder)
        change(folder)
        return folder

    return written


def write_folders(out: Path) -> None:
    """Drafters below ``out/folders``, models below ``out/model-folders``."""
    for name, writer in folder_cases():
        writer(out / ("folders" if name.startswith("dflash") else "model-folders") / slug(name))
