"""Any command line at all does what it says, or is refused in one message, and writes only the files that its flags name.

The flags are those of the parser itself, so a new one is tried as soon as it exists. Searched longer: `EINPAGE_FUZZ_S=600`, or
`python tests/fuzzing.py test_fuzz_command_lines:COMMAND_LINES`.
"""

from __future__ import annotations

import argparse
import json
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from random import Random

import pytest

from einpage.exec.command.parser import parser
from fuzzing import Case, Fuzzer, assert_right_or_refused
from test_fuzz_files import TRACE, planned, planned_set, small_language
from tiny_specs import GENERATING, LANGUAGE, LEARNING, SPEC

SMALL = ("--budget", "64KiB", "--machine", "cpu", "--json")
CASES = (
    ("show", "spec.yaml", "--json"),
    ("show", "mlp"),
    ("plan", "spec.yaml", *SMALL),
    ("plan", "spec.yaml", *SMALL, "--out", "out.json"),
    ("plan", "language.yaml", *SMALL[2:], "--sweep", "budget=8KiB:64KiB:3"),
    ("plan", "--graph", "trace.json", "--budget", "20000", "--h2d", "1GB/s", "--plan-seconds", "0"),
    ("run", "spec.yaml", *SMALL, "--device", "cpu", "--weights", "random:1", "--input", "x=x.json"),
    ("run", "language.yaml", *SMALL, "--device", "cpu", "--weights", "random:1", "--tokens", "t.json"),
    ("run", "language.yaml", *SMALL, "--device", "cpu", "--weights", "m", "--prompt", "hell"),
    (
        "generate",
        "generating.yaml",
        *SMALL,
        "--device",
        "cpu",
        "--weights",
        "m",
        "--prompt",
        "hell",
        "--max-new",
        "3",
        "--plan-seconds",
        "0",
    ),
    ("plan", "generating.yaml", *SMALL, "--generate", "9", "--set", "seq=3", "--out", "out.json"),
    ("generate", "generating.yaml", "--plan", "set.json", *SMALL[2:], "--weights", "m", "--prompt", "hell", "--max-new", "3"),
    ("chat", "generating.yaml", *SMALL, "--device", "cpu", "--weights", "c", "--positions", "128", "--max-new", "2"),
    ("train", "learning.yaml", *SMALL, "--device", "cpu", "--weights", "random:1", "--tokens", "ts.json", "--steps", "2", "--lr", "1e-3"),
    (
        "train",
        "learning.yaml",
        *SMALL[2:],
        "--budget",
        "9KiB",
        "--weights",
        "m",
        "--data",
        "text",
        "--seq",
        "3",
        "--steps",
        "1",
        "--recompute",
        "all",
    ),
    ("verify", "plan.json", "--graph", "trace.json"),
    ("verify", "set.json", "--spec", "generating.yaml"),
    ("pack", "buffers.csv", "--capacity", "1KiB", "--seconds", "1"),
    ("machine", "cpu", "--json"),
)
OUTPUTS = ("--out", "--timeline", "--logits", "--trace")
"""The flags that name a file to write."""
FOLDER_OF_A_TRAINING = ("checkpoint.safetensors", "model.safetensors", "trained.safetensors")
NEW = (
    "out.json",
    "out.html",
    "out.svg",
    "out",
    "é𝔸.json",
    "folder/out.json",
    "-",
    ".",
    "",
    "no/such/out.json",
    "a" * 300,
    "out\n.json",
    "\x00",
)
SIZES = (
    *(
        "64KiB",
        "1MiB",
        "9000",
        "1",
        "0",
        "-1",
        "8GiB",
        "1.5GB",
        "1e400",
        "nan",
        "inf",
        "9" * 30,
        "9" * 5000,
        "1e3",
        "64 KiB",
        "64kib",
        "0x10",
    ),
    *("", " ", "KiB", "１２", "1_000", "1e-9", "--", "1TiB/s"),
)
VALUES: Mapping[str, Sequence[str]] = {
    "--budget": SIZES,
    **dict.fromkeys(("--host-budget", "--limit"), SIZES),
    **dict.fromkeys(
        ("--batch", "--seq", "--micro-batches", "--steps", "--warmup", "--checkpoint-every"),
        ("1", "2", "0", "-1", "1e9", "9" * 30, "", "x"),
    ),
    **dict.fromkeys(("--lr", "--weight-decay"), ("1e-3", "0", "-1", "1e400", "nan", "inf", "", "x")),
    "--loss-scale": (
        "dynamic",
        "none",
        "128",
        "interval=2",
        "growth=2,backoff=0.5",
        "0",
        "-1",
        "nan",
        "inf",
        "interval=0",
        "interval=",
        "",
        "x",
    ),
    "--data": ("x.json", "m", "spec.yaml", "", "no/such", "-", "/dev/null"),
    "--capacity": ("1KiB", "100", *SIZES),
    "--device-bytes": SIZES,
    "--h2d": ("1GB/s", "1", "0", "-1GB/s", "1e400", "nan", "GB/s", "1 GB/s", "9" * 400, "1MiB", "1e-300"),
    "--d2h": ("1GB/s", "12GB/s", "inf", "0x1", "-0", "1e300", ""),
    "--set": (
        "rows=2",
        "width=8",
        "seq=2",
        "rows=0",
        "rows=-1",
        "rows=1e9",
        "rows=" + "9" * 30,
        "rows",
        "=",
        "rows=",
        "=2",
        "rows=rows",
        "q=1",
    ),
    "--weights": (
        "random:1",
        "random:",
        "random:-1",
        "random:1e9",
        "random:" + "9" * 30,
        "random",
        "m",
        "m/model.safetensors",
        "x.json",
        "",
        "~",
    ),
    "--outputs": ("y", "logits", "y,logits", "y,y", ",", "", "Y", "y, ", "x", "é"),
    "--split": ("r=2", "v=4", "r=0", "r=-1", "r=10000000000", "r", "=", "r=2,r=3", "q=2", "r=1.5", "", "r=2,", "i=2"),
    "--no-fuse": ("attention", "", "epilogue", "attention,attention", "all"),
    "--machine": ("cpu", "h100", "nope", "", "./m.yaml", "spec.yaml", "../", "/dev/null", "h10"),
    "--sweep": (
        "budget=8KiB:64KiB:3",
        "seq=1:4",
        "rows=1:3:2",
        "budget=1:2:99999999",
        "seq=4:1",
        "seq",
        "seq=::",
        "budget=0:0",
        "q=1:2",
        "",
    ),
    "--graph": ("trace.json", "spec.yaml", "plan.json", "no.json", "", ".", "/dev/null"),
    "--spec": ("spec.yaml", "language.yaml", "mlp", "nope", "", "."),
    "--input": ("x=x.json", "n=x.json", "x=", "=x.json", "x", "", "q=x.json", "x=no.npy", "x=.", "tokens=t.json"),
    "--tokens": ("t.json", "x.json", "no.json", "", ".", "-", "spec.yaml"),
    "--prompt": ("hell", "", "é", "@spec.yaml", "@no", "@", "@@x", "-", "h" * 5000, "\x00", "\udcff", "@."),
    "--prompt-text": ("hell", "", "@spec.yaml", "𝔸"),
    "--passes": ("1", "2", "3", "0", "-1", "9" * 30, "x", "1.5", "1e3"),
    "--threads": ("1", "2", "0", "-1", "x", "", "9" * 30, "1000000"),
    "--seconds": ("0.1", "0", "-1", "nan", "inf", "1e400", "x"),
    "--seed": ("0", "1", "-1", "9" * 30, "x"),
    "--plan-seconds": ("0", "0.1", "1e-9", "-1", "nan", "inf", "x"),
    "--plan-steps": ("0", "1", "50", "-1", "1e3", "x"),
    "--generate": ("9", "5", "4", "1", "0", "-1", "9" * 30, "x", "1e3"),
    "--plan": ("set.json", "plan.json", "no.json", "", ".", "spec.yaml"),
    "--system": ("be brief", "", "é", "\udcff", "x" * 5000),
    "--positions": ("128", "200", "127", "0", "-1", "9" * 30, "x", "1e3"),
    "--lookup": ("0", "1", "4", "-1", "65", "9" * 30, "x"),
    "--max-new": ("1", "2", "5", "0", "-1", "9" * 30, "x", "1.5"),
    "--temperature": ("0", "0.5", "1", "-1", "nan", "inf", "1e-300", "1e300", "x"),
    "--top-k": ("0", "1", "40", "-1", "9" * 30, "x"),
    "--top-p": ("0.9", "1", "0", "1e-9", "1.1", "nan", "x"),
    "--min-p": ("0", "0.1", "1", "2", "nan", "x"),
    "--repetition-penalty": ("1", "1.3", "0.5", "0", "-1", "inf", "x"),
    "--stop": ("e", "", "é", "\n", "hell" * 100),
}
FILES = (
    "spec.yaml",
    "language.yaml",
    "trace.json",
    "plan.json",
    "set.json",
    "x.json",
    "t.json",
    "buffers.csv",
    "m",
    "no.yaml",
    "",
    ".",
    "mlp",
    "llama",
    "-",
)
ODD = (
    "--",
    "-",
    "--no-such-flag",
    "-h",
    "--help",
    "--version",
    "-x",
    "--=",
    "--json=1",
    "--jso",
    "--budget=",
    "extra",
    "é",
    "\x00",
    "@spec.yaml",
    "a\nb",
)


