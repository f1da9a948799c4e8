"""The picture of a plan: every residency is in it, rectangles stay apart, and no name of a user's gets out of its place."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from html.parser import HTMLParser
from itertools import pairwise
from math import nan
from xml.etree import ElementTree

import numpy as np
import pytest
from numpy.typing import NDArray

from einpage.exec.picture.timeline import ArenaRect, NodeClock, Picture, picture
from einpage.exec.picture.timeline_html import figure, render_html
from einpage.exec.picture.timeline_svg import render_svg
from einpage.memplan.graph.memgraph import Extent, Free, MemGraph, Nbytes, Offset
from einpage.memplan.graph.simulate import simulate
from einpage.memplan.machine.places import PlaceKind, Queue
from einpage.memplan.plan import plan as make_plan
from hand_plan import hand_plan
from strategies import a_machine
from test_memplan_several_results import two_results

NASTY = "</script><img src=x onerror=alert(1)> \"q\" 'a' & {{data}} <!-- \u2028 é"


@dataclass(frozen=True, slots=True, eq=False)
class Times:
    start_s: NDArray[np.float64]
    finish_s: NDArray[np.float64]


def as_soon_as_possible(memgraph: MemGraph) -> Times:
    """Every node starts when its edges and its queue allow; a node on an engine takes 1 to 3 ms, a Free takes none."""
    start, finish = np.zeros(len(memgraph.nodes)), np.zeros(len(memgraph.nodes))
    busy_until: dict[Queue, float] = {}
    for n in range(len(memgraph.nodes)):
        queue = memgraph.queue(n)
        waits = [finish[s] for s, t in zip(memgraph.edges.source, memgraph.edges.target, strict=True) if t == n]
        start[n] = max([*waits, busy_until.get(queue, 0.0)])
        finish[n] = start[n]
        if queue is not None:
            busy_until[queue] = finish[n] = start[n] + 1e-3 * (1 + n % 3)
    return Times(start, finish)


def overlap(seen: Picture, clock: NodeClock) -> tuple[ArenaRect, ArenaRect] | None:
    """Two rectangles that share an instant and a byte, or None."""
    for i, a in enumerate(seen.rects):
        for b in seen.rects[:i]:
            (a0, a1), (b0, b1) = clock.span(a), clock.span(b)
            if a0 < b1 and b0 < a1 and a.offset < b.offset + b.nbytes and b.offset < a.offset + a.nbytes:
                return a, b
    return None


class Page(HTMLParser):
    """What a browser would see: the elements, their attributes, the text of each, the embedded data."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: dict[str, str] = {}
        self.scripts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        tag = self.tags[-1][0] if self.tags else ""
        self.text[tag] = self.text.get(tag, "") + data
        if tag == "script":
            self.scripts[-1] += data

    @property
    def data(self) -> dict[str, dict[str, list[int]]]:
        return json.loads(self.scripts[0])


def renamed(memgraph: MemGraph, name: str) -> MemGraph:
    """The same plan with `name` as every tensor's, every task's and the graph's name."""
    graph = memgraph.graph
    tensors = tuple(replace(t, name=f"{name}{t.id}") for t in graph.tensors)
    tasks = tuple(replace(t, name=f"{name}#{t.id}") for t in graph.tasks)
    return replace(memgraph, graph=replace(graph, name=name, tensors=tensors, tasks=tasks))


def test_page_holds_every_residency_of_the_device() -> None:
    plan = hand_plan()
    columns = Page(render_html(plan, as_soon_as_possible(plan))).data["rects"]
    on_device = {r.id: r for r in plan.residencies if r.place.kind is PlaceKind.DEVICE}
    assert sorted(r for r in columns["residency"] if r is not None) == sorted(on_device)
    assert columns["residency"].count(None) == 1
    for residency, offset, nbytes in zip(columns["residency"], columns["offset"], columns["nbytes"], strict=True):
        if residency is not None:
            assert on_device[residency].extents == (Extent(Offset(offset), Nbytes(nbytes)),)


def test_each_result_of_a_task_begins_with_it_and_ends_what_it_is_written_over() -> None:
    plan = make_plan(two_results(), a_machine(), 8192)
    seen = picture(plan, simulate(plan, a_machine()))
    bytes_by_name = {r.name: (r.start, r.end, r.offset) for r in seen.rects}
    for result, over in (("m2", "m"), ("w2", "w")):
        assert bytes_by_name[over][1:] == (bytes_by_name["m2"][0], bytes_by_name[result][2])
        assert bytes_by_name[result][0] == bytes_by_name["m2"][0]
    assert overlap(seen, seen.clocks[0]) is None


def test_page_holds_every_node_of_an_engine_under_both_clocks() -> None:
    plan = hand_plan()
    times = as_soon_as_possible(plan)
    data = Page(render_html(plan, times, Times(times.start_s * 2, times.finish_s * 2))).data
    assert data["bars"]["node"] == [n for n, node in enumerate(plan.nodes) if not isinstance(node, Free)]
    predicted, measured = data["clocks"]
    assert predicted["finish"] == pytest.approx((times.finish_s * 1e6).tolist())
    assert measured["finish"] == pytest.approx((times.finish_s * 2e6).tolist())
    assert [data["names"][i] for i in data["bars"]["name"]][:4] == ["make e", "w", "make a", "e"]
    assert data["bars"]["what"][:4] == ["gather", "reload", "compute", "offload"]


