"""The judge: proves that a MemGraph is right in every order its edges allow, or names what is wrong.

In: a MemGraph. Out: None, or a Fault with a reason and two nodes. It shares no code with the planner and knows nothing of how it works.

A residency lives from the node that creates it to its end: its Free, or the Compute that takes its bytes over. What is proved is

    creation ──► every read ──► end ──► creation of whoever uses one of these bytes next         (each arrow: a path of edges)

so any two accesses to one byte, of which one writes, are ordered. Edges point forward, so the stored order is one valid order; it
is enough to walk it once and to ask, for each byte, about the last owner: earlier ones follow by the arrows between.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from einpage.einsum_front.taskgraph import HOST_AT_START, Kind
from einpage.memplan.fault import Fault, Pair, Reason, fault_of
from einpage.memplan.memgraph import Compute, Free, HostGather, MemGraph, Move, NodeId, PlaceKind
from einpage.memplan.owners import Owners
from einpage.memplan.paths import Bools, Ints, first_of_wrong_kind, first_unordered

ALWAYS = -1
"""Stands for the creator of what is there at the start."""
NEVER = np.iinfo(np.int64).max
"""Stands for the end of what is still there at the end."""


@dataclass(slots=True)
class Flat:
    """A MemGraph as flat arrays, one entry a residency unless said otherwise."""

    plan: MemGraph
    tensor: list[int]
    offset: list[int]
    stop: list[int]
    on_device: list[bool]
    begin: list[int] = field(default_factory=list)
    """Creating node, or ALWAYS."""
    end: list[int] = field(default_factory=list)
    """Freeing or taking node, or NEVER."""
    taken: list[bool] = field(default_factory=list)
    """Whether `end` is a takeover."""
    reads: list[tuple[int, int]] = field(default_factory=list)
    """(node, residency) of every read, in node order."""


def judge(memgraph: MemGraph) -> Fault | None:
    """The first thing wrong with a plan, or None: then every order that respects its edges is correct."""
    fault = _edges(memgraph) or _references(memgraph) or _extents(memgraph) or _tasks(memgraph)
    if fault is not None:
        return fault
    flat = Flat(
        memgraph,
        tensor=[r.tensor for r in memgraph.residencies],
        offset=[r.extents[0].offset for r in memgraph.residencies],
        stop=[r.extents[0].stop for r in memgraph.residencies],
        on_device=[r.place.kind is PlaceKind.DEVICE for r in memgraph.residencies],
    )
    return (
        _places(flat)
        or _lives(flat)
        or _takeovers(flat)
        or _ends(flat)
        or _reads_in_order(flat)
        or _bytes_in_order(flat)
        or _no_clean_offload(flat)
        or _outputs(flat)
        or _loop(flat)
        or _edge_kinds(flat)
    )


def _named(flat: Flat, residency: int) -> str:
    place = "device" if flat.on_device[residency] else "host"
    return f"{flat.plan.graph.tensors[flat.tensor[residency]].name} (residency {residency}, {place} {flat.offset[residency]})"


def _edges(plan: MemGraph) -> Fault | None:
    """Edges lie in range, point forward, are sorted, and none stands there twice."""
    source, target, kind = plan.edges.source.astype(np.int64), plan.edges.target.astype(np.int64), plan.edges.kind
    if not len(source) == len(target) == len(kind):
        return fault_of(Reason.EDGE_OUT_OF_RANGE, None, None, f"{len(source)} sources, {len(target)} targets, {len(kind)} kinds")
    key = target * len(plan.nodes) + source
    checks = (
        (Reason.EDGE_OUT_OF_RANGE, (source < 0) | (target < 0) | (source >= len(plan.nodes)) | (target >= len(plan.nodes)) | (kind > 1)),
        (Reason.EDGE_BACKWARD, source >= target),
        (Reason.EDGES_UNSORTED, np.diff(key, prepend=-1) <= 0),
    )
    for reason, wrong in checks:
        if wrong.any():
            at = int(np.argmax(wrong))
            return fault_of(reason, source[at], target[at], f"edge {at}, {source[at]} -> {target[at]}")
    return None


def _references(plan: MemGraph) -> Fault | None:
    """Every residency, tensor and task that is named exists."""
    residencies, tasks = len(plan.residencies), len(plan.graph.tasks)
    for i, r in enumerate(plan.residencies):
        if r.id != i or not 0 <= r.tensor < len(plan.graph.tensors):
            return fault_of(Reason.BAD_REFERENCE, None, None, f"residency {i} is numbered {r.id} and holds tensor {r.tensor}")
    for listed in (*plan.start, *plan.end):
        if not 0 <= listed < residencies:
            return fault_of(Reason.BAD_REFERENCE, None, None, f"the start or the end lists residency {listed} of {residencies}")
    for n, node in enumerate(plan.nodes):
        named: list[int] = []
        match node:
            case Compute() | HostGather():
                named = [node.creates, *(r for operand in node.operands for r in operand)]
                if not 0 <= node.task < tasks:
                    return fault_of(Reason.BAD_REFERENCE, n, n, f"task {node.task} of {tasks}")
            case Move():
                named = [node.source, node.target]
            case Free():
                named = [node.residency]
        if min(named) < 0 or max(named) >= residencies:
            return fault_of(Reason.BAD_REFERENCE, n, n, f"residencies {named} of {residencies}")
    return None


def _extents(plan: MemGraph) -> Fault | None:
    """Every residency and workspace is aligned, of the right size, and inside its arena."""
    tensors, tasks = plan.graph.tensors, plan.graph.tasks
    size_by_tensor = [t.nbytes for t in tensors]
    for r in plan.residencies:
        on_device = r.place.kind is PlaceKind.DEVICE
        if r.place.index != 0 or not (on_device or r.place.kind is PlaceKind.HOST):
            return fault_of(Reason.UNKNOWN_PLACE, *_creator(plan, r.id), f"{tensors[r.tensor].name} at {r.place}")
        if len(r.extents) != 1 or r.extents[0].nbytes != size_by_tensor[r.tensor]:
            return fault_of(Reason.WRONG_SIZE, *_creator(plan, r.id), f"{tensors[r.tensor].name} in {r.extents}")
        extent = r.extents[0]
        if extent.offset % plan.alignment:
            return fault_of(Reason.MISALIGNED, *_creator(plan, r.id), f"{tensors[r.tensor].name} at {extent.offset}")
        if extent.offset < 0 or extent.stop > (plan.budget_bytes if on_device else plan.host_bytes):
            reason = Reason.DEVICE_CAPACITY if on_device else Reason.HOST_CAPACITY
            return fault_of(reason, *_creator(plan, r.id), f"{tensors[r.tensor].name} in {extent}")
    for n, node in enumerate(plan.nodes):
        if not isinstance(node, Compute):
            continue
        wanted, extent_or_none = tasks[node.task].workspace_bytes, node.workspace
        if (extent_or_none.nbytes if extent_or_none else 0) < wanted:
            return fault_of(Reason.WORKSPACE_SIZE, n, n, f"{tasks[node.task].name} wants {wanted} bytes, has {extent_or_none}")
        if extent_or_none and extent_or_none.offset % plan.alignment:
            return fault_of(Reason.MISALIGNED, n, n, f"the workspace of {tasks[node.task].name} at {extent_or_none.offset}")
        if extent_or_none and (extent_or_none.offset < 0 or extent_or_none.stop > plan.budget_bytes):
            return fault_of(Reason.DEVICE_CAPACITY, n, n, f"the workspace of {tasks[node.task].name} in {extent_or_none}")
    return None


def _creator(plan: MemGraph, residency: int) -> Pair:
    """The node that creates a residency, twice; (None, None) where there is none. Slow, for messages."""
    for n, node in enumerate(plan.nodes):
        match node:
            case Compute(creates=made) | HostGather(creates=made) | Move(target=made):
                if made == residency:
                    return NodeId(n), NodeId(n)
            case Free():
                pass
    return None, None


def _tasks(plan: MemGraph) -> Fault | None:
    """Every task runs once, as what it is, on exactly its operands, into exactly its result."""
    tensor = [r.tensor for r in plan.residencies]
    ran_at: dict[int, int] = {}
    for n, node in enumerate(plan.nodes):
        if not isinstance(node, Compute | HostGather):
            continue
        task = plan.graph.tasks[node.task]
        if task.id in ran_at:
            return fault_of(Reason.TASK_TWICE, ran_at[task.id], n, task.name)
        ran_at[task.id] = n
        if task.gathers != isinstance(node, HostGather):
            return fault_of(Reason.WRONG_NODE, n, n, task.name)
        if tuple(tuple(tensor[r] for r in operand) for operand in node.operands) != task.operands:
            return fault_of(Reason.WRONG_OPERANDS, n, n, f"{task.name} reads residencies {node.operands}")
        if tensor[node.creates] != task.result:
            return fault_of(Reason.WRONG_RESULT, n, n, f"{task.name} creates residency {node.creates}")
    for task in plan.graph.tasks:
        if task.id not in ran_at:
            return fault_of(Reason.TASK_MISSING, None, None, task.name)
    return None


def _places(flat: Flat) -> Fault | None:
    """Computes work on the device, gathers read the host, moves go between the two and keep the tensor. Notes all reads."""
    device = flat.on_device
    for n, node in enumerate(flat.plan.nodes):
        match node:
            case Compute() | HostGather():
                from_device = isinstance(node, Compute)
                distinct = dict.fromkeys(r for operand in node.operands for r in operand)
                wrong = [r for r in distinct if device[r] is not from_device] + [r for r in (node.creates,) if not device[r]]
                if wrong:
                    return fault_of(Reason.WRONG_PLACE, n, n, _named(flat, wrong[0]))
                flat.reads.extend((n, r) for r in distinct)
            case Move():
                if flat.tensor[node.source] != flat.tensor[node.target] or device[node.source] == device[node.target]:
                    return fault_of(Reason.WRONG_MOVE, n, n, f"{_named(flat, node.source)} to {_named(flat, node.target)}")
                flat.reads.append((n, node.source))
            case Free():
                pass
    return None


def _lives(flat: Flat) -> Fault | None:
    """Every residency is created once and freed at most once; what is there at the start may be. Notes begin and end."""
    plan, tensors = flat.plan, flat.plan.graph.tensors
    begin: list[int | None] = [None] * len(plan.residencies)
    end: list[int] = [int(NEVER)] * len(plan.residencies)
    masters = {flat.tensor[r] for r in plan.start if not flat.on_device[r]}
    for r in plan.start:
        if begin[r] is not None:
            return fault_of(Reason.CREATED_TWICE, None, None, _named(flat, r))
        if tensors[flat.tensor[r]].kind not in HOST_AT_START | {Kind.STATE} or flat.tensor[r] not in masters:
            return fault_of(Reason.START_UNTRUE, None, None, _named(flat, r))
        begin[r] = ALWAYS
    for n, node in enumerate(plan.nodes):
        match node:
            case Compute(creates=r) | HostGather(creates=r) | Move(target=r):
                if (before := begin[r]) is not None:
                    return fault_of(Reason.CREATED_TWICE, None if before == ALWAYS else before, n, _named(flat, r))
                begin[r] = n
            case Free(residency=r):
                if end[r] != NEVER:
                    return fault_of(Reason.FREED_TWICE, end[r], n, _named(flat, r))
                if begin[r] == ALWAYS and not flat.on_device[r] and tensors[flat.tensor[r]].kind in HOST_AT_START:
                    return fault_of(Reason.MASTER_FREED, n, n, _named(flat, r))
                end[r] = n
    if None in begin:
        missing = begin.index(None)
        users = [n for n, read in flat.reads if read == missing]
        return fault_of(Reason.NEVER_CREATED, None, users[0] if users else None, _named(flat, missing))
    flat.begin, flat.end = [b for b in begin if b is not None], end
    flat.taken = [False] * len(end)
    return None


def _takeovers(flat: Flat) -> Fault | None:
    """A result may lie exactly on one operand that is never freed and that its task offers. Notes it as that operand's end."""
    offset, stop = flat.offset, flat.stop
    for n, r in flat.reads:
        node = flat.plan.nodes[n]
        if not isinstance(node, Compute) or flat.end[r] != NEVER:
            continue
        made = node.creates
        if offset[r] < stop[made] and offset[made] < stop[r]:
            offered = flat.plan.graph.tasks[node.task].inplace
            if flat.tensor[r] not in offered or (offset[r], stop[r]) != (offset[made], stop[made]):
                return fault_of(Reason.TAKEOVER_UNDECLARED, flat.begin[r] if flat.begin[r] != ALWAYS else None, n, _named(flat, r))
            flat.end[r] = n
            flat.taken[r] = True
    return None


