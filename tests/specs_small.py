"""The shipped specs at small sizes, with seeded weights and inputs, for tests that compare two ways of computing them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from einpage.einsum_front.elaborate.elaborate import elaborate
from einpage.einsum_front.graph.program import Program
from einpage.einsum_front.spec.reader import load_document

SPECS = Path(__file__).parents[1] / "specs"

SMALL: dict[str, dict[str, int]] = {
    "matmul_chain": {"rows": 130, "width": 192, "depth": 3},
    "mlp": {"batch": 70, "inner": 128, "hidden": 200, "outer": 96},
    "attention": {"batch": 2, "seq": 150, "model": 96, "heads": 3},
    "llama": {"batch": 2, "seq": 130, "vocab": 200, "model": 96, "layers": 2, "heads": 6, "kv_heads": 3, "ffn": 160},
    "gpt2": {"batch": 2, "seq": 130, "vocab": 200, "context": 140, "model": 96, "layers": 2, "heads": 3, "ffn": 256},
}
"""Ragged on purpose: no extent that a tile of 64 divides everywhere."""

Data = dict[str, NDArray[Any]]


def small_program(name: str, settings: Mapping[str, int] | None = None) -> Program:
    return elaborate(load_document(SPECS / f"{name}.yaml"), {**SMALL[name], **(settings or {})})


def small_data(program: Program, seed: int = 0) -> Data:
    """Inputs and weights by name: weights scaled to keep activations near 1, token ids in range, ragged lengths."""
    rng = np.random.default_rng(seed)
    data: Data = {}
    for i in program.inputs:
        if i.name == "tokens":
            data[i.name] = rng.integers(0, program.sizes["vocab"], i.shape, dtype=np.int32)
        elif i.name == "lengths":
            data[i.name] = rng.integers(1, program.sizes["seq"] + 1, i.shape, dtype=np.int32)
        else:
            data[i.name] = rng.standard_normal(i.shape, dtype=np.float32)
    for w in program.weights:
        scale = 0.5 if len(w.shape) == 1 else (max(w.shape) ** -0.5) * 2
        data[w.name] = rng.standard_normal(w.shape, dtype=np.float32) * np.float32(scale)
    return data


def tensors(names: list[str], data: Data) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(data[name]) for name in names}
