"""The repository around the code: links, layering, names, sizes.

Each check is a function from a root folder to a list of faults, empty where all is well. It is run on this repository, and on a small
tree with one fault planted, so that no check stands here that cannot fail. Imports are read from the source, not by importing.
"""

from __future__ import annotations

import ast
import fnmatch
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("einsum_front", "memplan", "kernels", "exec")
LINKS = (*FOLDERS, "specs")
MAX_LINES = 400

LEAVES = frozenset(f"einsum_front.{name}" for name in ("columns", "dtype", "errors", "expr", "job"))
ALLOWED = {
    "einsum_front": {"einsum_front.*"},
    "kernels": {"kernels.*"} | LEAVES,
    "memplan": {"memplan.*", "einsum_front.taskgraph", "einsum_front.program"} | LEAVES,
    "exec": {"exec.*", "kernels.*", "memplan.*", "einsum_front.taskgraph", "einsum_front.program"} | LEAVES,
}
"""What each folder may import of einpage: imports point down only. `program` gives the type Source, which a TaskGraph's values carry."""
WHOLE_FRONT = frozenset(("exec.build", "exec.command_line", "exec.run"))
"""The modules that lead from a spec to a result, and may import all of einsum_front."""
LEAF_IMPORTS: dict[str, set[str]] = {
    "einsum_front.columns": set(),
    "einsum_front.dtype": set(),
    "einsum_front.expr": set(),
    "einsum_front.errors": {"einsum_front.expr"},
    "einsum_front.job": {"einsum_front.dtype", "einsum_front.expr"},
}
"""The leaves, which all may import, import hardly anything themselves."""
HEAVY = frozenset(("torch", "triton", "transformers"))
MAY_USE_TORCH = frozenset(("einsum_front.reference",))

_SLASH = "/"
FORBIDDEN = tuple(_SLASH + name + _SLASH for name in ("work", "tmp", "root", "home")) + tuple(
    ".".join(parts) for parts in (("pypi", "org"), ("pythonhosted", "org"), ("download", "pytorch", "org"), ("deb", "debian", "org"))
)
"""Paths of one machine, hosts of registries; spelled so that this file does not contain them."""
TEXT = (".py", ".md", ".toml", ".yaml", ".json", ".txt", ".html", ".svg", ".cfg", "")


def sources(root: Path, folders: tuple[str, ...] = FOLDERS) -> Iterator[Path]:
    for folder in folders:
        yield from sorted(p for p in (root / folder).rglob("*.py") if "__pycache__" not in p.parts)


def module_of(root: Path, path: Path) -> str:
    """`memplan.plan` for memplan/plan.py."""
    return ".".join(path.relative_to(root).with_suffix("").parts)


def imports_of(path: Path) -> list[tuple[int, str]]:
    """(line, absolute dotted name) of every import in the file, in functions too; `from a.b import c` gives a.b.c."""
    found: list[tuple[int, str]] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found += [(node.lineno, f"{'.' * node.level}{node.module or ''}.{alias.name}") for alias in node.names]
    return found


def own_imports(root: Path, path: Path) -> list[tuple[int, str]]:
    """(line, module) of what the file imports of einpage, as `memplan.plan`."""
    own: list[tuple[int, str]] = []
    for line, name in imports_of(path):
        parts = name.split(".")
        if parts[0] == "einpage" and len(parts) > 1:
            own.append((line, ".".join(parts[1:3])))
    return own


def link_faults(root: Path) -> list[str]:
    faults = []
    for name in LINKS:
        link = root / "einpage" / name
        if not link.is_symlink():
            faults.append(f"einpage/{name} is not a symbolic link")
        elif os.readlink(link) != f"../{name}":
            faults.append(f"einpage/{name} points to {os.readlink(link)}, not to ../{name}")
        elif not link.is_dir():
            faults.append(f"einpage/{name} leads nowhere")
    return faults


def init_faults(root: Path) -> list[str]:
    return [str(p.relative_to(root)) for p in sources(root, (*FOLDERS, "specs")) if p.name == "__init__.py"]


def layering_faults(root: Path) -> list[str]:
    faults = []
    for path in sources(root):
        module = module_of(root, path)
        allowed = ALLOWED[module.partition(".")[0]] | ({"einsum_front.*"} if module in WHOLE_FRONT else set())
        allowed = LEAF_IMPORTS.get(module, allowed)
        for line, name in own_imports(root, path):
            if not any(fnmatch.fnmatchcase(name, pattern) for pattern in allowed):
                faults.append(f"{path.relative_to(root)}:{line} imports einpage.{name}")
        for line, name in imports_of(path):
            if name.startswith(".") or name.partition(".")[0] in FOLDERS:
                faults.append(f"{path.relative_to(root)}:{line} imports {name}; write einpage.<folder>.<module>")
    return faults


