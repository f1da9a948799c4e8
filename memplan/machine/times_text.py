"""KernelTimes as a part of a profile's YAML.

In: a field of a profile. Out: KernelTimes; and back to plain values, which read back to an equal one. Invariant: every rate is positive and
finite, every time at least zero, every factor positive, and at least 1 where nothing gets
faster, rows ascend.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from einpage.einsum_front.base.errors import UsageError
from einpage.memplan.machine.fields import ProfileField
from einpage.memplan.machine.kernel_times import AtDistance, AtRows, CopyTimes, KernelTimes, MapTimes, ProductTimes
from einpage.memplan.machine.places import Link, Queue

MOST_LATENCY_S = 3600.0
MOST_FACTOR = 1e6
MOST_ROWS = 2**40
LEAST_RATE = 1e-6
"""FLOP/s or bytes/s: whatever is done takes a time that a float holds."""
ROWS_EXAMPLE = "{rows: 64, flops_per_s: 8e10, beside_copies: 1.1, strided: 1.0, by_columns: 1.0, slows_copies: 1.2}"
DISTANCES_EXAMPLE = "{nbytes: 67108864, times_longer: 1.5}"


def kernel_times_of(field: ProfileField) -> KernelTimes:
    """What the field says. Raises UsageError."""
    at = _mapping(field, ("start_s", "wakeup_s", "products", "attention", "few_queries", "maps", "copies"))
    products = _mapping(at["products"], ("launch_s", "epilogue_s", "function_s", "unpack_s", "at_rows"))
    maps = _mapping(at["maps"], ("launch_s", "operation_s", "element_s", "function_s", "look_up_s", "beside_copies", "slows_copies"))
    copies = _mapping(at["copies"], ("h2d_bytes_per_s", "d2h_bytes_per_s", "latency_s", "gather_s", "together", "at_distances"))
    latency_s = _seconds(copies["latency_s"])
    rates = ((Queue.H2D, copies["h2d_bytes_per_s"]), (Queue.D2H, copies["d2h_bytes_per_s"]))
    return KernelTimes(
        start_s=_seconds(at["start_s"]),
        wakeup_s=_seconds(at["wakeup_s"]),
        products=ProductTimes(
            _seconds(products["launch_s"]), tuple(_at_rows(products["at_rows"])),
            epilogue_s=_seconds(products["epilogue_s"]), function_s=_seconds(products["function_s"]),
            unpack_s=_seconds(products["unpack_s"]),
        ),
        attention=_attention(at["attention"]),
        few_queries=_attention(at["few_queries"]),
        maps=MapTimes(
            launch_s=_seconds(maps["launch_s"]),
            operation_s=_seconds(maps["operation_s"]),
            element_s=_seconds(maps["element_s"]),
            function_s=_seconds(maps["function_s"]),
            look_up_s=_seconds(maps["look_up_s"]),
            beside_copies=_ratio(maps["beside_copies"]),
            slows_copies=_ratio(maps["slows_copies"]),
        ),
        copies=CopyTimes(
            tuple(Link(queue, rate.number(LEAST_RATE), latency_s) for queue, rate in rates),
            _seconds(copies["gather_s"]),
            _factor(copies["together"]),
            tuple(_at_distances(copies["at_distances"])),
        ),
    )  # fmt: skip


def kernel_times_values(times: KernelTimes) -> dict[str, Any]:
    """`times` as plain values for YAML and JSON."""
    copies, maps = times.copies, times.maps
    rates = {f"{link.queue.name}_bytes_per_s": link.bytes_per_s for link in copies.links}
    return {
        "start_s": times.start_s,
        "wakeup_s": times.wakeup_s,
        "products": {
            "launch_s": times.products.launch_s,
            "epilogue_s": times.products.epilogue_s,
            "function_s": times.products.function_s,
            "unpack_s": times.products.unpack_s,
            "at_rows": _rows_out(times.products),
        },
        "attention": _attention_out(times.attention),
        "few_queries": _attention_out(times.few_queries),
        "maps": {
            "launch_s": maps.launch_s,
            "operation_s": maps.operation_s,
            "element_s": maps.element_s,
            "function_s": maps.function_s,
            "look_up_s": maps.look_up_s,
            "beside_copies": maps.beside_copies,
            "slows_copies": maps.slows_copies,
        },
        "copies": {
            **rates,
            "latency_s": max((link.latency_s for link in copies.links), default=0.0),
            "gather_s": copies.gather_s,
            "together": copies.together,
            "at_distances": [at._asdict() for at in copies.at_distances],
        },
    }


def _attention(field: ProfileField) -> ProductTimes:
    at = _mapping(field, ("launch_s", "head_s", "at_rows"))
    return ProductTimes(_seconds(at["launch_s"]), tuple(_at_rows(at["at_rows"])), _seconds(at["head_s"]))


def _attention_out(times: ProductTimes) -> dict[str, Any]:
    return {"launch_s": times.launch_s, "head_s": times.head_s, "at_rows": _rows_out(times)}


def _rows_out(times: ProductTimes) -> list[dict[str, Any]]:
    return [asdict(at) for at in times.at_rows]


def _at_rows(field: ProfileField) -> Iterator[AtRows]:
    """The entries of a table, at least one, rows ascending."""
    before = 0
    entries = field.items("rates", ROWS_EXAMPLE)
    if not entries:
        raise UsageError(f"{field.what} is empty; it is a list of rates, as in {ROWS_EXAMPLE}")
    for entry in entries:
        at = _mapping(entry, ("rows", "flops_per_s", "beside_copies", "strided", "by_columns", "slows_copies"))
        before = at["rows"].whole(before + 1, MOST_ROWS)
        beside, by_columns, slows = (_ratio(at[key]) for key in ("beside_copies", "by_columns", "slows_copies"))
        yield AtRows(before, at["flops_per_s"].number(LEAST_RATE), beside, _factor(at["strided"]), by_columns, slows)


def _at_distances(field: ProfileField) -> Iterator[AtDistance]:
    """The entries of a list that may be empty, bytes ascending."""
    before = 0
    for entry in field.items("distances", DISTANCES_EXAMPLE):
        at = _mapping(entry, AtDistance._fields)
        before = at["nbytes"].whole(before + 1, MOST_ROWS)
        yield AtDistance(before, _factor(at["times_longer"]))


def _mapping(field: ProfileField, keys: tuple[str, ...]) -> dict[str, ProfileField]:
    """The values of a mapping with exactly these keys. Raises UsageError."""
    found = field.fields()
    if set(found) != set(keys):
        raise UsageError(f"{field.what} must have {', '.join(keys)}, and has {', '.join(sorted(found)) or 'nothing'}")
    return found


def _seconds(field: ProfileField) -> float:
    return field.number(0.0, MOST_LATENCY_S)


def _factor(field: ProfileField) -> float:
    return field.number(1.0, MOST_FACTOR)


def _ratio(field: ProfileField) -> float:
    """A factor that may be below 1."""
    return field.number(1 / MOST_FACTOR, MOST_FACTOR)
