"""One case of a fuzzer: a command line and its files, run in this process under limits of memory and time; and what must hold of its end.

A documented status; no traceback; a refusal is one message on stderr; nothing is written but what a success may write; no more than
MOST_SECONDS of the processor's time and MOST_BYTES of memory beside what is mapped already. A wrong case can be made smaller.
"""

from __future__ import annotations

import faulthandler
import io
import json
import os
import re
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from types import FrameType

STATUSES = (0, 2, 3)
"""Done, the user's mistake, does not fit. 1 is a bug of ours."""
MOST_SECONDS = 10.0
MOST_BYTES = 1 << 30
STUCK_SECONDS = 90.0
"""Of the clock: what waits for ever takes no time of the processor."""
MOST_MESSAGE = 3000
"""Characters of a refusal."""
SHRINK_SECONDS = 5.0
"""Beside the time for the search."""


@dataclass(frozen=True, slots=True)
class Case:
    """A command line, and the files that are there before it."""

    argv: tuple[str, ...]
    files: Mapping[str, bytes] = field(default_factory=dict)
    """By name (`f` or `folder/f`), in the folder that the command runs in."""
    outputs: tuple[str, ...] = ()
    """What it may write, where it succeeds."""


def _einpage(argv: Sequence[str]) -> int:
    from einpage.exec.cli import main

    return main(argv)


@dataclass(frozen=True, slots=True)
class Fuzzer:
    """Valid cases, each of which must end with status 0, and `change(random, case)`, which gives a case that need not be valid."""

    valid: Callable[[], Sequence[Case]]
    change: Callable[[Random, Case], Case]
    command: Callable[[Sequence[str]], int] = _einpage
    most_seconds: float = MOST_SECONDS

    def case(self, valid: Sequence[Case], seed: int, number: int) -> Case:
        """The case `number` of a run with `seed`."""
        random = Random(f"{seed}:{number}")
        return self.change(random, random.choice(valid))


@dataclass(frozen=True, slots=True)
class Ended:
    """How a case ended, and what is wrong with that: a word or two that tell one kind of finding from another."""

    status: int
    seconds: float
    wrong: str | None
    stderr: str


class Hang(BaseException):
    """Raised inside a case that takes too long."""


def run_case(fuzzer: Fuzzer, case: Case, scratch: Path, limited: bool = True) -> Ended:
    """Run the command in this process, in a folder of its own, and judge how it ended."""
    folder = scratch / "case"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, content in case.files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
    os.chdir(folder)
    # As a process has them: what stdout cannot encode is an error, on stderr it is escaped.
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="strict", write_through=True)
    err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace", write_through=True)
    kept = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = out, err
    began = time.process_time()
    crashed: str | None = None
    try:
        with limits(fuzzer.most_seconds) if limited else nullcontext():
            status = fuzzer.command(case.argv)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except Hang as hang:
        status, crashed = 1, f"takes too long: {_place_of(hang)}"
    except BaseException as error:
        status, crashed = 1, f"{type(error).__name__} out of main: {_place_of(error)}"
    finally:
        sys.stdout, sys.stderr = kept
    seconds = time.process_time() - began
    stderr = err.buffer.getvalue().decode()  # type: ignore[attr-defined]
    stdout = out.buffer.getvalue().decode()  # type: ignore[attr-defined]
    return Ended(status, seconds, crashed or wrong_with(case, folder, status, stdout, stderr), stderr)


