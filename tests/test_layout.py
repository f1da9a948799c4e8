"""The repository around the code: links, layering, names, sizes.

Each check is a function from a root folder to a list of faults, empty where all is well. It is run on this repository, and on a small
tree with one fault planted, so that no check stands here that cannot fail. Imports are read from the source, not by importing.
"""

from __future__ import annotations

import ast
import fnmatch
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("einsum_front", "checkpoints", "memplan", "kernels", "exec")
LINKS = (*FOLDERS, "specs")
MAX_LINES = 400
MAX_WINGS, MAX_MODULES = 10, 9
"""Of a folder, of a wing."""

WINGS: dict[str, tuple[str, ...]] = {
    "einsum_front": ("base", "algebra", "graph", "spec", "elaborate", "fuse", "differentiate", "tile", "choose"),
    "checkpoints": ("disk", "files", "text", "match"),
    "memplan": ("machine", "problem", "graph", "judge", "packing", "bounds", "residency", "horizons", "schedule", "tiers"),
    "kernels": ("layout", "on_llvm", "instructions", "multiply", "on_torch", "tiles", "writer", "on_triton", "launch"),
    "exec": ("system", "load", "device", "dispatch", "picture", "planning", "measure", "run", "train", "command"),
}
"""Each folder's wings from the ground up: a wing imports itself and the wings before it. Its errors lie below all wings, its other files
above them."""
FACE: dict[str, tuple[str, ...]] = {
    "einsum_front": ("base.*", "algebra.*", "graph.*", "spec.source", "spec.yamltree"),
    "checkpoints": ("disk.*", "files.*", "text.*", "match.*"),
    "memplan": (
        *(
            "errors",
            "plan",
            "report",
            "machine.*",
            "problem.*",
            "graph.*",
            "judge.plan_set",
            "judge.reason",
            "judge.validate",
            "bounds.bounds",
            "bounds.steady",
            "bounds.compulsory",
        ),
        "bounds.limit",
        *("horizons.recompute", "packing.pack", "packing.csv_file"),
        *("residency.loading", "residency.loop", "residency.resident_sets", "schedule.static_plans", "tiers.plan_tiers", "tiers.prologue"),
    ),
    "kernels": (
        *("errors", "prepare", "layout.torch_dtype", "on_llvm.compile", "instructions.torch_kernel", "multiply.products"),
        "on_torch.host_gather",
        *("tiles.fp32_products", "tiles.measured_tiles", "tiles.target"),
    ),
    "exec": (),
}
"""What the other folders may import of each."""
BELOW: dict[str, tuple[str, ...]] = {
    "einsum_front": (),
    "checkpoints": ("einsum_front",),
    "memplan": ("einsum_front",),
    "kernels": ("einsum_front",),
    "exec": ("einsum_front", "checkpoints", "memplan", "kernels"),
}
"""The folders whose faces each folder may import."""
WHOLE_FRONT = ("checkpoints.match.*", "exec.planning.*")
"""The modules that lead from a spec to a TaskGraph, or compare one with a checkpoint, and may import all of einsum_front."""
JUDGE_SEES = ("memplan.graph.memgraph", "memplan.graph.packed", "memplan.machine.places")
"""What the judge may import of the rest of memplan."""
KERNELS_SEE = ("einsum_front.base.*", "einsum_front.algebra.*", "einsum_front.graph.job", "einsum_front.graph.written_rows")
"""Kernels know jobs, and no graph."""
HEAVY = frozenset(("torch", "triton", "transformers"))
MAY_USE_TORCH = frozenset(("einsum_front.elaborate.reference",))

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
    """(line, module) of what the file imports of einpage, as `memplan.graph.memgraph`: the longest part of the name that is a file, or
    the name as it stands where none is."""
    own: list[tuple[int, str]] = []
    for line, name in imports_of(path):
        parts = name.split(".")[1:]
        if name.startswith("einpage.") and parts[0] in FOLDERS:
            lengths = (n for n in range(len(parts), 0, -1) if (root / "/".join(parts[:n])).with_suffix(".py").is_file())
            own.append((line, ".".join(parts[: next(lengths, len(parts))])))
    return own


def matches(module: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(module, pattern) for pattern in patterns)


def floor_of(module: str) -> int | None:
    """How high `memplan.graph.memgraph` stands in its folder; None for a wing that WINGS does not name."""
    folder, *rest = module.split(".")
    if len(rest) == 1:
        return -1 if rest[0] == "errors" else len(WINGS[folder])
    return WINGS[folder].index(rest[0]) if rest and rest[0] in WINGS[folder] else None


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


def wing_faults(root: Path) -> list[str]:
    """Wings that the table does not name, folders in wings, and imports that point up inside a folder."""
    faults = []
    for path in sources(root):
        module = module_of(root, path)
        here = floor_of(module)
        if here is None or module.count(".") > 2:
            faults.append(f"{path.relative_to(root)} is in no wing of {module.partition('.')[0]}")
            continue
        for line, name in own_imports(root, path):
            there = floor_of(name)
            if name.partition(".")[0] == module.partition(".")[0] and (there is None or there > here):
                faults.append(f"{path.relative_to(root)}:{line} imports einpage.{name}, which is above it")
    return faults


def face_faults(root: Path) -> list[str]:
    """Imports from folder to folder that point up, or past a face."""
    faults = []
    for path in sources(root):
        module = module_of(root, path)
        folder = module.partition(".")[0]
        allowed = {f"{below}.{face}" for below in BELOW[folder] for face in FACE[below]}
        if matches(module, WHOLE_FRONT):
            allowed.add("einsum_front.*")
        if folder == "kernels":
            allowed = set(KERNELS_SEE)
        for line, name in own_imports(root, path):
            if name.partition(".")[0] != folder and not matches(name, allowed):
                faults.append(f"{path.relative_to(root)}:{line} imports einpage.{name}, which is not for it")
    return faults


