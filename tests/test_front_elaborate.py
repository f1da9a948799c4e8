"""Unrolling and single assignment: names, scopes, weights of an iteration, partial definitions, what is carried and what is local."""

from __future__ import annotations

from pathlib import Path

import pytest

from einpage.einsum_front.algebra.expr import Name, loads, text, walk
from einpage.einsum_front.base.errors import SpecError
from einpage.einsum_front.elaborate import elaborate, resolve, statement
from einpage.einsum_front.fuse.tied_weights import with_tied_weights
from einpage.einsum_front.graph.program import Program
from einpage.einsum_front.spec.reader import load_document, read_document
from front_text import HEAD, PATH, failure, place, program, spec

SPECS = Path(__file__).parent.parent / "specs"
Y = "y[b,s,m] = x0[b,s,m]"


def lines(p: Program) -> list[str]:
    """Every statement of every definition, as text."""
    return [f"{d.name}[{','.join(map(text, part.target))}] = {text(part.expr)}" for d in p.definitions for part in d.parts]


def check_single_assignment(p: Program) -> None:
    """Every value is set once, every read is of an earlier value, and no name is left to resolve."""
    there = {w.name for w in p.weights} | {i.name for i in p.inputs}
    for d in p.definitions:
        for part in d.parts:
            assert not any(isinstance(n, Name) for n in walk(part.expr))
            for load in loads(part.expr):
                assert load.name in there, f"{d.name} reads {load.name}"
        assert d.name not in there
        there.add(d.name)
    assert all(o.value in there for o in p.outputs)


def test_a_repeat_carries_what_was_set_before_and_forgets_the_rest() -> None:
    repeat = "repeat: 2\n    body:\n      - h[b,s,m] = y[b,s,m] * 2\n      - y[b,s,m] += h[b,s,m]"
    p = program(Y, repeat, "h[b,s,m] = y[b,s,m]")
    assert lines(p) == [
        "y.0[b,s,m] = x0[b, s, m]",
        "h.0[b,s,m] = y.0[b, s, m] * 2",
        "y.1[b,s,m] = y.0[b, s, m] + h.0[b, s, m]",
        "h.1[b,s,m] = y.1[b, s, m] * 2",
        "y.2[b,s,m] = y.1[b, s, m] + h.1[b, s, m]",
        "h.2[b,s,m] = y.2[b, s, m]",
    ]
    assert [d.loop for d in p.definitions] == [(), (0,), (0,), (1,), (1,), ()]
    assert p.outputs[0].value == "y.2"
    check_single_assignment(p)


def test_a_name_of_an_iteration_is_unknown_in_the_next_and_after() -> None:
    e = failure(spec(Y, "repeat: 2\n    as: i\n    body:\n      - h[s] = where(i == 0, s, h[s])"))
    assert place(e) == "h[s])"
    assert "local to an iteration" in str(e)
    e = failure(spec("repeat: 2\n    body:\n      - y[b,s,m] = x0[b,s,m]"))
    assert "the output `y` is not set at the end" in str(e)
    assert "local to an iteration" in str(e)


def test_nested_repeats_name_weights_by_the_whole_path() -> None:
    inner = (
        "repeat: 2\n        as: j\n        weights: {v: {axes: m, from: 'v.{i}.{j}.{2*i+j}'}}\n"
        "        body:\n          - y[b,s,m] += v[m] * u[m]"
    )
    outer = f"repeat: 2\n    as: i\n    weights: {{u: {{axes: m, from: 'u.{{i}}'}}}}\n    body:\n      - {inner}"
    p = program(Y, outer)
    assert [w.name for w in p.weights] == ["w", "g", "u@0", "v@0.0", "v@0.1", "u@1", "v@1.0", "v@1.1"]
    assert [w.sources[0].name for w in p.weights if w.base == "v"] == ["v.0.0.0", "v.0.1.1", "v.1.0.2", "v.1.1.3"]
    assert lines(p)[-1] == "y.4[b,s,m] = y.3[b, s, m] + v@1.1[m] * u@1[m]"
    assert p.definitions[-1].loop == (1, 1)
    check_single_assignment(p)


