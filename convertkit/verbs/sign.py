"""``sign``: one signature over every file of a release, by the package model-signing."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from convertkit.errors import refusal
from convertkit.release.paths import MANIFEST, SUMS
from convertkit.release.signing import sign as sign_folder


def sign(
    folder: str | os.PathLike[str],
    output: str | os.PathLike[str] | None = None,
    *,
    key: str | os.PathLike[str],
    certificate: str | os.PathLike[str] | None = None,
    chain: Sequence[str | os.PathLike[str]] = (),
) -> Path:
    """Sign ``folder`` with the private key in PEM form; with ``certificate``, as the holder of that certificate.

    The bundle goes to ``output``, ``model.sig`` in the folder if None. The folder must have its manifest, which is
    signed with everything else. Raises ``ConvertError``: E_MANIFEST_MISSING, E_BACKEND, E_SIG_KEY, E_WRITE.
    """
    root = Path(folder)
    if not all((root / name).is_file() for name in (MANIFEST, SUMS)):
        raise refusal("E_MANIFEST_MISSING", f"there is no {MANIFEST} or no {SUMS} to sign with the files",
                      fix="run `convertkit manifest` first")  # fmt: skip
    place = root / "model.sig" if output is None else Path(output)
    sign_folder(root, place, key=key, certificate=certificate, chain=chain)
    return place
