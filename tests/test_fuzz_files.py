"""Any file at all is what it should be, or is refused in one message: plans, traces, machine profiles, arrays, checkpoints.

Valid files are changed in their structure, and the command line is called on them (fuzzing.py says what must hold). To search longer:
`EINPAGE_FUZZ_S=600`, or `python tests/fuzzing.py test_fuzz_files:PLAN_FILES`.
"""

from __future__ import annotations

import gzip
import io
import json
import struct
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

import mutations
from fuzzing import Case, Fuzzer, fuzz, fuzz_seconds
from tiny_specs import GENERATING, LANGUAGE, SPEC

TRACE: dict[str, Any] = {
    "name": "small",
    "tensor_fields": ["bytes", "host_copy_at_start", "must_end_on_host", "kind"],
    "tensors": [[4096, 1, 0, "w"], [1024, 1, 0, "x"], [2048, 0, 0, "a"], [512, 0, 0, "a"], [1000, 0, 1, "y"]],
    "op_fields": ["name", "inputs", "outputs", "duration_us"],
    "ops": [["Conv", [0, 1], [2, 3], 12.5], ["Relu", [2], [4], 1]],
}
PROFILE = (Path(__file__).parents[1] / "specs" / "machines" / "cpu.yaml").read_text()
LINKS = "links:\n  - {source: disk, target: host, bytes_per_s: 3GB/s, latency_s: 1e-4}\n"
PIECES = (
    *("1e400", "9" * 400, "9" * 5000, "999999999", "-1", "0", "nan", ".inf", "1e-300", "2020-01-01", "2020-01-01 10:00:00", "true", "~"),
    *("null", "&a", "*a", "[*a, *a]", "!!python/object:os.system x", "!!binary eA==", "{", "[", "}", "]", ": ", "- ", "\n", "\t", "'", '"'),
    *("|\n", "? ", "<<: ", "---\n", "%", "#", "\x00", "\ufeff", "\u2028", "0x1F", "1_000", "0o7", "60:60", "[" * 500, "{a: " * 500),
    *("8GiB", "8 GiB/s", "1e3KB", "fp32", "a" * 3000, "é𝔸"),
)
RUN = ("run", "spec.yaml", "--budget", "1MiB", "--device", "cpu", "--machine", "cpu", "--json")


@cache
def planned() -> bytes:
    """A plan file that spills and reloads."""
    from einpage.exec.cli import main

    with tempfile.TemporaryDirectory() as folder:
        trace, out = Path(folder, "t.json"), Path(folder, "p.json")
        trace.write_text(json.dumps(TRACE))
        assert main(("plan", "--graph", str(trace), "--budget", "9000", "--h2d", "1GB/s", "--out", str(out))) == 0
        return out.read_bytes()


@cache
def planned_set() -> bytes:
    """The plans of a generation: of a prompt of 4 tokens at most, 12 positions."""
    from einpage.exec.cli import main

    with tempfile.TemporaryDirectory() as folder:
        spec, out = Path(folder, "spec.yaml"), Path(folder, "set.json")
        spec.write_bytes(GENERATING)
        words = ("--generate", "12", "--set", "seq=4", "--budget", "64KiB", "--machine", "cpu")
        with redirect_stdout(io.StringIO()):
            assert main(("plan", str(spec), *words, "--out", str(out))) == 0
        return out.read_bytes()


def plan_files() -> Sequence[Case]:
    plan_set = {"set.json": planned_set(), "spec.yaml": GENERATING}
    return (
        Case(("verify", "plan.json", "--json"), {"plan.json": planned()}),
        Case(("verify", "set.json", "--json"), plan_set),
        Case(("verify", "set.json", "--spec", "spec.yaml"), plan_set),
    )


def plan_sets_to_run() -> Sequence[Case]:
    words = (
        "generate",
        "spec.yaml",
        "--weights",
        "m",
        "--prompt",
        "hell",
        "--max-new",
        "2",
        "--device",
        "cpu",
        "--machine",
        "cpu",
        "--json",
    )
    return (Case((*words, "--plan", "set.json"), {"spec.yaml": GENERATING, "set.json": planned_set(), **small_language()}),)


@cache
def small_language() -> Mapping[str, bytes]:
    """The weights and the tokenizer of LANGUAGE and GENERATING."""
    from safetensors.numpy import save

    return {"m/model.safetensors": save({"embed.weight": np.ones((300, 8), np.float32)}), "m/tokenizer.json": tokenizer()}


def trace_files() -> Sequence[Case]:
    text = json.dumps(TRACE).encode()
    words = ("plan", "--budget", "20000", "--h2d", "1GB/s", "--plan-seconds", "0", "--json", "--graph")
    return Case((*words, "t.json"), {"t.json": text}), Case((*words, "t.json.gz"), {"t.json.gz": gzip.compress(text, mtime=0)})


def profiles() -> Sequence[Case]:
    text = (PROFILE + LINKS).encode()
    spec = {"m.yaml": text, "spec.yaml": SPEC}
    return (
        Case(("machine", "./m.yaml", "--json"), {"m.yaml": text}),
        Case(("plan", "spec.yaml", "--machine", "./m.yaml", "--budget", "1MiB", "--json"), spec),
    )


def arrays() -> Sequence[Case]:
    from safetensors.numpy import save

    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    npy = io.BytesIO()
    np.save(npy, x)
    words = (*RUN, "--weights", "random:1", "--input")
    return tuple(
        Case((*words, f"x={name}"), {"spec.yaml": SPEC, name: content})
        for name, content in (("x.json", json.dumps(x.tolist()).encode()), ("x.npy", npy.getvalue()), ("x.safetensors", save({"x": x})))
    )


