"""bench/gpu.sh as it will run on a machine that has a GPU and little else, rehearsed without one: slow tests.

The environment has no git, few processors and its own interpreter, in which distributions are really missing (rehearsal_env.py); a driver
with real delays, which fails where it is told to, stands in for CUDA's (rehearsal.py).
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from random import Random
from typing import Any

import pytest

from bench.gpu import results_file, summary
from bench.gpu.cells import DRY_CELLS
from bench.gpu.models import _name
from bench.gpu.parts import usual
from bench.gpu.wheels import FETCH, LIST, NEEDED, Needed
from delayed_driver import CALLS
from rehearsal import FOLDER, Fault
from rehearsal_env import ROOT, Environment, bare, make, python_3_12

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

NOT_IN_A_DRY_RUN = ("dry run on the CPU", "give --commit", "is no file")
MADE = ("preflight", "links", "first", "kernels", "models")
"""Parts that take a few seconds each."""


def here(needed: Needed) -> bool:
    """Whether the interpreter that runs the tests has it: only then it can be taken away."""
    try:
        metadata.version(needed.distribution)
    except metadata.PackageNotFoundError:
        return False
    return True


PRESENT = [needed for needed in NEEDED if here(needed)]


def ended(environment: Environment, *words: str, **variables: str) -> tuple[int, str]:
    """Exit status and output of a call that was left to end."""
    process = environment.gpu_sh(*words, **variables)
    said, _ = process.communicate()
    return process.returncode, said


def gates(out: Path) -> dict[str, dict[str, bool]]:
    """By part, its gates that are about something that is here in every environment."""
    parts = results_file.read(out)["parts"]
    return {
        name: {gate["what"]: gate["ok"] for gate in part["gates"] if not gate["what"].startswith("import ")} for name, part in parts.items()
    }


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Environment, Path]:
    """An environment that lacks only git, and the results of a dry run there."""
    folder = tmp_path_factory.mktemp("whole")
    environment = make(folder / "environment")
    status, said = ended(environment, "--dry-run", "--out", str(folder / "out"), "--model", "none")
    assert status == 0, said
    assert said.splitlines()[-1].startswith("gpu.sh: green: absent: smollm2, tiles; ")
    return environment, folder / "out"


def test_everything_is_green_where_everything_is_there(whole: tuple[Environment, Path]) -> None:
    found = results_file.read(whole[1])
    assert found["commit"] == "unknown" and list(found["parts"]) == usual()
    away = {needed.distribution for needed in NEEDED} - {needed.distribution for needed in PRESENT}
    for name, part in found["parts"].items():
        assert all(gate["ok"] for gate in part["gates"]), (name, part["gates"])
        for what, why in part["absent"].items():
            assert (
                why.startswith(NOT_IN_A_DRY_RUN) or any(word in why for word in NOT_IN_A_DRY_RUN) or why.split("==")[0].split()[0] in away
            ), what


@pytest.mark.parametrize("needed", PRESENT, ids=lambda needed: needed.distribution)
def test_a_missing_wheel_costs_its_parts_only(whole: tuple[Environment, Path], tmp_path: Path, needed: Needed) -> None:
    environment, out = make(tmp_path / "environment", [needed.distribution]), tmp_path / "out"
    model = () if needed.parts == ("smollm2",) else ("--model", "none")
    status, said = ended(environment, "--dry-run", "--out", str(out), *model)
    assert status == 0, said
    before, found = results_file.read(whole[1])["parts"], results_file.read(out)["parts"]
    assert f"import {needed.module}" in found["preflight"]["absent"]
    for name, part in found.items():
        assert part["state"] == "finished" and all(gate["ok"] for gate in part["gates"]), (name, said)
        if name in ("preflight", "tiles") or (name == "smollm2" and model):
            continue
        named = [why for why in part["absent"].values() if why.startswith(needed.distribution)]
        if name in needed.parts:
            assert named or (name == "peers" and set(part["absent"]) - set(before[name]["absent"])), (name, part["absent"])
        else:
            assert not named and gates(out)[name] == gates(whole[1])[name], name


def test_a_missing_model_or_torch_is_said(tmp_path: Path) -> None:
    """Without torch nothing is measured, and everything says why."""
    environment, out = make(tmp_path / "environment", ["torch"]), tmp_path / "out"
    status, said = ended(environment, "--dry-run", "--out", str(out))
    assert status == 1 and said.splitlines()[-1].startswith("gpu.sh: RED: ")
    found = results_file.read(out)["parts"]
    assert list(found) == usual() and all(part["state"] == "finished" for part in found.values())
    assert all("No module named 'torch'" in gate["detail"] for part in found.values() for gate in part["gates"] if not gate["ok"])


PLANS = """
import sys
import numpy
from einpage.exec.cli import main
assert numpy.__version__ == sys.argv[1]
sys.exit(main(["plan", "llama", "--budget", "8GiB", "--machine", "h100", "--dtype", "fp16", "--set", "layers=2", "--set", "seq=512"]))
"""
NUMPY = "2.5.2"
"""Of the machines that are lent; Triton's interpreter does not take it, so the tests here have an older one."""


