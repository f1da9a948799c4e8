"""`einpage plan --graph`: a trace in place of a spec, its report and plan file, and every option that would be ignored is refused."""

from __future__ import annotations

import json
from pathlib import Path
from time import process_time

import pytest

from command_line import LLAMA, MLP, MLP_SIZES, PLAN_KEYS, SMALL_LLAMA, facts, ran
from einpage.exec.cli import main
from einpage.memplan.graph.planfile import load_plan

DATA = Path(__file__).parent / "data"
VGG = str(DATA / "vgg19.json.gz")
SQUEEZE = str(DATA / "squeezenet.json.gz")


@pytest.mark.parametrize(("file", "least", "h2d", "d2h"), [(VGG, 411174912, 575271080, 4000), (SQUEEZE, 6308352, 5544096, 4000)])
def test_a_trace_is_planned_in_its_largest_working_set(
    capsys: pytest.CaptureFixture[str], file: str, least: int, h2d: int, d2h: int
) -> None:
    """At the trace's own `max_op_footprint`, one byte less being refused; with room, it moves the bytes proven to be the least."""
    tight, roomy = (facts(capsys, "plan", "--graph", file, "--budget", str(n * least), "--h2d", "12GB/s") for n in (1, 2))
    assert set(PLAN_KEYS) <= set(tight)
    assert (tight["machine"], tight["verified"], tight["largest_working_set_bytes"], tight["peak_bytes"]) == ("links", True, least, least)
    assert (roomy["h2d_bytes"], roomy["d2h_bytes"]) == (h2d, d2h) == (tight["bytes_bound_h2d"], tight["bytes_bound_d2h"])
    sums_differ = 1 + 1e-12  # the same times added up in another order
    assert all(found["bound_order_s"] <= found["makespan_s"] * sums_differ for found in (tight, roomy))
    _, err = ran(capsys, "plan", "--graph", file, "--budget", str(least - 1), "--h2d", "12GB/s", status=3)
    assert f"smallest budget that works: {least} bytes" in err


def test_links_follow_the_words(capsys: pytest.CaptureFixture[str]) -> None:
    """Without --d2h the link back is as fast; a machine brings latencies; both rates override a profile's."""
    plan = ("plan", "--graph", SQUEEZE, "--budget", "8MiB")
    for words, h2d, d2h in ((("--h2d", "1GB"), 1e9, 1e9), (("--h2d", "1GB", "--d2h", "2GB"), 1e9, 2e9)):
        found = facts(capsys, *plan, *words)
        assert found["h2d_s"] == pytest.approx(found["h2d_bytes"] / h2d)
        assert found["d2h_s"] == pytest.approx(found["d2h_bytes"] / d2h)
        assert found["warnings"] == []
    on_machine = facts(capsys, *plan, "--machine", "h100", "--h2d", "1GB")
    assert on_machine["machine"] == "h100" and on_machine["h2d_s"] > on_machine["h2d_bytes"] / 1e9
    assert on_machine["compute_s"] == pytest.approx(found["compute_s"]), "a trace's times hold on any machine"
    assert facts(capsys, *plan, "--h2d", "1GB", "--device-bytes", "7MiB")["warnings"] == ["budget 8MiB is more than the 7MiB of links"]


def test_the_plan_of_a_trace_is_saved_drawn_and_verified(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    plan, picture = tmp_path / "plan.json", tmp_path / "t.svg"
    words = ("--graph", SQUEEZE, "--budget", "7MB", "--h2d", "12GB/s", "--out", str(plan), "--timeline", str(picture))
    out, _ = ran(capsys, "plan", *words)
    assert "squeezenet, byte, on links: 66 tasks" in out
    assert picture.read_text(encoding="utf-8").startswith("<svg")
    assert facts(capsys, "verify", str(plan))["verified"] is True
    saved = load_plan(plan)
    assert saved.memgraph.alignment == 1 and saved.recipe["graph"] == "squeezenet.json.gz"
    assert any(r.extents[0].offset % 256 for r in saved.memgraph.residencies)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "nothing to plan: give a SPEC, as specs/llama.yaml, or --graph FILE.json"),
        (("specs/mlp.yaml", "--graph", SQUEEZE, "--h2d", "1GB"), "SPEC specs/mlp.yaml and --graph"),
        (("--graph", SQUEEZE, "--h2d", "1GB", "--set", "seq=4"), "--set: of a spec"),
        (("--graph", SQUEEZE, "--h2d", "1GB", "--dtype", "fp32"), "--dtype: of a spec"),
        (("--graph", SQUEEZE, "--h2d", "1GB", "--no-fuse", "attention"), "--no-fuse: of a spec"),
        (
            ("--graph", SQUEEZE, "--h2d", "1GB", "--policy", "pin-first", "--passes", "2"),
            "--policy pin-first: a static plan starts with an empty",
        ),
        (
            ("--graph", SQUEEZE, "--h2d", "1GB", "--split", "f=4", "--weights", "w", "--outputs", "y"),
            "--weights, --outputs, --split: of a spec",
        ),
        (("--graph", SQUEEZE), "how fast are the links? give --h2d RATE"),
        (("--graph", SQUEEZE, "--d2h", "1GB"), "how fast are the links? give --h2d RATE"),
        (("--graph", SQUEEZE, "--h2d", "-1"), "--h2d '-1' is not a positive rate"),
        (("--graph", "no.json", "--h2d", "1GB"), "trace no.json cannot be read"),
        (("--graph", SQUEEZE, "--h2d", "1GB", "--free-order", "--passes", "2"), "--free-order: a loop is planned in the order as written"),
    ],
)
def test_a_mistake_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path, words: tuple[str, ...], message: str) -> None:
    plan = tmp_path / "plan.json"
    _, err = ran(capsys, "plan", *words, "--budget", "8MiB", "--out", str(plan), status=2)
    assert message in err and not plan.exists()


