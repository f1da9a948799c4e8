"""Tokens to expressions and statements: our own small grammar, precedence as in Python. Never `eval`.

    statement   target ("=" | "+=") expression            target      NAME [ "[" expression {"," expression} "]" ]
    expression  or, and, not, comparison, + -, * / // %, unary -, **   (loosest first; ** and - as in Python)
    atom        NUMBER | NAME | NAME "[" indices "]" | function "(" arguments ")" | reduction "[" letters "]" "(" expression ")"

An expression is never higher than MAX_DEPTH, so everything that walks it may recurse, whatever a file holds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isinf
from typing import NoReturn

from einpage.einsum_front.algebra.expr import COMPARISONS, Binary, Call, Expr, Letter, Load, Name, Num, Reduce, Reduction, Unary
from einpage.einsum_front.algebra.functions import FUNCTIONS
from einpage.einsum_front.base.errors import Span, did_you_mean
from einpage.einsum_front.spec.elsewhere import AFTER, STARTS, instead_of, instead_of_equals, instead_of_operand, instead_of_setting
from einpage.einsum_front.spec.lex import Token, TokenKind, tokens
from einpage.einsum_front.spec.source import Snippet

MAX_DEPTH = 64
"""Levels of an expression's tree, brackets and chains (`a + b + …`) alike."""
REDUCTIONS = {r.value: r for r in Reduction}
"""By the word of the language."""
RESERVED = frozenset((*FUNCTIONS, *REDUCTIONS, "pi", "inf", "nan", "and", "or", "not"))
"""Words that cannot name a size, an axis or a value."""

_LEVELS: tuple[frozenset[str], ...] = (
    frozenset(("or",)),
    frozenset(("and",)),
    frozenset(COMPARISONS),
    frozenset(("+", "-")),
    frozenset(("*", "/", "//", "%")),
)
_COMPARISON = 2
_PRODUCTS = ("*", "/")
_LIKE = 0.75
"""How like a function's name another must be to be taken for it: `sign` is no misspelt `sin`."""
_LEVEL_BY_OPERATOR = {op: level for level, ops in enumerate(_LEVELS) for op in ops}


@dataclass(frozen=True, slots=True)
class Statement:
    """`name[indices] = expr` or `+=`, as written."""

    name: str
    indices: tuple[Expr, ...]
    adds: bool
    """True for `+=`."""
    expr: Expr
    span: Span
    """The target's."""
    snippet: Snippet


@dataclass(frozen=True, slots=True)
class AxesGroup:
    """One checkpoint dimension: a letter, or several in brackets, outermost first."""

    letters: tuple[tuple[Letter, Span], ...]


def parse_expression(snippet: Snippet | str) -> Expr:
    """The expression that is all of `snippet`. Raises SpecError."""
    parser = _Parser(Snippet.alone(snippet) if isinstance(snippet, str) else snippet)
    e, _ = parser.expression()
    parser.expect_end()
    return e


def parse_statement(snippet: Snippet | str) -> Statement:
    """The statement that is all of `snippet`. Raises SpecError."""
    parser = _Parser(Snippet.alone(snippet) if isinstance(snippet, str) else snippet)
    return parser.statement()


def parse_axes(snippet: Snippet) -> tuple[AxesGroup, ...]:
    """`(k g z e) m`, letters parted by blanks, into one group per dimension. Raises SpecError."""
    groups: list[AxesGroup] = []
    open_at: int | None = None
    inner: list[tuple[Letter, Span]] = []
    for token in tokens(snippet):
        if token.text == "(" and open_at is None:
            open_at, inner = token.start, []
        elif token.text == ")" and open_at is not None and inner:
            groups.append(AxesGroup(tuple(inner)))
            open_at = None
        elif token.kind is TokenKind.WORD:
            letter = (Letter(token.text), snippet.span(token.start, token.end))
            if open_at is None:
                groups.append(AxesGroup((letter,)))
            else:
                inner.append(letter)
        elif token.kind is not TokenKind.END or open_at is not None:
            found = f"found {token.shown()} in a list of axes"
            cure = "every dimension has a letter, of an axis that is as long: `axes: {o: 1}`" if token.kind is TokenKind.NUMBER else None
            snippet.fail(token.start, token.end, found, expected="letters, as in `(k g z e) m`", cure=cure)
    return tuple(groups)