def test_one_word_for_the_weights_of_two_repeats() -> None:
    repeats = [f"repeat: 1\n    weights: {{u: {{axes: m, from: u.{k}}}}}\n    body:\n      - y[b,s,m] += u[m]" for k in "ab"]
    p = program(Y, *repeats)
    assert [w.name for w in p.weights[2:]] == ["u@0", "u@0#2"]
    assert [load.name for load in loads(p.definitions[-1].parts[0].expr)] == ["y.1", "u@0#2"]


def test_let_and_the_repeat_variable_are_numbers() -> None:
    repeat = (
        "repeat: seq\n    as: i\n    let: {half_i: i // 2, twice: 2 * half_i}\n"
        "    body:\n      - y[b,s,m] += x0[b, twice, m] * where(i % 2 == 1, half_i, s)"
    )
    p = program(Y, repeat)
    assert [line.split(" + ")[1] for line in lines(p)[1:]] == [
        "x0[b, 0, m] * s",
        "x0[b, 0, m] * 0",
        "x0[b, 2, m] * s",
        "x0[b, 2, m] * 1",
    ]


def test_an_index_may_be_wrong_in_one_iteration_only() -> None:
    e = failure(spec(Y, "repeat: 7\n    as: i\n    body:\n      - y[b,s,m] += x0[b,i,m]"))
    assert place(e) == "i,m]"
    assert "the index 4 is outside" in str(e)


def test_a_repeat_of_nothing() -> None:
    assert lines(program(Y, "repeat: seq - 4\n    body:\n      - y[b,s,m] += 1")) == ["y.0[b,s,m] = x0[b, s, m]"]
    e = failure(spec(Y, "repeat: seq - 5\n    body:\n      - y[b,s,m] += 1"))
    assert "at least 0" in str(e)


@pytest.mark.parametrize(
    ("repeat", "words"),
    [
        ("repeat: layers\n    body: [y = 1]", "unknown name `layers`"),
        ("repeat: 2.5\n    body: [y = 1]", "expected: a whole number"),
        ("repeat: 1e13\n    body: [y = 1]", "at most"),
        ("repeat: 2 ** 39\n    body: ['c = 1']", "unroll to more than"),
        ("repeat: 2 ** 39\n    body:\n      - repeat: 0\n        body: ['c = 1']", "unroll to more than"),
        ("repeat: 10001\n    body: [y = nowhere]", "unroll to more than"),
        ("repeat: 2\n    as: s\n    body: [y = 1]", "`s` already names an axis"),
        ("repeat: 2\n    as: i\n    let: {i: 3}\n    body: [y = 1]", "`i` already names"),
        ("repeat: 2\n    as: i\n    body:\n      - repeat: 2\n        as: i\n        body: [n = 1]", "`i` already names"),
        ("repeat: 2\n    weights: {g: {axes: m, from: g}}\n    body: [n = 1]", "`g` already names a weight"),
        ("repeat: 2\n    weights: {y: {axes: m, from: g}}\n    body: [n = 1]", "`y` already names a value"),
        ("repeat: 2\n    let: {i: j, j: i}\n    body: [n = 1]", "circle: i → j → i"),
    ],
)
def test_a_repeat_refused(repeat: str, words: str) -> None:
    assert words in str(failure(spec(Y, repeat)))


@pytest.mark.parametrize("declared", ["state: {k: {axes: m}, y: {axes: m}}", "weights: {h: {axes: m, from: g}, y: {axes: m, from: g}}"])
def test_a_name_that_is_taken_is_shown_where_a_repeat_declares_it(declared: str) -> None:
    e = failure(spec(Y, f"repeat: 2\n    {declared}\n    body: [n = 1]"))
    _, row, carets = str(e).splitlines()[:3]
    assert row[carets.index("^")] == "y" and declared in row