@cache
def files() -> Mapping[str, bytes]:
    return {
        "spec.yaml": SPEC,
        "language.yaml": LANGUAGE,
        "generating.yaml": GENERATING,
        "learning.yaml": LEARNING,
        "trace.json": json.dumps(TRACE).encode(),
        "plan.json": planned(),
        "x.json": json.dumps([[1.0] * 4] * 3).encode(),
        "t.json": b"[1, 2, 3, 299]",
        "ts.json": b"[[1, 2, 3, 299], [4, 5], [7]]",
        "text": b"hello hell",
        "buffers.csv": b"id,lower,upper,size\na,0,3,10\nb,1,4,20\nc,3,9,30\n",
        "set.json": planned_set(),
        **small_language(),
        **{name.replace("m/", "c/"): content for name, content in small_language().items()},
        "c/tokenizer_config.json": json.dumps({"chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}"}).encode(),
        "folder/kept": b"",
    }


@cache
def grammar() -> Mapping[str, Sequence[argparse.Action]]:
    """The actions of each command, as the parser has them."""
    (commands,) = (a for a in parser()._actions if isinstance(a, argparse._SubParsersAction))
    return {name: [a for a in p._actions if a.option_strings] for name, p in commands.choices.items()}


def command_lines() -> Sequence[Case]:
    return tuple(with_outputs(argv) for argv in CASES)


