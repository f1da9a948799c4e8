"""What people who know numpy, PyTorch or Python write, and what this language has instead: the cures of errors about words and characters.

In a cure `x` stands for the argument, `m` for the letter of a reduction; what stands between backticks is of the language.
"""

from __future__ import annotations

import re

from einpage.einsum_front.algebra.functions import FUNCTIONS

_ARRANGED = "nothing moves elements: indices say which dimension is which, as in `w[m,n]` for the transpose of `w[n,m]`"
_PRODUCT = "a product sums over the letters that are not on the target: `y[b,o] = x[b,i] * w[o,i]`"
_SHIFT = "an index under a condition: `where(s >= 1, x[b, s-1, m], 0)`"
_CONVOLUTION = "a sum over taps, with zeros before the start: `y[b,s,o] = where(s + k >= 3, x[b, s+k-3, i], 0) * w[o,i,k]`"
_POSITION = "there is none; `x == max[m](x)` marks where it is, and the position can be found in an output, outside"
_MASK = "compare positions: `where(t <= s, x, 0)`"
_LITERAL = "a number is written where it is used"
_SIZE = "name the size, as declared under `sizes:`"
_GATE = "a gate is a product of two values: `silu(x) * y`"
_SOFTPLUS = "max(x, 0) + log(1 + exp(-abs(x)))"
_NO_INVERSE = "inverse trigonometric functions are not in the language"

FORMULAS: dict[str, str] = {
    "softplus": _SOFTPLUS,
    "logsigmoid": "min(x, 0) - log(1 + exp(-abs(x)))",
    "mish": f"x * tanh({_SOFTPLUS})",
    "floor": "x // 1",
    "ceil": "-(-x // 1)",
    "trunc": "where(x < 0, -(-x // 1), x // 1)",
    "int": "where(x < 0, -(-x // 1), x // 1)",
    "sign": "(x > 0) - (x < 0)",
    "log2": "log(x) / log(2)",
    "log10": "log(x) / log(10)",
    "log1p": "log(1 + x)",
    "exp2": "2 ** x",
    "expm1": "exp(x) - 1",
    "tan": "sin(x) / cos(x)",
    "sinh": "(exp(x) - exp(-x)) / 2",
    "cosh": "(exp(x) + exp(-x)) / 2",
    "erfc": "1 - erf(x)",
    "square": "x ** 2",
    "reciprocal": "1 / x",
    "neg": "-x",
    "negative": "-x",
    "absolute": "abs(x)",
    "fabs": "abs(x)",
    "swish": "silu(x)",
    "sigmoid_linear_unit": "silu(x)",
    "gelu_new": "gelu_tanh(x)",
    "gelu_fast": "gelu_tanh(x)",
    "gelu_pytorch_tanh": "gelu_tanh(x)",
    "quick_gelu": "x * sigmoid(1.702 * x)",
    "relu2": "relu(x) ** 2",
    "relu6": "min(max(x, 0), 6)",
    "leaky_relu": "where(x > 0, x, 0.01 * x)",
    "elu": "where(x > 0, x, exp(x) - 1)",
    "selu": "1.0507009873554805 * where(x > 0, x, 1.6732632423543772 * (exp(x) - 1))",
    "celu": "where(x > 0, x, exp(x) - 1)",
    "hardtanh": "min(max(x, -1), 1)",
    "hardsigmoid": "min(max(x / 6 + 0.5, 0), 1)",
    "hardswish": "x * min(max(x + 3, 0), 6) / 6",
    "softsign": "x / (1 + abs(x))",
    "tanhshrink": "x - tanh(x)",
    "isnan": "x != x",
    "isinf": "abs(x) == inf",
    "logical_not": "not x",
    "float": "x",
    "double": "x",
    "half": "x",
    "dropout": "x",
    "identity": "x",
}
"""Functions of one argument as expressions of `x`."""

