"""What the timed jobs must give, in plain torch and fp32: written from the spec by hand, sharing no code with any kernel.

In: operands by the spec's names, axes as in the spec. Out: how far a result is from the right one: its largest difference ÷ the largest
right value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf, prod, sqrt

import torch
from torch import Tensor
from torch.nn.functional import silu

EPS, THETA = 1e-5, 10000.0
"""Of specs/llama.yaml."""
CHECKED_HEADS = 4
"""Attention is checked for so many query heads: all of them in fp32 would take longer than everything else."""

Tensors = Mapping[str, Tensor]
Formula = Callable[[Tensors], Tensor]


def error_of(formula: Formula, tensors: Tensors) -> Callable[[Tensor], float]:
    """A function of the result. The formula is evaluated when it is called, as its fp32 operands may be large."""

    def error(got: Tensor) -> float:
        return relative(got, formula({name: t.float() for name, t in tensors.items()}).view(got.shape))

    return error


def relative(got: Tensor, wanted: Tensor) -> float:
    """The largest difference ÷ the largest right value; infinite where `got` has a NaN."""
    worst = float((got.float() - wanted.float()).abs().max() / wanted.float().abs().max())
    return worst if worst == worst else inf


def _norm(t: Tensors) -> Tensor:
    x = t["x"]  # [b, s, m]
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + EPS) * t["norm1"]


def _rotation(t: Tensors) -> Tensor:
    q = t["q"]  # [b, s, k, g, z, e]
    half = q.shape[-1]
    e = torch.arange(half, device=q.device, dtype=torch.float32)
    angle = torch.arange(q.shape[1], device=q.device, dtype=torch.float32)[:, None] * THETA ** (-e / half)
    cos, sin = (f(angle)[None, :, None, None, :] for f in (torch.cos, torch.sin))
    first, second = q[..., 0, :], q[..., 1, :]
    return torch.stack((first * cos - second * sin, second * cos + first * sin), -2)


def _project(t: Tensors) -> Tensor:
    h = t["h"]  # [b, s, m]
    return h @ t["wq"].reshape(-1, h.shape[-1]).T


def _unproject(t: Tensors) -> Tensor:
    o, wo = t["o"].flatten(2), t["wo"].flatten(1)  # [b, s, (k g z e)], [m, (k g z e)]
    return t["x"] + o @ wo.T


def _gated(t: Tensors) -> Tensor:
    n = t["n"]  # [b, s, m]
    return silu(n @ t["w1"].T).mul_(n @ t["w3"].T)


FORMULAS: dict[str, Formula] = {
    "product": lambda t: t["x"] @ t["w"].T,
    "h": _norm,
    "q": _project,
    "qr": _rotation,
    "x.1": _unproject,
    "y": _gated,
    "x.2": lambda t: t["x"] + t["y"] @ t["w2"].T,
}
"""By the value that a task of the spec computes."""


def heads(t: Tensor) -> Tensor:
    """[b, s, k, (g,) z, e] as scaled_dot_product_attention wants it: [b, heads, s, (z e)]; no copy."""
    b, s, *rest = t.shape
    return t.view(b, s, prod(rest[:-2]), prod(rest[-2:])).transpose(1, 2)


def attention_error(q: Tensor, k: Tensor, v: Tensor) -> Callable[[Tensor], float]:
    """Head by head in fp32, causal, scores in full. All are [1, heads, s, d]."""

    def error(got: Tensor) -> float:
        found, worst = heads(got), 0.0
        count, s = q.shape[1:3]
        group = count // k.shape[1]
        mask = torch.ones(s, s, dtype=torch.bool, device=q.device).triu(1)
        for head in sorted({*range(0, count, max(1, count // CHECKED_HEADS)), count - 1}):
            score = q[0, head].float() @ k[0, head // group].float().T / sqrt(q.shape[-1])
            wanted = torch.softmax(score.masked_fill_(mask, -inf), -1) @ v[0, head // group].float()
            worst = max(worst, relative(found[0, head], wanted))
        return worst

    return error
