"""What the fuzzers share: cases run in one worker process after another, each under a limit of memory and time, and what must hold of each.

In: a Fuzzer, which is valid cases (an argument list and the files it names) and how to change one. Out: Statistics, with every kind of
finding and the smallest case found that shows it. A case is made from (seed, number) alone, so any can be made again:

    python tests/fuzzing.py test_fuzz_files:PLAN_FILES --seconds 600 --seed 7
    python tests/fuzzing.py test_fuzz_files:PLAN_FILES --seed 7 --case 1234
"""

from __future__ import annotations

import argparse
import faulthandler
import importlib
import io
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from fuzz_case import Case, Fuzzer, case_text, run_case, shrunk

__all__ = ["Case", "Fuzzer", "Statistics", "assert_right_or_refused", "fuzz", "fuzz_seconds"]

HERE = Path(__file__).resolve().parent


@dataclass(slots=True)
class Statistics:
    """Of one run of a fuzzer."""

    seed: int
    cases: int = 0
    by_status: Counter[int] = field(default_factory=Counter)
    slowest_seconds: float = 0.0
    findings: dict[str, str] = field(default_factory=dict)
    """The first case that showed it, by kind of finding, for a person to run again."""
    times_found: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        """What a test shows where it fails."""
        ends = ", ".join(f"{n} × status {status}" for status, n in sorted(self.by_status.items()))
        head = f"seed {self.seed}: {self.cases} cases: {ends}; slowest {self.slowest_seconds:.1f} s; {len(self.findings)} kinds of findings"
        return "\n\n".join((head, *(f"{self.times_found[kind]} × {kind}\n{text}" for kind, text in self.findings.items())))


def fuzz_seconds(usual: float) -> float:
    """How long a fuzzer runs in a test: `usual`, or what EINPAGE_FUZZ_S says."""
    return float(os.environ.get("EINPAGE_FUZZ_S") or usual)


def fuzz(name: str, seconds: float, seed: int = 0, first: int = 0) -> Statistics:
    """Run cases of the fuzzer `name` (`module:VARIABLE`) from number `first` on, for `seconds` of the processor's time beside
    the start of the worker."""
    found = Statistics(seed)
    while seconds > 0:
        with tempfile.TemporaryDirectory() as scratch, open(os.path.join(scratch, "faults"), "w+") as faults:
            begun, spent = _follow(found, _worker(name, seconds, seed, first, scratch, faults))
            if begun is None:
                return found
            faults.seek(0)
            trace = [line.strip() for line in faults]
            # Of a fatal error the innermost frame stands first; of an exception in the fuzzer itself, its message stands last.
            shown = next((line for line in trace if line.startswith("File")), "no trace")
            kind = f"the worker died: {trace[-1] if 'Traceback (most recent call last):' in trace else shown}"
        _note(found, kind, f"case {begun}: python tests/fuzzing.py {name} --seed {seed} --case {begun}")
        first, seconds = begun + 1, seconds - spent
    return found


def assert_right_or_refused(name: str, usual_seconds: float, seed: int) -> None:
    """Run a fuzzer as a test: nothing found, and some of its cases ran and some were refused."""
    found = fuzz(name, fuzz_seconds(usual_seconds), seed)
    assert not found.findings, str(found)
    assert found.by_status[0] > 0 and found.by_status[2] > 0, str(found)


