"""The Python API gives what the command line gives; each mistake is a UsageError that says what there is. More in docs/python.md."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import einpage
from command_line import LLAMA, facts
from einpage.einsum_front.base.errors import EinpageError, UsageError
from einpage.exec.load.inputs import InputError
from einpage.exec.planning.model import Model

SIZES = {"batch": 2, "model": 32, "layers": 2, "heads": 4, "kv_heads": 2, "ffn": 64, "vocab": 320}
TOKENS = [[1, 2, 3, 4, 5], [6, 7, 8]]
BUDGET = 80 << 10
TIMED = (
    "plan_s",
    "schedule_s",
    "wall_s",
    "passes_wall_s",
    "measured_ratio",
    "measured_compute_s",
    "measured_h2d_s",
    "measured_d2h_s",
    "peak_rss_bytes",
)


@pytest.fixture(scope="module")
def model() -> Model:
    return einpage.load_spec("llama", set=SIZES, weights="random:1", tokens=TOKENS)


def untimed(figures: dict[str, Any]) -> dict[str, Any]:
    """As JSON gives them, without what differs from run to run, and advice, which only the command line gives."""
    return {key: value for key, value in json.loads(json.dumps(figures)).items() if key not in (*TIMED, "advice")}


def words(*more: str) -> list[str]:
    sizes = [word for name, n in SIZES.items() for word in ("--set", f"{name}={n}")]
    searched = [] if "--plan-steps" in more or "--warm" in more else ["--plan-seconds", "0"]
    return [*more, *searched, "--budget", str(BUDGET), "--machine", "cpu", *sizes, "--weights", "random:1"]


@pytest.mark.parametrize(
    ("options", "more"),
    [
        ({}, []),
        ({"plan_steps": 500, "dtype": "bf16", "split": {"v": 4}}, ["--plan-steps", "500", "--dtype", "bf16", "--split", "v=4"]),
        ({"warm": True, "no_fuse": ["attention"]}, ["--warm", "--no-fuse", "attention"]),
        ({"passes": 3, "outputs": ["all_logits"]}, ["--passes", "3", "--outputs", "all_logits"]),
    ],
)
def test_a_plan_is_that_of_the_command_line(
    options: dict[str, Any], more: list[str], model: Model, capsys: pytest.CaptureFixture[str]
) -> None:
    found = einpage.plan(model, budget=BUDGET, **options)
    said = facts(capsys, *words("plan", "llama", *more), "--set", "seq=5", "--bounds", "fast")
    assert untimed({**found.facts, "warnings": []}) == untimed(said)
    assert found.report["h2d_bytes"] == found.report.h2d_bytes == said["h2d_bytes"]


def test_a_run_is_that_of_the_command_line(model: Model, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(json.dumps(TOKENS))
    found = einpage.run(model, budget=BUDGET, machine="cpu", device="cpu", perplexity=True, passes=2)
    more = ["--tokens", str(tmp_path / "t.json"), "--device", "cpu", "--perplexity", "--passes", "2"]
    assert untimed(found.facts) == untimed(facts(capsys, *words("run", LLAMA), *more))
    assert {name: tuple(t.shape) for name, t in found.outputs.items()} == {"logits": (2, 320), "all_logits": (2, 5, 320)}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"dtype": "fp8"}, "dtype 'fp8': expected fp32 or bf16 or fp16"),
        ({"dtype": "int32"}, "dtype 'int32'"),
        ({"machine": "h10"}, "unknown machine 'h10'; did you mean"),
        ({"budget": "many"}, "many"),
        ({"split": {"q": 2}}, "q"),
        ({"no_fuse": ["softmax"]}, "softmax"),
        ({"warm": True, "passes": 2}, "exclude each other"),
    ],
)
def test_plan_refuses(arguments: dict[str, Any], says: str) -> None:
    model = einpage.load_spec("mlp")
    with pytest.raises(UsageError, match=says):
        einpage.plan(model, **{"budget": "1MiB", **arguments})


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"dispatch": "eager"}, "dispatch 'eager': expected serial or dynamic or static"),
        ({"device": "gpu"}, "device 'gpu': expected auto or cpu or cuda"),
        ({"dtype": "fp8"}, "dtype 'fp8'"),
    ],
)
def test_run_refuses(arguments: dict[str, Any], says: str) -> None:
    model = einpage.load_spec("mlp", weights="random:0")
    with pytest.raises(UsageError, match=says):
        einpage.run(model, **{"budget": "1MiB", "machine": "cpu", **arguments})


def test_a_model_without_weights_is_not_run() -> None:
    with pytest.raises(UsageError, match="can be planned, not run"):
        einpage.run(einpage.load_spec("mlp"), budget="1MiB", machine="cpu")


def test_text_is_given_once() -> None:
    with pytest.raises(UsageError, match="use one"):
        einpage.load_spec("llama", prompt="a", tokens=[[1]])
    with pytest.raises(UsageError, match="a prompt needs weights"):
        einpage.load_spec("llama", prompt="a")


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'plam'"):
        einpage.plam  # noqa: B018


TINY = """einpage: 1
name: tiny
sizes: {batch: 3, seq: 4}
axes: {b: batch, s: seq}
inputs: {x: {axes: b s}, lengths: {axes: b, dtype: int32}}
body:
  - y[b,s] = where(s < lengths[b], x[b,s], 0)
