"""Which models are run: LLaMA-7B and 24 layers of 65B, by length and arena; tiny ones for a dry run."""

from __future__ import annotations

from dataclasses import dataclass

from bench.plan_quality import MODELS

GIB = 1 << 30
SIZES = {"7B": MODELS["7B"], "65B/24": {**MODELS["65B"], "layers": 24}}
TINY = {"tiny": {"model": 64, "layers": 2, "heads": 4, "kv_heads": 4, "ffn": 96, "vocab": 128}}


@dataclass(frozen=True, slots=True)
class Cell:
    model: str
    seq: int
    budget: int


FIRST = (Cell("7B", 512, 8 * GIB),)
CELLS = (
    Cell("7B", 16384, 8 * GIB),
    Cell("7B", 2048, 8 * GIB),
    Cell("7B", 512, 4 * GIB),
    Cell("7B", 16384, 4 * GIB),
    Cell("7B", 512, 16 * GIB),
    Cell("7B", 16384, 16 * GIB),
    Cell("7B", 2048, 4 * GIB),
    Cell("7B", 2048, 16 * GIB),
)
LARGE = (
    Cell("65B/24", 2048, 16 * GIB),
    Cell("65B/24", 512, 8 * GIB),
    Cell("65B/24", 16384, 16 * GIB),
    Cell("65B/24", 2048, 4 * GIB),
)
"""Most important first."""
DRY_FIRST = (Cell("tiny", 40, 96 << 10),)
DRY_CELLS = (Cell("tiny", 48, 96 << 10), Cell("tiny", 96, 160 << 10))
DRY_LARGE = (Cell("tiny", 64, 128 << 10),)