def cycle_faults(root: Path) -> list[str]:
    """Imports inside functions count too: none may be there to hide a cycle."""
    below = {module_of(root, p): sorted({name for _, name in own_imports(root, p)}) for p in sources(root)}
    done: set[str] = set()
    faults: list[str] = []

    def walk(module: str, trail: tuple[str, ...]) -> None:
        if module in trail:
            faults.append(" -> ".join((*trail[trail.index(module) :], module)))
        elif module not in done:
            for name in below.get(module, ()):
                walk(name, (*trail, module))
            done.add(module)

    for module in sorted(below):
        walk(module, ())
    return faults


def torch_faults(root: Path) -> list[str]:
    faults = []
    for path in sources(root, ("einsum_front", "memplan")):
        if module_of(root, path) in MAY_USE_TORCH:
            continue
        for line, name in imports_of(path):
            if name.partition(".")[0] in HEAVY or name.removeprefix("einpage.") in MAY_USE_TORCH:
                faults.append(f"{path.relative_to(root)}:{line} imports {name}")
    return faults


def folder_name_faults(root: Path) -> list[str]:
    return sorted(p.name for p in (root / "tests").rglob("*") if p.is_dir() and p.name in (*LINKS, "einpage"))


def length_faults(root: Path) -> list[str]:
    lines_by_file = {p: p.read_text(encoding="utf-8").count("\n") for p in sources(root, (*FOLDERS, "tests", "bench"))}
    return [f"{p.relative_to(root)} has {n} lines" for p, n in lines_by_file.items() if n > MAX_LINES]


def committed_text(root: Path) -> Iterator[Path]:
    """Every text file of the repository: at the top, and in its folders (not in environments, caches or builds)."""
    folders = (*LINKS, "tests", "bench", "docs", ".ci")
    for path in sorted([p for p in root.iterdir() if p.is_file()] + [p for f in folders for p in (root / f).rglob("*") if p.is_file()]):
        if path.suffix in TEXT and not {"__pycache__", "local"} & set(path.parts) and path.name not in (".coverage", ".git"):
            yield path


def place_faults(root: Path) -> list[str]:
    faults = []
    for path in committed_text(root):
        text = path.read_text(encoding="utf-8", errors="replace")
        faults += [f"{path.relative_to(root)} mentions {word}" for word in FORBIDDEN if word in text]
    return faults


def packaging_faults(root: Path) -> list[str]:
    """What a wheel would miss: a folder of code that `packages` does not name, a file of data that no pattern takes."""
    setuptools = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    faults = []
    for path in sources(root):
        package = ".".join(("einpage", *path.relative_to(root).parent.parts))
        if package not in setuptools["packages"]:
            faults.append(f"{path.relative_to(root)}: {package} is not in packages")
    folders = [(root / folder, "einpage" if folder == "specs" else f"einpage/{folder}") for folder in LINKS]
    for folder, package in folders:
        globs = setuptools["package-data"].get(package.replace("/", "."), [])
        for path in sorted(p for p in folder.rglob("*") if p.is_file() and p.suffix not in (".py", ".pyc") and not p.name.startswith(".")):
            name = str(path.relative_to(root if package == "einpage" else folder))
            if not any(fnmatch.fnmatchcase(name, glob) and name.count("/") == glob.count("/") for glob in globs):
                faults.append(f"{path.relative_to(root)} is in no pattern of package-data")
    return faults


def variable_faults(root: Path) -> list[str]:
    """Every variable of ours that some file reads or sets is explained in docs/environment.md."""
    explained = (root / "docs/environment.md").read_text(encoding="utf-8")
    used = {name for path in committed_text(root) for name in re.findall(r"\bEINPAGE_[A-Z0-9_]+\b", path.read_text(errors="replace"))}
    return [f"{name} is not in docs/environment.md" for name in sorted(used) if f"`{name}`" not in explained]


def plant(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text, encoding="utf-8")


def relink(root: Path) -> None:
    (root / "einpage/exec").unlink()
    (root / "einpage/exec").symlink_to(root / "exec")