outputs: {y: {axes: b s}}
"""
with warnings.catch_warnings(action="ignore"):  # that such tensors will go
    QUANTISED = torch.quantize_per_tensor(torch.tensor([2.0, 4.0, 1.0]), 1.0, 0, torch.quint8)
X, LENGTHS = np.arange(1.0, 13.0).reshape(3, 4), [2, 4, 1]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Model:
    path = tmp_path_factory.mktemp("tiny") / "tiny.yaml"
    path.write_text(TINY)
    return einpage.load_spec(path, weights="random:1")


@pytest.mark.parametrize(
    "given",
    [
        {"lengths": LENGTHS},
        {"lengths": tuple(LENGTHS), "x": X.tolist()},
        {"lengths": [np.int64(2), np.int32(4), 1]},
        {"lengths": torch.tensor(LENGTHS), "x": torch.tensor(X, requires_grad=True)},
        {"lengths": torch.tensor(LENGTHS, dtype=torch.uint8), "x": torch.tensor(X).bfloat16()},
        {"lengths": np.array(LENGTHS, np.uint64), "x": torch.tensor(X).half()},
        {"lengths": torch.tensor(LENGTHS).to_sparse(), "x": torch.tensor(X).T.contiguous().T},
        {"lengths": np.ma.array(LENGTHS, mask=False), "x": X.astype(np.int8)},
    ],
)
def test_what_holds_numbers_is_an_input(given: dict[str, Any], tiny: Model) -> None:
    found = einpage.run(tiny, budget="1MiB", machine="cpu", inputs={"x": X, **given})
    assert (found.outputs["y"].numpy() == np.where(np.arange(4) < np.array(LENGTHS)[:, None], X, 0)).all()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_tensor_on_a_gpu_is_an_input(tiny: Model) -> None:
    found = einpage.run(tiny, budget="1MiB", machine="cpu", device="cpu", inputs={"x": torch.tensor(X).cuda(), "lengths": LENGTHS})
    assert found.outputs["y"][1].tolist() == X[1].tolist()


@pytest.mark.parametrize(
    ("lengths", "says"),
    [
        ("abc", "input lengths is of type str, expected an array"),
        ({"a": 1}, "input lengths is of type dict"),
        (None, "input lengths is None"),
        ({1, 2}, "input lengths is of type set"),
        (b"abc", "input lengths is of type bytes"),
        (object(), "input lengths is of type object"),
        ([[1], [2, 3]], "input lengths: rows of different lengths"),
        (["2", "4"], "input lengths holds values of type <U1"),
        ([2**70, 1, 1], "input lengths holds numbers beyond 64 bits"),
        ([1j, 1, 1], "input lengths holds values of type complex128"),
        ([2.0, 4.0, 1.0], "input lengths is float64, expected whole numbers"),
        ([True, False, True], "input lengths is bool, expected whole numbers"),
        (torch.tensor([2.5, 4, 1]).bfloat16(), "input lengths is float32, expected whole numbers"),
        ([2, 4], r"input lengths\[b\] has shape \[2\], expected \[3\]"),
        (3, r"input lengths\[b\] has shape \[\], expected \[3\]"),
        (torch.empty(3, device="meta"), "input lengths is a tensor on the device meta"),
        (np.ma.array([2, 4, 1], mask=[0, 1, 0]), "input lengths has masked elements"),
        (QUANTISED, "input lengths is a tensor of torch.quint8, which has no array"),
    ],
)
def test_what_holds_no_numbers_is_refused_in_one_line(lengths: Any, says: str, tiny: Model) -> None:
    with pytest.raises(InputError, match=says) as e:
        einpage.run(tiny, budget="1MiB", machine="cpu", inputs={"x": X, "lengths": lengths})
    assert "\n" not in str(e.value)


@pytest.mark.parametrize("inputs", [[("x", X)], "x", 5, {3: X}])
def test_inputs_that_have_no_names_are_refused(inputs: Any, tiny: Model) -> None:
    with pytest.raises(InputError, match=r"expected (arrays by name|names of inputs)"):
        einpage.run(tiny, budget="1MiB", machine="cpu", inputs=inputs)


@pytest.mark.parametrize(
    "tokens",
    [[[1, 2], [3, 4]], ((1, 2), (3, 4)), np.array([[1, 2], [3, 4]]), torch.tensor([[1, 2], [3, 4]]), [np.array([1, 2]), [np.int8(3), 4]]],
)
def test_token_ids_in_any_container(tokens: Any) -> None:
    model = einpage.load_spec("llama", set=SIZES, weights="random:1", tokens=tokens)
    assert model.tokens is not None and model.tokens.lists == ((1, 2), (3, 4))


@pytest.mark.parametrize("tokens", [[1, 2], np.array([1, 2]), range(1, 3)])
def test_token_ids_of_one_sequence(tokens: Any) -> None:
    model = einpage.load_spec("llama", set={**SIZES, "batch": 1}, weights="random:1", tokens=tokens)
    assert model.tokens is not None and model.tokens.lists == ((1, 2),)


@pytest.mark.parametrize("tokens", ["hello", [[1.5, 2.0]], [[-1]], [None], [], [[]], [[[1]]], [["a"]], {"a": [1]}, 5, [[True]]])
def test_what_are_no_token_ids(tokens: Any) -> None:
    with pytest.raises(InputError, match=r"^tokens: "):
        einpage.load_spec("llama", set=SIZES, weights="random:1", tokens=tokens)


@pytest.mark.parametrize("prompt", [5, b"text", ["text", None], [["text"]]])
def test_a_prompt_that_is_no_text(prompt: Any) -> None:
    with pytest.raises(UsageError, match=r"a prompt is text, found one of type (int|bytes|NoneType|list)"):
        einpage.load_spec("llama", weights="random:1", prompt=prompt)


WRONG_KINDS: list[tuple[str, Any]] = [
    ("passes", "3"),
    ("passes", 2.5),
    ("passes", True),
    ("plan_steps", 1.5),
    ("plan_steps", "5"),
    ("plan_seconds", "a"),
    ("plan_seconds", None),
    ("plan_seconds", 10**400),
    ("plan_seconds", float("nan")),
    ("machine", 3),
    ("machine", ["cpu"]),
    ("split", {"f": "a"}),
    ("split", "f=4"),
    ("split", {"h": 1.5}),
    ("split", {3: 4}),
    ("split", [("h", 2)]),
    ("no_fuse", 3),
    ("no_fuse", "attention"),
    ("no_fuse", [3]),
    ("outputs", "logits"),
    ("outputs", 3),
    ("outputs", [3]),
    ("budget", 1.5),
    ("budget", None),
    ("budget", True),
    ("budget", [1]),
    ("budget", 10**400),
    ("dtype", ["fp32"]),
    ("dtype", None),
    ("model", "mlp"),
]
OF_A_PLAN: list[tuple[str, Any]] = [("warm", 3), ("warm", "no"), ("machine", None)]
OF_A_RUN: list[tuple[str, Any]] = [
    ("find_nan", 3),
    ("find_nan", "no"),
    ("perplexity", 1),
    ("perplexity", None),
    ("device", ["cpu"]),
    ("device", None),
    ("dispatch", ["static"]),
    ("dispatch", 3),
]
OF_A_SPEC: list[tuple[str, Any]] = [
    ("spec", 3),
    ("spec", None),
    ("weights", 3),
    ("weights", b"random:1"),
    ("set", "seq=3"),
    ("set", [("seq", 3)]),
    ("set", {"batch": [3]}),
    ("set", {3: 3}),
    ("set", {"batch": None}),
    ("set", {"batch": True}),
    ("set", {"batch": 10**5000}),
]
OF_BOTH = {"machine", "split", "no_fuse", "budget", "dtype"}
OF_AN_OPEN_MODEL: list[tuple[str, Any]] = [
    *(
        (name, value)
        for name, value in (*WRONG_KINDS, *OF_A_RUN)
        if name in {*OF_BOTH, "device", "dispatch"} and (name, value) != ("budget", None)
    ),
    *OF_A_SPEC,
]
OF_A_TEXT: list[tuple[str, Any]] = [
    ("max_new", "3"),
    ("max_new", 2.5),
    ("max_new", True),
    ("temperature", "0"),
    ("temperature", [1]),
    ("temperature", None),
    ("top_k", 2.5),
    ("top_k", "3"),
    ("top_k", 10**400),
    ("seed", 10**400),
    ("seed", 1.5),
    ("top_p", "1"),
    ("min_p", "a"),
    ("repetition_penalty", None),
    ("stop", 5),
    ("stop", [5]),
    ("stop", b"a"),
]


def named_in(error: pytest.ExceptionInfo[EinpageError], argument: str) -> bool:
    """Whether the message, one line, begins with the argument's name: as it is, or as an option of the command line."""
    said = str(error.value)
    return "\n" not in said and said.startswith((f"{argument} ", f"--{argument.replace('_', '-')} "))


