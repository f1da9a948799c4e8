"""Specs evaluated in numpy's float64 from their YAML alone: yaml, Python's `ast`, and nothing of einpage.

A value has an axis for each of its letters, in alphabetical order, and beside it a bound on the error that a run in some dtype may make:
see bounded_numbers. A run may store, and so round to its dtype: the value of a statement; the result of a sum or another reduction inside
an expression; what is reduced, unless it is an element as it is; of a product that is summed each factor that is not, and all but one of
its partial products, and the sum of a factor over letters that no other has. Arrays are rounded when they are loaded, exactly as the
judge does. An index that lies outside gives NaN, which a `where` may drop.

Never understood: `state:`, reserved targets, comparisons in chains.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import yaml

from bounded_numbers import (
    PRECISIONS,
    Array,
    Operation,
    Value,
    chosen,
    compared,
    constant,
    function,
    negated,
    negation,
    pointwise,
    reduced,
    rounded,
    spread_over,
    stored,
    union,
)

LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
ARITHMETIC: Mapping[type, Operation] = {
    ast.Add: np.add,
    ast.Sub: np.subtract,
    ast.Mult: np.multiply,
    ast.Div: np.true_divide,
    ast.FloorDiv: np.floor_divide,
    ast.Mod: np.mod,
    ast.Pow: np.power,
}
COMPARISONS: Mapping[type, Operation] = {
    ast.Lt: np.less,
    ast.LtE: np.less_equal,
    ast.Gt: np.greater,
    ast.GtE: np.greater_equal,
    ast.Eq: np.equal,
    ast.NotEq: np.not_equal,
}


@dataclass(slots=True)
class Interpreter:
    """A spec with its data, evaluated statement by statement."""

    document: Mapping[str, Any]
    data: Mapping[str, Array]
    """Inputs by name, weights by their names in the checkpoint (the first source)."""
    metadata: Mapping[str, Any]
    """Of the checkpoint: what `config:` names."""
    dtype: str
    sizes: dict[str, float] = field(default_factory=dict)
    extents: dict[str, int] = field(default_factory=dict)
    lists: dict[str, list[float]] = field(default_factory=dict)
    known: dict[str, tuple[Array, Array]] = field(default_factory=dict)
    """Numbers and errors by name, axes as declared or as on the target."""
    scope: dict[str, float] = field(default_factory=dict)
    """Repeat variables and what `let:` says."""

    def outputs(self) -> dict[str, tuple[Array, Array]]:
        """Every declared output by name: numbers and error bounds, axes as declared, which are those of the value."""
        self._declare()
        with np.errstate(all="ignore"):
            self._body(self.document["body"])
        return {name: self.known[name] for name in self.document["outputs"]}

    def _declare(self) -> None:
        said = {name: self._in_metadata(entry) for name, entry in self.document.get("config", {}).items()}
        left = {**self.document.get("sizes", {}), **self.document.get("scalars", {})}
        left |= {name: found for name, found in said.items() if name in left and found is not None}
        for _ in range(len(left) + 1):
            for name in list(left):
                try:
                    self.sizes[name] = self._number(left[name])
                except KeyError:
                    continue
                del left[name]
        assert not left, left
        self.extents = {letter: int(self._number(size)) for letter, size in self.document["axes"].items()}
        for name, entry in self.document.get("lists", {}).items():
            values = said.get(name) or []
            for i in range(int(self._number(entry["over"]))):
                if said.get(name):
                    break
                self.scope = {entry["as"]: i}
                values.append(self._number(entry["default"]))
            self.lists[name], self.scope = values, {}
        for name, entry in self.document.get("inputs", {}).items():
            shape = [self.extents[x] for x in entry["axes"].split()]
            given = self.data.get(name)
            array = np.full(shape, self._number(entry["default"])) if given is None else np.asarray(given, np.float64)
            self.known[name] = (array if "dtype" in entry else rounded(array, self.dtype), np.zeros(shape))
        self._weights(self.document.get("weights", {}))

    def _in_metadata(self, entries: Any) -> Any:
        """What the first of these keys that is there holds, words as the numbers that they stand for."""
        for entry in entries if isinstance(entries, list) else [entries]:
            key, values = (entry["key"], entry.get("values", {})) if isinstance(entry, dict) else (entry, {})
            found: Any = self.metadata
            for word in key.split("."):
                found = found.get(word) if isinstance(found, dict) else None
            if found is not None:
                return [values.get(x, x) for x in found] if isinstance(found, list) else values.get(found, found)
        return None

    def _weights(self, weights: Mapping[str, Any]) -> None:
        for name, entry in weights.items():
            sources = entry["from"] if isinstance(entry["from"], list) else [entry["from"]]
            for source in sources:
                own = {"axes": entry["axes"], **(source if isinstance(source, dict) else {"name": source})}
                called = own["name"].format(**self._words())
                if called in self.data:
                    break
            else:
                self.known[name] = self.known[entry["or"]]
                continue
            order = own["axes"].replace("(", " ").replace(")", " ").split()
            array = np.asarray(self.data[called], np.float64).reshape([self.extents[x] for x in order])
            wanted = entry["axes"].replace("(", " ").replace(")", " ").split()
            array = array.transpose([order.index(x) for x in wanted]).astype(np.float32) + np.float32(own.get("plus", 0))
            self.known[name] = (rounded(array, self.dtype), np.zeros(array.shape))

    def _words(self) -> dict[str, Any]:
        """What stands in braces in a tensor's name: repeat variables, and lists at them."""
        whole = {k: int(v) for k, v in self.scope.items() if v == int(v)}
        return {**whole, **{name: {k: int(n[v]) for k, v in whole.items() if 0 <= v < len(n)} for name, n in self.lists.items()}}

    def _number(self, said: object) -> float:
        """A number, or an expression over sizes, scalars, the repeat's variables."""
        if isinstance(said, int | float):
            return said
        found = self._expr(ast.parse(str(said).strip(), mode="eval").body, "", str(said))
        return found.numbers.item() if found.numbers.dtype.kind != "b" else int(found.numbers.item())

    def _body(self, body: list[Any]) -> None:
        for item in body:
            if isinstance(item, str):
                self._statement(" ".join(item.split()))
                continue
            kept, before = dict(self.scope), set(self.known)
            for i in range(int(self._number(item["repeat"]))):
                self.scope[item["as"]] = i
                for name, said in item.get("let", {}).items():
                    self.scope[name] = self._number(said)
                self._weights(item.get("weights", {}))
                self._body(item["body"])
                for name in [n for n in self.known if n not in before]:
                    del self.known[name]
            self.scope = kept

    def _statement(self, text: str) -> None:
        node = ast.parse(text).body[0]
        assert isinstance(node, ast.Assign | ast.AugAssign), text
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        assert isinstance(target, ast.Name | ast.Subscript)
        indices = [] if isinstance(target, ast.Name) else _indices(target)
        name = target.id if isinstance(target, ast.Name) else ast.unparse(target.value)
        letters = [i.id for i in indices if isinstance(i, ast.Name)]
        value = self._expr(node.value, "".join(letters), text)
        if isinstance(node, ast.AugAssign):
            value = self._pointwise(np.add, self._part(value), self._expr(target, "".join(letters), text))
        assert set(value.letters) <= set(letters), f"{text}: {set(value.letters) - set(letters)} left"
        value = stored(value, PRECISIONS[self.dtype])
        order = "".join(sorted(letters))
        numbers, error = (a.transpose([order.index(x) for x in letters]) for a in spread_over(value, order, self.extents, full=True))
        if len(letters) == len(indices):
            self.known[name] = (numbers, error)
            return
        at = tuple(slice(None) if isinstance(i, ast.Name) else int(ast.literal_eval(i)) for i in indices)
        shape = [self.extents[i.id] if isinstance(i, ast.Name) else at[d] + 1 for d, i in enumerate(indices)]  # type: ignore[operator]
        old = self.known.get(name)
        if old is not None and not np.isnan(old[0][tuple(slice(None) if isinstance(a, slice) else slice(a, a + 1) for a in at)]).all():
            old = None  # set before: a new value begins
        grown = [max(n, 0 if old is None else old[0].shape[d]) for d, n in enumerate(shape)]
        new = np.full(grown, np.nan), np.zeros(grown)
        for array, was, now in zip(new, old or (None, None), (numbers, error), strict=True):
            if was is not None:
                array[tuple(slice(n) for n in was.shape)] = was
            array[at] = now
        self.known[name] = new

    # Expressions. `bound` holds the letters over which nothing is summed here: those of the target and of reductions around.

    def _expr(self, e: ast.expr, bound: str, text: str) -> Value:
        match e:
            case ast.Constant(value=value):
                return constant(value)
            case ast.Name(id=word):
                return self._name(word)
            case ast.Subscript():
                return self._load(e, bound, text)
            case ast.UnaryOp(op=ast.USub(), operand=x):
                return negated(self._inner(x, bound, text))
            case ast.UnaryOp(op=ast.Not(), operand=x):
                return negation(self._inner(x, bound, text))
            case ast.BoolOp(op=op, values=values):
                out = negation(negation(self._inner(values[0], bound, text)))
                for other in values[1:]:
                    right = negation(negation(self._inner(other, bound, text)))
                    out = self._where(out, right, out) if isinstance(op, ast.And) else self._where(out, out, right)
                return out
            case ast.Compare(left=x, ops=[op], comparators=[y]):
                return compared(COMPARISONS[type(op)], self._inner(x, bound, text), self._inner(y, bound, text), self.extents)
            case ast.BinOp(op=ast.Mult() | ast.Div()):
                return self._chain(e, bound, text)
            case ast.BinOp(op=op, left=x, right=y):
                return self._pointwise(ARITHMETIC[type(op)], self._inner(x, bound, text), self._inner(y, bound, text))
            case ast.Call(func=ast.Subscript(value=ast.Name(id=word), slice=over), args=[body]):
                letters = "".join(x.id for x in (over.elts if isinstance(over, ast.Tuple) else [over]) if isinstance(x, ast.Name))
                times = _stores(_flat(body, True)) + _summed_alone(_flat(body, True), letters)
                return reduced(word, letters, stored(self._inner(body, bound + letters, text), PRECISIONS[self.dtype], times), self.extents)
            case ast.Call(func=ast.Name(id=word), args=args):
                values = [self._inner(a, bound, text) for a in args]
                match word, values:
                    case "where", [c, x, y]:
                        return self._where(c, x, y)
                    case "min" | "max", [x, y]:
                        return self._pointwise(np.minimum if word == "min" else np.maximum, x, y)
                    case _, [x]:
                        return function(word, x)
        raise AssertionError(f"{text}: {ast.dump(e)}")

    def _inner(self, e: ast.expr, bound: str, text: str) -> Value:
        """A part of an expression."""
        return self._part(self._expr(e, bound, text))

    def _part(self, x: Value) -> Value:
        """`x` within an expression: a sum may be stored first."""
        return stored(x, PRECISIONS[self.dtype]) if x.is_sum else x

    def _where(self, c: Value, x: Value, y: Value) -> Value:
        return chosen(c, x, y, self.extents)

    def _pointwise(self, fn: Operation, x: Value, y: Value) -> Value:
        return pointwise(fn, x, y, self.extents)

    def _name(self, word: str) -> Value:
        if word in self.scope:
            return constant(self.scope[word])
        if word in self.extents:
            return Value(word, np.arange(self.extents[word]), np.zeros(()))
        if word in self.known:
            numbers, error = self.known[word]
            return Value("", np.asarray(numbers), np.asarray(error))
        return constant({"pi": math.pi, "inf": math.inf}[word] if word in ("pi", "inf") else self.sizes[word])

    def _load(self, e: ast.Subscript, bound: str, text: str) -> Value:
        assert isinstance(e.value, ast.Name)
        indices = [self._expr(i, bound, text) for i in _indices(e)]
        if e.value.id in self.lists:
            return constant(self.lists[e.value.id][int(indices[0].numbers)])
        numbers, error = self.known[e.value.id]
        letters = union(*indices)
        at = [spread_over(i, letters, self.extents)[0].astype(np.int64) for i in indices]
        inside = np.ones((), bool)
        for place, extent in zip(at, numbers.shape, strict=True):
            inside = inside & (place >= 0) & (place < extent)
        clipped = tuple(np.clip(place, 0, extent - 1) for place, extent in zip(at, numbers.shape, strict=True))
        found, bad = numbers[clipped], error[clipped]
        if not inside.all():
            found, bad = np.where(inside, found, np.nan), np.where(inside, bad, 0.0)
        shape = [self.extents[x] for x in letters]
        return Value(letters, np.broadcast_to(found, shape), np.broadcast_to(bad, shape))

    def _chain(self, e: ast.BinOp, bound: str, text: str) -> Value:
        """Factors joined by * and /, and the sum over each letter that is not bound and that two or more of them contain."""
        factors = _factors(e)
        values = [(times, self._inner(factor, bound, text)) for times, factor in factors]
        letters = union(*(v for _, v in values))
        summed = "".join(x for x in letters if x not in bound and sum(x in v.letters for _, v in values) > 1)
        out = values[0][1]
        for times, value in values[1:]:
            out = self._pointwise(np.multiply if times else np.true_divide, out, value)
        return reduced("sum", summed, stored(out, PRECISIONS[self.dtype], _stores(factors)), self.extents) if summed else out


