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

from einpage.einsum_front.graph.taskgraph import HOST_AT_START, Kind
from einpage.memplan.graph.memgraph import MemGraph, Move
from einpage.memplan.graph.packed import COMPUTE, FREE, GATHER, MOVE, Nodes, Residencies
from einpage.memplan.judge.last_user import Owners
from einpage.memplan.judge.reachability import Bools, Ints, first_of_wrong_kind, first_unordered
from einpage.memplan.judge.reason import Fault, Reason, fault_of
from einpage.memplan.judge.well_formed import form_fault, readers

ALWAYS = -1
"""Stands for the creator of what is there at the start."""
NEVER = np.iinfo(np.int64).max
"""Stands for the end of what is still there at the end."""


@dataclass(slots=True)
class Flat:
    """A MemGraph as flat arrays, one entry a residency unless said otherwise."""

    plan: MemGraph
    nodes: Nodes
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
    reader: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    """[read] the node, ascending; each residency once a node."""
    read: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    """[read] the residency."""


def judge(memgraph: MemGraph) -> Fault | None:
    """The first thing wrong with a plan, or None: then every order that respects its edges is correct."""
    nodes, residencies = Nodes.of(memgraph.nodes), Residencies.of(memgraph.residencies)
    fault = form_fault(memgraph, nodes, residencies)
    if fault is not None:
        return fault
    flat = Flat(
        memgraph,
        nodes,
        tensor=residencies.tensor.tolist(),
        offset=residencies.offset.tolist(),
        stop=(residencies.offset + residencies.nbytes).tolist(),
        on_device=residencies.on_device.tolist(),
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


def _places(flat: Flat) -> Fault | None:
    """Computes work on the device, gathers read the host, moves go between the two and keep the tensor. Notes all reads."""
    nodes, device, tensor = flat.nodes, np.array(flat.on_device, bool), np.array(flat.tensor, np.int64)
    moves, runs = np.flatnonzero(nodes.kind == MOVE), np.flatnonzero(nodes.kind <= GATHER)
    reader = np.concatenate((readers(nodes), moves))
    read = np.concatenate((nodes.reads, nodes.subject[moves])).astype(np.int64)
    _, first = np.unique(reader * len(device) + read, return_index=True)
    first = np.sort(first)  # an operand that is read twice is one read, where it stands first
    first = first[np.argsort(reader[first], kind="stable")]
    flat.reader, flat.read = reader[first], read[first]
    source, target = nodes.subject[moves], nodes.result[moves]
    wrong_move = (tensor[source] != tensor[target]) | (device[source] == device[target])
    kind = nodes.kind[flat.reader]
    wrong_read = (kind <= GATHER) & (device[flat.read] != (kind == COMPUTE))
    wrong_result = ~device[nodes.result[runs]]
    at = min((int(found[0]) for found in (moves[wrong_move], flat.reader[wrong_read], runs[wrong_result]) if len(found)), default=None)
    if at is None:
        return None
    node = nodes[at]
    if isinstance(node, Move):
        return fault_of(Reason.WRONG_MOVE, at, at, f"{_named(flat, node.source)} to {_named(flat, node.target)}")
    strangers = flat.read[wrong_read & (flat.reader == at)]
    return fault_of(Reason.WRONG_PLACE, at, at, _named(flat, int(strangers[0] if len(strangers) else nodes.result[at])))


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
    nodes = flat.nodes
    for n, (kind, subject, made) in enumerate(zip(nodes.kind.tolist(), nodes.subject.tolist(), nodes.result.tolist(), strict=True)):
        if kind != FREE:
            if (before := begin[made]) is not None:
                return fault_of(Reason.CREATED_TWICE, None if before == ALWAYS else before, n, _named(flat, made))
            begin[made] = n
            continue
        if end[subject] != NEVER:
            return fault_of(Reason.FREED_TWICE, end[subject], n, _named(flat, subject))
        if begin[subject] == ALWAYS and not flat.on_device[subject] and tensors[flat.tensor[subject]].kind in HOST_AT_START:
            return fault_of(Reason.MASTER_FREED, n, n, _named(flat, subject))
        end[subject] = n
    if None in begin:
        missing = begin.index(None)
        users = flat.reader[flat.read == missing]
        return fault_of(Reason.NEVER_CREATED, None, users[0] if len(users) else None, _named(flat, missing))
    flat.begin, flat.end = [b for b in begin if b is not None], end
    flat.taken = [False] * len(end)
    return None


def _takeovers(flat: Flat) -> Fault | None:
    """A result may lie exactly on one operand that is never freed and that its task offers. Notes it as that operand's end."""
    offset, stop = np.array(flat.offset), np.array(flat.stop)
    made = flat.nodes.result[flat.reader]
    meets = (offset[flat.read] < stop[made]) & (offset[made] < stop[flat.read])
    meets &= (flat.nodes.kind[flat.reader] == COMPUTE) & (np.array(flat.end)[flat.read] == NEVER)
    for n, r, m in zip(flat.reader[meets].tolist(), flat.read[meets].tolist(), made[meets].tolist(), strict=True):
        if flat.end[r] != NEVER:
            continue
        offered = flat.plan.graph.tasks[flat.nodes.subject[n]].inplace
        if flat.tensor[r] not in offered or (offset[r], stop[r]) != (offset[m], stop[m]):
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
    return flat.reader, flat.read, np.array(flat.begin, np.int64), np.array(flat.end, np.int64), np.array(flat.taken, bool)


def _reads_in_order(flat: Flat) -> Fault | None:
    """creation -> read, read -> end, and (where nobody reads) creation -> end, each by a path of edges."""
    node, read, begin, end, taken = _columns(flat)
    moves = flat.nodes.kind[node] == MOVE
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
    nodes = flat.nodes
    scratch = zip(nodes.scratch_offset.tolist(), (nodes.scratch_offset + nodes.scratch_nbytes).tolist(), strict=True)
    scratch_by_node = dict(zip(nodes.scratch_node.tolist(), scratch, strict=True))
    creating = np.flatnonzero(nodes.kind != FREE)
    for n, made in zip(creating.tolist(), nodes.result[creating].tolist(), strict=True):
        lasts = (device if flat.on_device[made] else host).claim(flat.offset[made], flat.stop[made], made)
        if n in scratch_by_node:
            start, stop = scratch_by_node[n]
            lasts += device.claim(start, stop, ~n)
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
    moves = np.flatnonzero(flat.nodes.kind == MOVE)
    sources, targets = flat.nodes.subject[moves].tolist(), flat.nodes.result[moves].tolist()
    for n, source, target in zip(moves.tolist(), sources, targets, strict=True):
        if not flat.on_device[source]:
            continue
        tensor = flat.tensor[source]
        copy = newest_copy.get(tensor)
        if copy is not None and flat.end[copy] > n:
            begin = None if flat.begin[copy] == ALWAYS else flat.begin[copy]
            return fault_of(Reason.CLEAN_OFFLOAD, begin, n, f"{_named(flat, source)}, which is at {_named(flat, copy)}")
        newest_copy[tensor] = target
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
