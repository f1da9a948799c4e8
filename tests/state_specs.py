"""Random specs with states, and beside each statement what it does to numpy arrays: rows are written one by one into a copy.

In: hypothesis's `draw`. Out: a StateSpec, its YAML text and a `run` that knows nothing of einpage. The text and the arrays are made by the
same draws, so that the statements need not be parsed.

Never makes: errors; states without dimensions; partial definitions of a state; more than two repeats in each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

Array = NDArray[np.float64]
Draw = Callable[[st.SearchStrategy[Any]], Any]
Key = tuple[str, tuple[int, ...]]
"""A state's name and the iterations it belongs to."""


@dataclass
class Run:
    """The arrays of one run: `x` changes, states by key."""

    x: Array
    at: NDArray[np.int64]
    w: Array
    states: dict[Key, Array]


Effect = Callable[[Run, tuple[int, ...]], None]


@dataclass
class Body:
    """A body: its states, its statements with their effects, and a repeat at its end."""

    states: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    letters: dict[str, list[str]] = field(default_factory=dict)
    repeat: tuple[int, Body] | None = None

    def text(self, depth: int) -> Iterator[str]:
        """The items of the body, indented."""
        pad = "  " * (2 * depth + 1)
        yield from (f"{pad}- {line}" for line in self.lines)
        if self.repeat is not None:
            count, body = self.repeat
            yield f"{pad}- repeat: {count}"
            if body.states:
                yield f"{pad}  state:"
                yield from (f"{pad}    {line}" for line in body.states)
            yield f"{pad}  body:"
            yield from body.text(depth + 1)

    def run(self, run: Run, loop: tuple[int, ...]) -> None:
        """All of it, in order."""
        for effect in self.effects:
            effect(run, loop)
        if self.repeat is not None:
            for i in range(self.repeat[0]):
                self.repeat[1].run(run, (*loop, i))

    def keys(self, loop: tuple[int, ...] = ()) -> Iterator[tuple[Key, tuple[int, ...]]]:
        """Every state, with its shape."""
        yield from (((name, loop), shape) for name, shape in self.shapes.items())
        if self.repeat is not None:
            for i in range(self.repeat[0]):
                yield from self.repeat[1].keys((*loop, i))


@dataclass
class StateSpec:
    """A spec and what it means."""

    text: str
    sizes: dict[str, int]
    body: Body


