"""Operations that draft layers are made of. They take torch tensors of one float dtype and keep it.

The first dimension of activations counts *streams*: the same pass by several drafters side by side (``streams``).
Weights come with it too, so a formula is written once for all of them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional

Tensor = torch.Tensor

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_pytorch_tanh": lambda x: functional.gelu(x, approximate="tanh"),
}
"""By ``hidden_act`` of a config (transformers' ``ACT2FN``)."""


def beside(weight: Tensor, x: Tensor) -> Tensor:
    """A weight [streams, n] with the dimensions in which it broadcasts against ``x`` [streams, ..., n]."""
    return weight.view(weight.shape[0], *[1] * (x.dim() - 2), weight.shape[-1])


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root-mean-square norm of the last dimension; ``weight`` [streams, n]."""
    return beside(weight, x) * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps))


def heads_of(x: Tensor, head_dim: int) -> Tensor:
    """[streams, ..., n, heads * head_dim] as [streams, ..., heads, n, head_dim]."""
    return x.view(*x.shape[:-1], -1, head_dim).transpose(-3, -2)


def attend(query: Tensor, key: Tensor, value: Tensor, visible: Tensor) -> Tensor:
    """Attention of heads [streams, batch, heads, n, d] with grouped keys [streams, batch, kv heads, m, d].

    ``visible`` are truth values [streams, batch, n, m]. The result is [streams, batch, n, heads * d].
    """
    groups, width = query.shape[2] // key.shape[2], query.shape[-1]
    made = []
    for q, k, v, seen in zip(query, key, value, visible, strict=True):  # one stream's keys in memory at a time
        k, v = (part.repeat_interleave(groups, 1) if groups > 1 else part for part in (k, v))
        mask = None if bool(seen.all()) else seen[:, None]
        mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=width**-0.5)
        made.append(mixed.transpose(1, 2).flatten(2))
    return torch.stack(made)


def convolve(x: Tensor, dynamic: Tensor, base: Tensor, group: int) -> Tensor:
    """The grouped dynamic causal convolution of DFlash 2 over the last block of positions (z-lab dflash 0.1.0
    ``model.py:472``).

    ``x`` [streams, blocks, n, width]; ``dynamic`` [streams, blocks, n, taps, width / group] is added to ``base``
    [streams, taps, width], group by group. Positions before the block are zeros.
    """
    grouped = x.view(*x.shape[:-1], -1, group)
    out = torch.zeros_like(grouped)
    for tap in range(base.shape[1]):
        shifted = grouped if tap == 0 else functional.pad(grouped[:, :, :-tap], (0, 0, 0, 0, tap, 0))
        kernel = base[:, tap].view(base.shape[0], 1, 1, -1, group)
        out = out + kernel * shifted
        out = torch.addcmul(out, dynamic[..., tap, :, None], shifted)
    return out.view_as(x)
