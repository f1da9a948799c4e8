"""Files made to hurt: each is refused in one line, with the documented status, in seconds and in a gibibyte of memory."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fuzz_case import Case, run_case
from test_fuzz_files import PLAN_FILES, PROFILE, RUN, TRACE, planned
from tiny_specs import SPEC

DIGITS = "9" * 400
TRACE_TEXT = json.dumps(TRACE)
PLAN = ("plan", "--budget", "20000", "--h2d", "1GB/s", "--plan-seconds", "0", "--json", "--graph")
ROWS = gzip.compress(b'[1, 1, 0, "w"], ' * (1 << 20), 9, mtime=0)
"""16 MiB in 16 KiB: gzip lets members follow each other."""
GIVEN = (*RUN, "--weights", "random:1", "--input")


def refused(case: Case, folder: Path, monkeypatch: pytest.MonkeyPatch, status: int = 2) -> str:
    """What a case that must be refused says."""
    monkeypatch.chdir(folder)  # come back afterwards
    ended = run_case(PLAN_FILES, case, folder)
    assert (ended.status, ended.wrong) == (status, None), ended
    assert ended.stderr.count("\n") == 1, ended.stderr
    return ended.stderr


def npy(header: str, body: bytes = bytes(48), version: int = 1) -> bytes:
    """A .npy file with a header that numpy would not write."""
    text = header.encode("latin-1") + b"\n"
    return b"\x93NUMPY" + bytes([version, 0]) + len(text).to_bytes(2 if version == 1 else 4, "little") + text + body


def saved(array: Any, pickled: bool = False) -> bytes:
    out = io.BytesIO()
    np.save(out, array, allow_pickle=pickled)
    return out.getvalue()


def archive() -> bytes:
    out = io.BytesIO()
    np.savez(out, x=np.ones((3, 4)))
    return out.getvalue()


def trace_with(old: str, new: str) -> bytes:
    assert old in TRACE_TEXT
    return TRACE_TEXT.replace(old, new).encode()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (gzip.compress(b'{"tensors": [', mtime=0) + ROWS * 256, "more than 32MiB of JSON when unpacked"),
        (b'{"tensors": [' + b"1, " * (30 << 20), "more than 32MiB of JSON, which"),
        (
            gzip.compress(b'{"ops": [], "tensors": [' + b"[]," * (1 << 18) + b"[]]}", 1, mtime=0),
            "tensors: 262145 rows; there may be 262144",
        ),
        (trace_with("12.5", DIGITS), r"ops\[0\] \(Conv\): a whole number of 1329 bits is not a duration"),
        (trace_with("12.5", "9" * 5000), "truncated or not JSON"),
        (trace_with("12.5", "1e300"), "1e\\+300 is not a duration"),
        (trace_with("12.5", "Infinity"), "inf is not a duration"),
        (trace_with("4096", DIGITS), r"tensors\[0\]: a whole number of 1329 bits is more bytes than any machine has"),
        (trace_with("4096", str(2**63)), "more bytes than any machine has"),
        (json.dumps({**TRACE, "tensors": [[2**48, 1, 0, "w"]] * 20000}).encode(), "more bytes than 64 bits count"),
        (trace_with("[0, 1]", str([0] * 100_000).replace("0]", '"x"]')), "unknown tensor id 'x'"),
        (trace_with('"Conv"', json.dumps(["x" * 100_000])), "is not a text"),
        (trace_with('"Conv", [0, 1]', json.dumps("n" * 300) + ", [9]"), r"\(.*… \(300 characters\)\): unknown tensor id 9"),
        (trace_with('"Conv", [0, 1]', '"\\ud800", [9]'), r"ops\[0\] \(\\ud800\): unknown tensor id 9"),
        (b"[" * 100_000, "nested too deep"),
        (gzip.compress(TRACE_TEXT.encode(), mtime=0)[:50], "truncated"),
        (b"\x1f\x8b", "truncated"),
        (b"", "truncated or not JSON"),
    ],
)
def test_a_trace(content: bytes, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert re.search(said, refused(Case((*PLAN, "t.json"), {"t.json": content}), tmp_path, monkeypatch))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (npy("{'descr': '<f4', 'fortran_order': False, 'shape': (100000000000,)}"), "claims 400000000000 bytes .* there are 48"),
        (npy("{'descr': '<f4', 'fortran_order': False, 'shape': (0, 100000000000000000000)}", b""), "Maximum allowed dimension exceeded"),
        (npy("{'descr': '<f4', 'fortran_order': False, 'shape': (-3, -4)}"), r"claims the shape \(-3, -4\)"),
        (npy("{'descr': '<f4', 'fortran_order': False, 'shape': (True, 12)}"), "claims the shape|shape is not valid"),
        (npy(f"{{'descr': '<f4', 'fortran_order': False, 'shape': {'(1,) + ' * 1000}(1,)}}"), "not a readable"),
        (npy(f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({'1, ' * 40}12)}}"), "claims the shape"),
        (npy("{'descr': '|O', 'fortran_order': False, 'shape': (3, 4)}"), "holds object, expected numbers"),
        (npy("{'descr': '<U4', 'fortran_order': False, 'shape': (3, 1)}"), "holds <U4, expected numbers"),
        (npy("{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4"), "not a readable"),
        (npy("{" * 9000), "not a readable"),
        (npy("{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4)}" + " " * 65000), "not a readable"),
        (b"\x93NUMPY\x02\x00" + (2**31).to_bytes(4, "little") + b"{", "its header claims 2147483648 bytes"),
        (b"\x93NUMPY\x03\x00" + saved(np.ones((3, 4)))[8:], "version 3.0"),
        (saved(np.array([{1: 2}], object), pickled=True), "holds object"),
        (pickle.dumps([1, 2]), "does not begin as one: it is a pickle"),
        (archive(), "it is a .npz archive"),
        (saved(np.ones((3, 4), np.float32))[:100], "not a readable"),
        (saved(np.ones((3, 4), np.float32))[:-8], "claims 48 bytes of numbers, and there are 40"),
        (saved(np.ones((3, 4), np.float32)) + b"more", "claims 48 bytes of numbers, and there are 52"),
        (b"", "does not begin as one"),
        (saved(np.full((3, 4), 1e300)), r"input x has 1e\+300 at \[0, 0\], beyond float32, whose largest number is 3\.403e\+38"),
    ],
)
def test_an_array(content: bytes, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert re.search(said, refused(Case((*GIVEN, "x=x.npy"), {"spec.yaml": SPEC, "x.npy": content}), tmp_path, monkeypatch))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (json.dumps([[1.0] * 4, [1e300] * 4, [1.0] * 4]), r"1e\+300 at \[1, 0\], beyond float32"),
        (f"[[{DIGITS}]]", "expected numbers"),
        (json.dumps([["\ud800"] * 4] * 3), "expected numbers"),
        ("[" * 100_000, "nested too deep"),
        ("[" * 100 + "]" * 100, "rows of different lengths|shape"),
    ],
)
def test_numbers_in_json(content: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"spec.yaml": SPEC, "x.json": content.encode()}
    assert re.search(said, refused(Case((*GIVEN, "x=x.json"), files), tmp_path, monkeypatch))


def safetensors(header: object) -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(48)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (safetensors({"x": {"dtype": "F32", "shape": [0] * 64, "data_offsets": [0, 4]}}), r"x is F32 \[0, 0, .*…, 0 bytes"),
        (safetensors({"x": {"dtype": "F32", "shape": [0] * 1000, "data_offsets": [0, 4]}}), "x has 1000 dimensions, at most 64"),
        (safetensors({"x": {"dtype": "F32", "shape": [10**400, 10**400], "data_offsets": [0, 4]}}), "a whole number of .* bits bytes"),
        (safetensors({"x": {"dtype": "F\n", "shape": [3, 4], "data_offsets": [0, 48]}}), r"x is stored as 'F\\n'"),
        (safetensors({"x": "\n"}), r"the entry of x is '\\n'"),
        (safetensors({"\n": {"dtype": "F32", "shape": [3, 4], "data_offsets": [0, 48]}}), r"a tensor is called '\\n'"),
        (safetensors({"n" * 1000: {"dtype": "F32", "shape": [3, 4], "data_offsets": [0, 48]}}), r"a tensor is called 'nn.*\(1000 char"),
        (safetensors({"\ud800": {"dtype": "F32", "shape": [3, 4], "data_offsets": [0, 48]}}), r"a tensor is called '\\ud800'"),
        ((2**63).to_bytes(8, "little") + b"{}", "its header would be"),
    ],
)
def test_a_safetensors_file(content: bytes, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"spec.yaml": SPEC, "x.safetensors": content}
    assert re.search(said, refused(Case((*GIVEN, "x=x.safetensors"), files), tmp_path, monkeypatch))


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"hidden_size": 10**400}, "`hidden_size` is a whole number of 1329 bits, more than a float holds"),
        ({"a": {"b": [1, [2**1023]]}}, "`a.b` is a whole number of 1024 bits, more than a float holds"),
        ({"a\nb": 1}, r"a key is 'a\\nb'"),
        ({"n" * 1000: 1}, r"a key is 'nn.*\(1000 characters\)"),
    ],
)
def test_a_config(config: object, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = safetensors({"w.weight": {"dtype": "F32", "shape": [3, 4], "data_offsets": [0, 48]}})
    files = {"spec.yaml": SPEC, "m/model.safetensors": weights, "m/config.json": json.dumps(config).encode()}
    assert re.search(said, refused(Case(("plan", "spec.yaml", "--budget", "1MiB", "--weights", "m"), files), tmp_path, monkeypatch))


@pytest.mark.parametrize(("dtype", "number", "most"), [("fp16", 1e5, "6.55e+04"), ("bf16", 3.4e38, "3.39e+38")])
def test_a_number_that_the_runs_dtype_does_not_hold(
    dtype: str, number: float, most: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"spec.yaml": SPEC, "x.npy": saved(np.full((3, 4), number, np.float32))}
    told = refused(Case((*GIVEN, "x=x.npy", "--dtype", dtype), files), tmp_path, monkeypatch)
    assert f"at [0, 0], beyond {dtype}, whose largest number is {most}" in told
    fits = {**files, "x.npy": saved(np.full((3, 4), np.inf, np.float32))}
    monkeypatch.chdir(tmp_path)
    assert run_case(PLAN_FILES, Case((*GIVEN, "x=x.npy", "--dtype", dtype), fits), tmp_path).status == 0, "an infinity that was given"


def test_an_array_of_python_2_is_read_without_a_word_of_numpys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    header = npy("{'descr': '<f4', 'fortran_order': False, 'shape': (3L, 4L), }")
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings(action="error"):
        assert run_case(PLAN_FILES, Case((*GIVEN, "x=x.npy"), {"spec.yaml": SPEC, "x.npy": header}), tmp_path).status == 0


def test_an_array_by_columns_is_read_as_numpy_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from einpage.exec.load.inputs import read_input

    monkeypatch.chdir(tmp_path)
    for array in (
        np.asfortranarray(np.arange(12.0).reshape(3, 4)),
        np.arange(12, dtype=">i2").reshape(3, 4),
        np.float16(3.0),
        np.zeros((0, 4)),
        np.arange(6, dtype=np.uint8),
    ):
        np.save("x.npy", array)
        name, found = read_input("x=x.npy")
        assert name == "x" and found.dtype == np.asarray(array).dtype and np.array_equal(found, array)


def edited(edit: str) -> bytes:
    """The plan file after the statement `edit` on it, as `plan`."""
    plan = json.loads(planned())
    exec(edit, {"plan": plan, "json": json})
    return json.dumps(plan).encode()


@pytest.mark.parametrize(
    "edit",
    [
        *(f"plan['tasks'][0][{field}] = {value}" for field in (1, 3, 5, 6, 7) for value in ("2**63", "10**400", "True", "1.0", "None")),
        *(f"plan['ops'][0][{field}] = {value}" for field in (2, 3) for value in ("2**63", "-2**64", "False", "0.5")),
        "plan['tasks'][0][9] = 1e300",
        "plan['tasks'][0][9] = float('inf')",
        "plan['tasks'][0][2] = [list(range(10**5))]",
        *(f"plan['tensors'][0][{field}] = [{value}]" for field in (2, 3) for value in ("2**63", "10**400", "True", "1.0")),
        "plan['tensors'][0][3] = plan['values'][0][2] = [2**40, 2**40]; plan['tensors'][0][2] = [0, 0]",
        *(
            f"plan['arenas']['{key}'] = {value}"
            for key in ("budget_bytes", "host_bytes", "alignment")
            for value in ("2**63", "True", "1.5")
        ),
        *(f"plan['residencies'][0][3] = [[{value}, 256]]" for value in ("2**63", "10**400", "True", "-2**70")),
        *(f"plan['residencies'][0][{field}] = {value}" for field in (0, 2) for value in ("2**63", "True")),
        *(
            f"plan['{key}'][0] = {value}"
            for key in ("edge_sources", "edge_targets", "edge_kinds", "start", "end")
            for value in ("2**63", "True", "-1")
        ),
        "next(n for n in plan['nodes'] if n[0] == 'compute')[4] = [0, 2**63]",
        "plan['format'] = [0] * 100000",
        "plan['version'] = [0] * 100000",
        "plan['nodes'][0] = ['x' * 100000]",
    ],
)
def test_a_plan_file(edit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused(Case(("verify", "plan.json"), {"plan.json": edited(edit)}), tmp_path, monkeypatch)


@pytest.mark.parametrize(
    "argv",
    [
        *((*PLAN[:3], "--h2d", rate, *PLAN[5:], "t.json") for rate in ("1e-300", "inf", "nan", "-1", "0", "1e400", DIGITS, "9" * 5000, "")),
        ("plan", "spec.yaml", "--budget", DIGITS),
        ("plan", "spec.yaml", "--budget", "9" * 5000),
        ("plan", "spec.yaml", "--budget", "1MiB", "--device-bytes", DIGITS),
        ("plan", "spec.yaml", "--budget", "1MiB", "--h2d", "1e-300"),
        ("plan", "spec.yaml", "--budget", "1MiB", "--passes", DIGITS),
        (*GIVEN, "x=t.json", "--threads", DIGITS),
        *(("plan", name, "--budget", "1MiB") for name in ("n" * 300, "n" * 300 + ".yaml", "a\0b", "a\0b.yaml", "\udcff.yaml")),
        *(("plan", "spec.yaml", "--budget", "1MiB", "--weights", "n" * 300 + end) for end in ("", ".gguf", ".safetensors", "\0.gguf")),
        *(("plan", "spec.yaml", "--budget", "1MiB", "--machine", "n" * 300 + end) for end in ("", ".yaml", "\0.yaml")),
        *(("plan", "spec.yaml", "--budget", "1MiB", word, "n" * 300) for word in ("--out", "--timeline")),
        *((*GIVEN, "x=" + "n" * 300 + end) for end in (".npy", ".json", ".safetensors", "\0.npy")),
        *((*RUN, "--weights", "random:1", "--tokens", name) for name in ("n" * 300, "a\0b")),
        *((*PLAN, name) for name in ("n" * 300, "a\0b")),
        *(("verify", name) for name in ("n" * 300, "a\0b")),
        *(("pack", name, "--capacity", "1MiB") for name in ("n" * 300, "a\0b", "/dev/zero")),
        ("verify", "/dev/zero"),
        ("plan", "/dev/zero", "--budget", "1MiB"),
        (*PLAN, "/dev/zero"),
        (*RUN, "--weights", "random:1", "--tokens", "/dev/zero"),
    ],
    ids=lambda argv: " ".join(word if len(word) < 30 else f"{word[:3]}…{len(word)}" for word in argv).replace("\0", "NUL"),
)
def test_an_argument(argv: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused(Case(argv, {"spec.yaml": SPEC, "t.json": TRACE_TEXT.encode()}), tmp_path, monkeypatch)


BOMB = "".join(f"{a}: &{a} [{', '.join([b] * 9)}]\n" for a, b in zip("abcdefghi", ["1", *(f"*{c}" for c in "abcdefgh")], strict=True))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (BOMB + PROFILE, r"m\.yaml:1: anchors"),
        (PROFILE.replace("threads", "threads_"), "unknown key") if "threads" in PROFILE else (PROFILE + "\nx: 1\n", "unknown key 'x'"),
        (f'name: "{chr(10).join(["  " + chr(92) + "x41" * 1] + [(chr(92) + "x41") * 4000] * 60)}"\n', "missing|not YAML"),
    ],
)
def test_a_profile(content: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = refused(Case(("machine", "./m.yaml"), {"m.yaml": content.encode()}), tmp_path, monkeypatch)
    assert re.search(said, told)


def no_memory(*_: object) -> int:
    """A command for which there is no memory."""
    raise MemoryError("an arena of 3GiB is wanted")


def test_a_full_host_is_said_with_what_was_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import torch

    from einpage.exec.cli import main
    from einpage.exec.command import judged_files
    from einpage.exec.device.arena import MappedArena

    with pytest.raises(MemoryError, match="an arena of 1048576TiB is wanted"):
        MappedArena(1 << 60)

    def torch_has_none(_: object) -> None:
        torch.empty(1 << 58, dtype=torch.uint8)

    for command, wanted in ((no_memory, "an arena of 3GiB is wanted"), (torch_has_none, "262144TiB more is wanted")):
        monkeypatch.setattr(judged_files, "read_buffers", command)
        assert main(["pack", "x", "--capacity", "1"]) == 3
        told = capsys.readouterr().err
        assert told == f"einpage: the host's memory is full: {wanted}; free some, or make the problem smaller\n"
