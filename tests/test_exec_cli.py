"""The command line as scripts meet it: exit status, one JSON object on stdout, one clear error on stderr, nothing written on a mistake."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from command_line import LLAMA, LLAMA_SIZES, MLP, MLP_SIZES, PLAN_KEYS, SMALL_LLAMA, facts, ran
from einpage.einsum_front.base import files
from einpage.exec.command import plan as plan_command
from einpage.exec.measure import cpu as measure
from einpage.exec.measure import profiles
from einpage.memplan.machine.machine import Measurement
from einpage.memplan.machine.profile import load_machine
from kernel_time_figures import nothing_usual
from specs_small import small_data, small_program


def mlp_files(folder: Path, drop: str = "", shape: tuple[int, ...] | None = None) -> tuple[str, str]:
    """A safetensors checkpoint and an input for the small mlp."""
    program = small_program("mlp")
    data = small_data(program)
    weights = {w.sources[0].name: data[w.name] for w in program.weights if w.name != drop}
    if shape is not None:
        weights["fc1.bias"] = np.zeros(shape, np.float32)
    save_file(weights, folder / "m.safetensors")
    np.save(folder / "x.npy", data["x"])
    return str(folder / "m.safetensors"), f"x={folder / 'x.npy'}"


RUN_KEYS = ["device", "wall_s", "measured_h2d_bytes", "measured_d2h_bytes", "arena_bytes", "outside_arena_bytes", "peak_rss_bytes"]


def test_plan_answers_with_every_key(capsys: pytest.CaptureFixture[str]) -> None:
    found = facts(capsys, "plan", LLAMA, *SMALL_LLAMA, "--budget", "1MiB", "--machine", "a100", "--dtype", "fp16")
    assert set(PLAN_KEYS) <= set(found)
    assert found["verified"] is True and found["peak_bytes"] <= found["budget_bytes"] == 1 << 20
    assert found["bound_s"] <= found["bound_order_s"] <= found["makespan_s"]
    assert found["bytes_bound_h2d"] <= found["h2d_bytes"]


def test_a_warm_plan_says_what_is_there_at_the_start(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ("plan", LLAMA, *SMALL_LLAMA, "--machine", "a100", "--dtype", "fp16", "--budget")
    warm = facts(capsys, *words, "1MiB", "--warm", "--out", str(tmp_path / "warm.json"))
    cold = facts(capsys, *words, "1MiB")
    assert (warm["start"], cold["start"], cold["resident_bytes"]) == ("warm", "cold", 0)
    assert 0 < warm["resident_bytes"] <= 1 << 20
    assert warm["bytes_bound_h2d"] == cold["bytes_bound_h2d"] - warm["resident_bytes"]
    assert "verified" in ran(capsys, "verify", str(tmp_path / "warm.json"))[0]
    assert "of weights on the device" in ran(capsys, *words, "1MiB", "--warm")[0]
    _, refused = ran(capsys, *words, "1MiB", "--warm", "--plan-seconds", "2", status=2)
    assert "--warm: a plan is searched for from an empty device; leave out --plan-seconds and --plan-steps" in refused


def test_a_plan_is_saved_and_verified_and_a_damaged_one_rejected(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    saved, again = tmp_path / "plan.json", tmp_path / "again.json"
    words = ("plan", LLAMA, *SMALL_LLAMA, "--budget", "600KiB", "--machine", "h100", "--dtype", "bf16", "--plan-steps", "40")
    ran(capsys, *words, "--out", str(saved))
    assert facts(capsys, "verify", str(saved))["verified"] is True
    ran(capsys, *words, "--out", str(again))
    assert saved.read_bytes() == again.read_bytes(), "the same arguments gave another plan"
    text = saved.read_text()
    saved.write_text(text[: len(text) // 2])
    _, err = ran(capsys, "verify", str(saved), status=2)
    assert str(saved) in err


def test_show_answers_for_a_person_and_a_script(capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = ran(capsys, "show", LLAMA)
    assert "attention o" in out and "largest working set" in out
    assert facts(capsys, "show", LLAMA)["most_ops_in_a_layer"] <= 12


@pytest.mark.parametrize("dispatch", ["serial", "dynamic", "static"])
def test_run_of_the_mlp(capsys: pytest.CaptureFixture[str], tmp_path: Path, dispatch: str) -> None:
    weights, given = mlp_files(tmp_path)
    logits = tmp_path / "y.safetensors"
    words = ["run", MLP, *MLP_SIZES, "--weights", weights, "--input", given, "--budget", "200KiB", "--machine", "cpu"]
    found = facts(capsys, *words, "--dispatch", dispatch, "--logits", str(logits), "--trace", str(tmp_path / "t.json"))
    assert set(PLAN_KEYS + RUN_KEYS) <= set(found)
    assert (found["measured_h2d_bytes"], found["measured_d2h_bytes"]) == (found["h2d_bytes"], found["d2h_bytes"])
    assert found["arena_bytes"] == 200 << 10
    data = small_data(small_program("mlp"))
    inner = data["x"].astype(np.float64) @ data["w1"].T + data["b1"]
    from math import erf

    hidden = inner * 0.5 * (1 + np.vectorize(erf)(inner / np.sqrt(2)))
    expected = hidden @ data["w2"].T + data["b2"]
    got = load_file(logits)["y"]
    assert np.abs(got - expected).max() <= 1e-5 * np.abs(expected).max()
    assert json.loads((tmp_path / "t.json").read_text())["traceEvents"]


SCALARS = """\
einpage: 1
name: scalars
sizes: {n: 4}
axes: {i: n}
inputs: {x: {axes: i}, c: {axes: ""}}
weights: {w: {axes: "", from: w}}
body: ["y[i] = x[i] * w + c"]
outputs: {y: {axes: i}}
"""


def test_a_weight_and_an_input_without_axes(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("scalars.yaml").write_text(SCALARS)
    save_file({"w": np.array(3, np.float32)}, "w.safetensors")
    np.save("x.npy", np.arange(4, dtype=np.float32))
    np.save("c.npy", np.array(2, np.float32))
    words = ["run", "scalars.yaml", "--weights", "w.safetensors", "--budget", "4KiB", "--machine", "cpu", "--logits", "y.safetensors"]
    ran(capsys, *words, "--input", "x=x.npy", "--input", "c=c.npy")
    assert load_file("y.safetensors")["y"].tolist() == [2, 5, 8, 11]


def test_the_error_for_a_small_budget_names_one_that_works(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    weights, given = mlp_files(tmp_path)
    words = ["run", MLP, *MLP_SIZES, "--weights", weights, "--input", given, "--machine", "cpu"]
    _, err = ran(capsys, *words, "--budget", "1KiB", status=3)
    assert "task" in err and "largest hole" in err
    smallest = int(err.split("smallest budget that works: ")[1].split()[0])
    assert facts(capsys, *words, "--budget", str(smallest))["largest_working_set_bytes"] == smallest
    ran(capsys, *words, "--budget", str(smallest - 1), status=3)


def test_padding_gives_each_prompt_its_own_logits(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    batch = [[3, 1, 4, 1, 5, 9, 2, 6], [5, 3, 5]]

    def logits(tokens: object, name: str) -> np.ndarray:
        (tmp_path / f"{name}.json").write_text(json.dumps(tokens))
        out = tmp_path / f"{name}.safetensors"
        words = [
            "run",
            LLAMA,
            *LLAMA_SIZES,
            "--weights",
            "random:7",
            "--budget",
            "1MiB",
            "--machine",
            "cpu",
            "--tokens",
            str(tmp_path / f"{name}.json"),
        ]
        assert len(facts(capsys, *words, "--logits", str(out))["top"]) == (len(tokens) if isinstance(tokens[0], list) else 1)
        return load_file(out)["logits"]

    together = logits(batch, "both")
    for row, tokens in enumerate(batch):
        alone = logits(tokens, f"alone{row}")[0]
        assert np.abs(together[row] - alone).max() <= 1e-5 * np.abs(alone).max()
    assert np.abs(together[0] - together[1]).max() > 1e-2 * np.abs(together).max()


MISTAKES: dict[str, tuple[list[str], str]] = {
    "budget 0": (["--budget", "0"], "positive"),
    "budget nonsense": (["--budget", "12 parsecs"], "unit"),
    "unknown machine": (["--budget", "1MiB", "--machine", "a1000"], "a100"),
    "NaN in a size": (["--budget", "1MiB", "--set", "inner=nan"], "inner"),
    "unknown size": (["--budget", "1MiB", "--set", "iner=3"], "inner"),
    "no value": (["--budget", "1MiB", "--set", "inner"], "--set"),
    "unknown output": (["--budget", "1MiB", "--outputs", "z"], "declared"),
    "an output without a name": (["--budget", "1MiB", "--outputs", ","], "--outputs ,"),
    "more digits than Python reads": (["--budget", "1MiB", "--split", f"h={'9' * 5000}"], "write letters and numbers of pieces"),
    "a letter twice": (["--budget", "1MiB", "--split", "h=2,h=3"], "h is given twice"),
    "unknown letter": (["--budget", "1MiB", "--split", "q=2"], "letters that can"),
    "unknown fusion": (["--budget", "1MiB", "--no-fuse", "attention,maps"], "no fusion 'maps' to leave out; there is attention"),
    "no such weights": (["--budget", "1MiB", "--weights", "nowhere.gguf"], "nowhere.gguf"),
    "cuda": (["--budget", "1MiB", "--device", "cuda"], "cuda"),
    "no such folder": (["--budget", "1MiB", "--logits", "nowhere/x.safetensors"], "nowhere"),
    "input of no name": (["--budget", "1MiB", "--input", "z=x.npy"], "z"),
    "triton on a CPU": (["--budget", "1MiB", "--kernels", "triton"], "TRITON_INTERPRET"),
    "more than the device": (["--budget", "1TiB", "--machine", "p100"], "p100"),
}


@pytest.mark.parametrize("what", MISTAKES)
def test_a_mistake_is_one_clear_error(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    weights, given = mlp_files(tmp_path)
    words, says = MISTAKES[what]
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    before = sorted(p.name for p in tmp_path.iterdir())
    base = ["run", MLP, *MLP_SIZES, "--timeline", "t.html"]
    base += [] if "--weights" in words else ["--weights", weights]
    base += [] if "--input" in words else ["--input", given]
    base += [] if "--machine" in words else ["--machine", "cpu"]
    out, err = ran(capsys, *base, *words, status=2)
    assert says in err and err.startswith("einpage: ") and "Traceback" not in err, err
    assert out == "" and sorted(p.name for p in tmp_path.iterdir()) == before, "something was written"


@pytest.mark.parametrize("threads", ["0", "-1", "100000000000"])
@pytest.mark.parametrize("machine", [["--machine", "cpu"], []])
def test_an_impossible_number_of_threads_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: str, machine: list[str]
) -> None:
    monkeypatch.setenv("EINPAGE_CACHE", str(tmp_path / "cache"))
    weights, given = mlp_files(tmp_path)
    words = ["run", MLP, *MLP_SIZES, "--weights", weights, "--input", given, "--budget", "1MiB", "--threads", threads]
    out, err = ran(capsys, *words, *machine, status=2)
    assert out == "" and err.startswith(f"einpage: --threads {threads}: expected a number from 1"), err
    assert not (tmp_path / "cache").exists(), "measured before it was refused"


def test_more_threads_than_cores_are_allowed_and_said(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    weights, given = mlp_files(tmp_path)
    words = ["run", MLP, *MLP_SIZES, "--weights", weights, "--input", given, "--budget", "1MiB", "--machine", "cpu", "--threads"]
    before, many = torch.get_num_threads(), len(os.sched_getaffinity(0)) + 1
    try:
        _, err = ran(capsys, *words, str(many))
        assert f"warning: --threads {many} is more than the {many - 1} cores" in err
        found = facts(capsys, *words, str(many))
        assert found["threads"] == many and len(found["warnings"]) == 1
        assert facts(capsys, *words, "1")["warnings"] == []
    finally:
        torch.set_num_threads(before)


def test_a_run_that_beats_the_best_rates_betters_them(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EINPAGE_CACHE", str(tmp_path / "cache"))
    fast = load_machine("cpu", threads=measure.default_threads())
    slow = replace(fast, device_bytes_per_s=1e3)
    path = measure.cpu_profile()
    profiles.save(slow, path)
    monkeypatch.setattr(measure, "measure_cpu", lambda seconds=0.0, threads=None: replace(fast, threads=threads or fast.threads))
    weights, given = mlp_files(tmp_path)
    words = ["run", MLP, *MLP_SIZES, "--weights", weights, "--input", given, "--budget", "1MiB"]
    assert "too low for this machine" in facts(capsys, *words, "--d2h", "1kB/s")["warnings"][0]
    assert profiles.cached(path) == slow, "changed for rates that the user gave"
    found = facts(capsys, *words)
    assert found["wall_s"] < found["bound_s"]
    assert "memory 1e-06 -> " in found["warnings"][0] and str(path) in found["warnings"][0]
    kept = profiles.cached(path)
    assert kept is not None and kept.device_bytes_per_s > 1e6 and kept.flops_per_s == fast.flops_per_s
    again = facts(capsys, *words)
    assert again["bound_s"] <= again["wall_s"]
    profiles.save(slow, path)
    assert "warning: the run was faster than" in ran(capsys, *words)[1]


def test_a_run_far_faster_than_predicted_has_the_machine_measured_again(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EINPAGE_CACHE", str(tmp_path / "cache"))
    fast = load_machine("cpu", threads=measure.default_threads())
    profiles.save(replace(fast, kernel_times=replace(nothing_usual(), start_s=1000.0)), measure.cpu_profile())
    weights, given = mlp_files(tmp_path)
    words = ["run", MLP, *MLP_SIZES, "--weights", weights, "--input", given, "--budget", "1MiB"]
    assert "far less than the 1000 s predicted" in facts(capsys, *words)["warnings"][0]
    assert profiles.cached(measure.cpu_profile()) is None, "dropped, to be measured again"


def test_a_profile_measured_on_a_busy_machine_is_said(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EINPAGE_CACHE", str(tmp_path / "cache"))
    quiet = replace(load_machine("cpu", threads=measure.default_threads()), measured=Measurement(0.02, 0.05, 4))
    busy = replace(quiet, measured=Measurement(0.02, 3.9, 4))
    weights, given = mlp_files(tmp_path)
    words = ["run", MLP, *MLP_SIZES, "--weights", weights, "--input", given, "--budget", "1MiB"]
    for machine, said in ((quiet, 0), (busy, 1)):
        profiles.save(machine, measure.cpu_profile())
        warnings = facts(capsys, *words)["warnings"]
        assert sum("measured while the machine was busy (others used 3.90 of 4 cores" in warning for warning in warnings) == said
    out, _ = ran(capsys, "machine")
    assert "others used 3.90 of 4 cores, samples 2 % apart; kept in" in out.splitlines()[-1]


def test_all_faults_of_weights_come_at_once(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    weights, given = mlp_files(tmp_path, drop="w2", shape=(3,))
    words = ["run", MLP, *MLP_SIZES, "--weights", weights, "--input", given, "--budget", "1MiB", "--machine", "cpu"]
    _, err = ran(capsys, *words, status=2)
    assert "fc2.weight" in err and "fc1.bias" in err and "[3]" in err


def test_a_prompt_longer_than_seq_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text("[1, 2, 3, 4, 5]")
    words = ["run", LLAMA, *LLAMA_SIZES, "--weights", "random:1", "--tokens", str(tmp_path / "t.json")]
    _, err = ran(capsys, *words, "--set", "seq=4", "--budget", "1MiB", "--machine", "cpu", status=2)
    assert "5 tokens" in err and "seq" in err


@pytest.mark.parametrize("seq", ["3", "2+1", "model // 32"])
def test_a_seq_that_is_an_expression_is_refused_in_the_same_words(capsys: pytest.CaptureFixture[str], tmp_path: Path, seq: str) -> None:
    (tmp_path / "t.json").write_text("[1, 2, 3, 4, 5]")
    words = ["run", LLAMA, *LLAMA_SIZES, "--weights", "random:1", "--tokens", str(tmp_path / "t.json")]
    _, err = ran(capsys, *words, "--set", f"seq={seq}", "--budget", "1MiB", "--machine", "cpu", status=2)
    assert "5 tokens, but seq is set to 3; set seq=5" in err


def test_a_bad_size_in_a_checkpoint_names_its_key(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    save_file({"w": np.zeros(3, np.float32)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text('{"hidden_size": -96}')
    _, err = ran(capsys, "show", LLAMA, "--weights", str(tmp_path), status=2)
    assert "the checkpoint's `hidden_size` is -96" in err and "`model`" in err and "--set" not in err


def test_a_plan_that_could_not_be_written_is_not_made(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_command.Plans, "planned", lambda *_, **__: pytest.fail("planned"))
    for option in ("--out", "--timeline"):
        _, err = ran(capsys, "plan", MLP, "--budget", "1MiB", option, str(tmp_path / "nope" / "x.json"), status=2)
        assert "cannot write" in err and "nope" in err


def test_a_result_never_takes_the_place_of_what_is_read(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The spec, through a link too; a file of a checkpoint's folder; an input. What is read by nobody is replaced."""
    spec, folder, x = tmp_path / "s.yaml", tmp_path / "m", tmp_path / "x.json"
    folder.mkdir()
    for path, text in ((spec, Path(MLP).read_text()), (folder / "config.json", "{}"), (x, "[]"), (tmp_path / "old.json", "old")):
        path.write_text(text)
    (tmp_path / "link.yaml").symlink_to("s.yaml")
    words = ("plan", str(spec), "--budget", "1MiB", "--machine", "h100")
    for out, read, more in (
        (spec, spec, ()),
        (tmp_path / "link.yaml", spec, ()),
        (folder / "config.json", folder, ("--weights", str(folder))),
    ):
        before = out.read_text()
        _, err = ran(capsys, *words, *more, "--out", str(out), status=2)
        assert f"cannot write {out}: it is read, as {read}; give the result a file of its own" in err
        assert out.read_text() == before
    run = ("run", str(spec), "--budget", "1MiB", "--weights", "random:0", "--input", f"x={x}", "--timeline", str(x))
    assert f"cannot write {x}: it is read" in ran(capsys, *run, status=2)[1]
    ran(capsys, *words, "--out", str(tmp_path / "old.json"))
    assert json.loads((tmp_path / "old.json").read_text())


