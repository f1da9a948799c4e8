"""The peak of a process's memory is its own; what it can still have is the least that the machine and its control groups leave."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path

from einpage.exec.system.process_memory import BYTES_PER_PICKLED, WORTH_BYTES, available_bytes, rebuilt

MIB = 1 << 20
LOOKS = """
import sys
from einpage.exec.system.process_memory import peak_resident_bytes
before = peak_resident_bytes()
held = b"x" * (64 << 20)
del held
print(before, peak_resident_bytes())
"""
STARTS = f"""
import subprocess, sys
held = b"x" * (256 << 20)
subprocess.run([sys.executable, "-c", {LOOKS!r}], check=True)
"""


def test_the_peak_is_the_process_s_own() -> None:
    done = subprocess.run([sys.executable, "-c", STARTS], capture_output=True, text=True, check=True)
    before, after = map(int, done.stdout.split())
    assert before < 128 * MIB, "the starting process's 256 MiB are counted"
    assert 60 * MIB < after - before < 68 * MIB


def written(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


MACHINE = {"proc/meminfo": "MemTotal:       9000 kB\nMemAvailable:   4000 kB\n"}
STAT = "anon 5\ninactive_file 1000\ntotal_inactive_file 2000\n"


def test_what_a_machine_has_free_is_what_can_be_had(tmp_path: Path) -> None:
    assert available_bytes(tmp_path) is None
    assert available_bytes(written(tmp_path, MACHINE)) == 4000 * 1024
    free = available_bytes()
    assert free is None or free > 0


def test_a_limit_on_what_is_mapped_leaves_less(tmp_path: Path) -> None:
    """`ulimit -v`: an arena is mapped whole, however much of it is used."""
    limits = "Limit             Soft Limit  Hard Limit  Units\nMax address space {}          unlimited   bytes\n"
    files = {"proc/self/limits": limits.format("unlimited"), "proc/self/status": "Name:\tx\nVmSize:\t    1000 kB\n"}
    assert available_bytes(written(tmp_path, MACHINE | files)) == 4000 * 1024
    assert available_bytes(written(tmp_path, {"proc/self/limits": limits.format(3000 * 1024)})) == 2000 * 1024


def test_a_control_group_leaves_less(tmp_path: Path) -> None:
    """Of version 2; a group above may be the one that limits."""
    files = {"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "max\n", "sys/fs/cgroup/a/b/memory.current": "7\n"}
    root = written(tmp_path, MACHINE | files)
    assert available_bytes(root) == 4000 * 1024
    above = {"sys/fs/cgroup/a/memory.max": "500000\n", "sys/fs/cgroup/a/memory.current": "100000\n", "sys/fs/cgroup/a/memory.stat": STAT}
    assert available_bytes(written(root, above)) == 500_000 - 100_000 + 1000
    assert available_bytes(written(root, {"sys/fs/cgroup/a/memory.current": "600000\n"})) == 0


def test_a_container_of_version_1_sees_itself_as_the_root(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "4:memory:/outside/42\n1:cpu:/\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "300000\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": "100000\n",
        "sys/fs/cgroup/memory/memory.stat": STAT,
    }
    assert available_bytes(written(tmp_path, MACHINE | files)) == 300_000 - 100_000 + 2000


def test_garbage_is_searched_for_where_much_was_freed() -> None:
    """Each search visits all objects of the process: a run of a small model makes none."""
    searches: list[str] = []

    def searched(phase: str, _: object) -> None:
        searches.append(phase)

    gc.disable()  # none but those that are asked for
    gc.callbacks.append(searched)
    try:
        assert rebuilt(lambda: list(range(10))) == list(range(10))
        assert not searches
        many = [str(n) for n in range(WORTH_BYTES // BYTES_PER_PICKLED)]
        assert rebuilt(lambda: many) == many
        assert searches.count("stop") == 2
    finally:
        gc.callbacks.remove(searched)
        gc.enable()
