"""Machine profiles: the few figures a plan is made for. No device is needed to plan for it.

In: a name from specs/machines/ (or a path), and overrides. Out: a frozen Machine. Rates are sustained, with the engines busy together.
Invariant: every rate and size is positive and finite, every latency at least zero; a profile that says otherwise is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from math import isfinite
from pathlib import Path
from typing import Any

import yaml

from einpage.einsum_front.base.dtype import RUN_DTYPES, DType
from einpage.einsum_front.base.errors import UsageError
from einpage.einsum_front.base.units import parse_bytes, parse_rate
from einpage.einsum_front.graph.taskgraph import Op, Task, TaskGraph

PROFILES = Path(__file__).parents[2] / "specs" / "machines"
"""Beside the package, in a checkout (through the link einpage/specs) and in a wheel alike."""

_ANY_HOST = 2**60
"""Bytes of host memory where nobody said how many."""

MOST_THREADS = 1024
"""More than any machine has cores; far more than that ends the process inside the threading library."""


@dataclass(frozen=True, slots=True)
class Machine:
    name: str
    device_bytes: int
    host_bytes: int
    flops_per_s: tuple[tuple[DType, float], ...]
    """Matrix products, by run dtype."""
    device_bytes_per_s: float
    """Reads and writes inside the device."""
    h2d_bytes_per_s: float
    d2h_bytes_per_s: float
    copy_latency_s: float
    """Per copy over a link."""
    launch_latency_s: float
    """Per task."""
    usual_slowdown: float = 1.0
    """How many times longer than at these rates a run usually takes. Predictions count it; plans and bounds do not."""
    threads: int | None = None
    """For a CPU device: how many threads kernels use; None elsewhere."""
    about: str = ""
    """Where the figures come from."""

    def flops_of(self, dtype: DType) -> float:
        """FLOP/s for a run of `dtype`."""
        return dict(self.flops_per_s)[dtype]

    def compute_seconds(self, flops: int, nbytes: int, dtype: DType) -> float:
        """Roofline time of a task without its launch: the larger of arithmetic and memory traffic."""
        return max(flops / self.flops_of(dtype), nbytes / self.device_bytes_per_s)

    def h2d_seconds(self, nbytes: int) -> float:
        """Time of one copy from the host."""
        return self.copy_latency_s + nbytes / self.h2d_bytes_per_s

    def d2h_seconds(self, nbytes: int) -> float:
        """Time of one copy to the host."""
        return self.copy_latency_s + nbytes / self.d2h_bytes_per_s


def task_seconds(machine: Machine, graph: TaskGraph, task: Task) -> float:
    """How long `task` keeps its engine: what was given for it; else a gather its copy, any other task its launch and its roofline."""
    if task.seconds is not None:
        return task.seconds
    if task.gathers:
        return machine.h2d_seconds(graph.tensors[task.result].nbytes)
    return machine.launch_latency_s + machine.compute_seconds(task.flops, task.bytes_touched, graph.dtype)


def op_seconds(machine: Machine, graph: TaskGraph, op: Op) -> float:
    """The least that `op` keeps the compute engine, however it is cut: what was given for it, else its roofline; nothing for a gather."""
    if op.seconds is not None:
        return op.seconds
    return 0.0 if op.kind == "gather" else machine.compute_seconds(op.flops, op.bytes_touched, graph.dtype)


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
        machine = replace(machine, h2d_bytes_per_s=parse_rate(h2d, "--h2d"))
    if d2h is not None:
        machine = replace(machine, d2h_bytes_per_s=parse_rate(d2h, "--d2h"))
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


def links_only(h2d: float | str, d2h: float | str | None, device_bytes: int) -> Machine:
    """A machine of which only the links are known: for tasks that bring their own times.

    Copies have no latency, the host has room for everything, and `d2h` is `h2d` where it is not given. Raises UsageError.
    """
    h2d_rate = parse_rate(h2d, "--h2d")
    d2h_rate = h2d_rate if d2h is None else parse_rate(d2h, "--d2h")
    return Machine(
        name="links",
        device_bytes=device_bytes,
        host_bytes=_ANY_HOST,
        flops_per_s=(),
        device_bytes_per_s=max(h2d_rate, d2h_rate),
        h2d_bytes_per_s=h2d_rate,
        d2h_bytes_per_s=d2h_rate,
        copy_latency_s=0.0,
        launch_latency_s=0.0,
        about="Only the links were given: tasks bring their own times.",
    )


def machine_from_text(text: str, where: str) -> Machine:
    """The Machine that a profile's YAML describes. `where` names it in messages. Raises UsageError."""
    try:
        raw = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UsageError(f"{where}: not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(raw, dict):
        raise UsageError(f"{where}: a machine profile is a mapping, this is {type(raw).__name__}")
    known = {f.name for f in fields(Machine)}
    optional = {"usual_slowdown", "threads", "about"}
    for key in raw:
        if key not in known:
            close = get_close_matches(str(key), sorted(known), n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise UsageError(f"{where}: unknown key {key!r}{hint}; keys are {', '.join(sorted(known))}")
    missing = sorted(known - optional - set(raw))
    if missing:
        raise UsageError(f"{where}: missing {', '.join(missing)}")
    return Machine(
        name=str(raw["name"]),
        device_bytes=parse_bytes(raw["device_bytes"], f"{where}: device_bytes"),
        host_bytes=parse_bytes(raw["host_bytes"], f"{where}: host_bytes"),
        flops_per_s=_flops(raw["flops_per_s"], where),
        device_bytes_per_s=parse_rate(raw["device_bytes_per_s"], f"{where}: device_bytes_per_s"),
        h2d_bytes_per_s=parse_rate(raw["h2d_bytes_per_s"], f"{where}: h2d_bytes_per_s"),
        d2h_bytes_per_s=parse_rate(raw["d2h_bytes_per_s"], f"{where}: d2h_bytes_per_s"),
        copy_latency_s=_number(raw["copy_latency_s"], f"{where}: copy_latency_s", least=0.0),
        launch_latency_s=_number(raw["launch_latency_s"], f"{where}: launch_latency_s", least=0.0),
        usual_slowdown=_number(raw.get("usual_slowdown", 1.0), f"{where}: usual_slowdown", least=1.0),
        threads=_threads(raw.get("threads"), where),
        about=str(raw.get("about", "")).strip(),
    )


def machine_text(machine: Machine) -> str:
    """`machine` as a profile that load_machine reads back to an equal Machine."""
    raw: dict[str, Any] = {f.name: getattr(machine, f.name) for f in fields(Machine)}
    raw["flops_per_s"] = {dtype.value: flops for dtype, flops in machine.flops_per_s}
    if machine.threads is None:
        del raw["threads"]
    if machine.usual_slowdown == 1.0:
        del raw["usual_slowdown"]
    return yaml.safe_dump(raw, sort_keys=False, allow_unicode=True)


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
