"""What the machine code of one kernel uses, as the compiling process says it and the asking process reads it; and how often an instruction
stands in the loops of its PTX.

In: PTX text. Out: its innermost loops, from a label to the last branch back to it, as lines. Triton's own labels (`$L__BB0_3`) alone
count: those of inline assembly are loops that wait.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_LABEL = re.compile(r"^(\$L__BB\w+):")
_BRANCH = re.compile(r"\bbra(?:\.uni)?\s+(\$L__BB\w+);")


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineCode:
    """Per program (shared memory) or thread (the rest); all 0 for a kernel that does not compile."""

    registers: int = 0
    stack_bytes: int = 0
    spills: int = 0
    """Instructions that write to or read from the stack."""
    shared_bytes: int = 0
    tensor_core: int = 0
    """Instructions that multiply matrices."""
    narrowest_copy: int = 0
    """The fewest bytes that an asynchronous copy moves, at best 16; 0 where there is none."""
    loop_tensor_core: int = 0
    """Of the tensor-core instructions, those in the loop that has the most."""
    loop_engine_loads: int = 0
    """Loads by the copy engine (TMA) in the loop that has the most of them: where warps are specialised, another than the above."""
    engine_stores: int = 0
    """Stores by the copy engine."""
    error: str = ""
    """Why it did not compile; empty where it did."""


def innermost_loops(ptx: str) -> list[list[str]]:
    """The lines of each loop that holds no other, in order."""
    lines = ptx.splitlines()
    place_by_label = {found[1]: n for n, line in enumerate(lines) if (found := _LABEL.match(line))}
    last_by_first: dict[int, int] = {}
    for n, line in enumerate(lines):
        for label in _BRANCH.findall(line):
            first = place_by_label[label]
            if first <= n:
                last_by_first[first] = n
    loops = sorted(last_by_first.items())
    inner = [(a, b) for a, b in loops if not any(a <= c and d <= b and (a, b) != (c, d) for c, d in loops)]
    return [lines[a : b + 1] for a, b in inner]


def most_in_a_loop(ptx: str, instruction: str) -> int:
    """How often what matches `instruction` stands in the innermost loop that has the most of it."""
    pattern = re.compile(instruction)
    return max((sum(1 for line in loop if pattern.search(line)) for loop in innermost_loops(ptx)), default=0)
