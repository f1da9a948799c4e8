"""All parts in a row, each in a process of its own and cut at its own limit: `python -m bench.gpu --out DIR [--dry-run]` (bench/gpu.sh).

What one part leaves of its time the later ones may use; the whole ends in time whatever a part does. Results are on disk after every row.
Exit status 0 only if every part that was asked for (but OPTIONAL ones) finished with all gates green; in a dry run a part without its
files may be absent.
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

from bench.gpu import summary
from bench.gpu.one import GO_ON, PARTS
from bench.results import ROOT

LIMIT_S = {
    "links": 30.0,
    "compile": 70.0,
    "kernels": 85.0,
    "tests": 70.0,
    "smollm2": 30.0,
    "models": 155.0,
    "peers": 100.0,
    "tiles": 35.0,
}

TOTAL_S = 575.0
OPTIONAL = ("tiles",)
"""Parts that look for something better, and prove nothing of what is used."""
TURNS = 6
"""How often a part is begun that dies or loses its device."""
GRACE_S = 5.0
"""Between a part's own deadline and its end by force."""


def main(words: list[str] | None = None) -> int:
    began = perf_counter()
    asked = arguments(words)
    parts = tuple(part for part in PARTS if part in asked.parts)
    asked.out.mkdir(parents=True, exist_ok=True)
    for part in parts:  # what an earlier run left here is not this run's
        (asked.out / f"{part}.json").unlink(missing_ok=True)
    spare = 0.0
    for i, part in enumerate(parts):
        left = asked.seconds - (perf_counter() - began)
        later = sum(LIMIT_S[other] for other in parts[i + 1 :])
        seconds = min(left - GRACE_S, max(LIMIT_S[part] + spare, left - later))
        if seconds < GRACE_S:
            print(f"[{part}] not started: {left:.0f} s are left", flush=True)
            continue
        started = perf_counter()
        _run(part, asked, seconds)
        spare = max(0.0, spare + LIMIT_S[part] - (perf_counter() - started))
    found = summary.read(asked.out, parts)
    seconds = perf_counter() - began
    command = "bench/gpu.sh " + " ".join(sys.argv[1:] if words is None else words)
    path = summary.write(asked.out, command, found, seconds, asked.dry_run)
    print("", *summary.lines(found), f"{seconds:.0f} s in all; {path}", sep="\n", flush=True)
    allowed = {"green", "absent"} if asked.dry_run else {"green"}
    needed = [summary.word(part) for name, part in found.items() if name not in OPTIONAL]
    return 0 if needed and all(word in allowed for word in needed) else 1


def _run(part: str, asked: argparse.Namespace, seconds: float) -> None:
    """One part; begun again where it died or lost its device, ended by force where it does not end by itself."""
    began = perf_counter()
    for turn in range(TURNS):
        left = seconds - (perf_counter() - began)
        status = _process(part, asked, left, resume=turn > 0 and (asked.out / f"{part}.json").is_file()) if left > 0 else None
        if status is None or 0 <= status != GO_ON:
            return
        print(f"[{part}] {'lost its device' if status == GO_ON else f'died of signal {-status}'}", flush=True)


def _process(part: str, asked: argparse.Namespace, seconds: float, resume: bool) -> int | None:
    """Its exit status; None where it was cut."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in (str(ROOT), os.environ.get("PYTHONPATH", "")) if p)}
    process = subprocess.Popen(part_command(part, asked, seconds, resume), cwd=ROOT, env=environment, start_new_session=True)
    try:
        return process.wait(seconds + GRACE_S)
    except subprocess.TimeoutExpired:
        print(f"[{part}] cut after {seconds + GRACE_S:.0f} s", flush=True)
        return None
    finally:
        with suppress(ProcessLookupError):  # nothing it started outlives it
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def part_command(part: str, asked: argparse.Namespace, seconds: float, resume: bool) -> list[str]:
    words = [sys.executable, "-m", "bench.gpu.one", part, "--out", str(asked.out), "--seconds", f"{seconds:.1f}"]
    words += ["--dry-run"] if asked.dry_run else []
    words += ["--resume"] if resume else []
    return words + (["--model", str(asked.model)] if asked.model else [])


def arguments(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bench/gpu.sh",
        description=__doc__,
        epilog="Also: --wheels DIR (install what is missing from there), --commit ID (what results call the commit).",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, help="folder for the results (default: $OUT, else bench/results/gpu; of a dry run local/gpu)")
    parser.add_argument("--dry-run", action="store_true", help="the whole script on the CPU with tiny sizes: measures nothing")
    parser.add_argument("--parts", type=lambda text: text.split(","), default=list(PARTS), help=f"some of {','.join(PARTS)}")
    parser.add_argument("--seconds", type=float, default=TOTAL_S, help="for everything (default %(default).0f)")
    parser.add_argument("--model", type=Path, help="SmolLM2's GGUF file (default: the one in .cache)")
    asked = parser.parse_args(words)
    unknown = sorted(set(asked.parts) - set(PARTS))
    if unknown:
        parser.error(f"--parts {','.join(unknown)}: there are {', '.join(PARTS)}")
    folder = ROOT / "bench" / "results" / ("local/gpu" if asked.dry_run else "gpu")
    asked.out = (asked.out or Path(os.environ.get("OUT") or folder)).resolve()
    return asked


if __name__ == "__main__":
    sys.exit(main())
