"""The source of one Triton kernel as it grows: its lines, the names in use, its parameters; and the finished module.

In: lines, tiles that are pointed to, letters whose start is needed. Out: a `Launch`. Offsets take 32 bits where every tile allows it.
Text only: Triton is not imported here.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from einpage.einsum_front.algebra.expr import Letter
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.graph.job import View
from einpage.kernels.tiles.fp32_products import Fp32Products
from einpage.kernels.tiles.tiles import Tiles
from einpage.kernels.writer.launch import Descriptor, Launch
from einpage.kernels.writer.preamble import RESERVED, preamble

MOST_IN_32_BITS = 1 << 30
"""Elements of a tile that 32-bit offsets are used for, half of what they reach."""
MOST_NESTED = 32
"""Choices in one expression: Python reads no more than 200 parentheses in each other."""


class KernelText:
    """Lines of one kernel, its parameters, and the names in use."""

    def __init__(self, reads: Sequence[View], result: View, others: Sequence[View] = ()) -> None:
        self.lines: list[str] = []
        self.names: set[str] = set(RESERVED)
        self.reads, self.result, self.results = tuple(reads), result, (result, *others)
        self.wide = any(box.size > MOST_IN_32_BITS for v in (*reads, *self.results) for box in v.boxes)
        """Whether offsets need 64 bits; what a block's masked lanes compute stays within 32 bits otherwise."""
        self.pointers: dict[tuple[int, int], str] = {}
        """The parameter that points to (operand, tile)."""
        self.base: dict[tuple[int, int], int] = {}
        """The element of a tile that its pointer points to: the first that a load reads, so that no text says what lies before."""
        self.descriptors: dict[Descriptor, str] = {}
        """The parameters that describe a matrix to the copy engine."""
        self.starts: dict[Letter, str] = {}
        """The parameter that holds where a letter's range starts, for those whose value is used."""
        self.out = self.fresh("out_ptr")
        self.outs = (self.out, *(self.fresh(f"{view.name}_out_ptr") for view in others))
        """The parameters that point to the results."""
        self.fp32_products: Fp32Products | None = None
        """How factors of fp32 are multiplied; None where there were none."""
        self._depth = 1

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

    def lanes(self, constant: str, across: str) -> str:
        """The numbers of an axis of `constant` lanes, `across` being `[None, :]` or `[:, None]`, wide enough for any stride."""
        return f"tl.arange(0, {constant}){across}{'.to(tl.int64)' if self.wide else ''}"

    def dot(self, left: str, right: str, acc: str, dtypes: Sequence[DType], asked: Fp32Products) -> str:
        """A product of two blocks added to `acc`, where that is no empty text; factors of two dtypes, or of fp32, are multiplied as `asked`
        says."""
        parts = [left, right, acc] if acc else [left, right]
        if set(dtypes) not in ({DType.BF16}, {DType.FP16}):
            self.fp32_products = asked
            parts.append(f'input_precision="{asked.value}"')
        return f"tl.dot({', '.join(parts)})"

    def descriptor(self, d: Descriptor, name: str) -> str:
        """The parameter that describes `d`, a part of what is called `name`."""
        if d not in self.descriptors:
            self.descriptors[d] = self.fresh(f"{name}_desc")
        return self.descriptors[d]

    def line(self, text: str) -> None:
        """Append a line at the present depth of loops."""
        self.lines.append("    " * self._depth + text)

    def assign(self, hint: str, text: str) -> str:
        """A new variable with this value; its name."""
        name = self.fresh(hint)
        self.line(f"{name} = {text}")
        return name

    def choice(self, hint: str, parts: Sequence[tuple[str, str]]) -> str:
        """An expression for the last of `parts`, conditions and what they choose, whose condition holds; the first where none does. Where
        they are many, a variable and a line each."""
        (_, text), *others = parts
        if len(parts) > MOST_NESTED:
            name = self.assign(hint, text)
            for condition, part in others:
                self.line(f"{name} = tl.where({condition}, {part}, {name})")
            return name
        for condition, part in others:
            text = f"tl.where({condition}, {part}, {text})"
        return text

    @contextmanager
    def loop(self, variable: str, values: str, comment: str = "") -> Iterator[None]:
        """Lines written inside are the body of `for variable in values`."""
        self.line(f"for {variable} in {values}:" + (f"  # {comment}" if comment else ""))
        self._depth += 1
        yield
        self._depth -= 1

    def pointer(self, operand: int, tile: int) -> str:
        """The parameter that points to a tile."""
        key = (operand, tile)
        if key not in self.pointers:
            name = self.reads[operand].name
            many = len(self.reads[operand].boxes) > 1
            self.pointers[key] = self.fresh(f"{name}_{tile}_ptr" if many else f"{name}_ptr")
        return self.pointers[key]

    def start(self, letter: Letter) -> str:
        """The parameter that holds where the job's range of `letter` starts."""
        if letter not in self.starts:
            self.starts[letter] = self.fresh(f"{letter}_start")
        return self.starts[letter]

    def module(
        self, name: str, what: str, constants: Mapping[str, int], start_by_letter: Mapping[Letter, int], programs: int, tiles: Tiles
    ) -> Launch:
        """The finished kernel, as a whole module. Starts are not specialised: no value of theirs compiles it again."""
        lines = without_unread(self.lines)
        starts = list(self.starts.values())
        parameters = [*self.pointers.values(), *self.descriptors.values(), *self.outs, *starts]
        decorator = f"@triton.jit(do_not_specialize={starts!r})" if starts else "@triton.jit"
        head = [*preamble(lines), "", "", decorator, f"def {name}({', '.join(parameters)}):", f'    """{what}"""']
        text = "\n".join([*head, *(f"    {k}: tl.constexpr = {v}" for k, v in constants.items()), *lines, ""])
        pointers = tuple((*key, self.base[key]) for key in self.pointers)
        numbers = tuple(start_by_letter[letter] for letter in self.starts)
        return Launch(text, pointers, tuple(self.descriptors), numbers, tuple(constants.items()), programs, tiles, self.fp32_products)


def without_unread(lines: list[str]) -> list[str]:
    """`lines` without assignments that nothing reads, such as letters that no address and no value needs."""
    words = [frozenset(_WORD.findall(line.split("#")[0])) for line in lines]
    uses = Counter(w for found in words for w in found)
    read = [True] * len(lines)
    changed = True
    while changed:
        changed = False
        for n in reversed(range(len(lines))):
            assigned = _ASSIGNED.match(lines[n])
            if read[n] and assigned is not None and uses[assigned[1]] == 1:
                read[n], changed = False, True
                uses.subtract(words[n])
    return [line for line, is_read in zip(lines, read, strict=True) if is_read]


_WORD = re.compile(r"\w+")
_ASSIGNED = re.compile(r"\s*(\w+) = ")
