"""PROVENANCE.intoto.json: the release as an unsigned in-toto Statement v1 with SLSA provenance v1.

Sources of the form: in-toto attestation framework, ``spec/v1/statement.md``; SLSA, ``spec/v1.0/provenance``. Nothing of
this machine and no clock goes in, so the same release has the same statement; times belong into a signature.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from convertkit import __version__
from convertkit.containers.strict_json import dump_json

PROVENANCE = "PROVENANCE.intoto.json"
STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "https://convertkit.invalid/release/v1"
BUILDER = "https://convertkit.invalid/local"
"""The build ran on somebody's machine, which this statement does not name."""


def statement(report: Mapping[str, Any], plan: Mapping[str, Any], byproducts: Mapping[str, str]) -> dict[str, Any]:
    """Subjects are the weight files of ``report`` (RELEASE_REPORT.json); its source files are the dependencies."""
    return {
        "_type": STATEMENT,
        "subject": [{"name": file["path"], "digest": {"sha256": file["sha256"]}} for file in report["output"]["files"]],
        "predicateType": PREDICATE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {"verb": plan["verb"], "recipe": plan["parameters"]["recipe"]},
                "internalParameters": {
                    "fingerprint": plan["fingerprint"],
                    "variants": plan["parameters"]["variants"],
                    "tool": {"name": "convertkit", "version": __version__},
                },
                "resolvedDependencies": [
                    {"name": file["path"], "digest": {"sha256": file["sha256"]}} for file in report["source"]["files"]
                ],
            },
            "runDetails": {
                "builder": {"id": BUILDER, "version": {"convertkit": __version__}},
                "byproducts": [
                    {"name": name, "digest": {"sha256": sha256}} for name, sha256 in sorted(byproducts.items())
                ],
            },
        },
    }


def render_statement(report: Mapping[str, Any], plan: Mapping[str, Any], byproducts: Mapping[str, str]) -> bytes:
    """The bytes of PROVENANCE.intoto.json."""
    return dump_json(statement(report, plan, byproducts))