def test_a_trace_is_searched_for_and_may_be_reordered(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Two chunks through four layers, one after the other: unasked a plan is searched for; a free order loads each weight once."""
    tensors = [[1000, 1, 0, "w"]] * 4 + [[10, 1, 0, "x"]] * 2 + [[10, 0, int(k % 4 == 3), "h"] for k in range(8)]
    ops = [[f"c{c} l{i}", [i, 6 + 4 * c + i - 1 if i else 4 + c], [6 + 4 * c + i], 1] for c in range(2) for i in range(4)]
    trace = tmp_path / "chunks.json"
    trace.write_text(json.dumps({"tensors": tensors, "ops": ops}))
    words = ["plan", "--graph", str(trace), "--budget", "2100", "--h2d", "1GB"]
    unasked, quick, free = (facts(capsys, *words, *more) for more in ((), ("--plan-seconds", "0"), ("--free-order",)))
    assert unasked["plan_steps"] > 0 == quick["plan_steps"]
    assert (unasked["plan_ended"], quick["plan_ended"]) == ("nothing was left to try", None)
    assert (unasked["order"], free["order"]) == ("as_written", "reordered")
    assert free["h2d_bytes"] == 4020 < unasked["h2d_bytes"]
    assert "order         not as written" in ran(capsys, *words, "--free-order")[0]


def test_a_plan_file_says_in_how_many_steps_it_is_found_again(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["plan", LLAMA, *SMALL_LLAMA, "--machine", "cpu", "--budget", "400KiB"]
    found = facts(capsys, *words, "--plan-seconds", "1", "--out", str(tmp_path / "found.json"))
    steps = json.loads((tmp_path / "found.json").read_text())["recipe"]["plan_steps"]
    assert steps == found["plan_steps"] > 0
    again = facts(capsys, *words, "--plan-steps", str(steps), "--out", str(tmp_path / "again.json"))
    quick = facts(capsys, *words, "--plan-seconds", "0", "--out", str(tmp_path / "quick.json"))
    texts = [(tmp_path / f"{name}.json").read_text() for name in ("found", "again", "quick")]
    assert texts[0] == texts[1] != texts[2]
    assert again["makespan_s"] == found["makespan_s"] <= quick["makespan_s"]
    assert facts(capsys, *words, "--plan-steps", "20000")["makespan_s"] < quick["makespan_s"], (
        "what so many seconds find depends on the load"
    )
    assert f"search        {steps:,} steps; it ended: " in ran(capsys, *words, "--plan-steps", str(steps))[0]
    assert "search  " not in ran(capsys, *words, "--plan-seconds", "0")[0]


def test_a_static_plan_says_whose_it_is(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    weights, tasks = [[1000, 1, 0, "w"]] * 10, [[[k % 10, k + 9] if k else [0], [k + 10]] for k in range(30)]
    results = [[10, 0, int(k == 29), "a"] for k in range(30)]
    trace = tmp_path / "loop.json"
    trace.write_text(json.dumps({"tensors": weights + results, "ops": [[f"k{k}", *io, 1] for k, io in enumerate(tasks)]}))
    words = ["plan", "--graph", str(trace), "--budget", "6000", "--h2d", "1GB"]
    assert facts(capsys, *words)["policy"] == "auto"
    found = {policy: facts(capsys, *words, "--policy", policy) for policy in ("stream-all", "pin-first", "pin-evenly", "nearest")}
    assert all(found[policy]["policy"] == policy and found[policy]["verified"] for policy in found)
    assert len({(f["h2d_bytes"], f["makespan_s"]) for f in found.values()}) >= 2
    out, _ = ran(capsys, *words, "--policy", "pin-first")
    assert "policy        pin-first, as asked" in out
    _, err = ran(capsys, *words, "--policy", "pin-first", "--plan-steps", "1", status=2)
    assert "--policy pin-first: a static plan is not searched for; leave out --plan-seconds and --plan-steps" in err
    searched = facts(capsys, *words, "--plan-steps", "2000")["makespan_s"]
    assert searched <= min(f["makespan_s"] for f in found.values())


def test_a_spec_keeps_its_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    found = facts(capsys, "plan", MLP, *MLP_SIZES, "--budget", "1MiB")
    assert (found["machine"], found["dtype"]) == ("cpu", "fp32")


def test_json_is_one_plain_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--graph", SQUEEZE, "--budget", "8MiB", "--h2d", "1GB", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out, parse_constant=lambda word: pytest.fail(word)) and not err


WIDE = ("--set", "width=10241024", "--set", "depth=8")


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (
            ("plan", "matmul_chain", "--machine", "cpu", "--budget", "2GiB", *WIDE),
            3,
            "task (before the first) wants 3356124809003008 bytes on",
        ),
        (
            ("show", "matmul_chain", "--split", "i=4000,j=4000", *WIDE),
            2,
            "128,004,000 tasks in the split i=4000, j=4000, and at most 1,000,000",
        ),
        (
            ("plan", "matmul_chain", "--machine", "cpu", "--budget", "1MiB", "--set", "width=102410", "--set", "rows=25600"),
            2,
            "larger --budget, or fewer pieces",
        ),
    ],
)
@pytest.mark.timeout(20)
def test_a_graph_that_nobody_could_hold_is_refused_before_it_is_made(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], status: int, message: str
) -> None:
    """Each took minutes and more memory than this machine has."""
    began = process_time()
    out, err = ran(capsys, *words, status=status)
    assert message in err and not out
    assert process_time() - began < 5
