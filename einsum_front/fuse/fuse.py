"""Fusion: from a program to the ops that become tasks. What may be fused follows from the mathematics alone.

1. keep what the outputs asked for need;  2. hoist contractions and gathers;  3. match attention, and what is computed of the weights of
all its pairs, and whether a value is finite;  4. inline maps into the only map that reads them;  5. make a map the epilogue of the
contraction it reads, two contractions over one shared operand becoming one op.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from einpage.einsum_front.algebra.expr import Axis, Letter, Load
from einpage.einsum_front.algebra.rewrite import Capture
from einpage.einsum_front.base.errors import UsageError, listing
from einpage.einsum_front.fuse.added_rows import match_added_rows
from einpage.einsum_front.fuse.attention import NotAttention, match_attention
from einpage.einsum_front.fuse.epilogue import match_epilogue, match_overflow, with_element_types
from einpage.einsum_front.fuse.hoist import hoist
from einpage.einsum_front.fuse.inline import KnownContents, is_inlinable, is_short_enough, may_inline, with_inlined
from einpage.einsum_front.fuse.pairs import is_softmax, match_pairs
from einpage.einsum_front.graph.describe import display_name
from einpage.einsum_front.graph.job import Part
from einpage.einsum_front.graph.opgraph import ContractOp, FusedOp, MapOp, OpGraph, has_reduce, is_bare_contraction, op_loads
from einpage.einsum_front.graph.program import Program, needed


@dataclass(frozen=True, slots=True)
class FuseOptions:
    """Each fusion can be switched off alone."""

    attention: bool = True
    """Contraction, softmax, contraction as one op."""
    maps: bool = True
    """Maps into the only map that reads them."""
    epilogues: bool = True
    """Maps into the contraction they read."""


OPTIONAL_FUSIONS = ("attention",)
"""What `--no-fuse` may name."""


def without_fusions(names: Sequence[str]) -> FuseOptions:
    """All fusions but those of `names`. Raises UsageError for one there is not."""
    for name in names:
        if name not in OPTIONAL_FUSIONS:
            raise UsageError(f"--no-fuse: there is no fusion {name!r} to leave out; there is {', '.join(OPTIONAL_FUSIONS)}")
    return FuseOptions(attention="attention" not in names)


def fuse(program: Program, outputs: Sequence[str] | None = None, options: FuseOptions | None = None) -> OpGraph:
    """The fused ops that compute `outputs` (None: the first declared).

    Raises UsageError for an output the spec does not declare.
    """
    options = options or FuseOptions()
    value_by_output = {o.name: o.value for o in program.outputs}
    names = list(dict.fromkeys(outputs)) if outputs else [program.outputs[0].name]
    for name in names:
        if name not in value_by_output:
            raise UsageError(f"{program.path}: no output {name!r}; declared: {listing(value_by_output)}")
    used = needed(program, [value_by_output[name] for name in names])
    ops = hoist(program, [definition for definition in program.definitions if definition.name in used])
    ops += _copies(program, names, {op.value for op in ops})
    computed = {op.value for op in ops}
    asked = tuple((name, value_by_output[name] if value_by_output[name] in computed else _copy_name(name)) for name in names)
    fuser = _Fuser(ops, {value for _, value in asked}, program.extents)
    fuser.fuse_attention(options.attention)
    if options.attention:
        fuser.fuse_pairs()
    fuser.fuse_added_rows()
    fuser.fuse_overflow()
    if options.maps:
        fuser.inline_maps()
    if options.epilogues:
        fuser.fuse_epilogues()
    return OpGraph(program, tuple(with_element_types(program, fuser.ops)), asked, tuple(fuser.unfused))


def _copies(program: Program, names: Sequence[str], computed: set[str]) -> list[FusedOp]:
    """A copying map for each output that is itself a weight or an input."""
    out: list[FusedOp] = []
    for output in program.outputs:
        if output.name in names and output.value not in computed:
            axes = tuple(Axis(letter) for letter in output.letters)
            out.append(MapOp(_copy_name(output.name), output.name, output.shape, (), (Part(axes, Load(output.value, axes)),)))
    return out


def _copy_name(output: str) -> str:
    """The value of such a copy: the output may be called as the weight or input is."""
    return f"{output}~copy"


class _Fuser:
    """The ops while they are being fused, in order."""

    def __init__(self, ops: list[FusedOp], outputs: set[str], extents: Mapping[Letter, int]) -> None:
        self.ops = ops
        self.outputs = outputs
        self.extents = extents
        self.unfused: list[str] = []

    def readers(self) -> Counter[str]:
        """How many ops read each value; an output counts as one more."""
        count: Counter[str] = Counter(self.outputs)
        for op in self.ops:
            count.update({load.name for load in op_loads(op)})
        return count

    def op_by_value(self) -> dict[str, FusedOp]:
        """The ops as they are now, by the value they define."""
        return {op.value: op for op in self.ops}

    def fuse_attention(self, enabled: bool) -> None:
        """Fuse every attention; with `enabled` False, only report them as not fused."""
        readers, by_value = self.readers(), self.op_by_value()
        absorbed: set[str] = set()
        for i, op in enumerate(self.ops):
            if not (isinstance(op, ContractOp) and is_bare_contraction(op)):
                continue
            try:
                found = match_attention(op, by_value, readers)
            except NotAttention as reason:
                self.report(str(reason))
                continue
            if found is not None and enabled:
                self.ops[i], fused = found
                absorbed |= fused
            elif found is not None:
                self.report(f"{display_name(op.base)}: attention is left in parts, as asked; its scores are a tensor")
        self.ops = [op for op in self.ops if op.value not in absorbed]

    def fuse_pairs(self) -> None:
        """Fuse what is computed of the weights of all pairs of an attention, as its gradients are."""
        for value in [op.value for op in self.ops if is_softmax(op)]:
            found = match_pairs(self.ops, value, self.outputs, self.extents)
            if found is not None:
                self.ops = found

    def fuse_added_rows(self) -> None:
        """Make each contraction with a one-hot matrix a sum of the rows that count."""
        readers, by_value = self.readers(), self.op_by_value()
        absorbed: set[str] = set()
        for i, op in enumerate(self.ops):
            found = match_added_rows(op, by_value, readers, self.extents)
            if found is not None:
                self.ops[i] = found[0]
                absorbed.add(found[1])
        self.ops = [op for op in self.ops if op.value not in absorbed]

    def fuse_overflow(self) -> None:
        """Make each question whether a value is finite one of its tiles' flags."""
        by_value = self.op_by_value()
        self.ops = [match_overflow(op, by_value) or op for op in self.ops]

    def report(self, reason: str) -> None:
        """Say once why something is not fused."""
        if reason not in self.unfused:
            self.unfused.append(reason)

    def inline_maps(self) -> None:
        """Inline each map into the one map that reads it: a row reduction absorbs its pointwise neighbours on both sides."""
        readers, by_value, known = self.readers(), self.op_by_value(), KnownContents()
        absorbed: set[str] = set()
        for i, op in enumerate(self.ops):
            if not isinstance(op, MapOp):
                continue
            while (inlined_one := self._inline_one(op, by_value, readers, known)) is not None:
                before, (op, producer) = op, inlined_one
                absorbed.add(producer.value)
                shared = {load.name for load in known.loads_of(producer)} & {load.name for load in known.loads_of(before)}
                readers.subtract(shared)
            self.ops[i] = by_value[op.value] = op
        self.ops = [op for op in self.ops if op.value not in absorbed]

    def _inline_one(
        self, op: MapOp, by_value: Mapping[str, FusedOp], readers: Mapping[str, int], known: KnownContents
    ) -> tuple[MapOp, MapOp] | None:
        """`op` with the first map that it may absorb, and that map."""
        for name in dict.fromkeys(load.name for load in known.loads_of(op)):
            producer = by_value.get(name)
            if producer is None or readers[name] != 1 or not is_inlinable(producer):
                continue
            if op.unchanged is not None and op.unchanged.value == name:
                continue
            assert isinstance(producer, MapOp)
            if not may_inline(producer, op, by_value, known):
                continue
            if not is_short_enough(producer, op, known):
                self.report(f"{display_name(producer.base)} stays apart from {display_name(op.base)}: together they would be too long")
                continue
            try:
                parts = tuple(Part(part.target, with_inlined(part.expr, producer)) for part in op.parts)
            except Capture:
                self.report(f"{display_name(producer.base)} stays apart from {display_name(op.base)}: a letter has two meanings there")
                continue
            return replace(op, parts=parts, fused=(*producer.fused, producer.base, *op.fused)), producer
        return None

    def fuse_epilogues(self) -> None:
        """Make each pointwise map the epilogue of the contractions that only it reads."""
        readers, by_value = self.readers(), self.op_by_value()
        position = {op.value: i for i, op in enumerate(self.ops)}
        absorbed: set[str] = set()
        for i, op in enumerate(self.ops):
            if not is_inlinable(op):
                continue
            assert isinstance(op, MapOp)
            if op.unchanged is not None or has_reduce(op.parts[0].expr):
                continue
            found = match_epilogue(op, by_value, readers, position)
            if found is not None:
                self.ops[i], fused = found
                absorbed |= fused
        self.ops = [op for op in self.ops if op.value not in absorbed]
