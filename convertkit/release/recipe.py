"""The recipe of a release: a TOML file that says what to make from which source, read strictly.

What a recipe may hold is in ``schemas/recipe.schema.json``; what its values mean together is checked here.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any

from convertkit.checks.fidelity import DEFAULT_LIMITS
from convertkit.conversion.plan import DEFAULT_SHARD_BYTES
from convertkit.conversion.scales import SCALES
from convertkit.engines.rules import Asked, parse_engine
from convertkit.errors import ConvertError, Finding, finding, refusal, shown
from convertkit.formats import FORMATS
from convertkit.hub.address import is_address
from convertkit.layouts.gguf_types import TYPE_NAMES
from convertkit.release.schemas import load_schema

SCHEMA = "convertkit.recipe/1"
SOURCE = "source"
GGUF = "gguf"
MAX_RECIPE_BYTES = 1 << 20
PACK_KEYS = ("scales", "include", "exclude", "fuse", "reversible_scale", "marlin_safe")
"""Keys of a variant that say how weights are packed."""


@dataclass(frozen=True)
class Variant:
    """One folder of the release. ``folder`` is empty for the root; ``made_from`` is the folder of an earlier variant,
    or None for the source; ``against`` is ``source`` or a path. The rest are the words of the verb that makes it."""

    folder: str
    format: str
    made_from: str | None = None
    against: str | None = None
    scales: str = "auto"
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    fuse: tuple[str, ...] = ()
    reversible_scale: bool = False
    marlin_safe: bool = False
    allow_loss: tuple[str, ...] = ()
    type: str = "bf16"
    pre: str | None = None
    max_shard_bytes: int = DEFAULT_SHARD_BYTES

    @property
    def title(self) -> str:
        """``.`` for the root, ``bf16/`` for a folder."""
        return f"{self.folder}/" if self.folder else "."


@dataclass(frozen=True)
class Reference:
    """Another checkpoint that a variant is compared with; with ``judge`` by the thresholds too, with ``drop_in`` by
    names, shapes and meaning, as ``audit --against`` does."""

    name: str
    path: Path
    variant: str
    judge: bool = False
    drop_in: bool = False


@dataclass(frozen=True)
class EngineWish:
    """An engine to audit every variant with; those in ``variants`` must load."""

    asked: Asked
    variants: tuple[str, ...]
    ranks: int = 1


@dataclass(frozen=True)
class Recipe:
    """A recipe with its paths resolved. ``words`` is what it says, for the record: without any path."""

    name: str
    version: str | None
    source: Path
    target_model: Path | None
    target_id: str | None
    supersedes: Path | None
    variants: tuple[Variant, ...]
    references: tuple[Reference, ...]
    engines: tuple[EngineWish, ...]
    limits: Mapping[str, float | None]
    card: Mapping[str, Any]
    files: tuple[Path, ...]
    words: Mapping[str, Any] = field(repr=False, default_factory=dict)

    def variant(self, folder: str) -> Variant:
        return next(item for item in self.variants if item.folder == folder)

    def against(self, variant: Variant) -> Path | None:
        """The checkpoint that the expansion is compared with."""
        if variant.against is None:
            return None
        return self.source if variant.against == SOURCE else Path(variant.against)


def read_recipe(path: str | os.PathLike[str]) -> Recipe:
    """Read a recipe file. Raises ``ConvertError`` with every fault: E_NOT_FOUND, E_RECIPE."""
    place = Path(path)
    try:
        with place.open("rb") as stream:
            data = stream.read(MAX_RECIPE_BYTES + 1)
    except OSError as error:
        raise refusal("E_NOT_FOUND", f"cannot read the recipe: {error.strerror}", file=place.name) from None
    if len(data) > MAX_RECIPE_BYTES:
        raise refusal("E_RECIPE", "the file is too large to be a recipe", file=place.name)
    try:
        document = tomllib.loads(data.decode("utf-8"))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise refusal("E_RECIPE", f"not TOML: {error}", file=place.name) from None
    return _parse_recipe(document, place.parent, place.name)


def _parse_recipe(document: Mapping[str, Any], base: Path, file: str = "recipe") -> Recipe:
    """A recipe from its parsed TOML; ``base`` is what paths are relative to. Raises as ``read_recipe``."""
    faults = list(_schema_faults(document, file))
    if faults:
        raise ConvertError(faults)
    variants = tuple(_variant(item, base) for item in document["variants"])
    faults = [*_variant_faults(document, variants, file), *_reference_faults(document, variants, file)]
    if faults:
        raise ConvertError(faults)
    limits = {**DEFAULT_LIMITS, **document.get("thresholds", {})}
    return Recipe(
        document["name"],
        document.get("version"),
        _checkpoint(document["source"], base),
        _checkpoint(document["target_model"], base, headers_only=True) if "target_model" in document else None,
        document.get("target_id"),
        _path(document, "supersedes", base),
        variants,
        tuple(
            Reference(
                item["name"],
                _checkpoint(item["path"], base),
                _folder(item.get("variant", ".")),
                item.get("judge", False),
                item.get("drop_in", False),
            )
            for item in document.get("references", ())
        ),
        tuple(_engine(item) for item in document.get("engines", ())),
        limits,
        document.get("card", {}),
        tuple(base / name for name in document.get("files", ())),
        _words(document),
    )


def _words(document: Mapping[str, Any]) -> dict[str, Any]:
    """The recipe without paths of this machine: what a release records of it."""
    words = {key: value for key, value in document.items() if key not in ("source", "target_model", "supersedes")}
    words["files"] = [Path(name).name for name in document.get("files", ())]
    words["references"] = [
        {key: value for key, value in item.items() if key != "path"} for item in document.get("references", ())
    ]
    words["variants"] = [
        {key: value if key != "against" or value == SOURCE else "reference" for key, value in item.items()}
        for item in document["variants"]
    ]
    words["has_target_model"] = "target_model" in document
    return {key: value for key, value in words.items() if value != []}


def _checkpoint(text: str, base: Path, *, headers_only: bool = False) -> Path:
    """A path, or what an ``hf://`` address names, fetched. Of a target config, tokenizer and headers are enough."""
    if not is_address(text):
        return base / text
    from convertkit.hub.download import fetch

    return fetch(text, headers_only=headers_only)


