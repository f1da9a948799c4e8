"""Opening checkpoints and resolving a program's weights in them: what is found, and everything that can be wrong."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_torch

from einpage.checkpoints.files.checkpoint import WeightError
from einpage.checkpoints.match.metadata import spec_settings
from einpage.checkpoints.match.resolve import open_weights, present_names, resolve
from einpage.einsum_front.algebra.expr import Axis, Letter, Load
from einpage.einsum_front.base.errors import Span
from einpage.einsum_front.fuse.tied_weights import with_tied_weights
from einpage.einsum_front.graph.job import Part
from einpage.einsum_front.graph.program import Definition, Output, Program, Source, Weight
from einpage.einsum_front.spec.document import Document
from einpage.einsum_front.spec.reader import read_document
from einpage.exec.planning.model import open_model

SPAN = Span(1, 1)


def weight(name: str, shape: tuple[int, ...], *sources: Source, fallback: str | None = None) -> Weight:
    letters = tuple(Letter(c) for c in "abcdef"[: len(shape)])
    plain = Source(name, tuple((i,) for i in range(len(shape))))
    return Weight(name, name, letters, shape, sources or (plain,), fallback, SPAN)


def program(*weights: Weight, used: tuple[str, ...] | None = None, ignore: tuple[str, ...] = ()) -> Program:
    """One definition that reads the weights named in `used` (by default all), behind one output."""
    reads = [w for w in weights if used is None or w.name in used]
    parts = tuple(Part((), Load(w.name, tuple(Axis(c) for c in w.letters))) for w in reads)
    definition = Definition("y.0", "y", (), parts, (), SPAN)
    output = Output("y", "y.0", (), ())
    return Program("test", "test.yaml", {}, {}, {}, (), weights, (definition,), (output,), ignore)


def array(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


@pytest.fixture
def gguf_file(tmp_path: Path) -> Path:
    """Two matrices (one Q8_0) and a vector, with some metadata; the vocabulary is long enough to be left in the file."""
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(3)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_token_list([f"token{i}" for i in range(100)])
    writer.add_array("test.short", [1, 2, 3])
    writer.add_bool("test.flag", True)
    writer.add_tensor("one", array(3, 64))
    writer.add_tensor("two", gguf.quantize(array(5, 64, seed=1), gguf.GGMLQuantizationType.Q8_0), raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("v", array(7, seed=2))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("alignment", [8, 32, 64, 4096])
def test_tensors_of_a_gguf_lie_at_its_own_alignment(tmp_path: Path, alignment: int) -> None:
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_custom_alignment(alignment)
    for seed, name in enumerate(("one", "two", "three")):
        writer.add_tensor(name, array(3, 5, seed=seed))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    checkpoint = open_weights(str(path))
    for seed, name in enumerate(("one", "two", "three")):
        np.testing.assert_array_equal(checkpoint.read_rows(name, 0, 3), array(3, 5, seed=seed))


def test_gguf_shapes_metadata_and_rows(gguf_file: Path) -> None:
    checkpoint = open_weights(str(gguf_file))
    assert dict(checkpoint.tensors) == {"one": (3, 64), "two": (5, 64), "v": (7,)}
    config = checkpoint.config()
    assert config["llama.block_count"] == 3
    assert config["llama.attention.layer_norm_rms_epsilon"] == 1e-5, "float32 metadata stands for its shortest decimal"
    assert config["llama.vocab_size"] == 100, "taken from the tokenizer"
    assert config["test.short"] == [1, 2, 3]
    assert config["test.flag"] is True
    assert "tokenizer.ggml.tokens" not in config
    assert checkpoint.array("tokenizer.ggml.tokens")[98:] == ["token98", "token99"]  # type: ignore[attr-defined]
    np.testing.assert_array_equal(checkpoint.read_rows("one", 1, 3), array(3, 64)[1:])
    np.testing.assert_array_equal(checkpoint.read_rows("v", 0, 1), array(7, seed=2)[None])
    quantised = gguf.quantize(array(5, 64, seed=1), gguf.GGMLQuantizationType.Q8_0)
    np.testing.assert_array_equal(checkpoint.read_rows("two", 2, 4), gguf.dequantize(quantised, gguf.GGMLQuantizationType.Q8_0)[2:4])


@pytest.mark.parametrize(
    "type_", [t for t in gguf.GGMLQuantizationType if t.name in ("F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")]
)
def test_gguf_element_types(tmp_path: Path, type_: gguf.GGMLQuantizationType) -> None:
    data = gguf.quantize(array(4, 64), type_)
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_tensor("w", data, raw_dtype=type_)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    got = open_weights(str(tmp_path / "m.gguf")).read_rows("w", 1, 4)
    np.testing.assert_array_equal(got.astype(np.float32), gguf.dequantize(data, type_).reshape(4, 64)[1:])
    assert np.abs(got - array(4, 64)[1:]).max() < 0.3, "close to what was quantised"


def test_gguf_type_without_dequantiser_is_a_fault_of_the_weight_that_uses_it(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_tensor("w", np.zeros((2, 32), np.int8))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(WeightError, match=r"unreadable: w: w is stored as GGUF type 24"):
        resolve(program(weight("w", (2, 32))), open_weights(str(tmp_path / "m.gguf")))


def test_every_cut_of_a_gguf_is_reported(gguf_file: Path) -> None:
    whole = gguf_file.read_bytes()
    wanted = program(weight("one", (3, 64)), weight("two", (5, 64)), weight("v", (7,)))
    resolve(wanted, open_weights(str(gguf_file)))
    data_start = len(whole) - 3 * 64 * 4 - 352 - 32
    for size in [*range(0, data_start, 7), *range(data_start, len(whole) - 4, 11)]:
        gguf_file.write_bytes(whole[:size])
        with pytest.raises(WeightError, match=r"truncated|not a GGUF") as caught:
            resolve(wanted, open_weights(str(gguf_file)))
        assert str(gguf_file) in str(caught.value)
        assert f"{size} bytes" in str(caught.value)
    assert "cut off: v" in str(caught.value)
    assert "two" not in str(caught.value)


@settings(max_examples=300, deadline=None)
@given(at=st.integers(0, 2500), byte=st.integers(0, 255))
def test_a_flipped_byte_of_a_gguf_header_never_surprises(tmp_path_factory: pytest.TempPathFactory, at: int, byte: int) -> None:
    path = tmp_path_factory.getbasetemp() / "flipped.gguf"
    if not path.with_suffix(".whole").exists():
        writer = gguf.GGUFWriter(path.with_suffix(".whole"), "llama")
        writer.add_token_list([f"token{i}" for i in range(100)])
        writer.add_tensor("one", array(3, 64))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    damaged = bytearray(path.with_suffix(".whole").read_bytes())
    damaged[at % len(damaged)] = byte
    path.write_bytes(damaged)
    try:
        resolved = resolve(program(weight("one", (3, 64))), open_weights(str(path)))
    except WeightError:
        return
    assert resolved.checkpoint.read_rows("one", 0, 3).shape == (3, 64)


@pytest.mark.parametrize(
    ("head", "said"),
    [
        (b"GGML" + bytes(30), "not a GGUF file: it starts with b'GGML'"),
        (b"GGUF" + struct.pack("<I", 1) + bytes(16), "version 1 is not supported"),
        (b"GGUF" + struct.pack(">I", 3) + bytes(16), "big-endian"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**60), "1,152,921,504,606,846,976 metadata keys, more than any model has"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**63), "truncated or corrupt"),
    ],
)
def test_not_a_gguf(tmp_path: Path, head: bytes, said: str) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(head)
    with pytest.raises(WeightError, match=said):
        open_weights(str(path))


def test_safetensors_of_every_float_type(tmp_path: Path) -> None:
    whole = torch.from_numpy(array(6, 5))
    dtypes = {"d": torch.float64, "f": torch.float32, "h": torch.float16, "b": torch.bfloat16}
    save_torch({name: whole.to(dtype) for name, dtype in dtypes.items()}, str(tmp_path / "model.safetensors"))
    checkpoint = open_weights(str(tmp_path))
    for name, dtype in dtypes.items():
        got = torch.from_numpy(checkpoint.read_rows(name, 2, 5)).float()
        assert torch.equal(got, whole.to(dtype)[2:5].float()), name


def test_safetensors_of_another_type_is_a_fault_only_where_used(tmp_path: Path) -> None:
    save_file({"w": array(2, 2), "ids": np.arange(4)}, tmp_path / "m.safetensors")
    checkpoint = open_weights(str(tmp_path / "m.safetensors"))
    resolve(program(weight("w", (2, 2)), ignore=("ids",)), checkpoint)
    with pytest.raises(WeightError, match="unreadable: ids: ids is stored as I64"):
        resolve(program(weight("w", (2, 2)), weight("ids", (4,))), checkpoint)


def shards(folder: Path) -> Path:
    save_file({"a": array(2, 3)}, folder / "m-1.safetensors")
    save_file({"b": array(4, seed=1), "c": array(2, 2, seed=2)}, folder / "m-2.safetensors")
    index = folder / "m.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors", "c": "m-2.safetensors"}}))
    (folder / "config.json").write_text(json.dumps({"hidden_size": 3, "rope_parameters": {"rope_theta": 1e4}, "kv": None, "tie": True}))
    return index


SHARDED = (weight("a", (2, 3)), weight("b", (4,)), weight("c", (2, 2)))


def test_shards_by_index_by_folder_and_without_an_index(tmp_path: Path) -> None:
    index = shards(tmp_path)
    for where in (index, tmp_path):
        checkpoint = open_weights(str(where))
        assert sorted(resolve(program(*SHARDED), checkpoint).source_by_weight) == ["a", "b", "c"]
        np.testing.assert_array_equal(checkpoint.read_rows("c", 1, 2), array(2, 2, seed=2)[1:])
    index.unlink()
    assert dict(open_weights(str(tmp_path)).tensors) == {"a": (2, 3), "b": (4,), "c": (2, 2)}


def test_a_missing_shard_is_named_with_what_it_holds(tmp_path: Path) -> None:
    index = shards(tmp_path)
    (tmp_path / "m-2.safetensors").unlink()
    with pytest.raises(WeightError, match=r"shard m-2.safetensors is missing; it holds b, c") as caught:
        resolve(program(*SHARDED), open_weights(str(index)))
    assert "missing: b" in str(caught.value)


def test_an_index_that_names_what_its_shards_lack(tmp_path: Path) -> None:
    index = shards(tmp_path)
    index.write_text(json.dumps({"weight_map": {"a": "m-1.safetensors", "z": "m-1.safetensors"}}))
    assert "lack what the index names: z" in open_weights(str(index)).damage[0]
    index.write_text(json.dumps({"weight_map": {"a": "../m-1.safetensors"}}))
    with pytest.raises(WeightError, match="beside their index"):
        open_weights(str(index))
    index.write_text("[]")
    with pytest.raises(WeightError, match="weight_map"):
        open_weights(str(index))


def test_the_same_tensor_in_two_files(tmp_path: Path) -> None:
    shards(tmp_path).unlink()
    save_file({"a": array(2, 3)}, tmp_path / "z.safetensors")
    with pytest.raises(WeightError, match=r"z.safetensors: also in another file beside it: a \(m-1.safetensors\)"):
        open_weights(str(tmp_path))


def test_every_cut_of_a_safetensors_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    save_file({"a": array(2, 3), "b": array(8, seed=1)}, path)
    whole = path.read_bytes()
    wanted = program(weight("a", (2, 3)), weight("b", (8,)))
    resolve(wanted, open_weights(str(path)))
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(WeightError, match=r"truncated|not a safetensors"):
            resolve(wanted, open_weights(str(path)))
    assert open_weights(str(path)).damage == (f"{path}: truncated: {len(whole) - 1} bytes on disk, {len(whole)} needed; cut off: b",)


@pytest.mark.parametrize(
    ("header", "said"),
    [
        (b"{nonsense", "not JSON"),
        (b"[1]", "not a mapping"),
        (b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}', "a is F32 \\[2\\], 8 bytes, but is given 4"),
        (b'{"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}', "the entry of a"),
        (b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}}', "the entry of a"),
        (b'{"a": 3}', "the entry of a"),
    ],
)
def test_a_corrupt_safetensors_header(tmp_path: Path, header: bytes, said: str) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(100))
    with pytest.raises(WeightError, match=said):
        open_weights(str(path))
    path.write_bytes(struct.pack("<Q", 2**40) + bytes(100))
    with pytest.raises(WeightError, match="header would be 1099511627776 bytes"):
        open_weights(str(path))


def test_places_without_weights(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    for where, said in [
        (tmp_path / "absent.gguf", "does not exist"),
        (tmp_path, "a folder without weights.*notes.txt"),
        (tmp_path / "notes.txt", "not a kind of weights"),
        ("random:", "whole number"),
        ("random:-1", "whole number"),
        ("random:1.5", "whole number"),
    ]:
        with pytest.raises(WeightError, match=said) as caught:
            open_weights(str(where))
        assert caught.value.exit_status == 2
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).touch()
    with pytest.raises(WeightError, match=r"several checkpoints: a\.gguf, b\.gguf"):
        open_weights(str(tmp_path))


def test_one_error_lists_every_fault(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    save_file({"good": array(2), "bent": array(6, 2), "extra": array(3), "last": array(9), "rope.freqs": array(1)}, path)
    path.write_bytes(path.read_bytes()[:-4])
    asked = program(
        weight("good", (2,)),
        weight("bent", (2, 3, 2), Source("bent", ((0, 1, 2),))),
        weight("gone", (4,), Source("gone.hf", ((0,),)), Source("gone.gguf", ((0,),))),
        weight("last", (9,)),
        ignore=("rope.*",),
    )
    with pytest.raises(WeightError) as caught:
        resolve(asked, open_weights(str(path)))
    message = str(caught.value)
    assert message.startswith("the weights do not fit test.yaml: 4 faults\n")
    assert "missing: gone: no tensor called gone.hf or gone.gguf" in message
    assert "mis-shaped: bent: bent is [6, 2], expected [12] ((a=2 b=3 c=2))" in message
    assert "surplus: extra [3]" in message
    assert "truncated" in message
    assert "rope.freqs [" not in message
    assert "good" not in message


def test_a_transposed_tensor_is_misshaped(tmp_path: Path) -> None:
    save_file({"a": array(3, 2)}, tmp_path / "m.safetensors")
    with pytest.raises(WeightError, match=r"mis-shaped: a: a is \[3, 2\], expected \[2, 3\]"):
        resolve(program(weight("a", (2, 3))), open_weights(str(tmp_path)))


def test_only_what_an_output_uses_is_needed(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    save_file({"a": array(2)}, path)
    two = (weight("a", (2,)), weight("b", (2,)))
    assert list(resolve(program(*two, used=("a",)), open_weights(str(path))).source_by_weight) == ["a"]
    save_file({"a": array(2), "b": array(2)}, path)
    with pytest.raises(WeightError, match=r"a fault\n  surplus: b"):
        resolve(program(*two, used=("a",)), open_weights(str(path)))


def test_the_first_source_present_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    save_file({"second": array(6)}, path)
    either = weight("w", (2, 3), Source("first", ((0,), (1,))), Source("second", ((1, 0),)))
    assert resolve(program(either), open_weights(str(path))).source_by_weight["w"].name == "second"


def configured(config: str) -> Document:
    """A spec with this `config:`."""
    text = f"einpage: 1\nname: c\nsizes: {{model: 2, kv: 2}}\nscalars: {{theta: 2}}\naxes: {{m: model}}\nconfig: {config}\n"
    return read_document(text + "inputs: {x: {axes: m}}\nbody: ['y[m] = x[m]']\noutputs: {y: {axes: m}}\n", "c.yaml")


def test_settings_come_from_the_first_key_present(tmp_path: Path) -> None:
    checkpoint = open_weights(str(shards(tmp_path)))
    keys = "{model: [llama.embedding_length, hidden_size, rope_parameters.rope_theta], theta: rope_parameters.rope_theta, kv: [kv, absent]}"
    assert spec_settings(configured(keys), checkpoint) == {"model": 3, "theta": 1e4}
    with pytest.raises(WeightError, match="`tie` is True; the spec's `theta`"):
        spec_settings(configured("{theta: tie}"), checkpoint)
    assert spec_settings(configured(keys), open_weights("random:0")) == {}


def test_a_llama_with_stretched_positions_is_refused(tmp_path: Path) -> None:
    save_file({"a": array(4)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"hidden_act": "silu", "rope_scaling": {"rope_type": "llama3", "factor": 8.0}}))
    with pytest.raises(WeightError, match=r"`rope_scaling\.rope_type` is 'llama3'"):
        open_model(Path(__file__).parents[1] / "specs" / "llama.yaml", {}, str(tmp_path))


def test_random_weights_serve_every_first_source() -> None:
    both = program(weight("w", (2, 3), Source("first", ((1, 0),)), Source("second", ((0,), (1,)))), weight("head", (4,), fallback="w"))
    checkpoint = open_weights("random:7")
    assert present_names(both, checkpoint) == {"first", "head"}, "so nothing is tied"
    resolved = resolve(both, checkpoint)
    assert dict(resolved.checkpoint.tensors) == {"first": (6,), "head": (4,)}
    assert resolved.source_by_weight["w"].name == "first"


def test_a_tied_weight_is_neither_missing_nor_read_twice(tmp_path: Path) -> None:
    save_file({"embed": array(4)}, tmp_path / "m.safetensors")
    checkpoint = open_weights(str(tmp_path))
    both = program(weight("embed", (4,)), weight("head", (4,), fallback="embed"))
    assert list(resolve(with_tied_weights(both, present_names(both, checkpoint)), checkpoint).source_by_weight) == ["embed"]
    with pytest.raises(WeightError, match="missing: head: no tensor called head"):
        resolve(both, checkpoint)