def test_python_3_12_with_the_wheels_that_were_fetched(tmp_path: Path) -> None:
    """The documented command, then the script: what needs no torch works there, planning with the numpy of such machines included.

    No build of torch for Python 3.12 without CUDA is to be had everywhere, so nothing runs on a device here: the other tests do that.
    """
    python = python_3_12()
    if python is None:
        pytest.skip("there is no Python 3.12 on this machine")
    fetched = tmp_path / "wheels"
    command = FETCH.replace("python3 ", f"{sys.executable} ", 1).replace("bench/wheels", str(fetched)).replace("\\\n", "")
    done = subprocess.run([*command.split(), f"numpy=={NUMPY}"], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"the wheels cannot be fetched here: {done.stderr.strip().splitlines()[-1]}")
    assert sum(path.stat().st_size for path in fetched.iterdir()) < 64 << 20
    listed = re.findall(r"^\S+==\S+  # (\S+)$", LIST.read_text(encoding="utf-8"), re.MULTILINE)
    tags = {path.stem.split("-", 2)[2] for path in fetched.iterdir() if not path.name.startswith("numpy-")}
    assert tags == set(listed) and len(listed) == len([*fetched.iterdir()]) - 1
    environment, out = bare(tmp_path / "environment", python), tmp_path / "out"
    status, said = ended(environment, "--dry-run", "--out", str(out), "--wheels", str(fetched))
    assert "wheels: " not in said, said  # every one of them fits
    found = results_file.read(out)["parts"]
    assert status == 1 and list(found) == usual() and all(part["state"] == "finished" for part in found.values())
    assert re.match(r"gpu\.sh: RED: \d+ of \d+ gates are red, the first: preflight: import torch: ", said.splitlines()[-1]), said
    imported = {gate["what"] for gate in found["preflight"]["gates"] if gate["ok"]}
    torchless = {"accelerate", "flextensor", "transformers", "deepspeed"}
    assert imported >= {f"import {needed.module}" for needed in NEEDED if needed.module not in torchless} | {"import numpy"}
    site = tmp_path / "site"
    unpacked = [environment.python, "-m", "bench.gpu.wheels", "unpack", fetched, site]
    subprocess.run(unpacked, cwd=ROOT, env=environment.variables, check=True)
    variables = {**environment.variables, "PYTHONPATH": f"{ROOT}:{site}"}
    planned = subprocess.run([environment.python, "-c", PLANS, NUMPY], env=variables, capture_output=True, text=True, check=False)
    assert planned.returncode == 0 and "judge         passed" in planned.stdout, planned.stdout + planned.stderr


