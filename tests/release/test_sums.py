from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convertkit.errors import ConvertError
from convertkit.release.paths import path_fault
from convertkit.release.sums import read_sums, write_sums
from tests.release.makers import put, sha256

A, B = "a" * 64, "0123456789abcdef" * 4


def codes(data: bytes, file: str = "SHA256SUMS") -> list[str]:
    with pytest.raises(ConvertError) as raised:
        read_sums(data, file)
    assert raised.value.status == 3
    return [item.code for item in raised.value.findings]


def test_written_form() -> None:
    assert write_sums({"b/x": A, "Z": B, "a b": A, "é": B}) == f"{B}  Z\n{A}  a b\n{A}  b/x\n{B}  é\n".encode()


@pytest.mark.parametrize(
    "text",
    [
        f"{A}  x\n{B}  d/y z\n",
        f"{A} *x\n{B} *d/y z\n",
        f"SHA256 (x) = {A}\nSHA256 (d/y z) = {B}\n",
        f"# made by hand\r\n{A.upper()}  x\r\n{B.upper()}  d/y z\r\n",
        f"{A}  ./x\n{B}  ./d/y z\n",
    ],
)
def test_accepted_forms(text: str) -> None:
    assert read_sums(text.encode()) == {"x": A, "d/y z": B}


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "E_MANIFEST_EMPTY"),
        ("# nothing\n", "E_MANIFEST_EMPTY"),
        (f"{A}  x", "E_MANIFEST_LINE"),
        (f"{A}  x\n\n", "E_MANIFEST_LINE"),
        (f"{A[1:]}  x\n", "E_MANIFEST_LINE"),
        (f"{A}a  x\n", "E_MANIFEST_LINE"),
        (f"{A} x\n", "E_MANIFEST_LINE"),
        (f"{A}\tx\n", "E_MANIFEST_LINE"),
        (f"{A}  \n", "E_MANIFEST_LINE"),
        (f"\ufeff{A}  x\n", "E_MANIFEST_LINE"),
        (f"\\{A}  a\\nb\n", "E_MANIFEST_LINE"),
        (f"MD5 (x) = {A}\n", "E_MANIFEST_LINE"),
        (f"{A}  ../x\n", "E_MANIFEST_PATH"),
        (f"{A}  a/../x\n", "E_MANIFEST_PATH"),
        (f"{A}  a/./x\n", "E_MANIFEST_PATH"),
        (f"{A}  a//x\n", "E_MANIFEST_PATH"),
        (f"{A}  a/\n", "E_MANIFEST_PATH"),
        (f"{A}  /x\n", "E_MANIFEST_PATH"),
        (f"{A}  C:x\n", "E_MANIFEST_PATH"),
        (f"{A}  a\\x\n", "E_MANIFEST_PATH"),
        (f"{A}  a\x1bx\n", "E_MANIFEST_PATH"),
        (f"{A}  a\u202ex\n", "E_MANIFEST_PATH"),
        (f"{A}  SHA256SUMS\n", "E_MANIFEST_PATH"),
        (f"{A}  ./SHA256SUMS\n", "E_MANIFEST_PATH"),
        (f"{A}  x\n{A}  x\n", "E_MANIFEST_DUP"),
        (f"{A}  x\n{B}  ./x\n", "E_MANIFEST_DUP"),
    ],
)
def test_refused_forms(text: str, code: str) -> None:
    assert codes(text.encode()) == [code]


def test_every_fault_is_named_with_its_line() -> None:
    with pytest.raises(ConvertError) as raised:
        read_sums(f"{A}  x\nnot a line\n{A}  ../y\n{A}  x\n{A}  cut".encode())
    assert [(item.code, item.message.split(":")[0]) for item in raised.value.findings] == [
        ("E_MANIFEST_LINE", "line 2"),
        ("E_MANIFEST_PATH", "line 3"),
        ("E_MANIFEST_DUP", "line 4"),
        ("E_MANIFEST_LINE", "line 5"),
    ]


def test_not_utf8_and_a_nested_file_that_lists_itself() -> None:
    assert codes(A.encode() + b"  \xff\n") == ["E_MANIFEST_LINE"]
    assert codes(f"{A}  SHA256SUMS\n".encode(), "bf16/SHA256SUMS") == ["E_MANIFEST_PATH"]


def test_unsafe_names_are_not_written() -> None:
    with pytest.raises(ConvertError) as raised:
        write_sums({"a\nb": A, "x": B, "../y": A})
    assert [item.code for item in raised.value.findings] == ["E_NAME_UNSAFE", "E_NAME_UNSAFE"]


def test_coreutils_accepts_what_is_written(tmp_path: Path) -> None:
    files = {"x": b"1", "sub/y z": b"2", "-dash": b"3", "*star": b"4", "é": b"5"}
    put(tmp_path, files)
    (tmp_path / "SHA256SUMS").write_bytes(write_sums({name: sha256(data) for name, data in files.items()}))
    checked = subprocess.run(
        ["sha256sum", "--strict", "--quiet", "-c", "SHA256SUMS"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


def test_what_coreutils_writes_is_read(tmp_path: Path) -> None:
    files = {"x": b"1", "sub/y z": b"2"}
    put(tmp_path, files)
    expected = {name: sha256(data) for name, data in files.items()}
    for options in ([], ["--binary"], ["--tag"]):
        written = subprocess.run(["sha256sum", *options, *files], cwd=tmp_path, capture_output=True, check=True).stdout
        assert read_sums(written) == expected


NAMES = st.text(min_size=1, max_size=12).filter(lambda name: path_fault(name) is None and name != "SHA256SUMS")


@given(st.dictionaries(NAMES, st.binary(min_size=32, max_size=32).map(bytes.hex), min_size=1, max_size=6))
def test_writing_and_reading_are_inverse(sums: dict[str, str]) -> None:
    assert read_sums(write_sums(sums)) == sums


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused_cleanly(data: bytes) -> None:
    try:
        sums = read_sums(data)
    except ConvertError:
        return
    assert sums
    assert all(path_fault(path) is None and len(digest) == 64 for path, digest in sums.items())
