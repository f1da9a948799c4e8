"""What the documents and docstrings point at is there: files, folders, links, commands of make, modules; and every wing is explained.

Each check is a function from a root folder to a list of what is wrong. It is run on this repository, and on a small tree with one mistake
planted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from test_layout import FOLDERS, WINGS, sources

ROOT = Path(__file__).resolve().parent.parent
SUFFIXES = "py|md|yaml|json|sh|toml|txt|csv|html|svg|gz"
FILE = re.compile(rf"(?<![\w/.…<>*-])((?:[\w.-]+/)*[\w-]+\.(?:{SUFFIXES}))\b(?![\w/*-])")
FOLDER = re.compile(r"`((?:[\w.-]+/)+)`")
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
NOT_OURS = frozenset(("plan.json", "results.json", "timeline.html", "config.json", "tokenizer.json", "machine.yaml", "spec.yaml"))
"""Files that a user has, or a command writes; and names in capitals stand for a file."""


def documents(root: Path) -> Iterator[tuple[Path, str]]:
    """Every Markdown file of ours, with its text."""
    for pattern in ("*.md", "docs/**/*.md", "bench/*.md", "specs/*.md"):
        for path in sorted(root.glob(pattern)):
            yield path, path.read_text(encoding="utf-8")


def unfenced(text: str) -> str:
    return re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)


def prose(text: str) -> str:
    """The text without its fenced blocks and web addresses."""
    return re.sub(r"https?://\S+", "", unfenced(text))


def path_mistakes(root: Path) -> list[str]:
    """Paths count from the repository's root, or from the document's folder."""
    found = []
    for path, text in documents(root):
        for name in FILE.findall(prose(text)) + FOLDER.findall(prose(text)):
            stands_for_one = name in NOT_OURS or (Path(name).stem.isupper() and not name.endswith(".md"))
            if not stands_for_one and not (root / name).exists() and not (path.parent / name).exists():
                found.append(f"{path.relative_to(root)}: {name}")
    return found


def link_mistakes(root: Path) -> list[str]:
    return [
        f"{path.relative_to(root)}: {target}"
        for path, text in documents(root)
        for target in LINK.findall(re.sub("`[^`]*`", "", unfenced(text)))
        if "://" not in target and not (path.parent / target).exists()
    ]


def command_mistakes(root: Path) -> list[str]:
    """`make NAME`, at the start of a line or in backticks, and `python -m bench.…`."""
    targets = set(re.findall(r"^([a-z-]+):.*## ", (root / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    found = []
    for path, text in documents(root):
        called = [f"make {name}" for name in re.findall(r"(?:^|`)make ([a-z-]+)\b", text, re.MULTILINE) if name not in targets]
        modules = re.findall(r"python -m ((?:bench|einpage)[\w.]*)", text)
        called += [name for name in modules if not any((root / name.replace(".", "/")).with_suffix(s).exists() for s in (".py", ""))]
        found += [f"{path.relative_to(root)}: {name}" for name in called]
    return found


def wing_mistakes(root: Path) -> list[str]:
    """CONTRIBUTING.md has a line for each wing, one sentence long, in the order of the table of wings, and no other."""
    text = (root / "CONTRIBUTING.md").read_text(encoding="utf-8")
    lines = re.findall(r"^\| `(\w+)/(\w+)/` \| (.*) \|$", text, re.MULTILINE)
    wanted = [(folder, wing) for folder in FOLDERS for wing in WINGS[folder]]
    missing = [f"no line for {folder}/{wing}/" for folder, wing in wanted if (folder, wing) not in [line[:2] for line in lines]]
    other = [f"{folder}/{wing}/ is no wing" for folder, wing, _ in lines if (folder, wing) not in wanted]
    wrong_order = [] if missing or other or [line[:2] for line in lines] == wanted else ["the wings stand in another order"]
    long = [f"{folder}/{wing}/: not one sentence" for folder, wing, said in lines if not re.fullmatch(r"[^.;]+(?:\.\w[^.;]*)*\.", said)]
    return missing + other + wrong_order + long


def glossary_mistakes(root: Path) -> list[str]:
    """Each term once, with one line and one file, which exists and uses the words of the term."""
    rows = re.findall(r"^\| (.*) \|$", (root / "docs/glossary.md").read_text(encoding="utf-8"), re.MULTILINE)
    terms: set[str] = set()
    found = []
    for cells in ([cell.strip() for cell in row.split("|")] for row in rows if not row.startswith(("term |", "---"))):
        term, meaning, file = cells[:3]
        path = root / file.strip("`")
        if len(cells) != 4 or not term or not meaning or not path.is_file():
            found.append(f"{term}: {file}")
            continue
        text = f"{file} {path.read_text(encoding='utf-8')}".lower()
        stems = {word[:5] for word in re.findall(r"\w{3,}", term.lower())}
        found += [f"{term}: {file} does not speak of {stem}…" for stem in sorted(stems) if stem not in text]
        if terms & {*term.split(", ")}:
            found.append(f"{term}: twice")
        terms |= {*term.split(", ")}
    return found if terms else ["no terms"]


def docstring_mistakes(root: Path) -> list[str]:
    """Files that the code's own prose names, by the end of their paths."""
    there = [f"/{path.relative_to(root)}" for top in (*FOLDERS, "specs", "bench", "tests", "docs") for path in (root / top).rglob("*.*")]
    found = []
    for path in sources(root):
        for name in re.findall(r"(?<![\w/.*])((?:\w+/)*\w+\.(?:py|md))\b", re.sub(r"https?://\S+", "", path.read_text(encoding="utf-8"))):
            if not any(place.endswith(f"/{name}") for place in there):
                found.append(f"{path.relative_to(root)}: {name}")
    return found


