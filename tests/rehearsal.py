"""What `bench/gpu.sh --dry-run --rehearse rehearsal` imports first: a driver with real delays in the place of CUDA's.

$REHEARSAL names a folder. In: `fault` there, JSON of a Fault: which call of the delayed driver fails, once. Out: `fault.met` when it did,
and in `ledger`, a line for each process that ended by itself: its part, and the bytes that it had allocated and registered then, which
ought to be none.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from delayed_driver import DelayedDriver, Held

FOLDER = "REHEARSAL"


@dataclass(frozen=True, slots=True)
class Fault:
    """In `part`, from the beginning of the case that has `case` in its name: the call of that kind that fails, counted from 1."""

    part: str
    case: str
    call: str
    number: int

    def write(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "fault").write_text(json.dumps(asdict(self)), encoding="utf-8")


class Fails:
    """Which call fails, by what the folder says. `case` is told of every case that begins."""

    def __init__(self, folder: Path, part: str) -> None:
        self._met, path = folder / "fault.met", folder / "fault"
        fault = Fault(**json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else None
        self._fault = fault if fault is not None and fault.part == part else None
        self._left: int | None = None

    def case(self, what: str) -> None:
        if self._fault is not None and self._fault.case in what and self._left is None:
            self._left = self._fault.number

    def __call__(self, call: str) -> bool:
        if self._fault is None or self._left is None or call != self._fault.call or self._met.exists():
            return False
        self._left -= 1
        if self._left:
            return False
        self._met.touch()
        return True


def begin(part: str) -> None:
    """Put the driver where parts look for CUDA's."""
    folder, held = Path(os.environ[FOLDER]), Held()
    for module, name, value in replacements(Fails(folder, part), held):
        assert hasattr(module, name), f"{module} has no {name} to replace"
        setattr(module, name, value)
    atexit.register(_leave, folder / "ledger", part, held)


def replacements(fails: Fails, held: Held) -> list[tuple[Any, str, Any]]:
    """(what has it, its name, what stands in for it)"""
    from bench.gpu import drivers, outcomes, report
    from einpage.exec.run import choose

    begin = report.Report.begin

    def told(self: report.Report, what: str, least_s: float = 0.0) -> bool:
        begun = begin(self, what, least_s)
        if begun:
            fails.case(what)
        return begun

    def driver() -> DelayedDriver:
        return DelayedDriver(fails, held)

    return [
        (choose, "CudaDriver", driver),
        (drivers, "CudaDriver", driver),
        (report, "device_answers", lambda: not held.lost),
        (outcomes, "device_answers", lambda: not held.lost),
        (report.Report, "begin", told),
    ]


def _leave(ledger: Path, part: str, held: Held) -> None:
    held.drain()
    gc.collect()
    with ledger.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"part": part, "allocated": held.allocated, "pinned": held.pinned, "lost": held.lost}) + "\n")
