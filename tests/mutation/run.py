"""Mutation testing on our own patches (`make mutants`): does a test fail for every slip of the tables?

In: the tables beside this file. Out: a line a mutant, killed by which test or survived, and exit status 1 where one survived. Each worker
has a copy of the tree in a temporary folder, in which it applies one mutant after the other; the tree at hand is not touched. The tests
that a row names are run first, then those whose files name the mutated module, then those of its folder, golden texts last; with --all the
rest of `make test`. What rows name has to pass on the tree as it is, or what it kills says nothing.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter, sleep

from table import FOLDERS, ROOT, Mutant, mutants

NAMED_S, GUESSED_S, ALL_S = 300.0, 600.0, 3600.0
"""How long the tests of a stage may run; what takes longer has decided nothing."""
TEST_S = 60
"""How long a single test may run: a slip may make a loop endless."""
LEFT_OUT = shutil.ignore_patterns(".git", ".venv*", ".cache", "__pycache__", ".*_cache", ".hypothesis")
PREFIX = {
    "einsum_front": "front",
    "checkpoints": "checkpoints",
    "memplan": "memplan",
    "kernels": "kernels",
    "exec": "exec",
    "bench": "bench",
}
IMPORTED = (
    "pytest",
    "hypothesis",
    "numpy",
    "scipy.optimize",
    "torch",
    "triton",
    "yaml",
    "rich.progress",
    "gguf",
    "safetensors.torch",
    "tokenizers",
)
"""What most tests import beside einpage: imported once by each worker."""
FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)
OTHER_TREE = 99
"""The status of a run that has imported einpage from elsewhere."""


@dataclass(frozen=True, slots=True)
class Verdict:
    mutant: Mutant
    killed_by: str | None
    """None: it survived."""
    seconds: float

    def text(self) -> str:
        return (
            f"{'killed  ' if self.killed_by else 'SURVIVED'} {self.seconds:6.1f} s  {self.mutant.id}  {self.killed_by or self.mutant.why}"
        )


class Tree:
    """A copy of the repository to be mutated."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "tree"
        shutil.copytree(ROOT, self.root, symlinks=True, ignore=LEFT_OUT)
        if (ROOT / ".cache").exists():
            (self.root / ".cache").symlink_to((ROOT / ".cache").resolve())
        self.tick = 0

    def verdict(self, mutant: Mutant, every_test: bool) -> Verdict:
        """Apply `mutant`, run tests until one fails, undo it."""
        began = perf_counter()
        path = self.root / mutant.file
        text, before = path.read_text(encoding="utf-8"), path.stat()
        path.write_text(mutant.applied(text), encoding="utf-8")
        # Compiled files are known by seconds and sizes: no two versions of a file have the same second.
        self.tick += 10
        os.utime(path, (before.st_mtime + self.tick, before.st_mtime + self.tick))
        try:
            killed_by = next((found for tests, limit_s in self.stages(mutant, every_test) if (found := self.failure(tests, limit_s))), None)
        finally:
            path.write_text(text, encoding="utf-8")
            os.utime(path, (before.st_mtime, before.st_mtime))
        return Verdict(mutant, killed_by, perf_counter() - began)

    def stages(self, mutant: Mutant, every_test: bool) -> Iterator[tuple[Sequence[str], float]]:
        """Tests to run one after the other, each with its limit in seconds."""
        if mutant.tests:
            yield mutant.tests, NAMED_S
        module = mutant.file.removesuffix(".py").replace("/", ".")
        every = sorted((self.root / "tests").glob("test_*.py"))
        folder = [p for p in every if p.name.startswith(f"test_{PREFIX[mutant.folder]}_")]
        closest = [p for p in (*folder, *(p for p in every if p not in folder)) if module in p.read_text(encoding="utf-8")]
        related = [p for p in folder if p not in closest]
        last = [p for p in every if p.name == "test_golden.py"]
        for paths in (closest, related, last):
            if paths:
                yield [str(p.relative_to(self.root)) for p in paths], GUESSED_S
        if every_test:
            yield [str(p.relative_to(self.root)) for p in every if p not in (*closest, *related, *last)], ALL_S

    def failure(self, tests: Sequence[str], limit_s: float) -> str | None:
        """The first test to fail; None where all pass or the limit ends them. Raises RuntimeError where that cannot be known."""
        with tempfile.TemporaryFile("w+", encoding="utf-8") as said:
            child = os.fork()
            if child == 0:
                self.run_and_exit(tests, said.fileno())
            status = _waited(child, limit_s)
            said.seek(0)
            output = said.read()
        if status is None or status == 0:
            return None
        found = FAILED.search(output)
        if status not in (1, 2) or found is None:
            raise RuntimeError(f"pytest {' '.join(tests)}: status {status}\n{output}")
        return found[1]

    def run_and_exit(self, tests: Sequence[str], output: int) -> None:
        """The forked process: pytest on the tree, in a session of its own."""
        status = OTHER_TREE
        try:
            os.setsid()
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.chdir(self.root)
            sys.path[:] = [
                str(self.root),
                *(p for p in sys.path if Path(p or ".").resolve() not in (ROOT, Path(__file__).resolve().parent)),
            ]
            os.environ["PYTHONPATH"] = str(self.root)
            options = ["-x", "-q", "--tb=line", "-rfE", "-p", "no:cacheprovider", "--timeout", str(TEST_S)]
            status = int(import_module("pytest").main([*options, *tests]))
            for name, module in list(sys.modules.items()):
                file = getattr(module, "__file__", None)
                if name.startswith("einpage.") and file and not Path(file).resolve().is_relative_to(self.root.resolve()):
                    print(f"{name} was imported from {file}, not from the mutated tree", flush=True)
                    status = OTHER_TREE
        finally:
            sys.stdout.flush()
            os._exit(status)