def test_parts_form_one_value_until_it_is_read() -> None:
    p = program("r[b,0] = 1", "r[b,1] = 2", "y[b,s,m] = x0[b,s,m] * r[b,1]", "r[b,0] = 3", "r[b,1] = 4", "y[b,s,m] += r[b,0]")
    assert lines(p) == [
        "r.0[b,0] = 1",
        "r.0[b,1] = 2",
        "y.0[b,s,m] = x0[b, s, m] * r.0[b, 1]",
        "r.1[b,0] = 3",
        "r.1[b,1] = 4",
        "y.1[b,s,m] = y.0[b, s, m] + r.1[b, 0]",
    ]
    assert p.definitions[0].shape == (2, 2)
    check_single_assignment(p)


def test_parts_may_mix_letters_and_numbers() -> None:
    p = program("r[z,0] = 1", "r[0,1] = 2", "r[1,1] = 3", Y)
    assert p.definitions[0].shape == (2, 2)


def test_parts_set_in_a_repeat_collect_its_iterations() -> None:
    repeat = "repeat: 2\n    as: i\n    body:\n      - h[b] = b * i\n      - r[b,i+1] = h[b]"
    p = program("r[b,0] = 0", repeat, "y[b,s,m] = x0[b,s,m] * r[b,2]")
    assert lines(p) == [
        "h.0[b] = b * 0",
        "h.1[b] = b * 1",
        "r.0[b,0] = 0",
        "r.0[b,1] = h.0[b]",
        "r.0[b,2] = h.1[b]",
        "y.0[b,s,m] = x0[b, s, m] * r.0[b, 2]",
    ]
    check_single_assignment(p)


def test_the_same_full_target_again_is_a_new_value() -> None:
    p = program(Y, "y[b,s,m] = y[b,s,m] * 2", "y[b,s,m] = y[b,s,m] + 1")
    assert lines(p)[1:] == ["y.1[b,s,m] = y.0[b, s, m] * 2", "y.2[b,s,m] = y.1[b, s, m] + 1"]


def test_a_scalar_value() -> None:
    p = program("total = x0[b,s,m] * x0[b,s,m]", "y[b,s,m] = x0[b,s,m] / total")
    assert p.definitions[0].shape == ()
    assert lines(p) == ["total.0[] = sum[b,s,m](x0[b, s, m] * x0[b, s, m])", "y.0[b,s,m] = x0[b, s, m] / total.0"]


def test_sources_say_how_a_checkpoint_s_dimensions_are_made() -> None:
    source = "from: [u, {name: v, axes: (m s) b}]"
    p = elaborate.elaborate(read_document(spec(Y, head=HEAD + f"  c: {{axes: b (s m), {source}}}\n"), PATH))
    weight = p.weights[-1]
    assert (weight.letters, weight.shape) == (("b", "s", "m"), (2, 4, 6))
    assert [s.groups for s in weight.sources] == [((0,), (1, 2)), ((2, 1), (0,))]


def test_a_statement_is_resolved_once_for_all_iterations_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []
    monkeypatch.setattr(statement, "resolve", lambda e, *rest: (seen.append(e), resolve.resolve(e, *rest))[1])
    document = load_document(SPECS / "llama.yaml")
    p = elaborate.elaborate(document, {"layers": 80})
    assert len(p.definitions) > 1000
    assert len(seen) < 200


def test_llama_s_layers() -> None:
    p = elaborate.elaborate(load_document(SPECS / "llama.yaml"), {"layers": 3, "kv_heads": 8})
    assert len(p.weights) == 3 + 3 * 9
    wq = next(w for w in p.weights if w.name == "wq@2")
    assert wq.shape == (8, 4, 2, 64, 4096)
    assert [s.name for s in wq.sources] == ["model.layers.2.self_attn.q_proj.weight", "blk.2.attn_q.weight"]
    assert [s.groups for s in wq.sources] == [((0, 1, 2, 3), (4,)), ((0, 1, 3, 2), (4,))]
    attention = next(d for d in p.definitions if d.name == "a.1")
    assert text(attention.parts[0].expr) == (
        "softmax[t](where(t <= s, sum[z,e](qr.1[b, s, k, g, z, e] * pr.1[b, t, k, z, e] / 11.313708498984761), -inf))"
    )
    check_single_assignment(p)
    assert elaborate.elaborate(load_document(SPECS / "llama.yaml"), {"layers": 3, "kv_heads": 8}) == p


