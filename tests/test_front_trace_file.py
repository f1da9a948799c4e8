"""Access traces as graphs: what each row becomes, two shipped traces whole, and each thing a file can have wrong."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest

from einpage.einsum_front.base.errors import UsageError
from einpage.einsum_front.graph.taskgraph import Kind, TaskGraph
from einpage.einsum_front.graph.trace_file import read_trace
from einpage.memplan.bounds.bounds import bounds
from einpage.memplan.graph.dump import memgraph_text
from einpage.memplan.graph.planfile import load_plan, save_plan
from einpage.memplan.graph.simulate import simulate
from einpage.memplan.judge.validate import judge
from einpage.memplan.machine.places import Queue
from einpage.memplan.plan import plan
from einpage.memplan.problem.footprint import last_use_by_tensor
from strategies import a_machine

DATA = Path(__file__).parent / "data"
W, X, H, Y, MASK, EMPTY = range(6)
SMALL: dict[str, Any] = {
    "name": "small",
    "tensors": [[100, 1, 0, "w"], [30, 1, 0, "in"], [50, 0, 0, "a"], [7, 0, 1, "a"], [4, 0, 0, "a"], [0, 1, 0, "in"]],
    "ops": [["mul", [W, X], [H], 2.5], ["act", [H, H, EMPTY], [Y, MASK], 1]],
}


def written(path: Path, raw: object) -> Path:
    path.write_text(raw if isinstance(raw, str) else json.dumps(raw), encoding="utf-8")
    return path


def changed(**keys: Any) -> dict[str, Any]:
    return {**SMALL, **keys}


def op_bytes(graph: TaskGraph) -> list[int]:
    """What each task touches, laid end to end."""
    size = [t.nbytes for t in graph.tensors]
    return [sum(size[t] for t in task.reads()) + size[task.result] + task.workspace_bytes for task in graph.tasks]


def test_rows_become_tensors_and_tasks(tmp_path: Path) -> None:
    graph = read_trace(written(tmp_path / "t.json", SMALL))
    assert [(t.name, t.nbytes, t.kind) for t in graph.tensors] == [
        ("w.0", 100, Kind.WEIGHT),
        ("in.1", 30, Kind.INPUT),
        ("a.2", 50, Kind.ACTIVATION),
        ("a.3", 7, Kind.OUTPUT),
    ]
    assert [(t.name, t.reads(), t.result, t.workspace_bytes, t.seconds, t.job) for t in graph.tasks] == [
        ("mul", (0, 1), 2, 0, 2.5e-6, None),
        ("act", (2,), 3, 4, 1e-6, None),
    ]
    assert graph.name == "small" and graph.outputs == (("a.3", "a.3"),)


def test_gzip_is_seen_by_its_bytes(tmp_path: Path) -> None:
    packed = tmp_path / "t.json"
    packed.write_bytes(gzip.compress(json.dumps(SMALL).encode()))
    assert read_trace(packed) == read_trace(written(tmp_path / "u.json", SMALL))


def test_several_wanted_outputs_are_a_row_of_tasks(tmp_path: Path) -> None:
    """Each task of the row needs the op's bytes, and the op's time is spent before the first result is there."""
    tensors = [[10, 1, 0, "in"], [20, 0, 0, "a"], [30, 0, 1, "a"], [5, 0, 0, "a"], [1, 0, 1, "a"]]
    graph = read_trace(written(tmp_path / "t.json", {"tensors": tensors, "ops": [["split", [0], [1, 2, 3], 8], ["use", [1], [4], 1]]}))
    assert graph.name == "t"
    assert [(t.name, t.reads(), t.result, t.workspace_bytes, t.seconds) for t in graph.tasks] == [
        ("split", (0,), 1, 35, 8e-6),
        ("split:1", (0, 1), 2, 5, 0.0),
        ("use", (1,), 3, 0, 1e-6),
    ]
    assert op_bytes(graph)[:2] == [65, 65]


def test_an_op_whose_outputs_nobody_wants_has_a_result(tmp_path: Path) -> None:
    graph = read_trace(written(tmp_path / "t.json", {"tensors": [[8, 0, 0, "a"], [9, 0, 0, "a"]], "ops": [["probe", [], [1, 0], 1]]}))
    assert [(graph.tensors[t.result].name, t.workspace_bytes) for t in graph.tasks] == [("a.1", 8)]


def test_equal_names_get_their_places(tmp_path: Path) -> None:
    tensors = [[8, 1, 0, "in"], [8, 0, 0, "a"], [8, 0, 1, "a"]]
    graph = read_trace(written(tmp_path / "t.json", {"tensors": tensors, "ops": [["Relu", [0], [1], 1], ["Relu", [1], [2], 1]]}))
    assert [t.name for t in graph.tasks] == ["Relu#0", "Relu#1"]


@pytest.mark.parametrize("name", ["vgg19", "squeezenet"])
def test_shipped_traces(name: str) -> None:
    """The footprint the file states, the bytes it must move at least, and a plan that the judge passes with the file's own times."""
    raw = json.loads(gzip.decompress((DATA / f"{name}.json.gz").read_bytes()))
    graph = read_trace(DATA / f"{name}.json.gz")
    assert max(op_bytes(graph)) == raw["max_op_footprint"]
    machine = a_machine(h2d_bytes_per_s=12e9, d2h_bytes_per_s=12e9, copy_latency_s=0.0, launch_latency_s=1.0)
    reference = raw["reference"][-1]
    bound = bounds(graph, machine, reference["capacity"], [task.id for task in graph.tasks])
    assert (bound.compulsory(Queue.H2D), bound.compulsory(Queue.D2H)) == (reference["lp_h2d"], reference["lp_d2h"])
    assert bound.busy(Queue.COMPUTE) == pytest.approx(sum(op[3] for op in raw["ops"]) / 1e6)
    assert bound.bound_order_s <= reference["lp_makespan_s"] * (1 + 1e-4)
    memgraph = plan(graph, machine, 2 * reference["capacity"])
    assert judge(memgraph) is None
    assert simulate(memgraph, machine).makespan_s == pytest.approx(reference["lp_makespan_s"], rel=0.05)


