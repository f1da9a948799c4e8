"""Reads and writes of pieces of files, many in flight at once, past the page cache.

In: Transfers, each a run of bytes of an open file and as many of memory. Out: which of them have ended, in any order, and which with an
error. Two ways to do so are in ring.py and threads.py: the same bytes, whatever the way.
"""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Transfer:
    """`nbytes` between a file, from `offset` on, and memory, from `address` on: of O_DIRECT all three are multiples of its sector."""

    fd: int
    offset: int
    address: int
    nbytes: int
    least: int
    """So many must be there: a last sector may reach beyond the end of the file. Of a write all."""
    writes: bool = False

    def rest(self, done: int) -> Transfer:
        """What is left where `done` bytes are there."""
        return Transfer(self.fd, self.offset + done, self.address + done, self.nbytes - done, self.least - done, self.writes)


class TransferError(Exception):
    """A transfer failed: with an error number of the system's, or because the file ended early (0)."""

    def __init__(self, transfer: Transfer, number: int) -> None:
        self.transfer, self.number = transfer, number
        super().__init__(self.reason)

    @property
    def reason(self) -> str:
        """For a person."""
        if self.number:
            return os.strerror(self.number)
        return f"the file ends within bytes {self.transfer.offset} to {self.transfer.offset + self.transfer.least}"


class Engine(Protocol):
    """Does transfers."""

    @property
    def name(self) -> str:
        """As reports write it: `io_uring`, `preadv threads`."""

    @property
    def depth(self) -> int:
        """How many may be in flight."""

    def begin(self, number: int, transfer: Transfer) -> None:
        """Begin one more where fewer than `depth` are in flight, of which none has this number; it may be handed over as late as in
        `ended`."""

    def ended(self) -> list[tuple[int, Exception | None]]:
        """The numbers of those that have ended, each whole or with its error, a TransferError but for bugs of ours; waits for one, or until
        it is woken. One at least has to be in flight."""

    def wake(self) -> None:
        """End the wait of `ended`, or the next: from any thread."""

    def close(self) -> None:
        """Let go what the system holds for it."""


def run_all(engine: Engine, transfers: Iterable[Transfer]) -> None:
    """Do all, where none is in flight. Raises what the first that failed did, a TransferError, when none is in flight any more."""
    waiting, in_flight = deque(enumerate(transfers)), 0
    failed: Exception | None = None
    while in_flight or (waiting and failed is None):
        while waiting and failed is None and in_flight < engine.depth:
            engine.begin(*waiting.popleft())
            in_flight += 1
        for _, error in engine.ended():
            in_flight -= 1
            failed = failed or error
    if failed is not None:
        raise failed


def after(transfer: Transfer, result: int) -> Transfer | None:
    """What is left of `transfer` where the system answered `result`, bytes or a negative error number. Raises TransferError."""
    if result < 0:
        if -result in (errno.EINTR, errno.EAGAIN):
            return transfer
        raise TransferError(transfer, -result)
    if result >= transfer.least:
        return None
    if result == 0:
        raise TransferError(transfer, errno.ENOSPC if transfer.writes else 0)
    return transfer.rest(result)
