"""What every part of the GPU measurement shares: where it runs, until when, and what it has found so far.

In: cases, each with its rows and the words of its correctness checks. Out: the part's entry in the one results file, rewritten after every
case, so that a run that is cut keeps what it had. Invariants: a row whose check failed holds no figure; a part that does not say `finished`
was cut; no case ends a process more than MOST_ATTEMPTS times.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from bench.gpu import results_file
from bench.gpu.machine_facts import machine_line, versions
from bench.gpu.wheels import cure

if TYPE_CHECKING:
    import torch

GPU_ONLY = frozenset(
    ("flops_per_s", "bytes_per_s", "ratio", "target", "meets", "floor_s", "floor_ratio", "link_s", "compute_alone_s", "times_ours")
)
"""Figures that say nothing on a CPU at tiny sizes: there they are null."""
MOST_ATTEMPTS = 2
"""At a case in the middle of which the process ends. Within one call it is not tried again at all."""
ENDED = "the process ended in the middle of it"


class Go(Enum):
    """How a part begins."""

    ANEW = "anew"
    ON = "on"
    """Where a process of this call died, or lost its device: what it was doing is not tried again."""
    AGAIN = "again"
    """Where an earlier call ended: what was right stays, all else is done again."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Where a part runs, and how long it may."""

    out: Path
    dry: bool
    """Tiny sizes on the CPU device with torch kernels: shows that the script works, measures nothing."""
    seconds: float
    command: str
    model: Path | None = None
    """SmolLM2's GGUF file."""
    rehearsed: bool = False
    """A dry run in which what needs a GPU goes through a driver that stands in for CUDA's."""
    only: str = ""
    """Cases whose names have this in them; all, where it is empty."""
    call: int = 0
    """Of those of the results, which one this is; it says the commit of its rows."""
    began: float = field(default_factory=perf_counter)

    @property
    def device(self) -> torch.device:
        import torch

        return torch.device("cpu" if self.dry else "cuda")

    @property
    def device_word(self) -> str:
        """As `--device` has it."""
        return "cpu" if self.dry and not self.rehearsed else "cuda"

    def left_s(self) -> float:
        return self.seconds - (perf_counter() - self.began)


class DeviceLost(Exception):
    """The device answers this process no more, as after an access to memory that is not there: a new process must go on."""


def device_answers() -> bool:
    """Whether this process can still use its device."""
    import torch

    if not torch.cuda.is_available():
        return True
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return False
    return True


