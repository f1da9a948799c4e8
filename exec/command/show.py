"""`einpage show`: sizes, FLOPs, what fused and what did not, the largest working set."""

from __future__ import annotations

import argparse
import json
import sys

from einpage.einsum_front.base.dtype import DType
from einpage.exec.command.options import names_of, no_fuse_of, pieces_of, settings_of
from einpage.exec.load.checkpoint import folded
from einpage.exec.planning.model import Model, open_model
from einpage.exec.planning.task_graph import split_as_told


def show_command(a: argparse.Namespace) -> int:
    """Raises SpecError, UsageError, WeightError."""
    model = open_model(a.spec, settings_of(a.set), a.weights)
    for warning in model.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    shifted = shifted_sources(model)
    built = split_as_told(model.program, DType(a.dtype), pieces_of(a.split), names_of(a.outputs), no_fuse_of(a.no_fuse))
    if a.json:
        print(json.dumps({**built.facts(), **({"plus": shifted} if shifted else {})}))
        return 0
    print(built.text())
    for line in folded(f"{source} + {plus:g}" for source, plus in shifted.items()):
        print(f"read as     {line}")
    return 0


def shifted_sources(model: Model) -> dict[str, float]:
    """The checkpoint's tensors to which a number is added when they are read, and the number (`plus:`)."""
    chosen = model.resolved.source_by_weight.values() if model.resolved is not None else ()
    return {source.name: source.plus for source in chosen if source.plus}
