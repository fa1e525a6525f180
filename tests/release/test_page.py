"""The page needs nothing from elsewhere, hides nothing, and takes no name for markup. A browser looks at it in
``make browser``."""

from __future__ import annotations

import base64
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from convertkit.cli.main import main
from convertkit.errors import ConvertError
from convertkit.release.page import render_page
from convertkit.release.page_charts import place_of
from convertkit.release.summary import ListedFile, View, read_view
from convertkit.verbs.case import Options
from convertkit.verbs.pack import pack_nvfp4
from convertkit.verbs.release import release
from tests.release.recipes import LOSSY, write_recipe

FIXTURE = Path(__file__).parents[2] / "fixtures" / "dflash2-tiny"


class Page(HTMLParser):
    """Tags, addresses and the text of a page."""

    def __init__(self, data: bytes) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.words: list[str] = []
        self.feed(data.decode())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("href", "src", "action", "srcset")]
        assert not any(name.startswith("on") for name, _ in attrs)

    def handle_data(self, data: str) -> None:
        self.words.append(data)


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    release(write_recipe(folder, LOSSY, on_grid=False), folder / "out", options=Options(workers=2))
    return folder / "out"


def test_nothing_comes_from_elsewhere(out: Path) -> None:
    data = (out / "REPORT.html").read_bytes()
    page = Page(data)
    assert not {"script", "img", "iframe", "object", "embed", "form", "base"} & set(page.tags)
    assert all(address.startswith(("#", "data:")) for address in page.addresses)
    assert b"url(" not in data
    assert b"@import" not in data
    assert b"default-src 'none'" in data.replace(b"&#x27;", b"'")


def test_the_verdict_comes_first_and_every_chart_has_its_numbers(out: Path) -> None:
    text = (out / "REPORT.html").read_text()
    assert text.index("Every check passed.") < text.index("<nav")
    gate = json.loads((out / "FIDELITY_GATE.json").read_bytes())
    saved = {
        name: json.loads(base64.b64decode(data))
        for name, data in re.findall(r'download="([^"]+)" href="data:application/json;base64,([^"]+)"', text)
    }
    rows = [row for row in gate["rows"] if row["scope"] == "tensor"]
    assert saved["sqnr_db.json"] == {
        "|".join(place_of(row["name"])): row["metrics"]["sqnr_db"] for row in rows
    }  # fmt: skip
    assert saved["block-scales.json"] == gate["summary"]["whole"]["block_scales"]
    assert sum(saved["codes.json"].values()) == sum(row["metrics"]["elements"] for row in rows)
    assert saved["exactness-bf16.json"]["summary"]["differing"] == 0
    assert text.count("<figure>") <= text.count("<table>")


def test_names_are_text_whatever_they_say(out: Path) -> None:
    view = read_view(out)
    evil = '"><script>alert(1)</script>\u202e'
    parts = {evil: view.parts[""]}
    page = render_page(View(evil, view.release, parts, (ListedFile(evil, 1, None),)))
    assert "script" not in Page(page).tags
    assert "\u202e" not in page.decode()


def test_a_failed_check_is_said_first(out: Path) -> None:
    view = read_view(out)
    gate = {**view.parts[""]["FIDELITY_GATE.json"], "verdict": "fail"}
    page = render_page(View(view.title, view.release, {"": {"FIDELITY_GATE.json": gate}}, view.files)).decode()
    assert "A check failed." in page
    assert "FIDELITY_GATE.json FAILED" in page


def test_any_folder_with_reports_and_two_side_by_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for scales in ("amax", "mse"):
        pack_nvfp4(FIXTURE, tmp_path / scales, scales=scales)
    monkeypatch.chdir(tmp_path)
    assert main(["report", "amax"]) == 0
    assert main(["report", "amax", "--compare", "mse"]) == 5
    assert main(["report", "amax", "--compare", "mse", "--output", "both.html"]) == 0
    text = Path("both.html").read_text()
    assert "SQNR of B minus that of A" in text
    gates = [json.loads((tmp_path / scales / "FIDELITY_GATE.json").read_bytes()) for scales in ("amax", "mse")]
    for gate in gates:
        assert f"{gate['summary']['whole']['sqnr_db']:.2f}" in text
    assert Path("REPORT.html").read_bytes() == render_page(read_view(tmp_path / "amax"))
    capfd.readouterr()


def test_a_folder_without_reports(tmp_path: Path) -> None:
    with pytest.raises(ConvertError, match="E_NO_REPORTS"):
        read_view(tmp_path)


def test_experts_of_a_layer_share_a_module() -> None:
    assert place_of("model.layers.3.mlp.experts.17.up_proj.weight") == ("3", "mlp.experts.*.up_proj")
    assert place_of("fc.weight") == ("other", "fc")