def judge_faults(root: Path) -> list[str]:
    """The judge shares no code with the planner: it knows the plan as a value, and the names of places."""
    faults = []
    for path in sorted((root / "memplan/judge").glob("*.py")):
        for line, name in own_imports(root, path):
            if not matches(name, ("einsum_front.base.*", "einsum_front.graph.*", "memplan.judge.*", *JUDGE_SEES)):
                faults.append(f"{path.relative_to(root)}:{line} imports einpage.{name}")
    return faults


def bare_faults(root: Path) -> list[str]:
    faults = []
    for path in sources(root):
        for line, name in imports_of(path):
            if name.startswith(".") or name.partition(".")[0] in FOLDERS:
                faults.append(f"{path.relative_to(root)}:{line} imports {name}; write einpage.<folder>.<wing>.<module>")
    return faults


def crowd_faults(root: Path) -> list[str]:
    """At most ten wings and three files a folder, at most ten modules a wing."""
    faults = []
    for folder in FOLDERS:
        entries = [p for p in (root / folder).iterdir() if p.name != "__pycache__" and not p.name.startswith(".")]
        wings, files = sum(p.is_dir() for p in entries), sum(p.is_file() for p in entries)
        if wings > MAX_WINGS or files > 3:
            faults.append(f"{folder} has {wings} wings and {files} files")
        for wing in WINGS[folder]:
            modules = sum(p.suffix == ".py" for p in (root / folder / wing).glob("*"))
            if modules > MAX_MODULES:
                faults.append(f"{folder}/{wing} has {modules} modules")
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
    for folder in LINKS:
        for path in sorted(p for p in (root / folder).rglob("*") if p.is_file() and p.suffix not in (".py", ".pyc") and p.name[0] != "."):
            home = root if folder == "specs" else path.parent
            package = ".".join(("einpage", *home.relative_to(root).parts))
            name = str(path.relative_to(home))
            globs = setuptools["package-data"].get(package, [])
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


CHECKS: dict[str, tuple[Callable[[Path], list[str]], Callable[[Path], object]]] = {
    "links": (link_faults, relink),
    "no_init": (init_faults, lambda root: plant(root, "kernels/__init__.py", "")),
    "no_init_wing": (init_faults, lambda root: plant(root, "kernels/instructions/__init__.py", "")),
    "wing_up": (wing_faults, lambda root: plant(root, "memplan/graph/b.py", "from einpage.memplan.judge.a import a\n")),
    "wing_up_whole": (wing_faults, lambda root: plant(root, "memplan/graph/b.py", "def f():\n    import einpage.memplan.judge.a\n")),
    "wing_up_to_root": (wing_faults, lambda root: plant(root, "memplan/graph/b.py", "from einpage.memplan.plan import a\n")),
    "wing_of_nobody": (wing_faults, lambda root: plant(root, "memplan/new/b.py", "")),
    "wing_in_wing": (wing_faults, lambda root: plant(root, "memplan/graph/new/b.py", "")),
    "face_up": (face_faults, lambda root: plant(root, "memplan/graph/b.py", "from einpage.exec.device.a import a\n")),
    "face_passed_by": (face_faults, lambda root: plant(root, "exec/run/b.py", "from einpage.memplan.judge.a import a\n")),
    "face_front": (face_faults, lambda root: plant(root, "exec/run/b.py", "def f():\n    import einpage.einsum_front.tile.split\n")),
    "face_graph": (
        face_faults,
        lambda root: plant(root, "kernels/instructions/b.py", "from einpage.einsum_front.graph import taskgraph\n"),
    ),
    "judge": (judge_faults, lambda root: plant(root, "memplan/judge/b.py", "from einpage.memplan.problem.footprint import a\n")),
    "bare": (bare_faults, lambda root: plant(root, "exec/run/b.py", "from kernels.instructions.a import a\n")),
    "bare_relative": (bare_faults, lambda root: plant(root, "exec/run/b.py", "from ..device import a\n")),
    "crowd": (crowd_faults, lambda root: [plant(root, f"exec/{name}.py", "") for name in "abcd"]),
    "crowd_modules": (crowd_faults, lambda root: [plant(root, f"exec/run/{name}.py", "") for name in "abcdefghijk"]),
    "crowd_wings": (crowd_faults, lambda root: [plant(root, f"exec/w{number}/a.py", "") for number in range(MAX_WINGS)]),
    "cycles": (cycle_faults, lambda root: plant(root, "exec/device/a.py", "def f():\n    from einpage.exec.device.a2 import g\n")),
    "cycles_by_module": (cycle_faults, lambda root: plant(root, "exec/device/a.py", "from einpage.exec.device import a2\n")),
    "torch": (torch_faults, lambda root: plant(root, "memplan/b.py", "def f():\n    import torch.nn\n")),
    "torch_reference": (torch_faults, lambda root: plant(root, "memplan/b.py", "import einpage.einsum_front.elaborate.reference\n")),
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
    """A repository with a module or two a folder and no fault."""
    for path in (
        "einsum_front/graph/a.py",
        "einsum_front/graph/taskgraph.py",
        "checkpoints/files/a.py",
        "memplan/judge/a.py",
        "kernels/instructions/a.py",
        "exec/device/a.py",
    ):
        plant(tmp_path, path, "import os\n")
    plant(tmp_path, "memplan/errors.py", "")
    plant(tmp_path, "memplan/plan.py", "from einpage.einsum_front.graph import a\nfrom einpage.memplan.judge.a import b\n")
    plant(tmp_path, "exec/device/a2.py", "from einpage.exec.device.a import a\nfrom einpage.memplan.plan import a as b\n")
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
