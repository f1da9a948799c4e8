"""Inputs of a run: token files, prompts, arrays, what they say about sizes, and each refusal."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from einpage.einsum_front.algebra.expr import Letter
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.base.errors import Span
from einpage.einsum_front.graph.program import Input, Program
from einpage.exec.load.inputs import InputError, TokenLists, bind_inputs, read_input, read_tokens, token_sizes
from specs_small import small_program

SPAN = Span(1, 1)


def tensor(name: str, *shape: int, dtype: DType | None = None, default: float | int | None = None) -> Input:
    return Input(name, tuple(Letter(c) for c in "abc"[: len(shape)]), shape, dtype, default, SPAN)


def program(*inputs: Input) -> Program:
    return Program("test", "test.yaml", {}, {}, {}, inputs, (), (), (), ())


def tokens(*lists: tuple[int, ...]) -> TokenLists:
    return TokenLists(lists, "the prompts")


def test_token_files(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text("[5, 6, 7]")
    assert read_tokens(str(path)).lists == ((5, 6, 7),)
    path.write_text("[[5, 6, 7], [8]]")
    assert read_tokens(str(path)).lists == ((5, 6, 7), (8,))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", "expected a list"),
        ("{}", "expected a list"),
        ("[[1], []]", "list 1 is empty"),
        ("[1, [2]]", "element 1 of list 0 is '\\[2\\]'"),
        ("[1, 2.0]", "'2.0', not a token id"),
        ("[-1]", "'-1'"),
        ("[true]", "'True'"),
        ("[2147483648]", "'2147483648'"),
        ("[1", "not JSON"),
    ],
)
def test_token_files_that_are_none(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "t.json"
    path.write_text(text)
    with pytest.raises(InputError, match=said):
        read_tokens(str(path))


def test_an_absent_token_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"absent\.json: cannot be read: No such file"):
        read_tokens(str(tmp_path / "absent.json"))


def test_sizes_follow_the_tokens_unless_set() -> None:
    two = tokens((1, 2, 3), (4, 5))
    assert token_sizes(two, {}) == {"batch": 2, "seq": 3}
    assert token_sizes(two, {"seq": 8}) == {"batch": 2}
    assert token_sizes(two, {"seq": 3, "batch": 2, "model": 9}) == {}
    with pytest.raises(InputError, match="the prompts: 3 tokens, but seq is set to 2; set seq=3"):
        token_sizes(two, {"seq": 2})
    with pytest.raises(InputError, match="2 sequences, but batch is set to 3"):
        token_sizes(two, {"batch": 3})


PADDED = (tensor("tokens", 2, 4, dtype=DType.INT32), tensor("lengths", 2, dtype=DType.INT32, default=4))


def test_ragged_tokens_are_padded_on_the_right_and_fill_lengths() -> None:
    bound = bind_inputs(program(*PADDED), tokens((1, 2, 3), (4, 5, 6, 7)), {})
    np.testing.assert_array_equal(bound["tokens"], [[1, 2, 3, 0], [4, 5, 6, 7]])
    np.testing.assert_array_equal(bound["lengths"], [3, 4])
    assert bound["tokens"].dtype == bound["lengths"].dtype == np.int32


def test_padding_without_lengths_is_refused() -> None:
    bare = program(PADDED[0])
    with pytest.raises(InputError, match=r"3, 4 tokens would be padded to 4, and test\.yaml has no input `lengths`"):
        bind_inputs(bare, tokens((1, 2, 3), (4, 5, 6, 7)), {})
    assert list(bind_inputs(bare, tokens((1, 2, 3, 9), (4, 5, 6, 7)), {})) == ["tokens"]


def test_tokens_that_do_not_fit_the_program() -> None:
    with pytest.raises(InputError, match=r"1 sequences of up to 1 tokens do not fit `tokens` \[2, 4\]"):
        bind_inputs(program(*PADDED), tokens((1,)), {})
    with pytest.raises(InputError, match=r"no input `tokens` of two axes.*its inputs: x\[3\]"):
        bind_inputs(program(tensor("x", 3)), tokens((1,)), {})
    with pytest.raises(InputError, match="given twice"):
        bind_inputs(program(*PADDED), tokens((1,), (2,)), {"tokens": np.zeros((2, 4), np.int32)})


def test_arrays_defaults_and_their_types() -> None:
    inputs = (tensor("x", 2, 3), tensor("n", 2, dtype=DType.INT64, default=7), tensor("scale", default=0.5))
    bound = bind_inputs(program(*inputs), None, {"x": np.arange(6).reshape(3, 2).T})
    assert bound["x"].dtype == np.float32
    assert bound["x"].flags.c_contiguous
    np.testing.assert_array_equal(bound["x"], [[0, 2, 4], [1, 3, 5]])
    np.testing.assert_array_equal(bound["n"], [7, 7])
    assert bound["n"].dtype == np.int64
    assert bound["scale"].shape == ()
    assert bound["scale"] == 0.5


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ({}, r"not given: x\[2, 3\]; use --input NAME=FILE"),
        ({"x": np.zeros((2, 3)), "z": np.zeros(1), "q": np.zeros(1)}, "no input called z, q; test.yaml has x, n"),
        ({"x": np.zeros((3, 2))}, r"input x\[a, b\] has shape \[3, 2\], expected \[2, 3\]"),
        ({"x": np.zeros((2, 3), bool)}, "x is bool, expected numbers"),
        ({"x": np.zeros((2, 3)), "n": np.zeros(2)}, "n is float64, expected whole numbers"),
        ({"x": np.zeros((2, 3)), "n": np.array([0, 2**31])}, "n has values from 0 to 2147483648, beyond int32"),
    ],
)
def test_arrays_that_do_not_fit(named: dict[str, np.ndarray], said: str) -> None:
    with pytest.raises(InputError, match=said):
        bind_inputs(program(tensor("x", 2, 3), tensor("n", 2, dtype=DType.INT32, default=0)), None, named)


def test_missing_tokens_name_their_options() -> None:
    with pytest.raises(InputError, match=r"not given: tokens\[2, 4\]; use --prompt, --tokens FILE or --input"):
        bind_inputs(program(*PADDED), None, {})


def test_input_files(tmp_path: Path) -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    (tmp_path / "x.json").write_text(json.dumps(array.tolist()))
    np.save(tmp_path / "x.npy", array)
    save_file({"whatever": torch.from_numpy(array)}, str(tmp_path / "x.safetensors"))
    save_file({"other": torch.zeros(1), "x": torch.from_numpy(array)}, str(tmp_path / "two.safetensors"))
    for file in ("x.json", "x.npy", "x.safetensors", "two.safetensors"):
        name, found = read_input(f"x={tmp_path / file}")
        assert name == "x"
        np.testing.assert_array_equal(found, array, err_msg=file)
    save_file({"n": torch.arange(4), "h": torch.full((2,), 1.5, dtype=torch.bfloat16)}, str(tmp_path / "kinds.safetensors"))
    np.testing.assert_array_equal(read_input(f"n={tmp_path / 'kinds.safetensors'}")[1], np.arange(4))
    np.testing.assert_array_equal(read_input(f"h={tmp_path / 'kinds.safetensors'}")[1], [1.5, 1.5])
    with pytest.raises(InputError, match="no tensor called y; the file holds other, x"):
        read_input(f"y={tmp_path / 'two.safetensors'}")


def test_input_files_that_are_none(tmp_path: Path) -> None:
    for name, content in [("a.json", b"[[1], [2, 3]]"), ("b.json", b'["x"]'), ("c.npy", b"junk"), ("d.safetensors", b"junk" * 9)]:
        (tmp_path / name).write_bytes(content)
    np.save(tmp_path / "pickled.npy", np.array([{}], object), allow_pickle=True)
    for assignment, said in [
        ("x", "expected NAME=FILE"),
        ("=a.json", "expected NAME=FILE"),
        (f"x={tmp_path}/a.txt", "expected a .json, .npy or .safetensors"),
        (f"x={tmp_path}/absent.npy", "cannot be read"),
        (f"x={tmp_path}/absent.safetensors", "does not exist"),
        (f"x={tmp_path}/a.json", "rows of different lengths"),
        (f"x={tmp_path}/b.json", "expected numbers"),
        (f"x={tmp_path}/c.npy", "not a readable .npy"),
        (f"x={tmp_path}/pickled.npy", "not a readable .npy"),
        (f"x={tmp_path}/d.safetensors", "not a safetensors file"),
    ]:
        with pytest.raises(InputError, match=said):
            read_input(assignment)


def ranged(name: str, *shape: int, limits: tuple[int, int]) -> Input:
    return replace(tensor(name, *shape, dtype=DType.INT32), range=limits)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([1, 0, 9], r"input n\[1\] is 0, outside its range, and 1 more are; give whole numbers from 1 to 8$"),
        ([1, -1, 8], r"input n\[1\] is -1, outside its range; give whole numbers from 1 to 8$"),
        ([9, 2, 3], r"input n\[0\] is 9, outside its range; "),
    ],
)
def test_whole_numbers_outside_their_range_are_refused(given: list[int], said: str) -> None:
    limits = program(ranged("n", 3, limits=(1, 8)))
    for dtype in (np.int8, np.int64):
        with pytest.raises(InputError, match=said):
            bind_inputs(limits, None, {"n": np.array(given, dtype)})


def test_both_ends_of_a_range_are_allowed() -> None:
    limits = program(ranged("n", 2, limits=(1, 8)), ranged("m", limits=(-3, -3)))
    bound = bind_inputs(limits, None, {"n": np.array([1, 8], np.uint64), "m": np.array(-3)})
    assert bound["n"].tolist() == [1, 8]
    with pytest.raises(InputError, match=r"input m is -2, outside its range"):
        bind_inputs(limits, None, {"n": np.array([1, 8]), "m": np.array(-2)})


def test_token_ids_outside_the_range_are_refused_as_those_of_a_file() -> None:
    vocabulary = program(ranged("tokens", 1, 2, limits=(0, 63)))
    with pytest.raises(InputError, match=r"input tokens\[0, 1\] is 64, outside its range; give whole numbers from 0 to 63"):
        bind_inputs(vocabulary, tokens((63, 64)), {})


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_shipped_specs_bound_their_lengths_and_tokens(name: str) -> None:
    program = small_program(name)
    found = {i.name: i.range for i in program.inputs if i.name not in {state.name for state in program.states}}
    assert found == {"tokens": (0, 199), "lengths": (1, 130), "at": (0, 0)}