class Builder:
    """Draws a body, a few statements that belong together at a time."""

    def __init__(self, draw: Draw, sizes: dict[str, int]) -> None:
        self.draw = draw
        self.sizes = sizes
        self.names = 0

    def pick(self, *options: Any) -> Any:
        """One of `options`."""
        return self.draw(st.sampled_from(options))

    def fresh(self, word: str) -> str:
        """A name that nothing has."""
        self.names += 1
        return f"{word}{self.names}"

    def body(self, depth: int) -> Body:
        """A body with one to three groups of statements."""
        found = Body()
        for _ in range(self.pick(1, 2, 3) if depth < 2 else 1):
            self.pick(self.cache, self.cache, self.recurrent, self.swap)(found, depth)
        if depth < 2 and self.pick(True, False, depth == 0):
            inner = self.body(depth + 1)
            if found.shapes and self.pick(True, False):
                self.read_outer(inner, found, depth)
            found.repeat = (self.pick(1, 2), inner)
        return found

    def cache(self, body: Body, depth: int) -> None:
        """Rows along `t`, in a random order of dimensions, written once or twice, then read under a mask."""
        name, rows = self.fresh("ck"), self.fresh("r")
        order = self.draw(st.permutations("btn"))
        size = {"b": self.sizes["batch"], "t": self.sizes["reach"], "n": self.sizes["model"]}
        body.shapes[name], body.letters[name] = tuple(size[x] for x in order), order
        body.states.append(f"{name}: {{axes: {' '.join(order)}, along: t}}")
        body.lines.append(f"{rows}[b,s,n] = x[b,s,m] * w[n,m]")
        made: list[Array] = []

        def make_rows(run: Run, loop: tuple[int, ...]) -> None:
            made[:] = [np.einsum("bsm,nm->bsn", run.x, run.w)]

        body.effects.append(make_rows)
        for turn in range(self.pick(1, 1, 2)):
            self.write(body, name, rows, order, depth, made, scale=turn + 1)
        indices = ",".join(order)
        body.lines.append(f"x[b,s,n] = tanh(x[b,s,n] + mean[t](where(t <= at[b]+s, {name}[{indices}], 0)))")

        def read(run: Run, loop: tuple[int, ...]) -> None:
            cache = run.states[name, loop[:depth]].transpose([order.index(x) for x in "btn"])
            found = run.x.copy()
            for b in range(found.shape[0]):
                for s in range(found.shape[1]):
                    seen = cache[b, : run.at[b] + s + 1]
                    found[b, s] = np.tanh(run.x[b, s] + seen.sum(0) / cache.shape[1])
            run.x = found

        body.effects.append(read)

    def write(self, body: Body, name: str, rows: str, order: list[str], depth: int, made: list[Array], scale: int) -> None:
        """One statement that writes rows; `made` has the rows, over b, s, n."""
        z = self.sizes
        spare = z["reach"] - z["seq"]
        b, n = self.pick("b", "c"), self.pick("n", "m")
        forms: list[tuple[str, bool, Callable[[int, int, int], int]]] = [
            (f"at[{b}]+s", True, lambda at, s, b: at + s),
            (f"s + at[{b}]", True, lambda at, s, b: at + s),
            (f"at[{b}]", False, lambda at, s, b: at),
            (f"s + {spare}", True, lambda at, s, b: s + spare),
            (str(z["reach"] - 1), False, lambda at, s, b: z["reach"] - 1),
            ("s", True, lambda at, s, b: s),
        ]
        if z["past"]:
            forms.append((f"at[{b}]+s-1", True, lambda at, s, b: at + s - 1))
            forms.append((f"at[{b}]-1", False, lambda at, s, b: at - 1))
        if spare >= z["batch"] - 1:
            forms.append((f"{b} + s", True, lambda at, s, b: b + s))
            forms.append((f"{b}", False, lambda at, s, b: b))
        index, counts, row = self.pick(*forms)
        if index == b and z["batch"] == z["reach"]:
            index = f"{b} + 0"
        target = ",".join({"b": b, "t": index, "n": n}[x] for x in order)
        factor = f"{scale} * " if scale > 1 else ""
        body.lines.append(f"{name}[{target}] = {factor}{rows}[{b},{'s' if counts else 0},{n}]")

        def effect(run: Run, loop: tuple[int, ...]) -> None:
            state = run.states[name, loop[:depth]].copy()
            view = state.transpose([order.index(x) for x in "btn"])
            for batch in range(view.shape[0]):
                for s in range(z["seq"] if counts else 1):
                    view[batch, row(int(run.at[batch]), s, batch)] = scale * made[0][batch, s]
            run.states[name, loop[:depth]] = state

        body.effects.append(effect)

    def recurrent(self, body: Body, depth: int) -> None:
        """A state that is written whole, from what it was."""
        name = self.fresh("h")
        order = self.draw(st.permutations("bn"))
        size = {"b": self.sizes["batch"], "n": self.sizes["model"]}
        body.shapes[name], body.letters[name] = tuple(size[x] for x in order), order
        body.states.append(f"{name}: {{axes: {' '.join(order)}}}")
        letters = {"b": self.pick("b", "c"), "n": self.pick("n", "m")}
        indices, own = ",".join(letters[x] for x in order), ",".join(order)
        added = f"mean[s](x[{letters['b']},s,{letters['n']}])"
        adds = self.pick(True, False)
        body.lines.append(f"{name}[{indices}] += {added}" if adds else f"{name}[{indices}] = tanh({added} + {name}[{indices}])")
        body.lines.append(f"x[b,s,n] = x[b,s,n] + 0.5 * {name}[{own}]")

        def effect(run: Run, loop: tuple[int, ...]) -> None:
            state = run.states[name, loop[:depth]].transpose([order.index(x) for x in "bn"])
            state = state + run.x.mean(1)
            state = state if adds else np.tanh(state)
            run.states[name, loop[:depth]] = state.transpose(["bn".index(x) for x in order])
            run.x = run.x + 0.5 * state[:, None]

        body.effects.append(effect)

    def swap(self, body: Body, depth: int) -> None:
        """Two states, one of which is the other as it was, or as it is: copies of copies."""
        first, second = self.fresh("g"), self.fresh("g")
        for name in (first, second):
            body.shapes[name], body.letters[name] = (self.sizes["batch"], self.sizes["model"]), ["b", "n"]
            body.states.append(f"{name}: {{axes: b n}}")
        alike = self.pick(True, False)
        older = "now" if alike else first
        body.lines += ["now[b,n] = max[s](x[b,s,n])", f"{second}[b,n] = {older}[b,n]", f"{first}[b,n] = now[b,n]"]
        body.lines.append(f"x[b,s,n] = x[b,s,n] - 0.5 * {second}[b,n] + {first}[b,n] * 0.25")

        def effect(run: Run, loop: tuple[int, ...]) -> None:
            own = loop[:depth]
            now = run.x.max(1)
            run.states[second, own] = now if alike else run.states[first, own]
            run.states[first, own] = now
            run.x = run.x - 0.5 * run.states[second, own][:, None] + now[:, None] * 0.25

        body.effects.append(effect)

    def read_outer(self, inner: Body, outer: Body, depth: int) -> None:
        """In a repeat, a state of the body around it is read and, if it is written whole, written."""
        name = self.pick(*outer.shapes)
        letters = outer.letters[name]
        if name.startswith("h"):
            indices = ",".join(letters)
            inner.lines.append(f"{name}[{indices}] = 0.5 * {name}[{indices}] + x[b,0,n]")

            def effect(run: Run, loop: tuple[int, ...]) -> None:
                added = run.x[:, 0].transpose(["bn".index(x) for x in letters])
                run.states[name, loop[:depth]] = 0.5 * run.states[name, loop[:depth]] + added
        else:
            letters = [
                x.strip()
                for x in outer.states[[s.split(":")[0] for s in outer.states].index(name)]
                .split("axes: ")[1]
                .rstrip("}")
                .split(",")[0]
                .split()
            ]
            indices, over = (",".join("m" if x == "n" else x for x in row) for row in (letters, [x for x in letters if x != "b"]))
            inner.lines += [f"seen[b] = mean[{over}]({name}[{indices}])", "x[b,s,n] = x[b,s,n] + 0.1 * seen[b]"]

            def effect(run: Run, loop: tuple[int, ...]) -> None:
                state = run.states[name, loop[:depth]]
                seen = state.mean(tuple(i for i, x in enumerate(letters) if x != "b"))
                run.x = run.x + 0.1 * seen[:, None, None]

        inner.effects.append(effect)


