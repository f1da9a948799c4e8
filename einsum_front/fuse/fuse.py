"""Fusion: from a program to the ops that become tasks. What may be fused follows from the mathematics alone.

1. keep what the outputs asked for need;  2. hoist contractions and gathers;  3. find attention;
4. fold maps into the only map that reads them;  5. fold a map into the contraction it finishes (its epilogue), two contractions
over one shared operand becoming one op.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from einpage.einsum_front.algebra.expr import Acc, Axis, Expr, Letter, Load, Num, Reduce, loads, size, substitute, walk
from einpage.einsum_front.algebra.rewrite import Capture, axes_only, rename_load
from einpage.einsum_front.base.errors import UsageError
from einpage.einsum_front.fuse.attention import MOST_NODES, NotAttention, inlined, is_inlinable, match_attention
from einpage.einsum_front.fuse.hoist import hoist
from einpage.einsum_front.graph.describe import spoken
from einpage.einsum_front.graph.job import Contraction, Part
from einpage.einsum_front.graph.opgraph import ContractOp, FusedOp, MapOp, OpGraph, has_reduce, is_bare_contraction, op_loads
from einpage.einsum_front.graph.program import Definition, Program


@dataclass(frozen=True, slots=True)
class FuseOptions:
    """Each fusion can be switched off alone."""

    attention: bool = True
    maps: bool = True
    epilogues: bool = True


LEAVABLE = ("attention",)
"""What a person can ask to leave in parts."""


def leaving(words: Sequence[str]) -> FuseOptions:
    """All fusions but those that `words` name. Raises UsageError for one there is not."""
    for word in words:
        if word not in LEAVABLE:
            raise UsageError(f"--no-fuse: there is no fusion {word!r} to leave out; there is {', '.join(LEAVABLE)}")
    return FuseOptions(attention="attention" not in words)


def fuse(program: Program, outputs: Sequence[str] | None = None, options: FuseOptions | None = None) -> OpGraph:
    """The fused ops that compute `outputs` (None: the first declared).

    Raises UsageError for an output the spec does not declare.
    """
    options = options or FuseOptions()
    value_by_output = {o.name: o.value for o in program.outputs}
    names = list(dict.fromkeys(outputs)) if outputs else [program.outputs[0].name]
    for name in names:
        if name not in value_by_output:
            raise UsageError(f"{program.path}: no output {name!r}; declared: {', '.join(value_by_output)}")
    ops = hoist(program, _needed(program, [value_by_output[name] for name in names]))
    ops += _copies(program, names, {op.value for op in ops})
    computed = {op.value for op in ops}
    wanted = tuple((name, value_by_output[name] if value_by_output[name] in computed else _copy_name(name)) for name in names)
    fuser = _Fuser(ops, {value for _, value in wanted})
    fuser.fuse_attention(options.attention)
    if options.maps:
        fuser.fold_maps()
    if options.epilogues:
        fuser.fold_epilogues()
    return OpGraph(program, tuple(fuser.ops), wanted, tuple(fuser.unfused))


def _copies(program: Program, names: Sequence[str], computed: set[str]) -> list[FusedOp]:
    """A copying map for each output that is a weight or an input as it stands."""
    out: list[FusedOp] = []
    for output in program.outputs:
        if output.name in names and output.value not in computed:
            axes = tuple(Axis(letter) for letter in output.letters)
            out.append(MapOp(_copy_name(output.name), output.name, output.shape, (), (Part(axes, Load(output.value, axes)),)))
    return out


def _copy_name(output: str) -> str:
    """The value of such a copy: the output may be called as the weight or input is."""
    return f"{output}~copy"


def _needed(program: Program, values: Sequence[str]) -> list[Definition]:
    """The definitions that `values` depend on, in order."""
    need = set(values)
    kept: list[Definition] = []
    for d in reversed(program.definitions):
        if d.name in need:
            kept.append(d)
            need.update(load.name for part in d.parts for load in loads(part.expr))
    return kept[::-1]


class _Fuser:
    """The ops while they are being fused, in order, with how many ops (or outputs) read each value."""

    def __init__(self, ops: list[FusedOp], outputs: set[str]) -> None:
        self.ops = ops
        self.outputs = outputs
        self.unfused: list[str] = []

    def readers(self) -> Counter[str]:
        """How many ops read each value; an output counts as one more."""
        count: Counter[str] = Counter(self.outputs)
        for op in self.ops:
            count.update({load.name for load in op_loads(op)})
        return count

    def op_by_value(self) -> dict[str, FusedOp]:
        return {op.value: op for op in self.ops}

    def fuse_attention(self, wanted: bool) -> None:
        """Fuse every attention, or where none is wanted only note which are left in parts."""
        readers, by_value = self.readers(), self.op_by_value()
        gone: set[str] = set()
        for i, op in enumerate(self.ops):
            if not (isinstance(op, ContractOp) and is_bare_contraction(op)):
                continue
            try:
                found = match_attention(op, by_value, readers)
            except NotAttention as reason:
                self.note(str(reason))
                continue
            if found is not None and wanted:
                self.ops[i], vanished = found
                gone |= vanished
            elif found is not None:
                self.note(f"{spoken(op.base)}: attention is left in parts, as asked; its scores are a tensor")
        self.ops = [op for op in self.ops if op.value not in gone]

    def note(self, reason: str) -> None:
        if reason not in self.unfused:
            self.unfused.append(reason)

    def fold_maps(self) -> None:
        """Fold each map into the one map that reads it: a row reduction takes in its pointwise neighbours on both sides."""
        readers, by_value = self.readers(), self.op_by_value()
        gone: set[str] = set()
        for i, op in enumerate(self.ops):
            if not isinstance(op, MapOp):
                continue
            while (folded := self._fold_one(op, by_value, readers)) is not None:
                before, (op, vanished) = op, folded
                gone.add(vanished)
                shared = {load.name for load in op_loads(by_value[vanished])} & {load.name for load in op_loads(before)}
                readers.subtract(shared)
            self.ops[i] = by_value[op.value] = op
        self.ops = [op for op in self.ops if op.value not in gone]

    def _fold_one(self, op: MapOp, by_value: Mapping[str, FusedOp], readers: Mapping[str, int]) -> tuple[MapOp, str] | None:
        for name in dict.fromkeys(load.name for load in op_loads(op)):
            producer = by_value.get(name)
            if producer is None or readers[name] != 1 or not is_inlinable(producer):
                continue
            assert isinstance(producer, MapOp)
            if not _may_fold(producer, op, by_value):
                continue
            if not _short_enough(producer, op):
                self.note(f"{spoken(producer.base)} stays apart from {spoken(op.base)}: together they would be too long")
                continue
            try:
                parts = tuple(Part(part.target, _inline(part.expr, producer)) for part in op.parts)
            except Capture:
                self.note(f"{spoken(producer.base)} stays apart from {spoken(op.base)}: a letter has two meanings there")
                continue
            return replace(op, parts=parts, fused=(*producer.fused, producer.base, *op.fused)), name
        return None

    def fold_epilogues(self) -> None:
        readers, by_value = self.readers(), self.op_by_value()
        position = {op.value: i for i, op in enumerate(self.ops)}
        gone: set[str] = set()
        for i, op in enumerate(self.ops):
            if not is_inlinable(op):
                continue
            assert isinstance(op, MapOp)
            if has_reduce(op.parts[0].expr):
                continue
            found = _epilogue(op, by_value, readers, position)
            if found is not None:
                self.ops[i], vanished = found
                gone |= vanished
        self.ops = [op for op in self.ops if op.value not in gone]


def _may_fold(producer: MapOp, reader: MapOp, by_value: Mapping[str, FusedOp]) -> bool:
    """Whether folding neither repeats a row reduction nor takes a contraction's epilogue away."""
    target = {i.letter for i in producer.parts[0].target if isinstance(i, Axis)}
    uses = [load for load in op_loads(reader) if load.name == producer.value]
    if has_reduce(producer.parts[0].expr):
        if any(axes_only(use) is None for use in uses):
            return False
        reduced = _bound_letters(producer)
        letters = {i.letter for part in reader.parts for i in part.target if isinstance(i, Axis)}
        return letters <= target | reduced
    if any(not isinstance(index, (Axis, Num)) for use in uses for index in use.indices):
        return False
    finishes = any(is_bare_contraction(by_value[load.name]) for load in op_loads(producer) if load.name in by_value)
    return not (finishes and (len(reader.parts) > 1 or has_reduce(reader.parts[0].expr)))


