"""io_uring, by system calls of its own: a ring of requests and one of answers, mapped, so that one call gives and takes many.

In: Transfers. The kernel reads and writes while Python waits in io_uring_enter, which releases the interpreter's lock. Only where the
machine's loads are not reordered (x86-64) are the rings read without barriers. After Axboe, Efficient IO with io_uring, 2019.

    requests  [fd, offset, address, bytes, number]  ── enter ──►  kernel  ── answers [number, bytes or -errno]
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
import struct
import sys

import numpy as np

from einpage.checkpoints.disk.transfer import Transfer, TransferError, after

_SETUP, _ENTER = 425, 426
"""System calls."""
_GET_EVENTS = 1
_SINGLE_MMAP = 1
_REQUESTS_AT, _ANSWERS_AT, _ENTRIES_AT = 0, 0x8000000, 0x10000000
"""Where in the ring's file what is mapped."""
_READ, _WRITE = 22, 23
_BELL = 2**64 - 1
"""The number of the request that reads what `wake` writes; and, as an offset, a file's that has none."""
_UNASKED = (-errno.ECANCELED, -errno.EINTR)
"""Results of a request whose thread is gone."""
_PARAMETERS = np.dtype(
    {
        "names": ["features", "requests", "answers"],
        "formats": ["<u4", ("<u4", 10), ("<u4", 10)],
        "offsets": [20, 40, 80],
        "itemsize": 120,
    }
)
_ENTRY = struct.Struct("<B3xiQQI4xQ24x")
"""Operation, descriptor, offset, address, bytes, number."""
_ANSWER = struct.Struct("<Qi4x")
"""Number, result."""


class RingEngine:
    """One ring, used by one thread at a time."""

    name = "io_uring"

    def __init__(self, depth: int) -> None:
        """Room for `depth` requests in flight. Raises OSError where the system has none for us."""
        if sys.platform != "linux" or platform.machine() != "x86_64":
            raise OSError(errno.ENOSYS, "io_uring is used on x86-64 Linux alone")
        self._system = ctypes.CDLL(None, use_errno=True)
        parameters = np.zeros(1, _PARAMETERS)
        self._fd = self._call(_SETUP, ctypes.c_uint(depth + 1), ctypes.c_void_p(parameters.ctypes.data))
        try:
            self._map(parameters[0])
            self._bell = os.eventfd(0, os.EFD_CLOEXEC)
        except BaseException:
            os.close(self._fd)
            raise
        self.depth = min(depth, self._mask)
        self._rung = np.zeros(1, np.uint64)
        self._is_listening = False
        self._in_flight: dict[int, Transfer] = {}
        self._given = 0
        """Requests that the kernel has not taken yet."""

    def close(self) -> None:
        """Let what the system holds for it go."""
        if self._fd >= 0:
            os.close(self._fd)
            os.close(self._bell)
            self._fd = -1

    def begin(self, number: int, transfer: Transfer) -> None:
        """As Engine.begin: it waits in the ring for the next call."""
        t = transfer
        self._give(_WRITE if t.writes else _READ, t.fd, t.offset, t.address, t.nbytes, number)
        self._in_flight[number] = t

    def wake(self) -> None:
        """As Engine.wake."""
        os.eventfd_write(self._bell, 1)

    def ended(self) -> list[tuple[int, Exception | None]]:
        """As Engine.ended."""
        found: list[tuple[int, Exception | None]] = []
        is_woken = False
        while not found and not is_woken:
            if not self._is_listening:
                self._give(_READ, self._bell, _BELL, self._rung.ctypes.data, self._rung.nbytes, _BELL)
                self._is_listening = True
            self._given -= self._enter(self._given)
            for number, result in self._answers():
                if number == _BELL:
                    is_woken = result > 0
                    self._is_listening = not is_woken and result not in _UNASKED  # of another error the next would be the same
                    continue
                transfer = self._in_flight.pop(number)
                try:
                    rest = after(transfer, result)
                except TransferError as error:
                    found.append((number, error))
                else:
                    if rest is None:
                        found.append((number, None))
                    else:
                        self.begin(number, rest)
        return found

    def _give(self, opcode: int, fd: int, offset: int, address: int, nbytes: int, number: int) -> None:
        """Put a request into the ring."""
        tail = int(self._tail[0])
        slot = tail & self._mask
        _ENTRY.pack_into(self._entries, slot * _ENTRY.size, opcode, fd, offset, address, nbytes, number)
        self._order[slot] = slot
        self._tail[0] = (tail + 1) & 0xFFFFFFFF
        self._given += 1

    def _enter(self, given: int) -> int:
        """Hand `given` requests over, and wait for an answer; how many the kernel took."""
        while True:
            try:
                return self._call(
                    _ENTER, self._fd, ctypes.c_uint(given), ctypes.c_uint(1), ctypes.c_uint(_GET_EVENTS), None, ctypes.c_size_t(0)
                )
            except InterruptedError:
                continue
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.EBUSY):
                    raise  # requests that are wrong: our bug

    def _answers(self) -> list[tuple[int, int]]:
        """Those that are there: (number, result)."""
        head, tail = int(self._answers_head[0]), int(self._answers_tail[0])
        slots = ((head + i) & self._answers_mask for i in range((tail - head) & 0xFFFFFFFF))
        answers = [_ANSWER.unpack_from(self._answer_ring, self._answers_at + slot * _ANSWER.size) for slot in slots]
        self._answers_head[0] = tail
        return answers

    def _map(self, parameters: np.void) -> None:
        requests, answers = parameters["requests"].tolist(), parameters["answers"].tolist()
        count, answer_count = self._counts(parameters)
        nbytes, answer_nbytes = requests[6] + 4 * count, answers[5] + _ANSWER.size * answer_count
        single = bool(parameters["features"] & _SINGLE_MMAP)
        ring = mmap.mmap(self._fd, max(nbytes, answer_nbytes) if single else nbytes, offset=_REQUESTS_AT)
        answer_ring = ring if single else mmap.mmap(self._fd, answer_nbytes, offset=_ANSWERS_AT)
        self._entries = mmap.mmap(self._fd, _ENTRY.size * count, offset=_ENTRIES_AT)
        self._tail = np.frombuffer(ring, "<u4", 1, requests[1])
        self._order = np.frombuffer(ring, "<u4", count, requests[6])
        self._answers_head, self._answers_tail = (np.frombuffer(answer_ring, "<u4", 1, answers[at]) for at in (0, 1))
        self._answer_ring, self._answers_at = answer_ring, answers[5]
        self._mask, self._answers_mask = count - 1, answer_count - 1

    def _counts(self, parameters: np.void) -> tuple[int, int]:
        """Entries of the two rings, as the kernel rounded them."""
        words = np.frombuffer(parameters.tobytes(), "<u4")
        return int(words[0]), int(words[1])

    def _call(self, number: int, *arguments: object) -> int:
        result = int(self._system.syscall(ctypes.c_long(number), *arguments))
        if result < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        return result
