"""The tables of mutants (tests/mutation) do not rot: each patch fits its file, leaves Python, and names tests that there are.

That they are killed is for `make mutants`.
"""

from __future__ import annotations

import ast
import re
from collections import Counter

import pytest

from mutation.table import FOLDERS, ROOT, Mutant, mutants

ALL = mutants()


@pytest.mark.parametrize("mutant", ALL, ids=lambda m: m.id)
def test_a_patch_fits_its_file(mutant: Mutant) -> None:
    """Its old text stands there once; what it makes of it is another program, and one at all."""
    text = (ROOT / mutant.file).read_text(encoding="utf-8")
    changed = mutant.applied(text)
    assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(text))
    assert mutant.why and "\n" not in mutant.why


def test_a_patch_that_does_not_fit_is_said() -> None:
    with pytest.raises(ValueError, match=r"slip: f\.py has its `old` 2 times, not once"):
        Mutant("slip", "f.py", "a", "b", "").applied("a = a")


def test_the_tables_are_large_and_say_everything_once() -> None:
    assert all(sum(m.folder == folder for m in ALL) >= 20 for folder in FOLDERS) and len(ALL) >= 80
    assert [name for name, n in Counter(m.id for m in ALL).items() if n > 1] == []
    assert [change for change, n in Counter((m.file, m.old, m.new) for m in ALL).items() if n > 1] == []


def test_the_tests_that_rows_name_exist() -> None:
    text_by_file: dict[str, str] = {}
    for file, _, name in (test.partition("::") for mutant in ALL for test in mutant.tests):
        text = text_by_file.setdefault(file, (ROOT / file).read_text(encoding="utf-8"))
        assert not name or re.search(rf"^def {name}\(", text, re.MULTILINE), f"{file} has no {name}"