def _factors(e: ast.expr) -> list[tuple[bool, ast.expr]]:
    """The factors of a chain, in order, and whether each multiplies. What stands in brackets is one."""
    out: list[tuple[bool, ast.expr]] = []
    node, bracketed = e, False
    while not bracketed and isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.Div):
        out.append((isinstance(node.op, ast.Mult), node.right))
        bracketed, node = _in_brackets(node.left, node), node.left
    return [*out, (True, node)][::-1]


def _flat(e: ast.expr, times: bool) -> list[tuple[bool, ast.expr]]:
    """As _factors, of a factor that multiplies or divides: those of factors in brackets too."""
    if isinstance(e, ast.BinOp) and isinstance(e.op, ast.Mult | ast.Div):
        return [x for by, factor in _factors(e) for x in _flat(factor, by == times)]
    return [(times, e)]


def _stores(factors: list[tuple[bool, ast.expr]]) -> int:
    """How often a run may store something on the way from elements to what is summed."""
    made = sum(not (times and isinstance(_unsigned(e), ast.Subscript | ast.Constant)) for times, e in factors)
    return made + max(0, len(factors) - 2)


def _summed_alone(factors: list[tuple[bool, ast.expr]], over: str) -> int:
    """How many of several factors have a letter of a written sum that no other has: the sum over it may be stored before they meet."""
    found = [{n.id for n in ast.walk(e) if isinstance(n, ast.Name)} & set(over) for _, e in factors]
    return sum(bool(own - set().union(*found[:i], *found[i + 1 :])) for i, own in enumerate(found)) if len(found) > 1 else 0


def _unsigned(e: ast.expr) -> ast.expr:
    return _unsigned(e.operand) if isinstance(e, ast.UnaryOp) and isinstance(e.op, ast.USub) else e


def _indices(e: ast.Subscript) -> list[ast.expr]:
    return list(e.slice.elts) if isinstance(e.slice, ast.Tuple) else [e.slice]


def _in_brackets(left: ast.expr, whole: ast.BinOp) -> bool:
    """Whether the left operand stands in brackets: they are not in the tree, but it begins behind one."""
    return left.col_offset > whole.col_offset


def evaluated(text: str, data: Mapping[str, Array], metadata: Mapping[str, Any], dtype: str) -> dict[str, tuple[Array, Array]]:
    """Every output of the spec `text` by name: float64 numbers, and a bound on the error of a run in `dtype`."""
    return Interpreter(yaml.load(text, LOADER), data, metadata, dtype).outputs()
