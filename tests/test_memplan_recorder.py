"""The recorder's edges: sorted, each once, forward."""

from __future__ import annotations

import pytest

from einpage.memplan.graph.memgraph import EdgeKind
from einpage.memplan.graph.recorder import EdgeList


def test_edges_are_sorted_and_data_wins() -> None:
    edges = EdgeList()
    edges.memory(2, 5)
    edges.data(1, 5)
    edges.data(2, 5)
    edges.memory(0, 3)
    edges.memory(-1, 4)
    edges.memory(0, 3)
    flat = edges.finish()
    got = list(zip(flat.source.tolist(), flat.target.tolist(), flat.kind.tolist(), strict=True))
    assert got == [(0, 3, EdgeKind.MEMORY), (1, 5, EdgeKind.DATA), (2, 5, EdgeKind.DATA)]
    assert [a.dtype.name for a in (flat.source, flat.target, flat.kind)] == ["int32", "int32", "uint8"]


def test_edges_keep_large_node_numbers_apart() -> None:
    edges = EdgeList()
    edges.data(2**31 - 2, 2**31 - 1)
    flat = edges.finish()
    assert (int(flat.source[0]), int(flat.target[0]), int(flat.kind[0])) == (2**31 - 2, 2**31 - 1, EdgeKind.DATA)


def test_an_edge_that_points_backwards_is_our_bug() -> None:
    edges = EdgeList()
    edges.data(3, 3)
    with pytest.raises(AssertionError, match="backwards"):
        edges.finish()