def _short_enough(producer: MapOp, reader: MapOp) -> bool:
    """Whether `reader` stays under MOST_NODES with `producer` written out at each use: `x = x * tanh(x)` doubles at every fold."""
    uses = sum(load.name == producer.value for load in op_loads(reader))
    return sum(size(part.expr) for part in reader.parts) + uses * size(producer.parts[0].expr) <= MOST_NODES


def _bound_letters(op: MapOp) -> set[Letter]:
    return {letter for part in op.parts for node in walk(part.expr) if isinstance(node, Reduce) for letter in node.letters}


def _inline(e: Expr, producer: MapOp) -> Expr:
    return substitute(e, lambda node: inlined(producer, node) if isinstance(node, Load) and node.name == producer.value else None)


def _epilogue(
    op: MapOp, by_value: Mapping[str, FusedOp], readers: Mapping[str, int], position: Mapping[str, int]
) -> tuple[ContractOp, set[str]] | None:
    """The contraction(s) that map `op` finishes, with its expression as epilogue, and the values that vanish."""
    target = tuple(i.letter for i in op.parts[0].target if isinstance(i, Axis))
    found: dict[str, tuple[ContractOp, Contraction]] = {}
    for load in op_loads(op):
        producer = by_value.get(load.name)
        if producer is None or readers[load.name] != 1 or not isinstance(producer, ContractOp) or not is_bare_contraction(producer):
            continue
        letters = axes_only(load)
        once = len({use.indices for use in op_loads(op) if use.name == load.name}) == 1
        if letters is None or set(letters) != set(target) or not once:
            continue
        renamed = _renamed_contraction(producer, letters, target)
        if renamed is not None:
            found[load.name] = (producer, renamed)
    if not found:
        return None
    last = max(found, key=lambda name: position[name])
    x, twins = _twins({name: contraction for name, (_, contraction) in found.items()}, found[last][1])
    twins.sort(key=lambda name: position[name])
    contractions = tuple(_sharing(found[name][1], x) for name in twins)
    index_by_name = {name: i for i, name in enumerate(twins)}
    epilogue = substitute(
        op.parts[0].expr, lambda node: Acc(index_by_name[node.name]) if isinstance(node, Load) and node.name in index_by_name else None
    )
    fused = tuple(found[name][0].base for name in twins)
    return ContractOp(op.value, op.base, op.shape, op.loop, target, contractions, epilogue, (*fused, *op.fused)), set(twins)


def _renamed_contraction(op: ContractOp, letters: tuple[Letter, ...], target: tuple[Letter, ...]) -> Contraction | None:
    """The contraction of `op` in the letters it is read by; None where one of them is summed in it."""
    contraction = op.contractions[0]
    if set(contraction.letters) & set(target):
        return None
    mapping: dict[Letter, Expr] = {a: Axis(b) for a, b in zip(op.target, letters, strict=True)}
    return Contraction(rename_load(contraction.x, mapping), rename_load(contraction.y, mapping), contraction.letters)


def _twins(contractions: Mapping[str, Contraction], last: Contraction) -> tuple[Load, list[str]]:
    """The operand of `last` that most of `contractions` share with it, its first where none is better, and who they are."""
    alike = [(name, c) for name, c in contractions.items() if c.letters == last.letters]
    by_operand = [(x, [name for name, c in alike if x in (c.x, c.y)]) for x in (last.x, last.y)]
    return max(by_operand, key=lambda found: len(found[1]))


def _sharing(contraction: Contraction, x: Load) -> Contraction:
    """`contraction` with the shared operand `x` on its left."""
    if contraction.x == x:
        return contraction
    return Contraction(contraction.y, contraction.x, contraction.letters)
