"""Weights that a gate refuses only because the two nibbles of every byte of codes are stored the other way round.

Some producers put the even column into the high nibble: shapes and dtypes are the same, values are permuted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from convertkit.checks.fidelity import judge, metrics
from convertkit.checks.gate import Weight, compare_weight
from convertkit.conversion.desk import Desk
from convertkit.dialects.planes import PackedModule
from convertkit.errors import Finding, finding

MAX_TRIED = 16
"""Weights that are compared again: producers store all of a model alike."""


def swapped_findings(
    desks: tuple[Desk, Desk],
    pairs: Sequence[tuple[Weight, Weight]],
    refused: Sequence[str],
    limits: Mapping[str, float | None],
    stored: str | None,
) -> list[Finding]:
    """W_NIBBLES_SWAPPED if packed weights among ``refused`` meet the limits once their nibbles are exchanged.

    ``pairs`` are (reference, candidate) as they were compared; the first ``MAX_TRIED`` are tried."""
    wanted = set(refused)
    packed = [pair for pair in pairs if pair[1].name in wanted and isinstance(pair[1].stored, PackedModule)]
    cured = []
    for mine, yours in packed[:MAX_TRIED]:
        tally = compare_weight(*desks, mine, yours, stored, {}, swap=True).tally
        row = {"name": yours.name, "scope": "tensor", "metrics": None if tally is None else metrics(tally)}
        if tally is not None and not judge([row], limits):
            cured.append(yours.name)
    if not cured:
        return []
    tried = min(len(packed), MAX_TRIED)
    message = f"{len(cured)} of {tried} refused weights that were tried match after a swap of the nibbles of every byte"
    fix = "the even column belongs into the low nibble: repair --swap-nibbles"
    data = {"tried": tried, "matching": cured, "refused": len(packed)}
    return [finding("W_NIBBLES_SWAPPED", "warning", message, tensor=cured[0], fix=fix, data=data)]