def _waited(child: int, limit_s: float) -> int | None:
    """The exit status of a forked process; None where it was ended because it took longer."""
    deadline = perf_counter() + limit_s
    while perf_counter() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        sleep(0.05)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


_TREE: Tree | None = None


def start_worker(folder: str) -> None:
    """Copy the tree and import what tests import, einpage excepted."""
    global _TREE
    os.environ |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "TRITON_INTERPRET": "1", "EINPAGE_REQUIRE_MODEL": "1"}
    _TREE = Tree(Path(tempfile.mkdtemp(dir=folder)))
    for name in IMPORTED:
        with suppress(ImportError):
            import_module(name)


def judged(mutant: Mutant, every_test: bool) -> Verdict:
    """In a worker: the verdict on one mutant."""
    assert _TREE is not None
    return _TREE.verdict(mutant, every_test)


def first_broken(tests: Sequence[str]) -> str | None:
    """In a worker: which of these tests fails on the tree as it is."""
    assert _TREE is not None
    return _TREE.failure(tests, ALL_S)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Does a test fail for every slip of tests/mutation/*.yaml?")
    parser.add_argument("only", nargs="*", metavar="MUTANT|FOLDER", help="these alone; all, if none is given")
    parser.add_argument("--workers", type=int, default=min(4, os.cpu_count() or 1))
    parser.add_argument("--all", action="store_true", help="run the rest of `make test` too before a mutant is said to survive")
    parser.add_argument("--unchecked", action="store_true", help="leave out the run of the named tests on the tree as it is")
    a = parser.parse_args(argv)
    chosen = [m for m in mutants() if not a.only or m.id in a.only or m.folder in a.only]
    if not chosen:
        parser.error(f"no mutant is called {' or '.join(a.only)}")
    for mutant in chosen:
        mutant.applied((ROOT / mutant.file).read_text(encoding="utf-8"))
    began = perf_counter()
    workers = min(a.workers, len(chosen))
    with (
        tempfile.TemporaryDirectory(prefix="mutants-") as folder,
        ProcessPoolExecutor(workers, get_context("spawn"), start_worker, (folder,)) as pool,
    ):
        named = [] if a.unchecked else sorted({test for mutant in chosen for test in mutant.tests})
        parts = [part for n in range(workers) if (part := named[n::workers])]
        if broken := [found for found in pool.map(first_broken, parts) if found]:
            print(f"{broken[0]} fails on the tree as it is: mend that first", file=sys.stderr)
            return 2
        verdicts = []
        for verdict in pool.map(judged, chosen, [a.all] * len(chosen)):
            print(verdict.text(), flush=True)
            verdicts.append(verdict)
    for name in FOLDERS:
        if of_folder := [v for v in verdicts if v.mutant.folder == name]:
            print(f"{name}: {sum(v.killed_by is not None for v in of_folder)} of {len(of_folder)} killed")
    survivors = [v.mutant.id for v in verdicts if v.killed_by is None]
    print(f"{len(verdicts) - len(survivors)} of {len(verdicts)} killed in {perf_counter() - began:.0f} s")
    if survivors:
        print(f"survived: {', '.join(survivors)}")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
