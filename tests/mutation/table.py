"""The mutants: one slip each that a developer could make, as a patch that survives small moves of the code.

In: the YAML files beside this one. Out: Mutant rows. A row replaces `old`, which stands exactly once in its file, by `new`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("einsum_front", "checkpoints", "memplan", "kernels", "exec", "bench")


@dataclass(frozen=True, slots=True)
class Mutant:
    id: str
    """Unique, in words."""
    file: str
    """From the root of the repository."""
    old: str
    new: str
    why: str
    """What goes wrong for a user, in a line."""
    tests: tuple[str, ...] = ()
    """Those that kill it, the fastest first: `tests/test_x.py` or `tests/test_x.py::test_y`. The first to be run."""

    @property
    def folder(self) -> str:
        return self.file.partition("/")[0]

    def applied(self, text: str) -> str:
        """The text of its file after the slip. Raises ValueError where `old` is not found exactly once."""
        if (found := text.count(self.old)) != 1:
            raise ValueError(f"{self.id}: {self.file} has its `old` {found} times, not once: the code has moved; mend the row")
        return text.replace(self.old, self.new)


def rows(folder: str) -> tuple[Mutant, ...]:
    """The mutants of one folder, in the order of its file."""
    raw: list[dict[str, Any]] = yaml.safe_load((Path(__file__).parent / f"{folder}.yaml").read_text(encoding="utf-8"))
    return tuple(Mutant(**{**row, "tests": tuple(row.get("tests", ()))}) for row in raw)


def mutants() -> tuple[Mutant, ...]:
    """All of them."""
    return tuple(mutant for folder in FOLDERS for mutant in rows(folder))