def test_nothing_is_taken_over_and_all_is_read(tmp_path: Path) -> None:
    graph = read_trace(DATA / "squeezenet.json.gz")
    assert all(not t.inplace and not t.gathers for t in graph.tasks)
    assert len(last_use_by_tensor(graph)) == len({t for task in graph.tasks for t in task.reads()})


def test_a_plan_of_a_trace_goes_through_a_file(tmp_path: Path) -> None:
    graph = read_trace(written(tmp_path / "t.json", SMALL))
    memgraph = plan(graph, a_machine(), 4096)
    save_plan(tmp_path / "plan.json", memgraph, {"graph": "t.json"})
    again = load_plan(tmp_path / "plan.json").memgraph
    assert again.graph == graph and memgraph_text(again) == memgraph_text(memgraph)
    assert all(words in memgraph_text(memgraph) for words in ("workspace 2.5e-06 seconds", "bytes 2.5e-06 seconds\n"))


TENSORS = SMALL["tensors"]
OPS = SMALL["ops"]


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ("{", "truncated or not JSON"),
        ("[" * 100000, "truncated or not JSON"),
        ([], "a trace is a mapping with `tensors` and `ops`, this is list"),
        ({"ops": OPS}, "tensors: missing; a trace has a list of rows [bytes,"),
        ({"tensors": TENSORS}, "ops: missing"),
        (changed(ops={}), "ops: dict, not a list"),
        (changed(tensor_fields=["kind", "bytes"]), "tensor_fields: ['kind', 'bytes']; columns are"),
        (changed(op_fields=["name"]), "op_fields: ['name']; columns are"),
        (changed(tensors=[[4, 1, 0]]), "tensors[0]: [4, 1, 0] is not a row of 4; write [bytes,"),
        (changed(tensors=[[-1, 1, 0, "w"]]), "tensors[0]: -1 is not a number of bytes"),
        (changed(tensors=[[1.5, 1, 0, "w"]]), "tensors[0]: 1.5 is not a number of bytes"),
        (changed(tensors=[[4, 2, 0, "w"]]), "tensors[0]: 2, 0 are not two of 0 and 1"),
        (changed(tensors=[[4, 1, 0, None]]), "tensors[0]: kind None is not a text"),
        (changed(ops=[["a", [0], [2]]]), "ops[0]: ['a', [0], [2]] is not a row of 4"),
        (changed(ops=[[1, [0], [2], 1]]), "ops[0]: name 1 is not a text"),
        (changed(ops=[["a", 0, [2], 1]]), "ops[0] (a): 0 is not a list of tensor ids"),
        (changed(ops=[["a", [0], [6], 1]]), "ops[0] (a): unknown tensor id 6; ids are positions in `tensors`, 0 to 5"),
        (changed(ops=[["a", [-1], [2], 1]]), "ops[0] (a): unknown tensor id -1"),
        (changed(ops=[["a", [True], [2], 1]]), "ops[0] (a): unknown tensor id True"),
        (changed(ops=[["a", [0], [2], -1]]), "ops[0] (a): -1 is not a duration in microseconds"),
        (changed(ops=[["a", [0], [2], float("nan")]]), "ops[0] (a): nan is not a duration"),
        (changed(ops=[["a", [0], [2, 2], 1]]), "ops[0] (a): names an output twice"),
        (changed(ops=[["a", [0], [], 1]]), "ops[0] (a): writes no bytes; give it an output of at least one byte"),
        (changed(ops=OPS[1:]), "ops[0] (act): reads tensor 2, which nothing has written; put its writer first"),
        (changed(ops=[["a", [2], [2], 1]]), "ops[0] (a): reads tensor 2, which nothing has written"),
        (changed(ops=[*OPS, ["a", [2], [2], 1]]), "ops[2] (a): writes tensor 2, which is written already; give each version"),
        (changed(ops=[["a", [0], [1], 1]]), "ops[0] (a): writes tensor 1, which has a host copy"),
        (changed(ops=OPS[:1]), "tensors[3]: must end on the host, and nothing writes it; give it a writer"),
    ],
)
def test_what_is_wrong_is_said(raw: object, message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        read_trace(written(tmp_path / "t.json", raw))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no\.json cannot be read: No such file"):
        read_trace(tmp_path / "no.json")
    cut = tmp_path / "cut.json.gz"
    cut.write_bytes(gzip.compress(json.dumps(SMALL).encode())[:-12])
    with pytest.raises(UsageError, match="truncated or not JSON"):
        read_trace(cut)
    cut.write_bytes(b"\xff\xfe\xfd")
    with pytest.raises(UsageError, match="truncated or not JSON"):
        read_trace(cut)
