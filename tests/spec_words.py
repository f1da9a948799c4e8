"""Expressions of random specs, as text: loads, masks, reductions and products over letters that are free where they stand.

In: a `Pick` that decides everything. Out: a Term with a bound on its magnitude, by which statements scale it to stay near 1, so that 1e-5
relative in fp32 tells a rounding error from a mistake. Comparisons are between positions, integers and numbers: no rounding flips one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import Any, TypeVar

from strategies import Pick

T = TypeVar("T")

LETTERS_BY_SIZE = {"na": "ij", "nb": "kl", "nc": "pq"}
POINTWISE = (
    ("tanh({})", 1.0), ("sigmoid({})", 1.0), ("silu({})", 4.0), ("gelu({})", 4.0), ("gelu_tanh({})", 4.0), ("relu({})", 4.0),
    ("abs({})", 4.0), ("sin({})", 1.0), ("cos({})", 1.0), ("erf({})", 1.0), ("({}) ** 2", 16.0), ("exp(tanh({}))", 2.8),
    ("rsqrt(({}) ** 2 + 0.5)", 1.5), ("sqrt(abs({}) + 0.1)", 2.1), ("log(abs({}) + 0.5)", 1.6), ("-({})", 4.0),
)  # fmt: skip
"""Functions of an argument of magnitude at most 4, and the magnitude of what they give."""

MASKS = (
    "{t} <= {s}", "{s} >= {t}", "{s} == {t} or {t} % 3 == 1", "{t} <= {s} and {s} - {t} < 2", "abs({s} - {t}) < 2",
    "not ({t} > {s})", "{t} > {s}", "{t} // 2 == {s} // 2", "{t} < {ids}", "{t} <= {s} and {t} < {ids}", "max({s}, {t}) < 3",
    "{s} - {t} < 1 + 2 * {h}", "{t} <= {s} and {t} % 2 <= {h} % 2", "not ({t} > {s} or {t} < {h})",
)  # fmt: skip


def axes_text(letters: list[str]) -> str:
    return " ".join(letters) or '""'


@dataclass(frozen=True, slots=True)
class Term:
    """Text of an expression that can stand as a factor, and a bound on its magnitude."""

    text: str
    bound: float


@dataclass(slots=True)
class Named:
    """An input, a weight or a value that statements may read."""

    name: str
    dims: tuple[int, ...]
    bound: float
    limit: int = 0
    """For an integer input: its numbers are below this."""


@dataclass(slots=True)
class SpecWords:
    """What a spec under construction has declared, and expressions over it."""

    pick: Pick
    extent: dict[str, int] = field(default_factory=dict)
    """By letter."""
    sizes: dict[str, int] = field(default_factory=dict)
    inputs: list[str] = field(default_factory=list)
    weights: list[str] = field(default_factory=list)
    repeated_weights: list[str] = field(default_factory=list)
    ids: list[Named] = field(default_factory=list)
    known: list[Named] = field(default_factory=list)
    """What may be read, the latest last."""
    body: list[str] = field(default_factory=list)
    values: list[str] = field(default_factory=list)
    """Names that statements outside repeats have set."""
    made: int = 0
    in_repeat: bool = False

    def choose(self, options: list[T] | tuple[T, ...] | str) -> Any:
        return options[self.pick(0, len(options) - 1)]

    def maybe(self, one_in: int) -> bool:
        return self.pick(0, one_in - 1) == one_in - 1

    def some(self, letters: list[str], least: int, most: int) -> list[str]:
        """Between `least` and `most` of `letters`, in any order."""
        left, out = list(letters), []
        for _ in range(self.pick(least, min(most, len(letters)))):
            out.append(left.pop(self.pick(0, len(left) - 1)))
        return out

    def fresh(self, prefix: str) -> str:
        self.made += 1
        return f"{prefix}{self.made}"

    def declare_sizes(self) -> None:
        big = self.pick(0, 11)
        for n, (size, letters) in enumerate(LETTERS_BY_SIZE.items()):
            self.sizes[size] = self.pick(65, 70) if big == 9 + n else self.pick(1, 7)
            self.extent |= dict.fromkeys(letters, self.sizes[size])
        self.extent["z"] = 2

    def dims(self, letters: list[str]) -> tuple[int, ...]:
        return tuple(self.extent[x] for x in letters)

    def source(self, letters: list[str]) -> Named:
        """A new weight, or input, over these letters."""
        axes = axes_text(letters)
        kind = self.pick(0, 2)
        if kind == 2 and not self.in_repeat:
            named = Named(self.fresh("x"), self.dims(letters), 1.0)
            self.inputs.append(f"{named.name}: {{axes: {axes}}}")
        elif self.in_repeat and kind:
            named = Named(self.fresh("w"), self.dims(letters), 1.0)
            self.repeated_weights.append(f'{named.name}: {{axes: {axes}, from: "{named.name}.{{r}}"}}')
        else:
            named = Named(self.fresh("w"), self.dims(letters), 1.0)
            self.weights.append(f"{named.name}: {{axes: {axes}, from: {named.name}}}")
        self.known.append(named)
        return named

    def integers(self, letters: list[str], limit: int) -> Named:
        """An integer input over these letters with numbers below `limit`."""
        fits = [i for i in self.ids if i.dims == self.dims(letters) and i.limit <= limit]
        if fits and self.pick(0, 1) == 0:
            return self.choose(fits)  # type: ignore[no-any-return]
        named = Named(f"{self.fresh('ids')}_{limit}", self.dims(letters), limit, limit)
        self.inputs.append(f"{named.name}: {{axes: {axes_text(letters)}, dtype: {self.choose(('int32', 'int64'))}}}")
        self.ids.append(named)
        return named

    def recent(self, wanted: list[Named]) -> Named | None:
        """One of `wanted`, the latest the simplest answer."""
        return self.choose(wanted[::-1]) if wanted else None

    def index(self, extent: int, letters: list[str]) -> str:
        """An index into a dimension of `extent` while `letters` are free: mostly a bare letter."""
        bare = [x for x in letters if self.extent[x] == extent]
        smaller = [x for x in letters if self.extent[x] < extent]
        kind = self.pick(0, 9)
        if bare and kind <= 6:
            return str(self.choose(bare))
        if kind == 7 and smaller:
            x = self.choose(smaller)
            return f"{x} + {self.pick(0, extent - self.extent[x])}"
        if kind == 8 and letters:
            x = self.choose(letters)
            options = [f"{x} % {extent}", f"min({x}, {extent - 1})"]
            if self.extent[x] <= extent:
                options += [f"{extent - 1} - {x}", f"{x} // 2"]
            if 2 * self.extent[x] - 1 <= extent:
                options.append(f"2 * {x}")
            return str(self.choose(options))
        if kind == 9:
            named = self.integers(self.some(letters, 0, 2), extent)
            own = self.bare(named.dims, letters)
            if own is not None:
                return str(self.choose([self.load_text(named, own), f"min({self.load_text(named, own)} + 1, {extent - 1})"]))
        return str(self.choose(bare)) if bare and self.pick(0, 2) else str(self.pick(0, extent - 1))

    def bare(self, dims: tuple[int, ...], letters: list[str]) -> list[str] | None:
        """Letters that can stand bare in dimensions of these extents; None where one has none."""
        out = []
        for extent in dims:
            fits = [x for x in letters if self.extent[x] == extent]
            if not fits:
                return None
            out.append(self.choose(fits))
        return out

    @staticmethod
    def load_text(named: Named, indices: list[str]) -> str:
        return f"{named.name}[{', '.join(indices)}]" if indices else named.name

    def load(self, letters: list[str]) -> Term:
        """Any element that the free `letters` can point at."""
        named = self.recent(self.known) if self.known and self.pick(0, 4) else None
        if named is None:
            named = self.source(self.some(letters, 0, 3))
        return Term(self.load_text(named, [self.index(n, letters) for n in named.dims]), named.bound)

    def load_with(self, must: list[str], may: list[str]) -> Term:
        """An element whose indices are bare letters, each of `must` among them, the others of `may`."""
        need = sorted(self.dims(must))
        fits = [k for k in self.known if len(k.dims) >= len(need) and all(k.dims.count(n) >= need.count(n) for n in set(need))]
        named = self.recent(fits) if self.pick(0, 2) else None
        if named is not None:
            indices: list[str] = [""] * len(named.dims)
            for x in must:
                places = [d for d, n in enumerate(named.dims) if n == self.extent[x] and not indices[d]]
                indices[self.choose(places)] = x
            rest = [x for x in may if x not in must]
            for d, n in enumerate(named.dims):
                if not indices[d]:
                    free = [x for x in rest if self.extent[x] == n and x not in indices]
                    indices[d] = self.choose(free) if free and self.pick(0, 3) else str(self.pick(0, n - 1))
            return Term(self.load_text(named, indices), named.bound)
        letters = must + self.some([x for x in may if x not in must], 0, 2)
        letters = self.some(letters, len(letters), len(letters))
        return Term(self.load_text(self.source(letters), letters), 1.0)

    @staticmethod
    def tame(term: Term, most: float = 4.0) -> Term:
        """`term` scaled down where it may be larger than `most`."""
        return term if term.bound <= most else Term(f"(({term.text}) * {most / term.bound:.3g})", most)

    def expression(self, letters: list[str], depth: int) -> Term:
        """Any expression whose free letters are among `letters`."""
        kind = self.pick(0, 14) if depth else self.pick(0, 3)
        if kind <= 2:
            return self.load(letters)
        if kind == 3:
            if letters and self.pick(0, 1):
                x = self.choose(letters)
                return Term(f"({x} * 0.1)", 0.1 * self.extent[x])
            return Term(str(self.choose((0.5, 1.25, 2, "pi"))), 4.0)
        if kind <= 6:
            a, b = self.tame(self.expression(letters, depth - 1)), self.tame(self.expression(letters, depth - 1))
            op = self.choose("+-*")
            return Term(f"({a.text} {op} {b.text})", a.bound * b.bound if op == "*" else a.bound + b.bound)
        if kind == 7:
            a, b = self.tame(self.expression(letters, depth - 1)), self.tame(self.expression(letters, depth - 1))
            form = self.choose(("{} / (1.5 + abs({}))", "min({}, {})", "max({}, {})", "({} - {}) / 2"))
            return Term(f"({form.format(a.text, b.text)})", a.bound + b.bound)
        if kind <= 9:
            form, bound = self.choose(POINTWISE)
            return Term(f"({form.format(self.tame(self.expression(letters, depth - 1)).text)})", bound)
        if kind == 10 and len(letters) >= 2:
            s, t = self.some(letters, 2, 2)
            a, b = self.expression(letters, depth - 1), self.expression(letters, depth - 1)
            return Term(f"where({self.mask(s, t, letters)}, {a.text}, {b.text})", max(a.bound, b.bound))
        if kind <= 12:
            return self.reduction(letters, depth - 1)
        return self.product(letters, depth - 1)

    def mask(self, s: str, t: str, letters: list[str]) -> str:
        form = self.choose(MASKS)
        ids = ""
        if "{ids}" in form:
            own = self.some([x for x in letters if x != t], 0, 1)
            ids = self.load_text(self.integers(own, self.extent[t] + 1), own)
        others = [x for x in letters if x not in (s, t)]
        return str(form.format(s=s, t=t, ids=ids, h=self.choose(others) if others and "{h}" in form else 1))

    def reduction(self, letters: list[str], depth: int) -> Term:
        """A written reduction; a softmax only over letters that stay free."""
        op = self.choose(("mean", "sum", "max", "min", "softmax"))
        pool = letters if op == "softmax" else sorted(self.extent)
        if not pool:
            return self.load(letters)
        over = self.some(pool, 1, 2)
        inner = [*letters, *(x for x in over if x not in letters)]
        text, bound = "", 0.0
        for x in over:
            term = (
                self.load_with([x], inner) if self.pick(0, 3) else self.tame(self.expression(inner, depth)) if depth else self.load(inner)
            )
            text, bound = (f"{text} * {term.text}", bound * term.bound) if text else (term.text, term.bound)
        words = text.replace("[", " ").replace("]", " ").replace(",", " ").replace("(", " ").replace(")", " ").split()
        text += "".join(f" + {x} * 0.1" for x in over if x not in words)
        body = self.tame(Term(text, bound + 0.1 * sum(self.extent[x] for x in over)))
        n = prod(self.extent[x] for x in over) if op == "sum" else 1
        return Term(f"{op}[{','.join(over)}]({body.text})", body.bound * n)

    def product(self, letters: list[str], depth: int) -> Term:
        """Two or three factors with implied sums over letters that stand in two or more of them."""
        summed = self.some([x for x in sorted(self.extent) if x not in letters], 0, 2)
        count = self.pick(2, 3)
        in_factor: list[list[str]] = [[] for _ in range(count)]
        for x in summed:
            for f in self.some([str(n) for n in range(count)], 2, count):
                in_factor[int(f)].append(x)
        text, bound = "", float(prod(self.extent[x] for x in summed))
        for n, must in enumerate(in_factor):
            own = self.some([x for x in letters if x not in must], 0, 2)
            term = self.factor([*must, *own], [*letters, *must])
            divides = n and term.text.startswith("(1.5 + abs(")
            sign = self.choose(("", "", "-", "(-"))
            if divides and self.maybe(3):
                term = Term(f"({term.text} / (1.5 + abs({self.load(letters).text})))", term.bound)
            factor = f"{sign}{term.text}{')' if sign == '(-' else ''}"
            text = f"{text} {'/' if divides else '*'} {factor}" if n else factor
            bound *= term.bound
        if self.maybe(3):
            text, bound = f"{text} {self.choose(('* 0.5', '/ 2', '/ sqrt(3)'))}", bound
        return self.tame(Term(f"({text})", bound))

    def factor(self, must: list[str], may: list[str]) -> Term:
        """A factor of a product; letters outside `may` never appear, those of `must` do."""
        load = self.load_with(must, may)
        match self.pick(0, 7):
            case 5:
                form, bound = self.choose(POINTWISE)
                return Term(f"({form.format(self.tame(load).text)})", bound)
            case 6:
                return Term(f"(1.5 + abs({load.text}))", 1.5 + load.bound)
            case 7 if must:
                return Term(f"softmax[{must[0]}]({self.tame(load).text})", 1.0)
        return load
