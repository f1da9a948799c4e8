"""What every part of the GPU measurement shares: where it runs, until when, and what it has found so far.

In: rows, each with the word of its correctness check. Out: one JSON file a part, rewritten after every row, so that a run that is cut keeps
what it had. Invariants: a row whose check failed holds no figure; a file that does not say `finished` was cut.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from bench import results
from bench.gpu.machine_facts import machine_line, versions

GPU_ONLY = frozenset(
    ("flops_per_s", "bytes_per_s", "ratio", "target", "meets", "floor_s", "floor_ratio", "link_s", "compute_alone_s", "times_ours")
)
"""Figures that say nothing on a CPU at tiny sizes: there they are null."""


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
    began: float = field(default_factory=perf_counter)

    @property
    def device(self) -> torch.device:
        return torch.device("cpu" if self.dry else "cuda")

    @property
    def device_word(self) -> str:
        """As `--device` has it."""
        return "cpu" if self.dry else "cuda"

    def left_s(self) -> float:
        return self.seconds - (perf_counter() - self.began)


class DeviceLost(Exception):
    """The device answers this process no more, as after an access to memory that is not there: a new process must go on."""


class Report:
    """The rows and gates of one part, on disk at every moment."""

    def __init__(self, part: str, setting: Setting, resume: bool = False) -> None:
        """With `resume` it goes on where a process that died, or lost its device, left it."""
        self.part, self.setting = part, setting
        before = json.loads((setting.out / f"{part}.json").read_text(encoding="utf-8")) if resume else {}
        self.rows: list[dict[str, Any]] = before.get("rows", [])
        self.gates: list[dict[str, Any]] = before.get("gates", [])
        self.absent: dict[str, str] = before.get("absent", {})
        self.left_out: list[str] = before.get("left_out", [])
        self.begun: list[str] = before.get("begun", [])
        self.state = "cut"
        self.error: str | None = before.get("error")
        judged = {gate["what"] for gate in self.gates} | set(self.absent)
        if self.begun and self.begun[-1] not in judged:
            self.gates.append({"what": self.begun[-1], "ok": False, "detail": "the process ended in the middle of it"})
        self.write()

    def begin(self, what: str, least_s: float = 0.0) -> bool:
        """Whether to go on with `what`: not where an earlier process did, nor where less than `least_s` is left, which is noted."""
        if what in self.begun:
            return False
        if not self.setting.dry and self.setting.left_s() < least_s:
            self.leave_out(what)
            return False
        self.begun.append(what)
        self.write()  # so that whoever goes on does not begin it again, should it end this process
        return True

    @property
    def green(self) -> bool:
        """Finished, something was checked, and every check held."""
        return self.state == "finished" and bool(self.gates) and all(gate["ok"] for gate in self.gates)

    def check(self, what: str, ok: bool, detail: str) -> bool:
        """A gate of its own. Returns `ok`."""
        self.gates.append({"what": what, "ok": ok, "detail": detail})
        self.say(f"{'ok ' if ok else 'RED'}  {what}: {detail}")
        self.write()
        return ok

    def row(self, what: str, ok: bool, check: str, key: Mapping[str, object], figures: Mapping[str, object], line: str) -> None:
        """A measured row, with figures only where its check held; in a dry run those that speak of a GPU are absent."""
        self.gates.append({"what": what, "ok": ok, "detail": check})
        if self.setting.dry:
            figures, line = {name: None if name in GPU_ONLY else value for name, value in figures.items()}, f"dry run; {check}"
        self.rows.append({**key, "check": check, **(figures if ok else {"refused": "its correctness check failed"})})
        self.say(f"{'ok ' if ok else 'RED'}  {what:<44} {line if ok else 'refused: ' + check}")
        self.write()

    def lacks(self, what: str, why: str) -> None:
        """Something that this machine or this environment does not have."""
        self.absent[what] = why
        self.say(f"--   {what}: absent: {why}")
        self.write()

    def leave_out(self, what: str) -> None:
        """Something the time did not suffice for."""
        self.left_out.append(what)
        self.say(f"--   {what}: left out, {max(0.0, self.setting.left_s()):.0f} s are left")
        self.write()

    def failed(self, what: str, error: BaseException) -> None:
        """A row that could not be made: its gate is red, the rest goes on. Raises DeviceLost where that takes a new process."""
        self.error = "".join(traceback.format_exception(error))[-4000:]
        self.check(what, False, f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")
        self.need_device()

    def need_device(self) -> None:
        """Raises DeviceLost where the device does not answer any more."""
        if self.setting.device.type == "cuda" and torch.cuda.is_available():
            try:
                torch.cuda.synchronize()
            except RuntimeError as error:
                self.say("the device is lost to this process")
                raise DeviceLost from error

    def finish(self) -> None:
        self.state = "finished"
        self.write()

    def say(self, text: str) -> None:
        print(f"[{self.part}] {text}", flush=True)

    def write(self) -> None:
        seconds = round(perf_counter() - self.setting.began, 1)
        facts = {
            "dry_run": self.setting.dry,
            "state": self.state,
            "green": self.green,
            "seconds": seconds,
            "versions": versions(),
            "gates": self.gates,
            "absent": self.absent,
            "left_out": self.left_out,
            "begun": self.begun,
            "error": self.error,
        }
        results.write(self.setting.out, self.part, self.setting.command, self.rows, **{"machine": machine_line(), **facts})
