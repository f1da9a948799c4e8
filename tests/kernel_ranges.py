"""Integers of a generated kernel, bounded without running it: what leaves 32 bits although it is computed in them.

In: a Launch. Out: the lines in which a sum or a product of 32-bit integers may be larger than they hold. Its text is walked once, every
integer an interval and a width, as Triton types them: a literal takes the width of what it meets, `arange` and program numbers have 32
bits, the wider of two operands decides, a truth has one and is no operand of arithmetic. Pointers, floats and what is loaded are of no
interest; a loop's body is walked once, its variable standing for all its values.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from einpage.kernels.writer.launch import Launch

NARROW = range(-(1 << 31), 1 << 31)


@dataclass(frozen=True, slots=True)
class Whole:
    """Some integer."""

    low: int
    high: int
    bits: int
    """0 for a number of Python's, which the compiler knows; 1 for a truth."""

    @property
    def fits(self) -> bool:
        return self.bits != 32 or (self.low in NARROW and self.high in NARROW)


TRUTH = Whole(0, 1, 1)
ANYTHING = None
"""What is no integer, or data."""
Known = Whole | None


def overflows(launch: Launch) -> list[str]:
    """The lines of `launch` where 32 bits may be too few."""
    kernel = next(node for node in reversed(ast.parse(launch.text).body) if isinstance(node, ast.FunctionDef))
    walker = _Walker(launch)
    names = [a.arg for a in kernel.args.args]
    walker.known |= {name: Whole(n, n, 32) for name, n in zip(names[len(names) - len(launch.starts) :], launch.starts, strict=True)}
    walker.run(kernel.body)
    return sorted(walker.found)


class _Walker:
    def __init__(self, launch: Launch) -> None:
        self.programs, self.lines = launch.programs, launch.text.splitlines()
        self.known: dict[str, Known] = {}
        self.found: set[str] = set()

    def run(self, body: list[ast.stmt]) -> None:
        for statement in body:
            match statement:
                case (
                    ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
                    | ast.Assign(targets=[ast.Name(id=name)], value=value)
                ):
                    self.known[name] = self.value(value)
                case ast.For(target=ast.Name(id=name), iter=ast.Call(args=args), body=inner):
                    bounds = [found for a in args if (found := self.value(a)) is not None][:2]
                    assert len(bounds) == 2, "a loop runs between integers"
                    self.known[name] = Whole(bounds[0].low, max(bounds[0].low, bounds[1].high - 1), max(bounds[0].bits, bounds[1].bits, 32))
                    self.run(inner)
                case ast.Expr(value=value):
                    self.value(value)
                case _:
                    raise AssertionError(f"a kernel has no {ast.unparse(statement)}")

    def value(self, e: ast.expr) -> Known:
        found = self._value(e)
        if found is not None and not found.fits:
            self.found.add(f"{self.lines[e.lineno - 1].strip()}    # {ast.unparse(e)} in {found.low} … {found.high}")
            return Whole(max(found.low, NARROW.start), min(found.high, NARROW.stop - 1), 32)
        return found

    def _value(self, e: ast.expr) -> Known:
        match e:
            case ast.Constant(value=int(n)) if not isinstance(n, bool):
                return Whole(n, n, 0)
            case ast.Name(id=name):
                return self.known.get(name)
            case ast.Compare(left=x, comparators=others):
                for operand in (x, *others):
                    self.value(operand)
                return TRUTH
            case ast.UnaryOp(op=ast.USub(), operand=x):
                inner = self.value(x)
                if _is_truth(inner):
                    self.found.add(f"{self.lines[e.lineno - 1].strip()}    # {ast.unparse(e)} of a truth")
                return None if inner is None else Whole(-inner.high, -inner.low, inner.bits)
            case ast.Subscript(value=x):
                return self.value(x)
            case ast.BinOp(left=x, op=operator, right=y):
                left, right = self.value(x), self.value(y)
                if _is_truth(left) or _is_truth(right):
                    if isinstance(operator, ast.BitAnd | ast.BitOr | ast.BitXor):
                        return TRUTH
                    self.found.add(f"{self.lines[e.lineno - 1].strip()}    # {ast.unparse(e)} with a truth")
                return None if left is None or right is None else _arithmetic(operator, left, right)
            case ast.Call(func=ast.Attribute(value=x, attr="to"), args=[ast.Attribute(attr=dtype)]):
                inner = self.value(x)
                return None if inner is None or not dtype.startswith("int") else Whole(inner.low, inner.high, int(dtype[3:]))
            case ast.Call(func=ast.Attribute(value=ast.Name(id="tl"), attr=function), args=args):
                return self._call(function, args, [*(self.value(a) for a in args), *(self.value(k.value) for k in e.keywords)])
            case _:
                for child in _operands(e):
                    self.value(child)
                return ANYTHING

    def _call(self, function: str, args: list[ast.expr], values: list[Known]) -> Known:
        match function, values:
            case "program_id", _:
                return Whole(0, self.programs - 1, 32)
            case "arange", [Whole(low=low), Whole(high=end), *_]:
                return Whole(low, end - 1, 32)
            case "zeros", _:
                return Whole(0, 0, bits) if (bits := _bits(args[1])) else ANYTHING
            case "full", [_, Whole() as filled, *_]:
                return Whole(filled.low, filled.high, bits) if (bits := _bits(args[2])) else ANYTHING
            case "minimum" | "maximum" as pick, [Whole() as x, Whole() as y]:
                choose = min if pick == "minimum" else max
                return Whole(choose(x.low, y.low), choose(x.high, y.high), max(x.bits, y.bits))
            case "where", [_, Whole() as x, Whole() as y]:
                return Whole(min(x.low, y.low), max(x.high, y.high), max(x.bits, y.bits))
            case "broadcast_to", [Whole() as x, *_]:
                return x
            case _:
                return ANYTHING


def _is_truth(found: Known) -> bool:
    return found is not None and found.bits == TRUTH.bits


def _bits(dtype: ast.expr) -> int:
    """Of an integer dtype; 0 of any other."""
    assert isinstance(dtype, ast.Attribute)
    return int(dtype.attr[3:]) if dtype.attr.startswith("int") and dtype.attr != "int1" else 0


def _operands(e: ast.expr) -> Iterator[ast.expr]:
    for child in ast.iter_child_nodes(e):
        yield from (c for c in (child, *ast.iter_child_nodes(child)) if isinstance(c, ast.expr))


def _arithmetic(operator: ast.operator, x: Whole, y: Whole) -> Known:
    bits = max(x.bits, y.bits)
    match operator:
        case ast.Add():
            return Whole(x.low + y.low, x.high + y.high, bits)
        case ast.Sub():
            return Whole(x.low - y.high, x.high - y.low, bits)
        case ast.Mult():
            ends = [a * b for a in (x.low, x.high) for b in (y.low, y.high)]
            return Whole(min(ends), max(ends), bits)
        case ast.FloorDiv() if y.low > 0:
            ends = [a // b for a in (x.low, x.high) for b in (y.low, y.high)]
            return Whole(min(ends), max(ends), bits)
        case ast.Mod() if y.low > 0:
            return x if x.low >= 0 and x.high < y.low else Whole(min(0, x.low), y.high - 1, bits)
        case _:
            return ANYTHING
