"""Random small specs that generate: decoders that read tokens at once, in chunks or one by one, always with the same meaning.

In: a seeded `Random`. Out: a Decoder, of which `text` is a spec. Every statement is causal, and no number depends on how far `reach` goes
or on how the tokens are cut into passes: all_logits of a text read at once are therefore the logits of every other way to read it.

    x ── groups ── groups ── … ── logits        a group: norm or map, cache and its reader, reader of another's cache, state written whole

Never makes: states without a batch; rows at other places than `at[b] + s`; repeats within repeats; other inputs than `tokens`, `lengths`
and `at`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random

TABLE, POSITIONS = "places", 64
"""A learned table, where there is one, and its rows: more than a text has."""


@dataclass(frozen=True, slots=True)
class Group:
    """Statements that belong together."""

    lines: tuple[str, ...]
    weights: tuple[tuple[str, str], ...] = ()
    """(name, axes)"""
    states: tuple[str, ...] = ()
    """As declared."""
    is_whole: bool = False
    """Whether it has a state that every pass writes whole."""


@dataclass(frozen=True, slots=True)
class Layer:
    """Groups in a row, the second of them on what the first has made of `x`."""

    groups: tuple[Group, ...]
    repeat: int = 0
    """So many times, each with weights and states of its own; 0: once, and not in a repeat."""


@dataclass(frozen=True, slots=True)
class Decoder:
    """A spec in parts, of which some may be left out."""

    sizes: tuple[tuple[str, int], ...]
    first: Group
    """From tokens to `x[b,s,m]`."""
    layers: tuple[Layer, ...]
    last: Group
    """From `x` to logits."""

    @property
    def is_whole(self) -> bool:
        """Whether some state is written whole: then padding, chunks and tokens that are looked up are refused."""
        return any(group.is_whole for layer in self.layers for group in layer.groups)

    @property
    def text(self) -> str:
        """The spec."""
        return "\n".join(self._lines()) + "\n"

    def smaller(self) -> Iterator[Decoder]:
        """With one part less, or a repeat of 1 in place of several; not every one of them is a spec."""
        for n, layer in enumerate(self.layers):
            before, after = self.layers[:n], self.layers[n + 1 :]
            yield replace(self, layers=(*before, *after))
            for i in range(len(layer.groups)):
                yield replace(self, layers=(*before, replace(layer, groups=layer.groups[:i] + layer.groups[i + 1 :]), *after))
            if layer.repeat > 1:
                yield replace(self, layers=(*before, replace(layer, repeat=1), *after))

    def _lines(self) -> Iterator[str]:
        at_top = [self.first, *(group for layer in self.layers if not layer.repeat for group in layer.groups), self.last]
        yield from ("einpage: 1", "name: random")
        sizes = ", ".join(f"{name}: {n}" for name, n in self.sizes)
        yield f"sizes: {{batch: 1, seq: 4, past: 0, room: 0, reach: past + room + seq, {sizes}}}"
        letters = "b: batch, s: seq, u: seq, t: reach, v: vocab, m: model, n: model, k: kv_heads, g: group, d: head, e: wide"
        yield f"axes: {{{letters}, p: {POSITIONS}}}"
        yield "inputs:"
        yield "  tokens: {axes: b s, dtype: int32, range: 0 .. vocab - 1}"
        yield "  lengths: {axes: b, dtype: int32, default: seq, range: 1 .. seq}"
        yield "  at: {axes: b, dtype: int32, default: past, range: past .. past + room}"
        yield from _section("weights", [f"{name}: {{axes: {axes}, from: {name}}}" for group in at_top for name, axes in group.weights], "")
        yield from _section("state", [state for group in at_top for state in group.states], "")
        yield "body:"
        yield from (f"  - {line}" for line in self.first.lines)
        for layer in self.layers:
            yield from _layer_lines(layer)
        yield from (f"  - {line}" for line in self.last.lines)
        yield "outputs: {logits: {axes: b v}, all_logits: {axes: b s v}}"


def _section(head: str, lines: list[str], pad: str) -> Iterator[str]:
    if lines:
        yield f"{pad}{head}:"
        yield from (f"{pad}  {line}" for line in lines)


def _layer_lines(layer: Layer) -> Iterator[str]:
    lines = [line for group in layer.groups for line in group.lines]
    if not layer.repeat or not lines:
        yield from (f"  - {line}" for line in lines)
        return
    yield f"  - repeat: {layer.repeat}"
    yield "    as: l"
    weights = [f'{name}: {{axes: {axes}, from: "{name}.{{l}}"}}' for group in layer.groups for name, axes in group.weights]
    yield from _section("weights", weights, "    ")
    yield from _section("state", [state for group in layer.groups for state in group.states], "    ")
    yield "    body:"
    yield from (f"      - {line}" for line in lines)


@dataclass(frozen=True, slots=True)
class _Cache:
    """What reads it needs to know."""

    name: str
    order: str
    """Its letters, of which `t` counts the rows."""

    @property
    def element(self) -> str:
        return f"{self.name}[{','.join(self.order)}]"


@dataclass(frozen=True, slots=True)
class _Attended:
    """Caches that attention reads together."""

    keys: _Cache
    values: _Cache
    heads: str
    """Letters of a query beside `b`, `s` and `d`: none, `k`, or `kg`, several queries for one key."""


class _Builder:
    """Draws groups, one after the other."""

    def __init__(self, random: Random, may_be_whole: bool) -> None:
        self.random, self._may_be_whole = random, may_be_whole
        self._names = 0
        self._lines: list[str] = []
        self._weights: list[tuple[str, str]] = []
        self._states: list[str] = []
        self.averaged: list[_Cache] = []
        """Caches that there are where the next group stands, read by sums ..."""
        self.attended: list[_Attended] = []
        """... and by attention."""

    def layer(self, needs_state: bool) -> Layer:
        """Of one to three groups; what a repeat has written nothing after it sees."""
        repeat = self.random.choice((0, 0, 0, 1, 2, 3))
        outside = [*self.averaged], [*self.attended]
        count = self.random.randint(1, 3)
        groups = tuple(self._group(is_state=needs_state and n == 0) for n in range(count))
        if repeat:
            self.averaged, self.attended = outside
        return Layer(groups, repeat)

    def embedding(self) -> Group:
        """Tokens, and often where they stand."""
        place = self.random.choice(("", " + 0.5 * sin((at[b]+s) * 0.7 + m)", f" + 0.3 * {TABLE}[at[b]+s,m]"))
        self._lines.append(f"x[b,s,m] = embed[tokens[b,s],m]{place}")
        self._weights += [("embed", "v m"), *([(TABLE, "p m")] if TABLE in place else [])]
        return self._taken()

    def logits(self) -> Group:
        """Of the last token of each sequence, and of all."""
        head = self.random.choice(("lm_head", "lm_head", "embed"))
        if head == "lm_head":
            self._weights.append((head, "v m"))
        if self.random.random() < 0.5:
            self._lines += ["last[b,m] = x[b,lengths[b]-1,m]", f"final[b,m] = {_normed('last[b,m]')}"]
            self._lines += [f"logits[b,v] = final[b,m] * {head}[v,m]", f"every[b,s,m] = {_normed('x[b,s,m]')}"]
        else:
            self._lines += [f"every[b,s,m] = {_normed('x[b,s,m]')}", f"logits[b,v] = every[b,lengths[b]-1,m] * {head}[v,m]"]
        self._lines.append(f"all_logits[b,s,v] = every[b,s,m] * {head}[v,m]")
        return self._taken()

    def _group(self, is_state: bool) -> Group:
        caches = [self._average, self._average, self._attention, self._attention]
        wholes = [self._decay, self._maximum, self._shift, self._two_shifts, self._outer_products]
        rest = [self._map, self._network, self._norm]
        shared = [self._read_again] * 2 if self.averaged or self.attended else []
        is_whole = self._may_be_whole and self.random.random() < 0.6
        self.random.choice(wholes if is_whole else caches if is_state else [*caches, *shared, *rest])()
        return replace(self._taken(), is_whole=is_whole)

    def _taken(self) -> Group:
        found = Group(tuple(self._lines), tuple(self._weights), tuple(self._states))
        self._lines, self._weights, self._states = [], [], []
        return found

    def _fresh(self, word: str) -> str:
        self._names += 1
        return f"{word}{self._names}"

    def _weight(self, axes: str) -> str:
        """One of these letters; the checkpoint has its last dimension alone, and the others as one."""
        name = self._fresh("w")
        *rows, last = axes
        is_folded = len(rows) > 1 and self.random.random() < 0.7
        self._weights.append((name, f"({' '.join(rows)}) {last}" if is_folded else " ".join(axes)))
        return f"{name}[{','.join(axes)}]"

    def _input(self) -> str:
        """An element of `x`, normed or not, by `m`."""
        if self.random.random() < 0.4:
            return "x[b,s,m]"
        name = self._fresh("h")
        gain = f" * {self._weight('m')}" if self.random.random() < 0.5 else ""
        self._lines.append(f"{name}[b,s,m] = {_normed('x[b,s,m]')}{gain}")
        return f"{name}[b,s,m]"

    def _rows(self, letters: str, source: str | None = None) -> str:
        """Of a projection: its name; `letters` beside `b` and `s`."""
        name = self._fresh("r")
        source = source or self._input()
        self._lines.append(f"{name}[{','.join('bs' + letters)}] = {source} * {self._weight(letters + 'm')}")
        return name

    def _cache(self, letters: str, source: str | None = None) -> _Cache:
        """Rows of a projection in some order of dimensions, written through a value or at once."""
        order = [*"bt", *letters]
        self.random.shuffle(order)
        cache = _Cache(self._fresh("c"), "".join(order))
        target = f"{cache.name}[{','.join('at[b]+s' if letter == 't' else letter for letter in order)}]"
        if self.random.random() < 0.5:
            self._lines.append(f"{target} = {self._rows(letters, source)}[{','.join('bs' + letters)}]")
        else:
            source = source or self._input()
            self._lines.append(f"{target} = {source} * {self._weight(letters + 'm')}")
        self._states.append(f"{cache.name}: {{axes: {' '.join(order)}, along: t}}")
        return cache

    def _mask(self) -> str:
        """Of the positions that a token sees."""
        window = self.random.randint(1, 9)
        return self.random.choice(
            (
                *["t <= at[b]+s"] * 3,
                "t < at[b]+s",
                f"t <= at[b]+s and at[b]+s - t < {window}",
                f"t <= at[b]+s and at[b]+s < t + {window}",
                "t <= at[b]+s and (at[b]+s - t) % 2 == 0",
            )
        )

    def _average(self) -> None:
        """A cache of one row a token, and what its reader adds."""
        self.averaged.append(self._cache("n"))
        self._read_sum(self.averaged[-1])

    def _read_sum(self, cache: _Cache) -> None:
        mask = self._mask()
        form = self.random.choice(
            (
                f"sum[t](where({mask}, {cache.element}, 0)) / (at[b]+s+1)",
                f"tanh(sum[t](where({mask}, {cache.element}, 0)))",
                f"max(-1, max[t](where({mask}, {cache.element}, -1)))",
            )
        )
        self._lines.append(f"x[b,s,n] = x[b,s,n] + {form}")

    def _attention(self) -> None:
        """Keys and values, or one cache as both; heads that may share them."""
        heads = self.random.choice(("", "k", "kg"))
        keyed = heads[:1]
        source = self._input()
        keys = self._cache(keyed + "d", source)
        values = self._cache(keyed + self.random.choice("de"), source) if self.random.random() < 0.8 else keys
        self.attended.append(_Attended(keys, values, heads))
        self._attend(self.attended[-1], source)

    def _attend(self, caches: _Attended, source: str) -> None:
        heads = caches.heads
        query = self._rows(heads + "d", source)
        made = heads + ("e" if "e" in caches.values.order else "d")
        shares, output = self._fresh("a"), self._fresh("o")
        share = f"{shares}[{','.join('b' + heads + 'st')}]"
        score = f"{query}[{','.join('bs' + heads + 'd')}] * {caches.keys.element} / 1.5"
        self._lines += [
            f"{share} = softmax[t](where({self._mask()}, {score}, -inf))",
            f"{output}[{','.join('bs' + made)}] = {share} * {caches.values.element}",
            f"x[b,s,m] += {output}[{','.join('bs' + made)}] * {self._weight('m' + made)}",
        ]

    def _read_again(self) -> None:
        """A cache that a group before has written."""
        found = self.random.choice([*self.averaged, *self.attended])
        if isinstance(found, _Cache):
            self._read_sum(found)
        else:
            self._attend(found, self._input())

    def _whole(self, letters: str) -> str:
        """A state that is written whole: its element."""
        name, order = self._fresh("g"), [*"b", *letters]
        self.random.shuffle(order)
        self._states.append(f"{name}: {{axes: {' '.join(order)}}}")
        return f"{name}[{','.join(order)}]"

    def _decay(self) -> None:
        """A sum in which what is long ago counts less."""
        row, state, base = self._rows("n"), self._whole("n"), self.random.choice((0.5, 0.8, 1))
        seen = f"sum[u](where(u <= s, {base}**(s-u) * {row}[b,u,n], 0))"
        new = f"sum[s](where(s < lengths[b], {base}**(lengths[b]-1-s) * {row}[b,s,n], 0))"
        self._lines.append(f"x[b,s,n] = x[b,s,n] + tanh({state} * {base}**(s+1) + {seen})")
        self._lines.append(f"{state} = {state} * {base}**lengths[b] + {new}")

    def _maximum(self) -> None:
        row, state = self._rows("n"), self._whole("n")
        self._lines.append(f"x[b,s,n] = x[b,s,n] + max({state}, max[u](where(u <= s, {row}[b,u,n], -inf)))")
        self._lines.append(f"{state} = max({state}, max[s](where(s < lengths[b], {row}[b,s,n], -inf)))")

    def _shift(self) -> None:
        """The token before."""
        row, state = self._rows("n"), self._whole("n")
        self._lines.append(f"x[b,s,n] = x[b,s,n] + where(s >= 1, {row}[b,s-1,n], {state})")
        self._lines.append(f"{state} = {row}[b,lengths[b]-1,n]")

    def _two_shifts(self) -> None:
        """The token before that one: a state that may be what another was."""
        row, one, two = self._rows("n"), self._whole("n"), self._whole("n")
        self._lines.append(f"x[b,s,n] = x[b,s,n] - where(s >= 2, {row}[b,s-2,n], where(s >= 1, {one}, {two}))")
        self._lines.append(f"{two} = where(lengths[b] >= 2, {row}[b,lengths[b]-2,n], {one})")
        self._lines.append(f"{one} = {row}[b,lengths[b]-1,n]")

    def _outer_products(self) -> None:
        """Linear attention."""
        source = self._input()
        query, key, value = (self._rows(letter, source) for letter in "dde")
        state, output = self._whole("de"), self._fresh("o")
        in_pass = f"sum[u](where(u <= s, ({query}[b,s,d] * {key}[b,u,d]) * {value}[b,u,e], 0))"
        self._lines.append(f"{output}[b,s,e] = {query}[b,s,d] * {state} + {in_pass}")
        self._lines.append(f"{state} = {state} + sum[s](where(s < lengths[b], {key}[b,s,d] * {value}[b,s,e], 0))")
        self._lines.append(f"x[b,s,m] += tanh({output}[b,s,e]) * {self._weight('me')}")

    def _map(self) -> None:
        function = self.random.choice(("tanh", "gelu", "silu", "relu", "sin"))
        self._lines.append(f"x[b,s,m] = x[b,s,m] + 0.5 * {function}(x[b,s,m] * {self._weight('m')})")

    def _network(self) -> None:
        row, name = self._rows("e"), self._fresh("y")
        self._lines.append(f"{name}[b,s,e] = silu({row}[b,s,e])")
        self._lines.append(f"x[b,s,m] += {name}[b,s,e] * {self._weight('me')}")

    def _norm(self) -> None:
        if self.random.random() < 0.5:
            self._lines.append("x[b,s,m] = x[b,s,m] - mean[m](x[b,s,m])")
        self._lines.append(f"x[b,s,m] = {_normed('x[b,s,m]')} * {self._weight('m')}")


def _normed(element: str) -> str:
    return f"{element} * rsqrt(mean[m]({element}**2) + 0.01)"


def random_decoder(random: Random) -> Decoder:
    """Of one to three layers; in some 3 of 10 a state may be written whole. The first layer has a state."""
    ends = {"vocab": (16, 40), "model": (8, 24), "kv_heads": (1, 3), "group": (1, 3), "head": (2, 4), "wide": (3, 9)}
    sizes = tuple((name, random.randint(*end)) for name, end in ends.items())
    builder = _Builder(random, may_be_whole=random.random() < 0.3)
    first = builder.embedding()
    layers = tuple(builder.layer(needs_state=n == 0) for n in range(random.choice((1, 1, 2, 2, 3))))
    return Decoder(sizes, first, layers, builder.logits())
