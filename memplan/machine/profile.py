"""Machine profiles: a Machine as YAML.

In: a name from specs/machines/ (or a path), and overrides. Out: a Machine. Invariant: every rate and size is positive and finite, every
latency at least zero and at most MOST_LATENCY_S; a profile that says otherwise is refused, with the line. It is read as a spec is: nothing
is constructed, and size, depth, aliases and numbers are bounded. What machine_text writes reads back to an equal Machine.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from difflib import get_close_matches
from os.path import exists, isdir
from pathlib import Path
from typing import Any

import yaml

from einpage.einsum_front.base.dtype import RUN_DTYPES, DType
from einpage.einsum_front.base.errors import UsageError
from einpage.einsum_front.base.files import not_regular, read_text
from einpage.einsum_front.base.libraries import NEVER, ONLY_TORCH, FasterFrom, Libraries
from einpage.einsum_front.base.units import parse_bytes, parse_rate, shown
from einpage.einsum_front.spec.yamltree import MAX_CHARACTERS, YamlMapping
from einpage.memplan.machine.disk_reads import disk_reads_of, disk_reads_values
from einpage.memplan.machine.fields import ProfileField, profile_fields, shown_node
from einpage.memplan.machine.machine import Machine, Measurement
from einpage.memplan.machine.places import Link, Place, PlaceKind, Queue, host_links
from einpage.memplan.machine.times_text import MOST_LATENCY_S, kernel_times_of, kernel_times_values

PROFILES = Path(__file__).parents[2] / "specs" / "machines"
"""Beside the package, in a checkout (through the link einpage/specs) and in a wheel alike."""


LIBRARIES = tuple(asdict(ONLY_TORCH))
SHAPE_CLASSES = tuple(asdict(NEVER))
KEYS = frozenset((
    "name", "device_bytes", "host_bytes", "flops_per_s", "device_bytes_per_s", "h2d_bytes_per_s", "d2h_bytes_per_s", "copy_latency_s",
    "launch_latency_s", "usual_slowdown", "kernel_times", "measured", "threads", *LIBRARIES, "links", "disk", "about",
))  # fmt: skip
OPTIONAL = frozenset(("usual_slowdown", "kernel_times", "measured", "threads", *LIBRARIES, "links", "disk", "about"))
MEASURED_KEYS = frozenset(("spread", "others", "cores"))
LINK_KEYS = frozenset(("source", "target", "bytes_per_s", "latency_s", "each_s"))
LINK_EXAMPLE = "{source: disk, target: host, bytes_per_s: 3GB/s, latency_s: 1e-4}"

OUTDATED = "its usual_slowdown is no longer used: predictions are made of kernel_times, which it has not, or else of its rates alone"
MOST_THREADS = 1024
"""More than any machine has cores; far more than that ends the process inside the threading library."""
MOST_CORES = 2**20
MOST_ELEMENTS = 2**62
"""Of a matrix: more than any memory holds."""
LEAST_FLOPS = 1e-6
"""FLOP/s: whatever a task computes takes a time that a float holds."""


def machine_names() -> tuple[str, ...]:
    """The profiles that ship, sorted."""
    return tuple(sorted(p.stem for p in PROFILES.glob("*.yaml")))


def load_machine(
    name_or_path: str | Path,
    *,
    h2d: float | str | None = None,
    d2h: float | str | None = None,
    device_bytes: int | str | None = None,
    host_bytes: int | str | None = None,
    threads: int | None = None,
) -> Machine:
    """The profile of that name (`h100`) or in that file (`my.yaml`), with figures overridden.

    `h2d` and `d2h` are bytes/s, numbers or text such as `25GB/s`; sizes are bytes or text such as `80GiB`.
    Raises UsageError for an unknown name (with what exists and what is close), and for a file that is not a whole, sane profile.
    """
    machine = _read(_find(name_or_path))
    if h2d is not None:
        machine = machine.with_rate(Queue.H2D, parse_rate(h2d, "--h2d"))
    if d2h is not None:
        machine = machine.with_rate(Queue.D2H, parse_rate(d2h, "--d2h"))
    if device_bytes is not None:
        machine = replace(machine, device_bytes=parse_bytes(device_bytes, "--device-bytes"))
    if host_bytes is not None:
        machine = replace(machine, host_bytes=parse_bytes(host_bytes, "--host-bytes"))
    if threads is not None:
        machine = replace(machine, threads=checked_threads(threads))
    return machine


def checked_threads(threads: int) -> int:
    """`threads` where a kernel may be given so many. Raises UsageError."""
    if not 1 <= threads <= MOST_THREADS:
        raise UsageError(
            f"--threads {shown(threads)}: expected a number from 1 to {MOST_THREADS}; leave it out for what suits this machine"
        )
    return threads


def machine_from_text(text: str, where: str) -> Machine:
    """The Machine that a profile's YAML describes. `where` names it in messages. Raises UsageError."""
    fields = profile_fields(text, where)
    for key, field in fields.items():
        if key not in KEYS:
            close = get_close_matches(key, sorted(KEYS), n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            place = f"{where}:{field.node.span.line}"
            raise UsageError(f"{place}: unknown key {shown(key)}{hint}; keys are {', '.join(sorted(KEYS))}")
    missing = sorted(KEYS - OPTIONAL - set(fields))
    if missing:
        raise UsageError(f"{where}: missing {', '.join(missing)}")
    machine = Machine(
        name=fields["name"].text(),
        device_bytes=parse_bytes(*fields["device_bytes"].amount()),
        host_bytes=parse_bytes(*fields["host_bytes"].amount()),
        flops_per_s=_flops(fields["flops_per_s"]),
        device_bytes_per_s=parse_rate(*fields["device_bytes_per_s"].amount()),
        launch_latency_s=fields["launch_latency_s"].number(0.0, MOST_LATENCY_S),
        kernel_times=kernel_times_of(fields["kernel_times"]) if "kernel_times" in fields else None,
        threads=_threads(fields["threads"]) if "threads" in fields else None,
        libraries=_libraries(fields),
        measured=_measurement(fields["measured"]) if "measured" in fields else None,
        disk=disk_reads_of(fields["disk"]) if "disk" in fields else (),
        outdated=OUTDATED if "usual_slowdown" in fields else "",
        about=fields["about"].text().strip() if "about" in fields else "",
        links=host_links(
            parse_rate(*fields["h2d_bytes_per_s"].amount()),
            parse_rate(*fields["d2h_bytes_per_s"].amount()),
            fields["copy_latency_s"].number(0.0, MOST_LATENCY_S),
        ),
    )
    return machine.with_links(*_links(fields["links"])) if "links" in fields else machine


def machine_text(machine: Machine) -> str:
    """`machine` as a profile that load_machine reads back to an equal Machine."""
    inward, outward = machine.link(Queue.H2D), machine.link(Queue.D2H)
    said = host_links(inward.bytes_per_s, outward.bytes_per_s, inward.latency_s)
    raw: dict[str, Any] = {
        "name": machine.name,
        "device_bytes": machine.device_bytes,
        "host_bytes": machine.host_bytes,
        "flops_per_s": {dtype.value: flops for dtype, flops in machine.flops_per_s},
        "device_bytes_per_s": machine.device_bytes_per_s,
        "h2d_bytes_per_s": inward.bytes_per_s,
        "d2h_bytes_per_s": outward.bytes_per_s,
        "copy_latency_s": inward.latency_s,
        "launch_latency_s": machine.launch_latency_s,
    }
    if machine.kernel_times is not None:
        raw["kernel_times"] = kernel_times_values(machine.kernel_times)
    if machine.measured is not None:
        raw["measured"] = asdict(machine.measured)
    if machine.threads is not None:
        raw["threads"] = machine.threads
    for library, faster in asdict(machine.libraries).items():
        if found := {name: least for name, least in faster.items() if least is not None}:
            raw[library] = found
    if others := [link for link in machine.links if link not in said]:
        raw["links"] = [_link_out(link) for link in others]
    if machine.disk:
        raw["disk"] = disk_reads_values(machine.disk)
    return yaml.safe_dump({**raw, "about": machine.about}, sort_keys=False, allow_unicode=True)


def _link_out(link: Link) -> dict[str, Any]:
    source, target = str(link.queue.source), str(link.queue.target)
    each = {"each_s": link.each_s} if link.each_s else {}
    return {"source": source, "target": target, "bytes_per_s": link.bytes_per_s, "latency_s": link.latency_s, **each}


def _find(name_or_path: str | Path) -> Path:
    path, names = Path(name_or_path), machine_names()
    if str(name_or_path) in names:
        return PROFILES / f"{name_or_path}.yaml"
    if path.suffix in (".yaml", ".yml") or len(path.parts) > 1:
        if exists(path) and not isdir(path):
            return path
        raise UsageError(f"machine profile {path} {not_regular(path)}; profiles that ship: {', '.join(names)}")
    close = get_close_matches(str(name_or_path).lower(), names, n=2)
    hint = f"did you mean {' or '.join(close)}? " if close else ""
    raise UsageError(f"unknown machine {str(name_or_path)!r}; {hint}there are {', '.join(names)}, or give a path ending in .yaml")


def _read(path: Path) -> Machine:
    return machine_from_text(read_text(path, f"machine profile {path}", MAX_CHARACTERS), str(path))


def _flops(field: ProfileField) -> tuple[tuple[DType, float], ...]:
    words = [d.value for d in RUN_DTYPES]
    if not isinstance(field.node, YamlMapping) or sorted(field.node.items) != sorted(words):
        raise UsageError(f"{field.what} must give FLOP/s for each of {', '.join(words)}, and is {shown_node(field.node)}")
    rates = field.fields()
    return tuple((d, rates[d.value].number(LEAST_FLOPS)) for d in RUN_DTYPES)


def _threads(field: ProfileField) -> int:
    return field.whole(1, MOST_THREADS)


def _libraries(found: Mapping[str, ProfileField]) -> Libraries:
    return Libraries(*(_faster_from(found[name]) if name in found else NEVER for name in LIBRARIES))


def _faster_from(field: ProfileField) -> FasterFrom:
    if not isinstance(field.node, YamlMapping) or not set(field.node.items) <= set(SHAPE_CLASSES):
        raise UsageError(f"{field.what} is {shown_node(field.node)}; it must be a mapping with some of {', '.join(SHAPE_CLASSES)}")
    return FasterFrom(**{name: least.whole(0, MOST_ELEMENTS) for name, least in field.fields().items()})


def _measurement(field: ProfileField) -> Measurement:
    found = field.fields()
    if set(found) != MEASURED_KEYS:
        raise UsageError(f"{field.what} must have {', '.join(sorted(MEASURED_KEYS))}, and has {', '.join(sorted(found)) or 'nothing'}")
    return Measurement(found["spread"].number(0.0), found["others"].number(0.0), found["cores"].whole(1, MOST_CORES))


def _links(field: ProfileField) -> Iterator[Link]:
    """What a profile says of links beside those between the host and the device, or in their place."""
    for entry in field.items("links", LINK_EXAMPLE):
        if not isinstance(entry.node, YamlMapping) or not {"source", "target", "bytes_per_s"} <= set(entry.node.items) <= LINK_KEYS:
            raise UsageError(f"{entry.what} is {shown_node(entry.node)}; write it as {LINK_EXAMPLE}")
        link = entry.fields()
        queue = Queue(_place(link["source"]), _place(link["target"]))
        if queue.source == queue.target:
            raise UsageError(f"{entry.what}: source and target are both {queue.source}")
        seconds = (link[key].number(0.0, MOST_LATENCY_S) if key in link else 0.0 for key in ("latency_s", "each_s"))
        yield Link(queue, parse_rate(*link["bytes_per_s"].amount()), *seconds)


def _place(field: ProfileField) -> Place:
    """`disk`, or `disk 1` where there are several."""
    found = re.fullmatch(rf"({'|'.join(kind.value for kind in PlaceKind)})(?: ([0-9]{{1,3}}))?", field.text())
    if found is None:
        raise UsageError(f"{field.what} is {shown_node(field.node)}; places are {', '.join(kind.value for kind in PlaceKind)}")
    return Place(PlaceKind(found[1]), int(found[2] or 0))