def _worker(name: str, seconds: float, seed: int, first: int, scratch: str, faults: io.TextIOBase) -> Iterator[dict[str, object]]:
    """What a worker process says, line by line."""
    words = [sys.executable, str(HERE / "fuzzing.py"), name, "--worker", scratch, "--seconds", str(seconds), "--seed", str(seed)]
    worker = subprocess.Popen(
        [*words, "--case", str(first)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=faults, env=_environment(scratch)
    )
    try:
        assert worker.stdout is not None
        for line in worker.stdout:
            yield json.loads(line)
    finally:
        worker.kill()
        worker.wait()


def _environment(scratch: str) -> dict[str, str]:
    path = os.pathsep.join((str(HERE.parent), str(HERE), os.environ.get("PYTHONPATH", "")))
    few = {"MALLOC_ARENA_MAX": "2", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    return {**os.environ, **few, "PYTHONPATH": path, "EINPAGE_CACHE": os.path.join(scratch, "cache"), "COLUMNS": "100"}


def _follow(found: Statistics, lines: Iterator[dict[str, object]]) -> tuple[int | None, float]:
    """Take in what a worker says. Returns the case that it died in, None where it came to its end; and the seconds it was at it."""
    begun: int | None = -1
    since = time.monotonic()
    for line in lines:
        match line:
            case {"ready": True}:
                since = time.monotonic()
            case {"begin": int(number)}:
                begun = number
            case {"status": int(status), "seconds": float(seconds)}:
                found.cases += 1
                found.by_status[status] += 1
                found.slowest_seconds = max(found.slowest_seconds, seconds)
                if line["wrong"] is not None:
                    _note(found, str(line["wrong"]), str(line["case"]))
            case {"invalid": str(text)}:
                raise AssertionError(f"a case that should be valid is not: {text}")
            case {"done": True}:
                begun = None
    if begun == -1:
        raise AssertionError("the worker did not start")
    return begun, time.monotonic() - since


def _note(found: Statistics, kind: str, text: str) -> None:
    found.times_found[kind] += 1
    found.findings.setdefault(kind, text)


def work(name: str, scratch: Path, seconds: float, seed: int, first: int) -> None:
    """Run cases one after another and say so on stdout, which nothing else writes to."""
    said = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def say(**what: object) -> None:
        said.write(json.dumps(what) + "\n")

    fuzzer = fuzzer_of(name)
    valid = fuzzer.valid()
    for case in valid:
        ended = run_case(fuzzer, case, scratch, limited=False)
        if ended.status != 0 or ended.wrong is not None:
            say(invalid=f"{case.argv}: {ended}")
            return
    say(ready=True)
    until = time.process_time() + seconds
    number, seen = first, set[str]()
    while time.process_time() < until:
        say(begin=number)
        case = fuzzer.case(valid, seed, number)
        ended = run_case(fuzzer, case, scratch)
        text = None
        if ended.wrong is not None and ended.wrong not in seen:
            seen.add(ended.wrong)
            since = time.process_time()
            text = case_text(shrunk(fuzzer, case, ended.wrong, scratch), ended, f"{name} --seed {seed} --case {number}")
            until += time.process_time() - since
        say(status=ended.status, seconds=ended.seconds, wrong=ended.wrong, case=text)
        number += 1
    say(done=True)


def fuzzer_of(name: str) -> Fuzzer:
    """The fuzzer called `module:VARIABLE`."""
    module, _, variable = name.partition(":")
    found = getattr(importlib.import_module(module), variable)
    assert isinstance(found, Fuzzer)
    return found


def main() -> int:
    """Run a fuzzer, or one case of it, from the command line; 1 where something is found."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("fuzzer", metavar="MODULE:VARIABLE")
    p.add_argument("--seconds", type=float, default=600.0)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--case", type=int, metavar="NUMBER", help="this one alone")
    p.add_argument("--worker", metavar="FOLDER", help=argparse.SUPPRESS)
    a = p.parse_args()
    if a.worker:
        work(a.fuzzer, Path(a.worker), a.seconds, a.seed, a.case)
        return 0
    if a.case is None:
        found = fuzz(a.fuzzer, a.seconds, a.seed)
        print(found)
        return int(bool(found.findings))
    with tempfile.TemporaryDirectory() as scratch:
        os.environ.update(_environment(scratch))
        fuzzer = fuzzer_of(a.fuzzer)
        case = fuzzer.case(fuzzer.valid(), a.seed, a.case)
        ended = run_case(fuzzer, case, Path(scratch))
        os.chdir(HERE)
        print(
            case_text(case, ended, f"{a.fuzzer} --seed {a.seed} --case {a.case}"), f"status {ended.status}, wrong: {ended.wrong}", sep="\n"
        )
    return int(ended.wrong is not None)


if __name__ == "__main__":
    faulthandler.enable()
    sys.path[:0] = [str(HERE), str(HERE.parent)]
    sys.modules.setdefault("fuzzing", sys.modules["__main__"])  # a fuzzer's module imports it by its name: one Fuzzer, not two
    sys.exit(main())
