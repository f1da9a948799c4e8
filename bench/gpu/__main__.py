"""All parts in a row, each in a process of its own and cut at its own limit: `python -m bench.gpu --out DIR [--dry-run]` (bench/gpu.sh).

What one part leaves of its time the later ones may use; the whole ends in time whatever a part does. The one results file is whole at
every moment. The last line says how it went. Exit status 0 only if every part that was asked for (but optional ones) finished with all
gates green; in a dry run a part without its files or wheels may be absent. Needs Python alone.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from types import FrameType

from bench import results
from bench.gpu import results_file, summary
from bench.gpu.parts import GO_ON, PART_BY_NAME, PARTS, TOTAL_S, usual
from bench.results import ROOT

TURNS = 8
"""How often a part is begun that dies or loses its device."""
GRACE_S = 5.0
"""Between a part's own deadline and its end by force."""


def main(words: list[str] | None = None) -> int:
    began = perf_counter()
    asked = arguments(words)
    signal.signal(signal.SIGTERM, _interrupt)
    command = "bench/gpu.sh " + " ".join(sys.argv[1:] if words is None else words)
    try:
        asked.lock = results_file.lock(asked.out)
    except (results_file.Busy, OSError) as error:
        print(f"gpu.sh: {error}", file=sys.stderr)
        return 2
    try:
        return _measured(asked, command, began)
    finally:
        os.close(asked.lock)


def _measured(asked: argparse.Namespace, command: str, began: float) -> int:
    """Run the parts, and say what they found. The exit status."""
    _start(asked, command)
    try:
        _run_all(asked, began)
    except KeyboardInterrupt:
        print("interrupted: what was measured is kept; --resume goes on", flush=True)
    found = summary.read(asked.out, asked.only)
    seconds = perf_counter() - began
    table = [*summary.lines(found)]
    results_file.put(asked.out, table=table)
    print("", *table, summary.verdict(found, asked.out / results_file.NAME, seconds), sep="\n", flush=True)
    allowed = {"green", "absent"} if asked.dry_run else {"green"}
    needed = [summary.word(part) for name, part in found.items() if not PART_BY_NAME[name].optional]
    return 0 if needed and all(word in allowed for word in needed) else 1


def _start(asked: argparse.Namespace, command: str) -> None:
    """The results file of this call: anew, or what an earlier call left."""
    here = asked.out / results_file.NAME
    if asked.resume is None:
        results_file.clear(asked.out)
    else:
        results_file.clear_parts(asked.out)
        if asked.resume != here and not here.is_file():
            results_file.put(asked.out, **results_file.read(asked.resume.parent))
    before = results_file.read(asked.out)
    calls = [*before.get("calls", []), {"command": command, "commit": results.commit()}]
    facts = {"command": command, "commit": results.commit(), "dry_run": asked.dry_run, "calls": calls}
    results_file.put(asked.out, **facts, parts=before["parts"])
    asked.call = len(calls) - 1


def _run_all(asked: argparse.Namespace, began: float) -> None:
    spare = 0.0
    done = summary.read(asked.out, asked.only) if asked.resume is not None else {}
    names = [name for name in asked.only if not (name in done and summary.is_done(done[name]))]
    for i, name in enumerate(names):
        left = asked.seconds - (perf_counter() - began)
        later = sum(PART_BY_NAME[other].limit_s for other in names[i + 1 :])
        limit = PART_BY_NAME[name].limit_s
        seconds = min(left - GRACE_S, max(limit + spare, left - later))
        if seconds < GRACE_S:
            print(f"[{name}] not started: {left:.0f} s are left", flush=True)
            continue
        started = perf_counter()
        _run(name, asked, seconds)
        spare = max(0.0, spare + limit - (perf_counter() - started))