def token_lists() -> Sequence[Case]:
    return (Case((*RUN, "--weights", "random:1", "--tokens", "t.json"), {"spec.yaml": LANGUAGE, "t.json": b"[1, 2, 3, 299]"}),)


@cache
def tokenizer() -> bytes:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    built = Tokenizer(models.BPE({c: i for i, c in enumerate([*letters, "he", "ll"])}, [("h", "e"), ("l", "l")]))
    built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    built.decoder = decoders.ByteLevel()
    return str(built.to_str()).encode()


@cache
def gguf() -> bytes:
    """A checkpoint with a tokenizer, one tensor, and metadata of several types."""
    from gguf import GGUFWriter

    letters = json.loads(tokenizer())["model"]["vocab"]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "m.gguf")
        writer = GGUFWriter(path, "llama")
        writer.add_context_length(8)
        writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("smollm")
        writer.add_token_list([*letters, *(f"<{i}>" for i in range(300 - len(letters)))])
        writer.add_token_merges(["h e", "l l"])
        writer.add_token_types([1] * 300)
        writer.add_array("some.list", [1, 2, 3])
        writer.add_tensor("token_embd.weight", np.ones((300, 8), np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path.read_bytes()


def checkpoints() -> Sequence[Case]:
    from safetensors.numpy import save

    x = json.dumps([[1.0] * 4] * 3).encode()
    small = {"spec.yaml": SPEC, "x.json": x, "m.safetensors": save({"w.weight": np.ones((4, 4), np.float32)})}
    language = {"spec.yaml": LANGUAGE, "m.gguf": gguf()}
    folder = {
        "spec.yaml": LANGUAGE,
        "m/model.safetensors": save({"embed.weight": np.ones((300, 8), np.float32)}),
        "m/config.json": b'{"model_type": "small", "hidden_size": 8, "nested": {"a": [1, 2]}}',
        "m/tokenizer.json": tokenizer(),
    }
    shards = {
        "spec.yaml": SPEC,
        "x.json": x,
        "s/a.safetensors": small["m.safetensors"],
        "s/model.safetensors.index.json": b'{"metadata": {"total_size": 64}, "weight_map": {"w.weight": "a.safetensors"}}',
    }
    return (
        Case((*RUN, "--weights", "s", "--input", "x=x.json"), shards),
        Case((*RUN, "--weights", "m.safetensors", "--input", "x=x.json"), small),
        Case((*RUN, "--weights", "m.gguf", "--prompt", "hello"), language),
        Case((*RUN, "--weights", "m", "--prompt", "hello"), folder),
    )


def change(random: Random, case: Case) -> Case:
    """One of the case's files, but for its spec, changed in its structure or in its bytes."""
    name = random.choice([name for name in case.files if name != "spec.yaml"])
    return replace(case, files={**case.files, name: _changed(random, name, case.files[name])})


def _changed(random: Random, name: str, content: bytes) -> bytes:
    suffix = name.rpartition(".")[2]
    if random.random() < 0.2:
        return mutations.change_bytes(random, content, 200)
    match suffix:
        case "json":
            return mutations.json_text(mutations.change_json(random, json.loads(content)))
        case "gz":
            return gzip.compress(mutations.json_text(mutations.change_json(random, json.loads(gzip.decompress(content)))), 1, mtime=0)
        case "yaml":
            return mutations.change_text(random, content.decode(), PIECES).encode("utf-8", "surrogatepass")
        case "safetensors":
            size = struct.unpack("<Q", content[:8])[0]
            header = mutations.json_text(mutations.change_json(random, json.loads(content[8 : 8 + size])))
            return struct.pack("<Q", len(header)) + header + content[8 + size :]
        case "npy":
            header = content[10:128].decode("latin-1")
            pieces = ("'|O'", "'<f8'", "'>i2'", "(10**9,)", "99999999999", "True", "(", "{", "'<U9'", "-1")
            edited = mutations.change_text(random, header, pieces)
            padded = edited.encode("latin-1", "replace")
            return content[:8] + struct.pack("<H", len(padded)) + padded + content[128:]
    return mutations.change_bytes(random, content, 400)


PLAN_FILES = Fuzzer(plan_files, change)
TRACES = Fuzzer(trace_files, change)
PROFILES = Fuzzer(profiles, change)
ARRAYS = Fuzzer(arrays, change)
TOKEN_LISTS = Fuzzer(token_lists, change)
CHECKPOINTS = Fuzzer(checkpoints, change)
PLAN_SETS = Fuzzer(plan_sets_to_run, change)
PLANNED = Fuzzer(lambda: (*plan_files(), *trace_files(), *profiles()), change)
RUN_WITH = Fuzzer(lambda: (*arrays(), *token_lists(), *checkpoints(), *plan_sets_to_run()), change)
"""All that needs no torch, and all that does: one worker each, for `make test`."""


def searched(name: str, seconds: float, seed: int) -> None:
    found = fuzz(f"test_fuzz_files:{name}", fuzz_seconds(seconds), seed)
    assert not found.findings, str(found)
    assert found.cases >= 4 and found.by_status[2] > 0, str(found)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("name", "seconds"), [("PLANNED", 5), ("RUN_WITH", 5)])
def test_any_file_is_right_or_refused(name: str, seconds: float) -> None:
    searched(name, seconds, seed=0)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(
    ("name", "seconds"),
    [("PLAN_FILES", 30), ("TRACES", 15), ("PROFILES", 15), ("ARRAYS", 20), ("TOKEN_LISTS", 10), ("CHECKPOINTS", 30), ("PLAN_SETS", 20)],
)
def test_any_file_of_a_kind_is_right_or_refused(name: str, seconds: float) -> None:
    searched(name, seconds, seed=1)
