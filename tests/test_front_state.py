"""State: what a run leaves to the next, against numpy that writes row by row into a copy; chunks against the whole; mistakes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import event, given, settings
from hypothesis import strategies as st

from einpage.einsum_front.elaborate.elaborate import elaborate
from einpage.einsum_front.elaborate.reference import evaluate
from einpage.einsum_front.spec.reader import read_document
from front_text import failure, place
from state_specs import Run, StateSpec, state_specs

RUNS = 3


def check_random(spec: StateSpec, data: st.DataObject) -> None:
    """Runs in a row, each beginning with what the one before it left, equal the oracle's: the output, and every state."""
    program = elaborate(read_document(spec.text, "random.yaml")).with_states_as_outputs()
    shapes = dict(spec.body.keys())
    names = {key: f"{key[0]}@{'.'.join(map(str, key[1]))}" if key[1] else key[0] for key in shapes}
    assert {s.name: s.shape for s in program.states} == {names[key]: shape for key, shape in shapes.items()}
    assert len({s.last for s in program.states}) == len(program.states)
    assert {s.last for s in program.states} <= {d.name for d in program.definitions}
    rng, z = np.random.default_rng(data.draw(st.integers(0, 99))), spec.sizes
    w = rng.standard_normal((z["model"], z["model"]))
    oracle = {key: np.zeros(shape) for key, shape in shapes.items()}
    held = {names[key]: torch.zeros(shape, dtype=torch.float64) for key, shape in shapes.items()}
    for _ in range(RUNS):
        x = rng.standard_normal((z["batch"], z["seq"], z["model"]))
        at = rng.integers(z["past"], z["past"] + z["room"] + 1, z["batch"])
        run = Run(x, at, w, dict(oracle))
        spec.body.run(run, ())
        oracle = run.states
        given_inputs = {"x0": torch.from_numpy(x), "at": torch.from_numpy(at).int(), **held}
        found = evaluate(program, given_inputs, {"w": torch.from_numpy(w)}, torch.float64)
        np.testing.assert_allclose(found["x"].numpy(), run.x, rtol=1e-9, atol=1e-9, err_msg=spec.text)
        for key, expected in oracle.items():
            np.testing.assert_allclose(found[names[key]].numpy(), expected, rtol=1e-9, atol=1e-9, err_msg=f"{key}\n{spec.text}")
        held = {name: found[name] for name in held}
    event(f"{len(shapes)} states")


@given(state_specs(), st.data())
@settings(max_examples=100)
def test_random_states_are_what_rows_written_one_by_one_are(spec: StateSpec, data: st.DataObject) -> None:
    check_random(spec, data)


@pytest.mark.slow
@given(state_specs(), st.data())
@settings(max_examples=1000)
def test_many_random_states_are_what_rows_written_one_by_one_are(spec: StateSpec, data: st.DataObject) -> None:
    check_random(spec, data)


HEAD = """\
einpage: 1
name: small
sizes: {batch: 2, seq: 3, past: 2, room: 1, reach: past + room + seq, model: 4}
axes: {b: batch, c: 5, s: seq, t: reach, m: model, n: model}
inputs:
  x: {axes: b s n}
  at: {axes: b, dtype: int32, default: past, range: past .. past + room}
  free: {axes: b, dtype: int32, default: 0}
  wide: {axes: b, dtype: int32, default: 0, range: 0 .. reach}
"""
CACHE = "{k: {axes: b t n, along: t}}"
WHOLE = "{h: {axes: b n}}"
SET, READ = "k[b,at[b]+s,n] = x[b,s,n]", "y[b,s,n] = k[b,at[b]+s,n]"


def stateful(state: str, *body: str, output: str = "y: {axes: b s n}", head: str = HEAD) -> str:
    """A spec with `state:` and these statements."""
    return f"{head}state: {state}\nbody:\n" + "".join(f"  - {line}\n" for line in body) + f"outputs: {{{output}}}\n"