def _run(part: str, asked: argparse.Namespace, seconds: float) -> None:
    """One part; begun again where it died or lost its device, ended by force where it does not end by itself."""
    began = perf_counter()
    for turn in range(TURNS):
        left = seconds - (perf_counter() - began)
        go = "on" if turn > 0 else "again" if asked.resume is not None else "anew"
        status = _process(part_command(part, asked, left, go), part, left, asked.lock) if left > 0 else None
        if status is None or status < 0:
            results_file.note_end(asked.out, part)
        if status is None or 0 <= status != GO_ON:
            return
        print(f"[{part}] {'lost its device' if status == GO_ON else f'died of signal {-status}'}", flush=True)


def _process(command: list[str], part: str, seconds: float, lock: int) -> int | None:
    """Its exit status; None where it was cut."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in (str(ROOT), os.environ.get("PYTHONPATH", "")) if p)}
    process = subprocess.Popen(command, cwd=ROOT, env=environment, process_group=0, pass_fds=(lock,))
    try:
        return process.wait(seconds + GRACE_S)
    except subprocess.TimeoutExpired:
        print(f"[{part}] cut after {seconds + GRACE_S:.0f} s", flush=True)
        return None
    finally:
        with suppress(ProcessLookupError):  # nothing it started outlives it
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def part_command(part: str, asked: argparse.Namespace, seconds: float, go: str) -> list[str]:
    words = [sys.executable, "-m", "bench.gpu.one", part, "--out", str(asked.out), "--seconds", f"{seconds:.1f}", "--go", go]
    words += ["--parent", str(os.getpid()), "--call", str(asked.call)]
    words += ["--dry-run"] if asked.dry_run else []
    words += ["--cases", asked.cases] if asked.cases else []
    words += ["--rehearse", asked.rehearse] if asked.rehearse else []
    return words + (["--model", str(asked.model)] if asked.model else [])


def _interrupt(signal_number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def arguments(words: list[str] | None) -> argparse.Namespace:
    names = ",".join(part.name for part in PARTS)
    parser = argparse.ArgumentParser(
        prog="bench/gpu.sh",
        description=__doc__,
        epilog="Also: --wheels DIR (what is missing is taken from there), --wheels-needed, --commit ID (what results call the commit).",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, help="folder for the results (default: $OUT, else bench/results/gpu; of a dry run local/gpu)")
    parser.add_argument("--dry-run", action="store_true", help="the whole script on the CPU with tiny sizes: measures nothing")
    parser.add_argument("--only", type=lambda text: text.split(","), default=usual(), metavar="PARTS", help=f"some of {names}")
    parser.add_argument("--cases", default="", metavar="TEXT", help="only the cases whose names have TEXT in them")
    parser.add_argument(
        "--resume",
        nargs="?",
        const="",
        metavar="FILE",
        help="go on where an earlier call ended, by its results (default: those in --out); what was right stays, all else is done again",
    )
    parser.add_argument("--seconds", type=float, default=TOTAL_S, help="for everything (default %(default).0f)")
    parser.add_argument("--model", type=Path, help="SmolLM2's GGUF file (default: the one in .cache, or its parts in bench/weights)")
    parser.add_argument("--rehearse", default="", metavar="MODULE", help="with --dry-run: it puts another driver in the place of CUDA's")
    asked = parser.parse_args(words)
    if unknown := [name for name in asked.only if name not in PART_BY_NAME]:
        parser.error(f"--only {','.join(unknown)}: there are {names}")
    if asked.rehearse and not asked.dry_run:
        parser.error("--rehearse needs --dry-run")
    asked.only = [part.name for part in PARTS if part.name in asked.only]
    folder = ROOT / "bench" / "results" / ("local/gpu" if asked.dry_run else "gpu")
    asked.out = (asked.out or Path(os.environ.get("OUT") or folder)).resolve()
    if asked.resume is not None:
        asked.resume = Path(asked.resume).resolve() if asked.resume else asked.out / results_file.NAME
        if not asked.resume.is_file():
            parser.error(f"--resume: there are no results at {asked.resume}")
    return asked


if __name__ == "__main__":
    sys.exit(main())