class _Parser:
    """Recursive descent over one snippet; every method gives an expression and the height of its tree."""

    def __init__(self, snippet: Snippet) -> None:
        self._snippet = snippet
        self._tokens = tokens(snippet)
        self._token = next(self._tokens)
        self._last_end = 0
        self._nesting = 0

    def statement(self) -> Statement:
        """`target = expression` or `+=`, to the end of the text."""
        start = self._token
        if start.kind is not TokenKind.WORD:
            self._fail(start, f"a statement starts with a name, found {start.shown()}", expected="`target[indices] = expression`")
        name = self._advance().text
        indices: tuple[Expr, ...] = ()
        if self._token.text == "[":
            indices = self._indices()
        span = self._snippet.span(start.start, self._last_end)
        if name in STARTS and not indices and self._token.text not in ("=", "+="):
            self._fail(start, f"found `{name}`", expected="`target[indices] = expression`", cure=STARTS[name])
        if name in RESERVED:
            self._fail(start, f"`{name}` is a word of the language and cannot be set", cure="choose another name")
        if self._token.text not in ("=", "+="):
            message, expected = f"found {self._token.shown()} after the target", "`=` or `+=`, as in `target[indices] = expression`"
            self._fail(self._token, message, expected=expected, cure=instead_of_setting(name, self._token.text))
        adds = self._advance().text == "+="
        expr, _ = self.expression()
        self.expect_end()
        return Statement(name, indices, adds, expr, span, self._snippet)

    def expression(self) -> tuple[Expr, int]:
        """The longest expression from here on."""
        self._nesting += 1
        if self._nesting > MAX_DEPTH:
            self._too_deep(self._token)
        found = self._binary(0)
        self._nesting -= 1
        return found

    def expect_end(self) -> None:
        """Raises SpecError where a token is left."""
        token = self._token
        if token.kind is TokenKind.END:
            return
        if token.text == "=":
            self._fail(token, "`=` inside an expression", cure=instead_of_equals(self._snippet.text[token.end : token.end + 1]))
        juxtaposed = token.kind in (TokenKind.NUMBER, TokenKind.WORD)
        cure = AFTER.get(token.text) or ("a product is written with `*`" if juxtaposed else None)
        self._fail(token, f"found {token.shown()} after the end of the expression", expected="an operator, or the end", cure=cure)

    def _before(self, token: Token) -> str:
        """The character before a token, blanks apart."""
        return self._snippet.text[: token.start].rstrip()[-1:]

    def _binary(self, loosest: int) -> tuple[Expr, int]:
        """Precedence climbing: an operand, then every operator at level `loosest` or tighter."""
        start = self._token.start
        left, height = self._not() if self._token.text == "not" and loosest <= _COMPARISON else self._unary()
        first, compared = left, False
        while (level := _LEVEL_BY_OPERATOR.get(self._token.text, -1)) >= loosest:
            token = self._advance()
            if left is first and token.text in _PRODUCTS and isinstance(first, Binary) and first.op in _PRODUCTS:
                left = replace(first, is_factor=True)  # an operand that is a product stood in brackets
            if level == _COMPARISON and compared:
                self._fail(token, "comparisons do not chain", cure="write `a < b and b < c`")
            right, right_height = self._binary(level + 1)
            height = self._taller(token, height, right_height)
            left = Binary(token.text, left, right, self._snippet.span(start, self._last_end))
            compared = level == _COMPARISON
        return left, height

    def _not(self) -> tuple[Expr, int]:
        token = self._advance()
        self._nest(token)
        x, height = self._binary(_COMPARISON)
        self._nesting -= 1
        return Unary("not", x, self._snippet.span(token.start, self._last_end)), self._taller(token, height)

    def _unary(self) -> tuple[Expr, int]:
        token = self._token
        if token.text != "-":
            return self._power()
        self._advance()
        self._nest(token)
        x, height = self._unary()
        self._nesting -= 1
        return Unary("-", x, self._snippet.span(token.start, self._last_end)), self._taller(token, height)

    def _power(self) -> tuple[Expr, int]:
        start = self._token.start
        base, height = self._atom()
        if self._token.text != "**":
            return base, height
        token = self._advance()
        self._nest(token)
        exponent, exponent_height = self._unary()
        self._nesting -= 1
        height = self._taller(token, height, exponent_height)
        return Binary("**", base, exponent, self._snippet.span(start, self._last_end)), height

    def _atom(self) -> tuple[Expr, int]:
        token = self._token
        if token.kind is TokenKind.NUMBER:
            self._advance()
            number = _number(token.text)
            if isinf(number):
                self._fail(token, f"`{token.text}` is beyond fp32", expected="a number that fp32 holds, or `inf`")
            return Num(number, self._snippet.span(token.start, token.end)), 1
        if token.kind is TokenKind.WORD and token.text not in ("and", "or", "not"):
            return self._word()
        if token.text == "(":
            self._advance()
            found = self.expression()
            self._expect(")", token)
            return found
        self._fail(
            token,
            f"found {token.shown()}",
            expected="a number, a name, a function or `(`",
            cure=instead_of_operand(self._before(token), token.text),
        )

    def _word(self) -> tuple[Expr, int]:
        token = self._advance()
        word, following = token.text, self._token.text
        if following == "(":
            return self._call(token)
        if following == "[" and word in REDUCTIONS:
            return self._reduction(token)
        if word in FUNCTIONS or word in REDUCTIONS:
            self._fail(token, f"`{word}` is a function", expected=f"`{_usage(word)}`")
        if following == "[":
            indices, height = self._bracketed("]", token)
            if self._token.text == "(":
                self._called(token)
            return Load(word, indices, self._snippet.span(token.start, self._last_end)), height + 1
        return Name(word, self._snippet.span(token.start, token.end)), 1

    def _call(self, token: Token) -> tuple[Expr, int]:
        word = token.text
        if word not in FUNCTIONS:
            if word in REDUCTIONS:
                self._fail(token, f"`{word}` needs the letters it runs over", expected=f"`{_usage(word)}`")
            self._unknown_function(token)
        args, height = self._bracketed(")", token)
        if len(args) != FUNCTIONS[word].arity:
            self._wrong_arity(token, len(args))
        return Call(word, args, self._snippet.span(token.start, self._last_end)), height + 1

    def _unknown_function(self, token: Token) -> NoReturn:
        word, known = token.text, (*FUNCTIONS, *REDUCTIONS)
        cure = instead_of(word) if word.lower() not in known else None
        cure = cure or did_you_mean(word, known, _LIKE) or f"write it in terms of these; an element of a value is `{word}[…]`"
        span = self._snippet.span(token.start, token.end)
        raise self._snippet.source.error(span, f"unknown function `{word}`", exists=", ".join(dict.fromkeys(known)), cure=cure)

    def _called(self, token: Token) -> NoReturn:
        """`word[…](…)` for a word that is no reduction."""
        word = token.text
        cure = (instead_of(word) if word.lower() not in REDUCTIONS else None) or did_you_mean(word, REDUCTIONS, _LIKE)
        if cure is None:
            self._fail(self._token, f"`{word}[…]` is an element of a value and cannot be called", cure="a product is written with `*`")
        span = self._snippet.span(token.start, token.end)
        raise self._snippet.source.error(span, f"unknown reduction `{word}`", exists=", ".join(REDUCTIONS), cure=cure)

    def _wrong_arity(self, token: Token, found: int) -> NoReturn:
        word, arity, cure = token.text, FUNCTIONS[token.text].arity, None
        if word in REDUCTIONS:
            over = f"over letters it is `{_usage(word)}`"
            cure = over if found == 1 else f"of more, nest them: `{word}(x, {word}(y, z))`; {over}"
        message = f"`{word}` takes {arity} argument{'s' * (arity > 1)}, found {found}"
        self._fail(token, message, expected=f"`{word}({', '.join(FUNCTIONS[word].parameters)})`", cure=cure)

    def _reduction(self, token: Token) -> tuple[Expr, int]:
        self._advance()
        letters: list[Letter] = []
        while True:
            letter = self._advance()
            if letter.kind is not TokenKind.WORD or letter.text in RESERVED:
                self._fail(letter, f"found {letter.shown()}", expected=f"an axis letter, as in `{_usage(token.text)}`")
            if letter.text in letters:
                self._fail(letter, f"the letter `{letter.text}` stands twice in one reduction", cure="name it once")
            letters.append(Letter(letter.text))
            if self._token.text != ",":
                break
            self._advance()
        self._expect("]", token)
        opened = self._token
        if opened.text != "(":
            self._fail(opened, f"found {opened.shown()} after `{token.text}[…]`", expected=f"`{_usage(token.text)}`")
        self._advance()
        body, height = self.expression()
        if self._token.text == ",":
            cure = "the target says which letters are kept; several letters are named as `sum[m,n](x)`"
            self._fail(self._token, f"`{token.text}[…]` takes one expression", expected=f"`{_usage(token.text)}`", cure=cure)
        self._expect(")", opened)
        span = self._snippet.span(token.start, self._last_end)
        return Reduce(REDUCTIONS[token.text], tuple(letters), body, span), self._taller(token, height)

    def _indices(self) -> tuple[Expr, ...]:
        return self._bracketed("]", self._token)[0]

    def _bracketed(self, closing: str, token: Token) -> tuple[tuple[Expr, ...], int]:
        """`[a, b]` or `(a, b)`, the current token being the opening bracket."""
        opened = self._advance()
        if self._token.text == closing:
            message, word = f"nothing between `{opened.text}` and `{closing}`", token.text
            if closing == ")":
                self._fail(opened, message, expected=f"`{_usage(word)}`")
            self._fail(opened, message, cure="a value without dimensions is written bare")
        items: list[Expr] = []
        height = 0
        while True:
            item, item_height = self.expression()
            items.append(item)
            height = max(height, item_height)
            if self._token.text != ",":
                break
            self._advance()
        self._expect(closing, opened)
        return tuple(items), self._taller(token, height) - 1

    def _expect(self, symbol: str, opened: Token) -> None:
        if self._token.text == symbol:
            self._advance()
            return
        line, column = self._snippet.place(opened.start)
        token, cure = self._token, None
        if symbol == "]" and token.kind in (TokenKind.NUMBER, TokenKind.WORD):
            cure = "commas part indices: `x[b,s,m]`"
        elif token.text == "=":
            cure = instead_of_equals(self._snippet.text[token.end : token.end + 1])
        elif token.text == "," and opened.text == "(":
            cure = "brackets around an operand hold one expression"
        self._fail(token, f"found {token.shown()}", expected=f"`{symbol}` for the one opened at {line}:{column}", cure=cure)

    def _advance(self) -> Token:
        token = self._token
        if token.kind is not TokenKind.END:
            self._last_end = token.end
            self._token = next(self._tokens)
        return token

    def _nest(self, token: Token) -> None:
        self._nesting += 1
        if self._nesting > MAX_DEPTH:
            self._too_deep(token)

    def _taller(self, token: Token, *heights: int) -> int:
        height = max(heights, default=0) + 1
        if height > MAX_DEPTH:
            self._too_deep(token)
        return height

    def _too_deep(self, token: Token) -> NoReturn:
        cure = "cut it into several statements"
        self._fail(
            token, "this expression is nested too deeply", expected=f"at most {MAX_DEPTH} levels of brackets and operators", cure=cure
        )

    def _fail(self, token: Token, message: str, *, expected: str | None = None, cure: str | None = None) -> NoReturn:
        self._snippet.fail(token.start, max(token.end, token.start + 1), message, expected=expected, cure=cure)


def _usage(word: str) -> str:
    return f"{word}[t](…)" if word in REDUCTIONS else f"{word}({', '.join(FUNCTIONS[word].parameters)})"


def _number(text: str) -> int | float:
    digits = text.replace("_", "")
    return int(digits) if digits.isdigit() else float(digits)
