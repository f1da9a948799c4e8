"""The naive twin of the language's functions: numpy's fp64, written down a second time and sharing nothing with the table it judges."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

_erf = np.vectorize(math.erf, otypes=[np.float64])


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


NAIVE: Mapping[str, Callable[..., Array]] = {
    "exp": lambda x: np.exp(x),
    "log": lambda x: np.log(x),
    "sqrt": lambda x: np.sqrt(x),
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sin": lambda x: np.sin(x),
    "cos": lambda x: np.cos(x),
    "tanh": lambda x: np.tanh(x),
    "erf": lambda x: _erf(x),
    "sigmoid": _sigmoid,
    "silu": lambda x: x * _sigmoid(x),
    "gelu": lambda x: 0.5 * x * (1 + _erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "relu": lambda x: np.maximum(x, 0),
    "abs": lambda x: np.abs(x),
    "where": lambda condition, x, y: np.where(condition != 0, x, y),
    "min": lambda x, y: np.minimum(x, y),
    "max": lambda x, y: np.maximum(x, y),
}
COSTLY = frozenset(("log", "sin", "cos", "tanh", "erf", "gelu", "gelu_tanh"))
"""Those that a GPU computes in many instructions."""
TEMPORARY = frozenset(("silu", "gelu", "gelu_tanh"))
"""Those whose torch form may allocate a tensor beside its result."""
POSITIVE = frozenset(("log", "sqrt", "rsqrt"))
"""Those of positive numbers only."""


def arguments(name: str, arity: int) -> tuple[Array, ...]:
    """Numbers of a function's domain, of moderate size, both signs and 0 among them where it takes them."""
    x = np.linspace(-4.5, 4.5, 37)
    if name in POSITIVE:
        x = np.abs(x) + 0.25
    return tuple(x if i == 0 else np.roll(x, 5 * i) + 0.125 for i in range(arity))
