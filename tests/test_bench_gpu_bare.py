"""bench/gpu.sh on a machine that has little: wheels, the model in parts, no git, the interpreter, results while they are written, pytest's
outcomes as they come."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import zipfile
from pathlib import Path
from random import Random
from time import sleep
from typing import Any

import pytest

from bench import results
from bench.gpu import kernel_tests, outcomes, preflight, results_file, wheels
from bench.gpu.parts import PART_BY_NAME, PARTS, TOTAL_S, usual
from bench.gpu.report import Report, Setting
from bench.gpu.weights_file import MODEL, NoModel, model_file
from rehearsal_env import TOOLS

ROOT = Path(__file__).parents[1]
HERE = f"cp3{sys.version_info[1]}"


# Parts


def test_the_parts_of_one_call_fit_its_time() -> None:
    assert sum(PART_BY_NAME[name].limit_s for name in usual()) <= TOTAL_S < 600
    assert PARTS[0].name == "preflight" and PARTS[0].limit_s == 20


# Wheels


@pytest.mark.parametrize(
    ("words", "fits"),
    [
        ("py3-none-any", True),
        ("py2.py3-none-any", True),
        (f"{HERE}-{HERE}-manylinux_2_17_x86_64.manylinux2014_x86_64", True),
        ("cp39-abi3-manylinux_2_17_x86_64", True),
        ("cp399-abi3-manylinux_2_17_x86_64", False),
        ("cp39-cp39-manylinux_2_17_x86_64", False),
        (f"{HERE}-{HERE}-win_amd64", False),
        (f"{HERE}-{HERE}-manylinux_2_17_aarch64", False),
        ("py2-none-any", False),
    ],
)
def test_a_wheel_fits_by_its_name(monkeypatch: pytest.MonkeyPatch, words: str, fits: bool) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    assert wheels.fits(f"some_thing-1.2-{words}.whl") == fits
    assert wheels.fits(f"some_thing-1.2-1-{words}.whl") == fits  # with a build number


def a_wheel(folder: Path, name: str, words: str = "py3-none-any", files: dict[str, str] | None = None) -> Path:
    path = folder / f"{name}-1.0-{words}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in (files or {f"{name}/__init__.py": "here = True"}).items():
            archive.writestr(file, text)
    return path


def test_each_wheel_is_unpacked_by_itself(tmp_path: Path) -> None:
    """One that is broken, another's or hostile costs only itself; what is installed already is left alone."""
    source, target = tmp_path / "wheels", tmp_path / "site"
    source.mkdir()
    a_wheel(source, "whole", files={"whole/__init__.py": "", "whole-1.0.data/purelib/beside.py": "", "whole-1.0.data/scripts/tool": ""})
    a_wheel(source, "foreign", "cp399-cp399-manylinux_2_17_x86_64")
    (source / "broken-1.0-py3-none-any.whl").write_bytes(b"PK, and nothing more")
    a_wheel(source, "hostile", files={"../../out.py": ""})
    a_wheel(source, "pytest", files={"pytest/__init__.py": "raise SystemExit"})
    said = wheels.unpack(source, target)
    assert [line.partition("-")[0] for line in said] == ["broken", "foreign", "hostile"]
    assert sorted(str(path.relative_to(target)) for path in target.rglob("*.py")) == ["beside.py", "whole/__init__.py"]
    assert not (tmp_path / "out.py").exists() and not (target / "tool").exists()


def test_a_damaged_wheel_leaves_nothing_behind(tmp_path: Path) -> None:
    path = a_wheel(tmp_path, "damaged", files={"damaged/__init__.py": "a = 1", "damaged/last.py": "b = 2"})
    path.write_bytes(path.read_bytes().replace(b"b = 2", b"b = 3"))
    assert len(wheels.unpack(tmp_path, tmp_path / "site")) == 1 and not (tmp_path / "site").exists()


