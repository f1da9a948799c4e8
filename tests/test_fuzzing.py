"""The fuzzers' harness finds every kind of fault that is planted in a command, names the case, and goes on after each."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from fuzzing import Case, Fuzzer, fuzz

FAULTS = {
    "traceback": "traceback: KeyError in test_fuzzing.py",
    "raise": "ValueError out of main: test_fuzzing.py",
    "slow": "takes too long: test_fuzzing.py",
    "memory": "MemoryError out of main: test_fuzzing.py",
    "died": "the worker died",
    "status": "status 7",
    "writes": "writes new, status 2",
    "changes": "writes f, status 2",
    "silent": "refused without a word",
    "two": "more than one message",
    "long": "a message of more than",
    "json": "stdout is not JSON",
}


def command(argv: Sequence[str]) -> int:
    """A command with a fault for each word of FAULTS."""
    word = Path("f").read_text().strip()
    match word:
        case "traceback":
            print('Traceback (most recent call last):\n  File "test_fuzzing.py", line 3\nKeyError: 1', file=sys.stderr)
        case "raise":
            raise ValueError
        case "slow":
            while True:
                pass
        case "memory":
            return len(bytearray(2 << 30))
        case "died":
            os.kill(os.getpid(), 9)
        case "status":
            return 7
        case "writes":
            Path("new").touch()
        case "changes":
            Path("f").write_text("")
        case "two":
            print("einpage: this is wrong\neinpage: that is wrong", file=sys.stderr)
        case "long":
            print("einpage: ", "x" * 4000, file=sys.stderr)
        case "json":
            print("{}}")
            return 0
        case "fine":
            print("{}")
            Path("out").touch()
            return 0
        case "refused":
            print("warning: w\neinpage: no\n  3 | that\n    | ^^^", file=sys.stderr)
    return 2


def valid() -> Sequence[Case]:
    return (Case(("--json",), {"f": b"fine"}, outputs=("out",)),)


def change(random: Random, case: Case) -> Case:
    """Workers that die are rare: another has to start."""
    word = "died" if random.random() < 0.02 else random.choice([*(fault for fault in FAULTS if fault != "died"), "fine", "refused"])
    return Case(case.argv, {"f": word.encode() + b" " * 20}, case.outputs)


PLANTED = Fuzzer(valid, change, command, most_seconds=0.05)
SOUND = Fuzzer(valid, lambda random, case: Case(case.argv, {"f": random.choice([b"fine", b"refused"])}, case.outputs), command)
UNSOUND = Fuzzer(lambda: (Case((), {"f": b"status"}),), change, command)


def test_every_planted_fault_is_found_and_shrunk() -> None:
    found = fuzz("test_fuzzing:PLANTED", 2)
    for more in range(1, 20):  # a busy machine gets through few cases
        if len(found.findings) < len(FAULTS):
            found.findings.update(fuzz("test_fuzzing:PLANTED", 2, seed=more).findings)
    for start in FAULTS.values():
        assert any(kind.startswith(start) for kind in found.findings), f"{start}\n{found}"
    assert len(found.findings) == len(FAULTS), str(found)
    assert found.by_status[0] and found.by_status[2], str(found)
    assert "f: b'two'" in next(text for kind, text in found.findings.items() if kind.startswith("more than one"))
    assert all("python tests/fuzzing.py test_fuzzing:PLANTED --seed" in text for text in found.findings.values())


def test_nothing_is_found_where_nothing_is_wrong() -> None:
    found = fuzz("test_fuzzing:SOUND", 0.2)
    assert not found.findings, str(found)
    assert found.by_status[0] and found.by_status[2], str(found)


def test_a_valid_case_that_is_refused_is_a_fault_of_the_fuzzer() -> None:
    with pytest.raises(AssertionError, match="should be valid"):
        fuzz("test_fuzzing:UNSOUND", 1)
