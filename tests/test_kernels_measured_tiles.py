"""Tiles measured on a GPU: what is read back, what is used of it, and what is refused in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.base.errors import UsageError
from einpage.kernels.tiles.attention_tiles import AttentionShape, attention_variants
from einpage.kernels.tiles.fp32_products import Fp32Products
from einpage.kernels.tiles.measured_tiles import MeasuredTile, MeasuredTiles, measured_tiles_of
from einpage.kernels.tiles.product_tiles import ProductShape, variants
from einpage.kernels.tiles.target import Choices, Target
from einpage.kernels.tiles.tiles import Tiles

BF, F = DType.BF16, DType.FP32
LARGE = ProductShape(BF, 1, 8192, 8192, 8192, 1)
FEW_TOKENS = ProductShape(BF, 1, 512, 11008, 4096, 1)
FULL = ProductShape(F, 1, 4096, 4096, 4096, 1)
HEADS = AttentionShape(BF, 128, 32, 2048, 2048, 1)
PERSISTENT = next(t for t in variants(LARGE, 90) if t.persistent)
POINTERS = next(t for t in variants(LARGE, 90) if not t.descriptors)
BY_ENGINE = next(t for t in attention_variants(HEADS, 90) if t.descriptors)
EXACT = variants(FULL, 90, Fp32Products.IEEE)[1]
TILES = MeasuredTiles(
    "NVIDIA H100",
    "abc, triton 3.6.0",
    (
        MeasuredTile(LARGE, None, PERSISTENT, 1.5e-3, 1.4e-3),
        MeasuredTile(FEW_TOKENS, None, POINTERS, 1e-4, 1e-4),
        MeasuredTile(FULL, Fp32Products.IEEE, EXACT, 7e-3, 3e-3),
        MeasuredTile(HEADS, None, BY_ENGINE, 4e-4, 5e-4),
    ),
)
ON_H100 = Target(90, choices=Choices(measured=TILES))


def read(text: bytes, device: str = TILES.device, version: str = TILES.version) -> MeasuredTiles:
    return measured_tiles_of(text, device, version)


def test_what_is_written_is_read_back() -> None:
    text = TILES.text()
    assert read(text.encode()) == TILES
    assert len(text.splitlines()) == 2 + len(TILES.found), "a line a shape, for whoever reads it"
    assert read(MeasuredTiles(TILES.device, TILES.version, ()).text().encode()).found == ()


# what is used


def test_a_measured_shape_has_its_tile_and_one_of_its_class_that_of_the_nearest() -> None:
    assert ON_H100.products(LARGE)[0] == PERSISTENT
    assert ON_H100.products(FEW_TOKENS)[0] == POINTERS
    assert ON_H100.products(replace(LARGE, rows=4096))[0] == PERSISTENT
    assert ON_H100.products(replace(FEW_TOKENS, rows=640))[0] == POINTERS
    assert ON_H100.attentions(HEADS)[0] == BY_ENGINE
    assert ON_H100.attentions(replace(HEADS, queries=16384, keys=16384))[0] == BY_ENGINE
    assert ON_H100.products(LARGE)[1:] == variants(LARGE, 90), "the tables' own come after it, for jobs that it does not suit"


@pytest.mark.parametrize(
    "other",
    [replace(LARGE, sums=2), replace(LARGE, rows=8), replace(LARGE, dtype=DType.FP16), replace(LARGE, rows=128)],
    ids=["another number of sums", "another class", "another dtype", "too few"],
)
def test_what_is_unlike_all_that_was_measured_has_the_tables_tile(other: ProductShape) -> None:
    assert ON_H100.products(other) == variants(other, 90)


def test_a_tile_that_two_classes_have_is_measured_for_each() -> None:
    narrow = ProductShape(BF, 1, 16384, 128, 4096, 1)
    both = next(t for t in variants(narrow, 90) if t.persistent)
    assert both in variants(LARGE, 90)
    target = Target(90, choices=Choices(measured=MeasuredTiles("x", "y", (MeasuredTile(narrow, None, both, 1.0, 1.0),))))
    assert target.products(narrow)[0] == both
    assert target.products(LARGE) == variants(LARGE, 90)


def test_exact_products_were_measured_apart() -> None:
    exact = replace(ON_H100, choices=replace(ON_H100.choices, fp32_products=Fp32Products.IEEE))
    assert exact.products(FULL)[0] == EXACT
    assert ON_H100.products(FULL) == variants(FULL, 90)


def test_a_tile_that_the_tables_do_not_offer_is_not_used() -> None:
    """It might take more shared memory than there is, and the launch would fail."""
    forged = MeasuredTiles(TILES.device, TILES.version, (MeasuredTile(LARGE, None, Tiles(256, 256, 128, 4, 9), 1e-9, 1.0),))
    assert Target(90, choices=Choices(measured=forged)).products(LARGE) == variants(LARGE, 90)
    assert Target(80, choices=Choices(measured=TILES)).products(LARGE) == variants(LARGE, 80)


def test_a_forced_tile_comes_before_a_measured_one() -> None:
    assert replace(ON_H100, product=POINTERS).products(LARGE)[0] == POINTERS


def test_a_shape_measured_again_has_one_tile() -> None:
    again = TILES.with_tile(MeasuredTile(LARGE, None, POINTERS, 1e-3, 1e-3))
    assert len(again.found) == len(TILES.found)
    assert Target(90, choices=Choices(measured=again)).products(LARGE)[0] == POINTERS


# what is refused


def test_the_file_of_another_gpu_or_of_other_kernels() -> None:
    text = TILES.text().encode()
    with pytest.raises(UsageError, match='measured on another GPU: device is "NVIDIA H100", here it is "NVIDIA A100"'):
        read(text, device="NVIDIA A100")
    with pytest.raises(UsageError, match=r'measured with other kernels: version is "abc, triton 3\.6\.0"'):
        read(text, version="abd, triton 3.6.0")


def first(raw: dict[str, Any]) -> Any:
    return raw["found"][0]


DAMAGE: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "no format": (lambda raw: raw.pop("einpage_tiles"), 'the file lacks "einpage_tiles"'),
    "later format": (lambda raw: raw.update(einpage_tiles=2), "einpage_tiles is 2, not 1"),
    "true is no format": (lambda raw: raw.update(einpage_tiles=True), "einpage_tiles is true"),
    "surplus key": (lambda raw: raw.update(note="x"), 'the file has the unknown key "note"'),
    "no list": (lambda raw: raw.update(found={}), "found is {}, not a list"),
    "no mapping": (lambda raw: raw["found"].append(3), r"found\[4\] is 3, not a mapping"),
    "no shape": (lambda raw: first(raw).pop("product"), r'found\[0\] lacks "product"'),
    "no rows": (lambda raw: first(raw)["product"].update(rows=0), r"found\[0\]\.product\.rows is 0, not a whole number from 1 on"),
    "half a row": (lambda raw: first(raw)["product"].update(rows=1.5), r"product\.rows is 1\.5"),
    "a truth for rows": (lambda raw: first(raw)["product"].update(rows=True), r"product\.rows is true"),
    "huge": (lambda raw: first(raw)["product"].update(rows=10**400), r"product\.rows is 1000"),
    "no dtype": (lambda raw: first(raw)["product"].update(dtype="fp8"), r'dtype is "fp8", not one of'),
    "fp32 of bf16": (lambda raw: first(raw).update(fp32_products="ieee"), r'fp32_products is "ieee" of bf16'),
    "no way of fp32": (lambda raw: raw["found"][2].update(fp32_products=None), "fp32_products is null of fp32"),
    "another way": (lambda raw: raw["found"][2].update(fp32_products="tf32"), r'fp32_products is "tf32", not one of tf32x3, ieee'),
    "no warps": (lambda raw: first(raw)["tile"].pop("warps"), r'found\[0\]\.tile lacks "warps"'),
    "a number for a truth": (lambda raw: first(raw)["tile"].update(persistent=1), r"tile\.persistent is 1, not true or false"),
    "no time": (lambda raw: first(raw).update(seconds=0), r"seconds is 0, not a time above 0"),
    "endless": (lambda raw: first(raw).update(seconds=10**400), "seconds is 1000"),
    "time is text": (lambda raw: first(raw).update(library_s="1"), r'library_s is "1", not a time above 0'),
    "two lines": (lambda raw: raw.update({"a\nb": 1}), r'unknown key "a\\nb"'),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_is_refused_in_one_line(damage: str) -> None:
    change, said = DAMAGE[damage]
    raw = json.loads(TILES.text())
    change(raw)
    with pytest.raises(UsageError, match=said) as caught:
        read(json.dumps(raw).encode())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text", [b"", b"\xff", b"[]", b"{", b"null", b"[" * 10_000, b'{"einpage_tiles": NaN}', TILES.text().encode()[:-10]]
)
def test_what_is_no_such_file(text: bytes) -> None:
    with pytest.raises(UsageError, match="it is damaged"):
        read(text)


@given(st.binary(max_size=40), st.integers(0, 1500), st.integers(0, 60))
def test_any_bytes_in_it_are_refused_or_read(some: bytes, at: int, length: int) -> None:
    text = TILES.text().encode()
    try:
        said = read(text[:at] + some + text[at + length :]).device
    except UsageError as error:
        said = str(error)
    assert said == TILES.device or (said.startswith("it ") and "\n" not in said)
