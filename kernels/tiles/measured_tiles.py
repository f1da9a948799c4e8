"""Tiles that were fastest on one GPU, as a file: bench/gpu.sh writes it, and kernels are written by it.

In: what was measured, or a file's bytes. Out: a text, or a `MeasuredTiles`. It holds for one GPU and one version of the kernels, which it
names; a file of others is refused, as is a damaged one, in one line. Invariant: a tile is used only where the tables offer it, so that it
is known to compile, to fit and to spill nothing; what a file says can make a kernel slow, and nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, fields
from math import log2
from typing import Any, TypeVar

from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.base.errors import UsageError, one_line
from einpage.einsum_front.base.json_text import JsonError, JsonTooLarge, parsed
from einpage.kernels.tiles.attention_tiles import AttentionShape
from einpage.kernels.tiles.fp32_products import Fp32Products
from einpage.kernels.tiles.product_tiles import ProductShape, shape_class
from einpage.kernels.tiles.tiles import Tiles

FORMAT = 1
MOST_BYTES = 1 << 20
"""Of a file: a thousand shapes and more."""
MOST_NUMBER = 1 << 62


@dataclass(frozen=True, slots=True)
class MeasuredTile:
    """The fastest tile of one shape."""

    shape: ProductShape | AttentionShape
    fp32_products: Fp32Products | None
    """How its factors of fp32 were multiplied; None for another dtype."""
    tiles: Tiles
    seconds: float
    library_s: float
    """The fastest of the library's ways of computing the same."""


@dataclass(frozen=True, slots=True)
class MeasuredTiles:
    """What one GPU's measurements say."""

    device: str
    """The GPU's name."""
    version: str
    """Of the kernels that were measured."""
    found: tuple[MeasuredTile, ...]

    def product(self, p: ProductShape, asked: Fp32Products, offered: Collection[Tiles]) -> Tiles | None:
        """The tile for `p`, of those `offered`: that of the shape measured which is most like it; None where none of its class was."""
        alike = [
            m
            for m in self.found
            if isinstance(m.shape, ProductShape)
            and (m.shape.dtype, m.shape.sums, shape_class(m.shape)) == (p.dtype, p.sums, shape_class(p))
            and _is_usable(m, p.dtype, asked, offered)
        ]
        return _nearest(alike, p, ("batch", "rows", "columns", "inner"))

    def attention(self, p: AttentionShape, asked: Fp32Products, offered: Collection[Tiles]) -> Tiles | None:
        """As `product`, for an attention over keys in one piece or in several."""
        alike = [
            m
            for m in self.found
            if isinstance(m.shape, AttentionShape)
            and (m.shape.dtype, m.shape.head, m.shape.key_tiles > 1) == (p.dtype, p.head, p.key_tiles > 1)
            and _is_usable(m, p.dtype, asked, offered)
        ]
        return _nearest(alike, p, ("batch", "queries", "keys"))

    def with_tile(self, new: MeasuredTile) -> MeasuredTiles:
        """With `new` in place of what was measured of its shape before."""
        others = (m for m in self.found if (m.shape, m.fp32_products) != (new.shape, new.fp32_products))
        return MeasuredTiles(self.device, self.version, (*others, new))

    def text(self) -> str:
        """As a file that `measured_tiles_of` reads back to an equal value: a line a shape."""
        head = {"einpage_tiles": FORMAT, "device": self.device, "version": self.version}
        rows = [json.dumps(_facts(m)) for m in self.found]
        return json.dumps(head)[:-1] + ', "found": [' + ",".join(f"\n  {row}" for row in rows) + "\n]}\n"


def _is_usable(m: MeasuredTile, dtype: DType, asked: Fp32Products, offered: Collection[Tiles]) -> bool:
    """Whether a tile was measured with products as they are asked for, and is one that the tables have."""
    return m.fp32_products is (asked if dtype is DType.FP32 else None) and m.tiles in offered


def _nearest(alike: Sequence[MeasuredTile], p: ProductShape | AttentionShape, sides: Sequence[str]) -> Tiles | None:
    """Of the shape whose sides differ from those of `p` by the smallest factors; the first of several."""

    def distance(m: MeasuredTile) -> float:
        return sum(abs(log2(getattr(m.shape, side) / getattr(p, side))) for side in sides)

    return min(alike, key=distance).tiles if alike else None


def _facts(m: MeasuredTile) -> dict[str, object]:
    kind = _KIND[type(m.shape)]
    shape = {**asdict(m.shape), "dtype": m.shape.dtype.value}
    product = None if m.fp32_products is None else m.fp32_products.value
    return {kind: shape, "fp32_products": product, "tile": asdict(m.tiles), "seconds": m.seconds, "library_s": m.library_s}