def _ends(flat: Flat) -> Fault | None:
    """`end` lists what has no end, each once. Host masters may be left out of it."""
    listed = set(flat.plan.end)
    if len(listed) != len(flat.plan.end):
        return fault_of(Reason.END_UNTRUE, None, None, "a residency is listed twice")
    for r, end in enumerate(flat.end):
        begin = None if flat.begin[r] == ALWAYS else flat.begin[r]
        if r in listed and end != NEVER:
            return fault_of(Reason.END_UNTRUE, end, None, f"{_named(flat, r)} is listed, and has ended")
        if r not in listed and end == NEVER and (begin is not None or flat.on_device[r]):
            return fault_of(Reason.END_UNTRUE, begin, None, f"{_named(flat, r)} is not listed, and never ends")
    return None


def _columns(flat: Flat) -> tuple[Ints, Ints, Ints, Ints, Bools]:
    """(node, residency) of every read; begin, end and taken of every residency."""
    reads = np.fromiter((x for read in flat.reads for x in read), np.int64, 2 * len(flat.reads)).reshape(-1, 2)
    return reads[:, 0].copy(), reads[:, 1].copy(), np.array(flat.begin, np.int64), np.array(flat.end, np.int64), np.array(flat.taken, bool)


def _reads_in_order(flat: Flat) -> Fault | None:
    """creation -> read, read -> end, and (where nobody reads) creation -> end, each by a path of edges."""
    node, read, begin, end, taken = _columns(flat)
    moves = np.array([isinstance(n, Move) for n in flat.plan.nodes], bool)[node]
    everyone = np.arange(len(begin), dtype=np.int64)
    made, ended = begin[read] != ALWAYS, (end[read] != NEVER) & (end[read] != node)
    unread = np.bincount(read, minlength=len(begin)) == 0
    lives = (begin != ALWAYS) & (end != NEVER) & unread
    arrows = (
        (Reason.SOURCE_MISSING, begin[read], node, read, made & moves),
        (Reason.READ_BEFORE_CREATED, begin[read], node, read, made & ~moves),
        (Reason.FREED_BEFORE_CREATED, begin, end, everyone, lives),
        (Reason.FREED_IN_USE, node, end[read], read, ended & ~taken[read]),
        (Reason.TAKEOVER_IN_USE, node, end[read], read, ended & taken[read]),
    )
    for reason, first, second, residency, applies in arrows:
        at = first_unordered(flat.plan, first[applies], second[applies])
        if at is not None:
            return fault_of(reason, first[applies][at], second[applies][at], _named(flat, int(residency[applies][at])))
    return None