def test_a_result_never_takes_the_place_of_another(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_command.Plans, "planned", lambda *_, **__: pytest.fail("planned"))
    same = str(tmp_path / "same")
    (tmp_path / "link").symlink_to("same")
    for other in (same, str(tmp_path / "link")):
        _, err = ran(capsys, "plan", MLP, "--budget", "1MiB", "--out", same, "--timeline", other, status=2)
        assert "cannot write" in err and "two results would go there" in err
    assert os.listdir(tmp_path) == ["link"]


def test_no_result_is_written_where_another_cannot_be(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> object:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(files.os, "open", full)
    words = ("--out", str(tmp_path / "p.json"), "--timeline", str(tmp_path / "t.html"))
    _, err = ran(capsys, "plan", MLP, "--budget", "1MiB", *words, status=2)
    assert "Read-only file system" in err and not os.listdir(tmp_path)


def test_every_file_has_the_mode_that_the_user_wants(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    weights, given = mlp_files(tmp_path)
    out = [tmp_path / name for name in ("y.safetensors", "t.json", "t.html", "plan.json")]
    words = [MLP, *MLP_SIZES, "--budget", "1MiB", "--machine", "cpu"]
    before = os.umask(0o026)
    try:
        results = ["--logits", str(out[0]), "--trace", str(out[1]), "--timeline", str(out[2])]
        ran(capsys, "run", *words, "--weights", weights, "--input", given, *results)
        ran(capsys, "plan", *words, "--out", str(out[3]))
    finally:
        os.umask(before)
    assert {path.name: oct(path.stat().st_mode & 0o777) for path in out} == {path.name: "0o640" for path in out}


def test_a_token_outside_the_vocabulary_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text("[1, 2, 200]")
    words = [
        "run",
        LLAMA,
        *LLAMA_SIZES,
        "--weights",
        "random:1",
        "--tokens",
        str(tmp_path / "t.json"),
        "--budget",
        "1MiB",
        "--machine",
        "cpu",
    ]
    _, err = ran(capsys, *words, status=2)
    assert "input tokens[0, 2] is 200, outside its range" in err
