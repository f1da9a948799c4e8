"""One part in a process of its own: `python -m bench.gpu.one kernels --out DIR --seconds 60 [--dry-run]`.

Exit status 0 where every gate was green, GO_ON where a new process is to go on. Whatever else happens, the part's entry in the results says
how far it came. It does not outlive whoever started it.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from time import sleep

from bench.gpu.machine_facts import device_used_before
from bench.gpu.parts import GO_ON, PART_BY_NAME
from bench.gpu.report import DeviceLost, Go, Report, Setting

LOOK_S = 0.5
OVERTIME_S = 30
"""After a part's own deadline: by then whoever started it has ended it, if there is anyone."""


def main(words: list[str] | None = None) -> int:
    asked = arguments(words)
    if asked.parent:
        end_with(asked.parent, asked.seconds + OVERTIME_S)
    if asked.rehearse:
        import_module(asked.rehearse).begin(asked.part)
    else:
        device_used_before()
    command = f"bench/gpu.sh --only {asked.part}" + (" --dry-run" if asked.dry_run else "")
    setting = Setting(
        asked.out, asked.dry_run, asked.seconds, command, asked.model, bool(asked.rehearse), only=asked.cases, call=asked.call
    )
    report = Report(asked.part, setting, Go(asked.go))
    try:
        measure(report)
    except DeviceLost:
        return GO_ON
    except Exception as error:
        with suppress(DeviceLost):
            report.failed(asked.part, error)
        print(report.error or "", file=sys.stderr)
    report.finish()
    return 0 if report.green else 1


def measure(report: Report) -> None:
    """Run the part. Raises what it raises."""
    part = PART_BY_NAME[report.part]
    module = import_module(f"bench.gpu.{part.module or part.name}")
    if not report.setting.dry and part.name != "preflight":
        import torch

        if not torch.cuda.is_available():
            raise RuntimeError("torch finds no CUDA device here; --dry-run goes without one")
    getattr(module, part.function)(report)


def end_with(parent: int, seconds: float) -> None:
    """End this process, and all that it started in its group, when `parent` is no more: nothing else would where that was killed. After
    `seconds` the system ends it, whatever it is in."""
    signal.alarm(int(seconds) + 1)

    def watch() -> None:
        while os.getppid() == parent:
            sleep(LOOK_S)
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


def arguments(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=PART_BY_NAME)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--model", type=Path)
    parser.add_argument("--cases", default="", help="only those whose names have this in them")
    parser.add_argument("--go", choices=[go.value for go in Go], default=Go.ANEW.value, help="what an earlier process left stays")
    parser.add_argument("--call", type=int, default=0)
    parser.add_argument("--parent", type=int, default=0, help="the process without which this one ends")
    parser.add_argument("--rehearse", default="", help="a module that puts another driver in the place of CUDA's")
    return parser.parse_args(words)


if __name__ == "__main__":
    sys.exit(main())