MISTAKES: dict[str, tuple[str, str, str]] = {
    "never set": (stateful(CACHE, "y[b,s,n] = x[b,s,n]"), "k: {axes", "no statement sets the state `k`"),
    "never set, whole": (stateful(WHOLE, "y[b,s,n] = x[b,s,n] + h[b,n]"), "h: {axes", "set it, as in `h[b, n] = …`"),
    "never read": (stateful(CACHE, SET, "y[b,s,n] = x[b,s,n]"), "k: {axes", "no statement reads the state `k`"),
    "read before it is written": (stateful(CACHE, READ, SET), "k[b,at[b]+s,n]", "the state `k` is read before it is written"),
    "read by what first writes it": (
        stateful(CACHE, "k[b,at[b]+s,n] = x[b,s,n] + k[b,at[b]+s,n]", READ),
        "k[b,at[b]+s,n]\n",
        "may be read before it is set",
    ),
    "added to before it is written": (stateful(CACHE, "k[b,t,n] += 1", READ), "k[b,t,n]", "a statement that first writes rows"),
    "two of one name": (
        stateful(WHOLE, "h[b,n] = x[b,0,n]", "repeat: 1\n    state: {h: {axes: b n}}\n    body: [\"y[b,s,n] = x[b,s,n] + h[b,n]\"]"),
        "h: {axes: b n}}",
        "`h` already names a state",
    ),
    "the name of an input": (stateful("{x: {axes: b n}}", "y[b,s,n] = x[b,n]"), "x: {axes: b n}", "`x` already names an input"),
    "along no axis of it": (stateful("{k: {axes: b n, along: t}}", SET), "t}}", "`t` is no axis of the state `k`"),
    "along no axis at all": (stateful("{k: {axes: b n, along: time}}", SET), "time}}", "expected: one of `b`, `n`"),
    "an axis twice": (stateful("{k: {axes: b t t n, along: t}}", SET), "t n, along", "`t` stands twice in the axes of `k`"),
    "an axis nobody declared": (stateful("{k: {axes: b q n}}", SET), "q n}", "unknown axis `q`"),
    "arithmetic beside along": (
        stateful(CACHE, "k[b,t,at[b]+0] = x[b,s,n]"),
        "at[b]+0",
        "is not all of dimension 3 (`n`) of the state `k`",
    ),
    "a part beside along": (
        stateful(CACHE, "k[b,at[b]+s,0] = x[b,s,0]"),
        "0] =",
        "set a value part by part, and from it the state, whole",
    ),
    "arithmetic without along": (
        stateful("{k: {axes: b t n}}", SET),
        "at[b]+s",
        "cure: for rows along an axis, declare it: `along: t`",
    ),
    "a number without along": (stateful(WHOLE, "h[b,0] = x[b,0,0]"), "0] =", "`0` is not all of dimension 2 (`n`) of the state `h`"),
    "a letter of another extent": (
        stateful(CACHE, "k[c,at[0]+s,n] = x[0,s,n]"),
        "c,at[0]",
        "`c` has extent 5, but stands in dimension 1 (`b`) of the state `k`, which has extent 2",
    ),
    "a letter beyond the rows": (
        stateful(CACHE.replace("t", "s"), "k[b,t,n] = x[b,0,n]"),
        "t,n] =",
        "`t` takes values 0 … 5, outside dimension 2 (`s`) of the state `k`, which has extent 3",
    ),
    "rows anywhere": (stateful(CACHE, "k[b,free[b]+s,n] = 1"), "free[b]+s", "a `range:` of `free` that keeps `free[b]` within 0 … 3"),
    "rows beyond the end": (stateful(CACHE, "k[b,wide[b]+s,n] = x[b,s,n]"), "wide[b]+s", "takes values 0 … 8, outside dimension 2 (`t`)"),
    "rows before the start": (stateful(CACHE, "k[b,wide[b]+s-1,n] = x[b,s,n]"), "wide[b]+s-1", "that keeps `wide[b] - 1` within 0 … 3"),
    "a number beyond the end": (stateful(CACHE, "k[b,6,n] = x[b,0,n]"), "6,n]", "`6` takes values 6 … 6, outside dimension 2"),
    "every second row": (stateful(CACHE, "k[b,2*s,n] = x[b,s,n]"), "2*s", "`2 * s` does not say which rows"),
    "two letters count": (stateful(CACHE, "k[b,s+m,n] = x[b,s,n]"), "s+m", "`s + m` does not say which rows"),
    "a letter away from its rows": (stateful(CACHE, "k[b,at[c]+s,n] = x[b,s,n]"), "at[c]+s", "`c` is no other index of this target"),
    "rows added to": (stateful(CACHE, SET, "k[b,at[b]+s,n] += 1", READ), "k[b,at[b]+s,n]", "`+=` on rows of the state `k`"),
    "too few indices": (stateful(CACHE, "k[b,n] = x[b,0,n]"), "k[b,n]", "the state `k` has 3 dimension(s), found 2 indices"),
    "no indices": (stateful(CACHE, "k = 1"), "k = 1", "expected: `k[b, t, n]`"),
    "a letter twice": (stateful(CACHE, "k[n,at[n]+s,n] = x[0,s,n]"), "n,at[n]", "`n` has extent 4, but stands in dimension 1"),
    "an output": (
        stateful(WHOLE, "h[b,n] = x[b,0,n] + h[b,n]", output="h: {axes: b n}"),
        "h: {axes: b n}}\n",
        "set a value, `last_h[b,n] = h[b,n]`, and put that out: `last_h`",
    ),
    "outside its repeat": (
        stateful("{}", "repeat: 1\n    state: {k: {axes: b t n, along: t}}\n    body: [\"k[b,s,n] = 1\", \"z[b] = k[b,0,0]\"]", READ),
        "k[b,at",
        "it belongs to the repeat of line 12",
    ),
    "a state in an index": (stateful(WHOLE, "y[b,s,n] = x[b,h[b,n],n]", "h[b,n] = 1"), "h[b,n],n]", "the state `h` does not hold integers"),
    "a dtype": (stateful("{h: {axes: b n, dtype: fp32}}", "h[b,n] = x[b,0,n]"), "dtype", "dtype"),
    "no axes": (stateful("{h: {along: t}}", "h[b,n] = x[b,0,n]"), "h: {along", "`h` lacks `axes`"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_with_state_is_one_error_with_its_place(name: str) -> None:
    text, shown, words = MISTAKES[name]
    e = failure(text)
    assert place(e).startswith(shown.rstrip("\n")), (place(e), str(e))
    assert not shown.endswith("\n") or place(e) == shown.rstrip("\n")
    assert words in str(e)
    assert "cure:" in str(e) or "expected:" in str(e)


def test_a_prefill_has_no_operation_for_its_states() -> None:
    """With nothing before it and no room after it, what is written is the state: every row, by the value that computes it."""
    text = stateful(CACHE, "r[b,s,n] = 2 * x[b,s,n]", "k[b,at[b]+s,n] = r[b,s,n]", "y[b,s,n] = x[b,s,n] + mean[t](k[b,t,n])")
    document = read_document(text, "small.yaml")
    whole, chunk = elaborate(document, {"past": 0, "room": 0}), elaborate(document)
    assert [d.name for d in whole.definitions] == ["r.0", "y.0"]
    assert [s.last for s in whole.states] == ["r.0"]
    assert [d.name for d in chunk.definitions] == ["r.0", "k.0", "y.0"]
    assert [(s.name, s.last, s.along, s.first_row) for s in chunk.states] == [("k", "k.0", 1, 2)]