@pytest.mark.parametrize("call", CALLS)
def test_a_device_that_fails_costs_one_case_of_one_part(whole: tuple[Environment, Path], tmp_path: Path, call: str) -> None:
    """The last line says which and why; nothing is held afterwards; another call does the rest."""
    environment, out, folder = whole[0], tmp_path / "out", tmp_path / "rehearsal"
    cells = [_name(cell) for cell in DRY_CELLS]
    Fault("models", cells[1], call, 3 if call in ("launch", "record", "copy") else 1).write(folder)
    asked = ("--dry-run", "--rehearse", "rehearsal", "--out", str(out), "--only", ",".join(MADE))
    variables = {FOLDER: str(folder), "PYTHONPATH": str(Path(__file__).parent)}
    status, said = ended(environment, *asked, **variables)
    assert status == 1 and (folder / "fault.met").exists()
    assert re.match(rf"gpu\.sh: RED: 1 of \d+ gates are red, the first: models: {re.escape(cells[1])}: ", said.splitlines()[-1]), said
    kept = results_file.read(out)["parts"]
    assert [row["what"] for row in kept["models"]["rows"]] == [cells[0]] and kept["models"]["rows"][0]["wall_s"]
    assert all(summary.word(kept[part]) == "green" for part in MADE if part != "models")
    held = [json.loads(line) for line in (folder / "ledger").read_text().splitlines()]
    assert {one["part"] for one in held} == set(MADE)
    assert all((one["allocated"], one["pinned"]) == (0, 0) for one in held), held
    status, said = ended(environment, *asked, "--resume", **variables)
    assert status == 0, said
    rows = results_file.read(out)["parts"]["models"]["rows"]
    assert [(row["what"], row["call"]) for row in rows] == [(cells[0], 0), (cells[1], 1)]


class Killed:
    """A call that is killed at a moment, and what it had said by then."""

    def __init__(self, environment: Environment, seconds: float, *words: str, **variables: str) -> None:
        self.process = environment.gpu_sh(*words, **variables)
        self.lines: list[str] = []
        reader = threading.Thread(target=self._read)
        reader.start()
        reader.join(seconds)
        self.ended = self.process.poll() is not None
        if not self.ended:
            os.killpg(self.process.pid, signal.SIGKILL)  # the script's own; its parts have groups of their own
        self.process.wait()
        reader.join()

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.lines += [line for line in self.process.stdout if line.endswith("\n")]

    def measured(self) -> Iterator[tuple[str, str, str]]:
        """(part, `ok ` or `RED`, what was said of the case)"""
        for line in self.lines:
            if found := re.match(r"\[(\w+)\] (ok |RED)  (.*)", line):
                yield found[1], found[2], found[3]


def holds(whole: dict[str, Any], killed: Killed) -> list[str]:
    """What was said to be measured, and is not in the results."""
    known = {part: [gate["what"] for gate in facts["gates"]] for part, facts in whole["parts"].items()}
    return [what for part, _, what in killed.measured() if not any(what.startswith(gate) for gate in known.get(part, []))]


@pytest.mark.parametrize("seed", range(3))
def test_killed_again_and_again_it_keeps_what_it_had_and_ends(whole: tuple[Environment, Path], tmp_path: Path, seed: int) -> None:
    environment, out, random = whole[0], tmp_path / "out", Random(seed)
    asked = ("--dry-run", "--rehearse", "rehearsal", "--out", str(out), "--only", ",".join(MADE))
    variables = {FOLDER: str(tmp_path / "rehearsal"), "PYTHONPATH": str(Path(__file__).parent)}
    (tmp_path / "rehearsal").mkdir()
    for _ in range(6):
        go_on = ("--resume",) if (out / results_file.NAME).is_file() else ()
        killed = Killed(environment, random.uniform(0.1, 12.0), *asked, *go_on, **variables)
        os.close(results_file.lock(out, 10.0))  # nobody else writes: what the call started has ended too
        if (out / results_file.NAME).is_file():
            found = json.loads((out / results_file.NAME).read_text(encoding="utf-8"))
            assert holds(found, killed) == []
        else:
            assert not [*killed.measured()]
        if killed.ended:
            break
    status, said = ended(environment, *asked, "--resume", **variables)
    assert status == 0, said
    assert {part: set(found) for part, found in gates(out).items()} == {part: set(found) for part, found in expected(whole[1], out).items()}
    assert all(ok for found in gates(out).values() for ok in found.values())


def expected(dry: Path, out: Path) -> dict[str, dict[str, bool]]:
    """The gates of a dry run that was not killed, of the parts in `out`; a rehearsal's driver adds some."""
    more = {"preflight": ("register",), "links": ("registered",)}
    found = {part: found for part, found in gates(dry).items() if part in gates(out)}
    return {
        part: {**gates_, **{what: ok for what, ok in gates(out)[part].items() if what.startswith(more.get(part, ("\0",)))}}
        for part, gates_ in found.items()
    }
