"""Changes to valid files that a reader must survive: of JSON values, of bytes, of text. Each takes a Random and what it changes.

What they never make: files of more than a few hundred KB, so that a slow answer is the reader's own doing.
"""

from __future__ import annotations

import copy
import json
import struct
from random import Random
from typing import Any

NUMBERS: tuple[Any, ...] = (
    *(0, -1, 1, 2, 7, 255, 256, 2**31 - 1, 2**31, 2**32, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**31), -(2**63), 10**400),
    *(0.5, -0.0, 1e-300, 1e300, 1e308, float("nan"), float("inf"), float("-inf")),
)
WORDS = (
    "",
    "a" * 300,
    "\ud800",
    "\x00",
    "x/../y",
    "../../../etc",
    "{l}",
    "[",
    "é𝔸",
    "NaN",
    "fp32",
    "1e-5",
    "None",
    "\n",
    "\x1b[31m",
    "%s",
    "-1",
)
OTHERS: tuple[Any, ...] = (True, False, None, [], {}, [[]], {"": None}, [0] * 1000)


def value(random: Random) -> Any:
    """Anything that JSON may hold, seldom what is wanted."""
    kind = random.random()
    if kind < 0.5:
        return random.choice(NUMBERS)
    if kind < 0.75:
        return random.choice(WORDS)
    if kind < 0.97:
        return copy.deepcopy(random.choice(OTHERS))
    nested: Any = 1
    for _ in range(random.choice((40, 500, 3000))):
        nested = [nested]
    return nested


def json_text(raw: object) -> bytes:
    """As JSON, lone surrogates escaped; what nests beyond what the library writes, by hand."""
    try:
        return json.dumps(raw).encode()
    except RecursionError:
        return b'{"format": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"


def change_json(random: Random, raw: Any, edits: int | None = None) -> Any:
    """A copy of `raw` with one to three places changed: a value replaced, left out, doubled, moved, or a number off by a little."""
    raw = copy.deepcopy(raw)
    for _ in range(edits or random.choice((1, 1, 1, 2, 3))):
        try:
            raw = _changed_once(random, raw)
        except RecursionError:  # an edit before this one nests deeply
            break
    return raw


def _changed_once(random: Random, raw: Any) -> Any:
    parent, key = _place(random, raw)
    if parent is None:
        return value(random)
    found, choice = parent[key], random.random()
    if choice < 0.55:
        parent[key] = value(random)
    elif choice < 0.65:
        del parent[key]
    elif choice < 0.75 and type(found) is int:
        parent[key] = found + random.choice((-1, 1, 2, 256))
    elif choice < 0.85 and isinstance(parent, list):
        parent.insert(key, copy.deepcopy(random.choice(parent)))
    elif choice < 0.92:
        parent[key] = [found] if random.random() < 0.5 else {"a": found}
    else:
        other, place = _place(random, raw)
        if other is not None:
            parent[key] = copy.deepcopy(other[place])
    return raw


def _place(random: Random, raw: Any) -> tuple[Any, Any]:
    """A container inside `raw` and a key of it, shallow and deep ones alike; (None, None) where there is none."""
    parent, key = None, None
    while isinstance(raw, list | dict) and raw and (parent is None or random.random() < 0.8):
        parent, key = raw, random.choice(range(len(raw)) if isinstance(raw, list) else list(raw))
        raw = raw[key]
    return parent, key


def change_bytes(random: Random, data: bytes, head: int | None = None) -> bytes:
    """A few bytes changed, most of them among the first `head`: flipped, cut out, doubled, cut off, or overwritten by a number."""
    out = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 4))):
        within = min(head or len(out), len(out)) if random.random() < 0.8 else len(out)
        at = random.randrange(max(1, within))
        match random.randrange(6):
            case 0 if out:
                out[min(at, len(out) - 1)] ^= 1 << random.randrange(8)
            case 1:
                del out[at : at + random.choice((1, 4, 8, 64))]
            case 2:
                out[at:at] = out[at : at + random.choice((1, 4, 8, 64))]
            case 3:
                del out[at:]
            case 4:
                number = random.choice([n for n in NUMBERS if type(n) is int and -(2**63) <= n < 2**64])
                size = random.choice("BIQ")
                packed = struct.pack(f"<{size}", number % 2 ** (8 * struct.calcsize(f"<{size}")))
                out[at : at + len(packed)] = packed
            case _:
                out[at : at + random.choice((0, 1, 8))] = random.choice(WORDS).encode("utf-8", "surrogatepass")
    return bytes(out)


def change_text(random: Random, text: str, pieces: tuple[str, ...]) -> str:
    """`text` with a few places replaced by pieces, words by other words, or lines left out, doubled and moved."""
    for _ in range(random.choice((1, 1, 2, 3))):
        lines = text.split("\n")
        at = random.randrange(len(lines))
        match random.randrange(5):
            case 0:
                del lines[at]
            case 1:
                lines.insert(at, random.choice(lines))
            case 2 if ": " in lines[at]:
                lines[at] = lines[at].partition(": ")[0] + ": " + random.choice(pieces)
            case _:
                where = random.randrange(len(lines[at]) + 1)
                lines[at] = lines[at][:where] + random.choice(pieces) + lines[at][where + random.choice((0, 0, 1, 5)) :]
        text = "\n".join(lines)
    return text