@pytest.mark.parametrize(("argument", "value"), [*WRONG_KINDS, *OF_A_PLAN])
def test_a_plan_takes_arguments_of_the_right_kind(argument: str, value: Any) -> None:
    given = {"model": einpage.load_spec("mlp"), "budget": "1MiB", argument: value}
    with pytest.raises(EinpageError) as e:
        einpage.plan(**given)
    assert named_in(e, argument), str(e.value)


@pytest.mark.parametrize(("argument", "value"), [*WRONG_KINDS, *OF_A_RUN])
def test_a_run_takes_arguments_of_the_right_kind(argument: str, value: Any, tiny: Model) -> None:
    given = {"model": tiny, "budget": "1MiB", "machine": "cpu", "inputs": {"x": X, "lengths": LENGTHS}, argument: value}
    with pytest.raises(EinpageError) as e:
        einpage.run(**given)
    assert named_in(e, argument), str(e.value)


@pytest.mark.parametrize(("argument", "value"), OF_A_SPEC)
def test_a_spec_is_loaded_with_arguments_of_the_right_kind(argument: str, value: Any) -> None:
    with pytest.raises(EinpageError) as e:
        einpage.load_spec(**{"spec": "mlp", argument: value})
    assert named_in(e, argument), str(e.value)


@pytest.mark.parametrize(("argument", "value"), OF_AN_OPEN_MODEL)
def test_a_model_is_opened_with_arguments_of_the_right_kind(argument: str, value: Any) -> None:
    given = {"spec": "llama", "weights": "random:1", "budget": "1MiB", "machine": "cpu", "set": SIZES, argument: value}
    with pytest.raises(EinpageError) as e:
        einpage.open(**given)
    assert named_in(e, argument), str(e.value)


