"""One part in a process of its own: `python -m bench.gpu.one kernels --out DIR --seconds 60 [--dry-run]`.

Exit status 0 where every gate was green, GO_ON where a new process is to go on with --resume. Whatever else happens, the part's JSON file
says how far it came.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import torch

from bench.gpu.machine_facts import device_used_before
from bench.gpu.report import DeviceLost, Report, Setting

GO_ON = 75
PARTS = ("links", "compile", "kernels", "tests", "smollm2", "models", "peers", "tiles")
"""Most important first; a part may use what the ones before it left in the folder."""
MODULE_BY_PART = {name: f"bench.gpu.{name}" for name in PARTS} | {"tests": "bench.gpu.kernel_tests"}


def main(words: list[str] | None = None) -> int:
    asked = arguments(words)
    device_used_before()
    command = f"bench/gpu.sh --parts {asked.part}" + (" --dry-run" if asked.dry_run else "")
    setting = Setting(asked.out, asked.dry_run, asked.seconds, command, asked.model)
    report = Report(asked.part, setting, asked.resume)
    try:
        if not setting.dry and not torch.cuda.is_available():
            raise RuntimeError("torch finds no CUDA device here; --dry-run goes without one")
        import_module(MODULE_BY_PART[asked.part]).measure(report)
    except DeviceLost:
        return GO_ON
    except Exception as error:
        with suppress(DeviceLost):
            report.failed(asked.part, error)
        print(report.error, file=sys.stderr)
    report.finish()
    return 0 if report.green else 1


def arguments(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--model", type=Path)
    parser.add_argument("--resume", action="store_true", help="go on where a process that lost its device left off")
    return parser.parse_args(words)


if __name__ == "__main__":
    sys.exit(main())