def test_the_head_may_be_set_apart_from_the_width() -> None:
    p = elaborate.elaborate(load_document(SPECS / "llama.yaml"), {"layers": 1, "model": 96, "heads": 4, "head": 32})
    assert next(w for w in p.weights if w.base == "wo").shape == (96, 4, 1, 2, 16)


def test_gpt2_longer_than_its_context() -> None:
    with pytest.raises(Exception, match="outside dimension 1 \\(`p`\\) of the weight `wpe`"):
        elaborate.elaborate(load_document(SPECS / "gpt2.yaml"), {"seq": 1025})


def test_tied_weights_are_read_from_the_one_that_replaces_them() -> None:
    p = elaborate.elaborate(load_document(SPECS / "llama.yaml"), {"layers": 1})
    tied = with_tied_weights(p, {"model.embed_tokens.weight"})
    assert "lm_head" not in {w.name for w in tied.weights}
    assert lines(tied)[-1].endswith("sum[m](all_final.0[b, s, m] * embed[v, m])")
    check_single_assignment(tied)
    assert with_tied_weights(p, {"model.embed_tokens.weight", "output.weight"}) == p
    assert len(tied.weights) == len(p.weights) - 1


def test_an_output_that_is_a_tied_weight() -> None:
    head = HEAD.replace("  g: {", "  h: {axes: m, from: h, or: g}\n  g: {")
    p = elaborate.elaborate(read_document(spec("c = 1", head=head, outputs="{h: {axes: m}}"), PATH))
    assert with_tied_weights(p, set()).outputs[0].value == "g"


UNROLLED = """einpage: 1
name: unrolled
sizes: {{rows: 3, columns: 2}}
axes: {{a: rows, b: rows, c: columns}}
inputs:
  x0: {{axes: a c}}
  g: {{axes: c}}
body:
  - x[a,c] = x0[a,c]
  - n = 1.5
{body}outputs:
  x: {{axes: {axes}}}
"""
BODIES = {
    "the same shape": ["h[a] = x[a,c] * g[c]", "x[a,c] = h[a] * g[c] * n"],
    "turned around": ["x[c,a] = x[a,c] * 1"],
    "turned around and read either way": ["h[a,b] = sum[c](x[a,c] * x[b,c])", "x[c,a] = x[a,c] + h[a,0]"],
    "one dimension less": ["x[a] = x[a,c] * g[c]"],
    "a number that becomes a row": ["x[a,c] = x[a,c] * n", "n[c] = n * g[c]"],
    "another extent": ["x[a,b] = x[a,c] * g[c] + 0 * b"],
}
"""Statements of a repeat that mean something in the first iteration, not always in the second."""


@pytest.mark.parametrize("times", [1, 2, 3])
@pytest.mark.parametrize("name", BODIES)
def test_a_repeat_is_its_statements_written_out(name: str, times: int) -> None:
    """The same values, or an error both times."""
    found = []
    once = "".join(f"      - {s}\n" for s in BODIES[name])
    for body in (f"  - repeat: {times}\n    body:\n{once}", once.replace("      - ", "  - ") * times):
        outcome: list[str] = []
        for axes in ("a c", "c a", "a", "a b"):
            try:
                p = elaborate.elaborate(read_document(UNROLLED.format(body=body, axes=axes), PATH))
                outcome.append("; ".join(f"{d.base}{d.shape} {lines(p)[i]}" for i, d in enumerate(p.definitions)))
            except SpecError as error:
                outcome.append(str(error).split("\n")[0].split(": ", 1)[1])
        found.append(outcome)
    assert found[0] == found[1]
    assert times > 1 or any(word.startswith("x(") for word in found[0]), "the first iteration is right"
