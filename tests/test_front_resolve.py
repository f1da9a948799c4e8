"""What a statement may say: names, extents, index ranges, implicit sums, partial definitions. Each mistake has its place and cure."""

from __future__ import annotations

import pytest

from einpage.einsum_front.algebra.expr import Binary, Name, Num, text, walk
from einpage.einsum_front.elaborate.elaborate import elaborate
from einpage.einsum_front.spec.reader import read_document
from front_text import HEAD, PATH, failure, place, program, spec

Y = "y[b,s,m] = x0[b,s,m]"


def meaning(statement: str, extra: str = "") -> str:
    """The resolved expression of one statement that sets `r`."""
    head = HEAD.replace("half: 3}", "half: 3" + extra + "}")
    definitions = elaborate(read_document(spec(statement, Y, head=head), PATH)).definitions
    (part,) = next(d for d in definitions if d.base == "r").parts
    assert not any(isinstance(n, Name) for n in walk(part.expr))
    return text(part.expr)


@pytest.mark.parametrize(
    ("statement", "resolved"),
    [
        ("r[b,s,n] = x0[b,s,m] * w[n,m]", "sum[m](x0[b, s, m] * w[n, m])"),
        ("r[b,s] = x0[b,s,m] * w[n,m] * g[n]", "sum[m,n](x0[b, s, m] * w[n, m] * g[n])"),
        ("r[s,n] = x0[b,s,m] * w[n,m] * x0[b,s,m]", "sum[b,m](x0[b, s, m] * w[n, m] * x0[b, s, m])"),
        ("r[b,s,m] = x0[b,s,m] * g[m]", "x0[b, s, m] * g[m]"),
        ("r[b,s] = x0[b,s,m] * g[m] / sqrt(model + 3)", "sum[m](x0[b, s, m] * g[m] / 3.0)"),
        ("r[b,s] = x0[b,s,m] / g[m]", "sum[m](x0[b, s, m] / g[m])"),
        ("r[b,s] = x0[b,s,m] * g[m] + eps", "sum[m](x0[b, s, m] * g[m]) + 1e-05"),
        ("r[b,s,n] = silu(x0[b,s,m]*w[n,m]) * (x0[b,s,m]*w[n,m])", "silu(sum[m](x0[b, s, m] * w[n, m])) * sum[m](x0[b, s, m] * w[n, m])"),
        ("r[b,s] = (x0[b,s,m] * g[m]) * g[m] * g[m]", "sum[m](sum[m](x0[b, s, m] * g[m]) * g[m] * g[m])"),
        ("r[b,s] = ((x0[b,s,m] / g[m])) / g[m] * g[m]", "sum[m](sum[m](x0[b, s, m] / g[m]) / g[m] * g[m])"),
        ("r[b,s] = (x0[b,s,m] + 1) * g[m]", "sum[m]((x0[b, s, m] + 1) * g[m])"),
        ("r[b,s] = sum[m](x0[b,s,m] * g[m])", "sum[m](x0[b, s, m] * g[m])"),
        ("r[b,s] = mean[m](x0[b,s,m]**2)", "mean[m](x0[b, s, m] ** 2)"),
        ("r[b,s,m] = x0[b,s,m] * rsqrt(mean[m](x0[b,s,m]**2) + eps)", "x0[b, s, m] * rsqrt(mean[m](x0[b, s, m] ** 2) + 1e-05)"),
        ("r[b] = sum[m](x0[b,s,m] * x0[b,s,m])", "sum[m](sum[s](x0[b, s, m] * x0[b, s, m]))"),
        ("r[b,s,t] = softmax[t](x0[b,s,m] * x0[b,t,m])", "softmax[t](sum[m](x0[b, s, m] * x0[b, t, m]))"),
        ("r[b,s,n] = softmax[m](x0[b,s,m]) * w[n,m]", "sum[m](softmax[m](x0[b, s, m]) * w[n, m])"),
        ("r[b,s] = x0[b,s,m] * g[m] * half", "sum[m](x0[b, s, m] * g[m] * 3)"),
        ("r[b,s,m] = x0[b, seq-1, m] + s", "x0[b, 3, m] + s"),
        ("r[b,s] = g[ids[b,s]]", "g[ids[b, s]]"),
        ("r[b,s] = g[ids[b,s] % model] * ids[b,s]", "g[ids[b, s] % 6] * ids[b, s]"),
        ("r[s] = g[min(s + 4, model - 1)]", "g[min(s + 4, 5)]"),
        ("r[s] = g[s + 2]", "g[s + 2]"),
        ("r[z,e] = g[3*z + e]", "g[3 * z + e]"),
        ("r[m] = g[m // 2]", "g[m // 2]"),
        ("r[m] = g[max(m - 3, 0)]", "g[max(m - 3, 0)]"),
        ("r[m] = g[model - 1 - m]", "g[5 - m]"),
        ("r[s,t] = where(t <= s, 1, -inf)", "where(t <= s, 1, -inf)"),
        ("r[s,t] = where(t <= s and 3 < 2, 1, 2) + s", "2 + s"),
        ("r[s,t] = where(t <= s and (3 > 2 or t < 9), 1, 2)", "where(t <= s, 1, 2)"),
        ("r[s,t] = where(t <= s or 0, 1, 2)", "where(t <= s, 1, 2)"),
        ("r[s,t] = where(1 and t - s, 1, 2)", "where(t - s != 0, 1, 2)"),
        ("r[s] = where(seq == 4, s, 1 / (seq - 4))", "s"),
        ("r[e] = 10.0 ** (-e / half)", "10.0 ** (-e / 3)"),
        ("r = eps * 2", "2e-05"),
    ],
)
def test_a_statement_means(statement: str, resolved: str) -> None:
    assert meaning(statement) == resolved


