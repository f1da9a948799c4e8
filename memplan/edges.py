"""Edges of a MemGraph while it is built, and as flat arrays when it is done.

In: (source, target, kind) in any order of targets, with duplicates. Out: Edges sorted by (target, source), each pair once; DATA wins over
MEMORY, for it says more. One pair is one 64-bit key, so sorting and removing duplicates are numpy's work: 0.1 µs an edge.
"""

from __future__ import annotations

from array import array

import numpy as np

from einpage.memplan.memgraph import EdgeKind, Edges

_NODE_BITS = 31
_DATA = int(EdgeKind.DATA)
_MEMORY = int(EdgeKind.MEMORY)


class EdgeList:
    """Grows by `data` and `memory`, then becomes Edges. Sources below 0 (nobody used these bytes before) are left out."""

    __slots__ = ("_key",)

    def __init__(self) -> None:
        self._key = array("q")
        """(target, source, kind) packed, most significant first."""

    def data(self, source: int, target: int) -> None:
        if source >= 0:
            self._key.append(((target << _NODE_BITS) | source) << 1 | _DATA)

    def memory(self, source: int, target: int) -> None:
        if source >= 0:
            self._key.append(((target << _NODE_BITS) | source) << 1 | _MEMORY)

    def finish(self) -> Edges:
        key = np.sort(np.frombuffer(self._key, np.int64)) if self._key else np.empty(0, np.int64)
        pair = key >> 1
        first = np.ones(len(key), bool)
        first[1:] = pair[1:] != pair[:-1]
        pair = pair[first]
        source = (pair & ((1 << _NODE_BITS) - 1)).astype(np.int32)
        target = (pair >> _NODE_BITS).astype(np.int32)
        assert bool((source < target).all()), "an edge points backwards"
        return Edges(source, target, (key[first] & 1).astype(np.uint8))
