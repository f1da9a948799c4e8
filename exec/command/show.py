"""`einpage show`: sizes, FLOPs, what fused and what did not, the largest working set."""

from __future__ import annotations

import argparse
import json
import sys

from einpage.einsum_front.base.dtype import DType
from einpage.exec.command.options import names_of, no_fuse_of, pieces_of, settings_of
from einpage.exec.planning.model import open_model
from einpage.exec.planning.task_graph import split_as_told


def show_command(a: argparse.Namespace) -> int:
    """Raises SpecError, UsageError, WeightError."""
    model = open_model(a.spec, settings_of(a.set), a.weights)
    for warning in model.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    built = split_as_told(model.program, DType(a.dtype), pieces_of(a.split), names_of(a.outputs), no_fuse_of(a.no_fuse))
    print(json.dumps(built.facts()) if a.json else built.text())
    return 0
