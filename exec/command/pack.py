"""`einpage pack`: a CSV of buffers in, the report of their packing out, and with `--out` the CSV with offsets.

Exit status 0 where it fits, 3 where no packing within the capacity was found: the report still names the lowest one, and no file is
written. Nothing here imports torch.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from einpage.einsum_front.base.errors import UsageError
from einpage.einsum_front.base.files import refuse_overwriting, refuse_unwritable, write_atomically
from einpage.einsum_front.base.units import format_bytes, format_seconds, parse_bytes
from einpage.exec.command.options import files_read
from einpage.exec.system.spinner import spinner
from einpage.memplan.errors import PackingDoesNotFit
from einpage.memplan.packing.csv_file import packing_text, read_buffers
from einpage.memplan.packing.pack import Packed, pack


def pack_command(a: argparse.Namespace) -> int:
    """The `pack` command. Raises UsageError, and PackingDoesNotFit after the report is printed."""
    capacity = parse_bytes(a.capacity, "--capacity")
    if not (math.isfinite(a.seconds) and a.seconds > 0):
        raise UsageError(f"--seconds {a.seconds:g} is not a positive number of seconds")
    refuse_overwriting(files_read(a), a.out)
    refuse_unwritable(a.out)
    buffers = read_buffers(Path(a.file))
    with spinner(f"packing, for {a.seconds:g} s at most", quiet=a.json):
        packed = pack(buffers.rectangles, capacity, a.seconds, a.seed)
    print(json.dumps(facts_of(buffers.names, packed)) if a.json else rendered(packed))
    sys.stdout.flush()
    if not packed.fits:
        raise PackingDoesNotFit(packed.packing.height, capacity, packed.lower_bound, packed.proven_bound)
    if a.out:
        write_atomically(Path(a.out), packing_text(buffers.names, packed.packing))
    return 0


def facts_of(names: Sequence[str], p: Packed) -> dict[str, object]:
    """A packing's figures as JSON; `ids` and `offsets` in the order of the buffers."""
    return {
        "buffers": len(p.packing.rectangles),
        "capacity": p.capacity,
        "fits": p.fits,
        "height": p.packing.height,
        "lower_bound": p.lower_bound,
        "proven_bound": p.proven_bound,
        "verified": True,
        "seconds": p.seconds,
        "ids": list(names),
        "offsets": list(p.packing.offsets),
    }


def rendered(p: Packed) -> str:
    """A packing's figures for a person: sizes in bytes, time in seconds."""
    height, bound = p.packing.height, p.lower_bound
    ratio = f"{height / bound:.4f}" if bound else "1"
    proof = f"; proven {p.proven_bound:,}" if p.proven_bound > bound else ""
    return "\n".join(
        (
            f"buffers      {len(p.packing.rectangles)}; packed and judged in {format_seconds(p.seconds)}",
            f"capacity     {p.capacity:,} ({format_bytes(p.capacity)})",
            f"height       {height:,} ({format_bytes(height)}), {'fits' if p.fits else 'does not fit'}",
            f"lower bound  {bound:,} (the most that is alive at once){proof}; height ÷ bound {ratio}",
        )
    )
