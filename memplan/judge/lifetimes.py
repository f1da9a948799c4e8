"""Each residency by itself: at the right place, created once, ended at most once, and listed at the end exactly where it has not ended.

In: PlanColumns. Out: None, and the lifetimes filled in; or the first Violation. A part of the judge.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from einpage.einsum_front.graph.taskgraph import HOST_AT_START, Kind
from einpage.memplan.graph.packed import COMPUTE, FREE, GATHER, Nodes
from einpage.memplan.judge.plan_columns import ALWAYS, NEVER, PlanColumns
from einpage.memplan.judge.reason import Reason, Violation, violation_at
from einpage.memplan.machine.places import DEVICE, DISK, HOST, SECTOR


def first_wrong_lifetime(plan: PlanColumns) -> Violation | None:
    """The first thing wrong with where residencies are, and with what creates and ends them. Fills in the lifetimes of `plan`."""
    return _places_agree(plan) or _creations_and_frees(plan) or _donations(plan) or _end_list(plan)


def _places_agree(plan: PlanColumns) -> Violation | None:
    """Proves: computes read and write the device, gathers read the host, and a disk where they write the host; moves go to another place,
    over the host, and keep the tensor and its bytes of a sector, and all the copies of one are between the same two places."""
    nodes, place, tensor = plan.nodes, np.array(plan.place, np.int64), np.array(plan.tensor, np.int64)
    device, host, disk = plan.residencies.at(DEVICE), plan.residencies.at(HOST), plan.residencies.at(DISK)
    copies, (runs, results) = nodes.copies(), nodes.made_by_tasks()
    source, target, moves = copies.source, copies.target, copies.node
    wrong_move = (tensor[source] != tensor[target]) | (place[source] == place[target])
    first_source, first_target = nodes.subject[moves], nodes.result[moves]
    apart = (place[source] != place[first_source]) | (place[target] != place[first_target])
    offset = np.array(plan.offset, np.int64)
    no_host = ~(host[source] | host[target])
    skewed = (disk[source] | disk[target]) & ((offset[source] - offset[target]) % SECTOR != 0)
    kind = nodes.kind[plan.reader]
    to_host = (kind == GATHER) & host[nodes.result[plan.reader]]
    wrong_read = (kind == COMPUTE) & ~device[plan.read] | (kind == GATHER) & ~(host[plan.read] | to_host & disk[plan.read])
    lands = (nodes.kind[runs] == GATHER) & host[results] & plan.memgraph.has_disk
    wrong_result = ~device[results] & ~lands
    wrong_moves = wrong_move | no_host | skewed | apart
    wrong = (moves[wrong_moves], plan.reader[wrong_read], runs[wrong_result])
    at = min((int(found[0]) for found in wrong if len(found)), default=None)
    if at is None:
        return None
    if len(found := np.flatnonzero(wrong_moves & (moves == at))):
        reasons = ((wrong_move, Reason.WRONG_MOVE), (apart, Reason.MOVED_APART), (no_host, Reason.NO_HOST_SOURCE))
        reason = next((reason for column, reason in reasons if column[found[0]]), Reason.SECTOR_APART)
        return violation_at(reason, at, at, f"{plan.named(int(source[found[0]]))} to {plan.named(int(target[found[0]]))}")
    misplaced = np.concatenate((plan.read[wrong_read & (plan.reader == at)], results[wrong_result & (runs == at)]))
    return violation_at(Reason.WRONG_PLACE, at, at, plan.named(int(misplaced[0])))


def _creations_and_frees(plan: PlanColumns) -> Violation | None:
    """Proves: every residency is created once and freed at most once, and what is listed at the start can be there."""
    memgraph, tensors = plan.memgraph, plan.memgraph.graph.tensors
    created_at: list[int | None] = [None] * len(memgraph.residencies)
    ended_at: list[int] = [int(NEVER)] * len(memgraph.residencies)
    on_device, on_host = plan.at(DEVICE), plan.at(HOST)
    away = {plan.tensor[r] for r in memgraph.start if not on_device[r]}
    stored, carried = plan.stored(), {first for first, _ in memgraph.carried}
    for r in memgraph.start:
        if created_at[r] is not None:
            return violation_at(Reason.CREATED_TWICE, None, None, plan.named(r))
        if tensors[plan.tensor[r]].kind not in HOST_AT_START | {Kind.STATE} or plan.tensor[r] not in away:
            return violation_at(Reason.WRONG_START, None, None, plan.named(r))
        created_at[r] = ALWAYS
    for n, residency, is_freed in _creations_and_ends(plan.nodes):
        if not is_freed:
            if (before := created_at[residency]) is not None:
                return violation_at(Reason.CREATED_TWICE, None if before == ALWAYS else before, n, plan.named(residency))
            created_at[residency] = n
            continue
        if ended_at[residency] != NEVER:
            return violation_at(Reason.FREED_TWICE, ended_at[residency], n, plan.named(residency))
        tensor = plan.tensor[residency]
        is_copy = on_device[residency] or (on_host[residency] and tensor in stored)
        is_only_one = created_at[residency] == ALWAYS and not is_copy and tensor not in carried
        if is_only_one and tensors[tensor].kind in HOST_AT_START:
            return violation_at(Reason.HOST_COPY_FREED, n, n, plan.named(residency))
        ended_at[residency] = n
    if None in created_at:
        missing = created_at.index(None)
        users = plan.reader[plan.read == missing]
        return violation_at(Reason.NEVER_CREATED, None, users[0] if len(users) else None, plan.named(missing))
    plan.created_at, plan.ended_at = [n for n in created_at if n is not None], ended_at
    plan.donated = [False] * len(ended_at)
    return None


def _creations_and_ends(nodes: Nodes) -> Iterator[tuple[int, int, bool]]:
    """In node order: the node, a residency that it creates or frees, and whether it frees it."""
    creator, made = nodes.made()
    frees = np.flatnonzero(nodes.kind == FREE)
    node, residency = np.concatenate((creator, frees)), np.concatenate((made, nodes.subject[frees]))
    order = np.argsort(node, kind="stable")
    yield from zip(node[order].tolist(), residency[order].tolist(), (order >= len(creator)).tolist(), strict=True)


def _donations(plan: PlanColumns) -> Violation | None:
    """Proves: a result shares bytes with an operand only in place, exactly on one that is never freed and that may be donated to it."""
    offset, offset_end = np.array(plan.offset), np.array(plan.offset_end)
    node, made = plan.nodes.made_by_tasks()
    first, count = np.searchsorted(node, plan.reader), np.bincount(node, minlength=len(plan.nodes))[plan.reader]
    count[plan.nodes.kind[plan.reader] != COMPUTE] = 0
    pair = np.repeat(np.arange(len(plan.reader)), count)
    result = np.arange(len(pair)) - np.repeat(np.cumsum(count) - count, count)
    reader, read, made = plan.reader[pair], plan.read[pair], made[first[pair] + result]
    meets = (offset[read] < offset_end[made]) & (offset[made] < offset_end[read]) & (np.array(plan.ended_at)[read] == NEVER)
    for n, r, m, which in zip(*(column[meets].tolist() for column in (reader, read, made, result)), strict=True):
        if plan.ended_at[r] != NEVER:
            continue
        donatable = plan.memgraph.graph.tasks[plan.nodes.subject[n]].written[which].inplace
        if plan.tensor[r] not in donatable or (offset[r], offset_end[r]) != (offset[m], offset_end[m]):
            return violation_at(Reason.DONATION_UNDECLARED, plan.creator(r), n, plan.named(r))
        plan.ended_at[r] = n
        plan.donated[r] = True
    return None


def _end_list(plan: PlanColumns) -> Violation | None:
    """Proves: `end` lists every residency that never ends, each once; host copies present at the start may be left out."""
    listed, on_device = set(plan.memgraph.end), plan.at(DEVICE)
    if len(listed) != len(plan.memgraph.end):
        return violation_at(Reason.WRONG_END, None, None, "a residency is listed twice")
    for r, ended_at in enumerate(plan.ended_at):
        creator = plan.creator(r)
        if r in listed and ended_at != NEVER:
            return violation_at(Reason.WRONG_END, ended_at, None, f"{plan.named(r)} is listed, and has ended")
        if r not in listed and ended_at == NEVER and (creator is not None or on_device[r]):
            return violation_at(Reason.WRONG_END, creator, None, f"{plan.named(r)} is not listed, and never ends")
    return None