@pytest.mark.parametrize(
    ("statement", "shown", "words"),
    [
        # unknown names
        ("r[b,q] = x0[b,q,m] * g[m]", "q] = x0[b,q,m] * g[m]", "unknown name `q`"),
        ("r[b,s] = x0[b,s,q] * g[q]", "q] * g[q]", "unknown name `q`"),
        ("r[b,s] = modle * s", "modle * s", "did you mean `model`?"),
        ("r[b,s] = x1[b,s,m] * g[m]", "x1[b,s,m] * g[m]", "exists: ids, x0, w, g"),
        ("r[b,s] = sum[q](x0[b,s,m])", "sum[q](x0[b,s,m])", "unknown axis `q`"),
        ("r[b,s,m] = later[b,s,m]", "later[b,s,m]", "it is first set in line 14"),
        ("r[b,s,m] = seq[b]", "seq[b]", "is a number"),
        ("r[b,s,m] = s[b]", "s[b]", "is an axis"),
        ("r[b,s] = x0", "x0", "expected: `x0[b, s, m]`"),
        # indices
        ("r[b,s,m] = x0[b,s]", "x0[b,s]", "has 3 dimension(s), found 2 indices"),
        ("r[b,m] = x0[b,m,m]", "m,m]", "`m` has extent 6, but stands in dimension 2 (`s`) of the input `x0`, which has extent 4"),
        ("r[b,s,m] = x0[b,4,m]", "4,m]", "the index 4 is outside"),
        ("r[b,s,m] = x0[b,-1,m]", "-1,m]", "the last is 3"),
        ("r[b,s,m] = x0[b,seq,m]", "seq,m]", "the index 4 is outside"),
        ("r[s] = g[s + 3]", "s + 3]", "`s + 3` takes values 3 … 6, outside dimension 1"),
        ("r[s] = g[2*s - 1]", "2*s - 1]", "takes values -1 … 5"),
        ("r[m] = g[6 - m]", "6 - m]", "takes values 1 … 6"),
        ("r[m] = g[m * m]", "m * m]", "takes values 0 … 25"),
        ("r[b,s] = g[ids[b,s] % 2 + 6]", "ids[b,s] % 2 + 6]", "outside"),
        ("r[s] = g[s / 2]", "s / 2]", "not a whole number"),
        ("r[s] = g[1.0]", "1.0]", "not a whole number"),
        ("r[s] = g[inf]", "inf]", "not a whole number"),
        ("r[b,s] = g[x0[b,s,0]]", "x0[b,s,0]]", "does not hold integers"),
        ("r[b] = x0[b,s,0] * x0[b,ids[0,s],0] * g[z*n]", "z*n]", "would vanish silently"),
        # silent reductions
        ("r[b,s] = x0[b,s,m]", "m]", "would vanish silently"),
        ("r[b,s] = x0[b,s,m] + x0[b,s,m] * g[m]", "m] + x0[b,s,m] * g[m]", "write `sum[m](…)`"),
        ("r[b,s] = (x0[b,s,m] * g[m]) * g[m]", "m]", "would vanish silently"),
        ("r[b,s] = exp(x0[b,s,m]) * 2", "m]) * 2", "would vanish silently"),
        ("r[b] = g[s] * 2", "s] * 2", "`s` has extent 4"),
        ("r[b,s] = softmax[t](x0[b,s,m] * x0[b,t,m])", "softmax[t](x0[b,s,m] * x0[b,t,m])", "`t` is not on the target"),
        ("r[b] = t * 2", "t * 2", "would vanish silently"),
        ("r[b,s] = g[ids[b,t]]", "t]]", "would vanish silently"),
        ("r[b,s] = sum[t](x0[b,s,0])", "sum[t](x0[b,s,0])", "which its body does not contain"),
        # arithmetic
        ("r[s] = s + 1 / (seq - 4)", "1 / (seq - 4)", "division by zero"),
        ("r[s] = s + sqrt(-1)", "sqrt(-1)", "no real result"),
        # targets
        ("r[s,s] = 1", "s] = 1", "stands twice on the target"),
        ("r[s + 1] = 1", "s + 1] = 1", "arithmetic in an index of the target `r`, which is no state"),
        ("r[-1] = 1", "-1] = 1", "expected: a whole number from 0"),
        ("r[0.5] = 1", "0.5] = 1", "expected: a whole number from 0"),
        ("x0[b,s,m] = 1", "x0[b,s,m] = 1", "already names an input"),
        ("w[n,m] = 1", "w[n,m] = 1", "already names a weight"),
        ("model = 1", "model = 1", "already names a size"),
        ("s = 1", "s = 1", "already names an axis"),
        ("r[b] += 1", "r[b] += 1", "added to before it is set"),
    ],
)
def test_a_statement_refused(statement: str, shown: str, words: str) -> None:
    e = failure(spec(statement, "later[b,s,m] = x0[b,s,m]", Y))
    assert (e.line, place(e)) == (13, shown)
    assert words in str(e)
    assert e.expected or e.exists or e.cure or "no real result" in e.message or "division" in e.message or "outside" in e.message