FORMULAS_OF_TWO: dict[str, str] = {
    "pow": "x ** y",
    "power": "x ** y",
    "minimum": "min(x, y)",
    "fmin": "min(x, y)",
    "maximum": "max(x, y)",
    "fmax": "max(x, y)",
    "add": "x + y",
    "sub": "x - y",
    "subtract": "x - y",
    "mul": "x * y",
    "multiply": "x * y",
    "div": "x / y",
    "divide": "x / y",
    "floor_divide": "x // y",
    "remainder": "x % y",
    "mod": "x % y",
    "logical_and": "x and y",
    "logical_or": "x or y",
    "eq": "x == y",
    "ne": "x != y",
    "lt": "x < y",
    "le": "x <= y",
    "gt": "x > y",
    "ge": "x >= y",
    "hypot": "sqrt(x ** 2 + y ** 2)",
    "logaddexp": "max(x, y) + log(1 + exp(-abs(x - y)))",
}
"""Functions of two arguments as expressions of `x` and `y`."""

REDUCED: dict[str, str] = {
    "var": "mean[m]((x - mean[m](x)) ** 2)",
    "std": "sqrt(mean[m]((x - mean[m](x)) ** 2))",
    "norm": "sqrt(sum[m](x ** 2))",
    "any": "max[m](x != 0)",
    "all": "min[m](x != 0)",
    "logsumexp": "max[m](x) + log(sum[m](exp(x - max[m](x))))",
    "log_softmax": "x - max[m](x) - log(sum[m](exp(x - max[m](x))))",
    "softmin": "softmax[m](-x)",
    "amax": "max[m](x)",
    "amin": "min[m](x)",
    "average": "mean[m](x)",
    "avg": "mean[m](x)",
    "count_nonzero": "sum[m](x != 0)",
    "normalize": "x / sqrt(sum[m](x ** 2))",
    "rms_norm": "x * rsqrt(mean[m](x ** 2) + 1e-5)",
    "rmsnorm": "x * rsqrt(mean[m](x ** 2) + 1e-5)",
    "layer_norm": "(x - mean[m](x)) * rsqrt(mean[m]((x - mean[m](x)) ** 2) + 1e-5)",
    "layernorm": "(x - mean[m](x)) * rsqrt(mean[m]((x - mean[m](x)) ** 2) + 1e-5)",
}
"""Reductions of `x` over the letter `m`."""

