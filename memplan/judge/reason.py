"""What can be wrong with a plan: the judge's reasons; for each, some mutated plan in the tests shows it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from einpage.memplan.graph.memgraph import NodeId

NodePair: TypeAlias = tuple[NodeId | None, NodeId | None]


class Reason(Enum):
    """What can be wrong with a plan, in the order in which the judge looks."""

    EDGE_OUT_OF_RANGE = "an edge joins nodes that do not exist, or is of no known kind"
    EDGE_BACKWARD = "an edge does not point forward"
    EDGES_UNSORTED = "edges are not sorted by (target, source), or one is listed twice"
    BAD_REFERENCE = "a node, a list or a residency names something that does not exist"
    UNKNOWN_PLACE = "a residency is at a place where the plan has no arena"
    WRONG_SIZE = "a residency is not one extent of exactly its tensor's bytes"
    MISALIGNED = "an offset is not a multiple of the alignment"
    OUTSIDE_ARENA = "bytes outside the arena of their place"
    WORKSPACE_SIZE = "a workspace is missing or too small"
    TASK_MISSING = "a task never runs"
    WRONG_NODE = "a host gather runs as a compute, or a device task as a host gather"
    WRONG_OPERANDS = "a node's operands are not its task's"
    OTHER_VERSION = "a task runs again, and reads other tensors than its operands"
    WRONG_RESULT = "a node creates another tensor than its task writes"
    WRONG_PLACE = "a node reads or creates something at the wrong place"
    WRONG_MOVE = "a move's source and target differ in tensor, or not in place"
    MOVED_APART = "what one move copies is not all between the same two places"
    NO_HOST_SOURCE = "a copy between the device and a disk does not go over the host"
    SECTOR_APART = "a copy from or to a disk ends at another byte of a sector than where it begins"
    CREATED_TWICE = "a residency is created twice"
    NEVER_CREATED = "a residency is never created"
    FREED_TWICE = "a residency is freed twice"
    HOST_COPY_FREED = "the host copy of a weight, an input or a constant is freed, or where a disk has it, that one"
    WRONG_START = "a residency is listed as present at the start that cannot be"
    DONATION_UNDECLARED = "a result is written in place over an operand that its task does not donate"
    WRONG_END = "the list of residencies present at the end is wrong"
    READ_BEFORE_CREATED = "a read is not ordered after what it reads"
    SOURCE_MISSING = "a move is not ordered after the creation of its source"
    FREED_BEFORE_CREATED = "a residency's end is not ordered after its creation"
    FREED_IN_USE = "a free is not ordered after a read"
    RUN_AFTER_UPDATE = "a task runs again, and is not ordered before the task that writes in place over what it reads"
    DONATED_IN_USE = "a result written in place is not ordered after another reader of these bytes"
    OVERLAP = "two residencies hold the same bytes at once"
    RACE = "bytes are used again without an order between the two uses"
    CLEAN_OFFLOAD = "a tensor is offloaded while the host has it, or written to a disk that has it"
    COMPUTED_WHILE_THERE = "a task runs again while the device has what it makes"
    COMPUTED_FOR_NOBODY = "a task runs again, and nobody reads what it makes"
    OUTPUT_MISSING = "an output is not on the host at the end"
    STALE_COPY = "a loop begins with a copy of what every pass has anew"
    LOOP_OPEN = "a loop does not end with the contents of the device, and with the copies on the host, that it started with"
    CARRIED_ELSEWHERE = "a state is not at the end where it was at the start"
    EDGE_KIND = "an edge is marked data where no data passes, or memory where some does"


@dataclass(frozen=True, slots=True)
class Violation:
    """One property that a plan lacks, and where."""

    reason: Reason
    nodes: NodePair
    """The two nodes that clash. Twice the same where one alone is wrong; None for the start, the end, or no node at all."""
    message: str
    """For a person: the reason, the tensor and the nodes, spelled out."""


def violation_at(reason: Reason, first: int | None, second: int | None, what: str) -> Violation:
    """The Violation at two nodes (None: the start, the end, or no node), with what is wrong spelled out."""
    nodes = (None if first is None else NodeId(int(first)), None if second is None else NodeId(int(second)))
    return Violation(reason, nodes, f"{reason.value}: {what} (nodes {nodes[0]}, {nodes[1]})")
