"""Names of tensors between a drafter's format and the hub layout of its family.

DFlash, DFlash 2 and DSpark share their names in every format (z-lab dflash 0.1.0, speculators 0.9.0, DeepSpec
afdfa7c); a table lists only what is spelled differently. EAGLE-3 meets in the names of speculators.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from convertkit.layouts.rules import compile_template, without_model

RENAMES: Mapping[str, tuple[tuple[str, str], ...]] = {
    "eagle3": (("midlayer.{rest}", "layers.0.{rest}"),),
}
"""Layout to (name there, name in the hub); every other name is the same in both."""

MISSPELLED: tuple[tuple[str, str], ...] = (
    ("candidate_selector.predecessor_codebook.weight", "candidate_selector.predecessor_codebook"),
    ("candidate_selector.successor_codebook.weight", "candidate_selector.successor_codebook"),
)
"""Names that some exports use (``save_pretrained`` of z-lab dflash 0.1.0) and what readers of the format look for."""


def to_hub(layout: str, name: str) -> str:
    """The name in the hub layout of a tensor or module of ``layout``, a leading ``model.`` left out."""
    plain = _renamed(without_model(name), MISSPELLED)
    return _renamed(plain, RENAMES.get(layout, ()))


def from_hub(layout: str, name: str) -> str:
    """The name in ``layout`` of a tensor or module of its hub layout."""
    return _renamed(name, [(there, here) for here, there in RENAMES.get(layout, ())])


def _renamed(name: str, table: Iterable[tuple[str, str]]) -> str:
    for here, there in table:
        captures = compile_template(here).match(name)
        if captures is not None:
            return compile_template(there).format(captures)
    return name
