"""The Chrome/Perfetto trace of a run: what ran when on which engine, predicted beside measured.

In: a MemGraph and one or two clocks for its nodes. Out: JSON in the trace event format (ui.perfetto.dev opens it): one
process per clock, one thread per engine, one slice per node with its number, bytes and rate. Frees occupy no engine and are left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from einpage.einsum_front.base.files import write_atomically
from einpage.exec.picture.timeline import NodeTimes
from einpage.memplan.graph.dump import describe
from einpage.memplan.graph.memgraph import MemGraph, NodeId
from einpage.memplan.graph.simulate import NO_QUEUE, queue_numbers, queues_of
from einpage.memplan.machine.places import Queue


def chrome_trace(memgraph: MemGraph, measured: NodeTimes | None = None, predicted: NodeTimes | None = None) -> dict[str, Any]:
    """The trace as a JSON object. Nodes whose times are NaN are left out."""
    events: list[dict[str, Any]] = []
    for process, (name, times) in enumerate((("measured", measured), ("predicted", predicted)), start=1):
        if times is not None:
            events.extend(_process(memgraph, process, name, times))
    return {"displayTimeUnit": "ms", "traceEvents": events}


def write_trace(path: Path, memgraph: MemGraph, measured: NodeTimes | None = None, predicted: NodeTimes | None = None) -> None:
    """`chrome_trace` as a file. Raises UsageError where the file cannot be written."""
    write_atomically(path, json.dumps(chrome_trace(memgraph, measured, predicted), separators=(",", ":"), allow_nan=False))


def _process(memgraph: MemGraph, process: int, name: str, times: NodeTimes) -> Iterator[dict[str, Any]]:
    yield {"ph": "M", "name": "process_name", "pid": process, "args": {"name": f"{name}: {memgraph.graph.name}"}}
    numbers = queue_numbers(memgraph).tolist()
    for thread, queue in enumerate(queues_of(memgraph)):
        title = "compute" if queue == Queue.COMPUTE else f"{queue.source} to {queue.target}"
        yield {"ph": "M", "name": "thread_name", "pid": process, "tid": thread, "args": {"name": title}}
        yield {"ph": "M", "name": "thread_sort_index", "pid": process, "tid": thread, "args": {"sort_index": thread}}
    start_s, finish_s = np.asarray(times.start_s, float), np.asarray(times.finish_s, float)
    for i in np.flatnonzero(np.isfinite(start_s) & np.isfinite(finish_s)).tolist():
        if numbers[i] != NO_QUEUE:
            yield _slice(memgraph, NodeId(i), process, numbers[i], float(start_s[i]), float(finish_s[i]))


def _slice(memgraph: MemGraph, node: NodeId, process: int, thread: int, start_s: float, finish_s: float) -> dict[str, Any]:
    args: dict[str, Any] = {"node": node}
    nbytes = memgraph.moved_bytes(node)
    if nbytes:
        args["bytes"] = nbytes
        if finish_s > start_s:
            args["GB/s"] = round(nbytes / (finish_s - start_s) / 1e9, 3)
    what = describe(memgraph, node)
    span = {"ts": round(start_s * 1e6, 3), "dur": round((finish_s - start_s) * 1e6, 3)}
    return {"ph": "X", "name": what, "cat": what.split()[0], "pid": process, "tid": thread, **span, "args": args}