OTHERWISE: dict[str, str] = {
    **dict.fromkeys(("argmax", "argmin", "argsort", "topk", "sort", "multinomial"), _POSITION),
    **dict.fromkeys(("matmul", "mm", "bmm", "einsum", "linear", "dot", "inner", "outer", "tensordot", "addmm", "mv"), _PRODUCT),
    **dict.fromkeys(("transpose", "permute", "swapaxes", "moveaxis", "reshape", "view", "flatten", "squeeze", "unsqueeze"), _ARRANGED),
    **dict.fromkeys(("expand", "repeat", "repeat_interleave", "tile", "broadcast_to", "rearrange", "contiguous"), _ARRANGED),
    **dict.fromkeys(("conv1d", "conv2d", "conv3d", "conv", "causal_conv1d", "unfold"), _CONVOLUTION),
    **dict.fromkeys(("shift", "roll", "pad"), _SHIFT),
    **dict.fromkeys(("tril", "triu", "masked_fill", "causal_mask"), _MASK),
    **dict.fromkeys(("zeros", "ones", "full", "zeros_like", "ones_like", "full_like", "tensor", "array"), _LITERAL),
    **dict.fromkeys(("len", "size", "shape", "numel"), _SIZE),
    **dict.fromkeys(("glu", "swiglu", "geglu", "reglu"), _GATE),
    **dict.fromkeys(("asin", "acos", "atan", "atan2", "arcsin", "arccos", "arctan", "arctan2"), _NO_INVERSE),
    **dict.fromkeys(("concat", "concatenate", "cat", "hstack", "vstack"), "one behind the other: `where(s < first, x[s], y[s - first])`"),
    **dict.fromkeys(("cumsum", "cumprod"), "a sum up to each position: `sum[t](where(t <= s, x[t], 0))`"),
    **dict.fromkeys(("gather", "index_select", "embedding", "take", "lookup"), "an integer input is an index: `table[tokens[b,s], m]`"),
    **dict.fromkeys(("chunk", "split", "narrow"), "a part is an index with a letter of its extent: `x[b, s, half + e]`"),
    **dict.fromkeys(("arange", "range", "linspace", "iota"), "a letter is its position: `s` is 0, 1, 2 …"),
    **dict.fromkeys(("rand", "randn", "random", "bernoulli"), "random numbers are an input: declare them under `inputs:`"),
    **dict.fromkeys(("clamp", "clip"), "write `min(max(x, low), high)`"),
    "round": "write `(x + 0.5) // 1`, which rounds halves up",
    "cbrt": "write `x ** (1 / 3)` where `x` is not negative",
    "fmod": "write `x % y`, which takes the sign of `y`",
    "stack": "partial definitions: `z[0,s] = x[s]`, then `z[1,s] = y[s]`",
    "one_hot": "compare: `tokens[b,s] == v`",
    "prod": "write `exp(sum[m](log(x)))` where `x` is positive",
    "median": "there is none: sorting is not in the language",
    "rotate_half": "partial definitions of the halves: `r[s,0,e] = -x[s,1,e]`, then `r[s,1,e] = x[s,0,e]`",
    "attention": "write it out: `softmax[t](where(t <= s, q[s,d] * k[t,d] / sqrt(head), -inf))`, then times `v[t,e]`",
    "scaled_dot_product_attention": "write it out: `softmax[t](where(t <= s, q[s,d] * k[t,d] / sqrt(head), -inf))`, then times `v[t,e]`",
}
"""What is no formula of its arguments."""

NAMES: dict[str, str] = {
    "True": "write `1`",
    "False": "write `0`",
    "true": "write `1`",
    "false": "write `0`",
    "None": "every value is a number; for a mask write `where(condition, x, -inf)`",
    "nan": "NaN cannot be written; for a mask write `-inf`",
    "e": "e to the x is `exp(x)`; else declare `e` under `axes:` or `scalars:`",
}
"""Names that are none here."""

STARTS: dict[str, str] = {
    **dict.fromkeys(("if", "elif", "else", "while"), "a condition is part of an expression: `where(s >= 1, x, y)`"),
    "for": "statements are repeated by an item `repeat: 12` with a `body:` of its own",
    "return": "what a spec computes is listed under `outputs:`",
    **dict.fromkeys(("def", "lambda", "import", "from"), "there is nothing but statements: what is used again is a value with a name"),
}
"""Words of Python that begin a line."""

AFTER: dict[str, str] = {
    "if": "a choice is `where(s >= 1, x, y)`",
    "else": "a choice is `where(s >= 1, x, y)`",
    "for": "write a reduction over a letter, as `sum[m](x)`",
    "is": "write `==`",
    "in": "compare by `==`, joined by `or`",
    "[": "all indices stand in one pair of brackets: `x[b,s,m]`",
    "(": "a product is written with `*`",
    "]": "no bracket is open here: leave it out",
    ")": "no bracket is open here: leave it out",
    ",": "a statement sets one value to one expression",
    "+=": "a statement sets one value to one expression",
}
"""What stands behind the end of an expression."""

