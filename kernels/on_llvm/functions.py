"""Functions of LANES numbers at a time in LLVM's intermediate representation, in fp32.

In: the names of vectors. Out: that of the result. Sums, products, quotients and roots are rounded as each alone is; exp, tanh, sin and cos
are within some units in the last place (polynomials of Cephes, http://www.netlib.org/cephes; arguments reduced as Cody and Waite do). NaN
stays NaN, and what is too large for fp32 is infinite.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from math import inf, sqrt

from einpage.kernels.on_llvm.ir import FLOATS, INTS, LANES, Ir, everywhere

BOOLS = f"<{LANES} x i1>"
ROUNDING = 12582912.0
"""1.5 * 2^23: added to a number of less than 2^22, it leaves a whole one in the low bits."""
MOST_TURNS = 2.0**18
"""Quarters of a turn up to which an angle is reduced here; the C library does the rest."""
HALF_PI = (1.5707963705062866, -4.371138828673793e-08, -1.7151245100058819e-15)
"""Pi / 2 as a sum of numbers of fp32."""
LOG2 = (0.693359375, -2.12194440e-4)
EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
SIN = (-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1)
COS = (2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2)
TANH = (-5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1)
TANH_SMALL = 0.625


def number(value: float) -> str:
    """`value`, rounded to fp32, in every lane."""
    try:
        (rounded,) = struct.unpack("f", struct.pack("f", value))
    except OverflowError:
        rounded = inf if value > 0 else -inf
    (bits,) = struct.unpack("Q", struct.pack("d", rounded))
    return f"<{', '.join([f'float 0x{bits:016X}'] * LANES)}>"


class Functions:
    """Writes them into the body of a function."""

    def __init__(self, ir: Ir) -> None:
        self.ir = ir

    def binary(self, op: str, x: str, y: str) -> str:
        """`fadd`, `fsub`, `fmul` or `fdiv`."""
        return self.ir.value(f"{op} {FLOATS} {x}, {y}")

    def compared(self, predicate: str, x: str, y: str) -> str:
        """Truths: `olt`, `ole`, …; `u…` is true of NaN."""
        return self.ir.value(f"fcmp {predicate} {FLOATS} {x}, {y}")

    def where(self, condition: str, x: str, y: str) -> str:
        """x or y."""
        return self.ir.value(f"select {BOOLS} {condition}, {FLOATS} {x}, {FLOATS} {y}")

    def called(self, intrinsic: str, *args: str) -> str:
        """LLVM's own function."""
        given = ", ".join(f"{FLOATS} {x}" for x in args)
        return self.ir.value(f"call {FLOATS} @llvm.{intrinsic}.v{LANES}f32({given})")

    def fma(self, x: str, y: str, z: str) -> str:
        """x * y + z, rounded once."""
        return self.called("fma", x, y, z)

    def extreme(self, is_max: bool, x: str, y: str) -> str:
        """The greater or the lesser of two; NaN where one is."""
        found = self.where(self.compared("ogt" if is_max else "olt", x, y), x, y)
        return self.where(self.compared("uno", x, x), x, found)

    def polynomial(self, x: str, coefficients: Sequence[float]) -> str:
        """By Horner's rule, highest first."""
        found = number(coefficients[0])
        for c in coefficients[1:]:
            found = self.fma(found, x, number(c))
        return found

    def _whole(self, x: str) -> tuple[str, str]:
        """`x` rounded to a whole number, of less than 2^22: as a float and as an i32."""
        shifted = self.binary("fadd", x, number(ROUNDING))
        (bits,) = struct.unpack("i", struct.pack("f", ROUNDING))
        whole = self.ir.value(f"sub {INTS} {self.ir.value(f'bitcast {FLOATS} {shifted} to {INTS}')}, {everywhere('i32', bits)}")
        return self.binary("fsub", shifted, number(ROUNDING)), whole

    def _power_of_2(self, exponent: str) -> str:
        """2 to an i32 from -126 to 127."""
        biased = self.ir.value(f"add {INTS} {exponent}, {everywhere('i32', 127)}")
        shifted = self.ir.value(f"shl {INTS} {biased}, {everywhere('i32', 23)}")
        return self.ir.value(f"bitcast {INTS} {shifted} to {FLOATS}")

    def exp(self, x: str) -> str:
        """e to the x: 2 to a whole number, in two steps, times a polynomial of the rest."""
        bounded = self.where(self.compared("olt", x, number(-105.0)), number(-105.0), x)
        bounded = self.where(self.compared("ogt", bounded, number(90.0)), number(90.0), bounded)
        n, whole = self._whole(self.binary("fmul", bounded, number(1.4426950408889634)))
        rest = self.fma(n, number(-LOG2[1]), self.fma(n, number(-LOG2[0]), bounded))
        square = self.binary("fmul", rest, rest)
        power = self.binary("fadd", self.fma(self.polynomial(rest, EXP), square, rest), number(1.0))
        half = self.ir.value(f"ashr {INTS} {whole}, {everywhere('i32', 1)}")
        power = self.binary("fmul", power, self._power_of_2(half))
        return self.binary("fmul", power, self._power_of_2(self.ir.value(f"sub {INTS} {whole}, {half}")))

    def sigmoid(self, x: str) -> str:
        """1 / (1 + exp(-x))."""
        small = self.exp(self._negative(self.called("fabs", x)))
        above = self.where(self.compared("olt", x, number(0.0)), small, number(1.0))
        return self.binary("fdiv", above, self.binary("fadd", small, number(1.0)))

    def tanh(self, x: str) -> str:
        """By exp, near 0 by a polynomial."""
        size = self.called("fabs", x)
        e = self.exp(self.binary("fmul", size, number(2.0)))
        far = self.binary("fsub", number(1.0), self.binary("fdiv", number(2.0), self.binary("fadd", e, number(1.0))))
        far = self.called("copysign", far, x)
        square = self.binary("fmul", x, x)
        near = self.fma(self.binary("fmul", self.polynomial(square, TANH), square), x, x)
        return self.where(self.compared("olt", size, number(TANH_SMALL)), near, far)

    def turned(self, x: str, is_cos: bool) -> str:
        """Sine or cosine. Lanes too large for it are the C library's, with all others of the vector."""
        ir, name = self.ir, "cos" if is_cos else "sin"
        quarters = self.binary("fmul", x, number(0.6366197723675814))
        is_large = self.compared("uge", self.called("fabs", quarters), number(MOST_TURNS))
        large = ir.value(f"icmp ne i{LANES} {ir.value(f'bitcast {BOOLS} {is_large} to i{LANES}')}, 0")
        slow, fast, end = ir.new_label("slow"), ir.new_label("fast"), ir.new_label("end")
        ir.do(f"br i1 {large}, label %{slow}, label %{fast}")
        ir.at(slow)
        by_library = self.called(name, x)
        ir.do(f"br label %{end}")
        ir.at(fast)
        n, whole = self._whole(quarters)
        rest = x
        for part in HALF_PI:
            rest = self.fma(n, number(-part), rest)
        square = self.binary("fmul", rest, rest)
        sine = self.fma(self.binary("fmul", self.polynomial(square, SIN), square), rest, rest)
        cosine = self.binary("fmul", self.polynomial(square, COS), square)
        cosine = self.fma(cosine, square, self.fma(square, number(-0.5), number(1.0)))
        if is_cos:
            whole = ir.value(f"add {INTS} {whole}, {everywhere('i32', 1)}")
        is_odd = ir.value(f"trunc {INTS} {whole} to {BOOLS}")
        found = self.where(is_odd, cosine, sine)
        second_bit = ir.value(f"lshr {INTS} {whole}, {everywhere('i32', 1)}")
        is_negative = ir.value(f"trunc {INTS} {second_bit} to {BOOLS}")
        computed = self.where(is_negative, self._negative(found), found)
        ir.do(f"br label %{end}")
        ir.at(end)
        return ir.value(f"phi {FLOATS} [ {by_library}, %{slow} ], [ {computed}, %{fast} ]")

    def _negative(self, x: str) -> str:
        return self.ir.value(f"fneg {FLOATS} {x}")

    def gelu_tanh(self, x: str) -> str:
        """The approximation of gelu by tanh."""
        cube = self.binary("fmul", self.binary("fmul", x, x), x)
        inner = self.binary("fadd", x, self.binary("fmul", number(0.044715), cube))
        turned = self.tanh(self.binary("fmul", number(sqrt(2 / 3.141592653589793)), inner))
        return self.binary("fmul", self.binary("fmul", number(0.5), x), self.binary("fadd", number(1.0), turned))

    def apply(self, op: str, args: Sequence[str]) -> str:
        """`op`, a key of OPS, of vectors."""
        return OPS[op](self, *args)