def test_an_index_that_needs_no_proof() -> None:
    assert meaning("r[b] = g[ids[b,0] - 1]") == "g[ids[b, 0] - 1]"


def test_letters_of_one_extent_are_exchangeable() -> None:
    assert meaning("r[b,t,n] = x0[b,t,n]") == "x0[b, t, n]"


@pytest.mark.parametrize(
    ("statements", "line", "words"),
    [
        (["r[b,0] = 1", "r[b,2] = 1"], 13, "`r[b,1]` is never set"),
        (["r[b,0,0] = 1", "r[b,1,1] = 1"], 13, "`r[b,0,1]` is never set"),
        (["r[b,0] = 1", "r[b,0] = 2"], 14, "was set already, in line 13"),
        (["r[b,0] = 1", "r[b,1,0] = 2"], 14, "has 3 dimensions, the one in line 13 has 2"),
        (["r[b,0] = 1", "r[s,1] = 2"], 14, "the extents do not agree"),
        (["r[z,0] = 1", "r[2,1] = 2"], 14, "the extents do not agree"),
        (["r[0,s] = 1", "r[b,2] = 2"], 14, "was set already"),
        (["r[0,s] = 1", "r[b,2] = 1"], 14, "was set already"),
        (["r[0,s] = 1", "r[1,0] = 1"], 13, "`r[1,1]` is never set"),
        (["r[1] = 1"], 13, "`r[0]` is never set"),
        (["r[b,0] = 1", "r[b,1] = 1", "r[b,0] += 1"], 15, "on a part of a value"),
    ],
)
def test_partial_definitions_that_do_not_make_a_value(statements: list[str], line: int, words: str) -> None:
    e = failure(spec(*statements, Y))
    assert e.line == line
    assert words in str(e)


