"""Columns read as the values they were made of: residencies and nodes of a MemGraph, tensors and tasks of a TaskGraph."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from einpage.einsum_front.base.columns import CHUNK_ENTRIES
from einpage.einsum_front.base.units import Nbytes
from einpage.einsum_front.graph.packed import packed
from einpage.einsum_front.graph.taskgraph import TaskId, TensorId
from einpage.memplan.graph.memgraph import Compute, Extent, Free, HostGather, Move, Offset, Residency, ResidencyId
from einpage.memplan.graph.packed import Nodes, Residencies
from einpage.memplan.machine.places import DEVICE, HOST, Place, PlaceKind
from strategies import random_graph

R = ResidencyId


def extent(offset: int, nbytes: int) -> Extent:
    return Extent(Offset(offset), Nbytes(nbytes))


RESIDENCIES = (
    Residency(R(0), TensorId(4), HOST, (extent(0, 12),)),
    Residency(R(7), TensorId(-1), DEVICE, ()),
    Residency(R(2), TensorId(5), Place(PlaceKind.DISK, 3), (extent(256, 4), extent(2**40, 1))),
    Residency(R(3), TensorId(5), DEVICE, (extent(-256, 100),)),
)
"""Among them such as no judge lets pass: they must be there to be found."""
NODES = (
    Move(R(0), R(1)),
    Compute(TaskId(3), ((R(1), R(2)), (), (R(1),)), R(3), extent(512, 64)),
    Free(R(1)),
    HostGather(TaskId(4), ((R(0),), (R(0),)), R(4)),
    Compute(TaskId(5), (), R(-1), None),
    Free(R(3)),
    Move(R(3), R(4), ((R(5), R(6)), (R(-7), R(8)))),
    Move(R(3), R(4)),
    Move(R(1), R(2), ((R(9), R(0)),)),
)


@pytest.mark.parametrize(
    ("columns", "values"), [(Residencies.of(RESIDENCIES), RESIDENCIES), (Nodes.of(NODES), NODES)], ids=["residencies", "nodes"]
)
def test_columns_read_as_a_tuple(columns: Any, values: tuple[Any, ...]) -> None:
    n = len(values)
    assert len(columns) == n and tuple(columns) == values
    assert [columns[i] for i in range(-n, n)] == [values[i] for i in range(-n, n)]
    assert columns[1:3] == values[1:3] and columns[::-2] == values[::-2] and columns[3:1] == ()
    assert columns == values and values == columns and hash(columns) == hash(values)
    assert columns != values[:-1] and columns != (*values[:-1], values[0]) and columns != list(values)
    assert type(columns).of(columns) is columns and type(columns).of(tuple(columns)) == columns
    for outside in (n, -n - 1):
        with pytest.raises(IndexError):
            columns[outside]


def test_nobody_writes_to_columns() -> None:
    with pytest.raises(ValueError, match="read-only"):
        Nodes.of(NODES).kind[0] = 1


def test_entries_beyond_one_reading_are_there() -> None:
    many = NODES * (CHUNK_ENTRIES // 2)
    assert tuple(Nodes.of(many)) == many and Nodes.of(many)[CHUNK_ENTRIES + 1] == many[CHUNK_ENTRIES + 1]


@pytest.mark.parametrize("columns", [Residencies.of(()), Nodes.of(())], ids=["residencies", "nodes"])
def test_no_entries(columns: Any) -> None:
    assert len(columns) == 0 and tuple(columns) == () and columns[:] == ()


@pytest.mark.parametrize("seed", range(12))
def test_a_flat_graph_is_the_graph(seed: int) -> None:
    graph = random_graph(seed)
    named = replace(graph.tensors[0], name="a name of its own")
    timed = replace(graph.tasks[-1], seconds=0.5, job=None)
    graph = replace(graph, tensors=(named, *graph.tensors[1:]), tasks=(*graph.tasks[:-1], timed))
    assert packed(graph) == graph and packed(graph).tensors[0].name == "a name of its own"
    assert [packed(graph).tasks[i] for i in range(len(graph.tasks))] == list(graph.tasks)