def _truths(op: str) -> Callable[..., str]:
    return lambda f, x, y: f.ir.value(f"{op} {BOOLS} {x}, {y}")


OPS: dict[str, Callable[..., str]] = {
    "+": lambda f, x, y: f.binary("fadd", x, y),
    "-": lambda f, x, y: f.binary("fsub", x, y),
    "*": lambda f, x, y: f.binary("fmul", x, y),
    "/": lambda f, x, y: f.binary("fdiv", x, y),
    "<": lambda f, x, y: f.compared("olt", x, y),
    "<=": lambda f, x, y: f.compared("ole", x, y),
    ">": lambda f, x, y: f.compared("ogt", x, y),
    ">=": lambda f, x, y: f.compared("oge", x, y),
    "==": lambda f, x, y: f.compared("oeq", x, y),
    "!=": lambda f, x, y: f.compared("une", x, y),
    "and": _truths("and"),
    "or": _truths("or"),
    "not": lambda f, x: f.ir.value(f"xor {BOOLS} {x}, {everywhere('i1', 1)}"),
    "negative": lambda f, x: f._negative(x),
    "**": lambda f, x, y: f.called("pow", x, y),
    "square": lambda f, x: f.binary("fmul", x, x),
    "number": lambda f, x: f.ir.value(f"uitofp {BOOLS} {x} to {FLOATS}"),
    "where": lambda f, condition, x, y: f.where(condition, x, y),
    "exp": Functions.exp,
    "sqrt": lambda f, x: f.called("sqrt", x),
    "rsqrt": lambda f, x: f.binary("fdiv", number(1.0), f.called("sqrt", x)),
    "sin": lambda f, x: f.turned(x, False),
    "cos": lambda f, x: f.turned(x, True),
    "tanh": Functions.tanh,
    "sigmoid": Functions.sigmoid,
    "silu": lambda f, x: f.binary("fmul", x, f.sigmoid(x)),
    "gelu_tanh": Functions.gelu_tanh,
    "relu": lambda f, x: f.where(f.compared("olt", x, number(0.0)), number(0.0), x),
    "abs": lambda f, x: f.called("fabs", x),
    "min": lambda f, x, y: f.extreme(False, x, y),
    "max": lambda f, x, y: f.extreme(True, x, y),
}
"""By the operators and function names of expressions."""
COSTLY = frozenset(("/", "**", "exp", "sqrt", "rsqrt", "sin", "cos", "tanh", "sigmoid", "silu", "gelu_tanh"))
"""What is rather computed once than for every element that it is the same for."""
DECLARATIONS = tuple(
    f"declare {FLOATS} @llvm.{name}.v{LANES}f32({', '.join([FLOATS] * args)})"
    for name, args in (("fma", 3), ("sqrt", 1), ("fabs", 1), ("copysign", 2), ("sin", 1), ("cos", 1), ("pow", 2))
)
