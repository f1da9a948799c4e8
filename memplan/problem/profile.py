"""Machine profiles: a Machine as YAML.

In: a name from specs/machines/ (or a path), and overrides. Out: a Machine. Invariant: every rate and size is positive and finite, every
latency at least zero; a profile that says otherwise is refused. What machine_text writes reads back to an equal Machine.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from difflib import get_close_matches
from math import isfinite
from pathlib import Path
from typing import Any

import yaml

from einpage.einsum_front.base.dtype import RUN_DTYPES, DType
from einpage.einsum_front.base.errors import UsageError
from einpage.einsum_front.base.units import parse_bytes, parse_rate
from einpage.memplan.problem.machine import Machine
from einpage.memplan.problem.places import Link, Place, PlaceKind, Queue, host_links

PROFILES = Path(__file__).parents[2] / "specs" / "machines"
"""Beside the package, in a checkout (through the link einpage/specs) and in a wheel alike."""


KEYS = frozenset((
    "name", "device_bytes", "host_bytes", "flops_per_s", "device_bytes_per_s", "h2d_bytes_per_s", "d2h_bytes_per_s", "copy_latency_s",
    "launch_latency_s", "usual_slowdown", "threads", "links", "about",
))  # fmt: skip
OPTIONAL = frozenset(("usual_slowdown", "threads", "links", "about"))
LINK_KEYS = frozenset(("source", "target", "bytes_per_s", "latency_s"))
LINK_EXAMPLE = "{source: disk, target: host, bytes_per_s: 3GB/s, latency_s: 1e-4}"

MOST_THREADS = 1024
"""More than any machine has cores; far more than that ends the process inside the threading library."""


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
        raise UsageError(f"--threads {threads}: expected a number from 1 to {MOST_THREADS}; leave it out for what suits this machine")
    return threads


def machine_from_text(text: str, where: str) -> Machine:
    """The Machine that a profile's YAML describes. `where` names it in messages. Raises UsageError."""
    try:
        raw = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UsageError(f"{where}: not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(raw, dict):
        raise UsageError(f"{where}: a machine profile is a mapping, this is {type(raw).__name__}")
    for key in raw:
        if key not in KEYS:
            close = get_close_matches(str(key), sorted(KEYS), n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise UsageError(f"{where}: unknown key {key!r}{hint}; keys are {', '.join(sorted(KEYS))}")
    missing = sorted(KEYS - OPTIONAL - set(raw))
    if missing:
        raise UsageError(f"{where}: missing {', '.join(missing)}")
    machine = Machine(
        name=str(raw["name"]),
        device_bytes=parse_bytes(raw["device_bytes"], f"{where}: device_bytes"),
        host_bytes=parse_bytes(raw["host_bytes"], f"{where}: host_bytes"),
        flops_per_s=_flops(raw["flops_per_s"], where),
        device_bytes_per_s=parse_rate(raw["device_bytes_per_s"], f"{where}: device_bytes_per_s"),
        launch_latency_s=_number(raw["launch_latency_s"], f"{where}: launch_latency_s", least=0.0),
        usual_slowdown=_number(raw.get("usual_slowdown", 1.0), f"{where}: usual_slowdown", least=1.0),
        threads=_threads(raw.get("threads"), where),
        about=str(raw.get("about", "")).strip(),
        links=host_links(
            parse_rate(raw["h2d_bytes_per_s"], f"{where}: h2d_bytes_per_s"),
            parse_rate(raw["d2h_bytes_per_s"], f"{where}: d2h_bytes_per_s"),
            _number(raw["copy_latency_s"], f"{where}: copy_latency_s", least=0.0),
        ),
    )
    return machine.with_links(*_links(raw.get("links"), where))


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
    if machine.usual_slowdown != 1.0:
        raw["usual_slowdown"] = machine.usual_slowdown
    if machine.threads is not None:
        raw["threads"] = machine.threads
    if others := [link for link in machine.links if link not in said]:
        raw["links"] = [_link_out(link) for link in others]
    return yaml.safe_dump({**raw, "about": machine.about}, sort_keys=False, allow_unicode=True)


def _link_out(link: Link) -> dict[str, Any]:
    source, target = str(link.queue.source), str(link.queue.target)
    return {"source": source, "target": target, "bytes_per_s": link.bytes_per_s, "latency_s": link.latency_s}


def _find(name_or_path: str | Path) -> Path:
    path, names = Path(name_or_path), machine_names()
    if str(name_or_path) in names:
        return PROFILES / f"{name_or_path}.yaml"
    if path.suffix in (".yaml", ".yml") or len(path.parts) > 1:
        if path.is_file():
            return path
        raise UsageError(f"machine profile {path} does not exist; profiles that ship: {', '.join(names)}")
    close = get_close_matches(str(name_or_path).lower(), names, n=2)
    hint = f"did you mean {' or '.join(close)}? " if close else ""
    raise UsageError(f"unknown machine {str(name_or_path)!r}; {hint}there are {', '.join(names)}, or give a path ending in .yaml")


def _read(path: Path) -> Machine:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"machine profile {path} cannot be read: {error}") from error
    return machine_from_text(text, str(path))


def _number(raw: object, what: str, least: float) -> float:
    """A finite number; text is accepted, for YAML reads 1e-5 as text."""
    try:
        value = float(raw) if isinstance(raw, str | int | float) and not isinstance(raw, bool) else None
    except ValueError:
        value = None
    if value is None or not isfinite(value) or value < least:
        raise UsageError(f"{what} is {raw!r}; it must be a number of at least {least}")
    return value


def _flops(raw: object, where: str) -> tuple[tuple[DType, float], ...]:
    words = [d.value for d in RUN_DTYPES]
    if not isinstance(raw, Mapping) or sorted(map(str, raw)) != sorted(words):
        raise UsageError(f"{where}: flops_per_s must give FLOP/s for each of {', '.join(words)}, and is {raw!r}")
    rates = tuple((d, _number(raw[d.value], f"{where}: flops_per_s {d.value}", least=0.0)) for d in RUN_DTYPES)
    for dtype, rate in rates:
        if rate <= 0:
            raise UsageError(f"{where}: flops_per_s {dtype.value} is {rate}; it must be positive")
    return rates


def _threads(raw: object, where: str) -> int | None:
    if raw is None:
        return None
    if not isinstance(raw, int) or isinstance(raw, bool) or raw < 1:
        raise UsageError(f"{where}: threads is {raw!r}; it must be a whole number of at least 1")
    return raw


def _links(raw: object, where: str) -> Iterator[Link]:
    """What a profile says of links beside those between the host and the device, or in their place."""
    if not isinstance(raw, list | None):
        raise UsageError(f"{where}: links is a list of links, as in {LINK_EXAMPLE}, and is {raw!r}")
    for number, entry in enumerate(raw or ()):
        what = f"{where}: links[{number}]"
        if not isinstance(entry, dict) or not {"source", "target", "bytes_per_s"} <= set(entry) <= LINK_KEYS:
            raise UsageError(f"{what} is {entry!r}; write it as {LINK_EXAMPLE}")
        queue = Queue(_place(entry["source"], f"{what} source"), _place(entry["target"], f"{what} target"))
        if queue.source == queue.target:
            raise UsageError(f"{what}: source and target are both {queue.source}")
        rate = parse_rate(entry["bytes_per_s"], f"{what} bytes_per_s")
        yield Link(queue, rate, _number(entry.get("latency_s", 0.0), f"{what} latency_s", least=0.0))


def _place(raw: object, what: str) -> Place:
    """`disk`, or `disk 1` where there are several."""
    found = re.fullmatch(rf"({'|'.join(kind.value for kind in PlaceKind)})(?: ([0-9]{{1,3}}))?", str(raw))
    if found is None:
        raise UsageError(f"{what} is {raw!r}; places are {', '.join(kind.value for kind in PlaceKind)}")
    return Place(PlaceKind(found[1]), int(found[2] or 0))
