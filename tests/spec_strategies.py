"""Random specs as YAML text: statements of indexed math that elaborate without an error, whatever is drawn.

Like `strategies`, one builder asks a `Pick` for every decision, so it serves hypothesis (`specs`, which shrinks) and seeded sweeps
(`random_spec`). Expressions come from `spec_words`.

Never makes: errors; affine targets; weights of several sources, tied or with grouped axes; expressions that overflow; `//`, `%` or a
comparison of computed floats; more than three letters on a target; extents between 8 and 64 or above 70; `let:`; nested repeats.
"""

from __future__ import annotations

from math import prod
from random import Random
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from einpage.einsum_front.graph.program import Program
from spec_words import LETTERS_BY_SIZE, Named, SpecWords, Term, axes_text
from strategies import Pick


class SpecBuilder(SpecWords):
    """A spec under construction, a statement (or a few that belong together) at a time."""

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
        term = self.named(self.tame(term), where, "sc")
        if self.maybe(3):
            term = self.named(Term(f"tanh({term.text})", 1.0), where, "cap")
        if self.maybe(3):
            extra = self.choose((self.load_with([t], [*heads, s]), Term(f"0.1 * ({t} - {s})", 0.7)))
            term = self.named(self.tame(Term(f"({term.text} + {extra.text})", term.bound + extra.bound)), where, "bias")
        if self.pick(0, 2):
            term = self.named(Term(f"where({self.mask(s, t, where)}, {term.text}, -inf)", term.bound), where, "", always_inline=True)
        weights = self.named(Term(f"softmax[{t}]({term.text})", 1.0), where, "a")
        self.define(self.fresh("o"), [*heads, s, *out], Term(" * ".join([weights.text, v.text][:: self.choose((1, -1))]), v.bound))

    def named(self, term: Term, letters: list[str], prefix: str, always_inline: bool = False) -> Term:
        """`term` as a value of its own, or inline in brackets."""
        if always_inline or self.pick(0, 1):
            return Term(f"({term.text})", term.bound)
        named = self.define(self.fresh(prefix), letters, term)
        return Term(self.load_text(named, letters), named.bound)

    def partial_definitions(self) -> None:
        """A value in partial definitions: numbers in one dimension, letters in the others, not always the same."""
        count = self.pick(1, 3)
        letters = self.some(["i", "k", "p"], 0, 2)
        at = self.pick(0, len(letters))
        name, bound = self.fresh("s"), 0.0
        for n in self.some([str(x) for x in range(count)], count, count):
            own = (
                [self.choose([x for x in sorted(self.extent) if self.extent[x] == self.extent[y]]) for y in letters]
                if self.maybe(4)
                else letters
            )
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
        self.known = [
            Named(k.name, k.dims, 4 * max(k.bound, bound.get(k.name, 0))) for k in self.known if k.name in bound or k.name in declared
        ]
        self.body = [*outside, text]

    def spec(self, most_statements: int) -> str:
        self.declare_sizes()
        plain, contraction = self.plain_statement, self.contraction_with_epilogue
        kinds = (plain, plain, contraction, self.norm, self.attention, self.partial_definitions, self.add, self.repeat)
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
            asked.append(f"  {o.name}: {{axes: {axes_text([size_letter[n].pop() for n in o.dims])}}}\n")
        extra = sorted({(n, c) for o in outputs for n in o.dims for c in range(len(o.dims))})
        axes += "".join(f", o{n}_{c}: {n}" for n, c in extra)
        lines = [
            "einpage: 1\nname: made\n",
            f"sizes: {{{', '.join(f'{k}: {v}' for k, v in self.sizes.items())}}}\n",
            f"axes: {{{axes}}}\n",
            *(["inputs:\n"] if self.inputs else []),
            *(f"  {i}\n" for i in self.inputs),
            *(["weights:\n"] if self.weights else []),
            *(f"  {w}\n" for w in self.weights),
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
            data[i.name] = np.asarray(rng.integers(0, int(i.name.rsplit("_", 1)[1]), i.shape), i.dtype.value)
        else:
            data[i.name] = np.asarray(rng.uniform(-1, 1, i.shape), np.float32)
    for w in program.weights:
        data[w.name] = np.asarray(rng.uniform(-1, 1, w.shape), np.float32)
    return data
