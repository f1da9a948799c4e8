"""YAML, places and the schema: what a spec's file may hold, and where a mistake in it is shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from einpage.einsum_front.algebra.expr import Load
from einpage.einsum_front.base.errors import SpecError, UsageError
from einpage.einsum_front.differentiate.training import for_training, training_step
from einpage.einsum_front.elaborate.elaborate import elaborate
from einpage.einsum_front.spec.document import Document, Repeat
from einpage.einsum_front.spec.parse import Statement
from einpage.einsum_front.spec.reader import load_document, read_document
from einpage.einsum_front.spec.schema import _KINDS
from einpage.einsum_front.spec.source import SourceFile
from einpage.einsum_front.spec.yamltree import YamlMapping, YamlScalar, parse_yaml
from front_text import HEAD, PATH, failure, place, program, spec

SPECS = Path(__file__).parent.parent / "specs"
Y = "y[b,s,m] = x0[b,s,m]"


def tree(text: str) -> YamlMapping:
    found = parse_yaml(SourceFile(PATH, tuple(text.split("\n"))), text)
    assert isinstance(found, YamlMapping)
    return found


def test_places_of_folded_and_quoted_text() -> None:
    root = tree("a: 'it''s x'\nb: one\n   two\n\n   three\nc: |\n  lit\n  two\nd: \"q\\\"r s\"\n")
    scalars = {k: v.snippet for k, v in root.items.items() if isinstance(v, YamlScalar)}
    assert scalars["a"].text == "it's x"
    assert scalars["a"].place(5) == (1, 11)
    assert scalars["b"].text == "one two\nthree"
    assert [scalars["b"].place(i) for i in (0, 4, 8)] == [(2, 4), (3, 4), (5, 4)]
    assert scalars["c"].place(4) == (8, 3)
    assert scalars["d"].text == 'q"r s'
    assert scalars["d"].place(4) == (9, 10)


def test_yaml_scalars_are_what_people_mean() -> None:
    root = tree("{a: 1e-5, b: yes, c: 'no', d: 2026-11-01, e: 1:30, f: 012, g: ~, h: true, i: 1_000}")
    values = {k: v.value for k, v in root.items.items() if isinstance(v, YamlScalar)}
    assert values == {"a": 1e-5, "b": "yes", "c": "no", "d": "2026-11-01", "e": "1:30", "f": 12, "g": None, "h": True, "i": 1000}


@pytest.mark.parametrize(
    ("text", "where", "words"),
    [
        ("[]", (1, 1), "a spec is a mapping, found a list"),
        ("just words", (1, 1), "a spec is a mapping, found text"),
        ("", (1, 1), "a spec is a mapping, found nothing"),
        ("a: !!python/object:os.system ls", (1, 4), "the tag `!!python/object:os.system` is not allowed"),
        ("a: !mine 3", (1, 4), "the tag `!mine` is not allowed"),
        ("? !!python/name:os.system x\n: 3", (1, 3), "is not allowed"),
        ("a: &x 3\nb: *x", (1, 4), "anchors"),
        ("a: 1\nb: 2\na: 3", (3, 1), "`a` is given twice, first at 1:1"),
        ("a: [1, 2", (1, 9), "not YAML"),
        ("a: b: c", (1, 5), "must stand in quotes"),
        ("{a: 1}\n---\n{b: 2}", (2, 1), "a second YAML document"),
        ("? [1, 2]\n: 3", (1, 3), "a key must be a word"),
        ("a: \0", (1, 1), "not YAML"),
        ("state: {}", (1, 1), "this lacks `einpage`"),
    ],
)
def test_what_is_not_a_spec(text: str, where: tuple[int, int], words: str) -> None:
    with pytest.raises(SpecError) as caught:
        read_document(text, PATH)
    assert (caught.value.line, caught.value.column) == where
    assert words in str(caught.value)


@pytest.mark.parametrize("opening", ["[\n", "- ", "{a: \n"])
def test_deeply_nested_yaml(opening: str) -> None:
    with pytest.raises(SpecError, match="nested too deeply"):
        read_document("a:\n " + opening * 2000, PATH)


def test_ten_megabytes_in_a_line() -> None:
    e = failure(spec("y[b,s,m] = " + "(" * 10_000_000))
    assert e.line == 13
    assert "nested too deeply" in str(e)
    assert len(str(e)) < 1000


def test_ten_megabytes_over_many_lines() -> None:
    e = failure(spec("y[b,s,m] = " + "(\n      " * 1_500_000))
    assert "at most 1,048,576" in str(e)


def test_nesting_in_a_line_of_an_allowed_length() -> None:
    e = failure(spec("y[b,s,m] = " + "(" * 10_000))
    assert (e.line, e.column) == (13, 5 + 11 + 64)
    assert "nested too deeply" in str(e)


@pytest.mark.parametrize(
    ("old", "new", "shown", "words"),
    [
        ("name: small\n", "", "einpage: 1", "lacks `name`"),
        ("name: small", "nmae: small", "nmae: small", "did you mean `name`?"),
        ("name: small", "name: [small]", "name: [small]", "expected: text"),
        ("einpage: 1", "einpage: 2", "2", "expected: 1"),
        ("{eps: 1.0e-5}", "{eps: [1]}", "eps: [1]}", "expected: a number or text"),
        ("{axes: m, from: g}", "{axes: m}", "g: {axes: m}", "lacks `from`"),
        ("{axes: m, from: g}", "{axes: m, form: g, from: g}", "form: g, from: g}", "did you mean `from`?"),
        ("{axes: m, from: g}", "{axes: m, from: []}", "from: []}", "is empty"),
        ("{axes: m, from: g}", "{axes: m, from: [{nam: g}]}", "nam: g}]}", "did you mean `name`?"),
        ("dtype: int32", "dtype: int8", "int8}", "int32 or int64"),
        ("sizes: {batch: 2", "sizes: {2batch: 2", "2batch: 2, seq: 4, model: 6, half: 3}", "cannot be a name"),
        ("sizes: {batch: 2", "sizes: {sum: 2", "sum: 2, seq: 4, model: 6, half: 3}", "cannot be a name"),
        ("{axes: b s m}", "{axes: (b s) m}", "(b s) m}", "brackets in axes"),
    ],
)
def test_the_shape_of_a_spec(old: str, new: str, shown: str, words: str) -> None:
    assert old in HEAD
    e = failure(spec(Y, head=HEAD.replace(old, new, 1)))
    assert place(e) == shown
    assert words in str(e)


@pytest.mark.parametrize(
    ("item", "shown", "words"),
    [
        ("5", "5", "expected: text"),
        ("{repeat: 2}", "{repeat: 2}", "lacks `body`"),
        ("{repeat: 2, body: [], as: i}", "body: [], as: i}", "is empty"),
        ("{repeat: 2, boddy: [], body: [y = 1]}", "boddy: [], body: [y = 1]}", "did you mean `body`?"),
        ("{repeat: 2, as: 2l, body: [y = 1]}", "2l, body: [y = 1]}", "cannot be a name"),
        ("[y = 1]", "[y = 1]", "expected: text"),
    ],
)
def test_the_shape_of_a_body(item: str, shown: str, words: str) -> None:
    e = failure(spec(item))
    assert place(e) == shown
    assert words in str(e)


def test_a_statement_that_yaml_unpacks() -> None:
    e = failure(spec("y[b,s,m] = 2  : x0[b,s,m]"))
    assert e.line == 13
    assert "repeat" in str(e)


def test_a_mistake_in_a_folded_statement_is_shown_on_its_line() -> None:
    e = failure(spec("y[b,s,m] =\n      x0[b,s,m]\n      + x9[b,s,m]"))
    assert (e.line, e.column) == (15, 9)
    assert place(e) == "x9[b,s,m]"


def test_config_names_a_size() -> None:
    e = failure(spec(Y, head=HEAD + "config: {modle: hidden_size}\n"))
    assert place(e) == "modle: hidden_size}"
    assert "did you mean `model`?" in str(e)


def test_braces_in_a_checkpoint_name_close() -> None:
    e = failure(spec(Y, head=HEAD.replace("from: g", 'from: "a.{l"')))
    assert place(e) == '{l"}'


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read the spec"):
        load_document(tmp_path / "absent.yaml")
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="not UTF-8"):
        load_document(tmp_path / "bytes.yaml")


def test_a_document_keeps_what_was_written() -> None:
    document = load_document(SPECS / "llama.yaml")
    assert document.name == "llama"
    assert tuple(key.key for key in document.config["theta"]) == ("rope_parameters.rope_theta", "rope_theta", "llama.rope.freq_base")
    first, layers = document.body[0], document.body[1]
    assert isinstance(first, Statement) and isinstance(first.expr, Load)
    assert document.source.lines[first.span.line - 1].lstrip(" -").startswith("x[b,s,m] =")
    assert isinstance(layers, Repeat) and layers.variable == "l"
    assert [w.name for w in layers.weights] == ["norm1", "wq", "wk", "wv", "wo", "norm2", "w1", "w3", "w2"]


def test_comments_tabs_and_windows_lines_change_nothing() -> None:
    text = spec(Y)
    plain = read_document(text, PATH)
    other = read_document(text.replace("\n", "   # a comment\r\n"), PATH)

    def meaning(d: Document) -> tuple[object, ...]:
        statements = tuple((s.name, s.indices, s.expr) for s in d.body if isinstance(s, Statement))
        return d.sizes, d.scalars, d.axes, statements

    assert meaning(plain) == meaning(other)


def test_the_schema_is_a_schema_and_holds_for_every_shipped_spec() -> None:
    Draft202012Validator.check_schema(json.loads((SPECS / "schema.json").read_text()))
    names = sorted(p.stem for p in SPECS.glob("*.yaml"))
    assert {"attention", "gpt2", "llama", "matmul_chain", "mlp", "bert", "t5", "qwen3"} <= set(names)
    for name in names:
        assert load_document(SPECS / f"{name}.yaml").body


def test_the_small_spec_of_these_tests_is_a_spec() -> None:
    assert program(Y).definitions[0].name == "y.0"


def test_every_example_of_the_grammar_page_is_right() -> None:
    """The whole spec on the page elaborates; so does each fragment, in a spec that declares what it uses."""
    blocks = [block.split("```")[0] for block in (SPECS / "README.md").read_text().split("```yaml\n")[1:]]
    whole, fragments = blocks[0], [block for block in blocks[1:] if "state:" not in block and "train:" not in block]
    assert elaborate(read_document(whole, "README.md")).outputs[0].shape == (64, 512)
    (training,) = (block for block in blocks if "train:" in block)
    trained = read_document(whole + training, "README.md")
    assert training_step(elaborate(for_training(trained)), trained).weights == ("w", "c")
    head = """\
