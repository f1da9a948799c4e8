"""Bytes, rates and seconds: what is read, what is refused, what is written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from einpage.einsum_front.base.errors import UsageError
from einpage.einsum_front.base.units import aligned, format_bytes, format_rate, format_seconds, parse_bytes, parse_rate


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("96MiB", 96 * 2**20), ("8GiB", 2**33), ("1.5GB", 1_500_000_000), ("1000", 1000), (1000, 1000), ("100 kb", 100_000),
        (" 2TiB ", 2**41), ("1e9", 10**9), ("1B", 1), ("1.0001KB", 1000), ("9007199254740993", 9007199254740993), (".5KiB", 512),
    ],
)  # fmt: skip
def test_amounts_of_bytes(text: str | int, nbytes: int) -> None:
    assert parse_bytes(text) == nbytes


@pytest.mark.parametrize(
    "text",
    [
        "0", 0, "-1", "-8GiB", "0.2", "", "MiB", "8GiBs", "8 potatoes", "nan", "inf", "1e400", "9" * 400, "-" + "9" * 400, "1,5GB",
        "8GiB 2MiB", "0x10", float("nan"), float("inf"), True, None, [1],
    ],
)  # fmt: skip
def test_nonsense_is_refused_with_the_argument_and_a_cure(text: object) -> None:
    with pytest.raises(UsageError, match=r"^budget .*(96MiB|GiB)") as caught:
        parse_bytes(text)  # type: ignore[arg-type]
    assert caught.value.exit_status == 2


def test_rates() -> None:
    assert parse_rate("25GB/s") == parse_rate("25GB") == parse_rate(25e9) == parse_rate("2.5e10") == 25e9
    assert parse_rate("0.5") == 0.5
    for text in ("0", "-1GB/s", "fast", "25GB/min"):
        with pytest.raises(UsageError, match="--h2d"):
            parse_rate(text, "--h2d")


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0B"), (700, "700B"), (1023, "1023B"), (1024, "1KiB"), (96 * 2**20, "96MiB"), (3 * 2**29, "1.5GiB"), (2**20 - 1, "1MiB"),
        (-2048, "-2KiB"),
    ],
)  # fmt: skip
def test_bytes_as_written(nbytes: int, text: str) -> None:
    assert format_bytes(nbytes) == text


@given(st.integers(1, 2**50))
def test_what_is_written_reads_back_within_half_a_percent(nbytes: int) -> None:
    assert parse_bytes(format_bytes(nbytes)) == pytest.approx(nbytes, rel=0.005)


def test_rates_and_seconds_as_written() -> None:
    assert format_rate(25e9) == "25.0 GB/s"
    assert format_rate(3.4e8) == "340.0 MB/s"
    written = [format_seconds(s) for s in (0.0, 7.8e-6, 4.56e-2, 0.9999, 1.234, 61.0)]
    assert written == ["0.00 µs", "7.80 µs", "45.6 ms", "1.00 s", "1.23 s", "61.0 s"]


@given(st.integers(0, 2**63), st.sampled_from((1, 2, 3, 16, 256, 4096)))
def test_aligned_is_the_next_multiple(nbytes: int, alignment: int) -> None:
    found = aligned(nbytes, alignment)
    assert found % alignment == 0 and nbytes <= found < nbytes + alignment
