"""Reading a model card back: every size, digest, tensor count and exactness that it states, compared with the files.

Tables are known by their column names (those that ``release.card`` writes); in running text a digest is any 64 hex
digits, and ``N bytes``, ``N tensors``, ``N differing elements`` and ``N of M elements differ`` are claims. What a card
says about anything else is not looked at.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from convertkit.errors import Finding, finding, shown
from convertkit.release.paths import folder_of
from convertkit.release.summary import EXPANSION, GATE, grid_of
from convertkit.release.words import SIZE, size_fits

HEX = re.compile(r"(?<![0-9A-Za-z])[0-9a-fA-F]{64}(?![0-9A-Za-z])")
NUMBER = r"(?<![0-9.,])([0-9][0-9,]*)"
BYTES = re.compile(NUMBER + r" bytes\b")
TENSORS = re.compile(NUMBER + r" tensors\b")
DIFFERING = re.compile(NUMBER + r"(?: of ([0-9][0-9,]*))? (?:differing elements|elements differ)\b")
FENCE = re.compile(r"^(```|~~~)")
WEIGHTS = (".safetensors", ".gguf")
FIX = "make the card anew from the reports, or correct it, then run `convertkit manifest`"


@dataclass(frozen=True)
class Reality:
    """What a card is compared with. Paths are those that the card uses. ``sizes`` in bytes and ``digests`` of files;
    ``tensors`` counts by weight file; ``known`` are all other digests of the release; ``reports`` with their rows."""

    sizes: Mapping[str, int]
    digests: Mapping[str, str]
    tensors: Mapping[str, int]
    known: frozenset[str] = frozenset()
    reports: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def weights_of(self, folder: str) -> list[str]:
        """Weight files that lie in a folder itself."""
        return [path for path in self.sizes if path.endswith(WEIGHTS) and folder_of(path) == folder]


@dataclass(frozen=True)
class CardCheck:
    """How many claims were compared, and what is not so."""

    claims: int
    findings: tuple[Finding, ...]


def exactness_of(name: str, report: Mapping[str, Any]) -> tuple[int, int] | None:
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
    lines = _without_front_matter(text.splitlines())
    exact = {name: exactness_of(name.rpartition("/")[2], report) for name, report in reality.reports.items()}
    columns: list[str] | None = None
    fenced = False
    for number, line in enumerate(lines):
        if FENCE.match(line.lstrip()):
            fenced = not fenced
        cells = _cells(line)
        following = lines[number + 1] if number + 1 < len(lines) else ""
        if not fenced and cells is not None and _is_rule(following):
            columns = [cell.lower() for cell in cells]
        elif not fenced and cells is not None and columns is not None and not _is_rule(line):
            yield from _row_claims(dict(zip(columns, cells, strict=False)), reality, exact)
        elif cells is None:
            columns = None
        yield from _digest_claims(line, reality)
        if not fenced and cells is None:
            yield from _text_claims(line, reality, exact)


def _without_front_matter(lines: list[str]) -> list[str]:
    if lines and lines[0].strip() == "---" and "---" in lines[1:]:
        return lines[lines.index("---", 1) + 1 :]
    return lines


def _cells(line: str) -> list[str] | None:
    """The cells of a table's row without code marks, or None."""
    inner = line.strip()
    if not (inner.startswith("|") and inner.endswith("|") and len(inner) > 1):
        return None
    parts = re.split(r"(?<!\\)\|", inner[1:-1])
    return [part.strip().strip("`").replace("\\|", "|").strip() for part in parts]


def _is_rule(line: str) -> bool:
    cells = _cells(line)
    return bool(cells) and all(re.fullmatch(r":?-{2,}:?", cell) for cell in cells or ())


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
