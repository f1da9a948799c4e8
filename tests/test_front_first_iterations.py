"""What the first iterations of a repeat prove: never more than the whole program needs, and without elaborating the rest."""

from __future__ import annotations

import re
from unittest.mock import patch

import pytest

from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.choose import first_iterations
from einpage.einsum_front.choose.best_first import least_of_all
from einpage.einsum_front.choose.first_iterations import FIRST, least_of_first_iterations
from einpage.einsum_front.choose.working_set import WorkingSets
from einpage.einsum_front.elaborate.elaborate import elaborate
from einpage.einsum_front.fuse.fuse import FuseOptions, fuse
from einpage.einsum_front.spec.document import Document
from einpage.einsum_front.spec.reader import load_document, read_document
from einpage.exec.command.parser import execute
from einpage.exec.planning import model
from einpage.exec.planning.request import PlanRequest
from einpage.exec.planning.task_graph import build_graph
from einpage.memplan.errors import DoesNotFit
from spec_strategies import random_spec
from specs_small import SPECS

ITERATIONS = 2 * FIRST + 1


def proven_and_needed(document: Document, sizes: dict[str, int], output: str) -> tuple[int | None, int]:
    """Bytes that the first iterations prove, and a lower bound of all that are; the second proves at least as much."""
    with patch.object(first_iterations, "MANY", 0):
        found = least_of_first_iterations(document, sizes, DType.FP32, (output,), FuseOptions())
    return None if found is None else found[0], least_of_all(WorkingSets(fuse(elaborate(document, sizes), (output,)), DType.FP32))


LAYERED = ("bert", "gpt2", "llama", "mistral", "mixtral", "opt", "phi3", "qwen3", "t5")


@pytest.mark.parametrize("name", LAYERED)
def test_the_layers_of_a_model_prove_what_one_of_them_needs(name: str) -> None:
    document = load_document(SPECS / f"{name}.yaml")
    proven, needed = proven_and_needed(document, {"layers": ITERATIONS}, document.outputs[0].name)
    assert proven is not None and needed / 4 < proven <= needed


def test_a_body_that_asks_for_its_number_proves_nothing() -> None:
    document = load_document(SPECS / "gemma3.yaml")
    assert proven_and_needed(document, {"layers": ITERATIONS}, "logits")[0] is None


def repeated(carried: str, body: str, read: str) -> Document:
    """A repeat of `body` over values that are `x` at the start; the output `z` is what is `read` after it."""
    starts = "\n".join(f"  - {word}[a,b] = x[a,b]" for word in carried)
    statements = "\n".join(f"      - {line}" for line in body.splitlines())
    target = "c" if "0" in read else "a c"
    return read_document(
        f"""
einpage: 1
name: repeated
sizes: {{n: 300, layers: {ITERATIONS}}}
axes: {{a: n, b: n, c: n}}
inputs: {{x: {{axes: a b}}, w: {{axes: b c}}}}
body:
{starts}
  - repeat: layers
    as: l
    body:
{statements}
  - z[{target.replace(" ", ",")}] = {read}
outputs: {{z: {{axes: {target}}}}}
""",
        "repeated.yaml",
    )


PROVES_NOTHING = {
    "one row is needed": ("", "y[a,c] = softmax[b](y[a,b]) * w[b,c]", "y[0,c]"),
    "its number is in an index": ("", "y[a,c] = softmax[b](y[min(a+l,n-1),b]) * w[b,c]", "y[a,c]"),
    "its number tells only from the tenth on": ("", "y[a,c] = softmax[b](y[min(a+l//9*n,n-1),b]) * w[b,c]", "y[a,c]"),
    "its number is in a scalar": ("", "y[a,c] = softmax[b](y[a,b]) * w[b,c] / (l + 1)", "y[a,c]"),
    "each is part of the next": ("", "y[a,b] = sin(y[a,b])", "y[a,c]"),
    "what is made reaches the end late": (
        "pqrstu",
        "p[a,b] = q[a,b]\nq[a,b] = r[a,b]\nr[a,b] = s[a,b]\ns[a,b] = t[a,b]\nt[a,b] = u[a,b]\nu[a,c] = softmax[b](u[a,b]) * w[b,c]",
        "p[a,c]",
    ),
}


@pytest.mark.parametrize("why", PROVES_NOTHING)
def test_what_the_rest_may_change_is_not_proven(why: str) -> None:
    carried, body, read = PROVES_NOTHING[why]
    proven, _ = proven_and_needed(repeated(carried or "y", body, read), {}, "z")
    assert not proven


def test_a_body_that_is_alike_in_every_iteration_proves_what_it_needs() -> None:
    proven, needed = proven_and_needed(repeated("y", "y[a,c] = softmax[b](y[a,b]) * w[b,c]", "y[a,c]"), {}, "z")
    assert proven is not None and 0 < proven <= needed


def test_of_random_specs_no_more_is_proven_than_is_needed() -> None:
    tried = 0
    for seed in range(400):
        text = re.sub(r"repeat: \w+", f"repeat: {ITERATIONS}", random_spec(seed))
        if "repeat:" in text:
            document = read_document(text, f"random {seed}")
            proven, needed = proven_and_needed(document, {}, document.outputs[0].name)
            assert proven is None or proven <= needed, f"seed {seed}: {text}"
            tried += bool(proven)
    assert tried > 2


def test_a_table_read_along_two_long_letters_is_not_evaluated_piece_by_piece_to_be_refused() -> None:
    program = elaborate(load_document(SPECS / "t5.yaml"), {"seq": 100_000, "layers": 2})
    with patch.object(WorkingSets, "measure", side_effect=AssertionError("a split was measured")), pytest.raises(DoesNotFit) as refused:
        build_graph(program, PlanRequest(1024))
    misfit = refused.value.misfit
    assert misfit.smallest_budget is None and misfit.at_least == misfit.wanted > 1024


def test_a_budget_under_what_a_layer_needs_is_refused_before_all_are_elaborated(capsys: pytest.CaptureFixture[str]) -> None:
    with patch.object(model, "elaborate", side_effect=AssertionError("all layers were elaborated")):
        status = execute(["plan", str(SPECS / "llama.yaml"), "--budget", "1MiB", "--set", "layers=1000"])
    message = capsys.readouterr().err.strip()
    assert status == 3, message
    assert re.search(r"task y\.\d+ wants (\d+) bytes on the device; budget 1048576,.*; no budget under \1 bytes works$", message), message
