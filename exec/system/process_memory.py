"""This process's peak resident memory, how much more it can allocate, and giving free memory back to the system.

The kernel's high-water mark of the process image is read where there is one: what `getrusage` says also counts the process that started
this one, whose memory a child shares until it executes a program of its own. What can be allocated is what the machine has free without
swapping, or what the process's control groups leave it where that is less: a container is killed at its own limit, not at the machine's.
"""

from __future__ import annotations

import ctypes
import gc
import pickle
import resource
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
WORTH_BYTES = 1 << 20
"""Less is not given back: a search for garbage visits every object of the process, those of the libraries too."""
BYTES_PER_PICKLED = 7
"""How much is allocated on the way to a value, for each byte of it pickled: what plans of thousands of tasks take."""


def peak_resident_bytes() -> int:
    """The most bytes that were resident at any time, code and libraries included."""
    peak = _words(Path("/proc/self/status")).get("VmHWM:")
    if peak is not None:
        return int(peak) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def rebuilt(make: Callable[[], T]) -> T:
    """The result of `make`, pickled, and unpickled when all that was allocated on the way to it is freed.

    Left where it was allocated, every small object of it would keep a megabyte of freed neighbours resident.
    """
    pickled = pickle.dumps(make(), pickle.HIGHEST_PROTOCOL)
    freed_bytes = BYTES_PER_PICKLED * len(pickled)
    give_back_memory(freed_bytes)
    result: T = pickle.loads(pickled)
    del pickled
    give_back_memory(freed_bytes)
    return result


def give_back_memory(freed_bytes: int) -> None:
    """Free unreachable objects, and give the pages back, where about `freed_bytes` that were in use before are worth it.

    The interpreter's cache of attributes refers to old names, each of which keeps a page of the heap resident; it is refilled at once.
    """
    if freed_bytes < WORTH_BYTES:
        return
    clear = getattr(sys, "_clear_internal_caches", None) or getattr(sys, "_clear_type_cache", None)
    if clear is not None:
        clear()
    gc.collect()
    give_back_pages()


def give_back_pages() -> None:
    """Give free pages of the heap back to the system where the C library can (glibc): it keeps them otherwise, and threads have heaps
    of their own, which take none from it."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


def available_bytes(root: Path = Path("/")) -> int | None:
    """Memory that can be had without swapping and without passing a limit of a control group's, or of this process (`ulimit -v`); None
    where the system does not say.

    `root` is where `proc` and `sys` are, for tests.
    """
    found = _words(root / "proc/meminfo").get("MemAvailable:")
    free = [] if found is None else [int(found) * 1024]
    free += [limit - used for limit, used in (*_groups(root), *_address_space(root))]
    return max(0, min(free)) if free else None


def physical_bytes(root: Path = Path("/")) -> int | None:
    """Of memory that the machine has, or that a control group lets this process have where that is less; None where the system does not
    say. `root` as for available_bytes."""
    found = _words(root / "proc/meminfo").get("MemTotal:")
    limits = [] if found is None else [int(found) * 1024]
    limits += [limit for limit, _ in _groups(root)]
    return min(limits) if limits else None


def _groups(root: Path) -> Iterator[tuple[int, int]]:
    """(limit, in use) of every control group above this process that limits memory: of version 2 and of version 1."""
    lines = [line.split(":", 2) for line in _lines(root / "proc/self/cgroup") if line.count(":") >= 2]
    for number, controllers, path in lines:
        if "memory" in controllers.split(","):
            mount, most, now, cached = "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
        elif number == "0":
            mount, most, now, cached = "sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"
        else:
            continue
        inside = Path(path.lstrip("/"))
        for folder in dict.fromkeys((root / mount / inside, *(root / mount / p for p in inside.parents), root / mount)):
            limit, used = _number(folder / most), _number(folder / now)
            if limit is not None and used is not None:
                yield limit, used - int(_words(folder / "memory.stat").get(cached, "0"))


def _address_space(root: Path) -> Iterator[tuple[int, int]]:
    """(limit, in use) of what this process may map, where that is limited."""
    said = [line.split()[3] for line in _lines(root / "proc/self/limits") if line.startswith("Max address space ")]
    used = _words(root / "proc/self/status").get("VmSize:")
    if said and said[0].isdecimal() and used is not None:
        yield int(said[0]), int(used) * 1024


def _number(path: Path) -> int | None:
    """The one number in a file; None where there is none (`max`, or no file)."""
    words = " ".join(_lines(path)).split()
    return int(words[0]) if len(words) == 1 and words[0].isdecimal() else None


def _words(path: Path) -> dict[str, str]:
    """The second word of each line by its first."""
    return {words[0]: words[1] for words in (line.split() for line in _lines(path)) if len(words) >= 2}


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return []