def _bytes_in_order(flat: Flat) -> Fault | None:
    """Whoever creates something on bytes comes after the end of the last owner of each of them."""
    device, host = Owners(flat.plan.alignment), Owners(flat.plan.alignment)
    first: list[int] = []
    second: list[int] = []
    owners: list[int] = []
    for r in sorted(flat.plan.start, key=lambda r: flat.offset[r]):
        for other in (device if flat.on_device[r] else host).claim(flat.offset[r], flat.stop[r], r):
            return fault_of(Reason.OVERLAP, None, None, f"{_named(flat, other)} and {_named(flat, r)}, at the start")
    for n, node in enumerate(flat.plan.nodes):
        if isinstance(node, Free):
            continue
        made = node.target if isinstance(node, Move) else node.creates
        lasts = (device if flat.on_device[made] else host).claim(flat.offset[made], flat.stop[made], made)
        if isinstance(node, Compute) and node.workspace is not None:
            lasts += device.claim(node.workspace.offset, node.workspace.stop, ~n)
        for last in lasts:
            end = ~last if last < 0 else flat.end[last]
            if end > n:
                begin = None if flat.begin[last] == ALWAYS else flat.begin[last]
                return fault_of(Reason.OVERLAP, begin, n, f"{_named(flat, last)} and what node {n} puts there")
            if end < n:
                first.append(end)
                second.append(n)
                owners.append(last)
    at = first_unordered(flat.plan, np.array(first, np.int64), np.array(second, np.int64))
    if at is None:
        return None
    what = "a workspace" if owners[at] < 0 else _named(flat, owners[at])
    return fault_of(Reason.RACE, first[at], second[at], f"bytes of {what}")