@st.composite
def state_specs(draw: Draw) -> StateSpec:
    """A spec with one to about ten states."""
    sizes = {name: draw(st.integers(*ends)) for name, ends in {"batch": (1, 3), "seq": (1, 3), "past": (0, 3), "room": (0, 2)}.items()}
    sizes |= {"model": draw(st.integers(1, 4))}
    full = {**sizes, "reach": sizes["past"] + sizes["room"] + sizes["seq"]}
    body = Builder(draw, full).body(0)
    written = ", ".join(f"{name}: {n}" for name, n in sizes.items())
    lines = [
        "einpage: 1",
        "name: random",
        f"sizes: {{{written}, reach: past + room + seq}}",
        "axes: {b: batch, c: batch, s: seq, t: reach, n: model, m: model}",
        "inputs:",
        "  x0: {axes: b s n}",
        "  at: {axes: b, dtype: int32, default: past, range: past .. past + room}",
        "weights: {w: {axes: n m, from: w}}",
        *(["state:"] if body.states else []),
        *(f"  {line}" for line in body.states),
        "body:",
        "  - x[b,s,n] = x0[b,s,n]",
        *body.text(0),
        "outputs: {x: {axes: b s n}}",
    ]
    return StateSpec("\n".join(lines) + "\n", full, body)
