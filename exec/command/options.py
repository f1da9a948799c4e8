"""Options from their text to values: `--set`, `--outputs`, `--split`, `--no-fuse`, the request of a plan, prompts."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from einpage.einsum_front.algebra.expr import Letter
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.base.errors import UsageError
from einpage.einsum_front.base.files import write_atomically
from einpage.einsum_front.base.units import parse_bytes, whole_number
from einpage.einsum_front.graph.program import WeightsAs
from einpage.exec.picture.timeline import NodeTimes
from einpage.exec.picture.timeline_html import render_html
from einpage.exec.picture.timeline_svg import render_svg
from einpage.exec.planning.judged_plan import Planned
from einpage.exec.planning.request import PlanRequest
from einpage.memplan.bounds.bounds import Effort
from einpage.memplan.horizons.recompute import Recompute
from einpage.memplan.schedule.static_plans import Policy

DTYPE = DType.FP32.value
"""Of a plan or run of a spec, by default."""
SPEC_SECONDS, TRACE_SECONDS = 5.0, 10.0
"""For how long a better plan is searched for, unasked."""
LONGEST_PROMPT_BYTES = 16 << 20
"""Of a file or stdin: beyond any model's context, and no file that never ends fills the memory."""


@dataclass(frozen=True, slots=True)
class PromptArgument:
    """What `--prompt` or `--prompt-text` was given."""

    text: str
    literal: bool
    """True: the text is the prompt. False: `@FILE` and `-` say where the prompt is, `@@` begins a prompt with one @."""


def settings_of(texts: Sequence[str]) -> dict[str, str]:
    """Values by name, from texts `K=V`. Raises UsageError for one without a value, or given twice."""
    out: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name.strip() and equals and value.strip()):
            raise UsageError(f"--set {text}: write a name and a value, as in --set seq=512")
        if name.strip() in out:
            raise UsageError(f"--set {name.strip()} is given twice")
        out[name.strip()] = value.strip()
    return out


def names_of(text: str | None) -> tuple[str, ...]:
    """`logits,all_logits` as names; none where nothing was given. Raises UsageError for an empty name."""
    if text is None:
        return ()
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise UsageError(f"--outputs {text}: write names of outputs, as in --outputs logits,all_logits")
    return names


def pieces_of(text: str | None) -> dict[Letter, int]:
    """`f=4,v=16` as pieces by letter. Raises UsageError for another form, or a letter given twice."""
    out: dict[Letter, int] = {}
    for fixed in text.split(",") if text else ():
        letter, _, n = fixed.partition("=")
        if not (letter.strip() and (pieces := whole_number(n))):
            raise UsageError(f"--split {text}: write letters and numbers of pieces, as in --split f=4,v=16")
        if letter.strip() in out:
            raise UsageError(f"--split {text}: {letter.strip()} is given twice")
        out[Letter(letter.strip())] = pieces
    return out


def no_fuse_of(text: str | None) -> tuple[str, ...]:
    """`attention` as the names of fusions that are not wanted; whether there are such is for the fuser to say."""
    return () if text is None else tuple(name.strip() for name in text.split(","))


def files_read(a: argparse.Namespace) -> list[str]:
    """What a command reads, as its arguments name it: files and folders."""
    given = vars(a)
    single = [given.get(word) for word in ("spec", "graph", "machine", "weights", "tokens", "data", "file", "plan")]
    inputs = [assignment.partition("=")[2] for assignment in given.get("input") or ()]
    prompts = [p.text[1:] for p in given.get("prompt") or () if not p.literal and p.text.startswith("@")]
    return [text for text in (*single, *inputs, *prompts) if text]


def search_seconds(a: argparse.Namespace) -> float:
    """For how long a better plan is searched for; unasked not for warm and static plans, nor for the many of a sweep."""
    if a.plan_seconds is not None:
        return float(a.plan_seconds)
    if (
        a.plan_steps is not None
        or vars(a).get("generate")
        or "max_new" in vars(a)
        or "checkpoint_every" in vars(a)
        or a.policy != Policy.AUTO.value
        or a.warm
        or vars(a).get("sweep")
    ):
        return 0.0
    return TRACE_SECONDS if vars(a).get("graph") else SPEC_SECONDS