einpage: 1
name: fragments
sizes: {batch: 2, seq: 4, model: 6, head: 3, layers: 12, first: 1, height: 5, width: 7}
scalars: {eps: 1e-5}
axes: {b: batch, s: seq, t: seq, m: model, f: model, o: model, i: model, d: head, e: head, z: 2, @axes@}
inputs: {@inputs@}
weights: {@weights@}
body:
"""
    matrices = "w: {axes: o i, from: w}, g: {axes: m, from: g}, k: {axes: t d, from: k}"
    taps = "v: {axes: i k, from: v}, w: {axes: o i k, from: w}, u: {axes: o c j k, from: u}"
    declarations = [
        ("n: 2", "x: {axes: b i}, q: {axes: s d}", matrices),
        (
            "c: 2, h: 3, l: 4, j: 3, k: 3, f1: first, p1: height, q1: width",
            "x: {axes: b s i}, a: {axes: b f1 i}, g: {axes: b c p1 q1}, pad: {axes: b, dtype: int32, range: 0 .. seq}",
            taps,
        ),
        ("n: 2", "q: {axes: b z e}", matrices),
        ("n: 2", "x0: {axes: b s m}", matrices),
        ("n: 2", "", matrices),
    ]
    for fragment, (axes, inputs, weights) in zip(fragments, declarations, strict=True):
        first = "  - x[b,s,m] = x0[b,s,m]\n" if "x0" in inputs else ""
        last = "  - done = 1\noutputs: {done: {axes: ''}}\n"
        declared = head.replace("@axes@", axes).replace("@inputs@", inputs).replace("@weights@", weights)
        if fragment.startswith("lists:"):
            declared = declared.replace("body:\n", f"{fragment}body:\n")
            fragment = "  - total = 0\n  - {repeat: layers, as: l, body: ['total = total + local[l]']}\n"
        assert elaborate(read_document(declared + first + fragment + last, "README.md"))
    cache, recurrent = (block for block in blocks if "state:" in block)
    cache = "einpage: 1\nname: cache\n" + cache.replace("inputs:\n", "inputs:\n  q: {axes: b s d}\n  k: {axes: b s d}\n")
    prefill = elaborate(read_document(cache + "outputs: {a: {axes: b s t}}\n", "README.md"))
    assert [s.last for s in prefill.states] == ["ck.0"] and len(prefill.definitions) == 2
    declared = "einpage: 1\nname: recurrent\nsizes: {n: 2}\naxes: {b: n, d: n, e: n}\ninputs: {x: {axes: b e}}\n"
    declared += "weights: {w: {axes: d e, from: w}, u: {axes: d e, from: u}}\n"
    last = "  - y[b,d] = h[b,d]\noutputs: {y: {axes: b d}}\n"
    assert [s.last for s in elaborate(read_document(declared + recurrent + last, "README.md")).states] == ["h.0"]


@pytest.mark.parametrize(
    ("declared", "shown", "words"),
    [
        ("dtype: int32, range: 3", "3", "the range of `ids` is `3`; LOW .. HIGH"),
        ("dtype: int32, range: .. seq", ".. seq", "the range of `ids` lacks its LOW"),
        ("dtype: int32, range: 1 ..", "1 ..", "the range of `ids` lacks its HIGH"),
        ("dtype: int32, range: 0 .. 5 .. 6", "0 .. 5 .. 6", "the range of `ids` has more than two ends"),
        ("dtype: int32, range: 0 ..5..", "0 ..5..", "the range of `ids` has more than two ends"),
        ("dtype: int32, range: 0 .... 5", "0 .... 5", "the range of `ids` has more than two ends"),
        ("dtype: int32, range: 1 .. sq", "sq", "unknown name `sq`"),
        ("dtype: int32, range: 2*seq .. model", "2*seq", "the range of `ids` is 8 .. 6, which is empty"),
        ("dtype: int32, range: 1 .. seq / 8", "seq / 8", "an end of the range of `ids` is 0.5"),
        ("dtype: int32, range: 1 .. seq // 3", "seq // 3", "leaves 1"),
        ("dtype: int32, range: 0 .. inf", "inf", "an end of the range of `ids` is inf"),
        ("range: 1 .. seq", "1", "a range for `ids`, which is not of whole numbers"),
        ("dtype: int32, default: seq + 1, range: 1 .. seq", "seq + 1", "the default of `ids` is 5, outside its range 1 .. 4"),
        ("dtype: int32, default: 0, range: 1..seq", "0", "the default of `ids` is 0, outside its range 1 .. 4"),
    ],
)
def test_ranges_that_are_none(declared: str, shown: str, words: str) -> None:
    error = failure(spec(Y, head=HEAD.replace("axes: b s, dtype: int32", f"axes: b s, {declared}")))
    assert words in f"{error.message}; {error.expected}"
    line = next(line for line in HEAD.splitlines() if "ids:" in line).replace("axes: b s, dtype: int32", f"axes: b s, {declared}")
    assert error.source_line[error.column - 1 :].startswith(shown)
    assert error.source_line == line


@pytest.mark.parametrize(("declared", "ends"), [("1 .. seq", (1, 4)), ("1..2*seq", (1, 8)), ("-seq .. -1", (-4, -1)), ("'3 .. 3'", (3, 3))])
def test_ranges_are_expressions_over_sizes(declared: str, ends: tuple[int, int]) -> None:
    head = HEAD.replace("axes: b s, dtype: int32", f"axes: b s, dtype: int32, range: {declared}")
    assert elaborate(read_document(spec(Y, head=head), PATH)).inputs[0].range == ends


def test_every_kind_of_value_that_the_schema_knows_has_a_name_in_messages() -> None:
    """A `type:` of the schema that had none ended in a KeyError."""
    words = json.loads((SPECS / "schema.json").read_text())

    def kinds(node: object) -> set[str]:
        if isinstance(node, list):
            return set().union(*map(kinds, node))
        if not isinstance(node, dict):
            return set()
        said = node.get("type", [])
        own = {said} if isinstance(said, str) else set(said) if isinstance(said, list) else set()
        return own | set().union(*(kinds(v) for k, v in node.items() if k != "description"))

    assert kinds(words) <= set(_KINDS)
    with pytest.raises(SpecError, match="expected: text or a number or true or false"):
        read_document("einpage: 1\nassume:\n  e:\n", PATH)


def test_a_message_is_one_line_and_short_whatever_name_it_quotes() -> None:
    e = failure(HEAD.replace("ids: {axes", '"i\u2028d": {axes').replace("x0:", "x" * 5000 + ":"))
    assert len(str(e).splitlines()) == len([*e.args[0].split("\n")]) and len(str(e)) < 2000
    e = failure(spec("y[b,s,m] = x0[b,s,m] + " + "q" * 5000))
    assert e.message.startswith("unknown name `qqq") and len(str(e)) < 1000
