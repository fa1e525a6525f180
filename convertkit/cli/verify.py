"""``convertkit verify DIR``: is this the release that its manifest states, byte for byte, and nothing else?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from convertkit.cli.common import SourcePath, shared_options, workers_option
from convertkit.cli.runner import Outcome, Shared, run
from convertkit.cli.text import count_text, findings_text, shown_cell, size_text

if TYPE_CHECKING:
    from convertkit.verbs.verify_listed import VerifyResult

VERDICTS = {
    0: "passed",
    1: "FAILED",
    3: "NOT VERIFIED: something is malformed",
    4: "NOT VERIFIED: a file could not be read, or changed meanwhile",
    6: "EARLIER RELEASE: these files are those of a release that was replaced",
}


@click.command("verify")
@click.argument("folder")
@click.option("--only", multiple=True, metavar="GLOB",
              help="Verify these paths only, e.g. 'bf16/*', or all but these: '!bf16/*'; may be repeated.")  # fmt: skip
@click.option("--allow-extra", multiple=True, metavar="GLOB",
              help="Accept unlisted files with these paths; may be repeated.")  # fmt: skip
@click.option("--hub", is_flag=True, help="Accept what a hub download adds: .gitattributes and .cache/huggingface/.")
@click.option("--strict", is_flag=True, help="Accept no exception: warnings are failures.")
@click.option("--card", is_flag=True, help="Compare every number that README.md states with files and reports.")
@click.option("--from", "sums", type=click.Path(path_type=Path), metavar="LIST",
              help="Verify against this SHA256SUMS, MANIFEST.json or list of a hub (JSON) instead.")  # fmt: skip
@click.option("--recompute", is_flag=True, help="Compute the reports anew from the weights and compare.")
@click.option("--source", type=SourcePath(), metavar="SRC",
              help="With --recompute: what the weights were made from, to measure them again.")  # fmt: skip
@click.option("--target-model", type=SourcePath(headers_only=True), metavar="DIR",
              help="With --recompute: the target, to audit the engines again.")  # fmt: skip
@click.option("--signature", type=click.Path(path_type=Path), metavar="FILE",
              help="An OMS signature that must cover every file.")  # fmt: skip
@click.option("--key", type=click.Path(path_type=Path), metavar="FILE", help="The trusted public key (PEM).")
@click.option("--certificate", "certificates", multiple=True, type=click.Path(path_type=Path), metavar="FILE",
              help="A trusted certificate (PEM); may be repeated.")  # fmt: skip
@click.option("--trust-config", type=click.Path(path_type=Path), metavar="FILE",
              help="Trust configuration of a Sigstore (JSON), for a signature by an identity.")  # fmt: skip
@click.option("--identity", metavar="NAME", help="Who must have signed, with --trust-config.")
@click.option("--oidc-issuer", metavar="URL", help="Who must have vouched for that identity.")
@click.option("--no-download", is_flag=True,
              help="hf://: take the hub's word for the digests of large files, and fetch small ones only.")  # fmt: skip
@workers_option
@shared_options
def command(
    folder: str,
    only: tuple[str, ...],
    allow_extra: tuple[str, ...],
    hub: bool,
    strict: bool,
    card: bool,
    sums: Path | None,
    recompute: bool,
    source: Path | None,
    target_model: Path | None,
    signature: Path | None,
    key: Path | None,
    certificates: tuple[Path, ...],
    trust_config: Path | None,
    identity: str | None,
    oidc_issuer: str | None,
    no_download: bool,
    workers: int,
    shared: Shared,
) -> int:
    """Verify the release in FOLDER, or at hf://org/name, against its MANIFEST.json and SHA256SUMS.

    Every listed file and tensor is read and compared; files that nothing lists fail too. Nothing is written.
    A repository on the hub is downloaded into the hub's cache; where it has no manifest, the hub's own digests count.
    With --no-download its large files stay there, and what the hub states of them is compared.
    Exit status: 0 passed, 1 different, 3 malformed, 4 unreadable, 6 files of an earlier release.
    """
    from convertkit.verbs.verify import verify

    return run(
        shared,
        lambda progress: outcome(
            verify(
                folder,
                sums=sums,
                only=only,
                allow_extra=allow_extra,
                hub=hub,
                strict=strict,
                card=card,
                recompute=recompute,
                source=source,
                target_model=target_model,
                signature=signature,
                key=key,
                certificates=certificates,
                trust_config=trust_config,
                identity=identity,
                oidc_issuer=oidc_issuer,
                download=not no_download,
                workers=workers,
                progress=progress,
            )
        ),
    )


def outcome(result: VerifyResult) -> Outcome:
    return Outcome(result.as_json(), text(result), result.status)


def text(result: VerifyResult) -> str:
    """Problems first, then one line with the verdict, then what pins the release."""
    summary = result.summary
    lines = [findings_text(result.findings)]
    problems = sum(item.severity == "error" for item in result.findings)
    verdict = VERDICTS.get(result.status, "FAILED")
    if problems:
        verdict += f"; {count_text(problems, 'problem')}"
    elif result.status:
        verdict += "; warnings count with --strict"
    if summary["files"]:
        agree = "" if summary["files_ok"] == summary["files"] else f"{count_text(summary['files_ok'])} of "
        verdict += f": {agree}{count_text(summary['files'], 'file')} ({size_text(summary['size_bytes'])})"
        verdict += f" and {count_text(summary['tensors'], 'tensor')}" if summary["tensors"] else ""
        verdict += f" agree with {' and '.join(summary['manifests'])}"
    lines.append(verdict)
    if summary.get("signed"):
        lines.append("signature: it covers every file")
    if "card_claims" in summary:
        lines.append(f"card: {count_text(summary['card_claims'], 'claim')} compared")
    if "recomputed" in summary:
        lines.append(f"computed anew: {', '.join(summary['recomputed']) or 'nothing'}")
    lines.extend(f"not checked, as allowed: {shown_cell(path)}" for path in summary["allowed"])
    if summary["release_sha256"]:
        lines.append(f"release sha256: {summary['release_sha256']} (of SHA256SUMS)")
    return "\n".join(filter(None, lines))