def weights_as_of(word: str | None, takes_blocks: bool) -> WeightsAs:
    """What --weights-as says, or what is right without it, on a device whose kernels unpack blocks of stored weights or do not. Raises
    UsageError for what the device cannot do."""
    if word is None:
        return WeightsAs.QUANTISED if takes_blocks else WeightsAs.RUN
    found = WeightsAs(word)
    if found is not WeightsAs.RUN and not takes_blocks:
        if found is WeightsAs.QUANTISED:
            raise UsageError(
                "this plan keeps weights as they are stored, and Triton's kernels read numbers: say --device cpu, or plan for a GPU"
            )
        raise UsageError(f"--weights-as {word}: Triton's kernels read numbers; say --weights-as run, or --device cpu")
    return found


def request_of(a: argparse.Namespace, budget_bytes: int, takes_blocks: bool = True) -> PlanRequest:
    """The plan that `plan` and `run` ask for, for a device as weights_as_of has it. Raises UsageError for options that exclude each
    other."""
    return PlanRequest(
        budget_bytes=budget_bytes,
        host_budget_bytes=None if a.host_budget is None else parse_bytes(a.host_budget, "--host-budget"),
        dtype=DType(a.dtype or DTYPE),
        outputs=names_of(a.outputs),
        pieces=pieces_of(a.split),
        weights_as=weights_as_of(a.weights_as, takes_blocks),
        no_fuse=no_fuse_of(a.no_fuse),
        plan_seconds=search_seconds(a),
        plan_steps=a.plan_steps,
        plan_worth=a.plan_worth,
        policy=Policy(a.policy),
        warm=a.warm,
        passes=a.passes,
        free_order=a.free_order,
        recompute=Recompute(a.recompute),
        bound_effort=Effort(a.bounds),
    )


def argument_text(text: str) -> str:
    """An argument of the command line that is a text: under a locale of ASCII alone its bytes are UTF-8 all the same. Bytes that are not
    stay surrogates. (Of a file's name nothing is to be changed: surrogates are how it is opened.)"""
    if not any("\udc80" <= c <= "\udcff" for c in text):
        return text
    try:
        return os.fsencode(text).decode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # no argument of a process
        return text


def prompt_texts(given: Sequence[PromptArgument]) -> list[str]:
    """The prompts themselves: files and stdin are read.

    Raises UsageError for what cannot be read, is no UTF-8 or empty, and for a second `-`: there is one stdin.
    """
    if sum(prompt.text == "-" and not prompt.literal for prompt in given) > 1:
        raise UsageError("--prompt - is given twice, and there is one stdin; use --prompt @FILE for the other")
    return [_prompt_text(prompt) for prompt in given]


def _prompt_text(prompt: PromptArgument) -> str:
    if prompt.literal or not (prompt.text == "-" or prompt.text.startswith("@")):
        return argument_text(prompt.text)
    if prompt.text.startswith("@@"):
        return argument_text(prompt.text[1:])
    origin = f"--prompt {prompt.text}"
    if prompt.text == "@":
        raise UsageError(f"{origin}: write a file's name after the @, or --prompt-text @ for the text itself")
    try:
        raw = _stdin_bytes() if prompt.text == "-" else _file_bytes(prompt.text[1:])
    except OSError as error:
        cure = "" if prompt.text == "-" else f"; for the text itself write --prompt @{prompt.text}"
        raise UsageError(f"{origin}: cannot be read: {error.strerror or error}{cure}") from error
    if len(raw) > LONGEST_PROMPT_BYTES:
        raise UsageError(f"{origin}: longer than {LONGEST_PROMPT_BYTES} bytes, more than a model takes; give a part of it")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        where = f"byte {raw[error.start]:#04x} at offset {error.start}"
        raise UsageError(f"{origin}: not UTF-8: {where}; convert it, as with iconv") from error
    text = text.removesuffix("\r\n") if text.endswith("\r\n") else text.removesuffix("\n")
    if not text:
        raise UsageError(f"{origin}: empty; a model needs at least one token")
    return text


def _file_bytes(path: str) -> bytes:
    with Path(path).open("rb") as file:
        return file.read(LONGEST_PROMPT_BYTES + 1)


def _stdin_bytes() -> bytes:
    if sys.stdin is None:
        raise OSError("stdin is closed")
    if sys.stdin.isatty():
        print("einpage: reading the prompt from this terminal; end it with Ctrl-D", file=sys.stderr)
    return sys.stdin.buffer.read(LONGEST_PROMPT_BYTES + 1)


def write_timeline(path: Path, planned: Planned, figures: Mapping[str, object], measured: NodeTimes | None = None) -> None:
    """The picture of a plan, as HTML with its figures or, where the name ends so, as SVG."""
    if path.suffix == ".svg":
        write_atomically(path, render_svg(planned.memgraph, planned.timeline, measured))
    else:
        write_atomically(path, render_html(planned.memgraph, planned.timeline, measured, figures))
