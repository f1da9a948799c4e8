"""The text of a kernel: which of its lines nothing reads."""

from __future__ import annotations

from einpage.kernels.writer.kernel_text import without_unread


def test_lines_that_nothing_reads_go_and_what_they_alone_read_too() -> None:
    loop = ["    for i in range(4):", "        total = total + i"]
    lines = ["    s = row // 3", "    m = s % 2  # of s", "    n = 3", "    total = 0", *loop, "    f(total, n)"]
    assert without_unread(lines) == lines[2:]
