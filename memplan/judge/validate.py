"""The judge: proves that a MemGraph is right in every order its edges allow, or names what is wrong.

In: a MemGraph. Out: None, or a Violation with a reason and two nodes. It shares no code with the planner and knows nothing of how it works.

A residency exists from the node that creates it to the node that ends it: its Free, or the Compute that its bytes are donated to, which
writes a result in place. What is proved is

    creation ──► every read ──► end ──► creation of whoever uses one of these bytes next         (each arrow: reached along edges)

so any two accesses to one byte, of which one writes, are ordered. Edges point forward, so the stored order is one valid order; it
is enough to walk it once and to ask, for each byte, about the last user: earlier ones follow by the arrows between.
"""

from __future__ import annotations

import numpy as np

from einpage.einsum_front.base.columns import Int64s
from einpage.einsum_front.graph.taskgraph import Kind
from einpage.memplan.graph.memgraph import MemGraph
from einpage.memplan.graph.packed import GATHER, MOVE, Nodes, Residencies
from einpage.memplan.judge.last_user import LastUsers
from einpage.memplan.judge.lifetimes import first_wrong_lifetime
from einpage.memplan.judge.plan_columns import ALWAYS, NEVER, PlanColumns
from einpage.memplan.judge.reachability import first_of_wrong_kind, first_unordered
from einpage.memplan.judge.reason import Reason, Violation, violation_at
from einpage.memplan.judge.well_formed import first_ill_formed
from einpage.memplan.machine.places import DEVICE, DISK, HOST, SECTOR


def judge(memgraph: MemGraph) -> Violation | None:
    """The first thing wrong with a plan, or None: then every order that respects its edges is correct."""
    nodes, residencies = Nodes.of(memgraph.nodes), Residencies.of(memgraph.residencies)
    ill_formed = first_ill_formed(memgraph, nodes, residencies)
    if ill_formed is not None:
        return ill_formed
    plan = PlanColumns.of(memgraph, nodes, residencies)
    return (
        first_wrong_lifetime(plan)
        or _reads_in_order(plan)
        or _bytes_in_order(plan)
        or _no_clean_offload(plan)
        or _no_needless_run(plan)
        or _outputs_on_host(plan)
        or _loop_closes(plan)
        or _states_carried(plan)
        or _edge_kinds(plan)
    )


def _reads_in_order(plan: PlanColumns) -> Violation | None:
    """Proves: creation -> read, read -> end, and (where nobody reads) creation -> end are ordered by edges."""
    node, read = plan.reader, plan.read
    created_at, ended_at, donated = plan.lifetimes()
    moves = plan.nodes.kind[node] == MOVE
    everyone = np.arange(len(created_at), dtype=np.int64)
    runs_again = np.isin(node, _second_runs(plan))
    created, ended = created_at[read] != ALWAYS, (ended_at[read] != NEVER) & (ended_at[read] != node)
    unread = np.bincount(read, minlength=len(created_at)) == 0
    created_and_ended = (created_at != ALWAYS) & (ended_at != NEVER)
    arrows = (
        (Reason.SOURCE_MISSING, created_at[read], node, read, created & moves),
        (Reason.READ_BEFORE_CREATED, created_at[read], node, read, created & ~moves),
        (Reason.FREED_BEFORE_CREATED, created_at, ended_at, everyone, created_and_ended & unread),
        (Reason.FREED_IN_USE, node, ended_at[read], read, ended & ~donated[read]),
        (Reason.RUN_AFTER_UPDATE, node, ended_at[read], read, ended & donated[read] & runs_again),
        (Reason.DONATED_IN_USE, node, ended_at[read], read, ended & donated[read] & ~runs_again),
    )
    for reason, earlier, later, residency, applies in arrows:
        at = first_unordered(plan.memgraph, earlier[applies], later[applies])
        if at is not None:
            return violation_at(reason, earlier[applies][at], later[applies][at], plan.named(int(residency[applies][at])))
    return None


