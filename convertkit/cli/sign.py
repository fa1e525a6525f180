"""``convertkit sign DIR --key FILE``."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from convertkit.cli.common import folder_argument, shared_options
from convertkit.cli.runner import Outcome, Shared, document_of, run
from convertkit.cli.text import path_text

FILE = click.Path(path_type=Path)


@click.command("sign", epilog="Example: convertkit sign release --key private.pem --output release.sig")
@folder_argument("folder")
@click.option("--key", type=FILE, required=True, metavar="FILE", help="The private key (PEM; P-256, P-384 or P-521).")
@click.option("--certificate", type=FILE, metavar="FILE", help="Sign with this certificate of the key.")
@click.option("--chain", multiple=True, type=FILE, metavar="FILE", help="Certificates above it; may be repeated.")
@click.option("--output", type=FILE, metavar="FILE", help="Where to write it; model.sig in FOLDER if not given.")
@shared_options
def command(
    folder: Path, key: Path, certificate: Path | None, chain: tuple[Path, ...], output: Path | None, shared: Shared
) -> int:
    """Sign every file of the release in FOLDER, as an OMS bundle.

    Needs `pip install model-signing cryptography pyopenssl`; model-signing's own command verifies the signature too.
    """
    from convertkit.verbs.sign import sign

    def work(progress: object) -> Outcome:
        place = sign(folder, output, key=key, certificate=certificate, chain=chain)
        check = f"convertkit verify {shlex.quote(str(folder))} --signature {shlex.quote(str(place))} --key PUBLIC.pem"
        text = f"signature: {path_text(place)}\ncheck it: {check}"
        return Outcome(document_of("sign", {"signature": path_text(place)}), text)

    return run(shared, work)
