"""Bytes, rates and seconds as people write them.

In: `96MiB`, `8GiB`, `1.5GB`, `1000`. Out: whole bytes. And back, for tables. Units are B, KB … TB (powers of 1000) and KiB … TiB (powers
of 1024), in any case, with or without a space before them.
"""

from __future__ import annotations

import re
from typing import NewType

from einpage.einsum_front.base.errors import UsageError

Nbytes = NewType("Nbytes", int)
"""A number of bytes."""

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB")
_DECIMAL = ("", "KB", "MB", "GB", "TB")
_FACTOR: dict[str, int] = {u.lower(): b**i for b, units in ((1024, _BINARY), (1000, _DECIMAL)) for i, u in enumerate(units)}
_AMOUNT = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)\s*([a-z]*)\s*", re.IGNORECASE)
_MOST = 2**62
_LEAST_RATE = 1e-6
"""Bytes per second: whatever fits any machine passes in a time that a float holds."""
_LONGEST = 200
"""Characters of an amount."""
_DIGITS = 18
_SHOWN = 40
"""Characters of a wrong argument that a message shows."""


def parse_bytes(text: str | int | float, what: str = "budget") -> Nbytes:
    """A positive number of bytes, fractions of a byte dropped. `what` names the argument in messages.

    Raises UsageError for zero, negative numbers, unknown units, and anything that is not an amount.
    """
    amount = _amount(text, what, "such as 96MiB, 8GiB, 1.5GB or 100000000")
    if amount < 1:
        raise UsageError(f"{what} {shown(text)} is not a positive number of bytes; write one such as 96MiB")
    return Nbytes(int(amount))


def parse_rate(text: str | int | float, what: str = "rate") -> float:
    """Bytes per second: `25GB`, `25GB/s`, `2.5e10`. Raises UsageError as parse_bytes does."""
    trimmed = text.strip().removesuffix("/s") if isinstance(text, str) else text
    amount = _amount(trimmed, what, "bytes per second, such as 25GB/s or 2.5e10")
    if amount <= 0:
        raise UsageError(f"{what} {shown(text)} is not a positive rate; write bytes per second such as 25GB/s")
    if amount < _LEAST_RATE:
        raise UsageError(f"{what} {shown(text)} is slower than any link; write bytes per second such as 25GB/s")
    return amount


def whole_number(text: str) -> int | None:
    """What `text` is in decimal digits, up to 10^18 - 1; None where it is anything else."""
    digits = text.strip()
    return int(digits) if digits.isdecimal() and len(digits) <= _DIGITS else None


def shown(value: object) -> str:
    """`value` as a message shows it: on one line, and cut where it is long."""
    if isinstance(value, str):
        return repr(value) if len(value) <= _SHOWN else f"{value[:_SHOWN]!r}… ({len(value)} characters)"
    if isinstance(value, int) and value.bit_length() > 4 * _SHOWN:
        return f"a whole number of {value.bit_length()} bits"
    try:
        text = repr(value)
    except ValueError:  # it holds a whole number of more digits than Python writes
        text = f"of type {type(value).__name__}"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def refuse_outside(option: str, value: float, low: float, high: float) -> None:
    """Raises UsageError for a number that is not in [low, high]: for NaN too, and for whole numbers of any length."""
    if not low <= value <= high:
        told = shown(value) if isinstance(value, int) else f"{value:g}"
        ends = [f"{n:,}" if isinstance(n, int) else f"{n:g}" for n in (low, high)]
        raise UsageError(f"{option} {told} is not between {ends[0]} and {ends[1]}")


def _amount(text: str | int | float, what: str, examples: str) -> float:
    if isinstance(text, bool) or not isinstance(text, str | int | float):
        raise UsageError(f"{what} {shown(text)} is not an amount of bytes; write {examples}")
    if (isinstance(text, str) and len(text) > _LONGEST) or (isinstance(text, int) and abs(text) > _MOST):
        raise UsageError(f"{what} {shown(text)} is more bytes than any machine has; write {examples}")
    found = _AMOUNT.fullmatch(str(text))
    if found is None:
        raise UsageError(f"{what} {shown(text)} is not an amount of bytes; write {examples}")
    number, unit = found.groups()
    if unit.lower() not in _FACTOR:
        raise UsageError(f"{what} {shown(text)} has the unknown unit {unit!r}; units are B, KB, MB, GB, TB, KiB, MiB, GiB, TiB")
    whole = re.fullmatch(r"[+-]?\d+", number) is not None
    amount: int | float = (int(number) if whole else float(number)) * _FACTOR[unit.lower()]
    if abs(amount) > _MOST:
        raise UsageError(f"{what} {shown(text)} is more bytes than any machine has; write {examples}")
    return amount


def format_bytes(nbytes: int | float) -> str:
    """`nbytes` in the largest binary unit that leaves at least 1, two decimals at most: 96MiB, 1.5GiB, 700B."""
    sign, amount = ("-" if nbytes < 0 else ""), float(abs(nbytes))
    for unit in _BINARY:
        if round(amount, 2) < 1024 or unit == _BINARY[-1]:
            return f"{sign}{amount:.2f}".rstrip("0").rstrip(".") + unit
        amount /= 1024
    raise AssertionError("unreachable: the last unit always answers")


def format_rate(bytes_per_s: float) -> str:
    """Decimal, as links are sold: 25.0 GB/s, 340.0 MB/s."""
    return f"{bytes_per_s / 1e9:.1f} GB/s" if bytes_per_s >= 1e9 else f"{bytes_per_s / 1e6:.1f} MB/s"


def format_seconds(seconds: float) -> str:
    """Three significant digits or so: 1.23 s, 45.6 ms, 7.8 µs."""
    for factor, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if seconds >= factor * 0.9995 or unit == "µs":
            value = seconds / factor
            return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f} {unit}"
    raise AssertionError("unreachable: the last unit always answers")


ALIGNMENT = 256
"""Bytes: every offset of a plan that is to run is a multiple of this, as kernels require."""


def aligned(nbytes: int, alignment: int = ALIGNMENT) -> Nbytes:
    """`nbytes` rounded up to a multiple of `alignment`."""
    return Nbytes(-(-nbytes // alignment) * alignment)