CHECKS: dict[str, tuple[Callable[[Path], list[str]], str, str]] = {
    "paths": (path_mistakes, "docs/a.md", "See `memplan/b.py`.\n"),
    "paths_bare": (path_mistakes, "bench/a.md", "As plan.py has it, `plan_speed.py`.\n"),
    "paths_folder": (path_mistakes, "README.md", "In `memplan/nowhere/`.\n"),
    "links": (link_mistakes, "docs/a.md", "See [this](../README.md) and [that](b.md#part).\n"),
    "commands": (command_mistakes, "docs/a.md", "```\nmake test\nmake tset\n```\n"),
    "commands_module": (command_mistakes, "docs/a.md", "`python -m bench.plan_sped` and `python -m bench.plan_speed`\n"),
    "glossary": (glossary_mistakes, "docs/glossary.md", "| arena | Bytes. | `memplan/arena.py` | |\n"),
    "glossary_twice": (glossary_mistakes, "docs/glossary.md", "| a, b | A. | `Makefile` | |\n| b | B. | `Makefile` | Knuth |\n"),
    "glossary_word": (glossary_mistakes, "docs/glossary.md", "| judge of plans | It. | `memplan/judge/a.py` | |\n"),
    "glossary_empty": (glossary_mistakes, "docs/glossary.md", "| term | meaning |\n"),
    "docstrings": (docstring_mistakes, "memplan/graph/b.py", '"""As judge/a.py and other.py."""\n'),
}
"""Each check with a file in which it must find one mistake."""


@pytest.fixture
def small_tree(tmp_path: Path) -> Path:
    rows = "".join(f"| `{folder}/{wing}/` | What it is. |\n" for folder in FOLDERS for wing in WINGS[folder])
    for path, text in {
        "README.md": "See `memplan/judge/a.py`, `memplan/judge/` and [how](CONTRIBUTING.md#how); `plan.json`.\n",
        "CONTRIBUTING.md": rows,
        "Makefile": "test:  ## all\n",
        "docs/glossary.md": "| term | meaning | file | source |\n| --- | --- | --- | --- |\n| judge | It. | `memplan/judge/a.py` | |\n",
        "bench/plan_speed.py": "",
        "memplan/judge/a.py": '"""Beside judge/a.py."""\n',
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text, encoding="utf-8")
    for folder in FOLDERS:
        for wing in WINGS[folder]:
            (tmp_path / folder / wing).mkdir(parents=True, exist_ok=True)
    return tmp_path


OF_ALL = (path_mistakes, link_mistakes, command_mistakes, wing_mistakes, glossary_mistakes, docstring_mistakes)


@pytest.mark.parametrize("check", OF_ALL, ids=lambda f: f.__name__)
def test_repository(check: Callable[[Path], list[str]]) -> None:
    assert check(ROOT) == []


@pytest.mark.parametrize("name", CHECKS)
def test_a_planted_mistake_is_found(name: str, small_tree: Path) -> None:
    check, path, text = CHECKS[name]
    assert check(small_tree) == []
    (small_tree / path).parent.mkdir(parents=True, exist_ok=True)
    (small_tree / path).write_text(text, encoding="utf-8")
    assert len(check(small_tree)) == 1


@pytest.mark.parametrize(
    ("before", "after", "finds"),
    [
        ("| `memplan/judge/` | What it is. |\n", "", "no line for memplan/judge/"),
        ("`memplan/judge/`", "`memplan/jury/`", "no line for memplan/judge/"),
        ("| `exec/run/` | What it is. |", "| `exec/run/` | What it is. And more. |", "exec/run/: not one sentence"),
        ("| `exec/run/` | What it is. |", "| `exec/run/` | |", "no line for exec/run/"),
        (
            "| `exec/train/` | What it is. |\n| `exec/command/` |",
            "| `exec/command/` | It. |\n| `exec/train/` |",
            "the wings stand in another order",
        ),
    ],
)
def test_a_planted_mistake_about_wings_is_found(before: str, after: str, finds: str, small_tree: Path) -> None:
    file = small_tree / "CONTRIBUTING.md"
    assert before in file.read_text()
    file.write_text(file.read_text().replace(before, after))
    assert wing_mistakes(small_tree)[0] == finds
