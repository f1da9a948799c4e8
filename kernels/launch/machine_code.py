"""What the machine code of one kernel uses, as the compiling process says it and the asking process reads it."""

from __future__ import annotations

from dataclasses import dataclass


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
