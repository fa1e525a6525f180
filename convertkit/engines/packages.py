"""How the packages that drafters come from read them: z-lab dflash 0.1.0 and speculators 0.9.0."""

from __future__ import annotations

from dataclasses import replace

from convertkit.engines.reading import Engine, Refusal, Serving
from convertkit.layouts.configs import READINGS, ZLAB_DFLASH, ZLAB_DFLASH2, Reading
from convertkit.layouts.fields import look, moved

_UNREAD = {"draft_vocabulary": (), "target_hidden": (), "sample_from_anchor": (), "neox": (), "causal": ()}
"""What ``DFlashDraftModel`` never looks at: it always uses the target's head and width."""

_NO_DEPTH = Refusal(
    "target_layers", lambda spec, config: look(config, "num_target_layers") is None, "'num_target_layers' is required"
)


def _zlab(reading: Reading) -> Serving:
    return Serving(replace(reading, fields=moved(reading.fields, **_UNREAD)), (_NO_DEPTH,))


ZLAB = Engine("z-lab dflash", "0.1.0", {"dflash": _zlab(ZLAB_DFLASH), "dflash2": _zlab(ZLAB_DFLASH2)})

_FULL = Refusal(
    "draft_vocabulary",
    lambda spec, config: spec.draft_vocabulary != spec.vocabulary,
    "DFlash 2 needs the whole vocabulary",
)
_WIDTH = Refusal(
    "target_hidden",
    lambda spec, config: spec.target_hidden != spec.hidden,
    "the fusion layer is built for the draft's own width",
)
_REFUSALS = {"speculators-dflash2": (_FULL, _WIDTH), "speculators-dflash": (_WIDTH,), "speculators-dspark": (_WIDTH,)}

SPECULATORS = Engine(
    "speculators",
    "0.9.0",
    {
        name: Serving(reading, _REFUSALS.get(name, ()))
        for name, reading in READINGS.items()
        if name.startswith("speculators-")
    },
    "converts DFlash and EAGLE-3 on loading, reads nothing else",
)
