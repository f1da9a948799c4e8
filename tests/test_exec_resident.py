"""The peak of a process's memory is its own: what it held and gave back counts, what the process that started it held does not."""

from __future__ import annotations

import subprocess
import sys

MIB = 1 << 20
LOOKS = """
import sys
from einpage.exec.resident import peak_resident_bytes
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
