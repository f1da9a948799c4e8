"""The words of the four folders: the field's terms, each for one thing.

`word_list` lists words that were once used here in a meaning of their own, with the term that a textbook or a paper would use. Where a word
has an everyday meaning as well, it is looked for only in the folders, in the kind of place or in the phrases in which the private
meaning occurred; its row then says which meaning stays, and a folder is left out only if the word does occur elsewhere. Names are taken
from the source by `ast`: everything that a module defines, split at underscores and at capitals. Prose is docstrings, the docs under
fields, comments, and all other text with a space in it (errors, reports, help). A class or alias name stands for one thing in all four
folders.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from word_list import FOLDERS, WORDS, Word

ROOT = Path(__file__).resolve().parent.parent
STANDARD = re.compile(
    r"\b(?:(?:lower|upper) bounds?|prefetch leads?|shadow prices?|queue heads?|critical paths?|floor division|trade-offs?"
    r"|tie[- ]break\w*)\b",
    re.IGNORECASE,
)
"""Terms of the field that hold a word of WORDS."""

ALLOWED: dict[tuple[str, str], str] = {
    ("exec.dispatch.threads", "STOP_S"): "how long threads are given to end",
    ("exec.dispatch.engine", "stop"): "ends the run's threads",
    ("exec.measure.cpu", "stop"): "ends the copying threads",
    **dict.fromkeys(
        [
            *(("exec.command.generate", "stop"), ("exec.run.open_model", "stop"), ("exec.run.open_model", "stops")),
            *(("checkpoints.text.continuation", name) for name in ("stop", "stops", "_stops")),
        ],
        "a stop string, before which a text ends",
    ),
    ("exec.run.open_model", "__enter__"): "Python's own name",
}
"""(module, name or piece of prose) that a pattern of WORDS finds in another meaning, and which meaning."""


def sources(root: Path) -> Iterator[tuple[str, Path]]:
    """(dotted module below einpage, file)"""
    for folder in FOLDERS:
        for path in sorted(p for p in (root / folder).rglob("*.py") if "__pycache__" not in p.parts):
            yield ".".join(path.relative_to(root).with_suffix("").parts), path


def parts_of(name: str) -> set[str]:
    """`host` and `slots` for HostSlots, HOST_SLOTS and _host_slots; without what is part of a standard term."""
    words = " ".join(found.lower() for found in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+", name))
    return set(STANDARD.sub("", words).split())


def defined_names(module: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, name) of all that a module defines, itself included."""
    yield from ((1, name) for name in module.split("."))
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.arg(arg=name):
                yield node.lineno, name
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield node.lineno, name
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield node.lineno, name
            case ast.MatchMapping(rest=str(name)) | ast.alias(asname=str(name)):
                yield node.lineno, name


def prose_of(text: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, text on one line) of every docstring, comment and constant text of several words."""
    docs = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and (id(node) in docs or len(node.value.split()) > 1):
            yield node.lineno, " ".join(node.value.split())
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def is_in(module: str, places: tuple[str, ...]) -> bool:
    return any(f"{module}.".startswith(f"{place}.") for place in places)


Finding = tuple[str, str, str]
"""(module, name or piece of prose, what to say)"""


@cache
def names_in(module: str, text: str) -> tuple[tuple[int, str], ...]:
    return tuple(defined_names(module, ast.parse(text)))


@cache
def prose_in(text: str) -> tuple[tuple[int, str], ...]:
    return tuple(prose_of(text, ast.parse(text)))


def name_findings(root: Path, rows: tuple[Word, ...] = WORDS) -> Iterator[Finding]:
    for module, path in sources(root):
        words = [(set(w.names.split()), w.but) for w in rows if is_in(module, w.where)]
        for line, name in names_in(module, path.read_text(encoding="utf-8")):
            for bad, but in words:
                if bad & parts_of(name):
                    yield module, name, f"{path.relative_to(root)}:{line} `{name}`: {but}"


def prose_findings(root: Path, rows: tuple[Word, ...] = WORDS) -> Iterator[Finding]:
    for module, path in sources(root):
        words = [(re.compile(w.prose, re.IGNORECASE), w.but) for w in rows if w.prose and is_in(module, w.where)]
        for line, prose in prose_in(path.read_text(encoding="utf-8")):
            for pattern, but in words:
                for found in pattern.finditer(STANDARD.sub(lambda term: "." * len(term[0]), prose)):
                    around = prose[max(0, found.start() - 40) : found.end() + 40]
                    yield module, around, f"{path.relative_to(root)}:{line} …{around}…: {but}"


FINDINGS = {"names": name_findings, "prose": prose_findings}


@cache
def findings_here(kind: str) -> tuple[Finding, ...]:
    return tuple(FINDINGS[kind](ROOT))


def permits(kind: str, module: str, text: str) -> list[tuple[str, str]]:
    """The exceptions that cover a finding."""
    return [(m, part) for m, part in ALLOWED if m == module and (part == text if kind == "names" else " " in part and part in text)]


def classes(root: Path) -> dict[str, list[str]]:
    """By class or alias name (without leading underscores), the modules that define it."""
    modules_by_name: dict[str, list[str]] = {}
    for module, path in sources(root):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names = [node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
        for node in tree.body:
            match node:
                case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)) if re.match("_*[A-Z].*[a-z]", name):
                    names.append(name)
        for name in names:
            modules_by_name.setdefault(name.lstrip("_"), []).append(module)
    return modules_by_name


def doubles(root: Path) -> list[str]:
    return [f"{name}: {', '.join(modules)}" for name, modules in classes(root).items() if len(modules) > 1]


@pytest.mark.parametrize("folder", FOLDERS)
@pytest.mark.parametrize("kind", FINDINGS)
def test_words(kind: str, folder: str) -> None:
    found = [say for module, text, say in findings_here(kind) if is_in(module, (folder,)) and not permits(kind, module, text)]
    assert not found, "\n".join(found)


def test_exceptions_are_needed() -> None:
    used = {entry for kind in FINDINGS for module, text, _ in findings_here(kind) for entry in permits(kind, module, text)}
    assert set(ALLOWED) == used


def test_a_class_name_is_one_thing() -> None:
    assert doubles(ROOT) == []


def plant(root: Path, module: str, text: str) -> None:
    path = (root / module.replace(".", "/")).with_suffix(".py")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def test_every_exception_has_a_reason() -> None:
    assert [w.but for w in WORDS if w.needs_reason and not w.reason] == []
    assert [w.but for w in WORDS if w.reason and not w.needs_reason] == []


def is_scope_needed(root: Path, word: Word) -> bool:
    """Whether the word occurs outside its row's `where`."""
    everywhere = replace(word, where=FOLDERS)
    found = [module for find in FINDINGS.values() for module, _, _ in find(root, (everywhere,))]
    return any(not is_in(module, word.where) for module in found)


