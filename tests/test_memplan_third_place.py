"""A third place is data: a profile with links to a disk, and a plan with moves on them, with no rule of their own in the code.

disk     w ──┐                         ┌─► e ──┐
host         └─► w ─┐          e ──────┘       └─► e ─┐         the weight comes from the disk, and e is spilled there
device              └─► w      e (offloaded)          └─► e
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from einpage.einsum_front.base.errors import UsageError
from einpage.einsum_front.base.units import Nbytes, aligned
from einpage.einsum_front.graph.taskgraph import TaskId, TensorId
from einpage.exec.device.device import NullDevice
from einpage.exec.picture.chrome_trace import chrome_trace
from einpage.exec.picture.timeline_html import render_html
from einpage.exec.picture.timeline_svg import render_svg
from einpage.memplan.bounds.bounds import bounds
from einpage.memplan.bounds.limit import limit_name
from einpage.memplan.graph.arena import Arena
from einpage.memplan.graph.dump import describe, memgraph_text
from einpage.memplan.graph.memgraph import MemGraph, Move, NodeId
from einpage.memplan.graph.planfile import load_plan, save_plan
from einpage.memplan.graph.recorder import Recorder
from einpage.memplan.graph.simulate import moved_bytes_by_queue, queues_of, simulate
from einpage.memplan.judge.reason import Reason
from einpage.memplan.judge.validate import judge
from einpage.memplan.machine.machine import Machine
from einpage.memplan.machine.places import DEVICE, DISK, HOST, SECTOR, Place, Queue
from einpage.memplan.machine.profile import load_machine, machine_text
from einpage.memplan.plan import plan
from einpage.memplan.report import render, report
from hand_plan import hand_graph
from single_runs import run_dynamic, run_serial, run_static

IN, OUT = Queue(DISK, HOST), Queue(HOST, DISK)
PROFILE = """\
links:
  - {source: disk, target: host, bytes_per_s: 100, latency_s: 0.25}
  - {source: host, target: disk, bytes_per_s: 50}
