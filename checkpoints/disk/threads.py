"""preadv and pwritev by threads: what io_uring does, where there is none, or where it is slower.

In: Transfers. Each thread does one at a time, the interpreter's lock released; so many threads are so many in flight.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait

from einpage.checkpoints.disk.transfer import Transfer, TransferError, after


class ThreadEngine:
    """`depth` threads, started when they are first needed."""

    name = "preadv threads"

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self._pool = ThreadPoolExecutor(depth, "einpage-disk")

    def close(self) -> None:
        """Let what the system holds for it go."""
        self._pool.shutdown()

    def run(self, transfers: Sequence[Transfer]) -> None:
        """As Engine.run."""
        pending = iter(transfers)
        failed: list[TransferError] = []

        def loop() -> None:
            for transfer in pending:
                try:
                    _do(transfer)
                except TransferError as error:
                    failed.append(error)
                if failed:
                    return

        done = [self._pool.submit(loop) for _ in range(min(self.depth, len(transfers)))]
        wait(done)
        for future in done:
            future.result()
        if failed:
            raise failed[0]


def _do(transfer: Transfer) -> None:
    rest: Transfer | None = transfer
    while rest is not None:
        memory = memoryview((ctypes.c_ubyte * rest.nbytes).from_address(rest.address))
        try:
            result = (os.pwritev if rest.writes else os.preadv)(rest.fd, [memory], rest.offset)
        except OSError as error:
            result = -(error.errno or 0)
        rest = after(rest, result)
