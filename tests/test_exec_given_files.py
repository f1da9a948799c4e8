"""Files that a user gives which are pipes, devices, folders or nothing, and what a message says of them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

import einpage
from command_line import facts
from einpage.einsum_front.base.json_text import JsonError, parsed
from einpage.exec.cli import main
from einpage.exec.load.inputs import InputError, read_input, read_tokens
from tiny_specs import SPEC

PROFILE = Path(__file__).parents[1] / "specs" / "machines" / "h100.yaml"
GIVEN = ("run", "spec.yaml", "--budget", "1MiB", "--machine", "h100", "--weights", "random:0", "--device", "cpu", "--input")
TRACE = {"tensors": [[100, 1, 0, "w"], [100, 0, 1, "a"]], "ops": [["o", [0], [1], 1.0]]}
Piped = Callable[[bytes], str]


@pytest.fixture
def piped() -> Iterator[Piped]:
    """A function: bytes to the name of a pipe that gives them once, as `<(cat FILE)` does."""
    opened: list[int] = []

    def pipe(content: bytes) -> str:
        out, into = os.pipe()
        os.write(into, content)
        os.close(into)
        opened.append(out)
        return f"/dev/fd/{out}"

    yield pipe
    for descriptor in opened:
        os.close(descriptor)


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("spec.yaml").write_bytes(SPEC)


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The line that a command ends with, status 2."""
    assert main([*words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line.removeprefix("einpage: ")


def test_a_spec_and_a_profile_from_pipes_plan_as_files_do(piped: Piped, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--budget", "1MiB", "--machine")
    wanted = facts(capsys, "plan", "spec.yaml", *words, str(PROFILE), "--out", "plan.json")
    found = facts(capsys, "plan", piped(SPEC), *words, piped(PROFILE.read_bytes()), "--out", "piped.json")
    assert {k: v for k, v in found.items() if not k.endswith("_s")} == {k: v for k, v in wanted.items() if not k.endswith("_s")}
    recipe = json.loads(Path("piped.json").read_text())["recipe"]
    assert recipe["spec_sha256"] == json.loads(Path("plan.json").read_text())["recipe"]["spec_sha256"] == sha256(SPEC).hexdigest()


def test_a_sweep_reads_a_piped_spec_and_profile_again_and_again(piped: Piped, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("plan", piped(SPEC), "--machine", piped(PROFILE.read_bytes()), "--sweep", "budget=1MiB:4MiB:3", "--json")
    assert main([*words]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 3


def test_a_plan_and_a_trace_from_pipes(piped: Piped, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "spec.yaml", "--budget", "1MiB", "--machine", "h100", "--out", "plan.json"]) == 0
    assert main(["verify", piped(Path("plan.json").read_bytes()), "--spec", piped(SPEC)]) == 0
    trace = json.dumps(TRACE).encode()
    assert main(["plan", "--graph", piped(trace), "--budget", "1MiB", "--h2d", "1GB/s", "--out", "traced.json"]) == 0
    assert json.loads(Path("traced.json").read_text())["recipe"]["graph_sha256"] == sha256(trace).hexdigest()
    assert capsys.readouterr().err == ""


def test_inputs_from_a_pipe_are_json(piped: Piped) -> None:
    wanted = np.arange(8.0).reshape(2, 4)
    name, found = read_input(f"x={piped(json.dumps(wanted.tolist()).encode())}")
    assert name == "x" and np.array_equal(found, wanted)
    assert read_tokens(piped(b"[1, 2]")).lists == ((1, 2),)


@pytest.mark.parametrize("suffix", [".npy", ".safetensors"])
def test_a_pipe_that_would_have_to_be_read_twice_is_refused_and_not_waited_for(suffix: str, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(f"pipe{suffix}")
    said = f"pipe{suffix}: is a pipe, no regular file; write what it gives to a file, and name that"
    assert refused(capsys, *GIVEN, f"x=pipe{suffix}") == f"--input x={said}"
    if suffix == ".safetensors":
        assert refused(capsys, "plan", "spec.yaml", "--budget", "1MiB", "--weights", f"pipe{suffix}") == said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--machine", "/dev/null"), "/dev/null: "),
        (("--machine", "./none.yaml"), "machine profile none.yaml does not exist; profiles that ship: "),
        (("--machine", "./folder.yaml"), "machine profile folder.yaml is a folder; profiles that ship: "),
        (("--machine", "/dev/zero"), "cannot read machine profile /dev/zero: it has more than 1,048,576 bytes"),
        (("--machine", ""), "the text given for `machine` is empty; write what is meant, or leave it out"),
        (("--weights", "/dev/null"), "/dev/null: is a device or a socket, no regular file; write what it gives"),
        (("--weights", ""), "the text given for `weights` is empty"),
        (("--out", ""), "the text given for `out` is empty"),
        (("--split", ""), "the text given for `split` is empty"),
    ],
)
def test_what_is_no_file(words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("folder.yaml").mkdir()
    assert refused(capsys, "plan", "spec.yaml", "--budget", "1MiB", *words).startswith(said)


def test_a_long_line_of_a_profile_is_cured_as_one(capsys: pytest.CaptureFixture[str]) -> None:
    Path("deep.yaml").write_text(f"name: x\ncompute: {'[' * 9000}{']' * 9000}\n")
    said = refused(capsys, "plan", "spec.yaml", "--budget", "1MiB", "--machine", "./deep.yaml")
    assert said.endswith("a line of 18,009 characters; expected at most 16,384; write each key on a line of its own")


def test_show_cuts_the_name_of_a_spec(capsys: pytest.CaptureFixture[str]) -> None:
    Path("long.yaml").write_bytes(SPEC.replace(b"name: ", b"name: " + b"n" * 5000))
    assert main(["show", "long.yaml"]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) < 200


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"[1.2.3]", "expecting ',' delimiter, in line 1, column 5"),
        (b"[" + b"9" * 5000 + b"]", "a whole number of thousands of digits"),
        (b"[1,\xff]", "not UTF-8: byte 0xff at offset 3"),
        (b"[" * 100_000, "nested too deep"),
    ],
)
def test_why_a_text_is_no_json(text: bytes, said: str) -> None:
    with pytest.raises(JsonError) as caught:
        parsed(text)
    assert str(caught.value) == said


HEADER = b"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 4), }"


@pytest.mark.parametrize(
    "header",
    [HEADER.replace(b"<f4", b"<q9"), HEADER.replace(b"4)", b"4x)"), HEADER.replace(b"descr", b"dascr"), HEADER[:20], b""],
)
def test_a_header_of_npy_that_describes_nothing(header: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    Path("x.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    said = "--input x=x.npy: not a readable .npy file: its header does not describe an array; write it again with numpy.save"
    assert refused(capsys, *GIVEN, "x=x.npy") == said


@pytest.mark.parametrize("value", [[[True, 2, 3, 4]] * 2, [[1.0, 2.0, 3.0, False]] * 2, [(1, 2, 3, 4), (1, 2, True, 4)]])
def test_truths_among_numbers_are_no_numbers(value: list[object], capsys: pytest.CaptureFixture[str]) -> None:
    Path("x.json").write_text(json.dumps(value))
    assert refused(capsys, *GIVEN, "x=x.json").endswith("x.json: expected numbers, or nested lists of them in equal lengths")
    model = einpage.load_spec("spec.yaml", weights="random:0")
    with pytest.raises(InputError, match="input x holds truths"):
        einpage.run(model, budget="1MiB", machine="h100", device="cpu", inputs={"x": value})


@pytest.mark.parametrize("config", [[1, 2], 3, "x", None])
def test_a_config_that_is_no_mapping(config: object, capsys: pytest.CaptureFixture[str]) -> None:
    from safetensors.numpy import save_file

    Path("m").mkdir()
    save_file({"w.weight": np.ones((3, 4), np.float32)}, "m/model.safetensors")
    Path("m/config.json").write_text(json.dumps(config))
    said = refused(capsys, "plan", "spec.yaml", "--budget", "1MiB", "--weights", "m")
    assert said == f"m/config.json: {config!r}, expected a mapping of keys to values; correct it, or take it away to run without metadata"