"""


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    path = tmp_path / "with_disk.yaml"
    path.write_text(machine_text(load_machine("h100")) + PROFILE, encoding="utf-8")
    return load_machine(path)


def plan_with_disk() -> MemGraph:
    """The hand-made graph: w starts on the disk alone, e goes there and comes back, over a landing slot of the host."""
    graph = hand_graph()
    table, rows, w, e, a, b, c = (t.id for t in graph.tensors)
    recorder = Recorder(graph)
    arenas = {DEVICE: Arena(2048), HOST: Arena(4096), DISK: Arena(1024)}
    at: dict[tuple[Place, TensorId], int] = {}

    def bytes_for(t: TensorId, place: Place) -> tuple[int, list[tuple[int, int, int]]]:
        nbytes = aligned(graph.tensors[t].nbytes, 256 if place == DEVICE else SECTOR)
        start = arenas[place].find(nbytes)
        assert start is not None
        at[place, t] = start
        return start, arenas[place].allocate(start, nbytes, t)

    def free(t: TensorId, place: Place, r: int) -> None:
        arenas[place].release(at[place, t], recorder.free(r))

    start = [recorder.residency(t, place, bytes_for(t, place)[0]) for t, place in ((table, HOST), (rows, HOST), (w, DISK))]
    on_e = recorder.gather(TaskId(0), ((start[0],), (start[1],)), e, DEVICE, *bytes_for(e, DEVICE))
    landed = recorder.move(start[2], HOST, *bytes_for(w, HOST))
    on_w = recorder.move(landed, DEVICE, *bytes_for(w, DEVICE))
    free(w, HOST, landed)
    offset, after = bytes_for(a, DEVICE)
    scratch = arenas[DEVICE].find(256)
    assert scratch is not None
    after += arenas[DEVICE].allocate(scratch, 256, TensorId(-1))
    node, on_a = recorder.compute(TaskId(1), ((on_e,), (on_w,)), a, DEVICE, offset, after, None, (scratch, 100))
    arenas[DEVICE].release(scratch, node)
    spilled = recorder.move(on_e, HOST, *bytes_for(e, HOST))
    free(e, DEVICE, on_e)
    on_disk = recorder.move(spilled, DISK, *bytes_for(e, DISK))
    free(e, HOST, spilled)
    _, on_b = recorder.compute(TaskId(2), ((on_a,), (on_w,)), b, DEVICE, offset, (), on_a, None)
    arenas[DEVICE].rename(offset, b)
    free(w, DEVICE, on_w)
    b_out = recorder.move(on_b, HOST, *bytes_for(b, HOST))
    again = recorder.move(on_disk, HOST, *bytes_for(e, HOST))
    free(e, DISK, on_disk)
    back = recorder.move(again, DEVICE, *bytes_for(e, DEVICE))
    free(e, HOST, again)
    _, on_c = recorder.compute(TaskId(3), ((back,), (on_b,)), c, DEVICE, offset, (), on_b, None)
    arenas[DEVICE].rename(offset, c)
    c_out = recorder.move(on_c, HOST, *bytes_for(c, HOST))
    free(e, DEVICE, back)
    recorder.free(on_c)
    return MemGraph(
        graph=graph,
        arenas=((DEVICE, Nbytes(2048)), (HOST, Nbytes(4096)), (DISK, Nbytes(1024))),
        residencies=recorder.residencies.finish(),
        nodes=recorder.nodes.finish(),
        edges=recorder.edges.finish(),
        start=tuple(start),
        end=(*start, b_out, c_out),
    )


def test_the_profile_reads_back(machine: Machine, tmp_path: Path) -> None:
    assert machine.link(IN).seconds(100) == 1.25 and machine.link(OUT).seconds(100) == 2.0
    path = tmp_path / "again.yaml"
    path.write_text(machine_text(machine), encoding="utf-8")
    assert load_machine(path) == machine


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("links: 3", "is a list of links"),
        ("links: [{source: disk}]", "write it as"),
        ("links: [{source: tape, target: host, bytes_per_s: 1}]", "places are device, host, disk"),
        ("links: [{source: disk, target: disk, bytes_per_s: 1}]", "source and target are both disk"),
        ("links: [{source: disk, target: host, bytes_per_s: 0}]", "bytes_per_s"),
        ("links: [{source: disk, target: host, bytes_per_s: 1, latency_s: -1}]", "latency_s"),
    ],
)
def test_a_link_that_says_nothing_is_refused(entry: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(machine_text(load_machine("h100")) + entry, encoding="utf-8")
    with pytest.raises(UsageError, match=said):
        load_machine(path)


def test_a_graph_is_planned_on_such_a_machine(machine: Machine) -> None:
    assert judge(plan(hand_graph(), machine, 2048)) is None


def test_the_judge_passes_it_and_names_mutants() -> None:
    made = plan_with_disk()
    assert judge(made) is None
    moves = [n for n, node in enumerate(made.nodes) if isinstance(node, Move)]
    assert {made.queue(n) for n in moves} == {IN, OUT, Queue.H2D, Queue.D2H}
    too_small = judge(made.with_arena(DISK, 256))
    assert too_small is not None and too_small.reason is Reason.OUTSIDE_ARENA and "disk" in too_small.message
    unknown = judge(replace(made, arenas=made.arenas[:2]))
    assert unknown is not None and unknown.reason is Reason.UNKNOWN_PLACE
    shifted = [replace(r, extents=(replace(r.extents[0], offset=0),)) if r.place == DISK else r for r in made.residencies]
    overlap = judge(replace(made, residencies=tuple(shifted)))
    assert overlap is not None and overlap.reason is Reason.OVERLAP, "e lies on w, which is still on the disk"


def test_it_is_simulated_and_reported(machine: Machine) -> None:
    made = plan_with_disk()
    line = simulate(made, machine)
    assert [queue.name for queue in queues_of(made)] == ["compute", "h2d", "d2h", "disk_to_host", "host_to_disk"]
    assert line.busy(IN) == pytest.approx(2 * 0.25 + (256 + 512) / 100) and line.busy(OUT) == pytest.approx(512 / 50)
    assert moved_bytes_by_queue(made)[IN] == 256 + 512 and moved_bytes_by_queue(made)[OUT] == 512
    found = report(made, machine, line, bounds(made.graph, machine), plan_s=0.0, verified=True, spec="hand")
    facts = found.facts()
    assert (facts["disk_to_host_bytes"], facts["host_to_disk_bytes"]) == (768, 512)
    assert facts["host_to_disk_s"] == pytest.approx(10.24) and facts["limited_by"] == limit_name(found.limited_by)
    assert "disk → host" in render(found)
    with pytest.raises(UsageError, match="machine h100 has no link from disk to host"):
        simulate(made, load_machine("h100"))


def test_it_is_drawn_and_written(machine: Machine, tmp_path: Path) -> None:
    made = plan_with_disk()
    line = simulate(made, machine)
    svg = render_svg(made, line)
    assert "disk → host" in svg and "host → disk" in svg
    found = report(made, machine, line, bounds(made.graph, machine), plan_s=0.0, verified=True, spec="hand")
    assert json.dumps("disk → host") in render_html(made, line, None, found.facts())
    lanes = {e["args"]["name"] for e in chrome_trace(made, predicted=line)["traceEvents"] if e["name"] == "thread_name"}
    assert {"disk to host", "host to disk"} <= lanes
    assert describe(made, NodeId(1)) == "copy w from disk to host" and describe(made, NodeId(2)) == "reload w"
    assert "disk" in memgraph_text(made)
    save_plan(tmp_path / "plan.json", made, {})
    assert load_plan(tmp_path / "plan.json").memgraph.arenas == made.arenas


@pytest.mark.parametrize("dispatch", [run_serial, run_dynamic, run_static])
def test_every_dispatcher_runs_it_with_an_engine_a_link(dispatch: object) -> None:
    made = plan_with_disk()
    measured = dispatch(made, NullDevice(made))  # type: ignore[operator]
    assert measured.moved_bytes == moved_bytes_by_queue(made)
