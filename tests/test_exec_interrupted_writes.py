"""Whatever ends the writing of a result, half-way or at any byte, what was there before is there still, and nothing else.

Each writer runs in a process of its own that may write so many bytes to a file and no more (RLIMIT_FSIZE: as on a full disk), or that dies
at the moment of renaming.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from einpage.einsum_front.base.errors import UsageError
from einpage.einsum_front.base.files import write_atomically
from einpage.exec.command.run import write_outputs
from einpage.exec.measure.profiles import save
from einpage.exec.picture.chrome_trace import write_trace
from einpage.memplan.graph.planfile import save_plan
from einpage.memplan.graph.simulate import simulate
from hand_plan import hand_plan
from strategies import a_machine

OLD = b"what was there before, of some length\n" * 8


def trace(path: Path) -> None:
    write_trace(path, hand_plan(), None, simulate(hand_plan(), a_machine()))


WRITERS: dict[str, Callable[[Path], object]] = {
    "a plan": lambda path: save_plan(path, hand_plan(), {"spec": "hand"}),
    "a trace": trace,
    "a profile": lambda path: save(a_machine(), path),
    "a page": lambda path: write_atomically(path, "<!DOCTYPE html>\n" * 200),
    "outputs": lambda path: write_outputs(path, {"y": torch.zeros(999)}),
}


def in_a_process(work: Callable[[], object]) -> int:
    """The exit status of `work` in a fork of this process: 0 where it returns, 2 where it raises UsageError."""
    child = os.fork()
    if child == 0:
        status = 70
        try:
            work()
            status = 0
        except UsageError:
            status = 2
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def write_at_most(nbytes: int, write: Callable[[Path], object], path: Path) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, nbytes))
    write(path)


@pytest.mark.parametrize("name", WRITERS)
def test_a_full_disk_leaves_the_old_file_and_no_other(tmp_path: Path, name: str) -> None:
    path = tmp_path / "result"
    assert in_a_process(lambda: WRITERS[name](path)) == 0
    whole = path.read_bytes()
    assert len(whole) > 200
    for nbytes in (0, 1, len(whole) // 2, len(whole) - 1):
        path.write_bytes(OLD)
        assert in_a_process(lambda nbytes=nbytes: write_at_most(nbytes, WRITERS[name], path)) == 2  # type: ignore[misc]
        assert path.read_bytes() == OLD
        assert os.listdir(tmp_path) == ["result"], "something is left behind"
    assert in_a_process(lambda: write_at_most(len(whole), WRITERS[name], path)) == 0
    assert path.read_bytes() == whole


@pytest.mark.parametrize("name", WRITERS)
def test_whoever_dies_before_the_new_file_is_whole_leaves_the_old_one(tmp_path: Path, name: str) -> None:
    """Killed at the first rename, the last moment at which the old file has to stand."""
    path = tmp_path / "result"
    path.write_bytes(OLD)

    def die(*args: object, **more: object) -> None:
        os._exit(9)

    def killed() -> None:
        os.replace = os.rename = die  # type: ignore[assignment]
        WRITERS[name](path)

    assert in_a_process(killed) == 9
    assert path.read_bytes() == OLD