def _bytes_in_order(plan: PlanColumns) -> Violation | None:
    """Proves: whoever creates something on bytes is ordered after the end of the last user of each of them."""
    sectors = plan.memgraph.has_disk
    units = [SECTOR if sectors and place != DEVICE else plan.memgraph.alignment for place in plan.residencies.places]
    last_users = [LastUsers(unit) for unit in units]
    device = last_users[plan.residencies.places.index(DEVICE)]
    earlier: list[int] = []
    later: list[int] = []
    users: list[int] = []
    for r in sorted(plan.memgraph.start, key=lambda r: plan.offset[r]):
        for other in last_users[plan.place[r]].claim(plan.offset[r], plan.offset_end[r], r):
            return violation_at(Reason.OVERLAP, None, None, f"{plan.named(other)} and {plan.named(r)}, at the start")
    nodes = plan.nodes
    scratch = zip(nodes.scratch_offset.tolist(), (nodes.scratch_offset + nodes.scratch_nbytes).tolist(), strict=True)
    scratch_by_node = dict(zip(nodes.scratch_node.tolist(), scratch, strict=True))
    for n, made in zip(*(column.tolist() for column in nodes.made()), strict=True):
        lasts = last_users[plan.place[made]].claim(plan.offset[made], plan.offset_end[made], made)
        if n in scratch_by_node:
            start, end = scratch_by_node[n]
            lasts += device.claim(start, end, ~n)
        for last in lasts:
            ended_at = ~last if last < 0 else plan.ended_at[last]
            if ended_at > n:
                return violation_at(Reason.OVERLAP, plan.creator(last), n, f"{plan.named(last)} and what node {n} writes there")
            if ended_at < n:
                earlier.append(ended_at)
                later.append(n)
                users.append(last)
    at = first_unordered(plan.memgraph, np.array(earlier, np.int64), np.array(later, np.int64))
    if at is None:
        return None
    what = "a workspace" if users[at] < 0 else plan.named(users[at])
    return violation_at(Reason.RACE, earlier[at], later[at], f"bytes of {what}")


def _no_clean_offload(plan: PlanColumns) -> Violation | None:
    """Proves: no tensor is copied away from the device, or from the host to a disk, while there is a copy of it as far away."""
    away_by_place = {place: number for number, place in enumerate((DEVICE, HOST, DISK))}
    away = [away_by_place.get(place, len(away_by_place)) for place in plan.residencies.places]
    copies_of: dict[int, list[int]] = {}
    for r in plan.memgraph.start:
        copies_of.setdefault(plan.tensor[r], []).append(r)
    copies = plan.nodes.copies()
    for n, source, target in zip(*(column.tolist() for column in (copies.node, copies.source, copies.target)), strict=True):
        there = copies_of.setdefault(plan.tensor[source], [])
        if away[plan.place[target]] > away[plan.place[source]]:
            for copy in there:
                if away[plan.place[copy]] > away[plan.place[source]] and plan.ended_at[copy] > n:
                    what = f"{plan.named(source)}, which is at {plan.named(copy)}"
                    return violation_at(Reason.CLEAN_OFFLOAD, plan.creator(copy), n, what)
        there.append(target)
    return None


def _no_needless_run(plan: PlanColumns) -> Violation | None:
    """Proves: where a task runs again, the device no longer has what it made before, and somebody reads what it makes."""
    nodes, on_device, again = plan.nodes, plan.at(DEVICE), _second_runs(plan)
    if len(again) == 0:
        return None
    node, made = nodes.made_by_tasks()
    by_second = np.isin(node, again)
    node, made = node[by_second], made[by_second]
    is_read = np.zeros(len(plan.tensor), bool)
    is_read[plan.read] = True
    copies = nodes.copies()
    is_read[copies.source] = True
    made_again = {plan.tensor[r] for r in made.tolist()}
    there: dict[int, list[int]] = {}
    for r, t in enumerate(plan.tensor):
        if t in made_again and on_device[r]:
            there.setdefault(t, []).append(r)
    for n, r in zip(node.tolist(), made.tolist(), strict=True):
        for other in there[plan.tensor[r]]:
            if other != r and plan.created_at[other] < n < plan.ended_at[other]:
                return violation_at(Reason.COMPUTED_WHILE_THERE, plan.creator(other), n, plan.named(r))
        if not is_read[r]:
            return violation_at(Reason.COMPUTED_FOR_NOBODY, n, n, plan.named(r))
    return None


