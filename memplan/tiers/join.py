"""A plan of the device and one of the tier behind it become one MemGraph with three places.

In: a plan of the device, whose host holds everything; the TierTrace of its copies; a plan of that trace, in which the device is the host
and the host a disk. Out: both as one plan. Nodes are those of the tier's plan in their order, each task of which is a copy of the device's
plan and is preceded by what that plan does before it; so edges point forward, and first-in-first-out queues end. The host holds, from
offset 0 on:

    | inputs | outputs |        what the tier's plan places: on its way, spilled, resident          |   host budget
"""

from __future__ import annotations

from einpage.einsum_front.base.units import Nbytes, aligned
from einpage.einsum_front.graph.taskgraph import Kind, TaskGraph, TensorId
from einpage.memplan.graph.arena import MOST_BYTES, Arena, Piece
from einpage.memplan.graph.memgraph import Compute, Free, HostGather, MemGraph, Move, ResidencyId
from einpage.memplan.graph.recorder import Beside, Recorder
from einpage.memplan.machine.places import DEVICE, DISK, HOST, SECTOR, Place
from einpage.memplan.tiers.trace import CopyAt, TierTrace, is_pinned, sector_bytes_of


def pinned_offsets(graph: TaskGraph, plan: MemGraph) -> dict[TensorId, int]:
    """Where the host has inputs and outputs throughout, each in sectors of its own, by tensor."""
    given = [plan.residencies[r].tensor for r in plan.start if plan.residencies[r].place == HOST]
    pinned = [t for t in given if is_pinned(graph.tensors[t].kind)]
    pinned += [t.id for t in graph.tensors if t.kind is Kind.OUTPUT]
    found, top = {}, 0
    for t in pinned:
        found[t] = top
        top += aligned(graph.tensors[t].nbytes, SECTOR)
    return found


def pinned_bytes(graph: TaskGraph, plan: MemGraph) -> Nbytes:
    """Of the host, what inputs and outputs have."""
    return Nbytes(sum(aligned(graph.tensors[t].nbytes, SECTOR) for t in pinned_offsets(graph, plan)))


def joined(device: MemGraph, trace: TierTrace, tier: MemGraph, host_bytes: int) -> MemGraph:
    """The plan that `device` and `tier`, a plan of its `trace`, make together, in a host arena of `host_bytes`."""
    return _Joiner(device, trace, tier, host_bytes).run()


