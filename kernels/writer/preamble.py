"""What stands before a kernel in its module: imports, and the functions of the language that are more than one call of Triton's.

A Triton form such as `tl.exp(x)` is called where it is used; `x * tl.sigmoid(x)` becomes a function of the module, so that its argument
is computed once.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Sequence

from einpage.einsum_front.algebra.functions import FUNCTIONS, Function

MATH = ("floor_div", "floor_mod", "floor_div_int", "floor_mod_int", "power", "tanh")
"""What kernels/writer/math.py has."""


def _direct(f: Function) -> str | None:
    """`tl.exp` for the form `tl.exp(x)`; None for a form that is more than a call."""
    found = re.fullmatch(r"([\w.]+)\((.*)\)", f.triton)
    return found[1] if found and found[2] == ", ".join(f.parameters) else None


def _definition(f: Function) -> list[str]:
    return ["", "", "@triton.jit", f"def {f.name}({', '.join(f.parameters)}):", f"    return {f.triton}"]


DEFINED = {f.name: _definition(f) for f in FUNCTIONS.values() if _direct(f) is None}
"""The lines that define a function in a kernel's module."""
NAME_IN_KERNEL = {f.name: _direct(f) or f.name for f in FUNCTIONS.values()}
"""How a kernel calls each function of the language."""
RESERVED = frozenset(("tl", "triton", *keyword.kwlist, *MATH, *DEFINED))
"""Words that cannot name a variable of a kernel."""


def preamble(lines: Sequence[str]) -> list[str]:
    """The imports and definitions that a kernel of these lines needs."""
    defined = [line for name, definition in DEFINED.items() if _calls(name, lines) for line in definition]
    used = [name for name in MATH if _calls(name, [*defined, *lines])]
    imports = ["import triton", "import triton.language as tl"]
    return [*imports, *([f"from einpage.kernels.writer.math import {', '.join(used)}"] if used else []), *defined]


def _calls(name: str, lines: Sequence[str]) -> bool:
    return any(re.search(rf"(?<![\w.]){name}\(", line) for line in lines)