def _path(document: Mapping[str, Any], key: str, base: Path) -> Path | None:
    return base / document[key] if key in document else None


def _folder(name: str) -> str:
    return "" if name == "." else name


def _variant(item: Mapping[str, Any], base: Path) -> Variant:
    words: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in item.items()}
    made_from, against = words.pop("from", SOURCE), words.pop("against", None)
    folder = _folder(words.pop("folder"))
    return Variant(
        folder=folder,
        made_from=None if made_from == SOURCE else _folder(made_from),
        against=against if against in (None, SOURCE) else str(base / against),
        **words,
    )


def _engine(item: Mapping[str, Any]) -> EngineWish:
    asked = parse_engine(f"{item['name']}@{item['version']}" if "version" in item else item["name"])
    wanted = tuple(_folder(name) for name in item.get("variants", ()))
    return EngineWish(asked, wanted, item.get("tensor_parallel", 1))


def _schema_faults(document: Mapping[str, Any], file: str) -> Iterator[Finding]:
    from jsonschema import Draft202012Validator

    errors = Draft202012Validator(load_schema("recipe")).iter_errors(document)
    for error in sorted(errors, key=lambda error: list(map(str, error.path))):
        key = error.json_path.removeprefix("$").removeprefix(".")
        yield finding("E_RECIPE", "error", shown(error.message), file=file, key=key or None,
                      fix="`convertkit schema recipe` says what a recipe may hold")  # fmt: skip


def _variant_faults(document: Mapping[str, Any], variants: tuple[Variant, ...], file: str) -> Iterator[Finding]:
    """What the schema cannot say: formats, order, and words that do not go together."""
    before: list[str] = []
    for number, (variant, item) in enumerate(zip(variants, document["variants"], strict=True)):
        for key, message in _faults_of(variant, item, before):
            yield finding("E_RECIPE", "error", message, file=file, key=f"variants[{number}].{key}")
        before.append(variant.folder)


def _faults_of(variant: Variant, item: Mapping[str, Any], before: list[str]) -> Iterator[tuple[str, str]]:
    known = (*FORMATS, GGUF)
    if variant.format not in known:
        yield "format", f"'{shown(variant.format)}' is none of {', '.join(known)}"
        return
    if variant.folder.casefold() in (name.casefold() for name in before):
        yield "folder", f"another variant is in '{shown(variant.title)}' already"
    if variant.made_from is not None and variant.made_from not in before:
        yield "from", f"'{shown(item['from'])}' is neither source nor the folder of a variant above"
    packs = variant.format != GGUF and FORMATS[variant.format].grid == "NVFP4"
    wrong = [key for key in PACK_KEYS if key in item and not packs]
    wrong += [key for key in ("type", "pre") if key in item and variant.format != GGUF]
    for key in wrong:
        yield key, f"does not go with format {variant.format}"
    if variant.scales not in SCALES:
        yield "scales", f"'{shown(variant.scales)}' is none of {', '.join(SCALES)}"
    if variant.format == GGUF and variant.type not in TYPE_NAMES:
        yield "type", f"'{shown(variant.type)}' is none of {', '.join(TYPE_NAMES)}"
    if variant.against is not None and (packs or variant.made_from is None):
        yield "against", "goes with a variant that expands another one"


def _reference_faults(document: Mapping[str, Any], variants: tuple[Variant, ...], file: str) -> Iterator[Finding]:
    folders = {variant.folder for variant in variants}
    for number, item in enumerate(document.get("references", ())):
        if _folder(item.get("variant", ".")) not in folders:
            yield finding("E_RECIPE", "error", "no variant is in that folder", file=file,
                          key=f"references[{number}].variant")  # fmt: skip
    for number, item in enumerate(document.get("engines", ())):
        try:
            wish = _engine(item)
        except ConvertError as error:
            yield finding("E_RECIPE", "error", error.findings[0].message, file=file, key=f"engines[{number}]",
                          fix=error.findings[0].fix)  # fmt: skip
            continue
        for name in wish.variants:
            if name not in folders:
                yield finding("E_RECIPE", "error", f"no variant is in the folder '{shown(name)}'", file=file,
                              key=f"engines[{number}].variants")  # fmt: skip
    for key, value in document.get("thresholds", {}).items():
        wrong = "" if isfinite(value) else f"{value} is not a finite number"
        wrong = wrong if key in DEFAULT_LIMITS else f"none of {', '.join(DEFAULT_LIMITS)}"
        if wrong:
            yield finding("E_RECIPE", "error", wrong, file=file, key=f"thresholds.{key}")
    names = [Path(name).name.casefold() for name in document.get("files", ())]
    for number, name in enumerate(names):
        if name in names[:number] or name in RESERVED:
            yield finding("E_RECIPE", "error", "a file of that name is made already", file=file, key=f"files[{number}]")


RESERVED = ("readme.md", "report.html", "manifest.json", "sha256sums", "provenance.intoto.json", "config.json",
            "release_report.json", "model.safetensors")  # fmt: skip
"""Names that a release gives to files of its own, in lower case."""
