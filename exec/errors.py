"""What can go wrong while a plan runs.

A node that raises ends the run with a `NodeError` that says which one. Bytes that differ from the plan are our bug: `CountMismatch`
is an AssertionError.
"""

from __future__ import annotations

import re

from einpage.einsum_front.base.errors import EinpageError
from einpage.einsum_front.base.units import format_bytes
from einpage.memplan.graph.memgraph import NodeId
from einpage.memplan.machine.places import Queue


class NodeError(EinpageError):
    """A node of the plan failed; `__cause__` is what it raised.

    The exit status is the cause's where the cause is a user's mistake (an index that is out of range, say), 3 where it is a host without
    memory, and 1 otherwise.
    """

    def __init__(self, node: NodeId, what: str, engine: Queue | None, cause: BaseException) -> None:
        self.node = node
        self.what = what
        self.engine = engine
        self.exit_status = cause.exit_status if isinstance(cause, EinpageError) else 3 if full_memory(cause) is not None else 1
        where = "" if engine is None else f" on the {engine.name} engine"
        super().__init__(f"node {node} ({what}) failed{where}: {type(cause).__name__}: {cause}")
        self.__cause__ = cause


class EngineBusy(EinpageError):
    """What is to run now needs memory in which an engine of a run that was interrupted still works."""

    exit_status = 1


class CountMismatch(AssertionError):
    """The engines moved other bytes than the plan says."""


def full_memory(error: BaseException) -> str | None:
    """What an error says of memory that could not be had, torch's too, which has no class for it; None for every other error."""
    if isinstance(error, MemoryError):
        return str(error) or "no more can be had"
    found = re.search(r"can't allocate memory: you tried to allocate (\d+) bytes", str(error)) if isinstance(error, RuntimeError) else None
    return None if found is None else f"{format_bytes(int(found[1]))} more is wanted"
