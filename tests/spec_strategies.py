"""Random specs as YAML text: statements of indexed math that elaborate without an error, whatever is drawn.

Like `strategies`, one builder asks a `Pick` for every decision, so it serves hypothesis (`specs`, which shrinks) and seeded sweeps
(`random_spec`). Every expression is made with a bound on its magnitude and scaled to stay near 1, so that 1e-5 relative in fp32 tells
a rounding error from a mistake. Comparisons are between positions, integers and numbers only: no rounding can flip one.

Never makes: errors; affine targets; weights of several sources, tied or with grouped axes; expressions that overflow; `//`, `%` or a
comparison of computed floats; more than three letters on a target; extents between 8 and 64 or above 70; `let:`; nested repeats.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from random import Random
from typing import Any, TypeVar

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from einpage.einsum_front.program import Program
from strategies import Pick

T = TypeVar("T")

LETTERS_BY_SIZE = {"na": "ij", "nb": "kl", "nc": "pq"}
POINTWISE = (
    ("tanh({})", 1.0), ("sigmoid({})", 1.0), ("silu({})", 4.0), ("gelu({})", 4.0), ("gelu_tanh({})", 4.0), ("relu({})", 4.0), ("abs({})", 4.0),
    ("sin({})", 1.0), ("cos({})", 1.0), ("erf({})", 1.0), ("({}) ** 2", 16.0), ("exp(tanh({}))", 2.8), ("rsqrt(({}) ** 2 + 0.5)", 1.5),
    ("sqrt(abs({}) + 0.1)", 2.1), ("log(abs({}) + 0.5)", 1.6), ("-({})", 4.0),
)  # fmt: skip
"""Functions of an argument of magnitude at most 4, and the magnitude of what they give."""

MASKS = (
    "{t} <= {s}", "{s} >= {t}", "{s} == {t} or {t} % 3 == 1", "{t} <= {s} and {s} - {t} < 2", "abs({s} - {t}) < 2", "not ({t} > {s})", "{t} > {s}",
    "{t} // 2 == {s} // 2", "{t} < {ids}", "{t} <= {s} and {t} < {ids}", "max({s}, {t}) < 3",
)  # fmt: skip


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
class SpecBuilder:
    """A spec under construction."""

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
        axes = " ".join(letters) or '""'
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
        self.inputs.append(f"{named.name}: {{axes: {' '.join(letters) or '""'}, dtype: {self.choose(('int32', 'int64'))}}}")
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
            form = self.choose(("{} / (1.5 + abs({}))", "min({}, {})", "max({}, {})", "({} if {})"[:0] or "({} - {})"))
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
        return str(form.format(s=s, t=t, ids=ids))

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
            term = self.load_with([x], inner) if self.pick(0, 3) else self.tame(self.expression(inner, depth)) if depth else self.load(inner)
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
            text = f"{text} {'/' if term.text.startswith('(1.5 + abs(') else '*'} {term.text}" if n else term.text
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

    def state(self, text: str) -> None:
        self.body.append(text)

    def define(self, name: str, letters: list[str], term: Term) -> Named:
        """`name[letters] = term`, scaled where it may be large."""
        term = self.tame(term)
        self.state(f"{self.load_text(Named(name, (), 0), letters)} = {term.text}")
        named = Named(name, self.dims(letters), term.bound)
        self.known.append(named)
        if not self.in_repeat:
            self.values.append(name)
        return named

    def target(self, most: int = 3) -> list[str]:
        return self.some(sorted(self.extent), 0 if self.maybe(6) else 1, most)

    def plain_statement(self) -> None:
        letters = self.target()
        self.define(self.fresh("v"), letters, self.expression(letters, 3))

    def contraction_with_epilogue(self) -> None:
        """One or two products, then a statement that finishes them; perhaps over one shared operand."""
        letters = self.some(["i", "k", "p", "z"], 1, 3)
        summed = self.some([x for x in "jlq" if x not in letters], 1, 2)
        shared = self.load_with([*summed, letters[0]], [])
        terms = []
        for _ in range(self.pick(1, 2)):
            other = self.load_with([*summed, *letters[1:]], letters[:1])
            order = self.some(letters, len(letters), len(letters))
            factors = [shared.text, other.text][:: self.choose((1, -1))]
            named = self.define(self.fresh("c"), order, Term(" * ".join(factors), shared.bound * other.bound * prod(self.dims(summed))))
            terms.append(Term(self.load_text(named, order), named.bound))
        text, bound = terms[0].text, terms[0].bound
        if len(terms) > 1:
            text, bound = f"{text} * sigmoid({terms[1].text})", bound
        if self.pick(0, 1):
            more = self.load_with(self.some(letters, 0, 2), letters)
            text, bound = f"{text} + {more.text}", bound + more.bound
        self.define(self.fresh("v"), self.some(letters, len(letters), len(letters)), Term(text, bound))

    def norm(self) -> None:
        """A normalisation over one or two letters, in one statement or in several."""
        letters = self.some(sorted(self.extent), 1, 3)
        over = letters[: self.pick(1, min(2, len(letters)))]
        given = self.tame(self.load_with(letters, letters))
        row = ",".join(over)
        if self.pick(0, 1):
            mean = self.define(self.fresh("mu"), [x for x in letters if x not in over], Term(f"mean[{row}]({given.text})", given.bound))
            at = self.load_text(mean, [x for x in letters if x not in over])
        else:
            at = f"mean[{row}]({given.text})"
        centred = self.define(self.fresh("u"), letters, Term(f"{given.text} - {at}", 2 * given.bound))
        u = self.load_text(centred, letters)
        scale = self.load_with(over, [])
        text = f"{u} * rsqrt(mean[{row}]({u} ** 2) + 0.1)" + (f" * {scale.text}" if self.pick(0, 1) else "")
        if self.maybe(3):
            text = f"{text} + {self.load_with(over, []).text}"
        self.define(self.fresh("n"), letters, Term(text, 4 * centred.bound))

    def attention(self) -> None:
        """Scores, mask, softmax, product, in one to five statements, over letters that are drawn."""
        s, t = ("i", "j") if self.pick(0, 3) else self.some(["i", "j", "l"], 2, 2)
        heads = self.some(["p", "z"], 0, 2)
        depth = self.some([x for x in ("k", "q", "l") if x not in (s, t)], 1, 2)
        out = self.some([x for x in ("k", "l", "q") if x not in (s, t)], 0, 2)
        q = self.load_with([s, *depth], heads)
        k = self.load_with([t, *depth], heads)
        v = self.load_with([t, *out], heads)
        term = Term(f"{q.text} * {k.text} / 2", q.bound * k.bound * prod(self.dims(depth)))
        where = [*heads, s, t]
        term = self.cut(self.tame(term), where, "sc")
        if self.maybe(3):
            term = self.cut(Term(f"tanh({term.text})", 1.0), where, "cap")
        if self.maybe(3):
            extra = self.choose((self.load_with([t], [*heads, s]), Term(f"0.1 * ({t} - {s})", 0.7)))
            term = self.cut(self.tame(Term(f"({term.text} + {extra.text})", term.bound + extra.bound)), where, "bias")
        if self.pick(0, 2):
            term = self.cut(Term(f"where({self.mask(s, t, where)}, {term.text}, -inf)", term.bound), where, "", always_inline=True)
        weights = self.cut(Term(f"softmax[{t}]({term.text})", 1.0), where, "a")
        self.define(self.fresh("o"), [*heads, s, *out], Term(" * ".join([weights.text, v.text][:: self.choose((1, -1))]), v.bound))

    def cut(self, term: Term, letters: list[str], prefix: str, always_inline: bool = False) -> Term:
        """`term` as a value of its own, or as it stands in brackets."""
        if always_inline or self.pick(0, 1):
            return Term(f"({term.text})", term.bound)
        named = self.define(self.fresh(prefix), letters, term)
        return Term(self.load_text(named, letters), named.bound)

    def parts(self) -> None:
        """A value in parts: numbers in one dimension, letters in the others, not always the same."""
        count = self.pick(1, 3)
        letters = self.some(["i", "k", "p"], 0, 2)
        at = self.pick(0, len(letters))
        name, bound = self.fresh("s"), 0.0
        for n in self.some([str(x) for x in range(count)], count, count):
            own = [self.choose([x for x in sorted(self.extent) if self.extent[x] == self.extent[y]]) for y in letters] if self.maybe(4) else letters
            own = own if len(set(own)) == len(own) else letters
            term = self.tame(self.expression(own, 2))
            self.state(f"{name}[{','.join([*own[:at], n, *own[at:]])}] = {term.text}")
            bound = max(bound, term.bound)
        self.known.append(Named(name, (*self.dims(letters[:at]), count, *self.dims(letters[at:])), bound))
        if not self.in_repeat:
            self.values.append(name)

    def add(self) -> None:
        """`x[…] += …` or `x[…] = f(x[…])`: another version of a value."""
        own = [k for k in self.known if k.name in self.values]
        named = self.recent(own)
        letters = None if named is None else self.bare(named.dims, sorted(self.extent))
        if named is None or letters is None or len(set(letters)) < len(letters):
            return self.plain_statement()
        at = self.load_text(named, letters)
        term = self.tame(self.expression(letters, 2), 1.0)
        if self.pick(0, 1):
            self.state(f"{at} += {term.text}")
            self.known.append(Named(named.name, named.dims, named.bound + term.bound))
        else:
            self.state(f"{at} = {at} * 0.5 + {term.text}")
            self.known.append(Named(named.name, named.dims, 0.5 * named.bound + term.bound))
        self.known.remove(named)

    def repeat(self) -> None:
        """Statements of two iterations that carry one value on."""
        before, outside, self.body, self.repeated_weights = list(self.known), self.body, [], []
        bound = {k.name: k.bound for k in before}
        self.in_repeat = True
        for _ in range(self.pick(1, 3)):
            self.choose((self.plain_statement, self.norm, self.contraction_with_epilogue, self.add))()
        self.add()
        self.in_repeat = False
        weights = "".join(f"        {w}\n" for w in self.repeated_weights)
        text = "repeat: 2\n    as: r\n" + (f"    weights:\n{weights}" if weights else "") + "    body:\n"
        text += "".join(f"      - '{s}'\n" for s in self.body)
        declared = {w.split(":")[0] for w in self.weights + self.inputs}
        self.known = [Named(k.name, k.dims, 4 * max(k.bound, bound.get(k.name, 0))) for k in self.known if k.name in bound or k.name in declared]
        self.body = [*outside, text]

    def spec(self, most_statements: int) -> str:
        self.declare_sizes()
        kinds = (
            self.plain_statement, self.plain_statement, self.contraction_with_epilogue, self.norm, self.attention, self.parts, self.add, self.repeat,
        )  # fmt: skip
        for _ in range(self.pick(1, most_statements)):
            self.choose(kinds)()
        if not self.values:
            self.plain_statement()
        by_name = {k.name: k for k in self.known}
        values = [name for name in dict.fromkeys(self.values) if name in by_name]
        asked = [name for name in values if name == values[-1] or self.maybe(5)]
        asked += [k.name for k in self.known if k.name not in self.values and self.maybe(25)]
        return self.written([by_name[name] for name in asked])

    def written(self, outputs: list[Named]) -> str:
        """The YAML text."""
        axes = ", ".join([*(f"{x}: {size}" for size, letters in LETTERS_BY_SIZE.items() for x in letters), "z: 2"])
        asked = []
        for o in outputs:
            size_letter = {n: [f"o{n}_{c}" for c in range(len(o.dims))] for n in o.dims}
            asked.append(f"  {o.name}: {{axes: {' '.join(size_letter[n].pop() for n in o.dims) or '""'}}}\n")
        extra = sorted({(n, c) for o in outputs for n in o.dims for c in range(len(o.dims))})
        axes += "".join(f", o{n}_{c}: {n}" for n, c in extra)
        lines = [
            "einpage: 1\nname: made\n",
            f"sizes: {{{', '.join(f'{k}: {v}' for k, v in self.sizes.items())}}}\n",
            f"axes: {{{axes}}}\n",
            *([f"inputs:\n{''.join(f'  {i}\n' for i in self.inputs)}"] if self.inputs else []),
            *([f"weights:\n{''.join(f'  {w}\n' for w in self.weights)}"] if self.weights else []),
            "body:\n",
            *(f"  - {s}" if s.startswith("repeat") else f"  - '{s}'\n" for s in self.body),
            "outputs:\n",
            *asked,
        ]
        return "".join(lines)


def spec_text(pick: Pick, most_statements: int = 5) -> str:
    """A spec out of the decisions of `pick`. See the module for what it never makes."""
    return SpecBuilder(pick).spec(most_statements)


@st.composite
def specs(draw: st.DrawFn, most_statements: int = 5) -> str:
    """Random specs as YAML text; see the module for what they never hold."""
    return spec_text(lambda low, high: draw(st.integers(low, high)), most_statements)


def random_spec(seed: int, most_statements: int = 5) -> str:
    """The same from a seed: for sweeps. Never shrinks."""
    return spec_text(Random(seed).randint, most_statements)


def random_data(program: Program, seed: int) -> dict[str, NDArray[Any]]:
    """Data for every input and weight by name: floats in -1 … 1, integers below the limit that their name ends in."""
    rng = np.random.default_rng(seed)
    data: dict[str, NDArray[Any]] = {}
    for i in program.inputs:
        if i.dtype is not None and not i.dtype.is_float:
            data[i.name] = rng.integers(0, int(i.name.rsplit("_", 1)[1]), i.shape).astype(i.dtype.value)
        else:
            data[i.name] = rng.uniform(-1, 1, i.shape).astype(np.float32)
    for w in program.weights:
        data[w.name] = rng.uniform(-1, 1, w.shape).astype(np.float32)
    return data