def test_the_list_has_the_versions_that_the_tests_pass_with() -> None:
    pins = dict(re.findall(r"^([\w.-]+)==([\w.]+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    listed = dict(wheels.pinned())
    assert len(listed) > 25
    assert {name: listed[name] for name in listed.keys() & pins.keys()} == {name: pins[name] for name in listed.keys() & pins.keys()}
    assert {n.distribution for n in wheels.NEEDED} - listed.keys() == {"transformers", "deepspeed"}
    assert all(part in PART_BY_NAME for needed in wheels.NEEDED for part in needed.parts)


def test_what_is_printed_is_what_pip_reads() -> None:
    printed = subprocess.run(["bench/gpu.sh", "--wheels-needed"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    required = [line for line in printed.splitlines() if line and not line.startswith("#")]
    assert [line.split("  # ")[0] for line in required] == [f"{name}=={version}" for name, version in wheels.pinned()]
    for line in required:  # whatever comes for Python 3.12 on x86-64
        assert re.fullmatch(
            r"(py2\.)?py3-none-any|cp312-cp312-manylinux\S+x86_64|cp3\d+-abi3-manylinux\S+x86_64|\S*-none-manylinux\S+x86_64",
            line.split("  # ")[1],
        )
    assert "pip download" in printed and "--python-version 3.12" in printed


def test_the_preflight_says_what_is_missing_and_what_that_costs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "NEEDED", (wheels.Needed("gguf", "gguf", ("smollm2",)), wheels.Needed("rpds-py", "gone", ("first",))))
    monkeypatch.setattr(wheels, "NEEDED", preflight.NEEDED)
    made = Report("preflight", Setting(tmp_path, True, 20.0, "a test"))
    preflight.measure(made)
    made.finish()
    assert made.green, made.gates
    lost = made.absent["import gone"]
    assert lost.startswith("rpds-py==") and "bench/wheels" in lost and "without it first will be absent" in lost
    assert "import gguf" not in made.absent


# The model


def test_the_model_is_joined_from_parts_and_believed_by_its_checksum(tmp_path: Path) -> None:
    whole, cache, parts = Random(1).randbytes(100_000), tmp_path / "cache", tmp_path / "weights"
    facts = {"sha256": hashlib.sha256(whole).hexdigest(), "nbytes": len(whole)}
    parts.mkdir()

    def found(named: Path | None = None) -> Path:
        return model_file(named, cache, parts, **facts)  # type: ignore[arg-type]

    with pytest.raises(NoModel, match="no part of it"):
        found()
    (parts / f"{MODEL}.aa").write_bytes(whole[:60_000])
    with pytest.raises(NoModel, match=r"parts \.aa in weights have 60,000 of 100,000 bytes"):
        found()
    (parts / f"{MODEL}.ab").write_bytes(whole[60_001:] + b"x")
    with pytest.raises(NoModel, match="split the file again"):
        found()
    assert not [*cache.iterdir()]
    (parts / f"{MODEL}.ab").write_bytes(whole[60_000:])
    assert found().read_bytes() == whole
    found().write_bytes(whole[:-1])  # cut short: joined again
    assert found().read_bytes() == whole
    with pytest.raises(NoModel, match="is no file"):
        found(tmp_path / "none.gguf")


# The script


def test_without_git_the_commit_is_unknown_or_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("EINPAGE_COMMIT", raising=False)
    assert results.commit() == results.UNKNOWN
    monkeypatch.setenv("EINPAGE_COMMIT", "abc")
    assert results.commit() == "abc"


@pytest.mark.parametrize(
    ("torch_in", "named", "runs"),
    [
        (("python3", ".venv"), None, "python3"),
        ((".venv",), None, ".venv"),
        ((), None, "python3"),
        (("python3", ".venv"), "other", "other"),
    ],
    ids=["the system's", "the checkout's", "none", "named"],
)
def test_the_interpreter_is_the_one_that_has_torch(tmp_path: Path, torch_in: tuple[str, ...], named: str | None, runs: str) -> None:
    """Pretended interpreters say who they are; asked for torch, they have it or not."""
    places = {"python3": tmp_path / "bin/python3", ".venv": tmp_path / "tree/.venv/bin/python", "other": tmp_path / "other"}
    for name, path in places.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        has = 0 if name in torch_in else 1
        path.write_text(f'#!/bin/sh\ncase "$*" in *find_spec*) exit {has} ;; *version_info*) exit 0 ;; esac\necho {name} "$@"\n')
        path.chmod(0o755)
    script = tmp_path / "tree" / "bench" / "gpu.sh"
    script.parent.mkdir()
    script.write_bytes((ROOT / "bench" / "gpu.sh").read_bytes())
    environment = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"} | ({"PYTHON": str(places[named])} if named else {})
    done = subprocess.run(["bash", script, "--dry-run"], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == f"{runs} -m bench.gpu --dry-run\n", done.stderr


def test_no_interpreter_is_said_in_a_line(tmp_path: Path) -> None:
    for name in TOOLS:
        (tmp_path / name).symlink_to(Path("/usr/bin") / name if (Path("/usr/bin") / name).exists() else Path("/bin") / name)
    environment = {"PATH": str(tmp_path), "PYTHON": "nothing"}
    done = subprocess.run([ROOT / "bench/gpu.sh"], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.stderr.startswith("gpu.sh: nothing is no Python") and done.stderr.count("\n") == 1


# Results


def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    results.write_whole(tmp_path / "a.json", {"whole": True})
    with pytest.raises(TypeError):
        results.write_whole(tmp_path / "a.json", {"whole": object()})
    assert json.loads((tmp_path / "a.json").read_text()) == {"whole": True}


WRITER = """
import sys
from pathlib import Path
from bench.gpu import results_file
lock = results_file.lock(Path(sys.argv[1]), 5)
for n in range(10**6):
    results_file.put_part(Path(sys.argv[1]), "links", {"rows": [{"n": n, "text": "x" * 20_000}]}, {"calls": [n]})
    print(n, flush=True)
"""


def test_results_are_whole_whenever_their_writer_is_killed(tmp_path: Path) -> None:
    """And hold what had been said to be written."""
    random, environment = Random(7), {**os.environ, "PYTHONPATH": str(ROOT)}
    for _ in range(8):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], env=environment, stdout=subprocess.PIPE, text=True)
        assert writer.stdout is not None
        said = [writer.stdout.readline()]
        sleep(random.uniform(0, 0.05))
        writer.send_signal(signal.SIGKILL)
        said += writer.stdout.read().splitlines()
        writer.wait()
        whole = json.loads((tmp_path / results_file.NAME).read_text())
        (row,) = whole["parts"]["links"]["rows"]
        assert row["n"] >= int([line for line in said if line.strip()][-1]) and whole["calls"] == [row["n"]]
    results_file.clear_parts(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [results_file.NAME]


def test_two_calls_do_not_write_to_one_folder(tmp_path: Path) -> None:
    held = results_file.lock(tmp_path)
    with pytest.raises(results_file.Busy, match="wait until it ends"):
        results_file.lock(tmp_path, 0.2)
    os.close(held)
    os.close(results_file.lock(tmp_path, 0.2))


# pytest's outcomes


TESTS = """
import os, pytest
@pytest.mark.parametrize("n", range(6))
def test_it(n):
    with open({pids!r}, "a") as file:
        print(n, os.getpid(), file=file)
    if n == 2:
        assert not {fails!r}, "wrong"
    if n == 3 and {dies!r}:
        os.kill(os.getpid(), 9)
    if n == 4:
        pytest.skip("no reason")
"""
LOST = "from bench.gpu import outcomes\noutcomes.device_answers = lambda: False\n"


def run_tests(folder: Path, monkeypatch: pytest.MonkeyPatch, processes: int, lost: bool, dies: bool = False, fails: bool = True) -> Any:
    """The report of the part over a file of six tests, of which one fails, which may lose the device, and one may kill its process."""
    (folder / "conftest.py").write_text(LOST if lost else "")
    (folder / "test_some.py").write_text(TESTS.format(fails=fails, dies=dies, pids=str(folder / "pids")))
    monkeypatch.setattr(kernel_tests, "DRY", (str(folder / "test_some.py"), *(("-n", str(processes)) if processes else ())))
    made = Report("tests", Setting(folder, True, 60.0, "a test"))
    kernel_tests.measure(made)
    made.finish()
    return made


@pytest.mark.parametrize("processes", [0, 2])
@pytest.mark.parametrize("lost", [False, True], ids=["keeps its device", "loses its device"])
def test_a_process_that_lost_its_device_is_left_and_every_test_has_an_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: int, lost: bool
) -> None:
    made = run_tests(tmp_path, monkeypatch, processes, lost)
    found = {test[-2]: outcome["outcome"] for test, outcome in made.facts["outcomes"].items()}
    assert found == {"0": "passed", "1": "passed", "2": "failed", "3": "passed", "4": "skipped", "5": "passed"}
    assert "wrong" in next(outcome["said"] for test, outcome in made.facts["outcomes"].items() if "[2]" in test)
    assert not made.green and made.rows[0]["passed"] == 4
    process_by_test = dict(line.split() for line in (tmp_path / "pids").read_text().splitlines())
    assert (process_by_test["2"] not in [process_by_test[n] for n in "345"]) or not lost


def test_a_test_that_kills_its_process_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = run_tests(tmp_path, monkeypatch, 2, False, dies=True, fails=False)
    found = {test[-2]: outcome["outcome"] for test, outcome in made.facts["outcomes"].items()}
    assert found == {"0": "passed", "1": "passed", "2": "passed", "3": "failed", "4": "skipped", "5": "passed"}


def test_outcomes_that_an_earlier_process_has_are_not_made_again(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(TESTS.format(fails=False, dies=False, pids=os.devnull))
    kept = tmp_path / "outcomes"
    kept.write_text('{"test": "test_some.py::test_it[0]", "outcome": "passed", "said": ""}\n{"test": "cut')
    words = [sys.executable, "-m", "pytest", "-q", "-p", "bench.gpu.outcomes", "--outcomes", str(kept), "-p", "no:cacheprovider"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")} | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([*words, "test_some.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert "4 passed, 1 skipped, 1 deselected" in done.stdout, done.stdout
    assert len(outcomes.read(kept)) == 6
