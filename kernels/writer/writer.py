"""Expressions as lines of Triton source: letters become variables, loads become masked `tl.load`s, sums are written by the caller.

In: an expression and a frame, which says which variable holds each letter's numbers and along which axes of the block they run. Out:
lines, and the text of the value. Arithmetic is fp32 whatever the dtype of the operands; what is made of letters and integers alone is
compared and divided as integers. Addresses take 32 bits where every tile allows it. A letter's variable counts from 0 whatever the job's
range, and boxes are folded into the addresses' constants, so that tiles of equal shape have equal text; where a letter's own value is
wanted, its start is added, which a launch passes. Text only: Triton is not imported here.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from typing import assert_never

from einpage.einsum_front.algebra.expr import Acc, Axis, Binary, Call, Expr, Letter, Load, Name, Num, Reduce, Unary, free_letters, walk
from einpage.einsum_front.algebra.functions import FUNCTIONS
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.graph.job import Box, Range, View
from einpage.kernels.errors import Unsupported
from einpage.kernels.instructions.calls import fold, fold_call
from einpage.kernels.layout.affine import integral, linear
from einpage.kernels.layout.window import row_major
from einpage.kernels.tiles.tiles import Tiles
from einpage.kernels.writer.launch import Descriptor, Launch
from einpage.kernels.writer.linear_index import Flat, offset, without_unread
from einpage.kernels.writer.preamble import NAME_IN_KERNEL, RESERVED, preamble
from einpage.kernels.writer.values import NONE, Axes, Val, arithmetic, logic, number, power_text, truth

TL_DTYPE = {DType.FP32: "tl.float32", DType.BF16: "tl.bfloat16", DType.FP16: "tl.float16", DType.INT32: "tl.int32", DType.INT64: "tl.int64"}


Form = tuple[dict[Letter, int], int]
"""A linear index: a factor by letter, and a constant."""


@dataclass(slots=True)
class Frame:
    """Where an expression is evaluated."""

    letters: Mapping[Letter, Val]
    masks: Mapping[str, str]
    """Per axis, the variable that says which of its lanes are real; none for an axis whose lanes all are."""
    memo: dict[tuple[Expr, bool], Val] = field(default_factory=dict)
    accs: Mapping[int, Val] = field(default_factory=dict)
    rebound: frozenset[Letter] = frozenset()
    """Letters that a reduction has bound anew here, so that what is known of rows does not hold for them."""


class Writer:
    """Lines of one kernel, and the names in use."""

    def __init__(self, reads: Sequence[View], result: View, ranges: Iterable[Range]) -> None:
        self.lines: list[str] = []
        self.indent = 1
        self.names: set[str] = set(RESERVED)
        self.reads, self.result = tuple(reads), result
        self.range_by_letter = {r.letter: r for r in ranges}
        self.operand_by_name = {v.name: i for i, v in enumerate(reads)}
        self.integers = frozenset(v.name for v in reads if not v.dtype.is_float)
        self.pointers: dict[tuple[int, int], str] = {}
        self.first: dict[tuple[int, int], int] = {}
        """The element of a tile that its pointer points to: the first that a load reads, so that no text says what lies before."""
        self.wide = any(box.size > MOST_IN_32_BITS for v in (*reads, result) for box in v.boxes)
        """Whether offsets need 64 bits; what a block's unreal lanes compute stays within 32 bits otherwise."""
        self.descriptors: dict[Descriptor, str] = {}
        """The parameters that describe a matrix to the copy engine."""
        self.starts: dict[Letter, str] = {}
        """The parameter that holds where a letter begins, for those whose value is used."""
        self.flats: list[Flat] = []
        """What `split` made, for addresses."""
        self.out = self.fresh("out_ptr")
        self.repeated: Counter[Expr] = Counter()
        self.fixed: dict[Expr, Val] = {}
        """Reductions already computed, by expression."""
        self.reduce: Callable[[Reduce, Frame], Val] | None = None
        """Writes a reduction that is not, and gives its value."""

    def fresh(self, hint: str) -> str:
        """A variable name not yet used, close to `hint`."""
        word = re.sub(r"\W", "_", hint) or "v"
        word = f"v{word}" if word[0].isdigit() else word
        name, n = word, 1
        while name in self.names:
            n += 1
            name = f"{word}_{n}"
        self.names.add(name)
        return name

    def program(self) -> str:
        """The number of this program, wide enough to be multiplied by strides."""
        return "tl.program_id(0).to(tl.int64)" if self.wide else "tl.program_id(0)"

    def line(self, text: str = "") -> None:
        self.lines.append("    " * self.indent + text if text else "")

    def assign(self, hint: str, text: str) -> str:
        name = self.fresh(hint)
        self.line(f"{name} = {text}")
        return name

    def expect(self, expressions: Iterable[Expr]) -> None:
        """Count sub-expressions, so that those used more than once get a variable."""
        for e in expressions:
            self.repeated.update(n for n in walk(e) if not isinstance(n, Num | Axis | Acc))

    def pointer(self, operand: int, tile: int) -> str:
        """The parameter that points to a tile."""
        key = (operand, tile)
        if key not in self.pointers:
            name = self.reads[operand].name
            many = len(self.reads[operand].boxes) > 1
            self.pointers[key] = self.fresh(f"{name}_{tile}_ptr" if many else f"{name}_ptr")
        return self.pointers[key]

    def start(self, letter: Letter) -> str:
        """The parameter that holds where the job's range of `letter` begins."""
        if letter not in self.starts:
            self.starts[letter] = self.fresh(f"{letter}_start")
        return self.starts[letter]

    @contextmanager
    def over(self, ranges: Iterable[Range]) -> Iterator[None]:
        """Write for a part of the job: these ranges stand for those of the same letters."""
        whole = self.range_by_letter
        self.range_by_letter = {**whole, **{r.letter: r for r in ranges}}
        yield
        self.range_by_letter = whole

    def origin(self, form: Form) -> int:
        """The value of a linear index where every letter is at its start."""
        return form[1] + sum(c * self.range_by_letter[letter].start for letter, c in form[0].items())

    # values

    def value(self, e: Expr, frame: Frame, index: bool = False) -> Val:
        key = (e, index)
        if e in self.fixed and not free_letters(e) & frame.rebound:
            return self.fixed[e]
        if key not in frame.memo:
            val = self._value(e, frame, index)
            if self.repeated[e] > 1 and not isinstance(e, Load | Num | Axis | Acc) and val.kind != "c":
                val = Val(self.assign("v", val.text), val.axes, val.kind)
            frame.memo[key] = val
        return frame.memo[key]

    def _value(self, e: Expr, frame: Frame, index: bool) -> Val:
        match e:
            case Num(value):
                return number(int(value) if index and int(value) == value else value)
            case Axis(letter):
                found = self._letter(letter, frame)
                text = f"({found.text} + {self.start(letter)})"
                return Val(text, found.axes, "i") if index else Val(f"{text}.to(tl.float32)", found.axes, "f")
            case Acc(i):
                return frame.accs[i]
            case Load():
                return self._load(e, frame, index)
            case Unary(op, x):
                return self._unary(op, self.value(x, frame, index), index)
            case Binary(op, x, y):
                whole = not index and (op in COMPARE or op in ("//", "%")) and integral(x, self.integers) and integral(y, self.integers)
                val = self._binary(op, self.value(x, frame, index or whole), self.value(y, frame, index or whole), index or whole)
                return Val(f"{val.text}.to(tl.float32)", val.axes, "f") if whole and val.kind == "i" else val
            case Call(fn, args):
                return self._call(fn, [self.value(a, frame, index) for a in args], index)
            case Reduce():
                if self.reduce is None:
                    raise Unsupported(
                        "a reduction within a product's epilogue or an attention's score: give it a name of its own in the spec"
                    )
                return self.reduce(e, frame)
            case Name(word):
                raise AssertionError(f"the name {word} reached a kernel unresolved")
        assert_never(e)

    def _letter(self, letter: Letter, frame: Frame) -> Val:
        if letter not in frame.letters:
            raise Unsupported(
                f"{letter} is free inside a reduction over other letters of the result: give it a name of its own in the spec"
            )
        return frame.letters[letter]

    def _unary(self, op: str, x: Val, index: bool) -> Val:
        if x.kind == "c":
            return number(not x.number if op == "not" else -x.number)
        if op == "not":
            return Val(f"({truth(x)} == 0)" if x.kind != "b" else f"(~{x.text})", x.axes, "b")
        x = arithmetic(x, index)
        return Val(f"(-{x.text})", x.axes, x.kind)

    def _binary(self, op: str, x: Val, y: Val, index: bool) -> Val:
        if x.kind == y.kind == "c":
            folded = fold(op, x.number, y.number)
            if folded is not None:
                return number(folded)
        if op in ("and", "or"):
            return logic(op, x, y, index)
        if op == "/" and index:
            raise Unsupported("a true division in an index: use //")
        x, y, axes, kind = arithmetic(x, index), arithmetic(y, index), x.axes | y.axes, "i" if index else "f"
        if op in COMPARE:
            return Val(f"({x.text} {op} {y.text})", axes, "b")
        if op == "//" or op == "%":
            name = ("floor_div" if op == "//" else "floor_mod") + ("_int" if index else "")
            return Val(f"{name}({x.text}, {y.text})", axes, kind)
        if op == "**":
            return Val(power_text(x, y), axes, kind)
        if y.kind == x.kind == "c":  # what Python refuses to compute, such as 1 / 0
            x = Val(f"tl.full((1, 1), {x.text}, tl.float32)", NONE, "f")
        return Val(f"({x.text} {op} {y.text})", axes, kind)

    def _call(self, fn: str, args: list[Val], index: bool) -> Val:
        if fn == "where":
            condition, then, other = args
            if condition.kind == "c":
                return then if condition.number else other
            args = [Val(truth(condition), condition.axes, "b"), arithmetic(then, index), arithmetic(other, index)]
        elif all(a.kind == "c" for a in args):
            return number(fold_call(fn, [a.number for a in args]))
        else:
            args = [arithmetic(a, index) for a in args]
        if index and FUNCTIONS[fn].interval is None:
            raise Unsupported(f"{fn} in an index: an index is made of integers")
        text = f"{NAME_IN_KERNEL[fn]}({', '.join(a.text for a in args)})"
        return Val(text, NONE.union(*(a.axes for a in args)), "i" if index else "f")

    # loads and addresses

    def _load(self, e: Load, frame: Frame, index: bool) -> Val:
        view = self.reads[self.operand_by_name[e.name]]
        raw = self.load(e, frame)
        if index:
            if view.dtype.is_float:
                raise Unsupported(f"{e.name} is {view.dtype.value} and cannot be an index: use an integer tensor")
            return Val(f"{raw.text}.to(tl.int64)", raw.axes, "i")
        return Val(raw.text if view.dtype is DType.FP32 else f"{raw.text}.to(tl.float32)", raw.axes, "f")

    def load(self, e: Load, frame: Frame) -> Val:
        """A variable that holds `e` as stored; lanes that are not real hold 0."""
        key = (Load(f"{e.name} as stored", e.indices), False)
        if key in frame.memo:
            return frame.memo[key]
        operand = self.operand_by_name[e.name]
        view = self.reads[operand]
        forms = [self.form(i) for i in e.indices]
        looked_up = {d: self._index(i, frame) for d, (f, i) in enumerate(zip(forms, e.indices, strict=True)) if f is None}
        axes = self.axes(forms, frame).union(*(v.axes for v in looked_up.values()))
        text = ""
        for j, box in enumerate(view.boxes):
            conditions = self.conditions(view, box, forms, looked_up, frame)
            if conditions is None:
                continue
            first = self.first.setdefault((operand, j), self.reached(box, forms))
            terms = [*self.address(box, forms, frame.letters, first), *_looked_up_terms(box, looked_up)]
            mask = " & ".join([*(frame.masks[a] for a in sorted(axes) if a in frame.masks), *conditions])
            where = " + ".join([self.pointer(operand, j), *terms])
            here = f"tl.load({where}, mask={mask}, other=0)" if mask else f"tl.load({where})"
            text = f"tl.where({' & '.join(conditions)}, {here}, {text})" if text else here
        assert text, f"no tile of {e.name} holds what the job reads"
        frame.memo[key] = Val(self.assign(e.name, text), axes, "r")
        return frame.memo[key]

    def axes(self, forms: Sequence[tuple[dict[Letter, int], int] | None], frame: Frame) -> Axes:
        """The axes of a linear address; a letter of extent 1 moves none."""
        vals = {x: self._letter(x, frame) for f in forms if f is not None for x in f[0]}
        return NONE.union(*(v.axes for x, v in vals.items() if self.range_by_letter[x].extent > 1))

    def _index(self, e: Expr, frame: Frame) -> Val:
        val = self.value(e, frame, True)
        return val if val.kind == "c" else Val(self.assign("index", val.text), val.axes, "i")

    def conditions(
        self, view: View, box: Box, forms: Sequence[Form | None], looked_up: Mapping[int, Val], frame: Frame
    ) -> list[str] | None:
        """Which lanes lie in `box`, as texts; None where none can. A looked-up index is always held inside."""
        if not self.meets(box, forms):
            return None
        out: list[str] = []
        for d, form in enumerate(forms):
            if form is None:
                out.append(f"({looked_up[d].text} >= {box.start[d]}) & ({looked_up[d].text} < {box.end[d]})")
                continue
            lo, hi = self.hull(form)
            text, origin = " + ".join(_products(form[0], frame.letters)), self.origin(form)
            if lo < box.start[d] and len(view.boxes) > 1:
                out.append(f"({text} >= {box.start[d] - origin})")
            if box.end[d] < hi and len(view.boxes) > 1:
                out.append(f"({text} < {box.end[d] - origin})")
        return out

    def meets(self, box: Box, forms: Sequence[Form | None]) -> bool:
        """Whether some lane of a linear load can lie in `box`."""
        hulls = [None if f is None else self.hull(f) for f in forms]
        return all(h is None or (h[0] < b and a < h[1]) for h, a, b in zip(hulls, box.start, box.end, strict=True))

    def form(self, index: Expr) -> Form | None:
        """`index` as a linear form, without letters of one value: it is the same along their whole axis."""
        form = linear(index)
        if form is None:
            return None
        alone = {x: self.range_by_letter[x].start for x in form[0] if self.range_by_letter[x].extent == 1}
        kept = {x: c for x, c in form[0].items() if x not in alone}
        return kept, form[1] + sum(form[0][x] * start for x, start in alone.items())

    def hull(self, form: Form) -> tuple[int, int]:
        low = high = form[1]
        for letter, c in form[0].items():
            r = self.range_by_letter[letter]
            low += min(c * r.start, c * (r.end - 1))
            high += max(c * r.start, c * (r.end - 1))
        return low, high + 1

    def reached(self, box: Box, forms: Sequence[Form | None]) -> int:
        """The first element of a packed box that a load can reach."""
        reached = [(0 if f is None else max(self.hull(f)[0] - a, 0)) for f, a in zip(forms, box.start, strict=True)]
        return sum(n * step for n, step in zip(reached, row_major(box.shape), strict=True))

    def address(self, box: Box, forms: Sequence[Form | None], letters: Mapping[Letter, Val], first: int = 0) -> list[str]:
        """The terms of an element's offset from element `first` of a packed box; looked-up dimensions are left to the caller."""
        const = -first
        for form, start, step in zip(forms, box.start, row_major(box.shape), strict=True):
            const += 0 if form is None else (self.origin(form) - start) * step
        return [*offset(coefficients(box, forms), letters, self.flats), *([f"({const})"] if const else [])]

    def store(self, target: Sequence[Expr], value: Val, frame: Frame, axes: str, box: Box | None = None) -> None:
        """Write `value` to the result at `target`, over all of `axes`."""
        box = box or self.result.boxes[0]
        forms = [self.form(i) for i in target]
        value = arithmetic(value, False)
        shape = ", ".join(SHAPE[a] for a in axes) + (", 1" if len(axes) == 1 else "")
        across = [] if self.axes(forms, frame) == frozenset(axes) else [f"tl.zeros(({shape}), tl.int{64 if self.wide else 32})"]
        where = " + ".join([self.out, *across, *self.address(box, forms, frame.letters)])
        text = f"tl.full((1, 1), {value.text}, tl.float32)" if value.axes == NONE else value.text
        text = text if value.axes == frozenset(axes) else f"tl.broadcast_to({text}, ({shape}))"
        mask = " & ".join(frame.masks[a] for a in axes if a in frame.masks)
        self.line(f"tl.store({where}, ({text}).to({TL_DTYPE[self.result.dtype]}){f', mask={mask}' if mask else ''})")

    def split(self, flat: str, letters: Sequence[Letter], axes: str) -> dict[Letter, Val]:
        """Variables for letters that together run along the flat index `flat`, the last one fastest; each counts from 0."""
        out: dict[Letter, Val] = {}
        inner = 1
        for n, letter in reversed(list(enumerate(letters))):
            r = self.range_by_letter[letter]
            text = flat if inner == 1 else f"({flat} // {inner})"
            outer = prod(self.range_by_letter[x].extent for x in letters[:n])
            text = text if outer == 1 else f"{text} % {r.extent}"
            out[letter] = Val(self.assign(str(letter), text), frozenset(axes), "i")
            inner *= r.extent
        self.flats.append(Flat(flat, tuple((x, self.range_by_letter[x].extent) for x in letters), out))
        return out