@pytest.mark.parametrize("word", [w for w in WORDS if w.where != FOLDERS], ids=lambda w: w.names or w.example)
def test_a_narrow_scope_is_needed(word: Word) -> None:
    assert is_scope_needed(ROOT, word), f"{word.names}: occurs nowhere else, so look for it everywhere"


def test_a_scope_that_is_not_needed_is_found(tmp_path: Path) -> None:
    word = Word("end", "stop", where=("exec",), reason="an example")
    plant(tmp_path, "exec.a", "def stop(): ...\n")
    assert not is_scope_needed(tmp_path, word)
    plant(tmp_path, "memplan.a", "def stop(): ...\n")
    assert is_scope_needed(tmp_path, word)


@pytest.mark.parametrize("word", [w for w in WORDS if w.names], ids=lambda w: w.names)
def test_a_planted_name_is_found(word: Word, tmp_path: Path) -> None:
    """As a class, a function, a parameter, a field, a local, an attribute, a capture, a module; not where it is only used."""
    bad = word.names.split()[-1]
    module = f"{word.where[0]}.a"
    for text in (
        f"class Some{bad.title()}:\n    pass\n",
        f"def some_{bad}():\n    pass\n",
        f"def f({bad}_s):\n    pass\n",
        f"class A:\n    {bad}: int\n",
        f"def f():\n    for {bad}, b in ():\n        pass\n",
        f"def f(self):\n    self.{bad} = 1\n",
        f"def f(a):\n    match a:\n        case [{bad}, *_]:\n            pass\n",
    ):
        plant(tmp_path, module, text)
        assert len(list(name_findings(tmp_path))) == 1, text
    plant(tmp_path, module, f"def f(a):\n    return a.{bad}, {bad}, 'some {bad}', a({bad}=1)\n")
    assert list(name_findings(tmp_path)) == []
    plant(tmp_path, f"{word.where[0]}.{bad}_b", "")
    assert len(list(name_findings(tmp_path))) == 1


@pytest.mark.parametrize("word", [w for w in WORDS if w.prose], ids=lambda w: w.example)
def test_planted_prose_is_found(word: Word, tmp_path: Path) -> None:
    """In a docstring, under a field, in a comment, in an error's text."""
    for text in (
        f'"""First.\n\n{word.example}"""\n',
        f'class A:\n    a: int\n    """{word.example}"""\n',
        f"a = 1  # {word.example}\n",
        f'def f(a):\n    raise ValueError(f"{{a}} {word.example}")\n',
    ):
        plant(tmp_path, f"{word.where[0]}.a", text)
        assert any(word.but in say for _, _, say in prose_findings(tmp_path)), text


def test_a_planted_double_is_found(tmp_path: Path) -> None:
    plant(tmp_path, "memplan.a", "class Both:\n    pass\n\nOnce = int\nTwice = int\n")
    plant(tmp_path, "exec.a", "class _Both:\n    pass\n\nTwice: type = float\nONCE = 1\n")
    assert doubles(tmp_path) == ["Both: memplan.a, exec.a", "Twice: memplan.a, exec.a"]
