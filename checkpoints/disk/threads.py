"""preadv and pwritev by threads: what io_uring does, where there is none, or where it is slower.

In: Transfers. Each thread does one at a time, the interpreter's lock released; so many threads are so many in flight.
"""

from __future__ import annotations

import ctypes
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from queue import Empty, SimpleQueue

from einpage.checkpoints.disk.transfer import Transfer, after


class ThreadEngine:
    """`depth` threads, started when they are first needed."""

    name = "preadv threads"

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self._pool = ThreadPoolExecutor(depth, "einpage-disk")
        self._ended = SimpleQueue["tuple[int, Exception | None] | None"]()

    def close(self) -> None:
        """Let what the system holds for it go."""
        self._pool.shutdown()

    def begin(self, number: int, transfer: Transfer) -> None:
        """As Engine.begin."""
        self._pool.submit(self._work, number, transfer)

    def wake(self) -> None:
        """As Engine.wake."""
        self._ended.put(None)

    def ended(self) -> list[tuple[int, Exception | None]]:
        """As Engine.ended."""
        answers = [self._ended.get()]
        with suppress(Empty):
            while True:
                answers.append(self._ended.get_nowait())
        return [*filter(None, answers)]

    def _work(self, number: int, transfer: Transfer) -> None:
        failed: Exception | None = None
        try:
            _do(transfer)
        except Exception as error:
            failed = error
        self._ended.put((number, failed))


def _do(transfer: Transfer) -> None:
    rest: Transfer | None = transfer
    while rest is not None:
        memory = memoryview((ctypes.c_ubyte * rest.nbytes).from_address(rest.address))
        try:
            result = (os.pwritev if rest.writes else os.preadv)(rest.fd, [memory], rest.offset)
        except OSError as error:
            result = -(error.errno or 0)
        rest = after(rest, result)
