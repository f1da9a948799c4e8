"""From a place on disk to a checkpoint that is known to fit a spec, before anything runs.

In: what `--weights` says. Out: a Checkpoint, and, for a Program, which tensor each weight is read from. All that is wrong (missing,
surplus, mis-shaped, unreadable, cut off) comes in one error. The reading itself is fill.py's; nothing here imports torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from math import prod
from pathlib import Path

from einpage.checkpoints.files.checkpoint import Checkpoint, WeightError, file_size, folded, some_of_each
from einpage.checkpoints.files.gguf import open_gguf
from einpage.checkpoints.files.random import RandomWeights
from einpage.checkpoints.files.safetensors import open_index, open_safetensors
from einpage.checkpoints.files.starts import with_starts
from einpage.einsum_front.algebra.expr import Letter, loads
from einpage.einsum_front.graph.program import Program, Source, StoredRows, Weight

_RANDOM = "random:"
_INDEX = ".safetensors.index.json"


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


def resolve(program: Program, checkpoint: Checkpoint, size_by_letter: Mapping[Letter, str] | None = None) -> Resolved:
    """Choose, for each weight an output needs, the first of its sources that the checkpoint has.

    `program` must have its tied weights replaced; `size_by_letter` names the sizes that `--set` can change. Raises one WeightError with
    everything that is wrong, alike lines as one, of very many some of each kind.
    """
    needed = _needed(program)
    if isinstance(checkpoint, RandomWeights):
        checkpoint = checkpoint.declare(needed)
    checkpoint = with_starts(checkpoint, needed)
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
        sizes = " ".join(f"--set {name}={n}" for name, n in _sizes_that_fit(needed, chosen, checkpoint, size_by_letter or {}).items())
        misshaped = all(fault.startswith("mis-shaped") for fault in faults)
        cure = [f"where the tensors are right, their sizes are not the spec's: say {sizes}"] if sizes and misshaped else []
        raise WeightError("\n  ".join([f"the weights do not fit {program.path}: {count}", *some_of_each(folded(faults)), *cure]))
    return Resolved(checkpoint, chosen)


def with_stored(program: Program, resolved: Resolved) -> Program:
    """`program`, whose weights say how the checkpoint stores them: those of which rows in blocks are their own last dimensions."""
    return replace(program, weights=tuple(replace(w, stored=_stored(w, resolved)) for w in program.weights))


def _stored(weight: Weight, resolved: Resolved) -> StoredRows | None:
    source = resolved.source_by_weight.get(weight.name)
    if source is None or source.plus or not source.groups:
        return None
    format, row, rank = resolved.checkpoint.block_format(source.name), source.groups[-1], len(weight.shape)
    if format is None or not row or row != tuple(range(rank - len(row), rank)) or prod(weight.shape[d] for d in row) % format.elements:
        return None
    return StoredRows(format, len(row))


def _sizes_that_fit(
    needed: tuple[Weight, ...], chosen: Mapping[str, Source], checkpoint: Checkpoint, size_by_letter: Mapping[Letter, str]
) -> Mapping[str, int]:
    """Other values of sizes with which every tensor has its weight's shape; none where there are no such, or a tensor lies transposed."""
    pairs = [(weight, chosen[weight.name], checkpoint.tensors[chosen[weight.name].name]) for weight in needed if weight.name in chosen]
    if any(found != (shape := _expected(weight, source)) and sorted(found) == sorted(shape) for weight, source, found in pairs):
        return {}
    changed: dict[str, int] = {}
    for weight, source, found in pairs:
        for name, n in _changed_sizes(weight, source, found, size_by_letter):
            if n < 1 or changed.setdefault(name, n) != n:
                return {}
    new = {letter: changed[name] for letter, name in size_by_letter.items() if name in changed}
    return changed if all(found == _expected(weight, source, new) for weight, source, found in pairs) else {}


def _changed_sizes(
    weight: Weight, source: Source, found: tuple[int, ...], size_by_letter: Mapping[Letter, str]
) -> Iterator[tuple[str, int]]:
    """Sizes, each with another value, that dimensions of one letter have in a tensor of shape `found`."""
    for group, n in zip(source.groups, found, strict=False):
        letter = weight.letters[group[0]] if len(group) == 1 else None
        if letter is not None and letter in size_by_letter and n != weight.shape[group[0]]:
            yield size_by_letter[letter], n


def _expected(weight: Weight, source: Source, new: Mapping[Letter, int] | None = None) -> tuple[int, ...]:
    """The shape that the checkpoint's tensor should have, with `new` extents for some letters."""
    return tuple(prod((new or {}).get(weight.letters[d], weight.shape[d]) for d in group) for group in source.groups)


def _fault(weight: Weight, source: Source, checkpoint: Checkpoint) -> str | None:
    found = checkpoint.tensors[source.name]
    if found != (expected := _expected(weight, source)):
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