def test_partial_definitions_must_be_complete_when_first_read() -> None:
    e = failure(spec("r[b,0] = 1", "y[b,s,m] = x0[b,s,m] + r[b,0]", "r[b,1] = 2"))
    assert (e.line, place(e)) == (15, "r[b,1] = 2")
    assert "or set it before `r` is read in line 14" in str(e)


def test_a_value_that_is_read_before_it_is_covered() -> None:
    e = failure(spec("r[b,0] = 1", "r[b,2] = 1", "y[b,s,m] = x0[b,s,m] + r[b,0]"))
    assert (e.line, place(e)) == (13, "r[b,0] = 1")
    assert "it is read in line 15" in str(e)
    assert "cure: add `r[b,1] = …`" in str(e)


@pytest.mark.parametrize(
    ("output", "shown", "words"),
    [
        ("{z1: {axes: b s m}}", "z1: {axes: b s m}}", "no statement sets the output `z1`"),
        ("{y: {axes: b m s}}", "b m s}}", "expected: `b s m`"),
        ("{y: {axes: b s}}", "b s}}", "expected: `b s m`"),
        ("{y: {axes: b s q}}", "q}}", "unknown axis `q`"),
        ("{y: b s m}", "b s m}", "expected: a mapping"),
    ],
)
def test_an_output_refused(output: str, shown: str, words: str) -> None:
    e = failure(spec(Y, outputs=output))
    assert place(e) == shown
    assert words in str(e)


@pytest.mark.parametrize(
    ("old", "new", "shown", "words"),
    [
        ("g: {axes: m, from: g}", "g: {axes: q, from: g}", "q, from: g}", "unknown axis `q`"),
        ("g: {axes: m, from: g}", "g: {axes: m, from: g, or: h}", "h}", "unknown weight `h`"),
        ("g: {axes: m, from: g}", "g: {axes: m, from: g, or: w}", "w}", "expected: a weight of the same shape"),
        ("g: {axes: m, from: g}", "g: {axes: m, from: g, or: g}", "g}", "without an `or:` of its own"),
        ("g: {axes: m, from: g}", "g: {axes: m, from: [{name: g, axes: n}]}", "n}]}", "not one of the letters left for `g`"),
        ("w: {axes: n m, from: w}", "w: {axes: n m, from: [{name: w, axes: n}]}", "n}]}", "leave out `m`"),
        ("w: {axes: n m, from: w}", 'w: {axes: n m, from: "w.{k}"}', 'k}"}', "unknown name `k`"),
    ],
)
def test_a_weight_refused(old: str, new: str, shown: str, words: str) -> None:
    e = failure(spec(Y, head=HEAD.replace(old, new)))
    assert place(e) == shown
    assert words in str(e)


def test_folding_keeps_whole_numbers_whole() -> None:
    (part,) = program("r[s] = (model // 2) * s", Y).definitions[0].parts
    assert isinstance(part.expr, Binary)
    assert part.expr.x == Num(3) and type(part.expr.x.value) is int