class _Joiner:
    def __init__(self, device: MemGraph, trace: TierTrace, tier: MemGraph, host_bytes: int) -> None:
        self.graph, self.device, self.trace, self.tier, self.host_bytes = device.graph, device, trace, tier, host_bytes
        self.pinned_at, self.base = pinned_offsets(device.graph, device), pinned_bytes(device.graph, device)
        self.recorder = Recorder(device.graph)
        self.arenas = {
            DEVICE: Arena(device.budget_bytes, device.alignment),
            HOST: Arena(host_bytes, SECTOR),
            DISK: Arena(MOST_BYTES, SECTOR),
        }
        self.device_nodes, self.tier_nodes = tuple(device.nodes), tuple(tier.nodes)
        self.device_residencies, self.tier_residencies = tuple(device.residencies), tuple(tier.residencies)
        self.of_device: dict[ResidencyId, ResidencyId] = {}
        """By residency of the device's plan: those on the device, and the pinned ones."""
        self.of_tier: dict[ResidencyId, ResidencyId] = {}
        """By residency of the tier's plan: those of tensors that are more than a sector nobody reads."""
        self.on_host: dict[TensorId, ResidencyId] = {}
        """By tensor of the trace, what there is of it on the host just now."""
        self.on_disk: dict[TensorId, ResidencyId] = {}
        """Weights."""
        self.live: dict[int, ResidencyId] = {}
        """By offset on the device."""
        self.pinned: dict[TensorId, ResidencyId] = {}
        self.rows = {here: t for t, here in trace.gathered.items()}
        self.at = (0, 0)
        """The next copy of the device's plan, or the next of its nodes."""

    def run(self) -> MemGraph:
        start = self._start()
        for number, node in enumerate(self.tier_nodes):
            match node:
                case Compute(task, _, creates) | HostGather(task, _, creates):
                    event = self.trace.events[task]
                    if event is None:
                        following = self.trace.events[task + 1]
                        assert following is not None, f"node {number} of the tier gathers what nobody reads"
                        self._gather(following, creates)
                    else:
                        self._before(event)
                        self._copy(event, creates)
                case Move():
                    for source, target in node.copies:
                        self._tier_move(source, target)
                case Free(residency):
                    self._tier_free(residency)
        self._before((len(self.device_nodes), 0))
        return self._finished(start)

    # What is there at the start, and at the end.

    def _start(self) -> tuple[ResidencyId, ...]:
        found = []
        for r in self.device.start:
            residency = self.device_residencies[r]
            t, offset = residency.tensor, int(residency.extents[0].offset)
            if residency.place == DEVICE:
                self._allocate(DEVICE, offset, self.graph.tensors[t].nbytes, t)
                self.of_device[r] = self.live[offset] = self.recorder.residency(t, DEVICE, offset)
            elif is_pinned(self.graph.tensors[t].kind):
                self.of_device[r] = self.pinned[t] = self.recorder.residency(t, HOST, self.pinned_at[t])
            else:
                continue
            found.append(self.of_device[r])
        for r in self.tier.start:
            place, t, offset, _ = self._tier_at(r)
            self.of_tier[r] = self.recorder.residency(t, place, offset)
            (self.on_host if place == HOST else self.on_disk)[t] = self.of_tier[r]
            self._allocate_sectors(place, t, offset)
            found.append(self.of_tier[r])
        return tuple(found)

    def _finished(self, start: tuple[ResidencyId, ...]) -> MemGraph:
        outputs = [self.pinned[t.id] for t in self.graph.tensors if t.kind is Kind.OUTPUT]
        on_device = [self.of_device[r] for r in self.device.end if self.device_residencies[r].place == DEVICE]
        on_host = [self.of_tier[r] for r in self.tier.end if self.tier_residencies[r].place == DEVICE]
        return MemGraph(
            graph=self.graph,
            arenas=((DEVICE, self.device.budget_bytes), (HOST, Nbytes(self.host_bytes)), (DISK, self.tier.host_bytes)),
            residencies=self.recorder.residencies.finish(),
            nodes=self.recorder.nodes.finish(),
            edges=self.recorder.edges.finish(),
            start=start,
            end=(*outputs, *on_device, *on_host),
            alignment=self.device.alignment,
            loops=self.device.loops,
        )

    # The tier's nodes.

    def _tier_at(self, r: ResidencyId) -> tuple[Place, TensorId, int, TensorId]:
        """Of a residency of the tier's plan: the place, the tensor, the offset, and the tensor of the trace."""
        residency = self.tier_residencies[r]
        here = residency.tensor
        t = self.rows.get(here, here)
        skew = self.trace.skew[t] if here == t else 0
        offset = residency.extents[0].offset + skew
        return (HOST, t, self.base + offset, here) if residency.place == DEVICE else (DISK, t, offset, here)

    def _tier_move(self, source: ResidencyId, target: ResidencyId) -> None:
        place, t, offset, here = self._tier_at(target)
        self.of_tier[target] = self.recorder.move(self.of_tier[source], place, offset, self._allocate_sectors(place, t, offset))
        if place == HOST:
            self.on_host[here] = self.of_tier[target]

    def _tier_free(self, r: ResidencyId) -> None:
        if r not in self.of_tier:
            return
        place, _, offset, here = self._tier_at(r)
        self.arenas[place].release(offset // SECTOR * SECTOR, self.recorder.free(self.of_tier[r]))
        if place == HOST:
            del self.on_host[here]

    def _gather(self, event: CopyAt, creates: ResidencyId) -> None:
        """Rows come from the disk to the host."""
        node = self.device_nodes[event[0]]
        assert isinstance(node, HostGather)
        place, t, offset, here = self._tier_at(creates)
        after = self._allocate_sectors(place, t, offset)
        self.of_tier[creates] = self.on_host[here] = self.recorder.gather(node.task, self._operands(node), t, place, offset, after)

    def _operands(self, node: HostGather) -> tuple[tuple[ResidencyId, ...], ...]:
        return tuple(tuple(self._gathered_from(self.device_residencies[r].tensor) for r in operand) for operand in node.operands)

    def _gathered_from(self, t: TensorId) -> ResidencyId:
        return next(there[t] for there in (self.pinned, self.on_disk, self.on_host) if t in there)

    # The device's nodes.

    def _before(self, event: CopyAt) -> None:
        """What the device's plan does before a copy."""
        while self.at < event:
            n, i = self.at
            match self.device_nodes[n]:
                case Compute() as compute:
                    self._compute(compute)
                case Free(residency):
                    self._free(residency)
                case Move() as move:
                    self._pinned_copy(*move.copies[i])
                    self._next(len(move.copies))
                    continue
                case HostGather():
                    raise AssertionError(f"node {n} of the device's plan is no copy of its trace")
            self.at = (n + 1, 0)

    def _next(self, copies: int) -> None:
        n, i = self.at
        self.at = (n, i + 1) if i + 1 < copies else (n + 1, 0)

    def _copy(self, event: CopyAt, creates: ResidencyId) -> None:
        """A copy that the trace has: from where the tier has it, or to where the tier wants it."""
        node = self.device_nodes[event[0]]
        if isinstance(node, HostGather):
            t = self.device_residencies[node.creates].tensor
            here = self.trace.gathered.get(t)
            offset, after = self._on_device(node.creates)
            if here is None:
                made = self.recorder.gather(node.task, self._operands(node), t, DEVICE, offset, after)
            else:
                made = self.recorder.move(self.on_host[here], DEVICE, offset, after)
            self._made(node.creates, offset, made)
            self._next(1)
            return
        assert isinstance(node, Move)
        source, target = node.copies[event[1]]
        if self.device_residencies[target].place == DEVICE:
            offset, after = self._on_device(target)
            self._made(target, offset, self.recorder.move(self.on_host[self.device_residencies[target].tensor], DEVICE, offset, after))
        else:
            place, t, offset, here = self._tier_at(creates)
            after = self._allocate_sectors(place, t, offset)
            self.of_tier[creates] = self.on_host[here] = self.recorder.move(self.of_device[source], place, offset, after)
        self._next(len(node.copies))

    def _pinned_copy(self, source: ResidencyId, target: ResidencyId) -> None:
        t = self.device_residencies[target].tensor
        if self.device_residencies[target].place == DEVICE:
            offset, after = self._on_device(target)
            self._made(target, offset, self.recorder.move(self.pinned[t], DEVICE, offset, after))
        else:
            self.of_device[target] = self.pinned[t] = self.recorder.move(self.of_device[source], HOST, self.pinned_at[t], ())

    def _compute(self, node: Compute) -> None:
        created = [self.device_residencies[r] for r in (node.creates, *node.others)]
        results = [Beside(r.tensor, r.extents[0].offset, self.live.get(r.extents[0].offset)) for r in created]
        after: list[Piece] = []
        for one in results:
            if one.donated is None:
                after += self._allocate(DEVICE, one.offset, self.graph.tensors[one.tensor].nbytes, one.tensor)
        workspace = None
        if node.workspace is not None:
            workspace = (int(node.workspace.offset), int(node.workspace.nbytes))
            after += self._allocate(DEVICE, *workspace, TensorId(-1))
        operands = tuple(tuple(self.of_device[r] for r in operand) for operand in node.operands)
        first, *others = results
        number, made = self.recorder.compute(
            node.task, operands, first.tensor, DEVICE, first.offset, after, first.donated, workspace, others
        )
        if workspace is not None:
            self.arenas[DEVICE].release(workspace[0], number)
        for n, (r, one) in enumerate(zip((node.creates, *node.others), results, strict=True)):
            self._made(r, one.offset, ResidencyId(made + n))

    def _free(self, r: ResidencyId) -> None:
        residency = self.device_residencies[r]
        if residency.place != DEVICE:
            return
        offset = residency.extents[0].offset
        self.arenas[DEVICE].release(offset, self.recorder.free(self.of_device[r]))
        del self.live[offset]

    def _on_device(self, r: ResidencyId) -> tuple[int, list[Piece]]:
        """The offset that the device's plan has for a residency, and the last users of its bytes."""
        residency = self.device_residencies[r]
        offset = residency.extents[0].offset
        return offset, self._allocate(DEVICE, offset, self.graph.tensors[residency.tensor].nbytes, residency.tensor)

    def _made(self, r: ResidencyId, offset: int, made: ResidencyId) -> None:
        self.of_device[r] = self.live[offset] = made

    # Bytes.

    def _allocate(self, place: Place, offset: int, nbytes: int, t: TensorId) -> list[Piece]:
        unit = self.device.alignment if place == DEVICE else SECTOR
        return self.arenas[place].allocate_at(offset, aligned(nbytes, unit), t)

    def _allocate_sectors(self, place: Place, t: TensorId, offset: int) -> list[Piece]:
        skew = offset % SECTOR
        return self._allocate(place, offset - skew, sector_bytes_of(self.graph.tensors[t].nbytes, skew), t)
