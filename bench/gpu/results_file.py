"""The one file that a call leaves: results.json, whole at every moment. Needs Python alone.

    {command, commit, dry_run, machine, versions, calls: [...], parts: {part: {state, gates, rows, absent, ...}}, table: [...]}

A part's process rewrites its own entry after every case, the process that starts the parts the rest; never two at a time, which a lock on
the folder sees to. `calls` grows by one with every call that goes on where another ended.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

from bench.results import write_whole

NAME = "results.json"

PartFacts = dict[str, Any]


class Busy(Exception):
    """Another call still writes to the folder."""


def lock(folder: Path, seconds: float = 10.0) -> int:
    """A file descriptor that keeps other calls from the folder until every process that has it has ended: those of a call that was killed
    take a moment. Raises Busy."""
    folder.mkdir(parents=True, exist_ok=True)
    held, until = os.open(folder, os.O_RDONLY), perf_counter() + seconds
    while True:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return held
        except OSError as error:
            if perf_counter() > until:
                os.close(held)
                raise Busy(f"another call writes to {folder}: wait until it ends, or give another --out") from error
        sleep(0.1)


def read(folder: Path) -> dict[str, Any]:
    """All that is in the folder's file; no parts where there is none, or none that can be read."""
    found: object = None
    with suppress(OSError, ValueError):
        found = json.loads((folder / NAME).read_text(encoding="utf-8"))
    return found if isinstance(found, dict) and isinstance(found.get("parts"), dict) else {"parts": {}}


def part_facts(folder: Path, part: str) -> PartFacts:
    """What is known of a part; nothing where it did not start."""
    facts: PartFacts = read(folder)["parts"].get(part, {})
    return facts


def put(folder: Path, **facts: object) -> None:
    """Replace these facts of the whole file."""
    write_whole(folder / NAME, {**read(folder), **facts})


def put_part(folder: Path, part: str, part_facts: PartFacts, facts: Mapping[str, object]) -> None:
    """Replace the entry of a part, and these facts of the whole file."""
    whole = read(folder)
    write_whole(folder / NAME, {**whole, **facts, "parts": {**whole["parts"], part: part_facts}})


def note_end(folder: Path, part: str) -> None:
    """The process of a part died, or had to be ended: in the middle of which case. Whoever is killed with it notes nothing."""
    facts = part_facts(folder, part)
    if case := facts.get("case"):
        put_part(folder, part, {**facts, "ended": [*facts.get("ended", []), case]}, {})


def clear(folder: Path) -> None:
    """Forget what an earlier call left, and what one that was killed was about to write."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / NAME).unlink(missing_ok=True)
    clear_parts(folder)


def clear_parts(folder: Path) -> None:
    """Remove what a call that was killed was about to write."""
    for path in folder.glob(f"{NAME}.*.part"):
        path.unlink(missing_ok=True)