def wrong_with(case: Case, folder: Path, status: int, stdout: str, stderr: str) -> str | None:
    """What a case's end breaks; None where all is well."""
    if "Traceback" in stderr:
        return f"traceback: {_last_of(stderr)}"
    if status not in STATUSES:
        return f"status {status}"
    left = {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    changed = [name for name, content in case.files.items() if left.pop(name, None) != content]
    results = set(case.outputs if status == 0 else ())
    changed = [name for name in changed if name not in results or _is_read(name, case.argv)]
    written = sorted(set(left) - results)
    if changed or written:
        return f"writes {', '.join(changed + written)}, status {status}"
    if status == 0 and "--json" in case.argv and not stdout.startswith("usage: "):
        try:
            for text in stdout.splitlines() if case.argv[0] in ("generate", "chat") else [stdout]:  # an object a prompt, or a turn
                json.loads(text, parse_constant=_no_constant)
        except ValueError as error:
            return f"stdout is not JSON: {error}"
    if status != 0 and not stderr and "--json" in case.argv and _says_why(stdout):
        return None
    return None if status == 0 else _wrong_message(stderr)


def _is_read(name: str, argv: Sequence[str]) -> bool:
    """Whether a command line that names a file as a result names it once more."""
    return sum(word.rpartition("=")[2].removeprefix("@") == name for word in argv) > 1


def _says_why(stdout: str) -> bool:
    """Whether stdout is one JSON object with a `message`, as that of a plan file that is rejected."""
    try:
        found = json.loads(stdout, parse_constant=_no_constant)
    except ValueError:
        return False
    return isinstance(found, dict) and bool(found.get("message"))


def _no_constant(word: str) -> object:
    raise ValueError(f"{word} is no JSON")


def _wrong_message(stderr: str) -> str | None:
    """A refusal is one line, and rows under it that are indented; before it may stand warnings, argparse's usage, and that the machine is
    measured."""
    lines = [line for line in stderr.splitlines() if not line.startswith(("warning: ", "measuring this machine", "profile kept in "))]
    if lines and lines[0].startswith("usage: "):
        lines = lines[next((i for i, line in enumerate(lines) if ": error: " in line), 0) :]
    if not lines:
        return "refused without a word"
    if len(stderr) > MOST_MESSAGE:
        return f"a message of more than {MOST_MESSAGE} characters: {lines[0][:60]}"
    more = [line for line in lines[1:] if not line.startswith("  ")]
    return f"more than one message: {more[0][:60]!r}" if more else None


def _place_of(error: BaseException) -> str:
    """File and line of the innermost frame of ours, this file left out."""
    place, frame = "?", error.__traceback__
    while frame is not None:
        if "/site-packages/" not in (file := frame.tb_frame.f_code.co_filename) and "/lib/python" not in file and file != __file__:
            place = f"{Path(file).name}:{frame.tb_lineno}"
        frame = frame.tb_next
    return place


def _last_of(trace: str) -> str:
    """`KeyError in read.py:12`: the exception and the innermost place of ours."""
    places = [f"{Path(file).name}:{line}" for file, line in re.findall(r'File "([^"]*)", line (\d+)', trace) if "/lib/python" not in file]
    errors = re.findall(r"^([A-Za-z_][\w.]*(?:Error|Exception|Warning|Interrupt|Exit))\b", trace, re.MULTILINE)
    return f"{errors[-1] if errors else '?'} in {places[-1] if places else '?'}"


@contextmanager
def limits(most_seconds: float) -> Iterator[None]:
    """So many seconds of the processor, or Hang; MOST_BYTES beyond what is mapped now, or MemoryError; and what is stuck is killed."""
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (mapped + MOST_BYTES, most[1]))
    signal.signal(signal.SIGPROF, _hang)
    signal.setitimer(signal.ITIMER_PROF, most_seconds)
    faulthandler.dump_traceback_later(STUCK_SECONDS, exit=True, file=sys.__stderr__ or 2)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        faulthandler.cancel_dump_traceback_later()
        resource.setrlimit(resource.RLIMIT_AS, most)


def _hang(_signal: int, _frame: FrameType | None) -> None:
    raise Hang


def shrunk(fuzzer: Fuzzer, case: Case, wrong: str, scratch: Path) -> Case:
    """A smaller case that is wrong in the same way: parts of its files are left out, the large ones first, as long as there is time."""
    until = time.monotonic() + SHRINK_SECONDS
    if wrong.startswith("takes too long"):
        return case
    for name in case.files:
        content = case.files[name]
        size = len(content) // 2
        while size >= 1:
            at = 0
            while at < len(content):
                if time.monotonic() > until:
                    return case
                tried = replace(case, files={**case.files, name: content[:at] + content[at + size :]})
                if run_case(fuzzer, tried, scratch).wrong == wrong:
                    case, content = tried, tried.files[name]
                else:
                    at += size
            size //= 2
    return case


def case_text(case: Case, ended: Ended, again: str) -> str:
    """A case for a person: what to run, the files, what it said."""
    files = [f"  {name}: {content!r}" if len(content) < 1500 else f"  {name}: {len(content)} bytes" for name, content in case.files.items()]
    said = "\n".join(f"  | {line}" for line in ended.stderr.splitlines()[-12:])
    return "\n".join((f"  einpage {' '.join(map(repr, case.argv))}", *files, said, f"  again: python tests/fuzzing.py {again}"))