def with_outputs(argv: Sequence[str]) -> Case:
    """The case, which may write what the flags of OUTPUTS name; a unique beginning of a flag names it too."""
    named = [name for name in named_outputs(argv) if name]
    kept = [posixpath.join(name, file) for name in named for file in FOLDER_OF_A_TRAINING if "train" in argv]
    return Case(tuple(argv), files(), tuple(map(posixpath.normpath, (*named, *kept))))


def named_outputs(argv: Sequence[str]) -> Iterator[str]:
    for at, word in enumerate(argv):
        flag, equals, value = word.partition("=")
        if len(flag) > 2 and any(out.startswith(flag) for out in OUTPUTS):
            yield from (value,) if equals else argv[at + 1 : at + 2]


def change(random: Random, case: Case) -> Case:
    """Words added to the command line, left out, doubled, exchanged; flags with values that are good, odd and absurd."""
    argv = list(case.argv)
    for _ in range(random.choice((1, 1, 2, 2, 3, 5))):
        command = argv[0] if argv and argv[0] in grammar() else random.choice(list(grammar()))
        if random.random() < 0.05:
            command = random.choice(list(grammar()))
        at = random.randint(1, max(1, len(argv)))
        match random.randrange(10):
            case 0 if argv:
                del argv[random.randrange(len(argv))]
            case 1 if len(argv) > 1:
                i, j = random.randrange(len(argv)), random.randrange(len(argv))
                argv[i], argv[j] = argv[j], argv[i]
            case 2 if argv:
                i = random.randrange(len(argv))
                argv[i:i] = argv[i : i + random.choice((1, 2))]
            case 3:
                argv.insert(at, random.choice(ODD))
            case 4 if len(argv) > 1:
                argv[random.randrange(random.choice((0, 1)), len(argv))] = random.choice((*FILES, *SIZES, *NEW))
            case _:
                argv[at:at] = flag_and_value(random, random.choice(grammar()[command]))
    return with_outputs(argv)


def flag_and_value(random: Random, action: argparse.Action) -> list[str]:
    """A flag, in full or its beginning, and what should follow it, more or less."""
    full = action.option_strings[-1]
    flag = full if random.random() < 0.9 else full[: random.randint(3, len(full))]
    if full == "--measure" and random.random() < 0.9:  # it takes seconds
        return []
    if action.nargs == 0:
        return [flag]
    known = [str(choice) for choice in action.choices] if action.choices is not None else []
    known += ["9" * 400, "1000000000"] if action.type is int else []
    value = random.choice(
        (*VALUES.get(full, ()), *known, *(NEW if full in OUTPUTS else ()), *(("", "é") if random.random() < 0.1 else ())) or ("",)
    )
    return [f"{flag}={value}"] if random.random() < 0.25 or value.startswith("-") else [flag, value]


COMMAND_LINES = Fuzzer(command_lines, change)


def test_every_flag_that_takes_a_value_has_values_to_try() -> None:
    flags = {a.option_strings[-1]: a for actions in grammar().values() for a in actions if a.nargs != 0 and a.choices is None}
    assert set(flags) == {*VALUES, *OUTPUTS}


@pytest.mark.timeout(1800)
def test_any_command_line_is_right_or_refused() -> None:
    assert_right_or_refused("test_fuzz_command_lines:COMMAND_LINES", 5, seed=0)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_many_command_lines_are_right_or_refused() -> None:
    assert_right_or_refused("test_fuzz_command_lines:COMMAND_LINES", 60, seed=1)