def _no_clean_offload(flat: Flat) -> Fault | None:
    """Nothing goes to the host that is there already."""
    newest_copy = {flat.tensor[r]: r for r in flat.plan.start if not flat.on_device[r]}
    for n, node in enumerate(flat.plan.nodes):
        if not isinstance(node, Move) or not flat.on_device[node.source]:
            continue
        tensor = flat.tensor[node.source]
        copy = newest_copy.get(tensor)
        if copy is not None and flat.end[copy] > n:
            begin = None if flat.begin[copy] == ALWAYS else flat.begin[copy]
            return fault_of(Reason.CLEAN_OFFLOAD, begin, n, f"{_named(flat, node.source)}, which is at {_named(flat, copy)}")
        newest_copy[tensor] = node.target
    return None


def _outputs(flat: Flat) -> Fault | None:
    """Every tile of every output is on the host at the end."""
    there = {flat.tensor[r] for r in flat.plan.end if not flat.on_device[r]}
    there |= {flat.tensor[r] for r in flat.plan.start if not flat.on_device[r]}
    asked = {value for _, value in flat.plan.graph.outputs}
    for tensor in flat.plan.graph.tensors:
        if (tensor.kind is Kind.OUTPUT or tensor.value in asked) and tensor.id not in there:
            return fault_of(Reason.OUTPUT_MISSING, None, None, tensor.name)
    return None


