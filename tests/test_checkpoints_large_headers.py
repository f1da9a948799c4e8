"""Files with more tensors, keys, elements or values than any model has: refused in one line before time and memory are spent."""

from __future__ import annotations

import json
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from einpage.checkpoints.files.checkpoint import WeightError, folded
from einpage.checkpoints.match.resolve import open_weights
from einpage.einsum_front.base.json_text import JsonTooLarge, parsed, parsed_size
from einpage.exec.cli import main
from tiny_specs import SPEC


def text(word: str) -> bytes:
    return struct.pack("<Q", len(word)) + word.encode()


def gguf(tensors: int, keys: int, body: bytes = b"") -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, tensors, keys) + body


def safetensors(header: object) -> bytes:
    raw = json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw


def empty_tokens() -> bytes:
    return text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 5_000_000) + bytes(40_000_000)


EMPTY = safetensors({})


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: {"w.gguf": gguf(300_001, 0)}, "w.gguf: 300001 tensors, more than any checkpoint has: at most 300,000 are read"),
        (lambda: {"w.gguf": gguf(0, 10_001)}, "w.gguf: 10,001 metadata keys, more than any model has"),
        (
            lambda: {"w.gguf": gguf(0, 1, empty_tokens())},
            "w.gguf: an array of 5,000,000 before byte 69; all together may have 4,194,304 elements",
        ),
        (
            lambda: {"w.gguf": gguf(0, 1, text("k") + struct.pack("<I", 8) + text("x" * (65 << 20)))},
            "w.gguf: more than 64MiB of names and texts",
        ),
        (
            lambda: {"w.safetensors": safetensors({"__metadata__": {f"{i:x}": "" for i in range(2_000_000)}})},
            "w.safetensors: the header has 26,",
        ),
        (
            lambda: {"w.safetensors": safetensors({"w": {"dtype": "F32", "shape": [0] * 65, "data_offsets": [0, 0]}})},
            "w.safetensors: corrupt header: w has 65 dimensions, at most 64 are possible",
        ),
        (
            lambda: {"w.safetensors": EMPTY, "config.json": json.dumps(dict.fromkeys(map(str, range(10_001)))).encode()},
            "config.json: 10,001 keys",
        ),
        (
            lambda: {"w.safetensors": EMPTY, "config.json": b"[" + b"[]," * 2_000_000 + b"0]"},
            "config.json: 6,000,003 bytes of JSON that may take ",
        ),
        (
            lambda: {"m.safetensors.index.json": json.dumps({"weight_map": {str(i): f"{i}.safetensors" for i in range(20_000)}}).encode()},
            "m.safetensors.index.json: 20,000 shards",
        ),
    ],
)
def test_a_checkpoint_beyond_any_model(
    made: Callable[[], dict[str, bytes]], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files = made()
    monkeypatch.chdir(tmp_path)
    Path("spec.yaml").write_bytes(SPEC)
    for name, content in files.items():
        Path(name).write_bytes(content)
    assert main(["plan", "spec.yaml", "--budget", "1MiB", "--machine", "h100", "--weights", next(iter(files))]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_tables_of_labels_are_one_key(tmp_path: Path) -> None:
    """An image model of 21,843 classes names each one, twice; what else its config.json says counts as ever."""
    labels = {str(i): f"label {i}" for i in range(21_843)}
    config = {"id2label": labels, "label2id": {label: int(i) for i, label in labels.items()}, "n": 4, "inner": {"deep": {"n": 5}}}
    (tmp_path / "w.safetensors").write_bytes(EMPTY)
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = open_weights(str(tmp_path)).config()
    assert sorted(found) == ["id2label", "inner.deep.n", "label2id", "n"] and found["n"] == 4 and found["inner.deep.n"] == 5
    (tmp_path / "config.json").write_text(json.dumps({"other": dict.fromkeys(labels, 10**400)}))
    with pytest.raises(WeightError, match=r"`other` is .*more than a float holds"):
        open_weights(str(tmp_path))


def test_names_and_shapes_are_gathered_once(tmp_path: Path) -> None:
    (tmp_path / "w.gguf").write_bytes(gguf(1, 0, text("a") + struct.pack("<IQIQ", 1, 0, 0, 0)))
    (tmp_path / "w.safetensors").write_bytes(safetensors({"a": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}}))
    for name in ("w.gguf", "w.safetensors"):
        found = open_weights(str(tmp_path / name))
        assert found.tensors is found.tensors == {"a": (0,)}


def test_folding_ends() -> None:
    found = folded(".".join(str((i * k * k) % 7) for k in range(100)) + f".{i}" for i in range(10_050))
    assert len(found) <= 10_001 and found[-1] == "… and 50 more"


@pytest.mark.parametrize(
    "items",
    [
        "[]",
        "[1000]",
        "{}",
        '{"a":0}',
        '{"a":{}}',
        "0.5",
        "1" * 40,
        '"ab"',
        '"é😀"',
        '"aω"',
        '"a\\u0101"',
        "KEYS",
        f'"{"a" * 999}\\ud83d\\ude00"',
    ],
)
@pytest.mark.parametrize("count", [5_000, 22_000])
def test_a_text_takes_no_more_memory_than_is_said_before(items: str, count: int) -> None:
    keyed = (f'"{i:06x}":0.5' for i in range(count))
    raw = ("{" + ",".join(keyed) + "}" if items == "KEYS" else f"[{','.join([items] * (count // (1 + len(items) // 50)))}]").encode()
    tracemalloc.start()
    found = parsed(raw)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found and peak + len(raw) <= parsed_size(raw)
    with pytest.raises(JsonTooLarge):
        parsed(raw, parsed_size(raw) - 1)
