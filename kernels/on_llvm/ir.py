"""Text of LLVM's intermediate representation, line by line, every value with a name of its own.

Vectors are of LANES numbers; a machine with shorter registers takes several for each. Sums of their lanes are added in one fixed order, so
they are the same whatever else is summed beside them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

LANES = 16
FLOATS, INTS, BYTES = f"<{LANES} x float>", f"<{LANES} x i32>", f"<{LANES} x i8>"
FMA = f"declare {FLOATS} @llvm.fma.v{LANES}f32({FLOATS}, {FLOATS}, {FLOATS})"
MASKED_LOAD = f"declare {FLOATS} @llvm.masked.load.v{LANES}f32.p0(ptr, i32, <{LANES} x i1>, {FLOATS})"
MASKED_STORE = f"declare void @llvm.masked.store.v{LANES}f32.p0({FLOATS}, ptr, i32, <{LANES} x i1>)"
PREFETCH = "declare void @llvm.prefetch.p0(ptr, i32, i32, i32)"
LINE_BYTES = 64
"""What one prefetch brings, at least."""


class Ir:
    """The body of a function, as it grows."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._values = self._labels = 0

    def value(self, text: str) -> str:
        """The name of what `text` computes."""
        self._values += 1
        self.lines.append(f"  %v{self._values} = {text}")
        return f"%v{self._values}"

    def do(self, text: str) -> None:
        """A line that computes no value."""
        self.lines.append(f"  {text}")

    def new_label(self, word: str) -> str:
        """A label that stands nowhere yet."""
        self._labels += 1
        return f"{word}{self._labels}"

    def at(self, label: str) -> None:
        """What follows begins at `label`."""
        self.lines.append(f"{label}:")

    def function(self, name: str, parameters: Iterable[str], declarations: Iterable[str]) -> str:
        """The whole text of `void name(parameters)`."""
        head = f"define void @{name}({', '.join(parameters)}) {{\nentry:"
        return "\n".join((*declarations, head, *self.lines, "  ret void\n}", ""))

    def index(self, base: str, offset: str, of: str = "i8") -> str:
        """The address `offset` elements after `base`."""
        return self.value(f"getelementptr {of}, ptr {base}, i64 {offset}")

    def load(self, of: str, address: str, align: int = 1) -> str:
        """What lies at `address`."""
        return self.value(f"load {of}, ptr {address}, align {align}")

    def first_lanes(self, count: str) -> str:
        """A mask of the first `count` lanes, an i64."""
        lanes = self.all_lanes("i32", self.value(f"trunc i64 {count} to i32"))
        return self.value(f"icmp ult {INTS} <{', '.join(f'i32 {n}' for n in range(LANES))}>, {lanes}")

    def load_lanes(self, address: str, mask: str | None) -> str:
        """A vector of fp32 numbers, or those of `mask` and zeros; nothing else is read."""
        if mask is None:
            return self.load(FLOATS, address, 4)
        masked = f"ptr {address}, i32 4, <{LANES} x i1> {mask}, {FLOATS} zeroinitializer"
        return self.value(f"call {FLOATS} @llvm.masked.load.v{LANES}f32.p0({masked})")

    def store_lanes(self, vector: str, address: str, mask: str | None) -> None:
        """Write a vector of fp32 numbers, or those of `mask`."""
        if mask is None:
            self.do(f"store {FLOATS} {vector}, ptr {address}, align 4")
        else:
            self.do(f"call void @llvm.masked.store.v{LANES}f32.p0({FLOATS} {vector}, ptr {address}, i32 4, <{LANES} x i1> {mask})")

    def all_lanes(self, of: str, scalar: str) -> str:
        """A vector of the same number in every lane."""
        one = self.value(f"insertelement <{LANES} x {of}> poison, {of} {scalar}, i32 0")
        return self.value(f"shufflevector <{LANES} x {of}> {one}, <{LANES} x {of}> poison, <{LANES} x i32> zeroinitializer")

    def loop(
        self, count: str, body: Callable[[str, Sequence[str]], Sequence[str]], initial: Sequence[str] = (), of: str = FLOATS
    ) -> list[str]:
        """`body(i, values)` for i from 0 to `count`, each time with the values that the time before gave; the last."""
        head, inside, after = self.new_label("head"), self.new_label("inside"), self.new_label("after")
        before = self.new_label("before")
        self.do(f"br label %{before}")
        self.at(before)
        self.do(f"br label %{head}")
        self.at(head)
        at = len(self.lines)
        i = self.value("")  # phis are written once the body is
        values = [self.value("") for _ in initial]
        more = self.value(f"icmp ult i64 {i}, {count}")
        self.do(f"br i1 {more}, label %{inside}, label %{after}")
        self.at(inside)
        found = body(i, values)
        assert len(found) == len(initial)
        following = self.value(f"add i64 {i}, 1")
        last = next(line[:-1] for line in reversed(self.lines) if line.endswith(":"))
        self.do(f"br label %{head}")
        self.lines[at] = f"  {i} = phi i64 [ 0, %{before} ], [ {following}, %{last} ]"
        for n, (value, first, again) in enumerate(zip(values, initial, found, strict=True)):
            self.lines[at + 1 + n] = f"  {value} = phi {of} [ {first}, %{before} ], [ {again}, %{last} ]"
        self.at(after)
        return values

    def sums(self, vectors: Sequence[str]) -> list[str]:
        """The sum of the lanes of each vector, as scalars: halves are added, of several vectors at a time."""
        out: list[str] = []
        for first in range(0, len(vectors), LANES):
            some = list(vectors[first : first + LANES])
            count, groups, width = len(some), 1, LANES
            while width > 1:
                some = [self._added_halves(some[n : n + 2], groups, width) for n in range(0, len(some), 2)]
                groups, width = 2 * groups, width // 2
            out += [self.value(f"extractelement {FLOATS} {some[0]}, i32 {n}") for n in range(count)]
        return out

    def _added_halves(self, pair: Sequence[str], groups: int, width: int) -> str:
        """Of one or two vectors of `groups` of `width` lanes: one vector of twice as many, in each of which the halves were added."""
        one, other = pair[0], pair[1] if len(pair) > 1 else "poison"
        starts = [LANES * n + width * group for n in range(2) for group in range(groups)]
        half = width // 2
        low, high = ([start + shift + lane for start in starts for lane in range(half)] for shift in (0, half))
        picked = [self.value(f"shufflevector {FLOATS} {one}, {FLOATS} {other}, {constants('i32', lanes)}") for lanes in (low, high)]
        return self.value(f"fadd {FLOATS} {picked[0]}, {picked[1]}")


def constants(of: str, numbers: Sequence[int]) -> str:
    """A vector of whole numbers, with its type."""
    return f"<{len(numbers)} x {of}> <{', '.join(f'{of} {n}' for n in numbers)}>"


def everywhere(of: str, number: int, lanes: int = LANES) -> str:
    """A vector of one whole number, without its type, as a second operand wants it."""
    return constants(of, [number] * lanes).split("> ", 1)[1]
