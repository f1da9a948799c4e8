"""The residencies and nodes of a MemGraph as flat arrays: what it holds, and what a Recorder grows.

Read one at a time they are the values of memgraph.py. Nothing is checked here: what a plan file or a test says, right or wrong, reads as
it was written, for the judge to find.

    node         0        1        2              3
    kind         MOVE     MOVE     COMPUTE        FREE
    subject      source   source   task           residency
    result       target   target   creates        -1
    operand_row  0        0        0              2      2        operands of node n: operand_row[n] to operand_row[n + 1]
    tile_row     0        1        3                              residencies of operand o: reads[tile_row[o]:tile_row[o + 1]]
    other_node   1                                                node 1 copies other_source[0] to other_target[0] too
    beside_node           2                                       node 2 creates beside[0] too
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from einpage.einsum_front.base.columns import Bools, Columns, Int32s, Int64s, UInt8s, frozen, ragged
from einpage.einsum_front.graph.taskgraph import TaskId
from einpage.memplan.graph.memgraph import Compute, Copy, Extent, Free, HostGather, Move, Node, Residency, ResidencyId
from einpage.memplan.machine.places import DEVICE, HOST, Place

COMPUTE, GATHER, MOVE, FREE = range(4)
"""What Nodes.kind says."""
NOTHING = -1
"""The result of a Free."""


@dataclass(frozen=True, slots=True, eq=False)
class Residencies(Columns[Residency]):
    id: Int32s
    """[residency] its position, in a plan that is right."""
    tensor: Int32s
    """[residency]"""
    place: UInt8s
    """[residency] which of `places`"""
    extent_row: Int32s
    """[residency + 1] where its extents begin"""
    offset: Int64s
    """[extent]"""
    nbytes: Int64s
    """[extent]"""
    places: tuple[Place, ...]

    @staticmethod
    def of(found: Sequence[Residency]) -> Residencies:
        """`found` as columns, which it may be already."""
        if isinstance(found, Residencies):
            return found
        grown = ResidencyList()
        for r in found:
            grown.append(r.id, r.tensor, r.place, r.extents)
        return grown.finish()

    def __len__(self) -> int:
        return len(self.id)

    def and_more(self, more: Sequence[Residency]) -> Residencies:
        """These, and then `more`, all on the device or the host."""
        after = Residencies.of(more)
        assert after.places == self.places[: len(after.places)], "the device and the host are everybody's first places"
        pairs = ((getattr(self, name), getattr(after, name)) for name in ("id", "tensor", "place"))
        id_, tensor, place = (np.concatenate(pair) for pair in pairs)
        row = np.concatenate((self.extent_row, after.extent_row[1:] + self.extent_row[-1]))
        offset, nbytes = np.concatenate((self.offset, after.offset)), np.concatenate((self.nbytes, after.nbytes))
        return Residencies(id_, tensor, place, row, offset, nbytes, self.places)

    def at(self, place: Place) -> Bools:
        """[residency] whether it is there."""
        there: Bools = np.array([known == place for known in self.places], bool)[self.place]
        return there

    def entry(self, i: int) -> Residency:
        """Residency i, where 0 ≤ i < len(self)."""
        start, end = self.extent_row[i : i + 2].tolist()
        extents = tuple(Extent(self.offset[at].item(), self.nbytes[at].item()) for at in range(start, end))
        return Residency(self.id[i].item(), self.tensor[i].item(), self.places[self.place[i]], extents)

    def entries(self, start: int, end: int) -> Iterator[Residency]:
        """Residencies start ≤ i < end, decoded together."""
        rows: list[int] = self.extent_row[start : end + 1].tolist()
        first, last = rows[0], rows[-1]
        extents = tuple(map(Extent, self.offset[first:last].tolist(), self.nbytes[first:last].tolist()))
        ids, tensors, places = (column[start:end].tolist() for column in (self.id, self.tensor, self.place))
        for i, tensor, place, (a, b) in zip(ids, tensors, places, pairwise(rows), strict=True):
            yield Residency(i, tensor, self.places[place], extents[a - first : b - first])


class ResidencyList:
    """Grows, and becomes Residencies."""

    __slots__ = ("_extent_row", "_id", "_nbytes", "_offset", "_place", "_places", "tensor")

    def __init__(self) -> None:
        self.tensor = array("i")
        """[residency]"""
        self._id, self._place = array("i"), array("B")
        self._extent_row, self._offset, self._nbytes = array("i", (0,)), array("q"), array("q")
        self._places = [DEVICE, HOST]

    def __len__(self) -> int:
        return len(self._id)

    def append(self, number: int, tensor: int, place: Place, extents: Iterable[Extent]) -> None:
        """One more residency. `number` is the id it claims, which is not checked."""
        for extent in extents:
            self._offset.append(extent.offset)
            self._nbytes.append(extent.nbytes)
        self._add(number, tensor, place)

    def append_one(self, tensor: int, place: Place, offset: int, nbytes: int) -> ResidencyId:
        """The next residency, in one extent; answers its number."""
        number = ResidencyId(len(self._id))
        self._offset.append(offset)
        self._nbytes.append(nbytes)
        self._add(number, tensor, place)
        return number

    def _add(self, number: int, tensor: int, place: Place) -> None:
        self._id.append(number)
        self.tensor.append(tensor)
        if place is not DEVICE and place is not HOST and place not in self._places:
            self._places.append(place)
        self._place.append(0 if place is DEVICE else 1 if place is HOST else self._places.index(place))
        self._extent_row.append(len(self._offset))

    def finish(self) -> Residencies:
        """The residencies so far, as immutable columns."""
        id_, tensor, place, row, offset, nbytes = map(
            frozen, (self._id, self.tensor, self._place, self._extent_row, self._offset, self._nbytes)
        )
        return Residencies(id_, tensor, place, row, offset, nbytes, tuple(self._places))


@dataclass(frozen=True, slots=True, eq=False)
class Nodes(Columns[Node]):
    kind: UInt8s
    """[node] COMPUTE, GATHER, MOVE or FREE"""
    subject: Int32s
    """[node] the task it runs, the residency it copies or frees"""
    result: Int32s
    """[node] the residency it creates, or NOTHING"""
    operand_row: Int32s
    """[node + 1] where its operands begin"""
    tile_row: Int32s
    """[operand + 1] where its residencies begin"""
    reads: Int32s
    """[operand's residency]"""
    scratch_node: Int32s
    """[workspace] the node it is of, ascending"""
    scratch_offset: Int64s
    """[workspace]"""
    scratch_nbytes: Int64s
    """[workspace]"""
    other_node: Int32s
    """[copy beside the first of its move] the node that makes it, ascending"""
    other_source: Int32s
    """[copy beside the first of its move]"""
    other_target: Int32s
    """[copy beside the first of its move]"""
    beside_node: Int32s
    """[result beside the first of its task] the node that creates it, ascending"""
    beside: Int32s
    """[result beside the first of its task] the residency"""

    @staticmethod
    def of(found: Sequence[Node]) -> Nodes:
        """`found` as columns, which it may be already."""
        if isinstance(found, Nodes):
            return found
        grown = NodeList()
        for node in found:
            match node:
                case Compute(task, operands, creates, workspace, others):
                    grown.compute(task, operands, creates, None if workspace is None else (workspace.offset, workspace.nbytes), others)
                case HostGather(task, operands, creates):
                    grown.gather(task, operands, creates)
                case Move(source, target, others):
                    grown.move(source, target, others)
                case Free(residency):
                    grown.free(residency)
        return grown.finish()

    def __len__(self) -> int:
        return len(self.kind)

    def entry(self, i: int) -> Node:
        """Node i, where 0 ≤ i < len(self)."""
        if self.kind[i] == FREE:
            return Free(self.subject[i].item())
        return next(self.entries(i, i + 1))

    def entries(self, start: int, end: int) -> Iterator[Node]:
        """Nodes start ≤ i < end, decoded together."""
        kinds, subjects, results = (column[start:end].tolist() for column in (self.kind, self.subject, self.result))
        rows: list[int] = self.operand_row[start : end + 1].tolist()
        each: list[tuple[ResidencyId, ...]] = ragged(self.tile_row, self.reads, rows[0], rows[-1])
        low, high = np.searchsorted(self.scratch_node, (start, end))
        scratch = map(Extent, self.scratch_offset[low:high].tolist(), self.scratch_nbytes[low:high].tolist())
        workspace_by_node = dict(zip(self.scratch_node[low:high].tolist(), scratch, strict=True))
        others_by_node = self._others(start, end)
        beside_by_node = self._beside(start, end)
        for n, kind, subject, result, (a, b) in zip(range(start, end), kinds, subjects, results, pairwise(rows), strict=True):
            if kind == FREE:
                yield Free(subject)
            elif kind == MOVE:
                yield Move(subject, result, tuple(others_by_node.get(n, ())))
            elif kind == GATHER:
                yield HostGather(subject, tuple(each[a - rows[0] : b - rows[0]]), result)
            else:
                beside = tuple(beside_by_node.get(n, ()))
                yield Compute(subject, tuple(each[a - rows[0] : b - rows[0]]), result, workspace_by_node.get(n), beside)

    def copies(self) -> Copies:
        """What moves copy, in node order; of one move the first, then the others."""
        moves = np.flatnonzero(self.kind == MOVE).astype(np.int32)
        if not len(self.other_node):
            return Copies(moves, self.subject[moves], self.result[moves])
        node = np.concatenate((moves, self.other_node))
        order = np.argsort(node, kind="stable")
        source = np.concatenate((self.subject[moves], self.other_source))
        target = np.concatenate((self.result[moves], self.other_target))
        return Copies(node[order], source[order], target[order])

    def made(self) -> tuple[Int32s, Int32s]:
        """Every residency that a node creates: the nodes, ascending, and what they create."""
        copies, runs = self.copies(), np.flatnonzero(self.kind <= GATHER).astype(np.int32)
        node = np.concatenate((runs, self.beside_node, copies.node))
        order = np.argsort(node, kind="stable")
        return node[order], np.concatenate((self.result[runs], self.beside, copies.target))[order]

    def made_by_tasks(self) -> tuple[Int32s, Int32s]:
        """Of those, the ones that are results of tasks."""
        node, residency = self.made()
        runs = self.kind[node] <= GATHER
        return node[runs], residency[runs]

    def _beside(self, start: int, end: int) -> dict[int, list[ResidencyId]]:
        """By node from `start` to `end`, what a task creates beside its first result."""
        found: dict[int, list[ResidencyId]] = {}
        low, high = np.searchsorted(self.beside_node, (start, end))
        for node, residency in zip(self.beside_node[low:high].tolist(), self.beside[low:high].tolist(), strict=True):
            found.setdefault(node, []).append(residency)
        return found

    def _others(self, start: int, end: int) -> dict[int, list[Copy]]:
        """By node from `start` to `end`, what a move copies beside the first."""
        found: dict[int, list[Copy]] = {}
        low, high = np.searchsorted(self.other_node, (start, end))
        columns = (column[low:high].tolist() for column in (self.other_node, self.other_source, self.other_target))
        for node, source, target in zip(*columns, strict=True):
            found.setdefault(node, []).append((source, target))
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Copies:
    """One entry a tensor that a move copies."""

    node: Int32s
    """The move, ascending."""
    source: Int32s
    target: Int32s


class NodeList:
    """Grows, and becomes Nodes."""

    __slots__ = ("_beside", "_kind", "_operand_row", "_other", "_reads", "_result", "_scratch", "_subject", "_tile_row")

    def __init__(self) -> None:
        self._kind, self._subject, self._result = array("B"), array("i"), array("i")
        self._operand_row, self._tile_row, self._reads = array("i", (0,)), array("i", (0,)), array("i")
        self._scratch = array("i"), array("q"), array("q")
        self._other = array("i"), array("i"), array("i")
        self._beside = array("i"), array("i")

    def __len__(self) -> int:
        return len(self._kind)

    def compute(
        self,
        task: TaskId,
        operands: Iterable[Iterable[ResidencyId]],
        creates: ResidencyId,
        workspace: tuple[int, int] | None,
        others: Iterable[ResidencyId] = (),
    ) -> None:
        """`workspace` is (offset, bytes); `others` are residencies of results beside the first."""
        for other in others:
            for column, value in zip(self._beside, (len(self), other), strict=True):
                column.append(value)
        if workspace is not None:
            for column, value in zip(self._scratch, (len(self), *workspace), strict=True):
                column.append(value)
        self._read(operands)
        self._add(COMPUTE, task, creates)

    def gather(self, task: TaskId, operands: Iterable[Iterable[ResidencyId]], creates: ResidencyId) -> None:
        """Append a HostGather: `operands` are the residencies of each operand's tiles."""
        self._read(operands)
        self._add(GATHER, task, creates)

    def move(self, source: ResidencyId, target: ResidencyId, others: Iterable[Copy] = ()) -> None:
        """Append a Move."""
        for copy in others:
            for column, value in zip(self._other, (len(self), *copy), strict=True):
                column.append(value)
        self._add(MOVE, source, target)

    def free(self, residency: ResidencyId) -> None:
        """Append a Free."""
        self._add(FREE, residency, NOTHING)

    def _read(self, operands: Iterable[Iterable[ResidencyId]]) -> None:
        for operand in operands:
            self._reads.extend(operand)
            self._tile_row.append(len(self._reads))

    def _add(self, kind: int, subject: int, result: int) -> None:
        self._kind.append(kind)
        self._subject.append(subject)
        self._result.append(result)
        self._operand_row.append(len(self._tile_row) - 1)

    def finish(self) -> Nodes:
        """The nodes so far, as immutable columns."""
        read = self._operand_row, self._tile_row, self._reads
        return Nodes(*map(frozen, (self._kind, self._subject, self._result, *read, *self._scratch, *self._other, *self._beside)))
