"""The text of a plan: golden for the hand-made one, and different whenever a plan is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from einpage.memplan.graph import dump as text
from einpage.memplan.graph.dump import memgraph_text
from einpage.memplan.graph.memgraph import Edges, Free, MemGraph, ResidencyId
from einpage.memplan.machine.places import DEVICE, HOST
from hand_plan import hand_plan

NODES = """\
nodes 14
  0 gather k0 (r0) (r1) -> r3
  1 move host->device r2 -> r4 w
  2 compute k1 (r3) (r4) -> r5 workspace 1280+100 <- 0 1
  3 move device->host r3 -> r6 e <- 0
  4 free r3 <- 0 2 3
  5 compute k2 (r5) (r4) -> r7 <- 1 2
  6 free r4 <- 1 2 5
  7 move device->host r7 -> r8 b <- 5
  8 move host->device r6 -> r9 e <- 3 <~ 2
  9 free r6 <- 3 8
  10 compute k3 (r9) (r7) -> r10 <- 5 8 <~ 7
  11 move device->host r10 -> r11 c <- 10 <~ 9
  12 free r9 <- 8 10
  13 free r10 <- 10 11
start r0 r1 r2
end r0 r1 r2 r8 r11
"""


def test_the_hand_made_plan() -> None:
    written = memgraph_text(hand_plan())
    assert written.endswith(NODES)
    head = written.removesuffix(NODES).splitlines()
    assert head[0] == "memgraph hand fp32 budget 2048 host 2560 alignment 256"
    assert "  w (w) weight fp32 [64]" in head
    assert "  t2 w of w [0:64] fp32 weight" in head
    assert "  k1 task make a op 1 (t3) (t2) -> t4 inplace t3; 128 flops 1280 bytes 100 workspace" in head
    assert "  k0 gather make e op 0 (t0) (t1) -> t3; 0 flops 512 bytes 0 workspace" in head
    assert "  r5 device0 768+512 a" in head
    assert str(text.__doc__).split("\n\n")[2].strip() in written, "the example in the module's docstring"


def test_any_change_shows() -> None:
    plan = hand_plan()
    e = plan.edges
    changed: list[MemGraph] = [
        plan.with_arena(DEVICE, 4096),
        plan.with_arena(HOST, 4096),
        replace(plan, start=plan.start[:2]),
        replace(plan, end=plan.end[:2]),
        replace(plan, nodes=(*plan.nodes[:-1], Free(ResidencyId(9)))),
        replace(plan, edges=Edges(e.source, e.target, np.zeros_like(e.kind))),
        replace(plan, edges=Edges(e.source[:-1], e.target[:-1], e.kind[:-1])),
        replace(plan, graph=replace(plan.graph, ops=plan.graph.ops[:-1])),
    ]
    texts = {memgraph_text(p) for p in (plan, *changed)}
    assert len(texts) == len(changed) + 1