def measured_tiles_of(text: bytes, device: str, version: str) -> MeasuredTiles:
    """The file's value. Raises UsageError, one line that says what is wrong: it is no such file, or is damaged, or was measured on another
    GPU than `device` or with other kernels than `version`."""
    try:
        raw = _mapping(parsed(text), "the file", ("einpage_tiles", "device", "version", "found"))
    except (JsonError, JsonTooLarge) as error:
        raise UsageError(f"it is damaged: {error}") from error
    if raw["einpage_tiles"] != FORMAT or type(raw["einpage_tiles"]) is not int:
        raise UsageError(f"it is damaged: einpage_tiles is {_shown(raw['einpage_tiles'])}, not {FORMAT}")
    for key, here, what in (("device", device, "on another GPU"), ("version", version, "with other kernels")):
        if raw[key] != here:
            raise UsageError(f"it was measured {what}: {key} is {_shown(raw[key])}, here it is {_shown(here)}")
    if not isinstance(raw["found"], list):
        raise UsageError(f"it is damaged: found is {_shown(raw['found'])}, not a list")
    return MeasuredTiles(device, version, tuple(_tile(row, f"found[{i}]") for i, row in enumerate(raw["found"])))


def _tile(raw: object, where: str) -> MeasuredTile:
    kind = next((k for k in _SHAPE if isinstance(raw, dict) and k in raw), "product")
    row = _mapping(raw, where, (kind, "fp32_products", "tile", "seconds", "library_s"))
    numbers = _mapping(row[kind], f"{where}.{kind}", [f.name for f in fields(_SHAPE[kind])])
    dtype = _word(numbers.pop("dtype"), f"{where}.{kind}.dtype", DType)
    shape = _SHAPE[kind](dtype=dtype, **{name: _whole(n, f"{where}.{kind}.{name}", 1) for name, n in numbers.items()})
    words = row["fp32_products"]
    asked = None if words is None else _word(words, f"{where}.fp32_products", Fp32Products)
    if (asked is None) != (dtype is not DType.FP32):
        raise UsageError(f"it is damaged: {where}.fp32_products is {_shown(words)} of {dtype.value}")
    tile = _mapping(row["tile"], f"{where}.tile", [f.name for f in fields(Tiles)])
    checked: dict[str, Any] = {
        name: _flag(x, f"{where}.tile.{name}") if name in _FLAGS else _whole(x, f"{where}.tile.{name}", 0) for name, x in tile.items()
    }
    return MeasuredTile(shape, asked, Tiles(**checked), *(_seconds(row[key], f"{where}.{key}") for key in ("seconds", "library_s")))


_SHAPE: dict[str, type[ProductShape] | type[AttentionShape]] = {"product": ProductShape, "attention": AttentionShape}
_KIND = {shape: kind for kind, shape in _SHAPE.items()}
_FLAGS = frozenset(f.name for f in fields(Tiles) if f.type == "bool")
_Word = TypeVar("_Word", DType, Fp32Products)


def _mapping(raw: object, where: str, keys: Collection[str]) -> dict[str, Any]:
    """`raw`, a mapping with these keys. Raises UsageError."""
    if not isinstance(raw, dict):
        raise UsageError(f"it is damaged: {where} is {_shown(raw)}, not a mapping")
    for what, names in (("lacks", set(keys) - set(raw)), ("has the unknown key", set(raw) - set(keys))):
        if names:
            raise UsageError(f"it is damaged: {where} {what} {_shown(min(names))}")
    return dict(raw)


def _whole(raw: object, where: str, least: int) -> int:
    if type(raw) is not int or not least <= raw <= MOST_NUMBER:
        raise UsageError(f"it is damaged: {where} is {_shown(raw)}, not a whole number from {least} on")
    return raw


def _flag(raw: object, where: str) -> bool:
    if type(raw) is not bool:
        raise UsageError(f"it is damaged: {where} is {_shown(raw)}, not true or false")
    return raw


def _seconds(raw: object, where: str) -> float:
    if not (isinstance(raw, int | float) and type(raw) is not bool and 0 < raw < MOST_NUMBER):
        raise UsageError(f"it is damaged: {where} is {_shown(raw)}, not a time above 0")
    return float(raw)


def _word(raw: object, where: str, words: type[_Word]) -> _Word:
    found = next((word for word in words if word.value == raw), None)
    if found is None:
        raise UsageError(f"it is damaged: {where} is {_shown(raw)}, not one of {', '.join(word.value for word in words)}")
    return found


def _shown(raw: object) -> str:
    """`raw` as one short line."""
    return one_line(json.dumps(raw, ensure_ascii=False)[:60])