def coefficients(box: Box, forms: Sequence[Form | None]) -> dict[Letter, int]:
    """By how many elements of a packed box each letter moves an address."""
    out: dict[Letter, int] = {}
    for form, step in zip(forms, row_major(box.shape), strict=True):
        for letter, c in form[0].items() if form is not None else ():
            out[letter] = out.get(letter, 0) + c * step
    return out


def _products(coefficient: Mapping[Letter, int], letters: Mapping[Letter, Val]) -> list[str]:
    return [letters[x].text if c == 1 else f"{letters[x].text} * {c}" for x, c in coefficient.items() if c and letters[x].text != "0"]


def _looked_up_terms(box: Box, looked_up: Mapping[int, Val]) -> list[str]:
    step = row_major(box.shape)
    return [f"({v.text} - {box.start[d]}) * {step[d]}" if box.start[d] else f"{v.text} * {step[d]}" for d, v in looked_up.items()]


MOST_IN_32_BITS = 1 << 30
"""Elements of a tile that 32-bit offsets are used for, half of what they reach."""
SHAPE = {"r": "ROWS", "c": "COLS", "k": "INNER", "w": "WIDTH"}
"""The constant that gives each axis its length."""
COMPARE = frozenset(("<", "<=", ">", ">=", "==", "!="))


def launch(name: str, what: str, writer: Writer, constants: Mapping[str, int], programs: int, tiles: Tiles) -> Launch:
    """The finished kernel of a writer, as a whole module. Starts are not specialised: no value of theirs compiles it again."""
    lines = without_unread(writer.lines)
    starts = list(writer.starts.values())
    parameters = [*writer.pointers.values(), *writer.descriptors.values(), writer.out, *starts]
    decorator = f"@triton.jit(do_not_specialize={starts!r})" if starts else "@triton.jit"
    head = [*preamble(lines), "", "", decorator, f"def {name}({', '.join(parameters)}):", f'    """{what}"""']
    text = "\n".join([*head, *(f"    {k}: tl.constexpr = {v}" for k, v in constants.items()), *lines, ""])
    numbers = tuple(writer.range_by_letter[letter].start for letter in writer.starts)
    pointers = tuple((*key, writer.first[key]) for key in writer.pointers)
    return Launch(text, pointers, tuple(writer.descriptors), numbers, tuple(constants.items()), programs, tiles)