CHARACTERS: dict[str, str] = {
    ":": "there are no slices: name a letter for every dimension, a number for one element, as in `x[b,0,m]`",
    "@": _PRODUCT,
    "^": "a power is `**`",
    "&": "write `and`",
    "|": "write `or`",
    "!": "write `not`",
    "~": "write `not`",
    "?": "a choice is `where(s >= 1, x, y)`",
    ";": "each statement is an item of `body:`",
    "#": "a comment stands outside the quotes, behind a blank",
    '"': "there is no text in an expression",
    "'": "there is no text in an expression",
    "{": "names are written bare: braces are for names of tensors, under `from:`",
    "}": "names are written bare: braces are for names of tensors, under `from:`",
    "\\": "a statement in quotes may go over several lines as it is",
    **dict.fromkeys("−–—", "write `-`"),
    **dict.fromkeys("×·∗⋅", "write `*`"),
    "÷": "write `/`",
    "≤": "write `<=`",
    "≥": "write `>=`",
    "≠": "write `!=`",
    "²": "write `** 2`",
    "³": "write `** 3`",
    "√": "write `sqrt(x)`",
    "π": "write `pi`",
    "∞": "write `inf`",
    "∑": "write `sum[m](x)`",
    "Σ": "write `sum[m](x)`",
    "“": "there is no text in an expression",
    "”": "there is no text in an expression",
    "\u00a0": "this is a no-break space: write a blank",
    "\u200b": "this is a space of no width: leave it out",
}
"""Characters that are not of the language."""

MODULES = ("torch", "np", "numpy", "jnp", "F", "nn", "math", "tl", "jax", "tf", "functional")
"""What stands before a point in other languages."""


def instead_of(word: str) -> str | None:
    """What to write instead of calling `word`, in any case; None where nothing is known of it."""
    word = word.lower()
    for table in (FORMULAS, FORMULAS_OF_TWO, REDUCED):
        if word in table:
            return f"write `{table[word]}`"
    return OTHERWISE.get(word)


def instead_of_setting(name: str, token: str) -> str | None:
    """What to write where `token` stands behind the target `name`, and not `=` or `+=`; None where nothing is known of it."""
    match token:
        case "-":
            return f"only `=` and `+=` set: `{name}[…] += -(…)`"
        case "*" | "/" | "//" | "%" | "**":
            return f"only `=` and `+=` set: `{name}[…] = {name}[…] {token} …`"
        case "==":
            return "write `=` to set"
        case "(":
            return f"indices stand in square brackets: `{name}[…]`"
    return None


def instead_of_operand(before: str, token: str) -> str | None:
    """What to write where `token` stands for an operand, behind the character `before`; None where nothing is known of it."""
    match token:
        case "not":
            return "put `not …` in brackets here"
        case "+":
            return "leave it out: there is no sign `+`"
        case "[":
            return "there are no lists: partial definitions set elements, as in `y[0] = 1`"
        case ">" if before == "<":
            return "write `!=`"
        case "=" if before in ("<", ">"):
            return f"write `{before}=`"
        case "=":
            return "write `==` to compare"
    return None


def instead_of_equals(after: str) -> str:
    """What to write for a `=` where none can be, before the character `after`."""
    return f"write `{after}=`" if after in ("<", ">") else "write `==` to compare; one statement sets one target"


def instead_of_character(text: str, at: int) -> str | None:
    """What to write instead of the character text[at], which is not of the language; None where nothing is known of it."""
    if text[at] == ".":
        return _about_point(text, at)
    if text.startswith(":=", at):
        return "write `=`"
    return CHARACTERS.get(text[at])


def _about_point(text: str, at: int) -> str:
    before, after = re.search(r"[A-Za-z_]*$", text[:at]), re.match(r"[A-Za-z_]\w*", text[at + 1 :])
    if text.startswith("..", at):
        return "name the letter of every dimension: there is no ellipsis"
    if after is None:
        return "a point stands in a number, as in `0.5`"
    word = "transpose" if after[0] in ("T", "mT") else after[0]
    if before is not None and before[0] in MODULES and word in FUNCTIONS:
        return f"functions are called by their name alone: `{word}(…)`"
    return instead_of(word) or "values have no attributes and no methods: functions are called as `exp(x)`, reductions as `sum[m](x)`"