CHECKS: dict[str, tuple[Callable[[Path], list[str]], Callable[[Path], None]]] = {
    "links": (link_faults, relink),
    "no_init": (init_faults, lambda root: plant(root, "kernels/__init__.py", "")),
    "layering_up": (layering_faults, lambda root: plant(root, "memplan/b.py", "from einpage.exec.a import a\n")),
    "layering_front": (layering_faults, lambda root: plant(root, "kernels/b.py", "def f():\n    import einpage.einsum_front.split\n")),
    "layering_leaf": (layering_faults, lambda root: plant(root, "einsum_front/expr.py", "from einpage.einsum_front import job\n")),
    "layering_bare": (layering_faults, lambda root: plant(root, "exec/b.py", "from kernels.a import a\n")),
    "cycles": (cycle_faults, lambda root: plant(root, "exec/a.py", "def f():\n    from einpage.exec.a2 import g\n")),
    "torch": (torch_faults, lambda root: plant(root, "memplan/b.py", "def f():\n    import torch.nn\n")),
    "torch_reference": (torch_faults, lambda root: plant(root, "memplan/b.py", "import einpage.einsum_front.reference\n")),
    "test_folders": (folder_name_faults, lambda root: plant(root, "tests/kernels/x.txt", "")),
    "length": (length_faults, lambda root: plant(root, "exec/b.py", "\n" * (MAX_LINES + 1))),
    "places": (place_faults, lambda root: plant(root, "docs/a.md", f"see {FORBIDDEN[0]}x\n")),
    "packages": (packaging_faults, lambda root: plant(root, "exec/sub/b.py", "")),
    "package_data": (packaging_faults, lambda root: plant(root, "specs/machines/old/a.yaml", "")),
    "package_data_code": (packaging_faults, lambda root: plant(root, "kernels/table.json", "")),
    "variables": (variable_faults, lambda root: plant(root, "exec/b.py", "NAME = 'EINPAGE_" + "NEW'\n")),
}
"""Each check with a fault it must find in a tree that is otherwise right."""


@pytest.fixture
def small_tree(tmp_path: Path) -> Path:
    """A repository with one module a folder and no fault."""
    for folder in FOLDERS:
        plant(tmp_path, f"{folder}/a.py", "import os\n")
    plant(tmp_path, "exec/a2.py", "from einpage.exec.a import a\nfrom einpage.kernels.a import a as b\n")
    plant(tmp_path, "specs/machines/a.yaml", "")
    plant(tmp_path, "tests/test_a.py", "")
    plant(tmp_path, "docs/environment.md", "")
    plant(tmp_path, "pyproject.toml", (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (tmp_path / "einpage").mkdir()
    for name in LINKS:
        (tmp_path / "einpage" / name).symlink_to(f"../{name}")
    return tmp_path


@pytest.mark.parametrize("check", sorted({check for check, _ in CHECKS.values()}, key=lambda f: f.__name__), ids=lambda f: f.__name__)
def test_repository(check: Callable[[Path], list[str]]) -> None:
    assert check(ROOT) == []


@pytest.mark.parametrize("name", CHECKS)
def test_check_finds_a_planted_fault(name: str, small_tree: Path) -> None:
    check, fault = CHECKS[name]
    assert check(small_tree) == []
    fault(small_tree)
    assert len(check(small_tree)) == 1


def heavy_after(*commands: list[str]) -> list[str]:
    """Which heavy modules a fresh process has loaded after running these commands of einpage, each of which must end well."""
    code = (
        "import sys\nfrom einpage.exec.cli import main\n"
        f"for words in {commands!r}:\n"
        "    try:\n        status = main(words)\n    except SystemExit as end:\n        status = end.code\n"
        "    assert not status, words\n"
        f"print(sorted({set(HEAVY)!r} & set(sys.modules)))"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert ran.returncode == 0, ran.stderr
    return ast.literal_eval(ran.stdout.splitlines()[-1])


@pytest.mark.parametrize("command", ["show", "plan", "run", "verify", "pack", "machine"])
def test_help_leaves_torch_out(command: str) -> None:
    assert heavy_after([command, "--help"]) == []


def test_planning_leaves_torch_out(tmp_path: Path) -> None:
    spec, plan, picture = "specs/matmul_chain.yaml", str(tmp_path / "plan.json"), str(tmp_path / "timeline.html")
    planning = ["plan", spec, "--budget", "64MiB", "--out", plan, "--timeline", picture]
    packing = ["pack", "tests/data/minimalloc_A.csv", "--capacity", "1MiB"]
    assert heavy_after(["show", spec], planning, ["verify", plan], packing, ["machine"]) == []


def test_heavy_modules_are_seen() -> None:
    """The check above can fail: a module that uses torch is seen."""
    code = "import sys, einpage.kernels.dispatch\nprint('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60).stdout == "True\n"
