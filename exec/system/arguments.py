"""Arguments of the Python API: of which kind each one is, under the name that it has wherever it occurs.

In: arguments by name. Out: nothing, or a UsageError that names the argument, what was given and what it takes. Ranges, and which words
there are, is for those to say who use the values.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from os import PathLike

from einpage.einsum_front.base.errors import UsageError
from einpage.einsum_front.base.units import shown
from einpage.memplan.machine.machine import Machine

_MOST_BITS = 256
"""Of a whole number in a spec."""


@dataclass(frozen=True, slots=True)
class _Expected:
    text: str
    """For messages."""
    has: Callable[[object], bool]


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_path(value: object) -> bool:
    return isinstance(value, str | PathLike)


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _is_whole(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _is_setting(value: object) -> bool:
    """Text, or a number that can be written as text."""
    return _is_text(value) or (_is_number(value) and not (isinstance(value, int) and value.bit_length() > _MOST_BITS))


def _is_truth(value: object) -> bool:
    return isinstance(value, bool)


def _are_texts(value: object) -> bool:
    return isinstance(value, list | tuple) and all(map(_is_text, value))


def _by_name(has: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: isinstance(value, Mapping) and all(map(_is_text, value)) and all(map(has, value.values()))


_NUMBER, _WHOLE, _TRUTH, _TEXT = (
    _Expected("a number", _is_number),
    _Expected("a whole number", _is_whole),
    _Expected("True or False", _is_truth),
    _Expected("a word", _is_text),
)
_EXPECTED_BY_ARGUMENT: Mapping[str, _Expected] = {
    "spec": _Expected("a file, or the name of a spec that ships", _is_path),
    "weights": _Expected("a path, or random:SEED", _is_path),
    "set": _Expected("numbers or expressions by name, as {'seq': 512}", _by_name(_is_setting)),
    "host_budget": _Expected("a whole number of bytes, or text such as '48MiB'", lambda value: _is_text(value) or _is_whole(value)),
    "budget": _Expected("a whole number of bytes, or text such as '8GiB'", lambda value: _is_text(value) or _is_whole(value)),
    "machine": _Expected("the name of a profile, a file, or a Machine", lambda value: _is_path(value) or isinstance(value, Machine)),
    "dtype": _TEXT,
    "device": _TEXT,
    "dispatch": _TEXT,
    "weights_as": _TEXT,
    "outputs": _Expected("a list of names", _are_texts),
    "no_fuse": _Expected("a list of names", _are_texts),
    "split": _Expected("numbers of pieces by letter, as {'f': 4}", _by_name(_is_whole)),
    "plan_seconds": _NUMBER,
    "plan_steps": _WHOLE,
    "passes": _WHOLE,
    "warm": _TRUTH,
    "perplexity": _TRUTH,
    "find_nan": _TRUTH,
    "steps": _WHOLE,
    "data": _Expected("a text", _is_text),
    "lr": _NUMBER,
    "weight_decay": _NUMBER,
    "schedule": _TEXT,
    "loss_scale": _TEXT,
    "recompute": _TEXT,
    "warmup": _WHOLE,
    "batch": _WHOLE,
    "seq": _WHOLE,
    "micro_batches": _WHOLE,
    "out": _Expected("a folder", _is_path),
    "checkpoint_every": _WHOLE,
    "resume": _TRUTH,
    "max_new": _WHOLE,
    "temperature": _NUMBER,
    "top_k": _WHOLE,
    "top_p": _NUMBER,
    "min_p": _NUMBER,
    "repetition_penalty": _NUMBER,
    "seed": _WHOLE,
    "stop": _Expected("a text, or a list of texts", lambda value: _is_text(value) or _are_texts(value)),
}


def check_arguments(value_by_argument: Mapping[str, object], optional: Collection[str] = ()) -> None:
    """Raises UsageError for the first that is of another kind than its name says; those that are `optional` may be None."""
    for name, value in value_by_argument.items():
        what = _EXPECTED_BY_ARGUMENT[name]
        if not (what.has(value) or (value is None and name in optional)):
            raise UsageError(f"{name} is {shown(value)}, expected {what.text}")
