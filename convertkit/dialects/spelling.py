"""How each dialect spells one NVFP4 linear as several tensors.

Read from files that nvidia-modelopt 0.47.0 (``export_hf_checkpoint``, ``qtensor/nvfp4_tensor.py``) and
llmcompressor 0.14.0.1 with compressed-tensors 0.19/0.20 (``compressors/nvfp4``) wrote. Both store codes as
[out, in/2] bytes with the even input index in the low nibble and block scales as row-major [out, in/16].
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Sense = Literal["multiplier", "divisor"]

GROUP = 16
"""Elements that share one block scale."""


@dataclass(frozen=True, slots=True)
class Spelling:
    """Leaf names of the planes, the sense of the global scale, and the shape it is written with."""

    dialect: str
    codes: str
    block_scale: str
    global_scale: str
    input_scale: str
    sense: Sense
    global_shape: tuple[int, ...]

    @property
    def leaves(self) -> tuple[str, str, str]:
        """The three planes every packed linear has."""
        return (self.codes, self.block_scale, self.global_scale)


SPELLINGS: Mapping[str, Spelling] = {
    "modelopt": Spelling("modelopt", "weight", "weight_scale", "weight_scale_2", "input_scale", "multiplier", ()),
    "compressed-tensors": Spelling(
        "compressed-tensors",
        "weight_packed",
        "weight_scale",
        "weight_global_scale",
        "input_global_scale",
        "divisor",
        (1,),
    ),
}


def spelling_of(dialect: str) -> Spelling:
    """The spelling of a dialect name as users give it; ``modelopt-mixed`` stores planes like ``modelopt``."""
    return SPELLINGS["modelopt" if dialect == "modelopt-mixed" else dialect]
