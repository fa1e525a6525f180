"""Reading a model card back: every size, digest, tensor count and exactness that it states, compared with the files.

Tables are known by their column names (those that ``release.card`` writes); the answers of engines are compared too.
In running text a digest is any 64 hex digits, and ``N bytes``, ``N tensors``, ``N differing elements`` and ``N of M
elements differ`` are claims. What a card says about anything else is not looked at.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from convertkit.errors import Finding, finding, shown
from convertkit.release.card_lines import card_lines
from convertkit.release.paths import folder_of
from convertkit.release.summary import EXPANSION, GATE, grid_of
from convertkit.release.words import SIZE, size_fits

HEX = re.compile(r"(?<![0-9A-Za-z])[0-9a-fA-F]{64}(?![0-9A-Za-z])")
NUMBER = r"(?<![0-9.,])([0-9][0-9,]*)"
BYTES = re.compile(NUMBER + r" bytes\b")
TENSORS = re.compile(NUMBER + r" tensors\b")
DIFFERING = re.compile(NUMBER + r"(?: of ([0-9][0-9,]*))? (?:differing elements|elements differ)\b")
WEIGHTS = (".safetensors", ".gguf")
FIX = "make the card anew from the reports, or correct it, then run `convertkit manifest`"


@dataclass(frozen=True)
class Reality:
    """What a card is compared with. Paths are those that the card uses. ``sizes`` in bytes and ``digests`` of files;
    ``tensors`` counts by weight file; ``known`` are all other digests of the release; ``reports`` with their rows;
    ``engines`` are answers by title, version and folder."""

    sizes: Mapping[str, int]
    digests: Mapping[str, str]
    tensors: Mapping[str, int]
    known: frozenset[str] = frozenset()
    reports: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    engines: Mapping[tuple[str, str, str], str] = field(default_factory=dict)

    def weights_of(self, folder: str) -> list[str]:
        """Weight files that lie in a folder itself."""
        return [path for path in self.sizes if path.endswith(WEIGHTS) and folder_of(path) == folder]


@dataclass(frozen=True)
class CardCheck:
    """How many claims were compared, and what is not so."""

    claims: int
    findings: tuple[Finding, ...]


def _exactness_of(name: str, report: Mapping[str, Any]) -> tuple[int, int] | None:
    """(elements, differing elements) that a report shows, or None if it is not about exactness."""
    if name == EXPANSION:
        return report["summary"]["elements"], report["summary"]["differing"]
    grid = grid_of(report.get("rows", ())) if name == GATE else None
    return None if grid is None else (grid["elements"], grid["differing"])


def check_card(data: bytes, path: str, reality: Reality) -> CardCheck:
    """Compare the card ``data`` at ``path``. Codes: E_CARD, W_CARD_EMPTY."""
    claims = list(_claims(data.decode("utf-8", "replace"), reality))
    found = [finding("E_CARD", "error", message, file=path, fix=FIX) for message in claims if message]
    if not claims:
        found.append(finding("W_CARD_EMPTY", "warning", "nothing on the card could be compared", file=path))
    return CardCheck(len(claims), tuple(found))


def _claims(text: str, reality: Reality) -> Iterator[str]:
    """Each claim as an empty string if it is so, else as what is wrong."""
    exact = {name: _exactness_of(name.rpartition("/")[2], report) for name, report in reality.reports.items()}
    for line in card_lines(text):
        yield from _row_claims(line.row, reality, exact)
        yield from _digest_claims(line.text, reality)
        if line.is_text:
            yield from _text_claims(line.text, reality, exact)


def _whole(text: str) -> int | None:
    return int(text.replace(",", "")) if re.fullmatch(r"[0-9][0-9,]{0,30}", text) else None


def _digest_claims(line: str, reality: Reality) -> Iterator[str]:
    everything = {*reality.digests.values(), *reality.known}
    for match in HEX.finditer(line):
        stated = match[0].lower()
        yield "" if stated in everything else f"no file, tensor or source has the digest {stated}"


def _text_claims(
    line: str, reality: Reality, exact: Mapping[str, tuple[int, int] | None]
) -> Iterator[str]:  # fmt: skip
    sizes, counts = set(reality.sizes.values()), set(reality.tensors.values())
    for folder in {folder_of(path) for path in reality.sizes}:
        weights = reality.weights_of(folder)
        sizes.add(sum(reality.sizes[path] for path in weights))
        counts.add(sum(reality.tensors.get(path, 0) for path in weights))
    for match in BYTES.finditer(line):
        yield "" if _whole(match[1]) in sizes else f"nothing has {match[1]} bytes"
    for match in TENSORS.finditer(line):
        yield "" if _whole(match[1]) in counts else f"nothing has {match[1]} tensors"
    pairs = [pair for pair in exact.values() if pair is not None]
    for match in DIFFERING.finditer(line):
        fits = any(
            _whole(match[1]) == differing and (match[2] is None or _whole(match[2]) == elements)
            for elements, differing in pairs
        )
        yield "" if fits else f"no report shows '{match[0]}'"


def _row_claims(
    row: Mapping[str, str], reality: Reality, exact: Mapping[str, tuple[int, int] | None]
) -> Iterator[str]:  # fmt: skip
    if "file" in row and {"bytes", "sha256", "tensors", "size"} & row.keys():
        yield from _file_claims(row["file"], row, reality)
    elif "folder" in row and {"bytes", "tensors", "size"} & row.keys():
        folder = row["folder"].rstrip("/").removeprefix(".")
        weights = reality.weights_of(folder)
        if not weights:
            yield f"there are no weights in '{shown(row['folder'])}'"
            return
        size = sum(reality.sizes[path] for path in weights)
        yield from _number_claims(row["folder"], row, size, sum(reality.tensors.get(path, 0) for path in weights))
    elif "report" in row and "differing elements" in row:
        yield from _report_claims(row, reality, exact)
    elif "folder" in row and "engine" in row and "answer" in row:
        yield from _engine_claims(row, reality)


def _file_claims(path: str, row: Mapping[str, str], reality: Reality) -> Iterator[str]:
    if path not in reality.sizes:
        yield f"there is no file '{shown(path)}'"
        return
    yield from _number_claims(path, row, reality.sizes[path], reality.tensors.get(path))
    if "sha256" in row:
        same = row["sha256"].lower() == reality.digests.get(path)
        yield "" if same else f"'{shown(path)}' has another sha256 than stated"


def _number_claims(name: str, row: Mapping[str, str], size: int, tensors: int | None) -> Iterator[str]:
    if "bytes" in row:
        yield "" if _whole(row["bytes"]) == size else f"'{shown(name)}' has {size:,} bytes, not {shown(row['bytes'])}"
    if "size" in row and SIZE.fullmatch(row["size"]):
        yield "" if size_fits(row["size"], size) else f"'{shown(name)}' has {size:,} bytes, not {shown(row['size'])}"
    if "tensors" in row and tensors is not None:
        right = _whole(row["tensors"]) == tensors
        yield "" if right else f"'{shown(name)}' has {tensors:,} tensors, not {shown(row['tensors'])}"


def _report_claims(
    row: Mapping[str, str], reality: Reality, exact: Mapping[str, tuple[int, int] | None]
) -> Iterator[str]:  # fmt: skip
    name = row["report"]
    if name not in reality.reports:
        if name not in reality.sizes:
            yield f"there is no report '{shown(name)}'"
        return  # it is part of the release and was not downloaded
    pair = exact[name]
    if pair is None:
        yield f"'{shown(name)}' says nothing about exactness"
        return
    for column, value in (("elements", pair[0]), ("differing elements", pair[1])):
        if column in row:
            right = _whole(row[column]) == value
            yield "" if right else f"'{shown(name)}' shows {value:,} {column}, not {shown(row[column])}"


def _engine_claims(row: Mapping[str, str], reality: Reality) -> Iterator[str]:
    """The answer of an engine is that of RELEASE_REPORT.json, where there is one."""
    if not reality.engines:
        return
    name = (row["engine"], row.get("version", ""), row["folder"])
    said = reality.engines.get(name)
    if said is None:
        yield f"no report says what {shown(' '.join(name))} does"
    else:
        yield "" if row["answer"] == said else f"{shown(' '.join(name))}: the report says '{said}'"
