"""What the functional gate measures: packs of several drafters, whole and damaged. The limits come from this table.

    PYTHONPATH=. python benchmarks/forward_gate.py OUT [--steps 1500]

Generated drafters have random weights, through which small errors grow; the trained ones were trained here
(``trained.py``), so that their proposals mean something. Everything is seeded; training takes some minutes.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from benchmarks.trained import record, save, train
from convertkit.demo.generate import generate
from convertkit.verbs.gate_forward import gate_forward
from convertkit.verbs.pack import pack_nvfp4
from tests.forward.damage import DAMAGES, copied

TARGETS = {"dflash2": "target", "dflash-27b": "target"}
ALL_LINEARS = ("layers.{i}.self_attn.{x}", "layers.{i}.mlp.{x}", "fc")


def line(name: str, found: Any) -> str:
    rows = {scope: [row for row in found.rows if row["scope"] == scope] for scope in ("module", "layer", "output")}
    module, layer = (max(rows[scope], key=lambda row: row["forward"]["rel_rms"]) for scope in ("module", "layer"))
    out = rows["output"][0]["forward"]
    drop = "-" if out["accept_drop"] is None else f"{100 * out['accept_drop']:.1f} %"
    return (
        f"| {name} | {module['forward']['rel_rms']:.3f} {module['name']} | {layer['forward']['rel_rms']:.3f} "
        f"{layer['name']} | {out['kl']:.4f} | {out['cosine']:.3f} | {100 * out['top1_agreement']:.0f} % | {drop} | "
        f"{'passed' if found.status == 0 else 'FAILED'} |"
    )


def measure(name: str, source: Path, words: dict[str, Any]) -> None:
    packs: dict[str, dict[str, Any]] = {"NVFP4 pack": {}, "all linears packed": {"include": ALL_LINEARS}}
    for title, choice in packs.items():
        out = source.parent / f"{source.name}-{title.split()[0]}"
        pack_nvfp4(source, out, **choice)
        print(line(f"{name}: {title}", gate_forward(out, source, **words)), flush=True)
    whole = source.parent / f"{source.name}-NVFP4"
    for number, (title, damage) in enumerate(DAMAGES.items()):
        broken = copied(whole, source.parent / f"{source.name}-{number}")
        damage(broken)
        print(line(f"{name}: {title}", gate_forward(broken, source, **words)), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=1500)
    given = parser.parse_args()
    print("| drafter: what was done | worst module | worst layer | KL | cosine | same token | accept drop | verdict |")
    print("|---|---|---|--:|--:|--:|--:|---|")
    for scale in ("tiny", "small"):
        target = generate("target", given.out / f"target-{scale}", scale=scale).root
        for kind in TARGETS:
            source = generate(kind, given.out / f"{kind}-{scale}", scale=scale).root
            measure(f"{kind} {scale}", source, {"target_model": target})
    for kind in ("dflash2", "dflash"):
        trained, world = train(kind, "tiny", given.steps)
        source = save(given.out / f"trained-{kind}", kind, "tiny", trained)
        text = record(given.out / f"{kind}.safetensors", kind, world)
        measure(f"trained {kind}", source, {"calibration": text})


if __name__ == "__main__":
    main()