@pytest.mark.parametrize(("argument", "value"), OF_A_TEXT)
def test_a_text_is_generated_with_arguments_of_the_right_kind(argument: str, value: Any) -> None:
    with einpage.open("llama", "random:1", budget="1MiB", machine="cpu", device="cpu", set=SIZES) as model:
        model.tokenizer = object()  # type: ignore[assignment]  # refused before it is used
        with pytest.raises(EinpageError) as e:
            list(model.generate([1], **({"temperature": 1.0} if argument in ("top_k", "seed") else {}), **{argument: value}))
    assert named_in(e, argument), str(e.value)


def test_numbers_of_numpy_are_numbers(tiny: Model) -> None:
    given = {"x": X, "lengths": LENGTHS}
    found = einpage.run(tiny, budget=1 << 20, machine="cpu", inputs=given, passes=np.int64(2), plan_seconds=np.float32(0), outputs=("y",))
    assert len(found.report.passes) == 2
    assert dict(einpage.plan(einpage.load_spec("mlp"), budget=np.int64(1 << 20), split={"h": np.int64(2)}).graph.split)["h"] == 2
    assert einpage.load_spec("mlp", set={"batch": np.int64(3)}).program.sizes["batch"] == 3


def test_outputs_may_be_left_to_the_spec(tiny: Model) -> None:
    found = einpage.run(tiny, budget="1MiB", machine="cpu", inputs={"x": X, "lengths": LENGTHS}, outputs=None)
    assert list(found.outputs) == ["y"]
