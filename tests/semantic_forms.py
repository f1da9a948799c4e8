"""Statements for the semantic fuzzer that the other sweeps leave out, in any of the places where they may stand.

Divisors in sums, with signs and inside each other; indices under conditions (convolutions, strides, shifts), also by integer inputs with a
range; a softmax written out; floats compared, floored and raised; brackets that decide where a letter is summed. Data of weights and inputs
lie in -1 … 1.
"""

from __future__ import annotations

from math import prod

from spec_strategies import SpecBuilder
from spec_words import Named, Term, axes_text

POSITIONS = (
    "({x} - 3) // 2", "({x} - 4) % 3", "({x} + 1) ** 2 % 5", "7 // ({y} + 1) - {x}", "-{x} ** 2 * 0.1", "2 ** (-{x} / 2)",
    "max({x}, max({y}, 1)) - min({x}, 2)", "abs({x} - {y}) * half", "({x} >= {y}) + ({x} == 1)", "{x} * {y} - na // 2", "not {x}",
    "({x} - {y} - 1) // 3 * 0.5 + ({y} - {x}) % 4", "-7 // ({x} + 2) + (-7) % ({y} + 2)", "(na + 1 - {x}) / (nb + {y}) - third",
    "sin({x} * 10000.0 ** (-{y} / nb)) * pi", "where({x} < {y}, {x}, -{y})", "({x} and {y}) - ({x} or 2)",
    "({x} or {y}) * half + (2 and {y})", "1.1 * {x} - 0.3 - 1e-3 * {y}",
)  # fmt: skip
"""Of letters x and y."""
FLOATS = (
    "where({x} > {y}, {x}, -{z})", "where({x} <= 0.25, {y}, 2)", "({x} >= {y}) * {z}", "({x} != {y}) - ({x} < 0)", "{x} // 0.25",
    "{x} % 0.75", "({x} + 1.5) ** 1.5", "2 ** {x}", "{x} ** 3 - {y}", "(1.5 + {x}) ** -2", "where({x}, {y}, {z})",
    "where(not {x} > {y} and {z} < 0.5, 1, {x})", "1 - ({x} - {y}) - {z}", "{x} / ({y} + 1.5) / ({z} - 1.5)", "{x} - {y} * -{z}",
    "-{x} ** 2", "(0.1 + {x}) * 0.7", "max({x}, -{y}) + min({z}, 0)", "where({x} < 0, sqrt(-{x}), log({x} + 0.5))",
)  # fmt: skip
"""Of elements of arrays x, y and z."""
QUOTIENTS = (
    "{x} / {d} * {y}", "{x} * {y} / {d} / 2", "sum[{j}](-{x} * ({y} / {d}))", "mean[{j}](({x} / -{d}) / {y} ** 0)", "{x} / (-{d}) * {y}",
    "2 / {d} * {x} * {y}", "{x} * (-{y}) / (-{d})", "(-{x}) * (-{y}) * (-{d})", "sum[{j}]({x} / ({d} / {y}))", "sum[{j}](-{x} / -{d})",
    "mean[{j}](-({x} * {y}) / {d})", "{x} / {d} / (1.5 + abs({y}))", "sum[{j}](-(({x} / {d}) * {y}))",
    "sum[{j}]({x} / ({d} * (1.5 + abs({y}))))", "{x} * {y} / (-({d} / 1.5))", "sum[{j}]({d} * -{x} + {y})",
    "-sum[{j}]({x} * {y}) / 3 - sum[{j}]({x} / {d})", "({x} * {y}) / -{d} * {x}",
)  # fmt: skip
"""Sums over the letter j of x, y and d; d is never 0."""
BRACKETS = (
    "({w} * {x}) * {y} * {z}", "{y} * ({x} * {w}) * {z}", "({w} * {x}) * ({y} * {z})", "{y} * ({w} * {x} * {z})",
    "-{w} * {x} * {y} * {z}", "({w} * {x} * {y}) / 2 * {z}", "{w} * {y} * {x} * {z} / sqrt(3)", "-({w} * {x}) * ({y} * -{z})",
    "({w} * {x} - {y} * {z}) * 0.5",
)  # fmt: skip
"""Where letters are summed: in w and x one, in y and z another."""


