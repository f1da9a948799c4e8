"""What can be wrong with a plan: the judge's reasons, each of which some mutated plan must show."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from einpage.memplan.graph.memgraph import NodeId

Pair: TypeAlias = tuple[NodeId | None, NodeId | None]


class Reason(Enum):
    """What can be wrong with a plan, in the order in which the judge looks."""

    EDGE_OUT_OF_RANGE = "an edge joins nodes that do not exist, or is of no known kind"
    EDGE_BACKWARD = "an edge does not point forward"
    EDGES_UNSORTED = "edges are not sorted by (target, source), or one stands there twice"
    BAD_REFERENCE = "a node, a list or a residency names something that does not exist"
    UNKNOWN_PLACE = "a residency is neither on device 0 nor on the host"
    WRONG_SIZE = "a residency is not one extent of exactly its tensor's bytes"
    MISALIGNED = "an offset is not a multiple of the alignment"
    DEVICE_CAPACITY = "bytes outside the device arena"
    HOST_CAPACITY = "bytes outside the host arena"
    WORKSPACE_SIZE = "a workspace is missing or too small"
    TASK_TWICE = "a task runs twice"
    TASK_MISSING = "a task never runs"
    WRONG_NODE = "a host gather runs as a compute, or a device task as a host gather"
    WRONG_OPERANDS = "a node's operands are not its task's"
    WRONG_RESULT = "a node creates another tensor than its task writes"
    WRONG_PLACE = "a node reads or creates something at the wrong place"
    WRONG_MOVE = "a move's source and target differ in tensor, or not in place"
    CREATED_TWICE = "a residency is created twice"
    NEVER_CREATED = "a residency is never created"
    FREED_TWICE = "a residency is freed twice"
    MASTER_FREED = "a host master is freed"
    START_UNTRUE = "something is said to be there at the start that cannot be"
    TAKEOVER_UNDECLARED = "a result takes over bytes that its task does not offer"
    END_UNTRUE = "the list of what is there at the end is wrong"
    READ_BEFORE_CREATED = "a read is not ordered after what it reads"
    SOURCE_MISSING = "a move is not ordered after the creation of its source"
    FREED_BEFORE_CREATED = "a residency's end is not ordered after its creation"
    FREED_IN_USE = "a free is not ordered after a read"
    TAKEOVER_IN_USE = "a takeover is not ordered after another user of these bytes"
    OVERLAP = "two residencies hold the same bytes at once"
    RACE = "bytes are used again without an order between the two uses"
    CLEAN_OFFLOAD = "a tensor is offloaded while the host has it"
    OUTPUT_MISSING = "an output is not on the host at the end"
    LOOP_OPEN = "a loop does not leave on the device what it began with"
    EDGE_KIND = "an edge says data where no data passes, or memory where some does"


@dataclass(frozen=True, slots=True)
class Fault:
    reason: Reason
    nodes: Pair
    """The two nodes that clash. Twice the same where one alone is wrong; None for the start, the end, or no node at all."""
    message: str
    """For a person: the reason, the tensor and the nodes, spelled out."""


def fault_of(reason: Reason, first: int | None, second: int | None, what: str) -> Fault:
    """The Fault of two nodes (None: the start, the end, or no node), with what is wrong spelled out."""
    nodes = (None if first is None else NodeId(int(first)), None if second is None else NodeId(int(second)))
    return Fault(reason, nodes, f"{reason.value}: {what} (nodes {nodes[0]}, {nodes[1]})")
