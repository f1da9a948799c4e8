"""What kernels are written for: a GPU, how factors of fp32 are multiplied, and tiles: those measured there, or one that is forced."""

from __future__ import annotations

from dataclasses import dataclass

from einpage.kernels.tiles.attention_tiles import AttentionShape, attention_variants
from einpage.kernels.tiles.fp32_products import Fp32Products
from einpage.kernels.tiles.measured_tiles import MeasuredTiles
from einpage.kernels.tiles.product_tiles import ProductShape, variants
from einpage.kernels.tiles.tiles import SHARED_LIMIT, Tiles

CAPABILITIES = tuple(SHARED_LIMIT)
"""Compute capabilities that the tables speak of; 86 stands for all GPUs with less shared memory than 80 has (8.6, 8.9, 12.0)."""


@dataclass(frozen=True, slots=True)
class Choices:
    """What of kernels does not follow from the GPU at hand."""

    fp32_products: Fp32Products = Fp32Products.TF32X3
    measured: MeasuredTiles | None = None
    """The tiles that were fastest on the GPU at hand; None where none were measured: the tables' own."""

    @property
    def tiles_text(self) -> str:
        """Where tiles come from, for people."""
        return "the kernels' own" if self.measured is None else f"measured on this GPU, of {len(self.measured.found)} shape(s)"


AS_IT_IS = Choices()
"""Fp32 by tensor cores, the tables' own tiles."""


@dataclass(frozen=True, slots=True)
class Target:
    """A GPU to write kernels for."""

    capability: int = 90
    """One of CAPABILITIES."""
    product: Tiles | None = None
    """The tile of every matrix product, instead of the table's."""
    attention: Tiles | None = None
    """The tile of every attention: queries a block, keys a step."""
    multiprocessors: int = 132
    """How many programs a persistent kernel has at most: one each. An H100's and an H200's number."""
    choices: Choices = AS_IT_IS

    @property
    def fp32_products(self) -> Fp32Products:
        """How factors of fp32 are multiplied."""
        return self.choices.fp32_products

    def products(self, p: ProductShape) -> tuple[Tiles, ...]:
        """The tiles for product `p`, best first; the last can be used whatever the job."""
        offered = variants(p, self.capability, self.fp32_products)
        best = self.product
        if best is None and self.choices.measured is not None:
            best = self.choices.measured.product(p, self.fp32_products, offered)
        return offered if best is None else (best, *offered)

    def attentions(self, p: AttentionShape) -> tuple[Tiles, ...]:
        """As `products`, for an attention."""
        offered = attention_variants(p, self.capability, self.fp32_products)
        best = self.attention
        if best is None and self.choices.measured is not None:
            best = self.choices.measured.attention(p, self.fp32_products, offered)
        return offered if best is None else (best, *offered)


def table_of(capability: int, shared_bytes: int) -> int:
    """Of CAPABILITIES, the latest that a GPU of `capability` with this much shared memory a program can run; 80 at least."""
    return max((c for c in CAPABILITIES if c <= capability and SHARED_LIMIT[c] <= shared_bytes), default=CAPABILITIES[0])