def _loop(flat: Flat) -> Fault | None:
    """A loop finds on the device only what every pass has again, and leaves it where it was."""
    plan = flat.plan
    if not plan.loops:
        return None
    for r in plan.start:
        if flat.on_device[r] and plan.graph.tensors[flat.tensor[r]].kind not in (Kind.WEIGHT, Kind.CONSTANT):
            return fault_of(Reason.START_UNTRUE, None, None, f"{_named(flat, r)}, which the next pass has anew")
    began, ended = ({(flat.tensor[r], flat.offset[r]): r for r in listed if flat.on_device[r]} for listed in (plan.start, plan.end))
    for there, r in (*began.items(), *ended.items()):
        if there not in began or there not in ended:
            return fault_of(Reason.LOOP_OPEN, None, None, f"{_named(flat, r)} at the {'start' if there in began else 'end'} only")
    return None


def _edge_kinds(flat: Flat) -> Fault | None:
    """An edge is DATA from a creation to a read, and from either to the Free; all others are MEMORY."""
    node, read, begin, end, taken = _columns(flat)
    freed = (end != NEVER) & ~taken
    of_freed = freed[read]
    first = np.concatenate((begin[read], begin[freed], node[of_freed]))
    second = np.concatenate((node, end[freed], end[read][of_freed]))
    at = first_of_wrong_kind(flat.plan, first, second)
    edges = flat.plan.edges
    return None if at is None else fault_of(Reason.EDGE_KIND, edges.source[at], edges.target[at], f"edge {at}")