class SemanticForms(SpecBuilder):
    """A spec under construction, with more kinds of statements."""

    def load_source(self, letters: list[str]) -> tuple[Named, list[str]]:
        """A new weight or input over these letters, in any order, and that order."""
        order = self.some(letters, len(letters), len(letters))
        return self.source(order), order

    def raw(self, letters: list[str]) -> str:
        """An element of a new array, as text."""
        return self.load_text(*self.load_source(letters))

    def shifted(self) -> None:
        """`where(i >= 1, x[i - 1], 0)` and its like, alone or times weights over the taps."""
        s = self.choose("ijkl")
        given = self.load_source([s, *self.some([x for x in "pz" if x != s], 0, 1)])
        letters = given[1]
        extent, others = self.extent[s], [x for x in letters if x != s]
        by = self.pick(1, 3)

        def at(index: str) -> str:
            return self.load_text(given[0], [index if x == s else x for x in letters])

        match self.pick(0, 5):
            case 0:
                text = f"where({s} >= {by}, {at(f'{s} - {by}')}, {self.choose(('0', '0.5', at(s)))})"
            case 1:
                text = f"where({s} + {by} < {extent}, {at(f'{s} + {by}')}, -1)"
            case 2:
                text = f"where({s} < {by} or {s} - {by} >= {extent}, 0.25, {at(f'{s} - {by}')})"
            case 3:
                text = f"where(not ({s} == 0) and {s} % 2 == 0, {at(f'{s} // 2')}, {at(f'{extent - 1} - {s}')})"
            case 4:
                text = f"where(2 * {s} - {by} >= 0 and 2 * {s} - {by} < {extent}, {at(f'2 * {s} - {by}')}, -{at(s)})"
            case _:
                return self.convolution(given[0], letters, s)
        self.define(self.fresh("sh"), self.some([s, *others], 1 + len(others), 1 + len(others)), Term(text, max(1.0, given[0].bound)))

    def convolution(self, given: Named, letters: list[str], s: str) -> None:
        """Taps of `given` along `s`, times weights: causal, or padded with a stride."""
        taps = [x for x in "qlz" if x not in letters and self.extent[x] < 8]
        if not taps:
            return self.plain_statement()
        tap, others, extent = self.choose(taps), [x for x in letters if x != s], self.extent[s]
        back, stride = self.pick(0, self.extent[tap]), self.pick(1, 2)
        index = f"{s} + {tap}" if stride == 1 else f"2 * {s} + {tap}"
        inside = [f"{index} >= {back}"] if back else []
        inside += [f"{index} < {extent + back}"] if self.extent[tap] - 1 > back or stride == 2 else []
        load = self.load_text(given, [(f"{index} - {back}" if back else index) if x == s else x for x in letters])
        padded = f"where({' and '.join(inside)}, {load}, 0)" if inside else load
        out = self.some(["p", "z"], 0, 1)
        weight = self.load_with([tap, *self.some(others, 0, len(others))], [x for x in out if x not in (*letters, tap)])
        target = [s, *(x for x in others if (f"{x}]" not in weight.text and f"{x}," not in weight.text) or self.pick(0, 1))]
        target += [x for x in out if x not in (*target, tap, *others)]
        self.define(self.fresh("cv"), target, Term(f"{padded} * {weight.text}", weight.bound * prod(self.dims([tap, *others]))))

    def positions(self) -> None:
        """Whole numbers out of positions, and what is made of them."""
        letters = self.some(["i", "k", "p", "z"], 1, 3)
        text = str(self.choose(POSITIONS)).format(x=letters[0], y=letters[-1])
        self.define(self.fresh("ps"), letters, Term(text, 50.0))

    def floats(self) -> None:
        """Elements compared, floored and raised."""
        letters = self.some(["i", "k", "p", "z"], 1, 3)
        x, y, z = self.raw(letters), self.raw(letters[:1]), self.raw(letters[-1:])
        self.define(self.fresh("fl"), letters, Term(str(self.choose(FLOATS)).format(x=x, y=y, z=z), 4.0))

    def quotients(self) -> None:
        """Sums over products with divisors and signs."""
        letters = self.some(["i", "k", "p"], 1, 2)
        j = self.choose([x for x in "jlqz" if x not in letters])
        d = self.raw([j, *self.some(letters, 0, 1)])
        d = str(self.choose(("(1.5 + abs({d}))", "(2 - {d})", "(-1.5 - abs({d}))", "(-({d} + 1.5))", "({d} - 3)"))).format(d=d)
        text = str(self.choose(QUOTIENTS)).format(x=self.raw([j, letters[0]]), y=self.raw([j, *letters[1:]]), d=d, j=j)
        self.define(self.fresh("qu"), letters, Term(text, 8.0 * self.extent[j]))

    def brackets(self) -> None:
        """Products of products: the brackets decide where a letter is summed."""
        letters = self.some(["i", "k"], 1, 2)
        a, b = self.some([x for x in "jlpq" if self.extent[x] < 10] or ["z"], 1, 2)[:1], ["z"]
        a = a if a != b else ["j"]
        w, x = self.load_with([*a, letters[0]], []), self.load_with(a, [])
        y, z = self.load_with([*b, *letters[1:]], []), self.load_with(b, [])
        bound = prod(self.dims([*a, *b])) * w.bound * x.bound * y.bound * z.bound
        text = str(self.choose(BRACKETS)).format(w=w.text, x=x.text, y=y.text, z=z.text)
        self.define(self.fresh("br"), letters, Term(text, max(1.0, bound)))

    def written_softmax(self) -> None:
        """A softmax by its parts, and what else is made of exponentials of a row."""
        s, t = ("i", "j") if self.pick(0, 1) else ("k", "j")
        scores = self.define(self.fresh("sc"), [s, t], self.tame(Term(f"{self.raw([s, 'q'])} * {self.raw([t, 'q'])}", self.extent["q"])))
        at = self.load_text(scores, [s, t])
        kept = self.choose((at, f"where({self.mask(s, t, [s, t])}, {at}, -9)"))
        match self.pick(0, 3):
            case 0:
                text = f"log(sum[{t}](exp({kept} - max[{t}]({at})))) + max[{t}]({at})"
                self.define(self.fresh("ls"), [s], Term(text, scores.bound + 4))
            case 1:
                top = self.define(self.fresh("mx"), [s], Term(f"max[{t}]({kept})", scores.bound))
                powers = self.define(self.fresh("ex"), [s, t], Term(f"exp({kept} - {self.load_text(top, [s])})", 1.0))
                e = self.load_text(powers, [s, t])
                self.define(self.fresh("o"), [s, "p"], Term(f"{e} * {self.raw([t, 'p'])} / (sum[{t}]({e}))", 1.0))
            case 2:
                text = f"max(max[{t}](where({self.mask(s, t, [s, t])}, {at}, -inf)), -3) - min(min[{t}](-{at}), inf)"
                self.define(self.fresh("mm"), [s], Term(text, 3 + 2 * scores.bound))
            case _:
                self.define(self.fresh("o"), [s, "p"], Term(f"-softmax[{t}](-{kept}) * {self.raw([t, 'p'])} * 2", 2.0))

    def lengths(self) -> None:
        """Integer inputs with a range: as lengths, first positions, elements to read, values."""
        s = self.choose("ijkl")
        rows = self.some([x for x in "pz" if x != s], 0, 1)
        extent, out = self.extent[s], [s, *rows]
        least = self.pick(0, 1)
        name = f"{self.fresh('n')}_{extent + 1}"
        default = self.choose(("", f", default: {extent}", f", default: {least}"))
        most = next(size for size, n in self.sizes.items() if n == extent)
        dtype = self.choose(("int32", "int64"))
        self.inputs.append(f"{name}: {{axes: {axes_text(rows)}, dtype: {dtype}{default}, range: {least} .. {most}}}")
        n = self.load_text(Named(name, (), 0), rows)
        given, order = self.load_source(out)

        def at(index: str) -> str:
            return self.load_text(given, [index if x == s else x for x in order])

        forms = [
            f"where({s} < {n}, {at(s)}, 0.5)", f"where({s} >= {n}, {at(f'{s} - {n}')}, {at(s)})", f"{at(s)} * {n} - {n} / 4",
            f"where({s} + 1 == {n}, {at(s)}, -{n})", f"where({n} > {s}, {at(f'{n} - 1 - {s}')}, 0)" if least else f"{n} % 2 * {at(s)}",
            f"where({n} <= {s}, -1, {at(f'{n} - 1 - {s}')})",
        ]  # fmt: skip
        if least and self.pick(0, 1):
            forms, out = (
                [at(f"{n} - 1"), f"sum[{s}](where({s} < {n}, {at(s)}, 0)) / {n}", f"max[{s}](where({s} < {n}, {at(s)}, -inf))"],
                rows,
            )
        self.define(self.fresh("le"), out, Term(self.choose(forms), 4.0 + extent))
