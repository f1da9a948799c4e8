"""From a place on disk to a checkpoint that is known to fit a spec, before anything runs.

In: what `--weights` says. Out: a Checkpoint, and, for a Program, which tensor each weight is read from. All that is wrong (missing,
surplus, mis-shaped, unreadable, cut off) comes in one error. The reading itself is fill.py's; nothing here imports torch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from math import prod
from pathlib import Path

from einpage.einsum_front.algebra.expr import loads
from einpage.einsum_front.graph.program import Program, Source, Weight
from einpage.exec.load.checkpoint import Checkpoint, WeightError, file_size, folded
from einpage.exec.load.gguf import open_gguf
from einpage.exec.load.random import RandomWeights
from einpage.exec.load.safetensors import open_index, open_safetensors

_RANDOM = "random:"
_INDEX = ".safetensors.index.json"
_MOST_TOLD = 100
"""Lines of faults in a message; alike ones are one line already."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """A checkpoint, and where in it each weight that a program needs lies."""

    checkpoint: Checkpoint
    source_by_weight: Mapping[str, Source]
    """By the weight's unique name, as `wq@3`."""


def open_weights(where: str) -> Checkpoint:
    """`random:SEED`, a .gguf or .safetensors file, a `*.safetensors.index.json`, or a folder holding one of them.

    Reads headers only. Raises WeightError where there are no weights, or their header is broken; a file that is merely cut off opens
    (its metadata may still be of use) and says so in `damage`, which `resolve` reports.
    """
    if where.startswith(_RANDOM):
        return RandomWeights(_seed(where), {})
    path = Path(where)
    if path.is_dir():
        return _open_folder(path)
    file_size(path)
    if path.name.endswith(_INDEX):
        return open_index(path)
    match path.suffix:
        case ".gguf":
            return open_gguf(path)
        case ".safetensors":
            return open_safetensors((path,))
    raise WeightError(
        f"{where}: not a kind of weights known here: a .gguf or .safetensors file, a *{_INDEX}, a folder with one, or random:SEED"
    )


def _seed(where: str) -> int:
    word = where.removeprefix(_RANDOM)
    if not re.fullmatch(r"[0-9]{1,18}", word):
        raise WeightError(f"--weights {where}: the seed of random weights is a whole number, as in random:0")
    return int(word)


def _open_folder(folder: Path) -> Checkpoint:
    """Prefers an index, then model.safetensors, then all safetensors files, then a GGUF."""
    indices = sorted(folder.glob(f"*{_INDEX}"))
    shards = sorted(folder.glob("*.safetensors"))
    ggufs = sorted(folder.glob("*.gguf"))
    whole = folder / "model.safetensors"
    candidates = indices or ([whole] if whole in shards else []) or shards or ggufs
    if not candidates:
        there = ", ".join(sorted(p.name for p in folder.iterdir())[:10]) or "nothing"
        raise WeightError(f"{folder}: a folder without weights: no *{_INDEX}, *.safetensors or *.gguf in it; it holds {there}")
    if len(indices) > 1 or (candidates is ggufs and len(ggufs) > 1):
        raise WeightError(f"{folder}: several checkpoints: {', '.join(p.name for p in candidates)}; name the one you mean")
    if indices:
        return open_index(indices[0])
    return open_gguf(ggufs[0]) if candidates is ggufs else open_safetensors(tuple(candidates))


def present_names(program: Program, checkpoint: Checkpoint) -> frozenset[str]:
    """The tensor names that can be read, for `with_tied_weights`; random weights serve the first source of every weight."""
    if isinstance(checkpoint, RandomWeights):
        return frozenset(w.sources[0].name for w in program.weights)
    return frozenset(checkpoint.tensors)


def resolve(program: Program, checkpoint: Checkpoint) -> Resolved:
    """Choose, for each weight an output needs, the first of its sources that the checkpoint has.

    `program` must have its tied weights replaced. Raises one WeightError listing everything that is wrong.
    """
    needed = _needed(program)
    if isinstance(checkpoint, RandomWeights):
        checkpoint = checkpoint.declare(needed)
    chosen: dict[str, Source] = {}
    faults = list(checkpoint.damage)
    for weight in needed:
        source = next((s for s in weight.sources if s.name in checkpoint.tensors), None)
        if source is not None and isinstance(checkpoint, RandomWeights):
            source = replace(source, plus=0.0)  # they are what the spec reads
        if source is None:
            faults.append(f"missing: {weight.name}: no tensor called {' or '.join(s.name for s in weight.sources)}")
            continue
        chosen[weight.name] = source
        if (wrong := _fault(weight, source, checkpoint)) is not None:
            faults.append(wrong)
    used = {s.name for s in chosen.values()}
    surplus = [n for n in checkpoint.tensors if n not in used and not any(fnmatchcase(n, glob) for glob in program.ignore)]
    faults += [f"surplus: {n} {list(checkpoint.tensors[n])}: no output uses it (a glob under `ignore:` would allow it)" for n in surplus]
    if faults:
        count = f"{len(faults)} faults" if len(faults) > 1 else "a fault"
        lines = folded(faults)
        more = [f"… and {len(lines) - _MOST_TOLD:,} more lines"] if len(lines) > _MOST_TOLD else []
        raise WeightError("\n  ".join([f"the weights do not fit {program.path}: {count}", *lines[:_MOST_TOLD], *more]))
    return Resolved(checkpoint, chosen)


def _fault(weight: Weight, source: Source, checkpoint: Checkpoint) -> str | None:
    found = checkpoint.tensors[source.name]
    expected = tuple(prod(weight.shape[d] for d in group) for group in source.groups)
    if found != expected:
        return f"mis-shaped: {weight.name}: {source.name} is {list(found)}, expected {list(expected)} ({_axes(weight, source)})"
    wrong = checkpoint.fault(source.name)
    return None if wrong is None else f"unreadable: {weight.name}: {source.name} {wrong}"


def _axes(weight: Weight, source: Source) -> str:
    """The source's axes as the spec writes them, with sizes: `(k=3 g=3 z=2 e=32) m=576`."""
    words = [" ".join(f"{weight.letters[d]}={weight.shape[d]}" for d in group) for group in source.groups]
    return " ".join(w if len(group) == 1 else f"({w})" for w, group in zip(words, source.groups, strict=True))


def _needed(program: Program) -> tuple[Weight, ...]:
    """Weights that some declared output depends on, in the spec's order."""
    definition_by_name = {d.name: d for d in program.definitions}
    reached: set[str] = set()
    pending = [o.value for o in program.outputs]
    while pending:
        name = pending.pop()
        if name in reached:
            continue
        reached.add(name)
        if (definition := definition_by_name.get(name)) is not None:
            pending += [load.name for part in definition.parts for load in loads(part.expr)]
    return tuple(w for w in program.weights if w.name in reached)
