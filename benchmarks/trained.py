"""A drafter that was really trained, in a minute: on a made-up target whose text it can only foretell from its taps.

The made-up target writes tokens by one of several permutations, its *topic*, and errs now and then. The output of its
layer t at a position is a vector of that token plus one of the topic, other vectors for each layer. A drafter that
reads the right layers learns the topic there and continues the text; at other layers it finds nothing that it knows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from convertkit.checkpoint import TensorSpec
from convertkit.containers.safetensors import encode_header
from convertkit.demo.drafters import KINDS, config_of, sizes_of, tensors_of
from convertkit.drafter import DrafterSpec
from convertkit.forward.compare import hidden_of
from convertkit.forward.heads import logits_of, selector_scores
from convertkit.forward.inputs import Inputs, slots_of
from convertkit.forward.layers import Drafters
from convertkit.forward.streams import Streams
from convertkit.layouts.reading import stated_spec
from convertkit.layouts.tables import LAYOUTS_BY_NAME
from convertkit.verbs.calibration import write_calibration

Tensor = torch.Tensor

TOPICS, WORDS, LENGTH, SURE = 4, 32, 20, 0.97
ENDS = ("embed_tokens.weight", "lm_head.weight")


@dataclass(frozen=True)
class Parameters:
    """Weights being trained, with the questions that a pass asks of a holder."""

    spec: DrafterSpec
    values: dict[str, Tensor]
    mask: Tensor | None = None
    places: dict[str, Any] = field(default_factory=dict)

    def has(self, name: str) -> bool:
        return name in self.values

    def shares(self, other: Parameters, name: str) -> bool:
        return True

    def tiles(self, name: str) -> Iterator[tuple[int, int]]:
        yield 0, self.values[name].shape[0]

    def tile(self, name: str, first: int, count: int) -> Tensor:
        return self.values[name]

    def whole(self, name: str) -> Tensor:
        return self.values[name]

    def rows(self, name: str, ids: Tensor) -> Tensor:
        return self.values[name][ids]


@dataclass(frozen=True)
class World:
    """The made-up target: permutations [topics, tokens], and vectors per layer."""

    follows: Tensor
    hidden: int
    generator: torch.Generator

    def vectors(self, layer: int) -> tuple[Tensor, Tensor]:
        """Of tokens [tokens, hidden] and of topics [topics, hidden], as layer ``layer`` writes them."""
        own = torch.Generator().manual_seed(1000 + layer)
        return (
            torch.randn(self.follows.shape[1], self.hidden, generator=own),
            torch.randn(TOPICS, self.hidden, generator=own),
        )

    def text(self, count: int) -> tuple[Tensor, Tensor]:
        """Tokens [count, LENGTH] and topics [count]."""
        topics = torch.randint(TOPICS, (count,), generator=self.generator)
        tokens = [torch.randint(WORDS, (count,), generator=self.generator)]
        for _ in range(LENGTH - 1):
            sure = torch.rand(count, generator=self.generator) < SURE
            free = torch.randint(WORDS, (count,), generator=self.generator)
            tokens.append(torch.where(sure, self.follows[topics, tokens[-1]], free))
        return torch.stack(tokens, 1), topics

    def states(self, layer: int, tokens: Tensor, topics: Tensor) -> Tensor:
        """Outputs of a layer [count, LENGTH, hidden]."""
        words, subjects = self.vectors(layer)
        noise = torch.randn(*tokens.shape, self.hidden, generator=self.generator)
        return words[tokens] + subjects[topics][:, None] + 0.3 * noise


def world_of(kind: str, scale: str, seed: int = 7) -> World:
    generator = torch.Generator().manual_seed(seed)
    orders = torch.stack([torch.randperm(WORDS, generator=generator) for _ in range(TOPICS)])
    return World(orders, sizes_of(kind, scale)["H"], generator)


def start_of(kind: str, scale: str, spec: DrafterSpec) -> dict[str, Tensor]:
    """Parameters as a training starts: small random matrices, convolutions that change nothing, norms of one."""
    generator = torch.Generator().manual_seed(3)
    values: dict[str, Tensor] = {}
    for tensor in tensors_of(kind, scale):
        name, shape = tensor.spec.name, tensor.spec.shape
        if tensor.role == "norm":
            made = torch.ones(shape)
        elif name.endswith("base_kernel"):
            made = torch.zeros(shape)
            made[:, 0] = 1.0
        elif name.endswith("kernel_projection.weight"):
            made = torch.zeros(shape)
        else:
            made = torch.randn(shape, generator=generator) * (0.5 if "codebook" in name else shape[-1] ** -0.5)
        values[name] = made.requires_grad_()
    for name in ENDS:
        values[name] = torch.randn(spec.vocabulary or 0, spec.hidden or 0, generator=generator)
    return values


def batch(world: World, spec: DrafterSpec, count: int) -> tuple[Inputs, Tensor]:
    """Sequences side by side as one context, and the features of the tapped layers [1, n, taps * hidden]."""
    tokens, topics = world.text(count)
    features = torch.cat([world.states(tap, tokens, topics).flatten(0, 1) for tap in spec.taps or ()], -1)
    slots = slots_of(spec)
    starts = torch.randint(2, LENGTH - slots[-1], (count,), generator=world.generator)
    rows = torch.arange(count)
    inputs = Inputs(
        tokens.flatten(), torch.arange(LENGTH).repeat(count), rows.repeat_interleave(LENGTH),
        torch.ones(count * LENGTH, dtype=torch.bool), rows * LENGTH + starts, slots, {},
    )  # fmt: skip
    return inputs, features[None]


def train(kind: str, scale: str, steps: int) -> tuple[Parameters, World]:
    """A trained drafter of a demo kind."""
    spec, world = stated_of(kind, scale), world_of(kind, scale)
    values = start_of(kind, scale, spec)
    it = Drafters(Streams((Parameters(spec, values),), (0,)), (spec,))  # type: ignore[arg-type]
    learned = [value for value in values.values() if value.requires_grad]
    optimizer = torch.optim.AdamW(learned, lr=2e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
    for _ in range(steps):
        inputs, features = batch(world, spec, 16)
        loss = loss_of(it, inputs, features)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(learned, 1.0)
        optimizer.step()
        schedule.step()
    print(f"{kind} {scale}: loss {float(loss.detach()):.4f} after {steps} steps")
    return Parameters(spec, values), world


def loss_of(it: Drafters, inputs: Inputs, features: Tensor) -> Tensor:
    hidden, latents = hidden_of(it, inputs, features)
    logits = torch.cat([tile for _, tile in logits_of(it, hidden, latents)], -1)
    wanted = inputs.tokens[inputs.proposed].flatten()
    loss = torch.nn.functional.cross_entropy(logits[0], wanted)
    if it.spec.algorithm == "dflash2":
        unary, candidates = logits.topk(it.spec.selector_top_k or 1, -1)
        previous = inputs.tokens[inputs.proposed - 1].flatten()[None]
        scores = selector_scores(it, hidden, previous, candidates, unary)[0]
        right = candidates[0] == wanted[:, None]
        held = right.any(-1)
        if bool(held.any()):
            loss = loss + torch.nn.functional.cross_entropy(scores[held], right[held].double().argmax(-1))
    return loss


def stated_of(kind: str, scale: str) -> DrafterSpec:
    layout = "dflash2" if kind == "dflash2" else "dflash"
    stated = stated_spec(LAYOUTS_BY_NAME[layout], config_of(kind, scale), [])
    assert stated is not None
    return stated[0]


def save(folder: Path, kind: str, scale: str, trained: Parameters) -> Path:
    """The drafter in BF16, with its ends as a drafter may hold them."""
    folder.mkdir(parents=True)
    specs = [TensorSpec(name, "BF16", tuple(value.shape)) for name, value in trained.values.items()]
    header = encode_header(specs, {"format": "pt"})
    data = b"".join(
        trained.values[spec.name].detach().bfloat16().contiguous().view(torch.int16).numpy().tobytes()
        for spec in header.order
    )
    (folder / "model.safetensors").write_bytes(header.prefix + data)
    (folder / "config.json").write_text(json.dumps(config_of(kind, scale), indent=1))
    return folder


def record(path: Path, kind: str, world: World, count: int = 8) -> Path:
    """A calibration of new text, with the outputs of the tapped layers and of those one above."""
    taps = KINDS[kind].fixed["tapped"]
    tokens, topics = world.text(count)
    layers = sorted({*taps, *(tap + 1 for tap in taps)})
    hidden = {layer: world.states(layer, tokens, topics).flatten(0, 1).numpy() for layer in layers}
    write_calibration(
        path, hidden, tokens.flatten().numpy(), target="a made-up target", dtype="float32",
        sequences=torch.arange(count).repeat_interleave(LENGTH).numpy(),
    )  # fmt: skip
    return path