def test_rectangles_follow_the_drawing_of_the_hand_plan() -> None:
    seen = picture(hand_plan(), as_soon_as_possible(hand_plan()))
    ranges = {(r.name, r.offset): (r.start, r.end, r.reads) for r in seen.rects}
    assert ranges == {
        ("e", 0): (0, 4, (2, 3)),
        ("w", 512): (1, 6, (2, 5)),
        ("a", 768): (2, 5, (5,)),
        ("b", 768): (5, 10, (7, 10)),
        ("e", 1280): (8, 12, (10,)),
        ("c", 768): (10, 13, (11,)),
        ("workspace of make a", 1280): (2, 2, ()),
    }


def test_rectangles_of_a_valid_plan_stay_apart_and_inside() -> None:
    plan = hand_plan()
    seen = picture(plan, as_soon_as_possible(plan))
    assert overlap(seen, seen.clocks[0]) is None
    for rect in seen.rects:
        start, end = seen.clocks[0].span(rect)
        assert 0 <= start < end <= seen.clocks[0].horizon_s
        assert 0 <= rect.offset < rect.offset + rect.nbytes <= plan.budget_bytes


@pytest.mark.parametrize("offset", [300, 512, 900, 1279])
def test_a_moved_residency_is_seen_to_overlap(offset: int) -> None:
    plan = hand_plan()
    moved = replace(plan.residencies[9], extents=(Extent(Offset(offset), Nbytes(512)),))
    wrong = replace(plan, residencies=(*plan.residencies[:9], moved, *plan.residencies[10:]))
    seen = picture(wrong, as_soon_as_possible(wrong))
    assert overlap(seen, seen.clocks[0]) is not None


def test_a_takeover_ends_what_it_takes_at_its_own_start() -> None:
    plan = hand_plan()
    seen = picture(plan, as_soon_as_possible(plan))
    chain = sorted((seen.clocks[0].span(r) for r in seen.rects if r.offset == 768), key=lambda span: span[0])
    assert len(chain) == 3
    assert all(before[1] == after[0] for before, after in pairwise(chain))


def test_nodes_that_nobody_timed_run_as_soon_as_their_edges_allow() -> None:
    plan = hand_plan()
    whole = as_soon_as_possible(plan)
    holes = Times(whole.start_s.copy(), whole.finish_s.copy())
    frees = [n for n, node in enumerate(plan.nodes) if isinstance(node, Free)]
    holes.start_s[frees] = holes.finish_s[frees] = nan
    filled = picture(plan, whole, holes).clocks[1]
    np.testing.assert_array_equal(filled.start_s, whole.start_s)
    np.testing.assert_array_equal(filled.finish_s, whole.finish_s)


def test_page_loads_nothing() -> None:
    page = Page(render_html(hand_plan(), as_soon_as_possible(hand_plan())))
    assert not [(tag, attrs) for tag, attrs in page.tags if {"src", "href", "action", "data"} & set(attrs)]
    assert not {"link", "img", "iframe", "object", "embed", "base", "form"} & {tag for tag, _ in page.tags}
    policy = [a["content"] for _, a in page.tags if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy == ["default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"]


def test_names_cannot_leave_their_places() -> None:
    plan = hand_plan()
    times = as_soon_as_possible(plan)
    plain, nasty = Page(render_html(plan, times, None, {"a": "b"})), Page(render_html(renamed(plan, NASTY), times, None, {NASTY: NASTY}))
    assert nasty.tags == plain.tags
    assert nasty.scripts[1:] == plain.scripts[1:]
    assert not set("<>&") & set(nasty.scripts[0])
    assert f"{NASTY}3" in nasty.data["names"]
    assert NASTY in nasty.text["title"]
    assert nasty.text["dd"].strip() == NASTY


def test_svg_is_well_formed_and_escaped() -> None:
    plan = hand_plan()
    times = as_soon_as_possible(plan)
    root = ElementTree.fromstring(render_svg(renamed(plan, NASTY), times, times))
    words = [element.text or "" for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert any(NASTY in w for w in words)
    assert words.count("measured") == 3
    assert {e.tag.partition("}")[2] for e in root.iter()} <= {"svg", "title", "style", "text", "rect", "line", "path"}


def test_svg_draws_every_rectangle_once() -> None:
    plan = hand_plan()
    root = ElementTree.fromstring(render_svg(plan, as_soon_as_possible(plan)))
    drawn = dict.fromkeys(("arriving", "there", "bar"), 0)
    for path in root.iter("{http://www.w3.org/2000/svg}path"):
        drawn[path.attrib["class"]] += path.attrib["d"].count("M")
    # `a` is taken over as soon as it is written, so it is only ever arriving; a workspace never arrives.
    assert drawn == {"arriving": 6, "there": 6, "bar": 9}


def test_figures_get_their_units() -> None:
    assert figure("budget_bytes", 64 * 2**20) == "64MiB"
    assert figure("bytes_bound_h2d", 1536) == "1.5KiB"
    assert figure("makespan_s", 0.01234) == "12.3 ms"
    assert figure("bound_ratio", 1.03118) == "1.031"
    assert figure("verified", True) == "yes"
    assert figure("nodes", 12345) == "12,345"
    assert figure("machine", "h100") == "h100"
