from __future__ import annotations

import pytest

from convertkit.release.paths import matches, path_fault, selected


@pytest.mark.parametrize("path", ["x", "a/b", "a b", ".hidden", "...", "é", "ab:c", "~/x", "-x"])
def test_safe_paths(path: str) -> None:
    assert path_fault(path) is None


@pytest.mark.parametrize(
    "path", ["", "/x", "..", "a/..", ".", "a//b", "a/", "a\\b", "c:/x", "a\x00", "a\x7f", "a\udc80", "a\u2067b"]
)
def test_unsafe_paths(path: str) -> None:
    assert path_fault(path) is not None


@pytest.mark.parametrize(
    ("path", "globs", "expected"),
    [
        ("bf16/model.safetensors", ["bf16/*"], True),
        ("bf16/a/b", ["bf16/*"], True),
        ("bf16/a/b", ["bf16/"], True),
        ("bf16x", ["bf16/*"], False),
        ("BF16/x", ["bf16/*"], False),
        ("a.json", ["*.txt", "*.json"], True),
    ],
)
def test_globs(path: str, globs: list[str], expected: bool) -> None:
    assert matches(path, globs) is expected


def test_only_chooses_and_leaves_out() -> None:
    paths = ["README.md", "bf16/README.md", "bf16/x"]
    assert [path for path in paths if selected(path, [])] == paths
    assert [path for path in paths if selected(path, ["!bf16/*"])] == ["README.md"]
    assert [path for path in paths if selected(path, ["bf16/*", "!*.md"])] == ["bf16/x"]
