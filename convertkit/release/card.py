"""README.md of a release: a Hugging Face model card whose every number comes from a report.

``release.card_check`` reads the numbers back; what it looks for in tables are the column names of this module.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from convertkit.release.serving import quickstarts
from convertkit.release.summary import View
from convertkit.release.words import size_text

FRONT_KEYS = ("license", "license_name", "license_link", "base_model", "base_model_relation", "library_name",
              "pipeline_tag", "language", "tags")  # fmt: skip
"""Front matter of a model card (huggingface_hub, ``ModelCardData``), in the order in which it is written."""

VERDICTS = {"loads": "loads", "wrong": "loads, but serves something else", "refused": "does not load it",
            "unknown": "unknown"}  # fmt: skip
PROOFS = {"run": "its own loader was run", "read": "its source was read", "none": "nothing is proven"}


def render_card(card: Mapping[str, Any], view: View) -> bytes:
    """The card of the whole release. ``card`` is the table of the recipe."""
    lines = [*_front_matter(card), f"# {card.get('title', view.title)}", ""]
    if "summary" in card:
        lines += [str(card["summary"]).strip(), ""]
    lines += [*_folders(view), *_engines(view), *_quickstart(view), *_exactness(view), *_references(view)]
    lines += [*_files(view), *_verifying(view)]
    if "text" in card:
        lines += [str(card["text"]).strip(), ""]
    return ("\n".join(lines).rstrip() + "\n").encode()


def render_variant_card(card: Mapping[str, Any], view: View, folder: str) -> bytes:
    """The short card of one subfolder, which must make sense when it is downloaded alone."""
    row = next(row for row in view.variants if row["folder"] == folder)
    name = folder.removesuffix("/")
    lines = [*_front_matter(card), f"# {card.get('title', view.title)}: {name}", ""]
    lines += [f"Format `{row['format']}`, made from {_made_from(row)}. It is one folder of a release; the card in the",
              "release's root says which folder is for which engine.", ""]  # fmt: skip
    lines += [*_weights_table([(file["path"], file) for file in row["weights"]]), ""]
    if row["expansion"] is not None:
        lines += [*_exactness_table([("DEQUANT_REPORT.json", row["expansion"])]), ""]
    lines += ["Check this folder: `convertkit verify .` or `sha256sum -c --strict SHA256SUMS`.", ""]
    return ("\n".join(lines).rstrip() + "\n").encode()


def _front_matter(card: Mapping[str, Any]) -> list[str]:
    """The YAML block. JSON strings are YAML strings, so nothing in a value can leave its place."""
    lines = ["---"]
    for key in FRONT_KEYS:
        value = card.get(key)
        if isinstance(value, list):
            lines += [f"{key}:", *(f"- {json.dumps(item, ensure_ascii=False)}" for item in value)] if value else []
        elif value is not None:
            lines.append(f"{key}: {json.dumps(value, ensure_ascii=False)}")
    return [*lines, "---", ""] if len(lines) > 1 else []


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> list[str]:
    """A Markdown table. Pipes in cells are escaped."""
    rule = ["--:" if place in right else "---" for place in range(len(columns))]
    cells = [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in (columns, rule, *rows)]
    return [f"| {' | '.join(row)} |" for row in cells]


def _made_from(row: Mapping[str, Any]) -> str:
    return "the source" if row["made_from"] == "source" else f"`{row['made_from']}`"


def _folders(view: View) -> Iterator[str]:
    if not view.variants:
        return
    rows = [
        (f"`{row['folder']}`", f"`{row['format']}`", _made_from(row), f"{row['tensors']:,}", f"{row['size_bytes']:,}",
         size_text(row["size_bytes"]))
        for row in view.variants
    ]  # fmt: skip
    yield "## Folders"
    yield ""
    yield from table(("folder", "format", "made from", "tensors", "bytes", "size"), rows, right=(3, 4, 5))
    yield ""


def _engines(view: View) -> Iterator[str]:
    if not view.engines:
        return
    rows = [
        (item["title"], item["version"], f"`{item['variant']}`", VERDICTS[item["verdict"]], PROOFS[item["proof"]],
         "; ".join(item["reasons"][:2]))
        for item in view.engines
    ]  # fmt: skip
    yield "## Which folder for which engine"
    yield ""
    yield from table(("engine", "version", "folder", "answer", "how it is known", "why"), rows)
    yield ""


def _quickstart(view: View) -> Iterator[str]:
    found = list(quickstarts(view))
    if not found:
        return
    yield "## Quickstart"
    yield ""
    yield "The settings follow from the checkpoint; anything else is yours to measure."
    yield ""
    for item in found:
        yield f"**{item.title}** with `{item.folder}`:"
        yield ""
        yield f"```{item.language}"
        yield from item.lines
        yield "```"
        yield ""
        yield from (f"- `{name}`: {why}" for name, why in item.reasons)
        yield ""


def _exactness(view: View) -> Iterator[str]:
    rows: list[tuple[str, Mapping[str, Any]]] = []
    for row in view.variants:
        base = "" if row["folder"] == "." else row["folder"]
        rows += [(f"{base}FIDELITY_GATE.json", row["on_grid"])] if row["on_grid"] else []
        rows += [(f"{base}DEQUANT_REPORT.json", row["expansion"])] if row["expansion"] else []
    lossy = [row for row in view.variants if row["fidelity"] is not None and row["on_grid"] is None]
    if not rows and not lossy:
        return
    yield "## Exactness"
    yield ""
    if rows:
        yield "Elements compared bit by bit: packed weights with their source, expanded weights with the exact value"
        yield "rounded once."
        yield ""
        yield from _exactness_table(rows)
        yield ""
    for row in lossy:
        what = row["fidelity"]
        if what.get("rel_rms") is not None and what.get("sqnr_db") is not None:
            yield (f"`{row['folder']}` is quantized from other values: relative RMS error {what['rel_rms']:.4f}, "
                   f"SQNR {what['sqnr_db']:.2f} dB, cosine {what['cosine']:.5f}.")  # fmt: skip
            yield ""


def _exactness_table(rows: Sequence[tuple[str, Mapping[str, Any]]]) -> list[str]:
    cells = [(f"`{report}`", f"{what['elements']:,}", f"{what['differing']:,}") for report, what in rows]
    return table(("report", "elements", "differing elements"), cells, right=(1, 2))


def _references(view: View) -> Iterator[str]:
    found = () if view.release is None else view.release["summary"]["references"]
    if not found:
        return
    rows = [
        (item["name"], f"`{item['variant']}`", _number(item["whole"].get("rel_rms"), ".4f"),
         _number(item["whole"].get("sqnr_db"), ".2f"), _number(item["whole"].get("cosine"), ".5f"))
        for item in found
    ]  # fmt: skip
    yield "## Compared with"
    yield ""
    yield from table(("checkpoint", "folder", "relative RMS", "SQNR dB", "cosine"), rows, right=(2, 3, 4))
    yield ""


def _number(value: float | None, form: str) -> str:
    return "no difference" if value is None or value == 0 else format(value, form)


def _weights_table(files: Sequence[tuple[str, Mapping[str, Any]]]) -> list[str]:
    rows = [(f"`{path}`", f"{file['size_bytes']:,}", f"`{file['sha256']}`", f"{file['tensors']:,}")
            for path, file in files]  # fmt: skip
    return table(("file", "bytes", "sha256", "tensors"), rows, right=(1, 3))


def _files(view: View) -> Iterator[str]:
    files = [
        ("" if row["folder"] == "." else row["folder"], file) for row in view.variants for file in row["weights"]
    ]  # fmt: skip
    if not files:
        return
    yield "## Files"
    yield ""
    yield from _weights_table([(f"{base}{file['path']}", file) for base, file in files])
    yield ""


def _verifying(view: View) -> Iterator[str]:
    yield "## Verify"
    yield ""
    yield "```sh"
    yield "convertkit verify . --card               # every byte, every report, and every number on this card"
    for row in view.variants:
        if row["folder"] != ".":
            name = row["folder"]
            yield f"convertkit verify . --only '!{name}*'".ljust(40) + f" # a download without {name}"
            yield f"convertkit verify {name}".ljust(40) + f" # a download of {name} alone"
    yield "sha256sum -c --strict SHA256SUMS".ljust(40) + " # without convertkit"
    yield "```"
    yield ""
    yield "`REPORT.html` shows all reports on one page; `PROVENANCE.intoto.json` states what was made from what."
    yield ""