def _second_runs(plan: PlanColumns) -> Int64s:
    """The nodes that run a task which has run before."""
    runs = np.flatnonzero(plan.nodes.kind <= GATHER)
    _, first = np.unique(plan.nodes.subject[runs], return_index=True)
    return np.delete(runs, first)


def _outputs_on_host(plan: PlanColumns) -> Violation | None:
    """Proves: every tile of every output is on the host at the end, but for states, which may stay on the device."""
    there = plan.at(HOST)
    on_host = {plan.tensor[r] for r in (*plan.memgraph.start, *plan.memgraph.end) if there[r]} | {last for _, last in plan.memgraph.carried}
    asked = {value for _, value in plan.memgraph.graph.outputs}
    for tensor in plan.memgraph.graph.tensors:
        if (tensor.kind is Kind.OUTPUT or tensor.value in asked) and tensor.id not in on_host:
            return violation_at(Reason.OUTPUT_MISSING, None, None, tensor.name)
    return None


def _loop_closes(plan: PlanColumns) -> Violation | None:
    """Proves: a loop starts with weights and constants only on the device, and ends with the same ones at the same offsets; so it does with
    copies on the host of what is on a disk."""
    if not plan.memgraph.loops:
        return None
    on_device, on_host, stored = plan.at(DEVICE), plan.at(HOST), plan.stored()
    is_copy = [on_device[r] or (on_host[r] and plan.tensor[r] in stored) for r in range(len(plan.tensor))]
    for r in plan.memgraph.start:
        if is_copy[r] and plan.memgraph.graph.tensors[plan.tensor[r]].kind not in (Kind.WEIGHT, Kind.CONSTANT):
            reason = Reason.WRONG_START if on_device[r] else Reason.STALE_COPY
            return violation_at(reason, None, None, f"{plan.named(r)}, which every pass writes anew")
    start, end = plan.memgraph.start, plan.memgraph.end
    at_start, at_end = ({(plan.tensor[r], plan.place[r], plan.offset[r]): r for r in listed if is_copy[r]} for listed in (start, end))
    for where, r in (*at_start.items(), *at_end.items()):
        if where not in at_start or where not in at_end:
            return violation_at(Reason.LOOP_OPEN, None, None, f"{plan.named(r)} at the {'start' if where in at_start else 'end'} only")
    return None


def _states_carried(plan: PlanColumns) -> Violation | None:
    """Proves: what carries a state at the end lies, at one place, where the state was at the start; of one that stays on the device, the
    copy on the host, which is of the first step, is not read."""
    memgraph, on_device, read = plan.memgraph, plan.at(DEVICE), set(plan.read.tolist())
    at_start, at_end = ({(plan.tensor[r], on_device[r]): r for r in listed} for listed in (memgraph.start, memgraph.end))
    for first, last in memgraph.carried:
        ends = [(here, at_end[last, here]) for here in (True, False) if (last, here) in at_end]
        here, end = ends[0] if len(ends) == 1 else (False, None)
        start = at_start.get((first, here))
        if start is None or end is None or (plan.offset[start], plan.offset_end[start]) != (plan.offset[end], plan.offset_end[end]):
            return violation_at(Reason.CARRIED_ELSEWHERE, None, None, memgraph.graph.tensors[first].name)
        if here and at_start[first, False] in read:
            return violation_at(Reason.CARRIED_ELSEWHERE, None, None, f"{plan.named(at_start[first, False])}, which is read")
    return None


def _edge_kinds(plan: PlanColumns) -> Violation | None:
    """Proves: an edge is DATA from a creation to a read and from either to the Free, and MEMORY everywhere else."""
    node, read = plan.reader, plan.read
    created_at, ended_at, donated = plan.lifetimes()
    freed = (ended_at != NEVER) & ~donated
    of_freed = freed[read]
    earlier = np.concatenate((created_at[read], created_at[freed], node[of_freed]))
    later = np.concatenate((node, ended_at[freed], ended_at[read][of_freed]))
    at = first_of_wrong_kind(plan.memgraph, earlier, later)
    edges = plan.memgraph.edges
    return None if at is None else violation_at(Reason.EDGE_KIND, edges.source[at], edges.target[at], f"edge {at}")