class Report:
    """The cases of one part, on disk at every moment: what is said was written before."""

    def __init__(self, part: str, setting: Setting, go: Go = Go.ANEW) -> None:
        self.part, self.setting = part, setting
        before = {} if go is Go.ANEW else results_file.part_facts(setting.out, part)
        self.rows: list[dict[str, Any]] = before.get("rows", [])
        self.gates: list[dict[str, Any]] = before.get("gates", [])
        self.absent: dict[str, str] = before.get("absent", {})
        self.left_out: list[str] = before.get("left_out", [])
        self.begun: list[str] = before.get("begun", [])
        """Cases, each as often as it was."""
        self.ended: list[str] = before.get("ended", [])
        """Those in the middle of which a process died, or had to be ended, as whoever started it saw; each as often as that was."""
        self.facts: dict[str, Any] = before.get("facts", {})
        """What later parts use."""
        self.state = "cut"
        self.error: str | None = before.get("error")
        self._before_s: float = before.get("seconds", 0.0)
        self._case = ""
        self._stopped_in = before.get("case", "")
        if go is Go.AGAIN:
            self._forget_what_was_not_right()
        if self._stopped_in:
            self._gate(self._stopped_in, self._stopped_in, False, ENDED)
            self._stopped_in = ""
        self.write()

    def knows(self, what: str) -> bool:
        """Whether the case is done, or known to be absent."""
        return what in self.absent or any(gate["case"] == what for gate in self.gates)

    def begin(self, what: str, least_s: float = 0.0) -> bool:
        """Whether to go on with the case `what`: not where an earlier process did, nor where less than `least_s` is left, which is
        noted."""
        if self.knows(what):
            return False
        if self.setting.only and self.setting.only not in what:
            return False
        if not self.setting.dry and self.setting.left_s() < least_s:
            self.leave_out(what)
            return False
        self.begun.append(what)
        self._case = what
        self.write()  # so that whoever goes on knows what ended this process, should it end
        return True

    def end(self) -> None:
        """The case that was begun last is over."""
        self._case = ""
        self.write()

    @property
    def green(self) -> bool:
        """Finished, something was checked, and every check held."""
        return self.state == "finished" and bool(self.gates) and all(gate["ok"] for gate in self.gates)

    def check(self, what: str, ok: bool, detail: str) -> bool:
        """A gate of its own. Returns `ok`."""
        self._gate(self._case or what, what, ok, detail)
        self.write()
        self.say(f"{'ok ' if ok else 'RED'}  {what}: {detail}")
        return ok

    def row(self, what: str, ok: bool, check: str, key: Mapping[str, object], figures: Mapping[str, object], line: str) -> None:
        """A measured row, which ends its case; figures only where its check held; in a dry run those that speak of a GPU are absent."""
        self._gate(what, what, ok, check)
        if self.setting.dry:
            figures, line = {name: None if name in GPU_ONLY else value for name, value in figures.items()}, f"dry run; {check}"
        self.rows.append(
            {
                "what": what,
                "call": self.setting.call,
                **key,
                "check": check,
                **(figures if ok else {"refused": "its correctness check failed"}),
            }
        )
        self.end()
        self.say(f"{'ok ' if ok else 'RED'}  {what:<44} {line if ok else 'refused: ' + check}")

    def lacks(self, what: str, why: str) -> None:
        """Something that this machine or this environment does not have."""
        self.absent[what] = why
        self.end()
        self.say(f"--   {what}: absent: {why}")

    def leave_out(self, what: str) -> None:
        """Something the time did not suffice for."""
        if what not in self.left_out:
            self.left_out.append(what)
        self.write()
        self.say(f"--   {what}: left out, {max(0.0, self.setting.left_s()):.0f} s are left")

    def failed(self, what: str, error: BaseException) -> None:
        """A case that could not be done: it is absent where a wheel is missing that may be, else its gate is red; the rest goes on.
        Raises DeviceLost where that takes a new process."""
        if isinstance(error, ImportError) and (missing := cure(error.name)) is not None:
            self.lacks(what, missing)
            return
        self.error = "".join(traceback.format_exception(error))[-4000:]
        self.check(what, False, f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")
        self.end()
        self.need_device()

    def need_device(self) -> None:
        """Raises DeviceLost where the device does not answer any more."""
        if (not self.setting.dry or self.setting.rehearsed) and not device_answers():
            self.say("the device is lost to this process")
            raise DeviceLost

    def finish(self) -> None:
        self.state = "finished"
        self.end()

    def say(self, text: str) -> None:
        print(f"[{self.part}] {text}", flush=True)

    def write(self) -> None:
        facts = {
            "dry_run": self.setting.dry,
            "state": self.state,
            "green": self.green,
            "seconds": round(self._before_s + perf_counter() - self.setting.began, 1),
            "case": self._case or self._stopped_in,
            "gates": self.gates,
            "absent": self.absent,
            "left_out": self.left_out,
            "begun": self.begun,
            "ended": self.ended,
            "error": self.error,
            "facts": self.facts,
            "rows": self.rows,
        }
        machine = {"machine": machine_line(), "versions": versions()}
        results_file.put_part(self.setting.out, self.part, facts, machine)

    def _gate(self, case: str, what: str, ok: bool, detail: str) -> None:
        self.gates.append({"case": case, "what": what, "ok": ok, "detail": detail})

    def _forget_what_was_not_right(self) -> None:
        """So that it is done again: what is red, absent, left out, or was cut short, but for what has ended processes often enough."""
        stopped, self._stopped_in = self._stopped_in, ""
        if self.ended.count(stopped) >= MOST_ATTEMPTS:
            self._stopped_in = stopped
        wrong = {gate["case"] for gate in self.gates if not gate["ok"]}
        wrong -= {what for what in wrong if self.ended.count(what) >= MOST_ATTEMPTS and self._ended_processes(what)}
        wrong |= {*self.absent, stopped} - {self._stopped_in}
        self.gates = [gate for gate in self.gates if gate["case"] not in wrong]
        self.rows = [row for row in self.rows if row.get("what") not in wrong]
        self.absent, self.left_out, self.error = {}, [], None

    def _ended_processes(self, case: str) -> bool:
        return any(gate["case"] == case and gate["detail"] == ENDED for gate in self.gates)
