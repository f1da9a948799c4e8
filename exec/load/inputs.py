"""What the user gives a run: token ids (from a file, or from prompts) and named arrays, checked against the program's
inputs.

In: files and texts. Out: the sizes they imply (`batch`, `seq`), and one numpy array for every input. Ragged token
lists are padded on the right; their true lengths go to the input named `lengths`, without which padding would change
the answers and is refused.
"""

from __future__ import annotations

import tokenize
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from os.path import exists, isdir, isfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from einpage.checkpoints.files.checkpoint import rows_and_columns
from einpage.checkpoints.files.safetensors import open_safetensors
from einpage.checkpoints.text.tokenizer import Tokenizer
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.base.errors import EinpageError, UsageError
from einpage.einsum_front.base.files import not_regular, read_bytes
from einpage.einsum_front.base.json_text import JsonError, JsonTooLarge, parsed
from einpage.einsum_front.base.units import shown
from einpage.einsum_front.graph.program import Input, Program

TOKENS, LENGTHS = "tokens", "lengths"
"""Names of the inputs that token lists and their lengths go to."""
_LARGEST_ID = 2**31 - 1
_MOST_JSON = 256 << 20
"""Bytes of a JSON file."""
_MOST_AXES, _MOST_HEADER = 32, 1 << 16
_MOST_TOLD = 300
"""Characters of what a library says of a file."""
_NPY = b"\x93NUMPY"


class InputError(UsageError):
    """An input that is missing, unknown, of the wrong shape or type, or too long."""


@dataclass(frozen=True, slots=True)
class TokenLists:
    """One or several sequences of token ids, none empty."""

    lists: tuple[tuple[int, ...], ...]
    origin: str
    """For messages: `--tokens FILE` or `the prompt`."""
    encoded: bool = False
    """Whether a tokenizer made them of text."""

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence."""
        return max(map(len, self.lists))


def read_tokens(path: str) -> TokenLists:
    """A JSON list of ids, or a list of such lists. Raises InputError."""
    origin = f"--tokens {path}"
    return token_lists(_read_json(Path(path), origin), origin)


def token_lists(found: object, origin: str) -> TokenLists:
    """`found` as token lists: a list of ids, or a list of such lists. Raises InputError, which begins with `origin`."""
    if not isinstance(found, list) or not found:
        raise InputError(f"{origin}: expected a list of token ids, or a list of such lists")
    lists = found if all(isinstance(row, list) for row in found) else [found]
    for row in lists:
        if not row:
            raise InputError(f"{origin}: list {lists.index(row)} is empty")
        for at, token in enumerate(row):
            if type(token) is not int or not 0 <= token <= _LARGEST_ID:
                raise InputError(f"{origin}: element {at} of list {lists.index(row)} is {str(token)[:40]!r}, not a token id")
    return TokenLists(tuple(tuple(row) for row in lists), origin)


def encode_prompts(tokenizer: Tokenizer, prompts: Sequence[str]) -> TokenLists:
    """The ids of one or several prompts. Raises InputError for a prompt without a token, and for one that is no Unicode text."""
    origin = "the prompt" if len(prompts) == 1 else "the prompts"
    for prompt in prompts:
        refuse_surrogates(prompt, origin)
    lists = tuple(tuple(tokenizer.encode(prompt)) for prompt in prompts)
    if not lists or not all(lists):
        raise InputError(f"{origin}: empty; a model needs at least one token")
    return TokenLists(lists, origin, encoded=True)


def refuse_surrogates(text: str, origin: str) -> None:
    """Raises InputError for lone surrogates: those that stand for bytes of the command line that are no UTF-8, and any other."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        code = ord(text[error.start])
        if 0xDC80 <= code <= 0xDCFF:
            raise InputError(f"{origin}: not UTF-8: byte {code - 0xDC00:#04x} after {error.start} characters; convert the text") from error
        raise InputError(f"{origin}: U+{code:04X} after {error.start} characters is half of a surrogate pair, no character") from error


def token_sizes(tokens: TokenLists, fixed: Mapping[str, int | float]) -> dict[str, int]:
    """`batch` and `seq` as the tokens have them, less those already `fixed` by the user.

    Raises InputError where a fixed `seq` is too short or a fixed `batch` is another number of sequences.
    """
    seq, batch = fixed.get("seq", tokens.longest), fixed.get("batch", len(tokens.lists))
    if tokens.longest > seq:
        cure = f"set seq={tokens.longest}, leave it out, or shorten the text"
        raise InputError(f"{tokens.origin}: {tokens.longest} tokens, but seq is set to {seq}; {cure}")
    if len(tokens.lists) != batch:
        raise InputError(f"{tokens.origin}: {len(tokens.lists)} sequences, but batch is set to {batch}; leave batch out, and it follows")
    implied = {"batch": len(tokens.lists), "seq": tokens.longest}
    return {name: n for name, n in implied.items() if name not in fixed}


def read_input(assignment: str) -> tuple[str, NDArray[Any]]:
    """`NAME=FILE`, a .json, .npy or .safetensors file (with one tensor, or one called NAME). Raises InputError."""
    name, equals, file = assignment.partition("=")
    origin = f"--input {assignment}"
    if not (name and equals and file):
        raise InputError(f"{origin}: expected NAME=FILE")
    path = Path(file)
    match path.suffix:
        case ".npy" | ".safetensors":
            if exists(path) and not isfile(path):
                raise InputError(f"{origin}: {not_regular(path)}")
            return name, _read_binary(path, name, origin)
        case suffix if suffix == ".json" or (exists(path) and not isfile(path) and not isdir(path)):  # from a pipe comes JSON
            return name, _array(_read_json(path, origin), origin)
    raise InputError(f"{origin}: expected a .json, .npy or .safetensors file")


def bind_inputs(program: Program, tokens: TokenLists | None, named: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """One contiguous array for each input of the program, in its shape: int32, int64, or float32 for a float of any kind.

    Raises InputError for a name the program does not have, an input that is not given, a wrong shape, or numbers of the wrong kind.
    """
    given = dict(named)
    if tokens is not None:
        given |= _bind_tokens(program, tokens, named)
    names = [i.name for i in program.inputs]
    unknown = [name for name in given if name not in names]
    if unknown:
        raise InputError(f"no input called {', '.join(unknown)}; {program.path} has {', '.join(names) or 'none'}")
    missing = [i for i in program.inputs if i.name not in given and i.default is None]
    if missing:
        wanted = ", ".join(f"{i.name}{list(i.shape)}" for i in missing)
        cure = "--prompt, --tokens FILE or --input" if any(i.name == TOKENS for i in missing) else "--input"
        raise InputError(f"not given: {wanted}; use {cure} NAME=FILE")
    return {i.name: _checked(i, given[i.name]) if i.name in given else _defaulted(i) for i in program.inputs}


def refuse_ids_outside(target: Input, tokens: TokenLists) -> None:
    """Raises InputError where a tokenizer gave ids outside the range of the input that they go to: it is another model's."""
    if target.range is None or not tokens.encoded:
        return
    low, high = target.range
    places = [(n, at) for n, row in enumerate(tokens.lists) for at, token in enumerate(row) if not low <= token <= high]
    if places:
        (n, at), more = places[0], f", and {len(places) - 1} more are" if len(places) > 1 else ""
        where = f"{tokens.origin}: token {at}" + (f" of prompt {n}" if len(tokens.lists) > 1 else "")
        cure = "the tokenizer is not this model's: put the model's own beside its weights"
        raise InputError(f"{where} is {tokens.lists[n][at]}, outside {low} .. {high}, what `{target.name}` may be{more}; {cure}")


def _bind_tokens(program: Program, tokens: TokenLists, named: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    input_by_name = {i.name: i for i in program.inputs}
    target = input_by_name.get(TOKENS)
    if target is None or len(target.shape) != 2:
        there = ", ".join(f"{i.name}{list(i.shape)}" for i in program.inputs) or "none"
        raise InputError(f"{tokens.origin}: {program.path} has no input `{TOKENS}` of two axes to give them to; its inputs: {there}")
    if TOKENS in named:
        raise InputError(f"`{TOKENS}` is given twice: by {tokens.origin} and by --input")
    rows, columns = target.shape
    if len(tokens.lists) != rows or tokens.longest > columns:
        raise InputError(
            f"{tokens.origin}: {len(tokens.lists)} sequences of up to {tokens.longest} tokens do not fit `{TOKENS}` {list(target.shape)}"
        )
    refuse_ids_outside(target, tokens)
    lengths = np.array([len(row) for row in tokens.lists], np.int64)
    padded = np.zeros(target.shape, np.int64)
    for i, row in enumerate(tokens.lists):
        padded[i, : len(row)] = row
    if LENGTHS in input_by_name:
        return {TOKENS: padded} if LENGTHS in named else {TOKENS: padded, LENGTHS: lengths}
    if (lengths < columns).any():
        found = ", ".join(map(str, lengths))
        raise InputError(
            f"{tokens.origin}: {found} tokens would be padded to {columns}, and {program.path} has no input `{LENGTHS}` to say so; "
            "give sequences of equal length and leave seq unset"
        )
    return {TOKENS: padded}


def _checked(target: Input, array: NDArray[Any]) -> NDArray[Any]:
    if array.shape != target.shape:
        axes = ", ".join(target.letters)
        raise InputError(f"input {target.name}[{axes}] has shape {list(array.shape)}, expected {list(target.shape)}")
    wanted = _numpy_dtype(target)
    if wanted.kind == "i":
        if array.dtype.kind not in "iu":
            raise InputError(f"input {target.name} is {array.dtype}, expected whole numbers ({wanted})")
        limits = np.iinfo(wanted)
        if array.size and (int(array.min()) < limits.min or int(array.max()) > limits.max):
            raise InputError(f"input {target.name} has values from {array.min()} to {array.max()}, beyond {wanted}")
        if target.range is not None:
            _refuse_outside(target, array, *target.range)
    elif array.dtype.kind not in "fiu":
        raise InputError(f"input {target.name} is {array.dtype}, expected numbers")
    return _cast(target.name, array, wanted)


def _refuse_outside(target: Input, array: NDArray[Any], low: int, high: int) -> None:
    """Raises InputError for a whole number that is outside the input's range: the first, and how many more."""
    outside = np.argwhere((array < low) | (array > high))
    if len(outside):
        first = tuple(int(n) for n in outside[0])
        where = f"{target.name}[{', '.join(map(str, first))}]" if first else target.name
        more = f", and {len(outside) - 1} more are" if len(outside) > 1 else ""
        raise InputError(f"input {where} is {int(array[first])}, outside its range{more}; give whole numbers from {low} to {high}")


def _cast(name: str, array: NDArray[Any], wanted: np.dtype[Any]) -> NDArray[Any]:
    with np.errstate(over="ignore"):
        found = np.asarray(array, wanted, order="C")
    if wanted.kind == "f":
        refuse_beyond(name, array, np.isinf(found), wanted.name, float(np.finfo(wanted).max))
    return found


def refuse_beyond(name: str, given: NDArray[Any], infinite: NDArray[np.bool_], dtype: str, most: float) -> None:
    """Raises InputError where a finite number that was given is infinite in the dtype it gets, whose largest number is `most`."""
    beyond = infinite & np.isfinite(given)
    if beyond.any():
        first = tuple(int(n) for n in np.argwhere(beyond)[0])
        raise InputError(f"input {name} has {given[first]:g} at {list(first)}, beyond {dtype}, whose largest number is {most:.4g}")


def _defaulted(target: Input) -> NDArray[Any]:
    assert target.default is not None
    return np.full(target.shape, target.default, _numpy_dtype(target))


def _numpy_dtype(target: Input) -> np.dtype[Any]:
    match target.dtype:
        case DType.INT32:
            return np.dtype(np.int32)
        case DType.INT64:
            return np.dtype(np.int64)
        case _:
            return np.dtype(np.float32)


def _read_json(path: Path, origin: str) -> object:
    try:
        return parsed(read_bytes(path, _MOST_JSON))
    except JsonTooLarge as error:
        cure = "give several files" if origin.startswith("--tokens") else "give a .npy or .safetensors file"
        raise InputError(f"{origin}: {error}; {cure}") from error
    except JsonError as error:
        raise InputError(f"{origin}: not JSON: {error}") from error
    except (OSError, ValueError) as error:
        raise InputError(f"{origin}: cannot be read: {getattr(error, 'strerror', None) or error}") from error


def _array(value: object, origin: str) -> NDArray[Any]:
    try:
        array: NDArray[Any] = np.array(value)
    except (ValueError, OverflowError) as error:
        raise InputError(f"{origin}: rows of different lengths, or numbers out of range") from error
    if array.dtype.kind not in "iuf" or holds_truth(value):
        raise InputError(f"{origin}: expected numbers, or nested lists of them in equal lengths")
    return array


def holds_truth(value: object) -> bool:
    """Whether true or false is among nested lists of numbers: numpy takes them for 1 and 0 there."""
    return isinstance(value, bool) or (isinstance(value, list | tuple) and any(map(holds_truth, value)))


def _read_binary(path: Path, name: str, origin: str) -> NDArray[Any]:
    try:
        if path.suffix == ".npy":
            return _read_npy(path)
        return _read_safetensors(path, name)
    except OSError as error:
        raise InputError(f"{origin}: cannot be read: {error.strerror or error}") from error
    except (ValueError, EOFError, TypeError, SyntaxError, OverflowError, RecursionError, tokenize.TokenError) as error:
        told = " ".join(str(error).split())[:_MOST_TOLD]
        raise InputError(f"{origin}: not a readable {path.suffix} file: {told}") from error
    except EinpageError as error:
        raise InputError(f"{origin}: {error}") from error


def _read_npy(path: Path) -> NDArray[Any]:
    """The array in a .npy file of version 1 or 2. What its header claims is held against the file's length before it is believed."""
    with path.open("rb") as file:
        start = file.read(len(_NPY))
        if start != _NPY:
            kind = "a .npz archive" if start[:2] == b"PK" else "a pickle, or something else"
            raise ValueError(f"it does not begin as one: it is {kind}; write it with numpy.save")
        version = tuple(file.read(2))
        if version not in ((1, 0), (2, 0)):
            raise ValueError(f"it is of version {'.'.join(map(str, version)) or 'none'}, which no array of numbers needs")
        length = int.from_bytes(file.read(2 if version == (1, 0) else 4), "little")
        if length > _MOST_HEADER:
            raise ValueError(f"its header claims {length} bytes")
        file.seek(len(_NPY) + len(version))
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        try:
            with warnings.catch_warnings(action="ignore"):  # that Python 2 wrote it, and reading takes longer
                shape, by_columns, dtype = read(file)  # type: ignore[no-untyped-call]
        except (ValueError, TypeError, SyntaxError, RecursionError, tokenize.TokenError) as error:
            raise ValueError("its header does not describe an array; write it again with numpy.save") from error
        if dtype.kind not in "iuf" or dtype.hasobject:
            raise ValueError(f"it holds {dtype}, expected numbers")
        if any(type(n) is not int or n < 0 for n in shape) or len(shape) > _MOST_AXES:
            raise ValueError(f"it claims the shape {shown(shape)}")
        claimed, there = prod(shape) * dtype.itemsize, path.stat().st_size - file.tell()
        if claimed != there:
            raise ValueError(f"truncated or damaged: its header claims {claimed} bytes of numbers, and there are {there}")
        flat: NDArray[Any] = np.empty(prod(shape), dtype)
        file.readinto(flat.view(np.uint8).data)
        return flat.reshape(shape, order="F" if by_columns else "C")


def _read_safetensors(path: Path, name: str) -> NDArray[Any]:
    file = open_safetensors((path,))
    if name not in file.tensors and len(file.tensors) != 1:
        raise InputError(f"no tensor called {name}; the file holds {', '.join(sorted(file.tensors)) or 'none'}")
    if file.damage:
        raise InputError("; ".join(file.damage))
    held = name if name in file.tensors else next(iter(file.tensors))
    shape = file.tensors[held]
    if file.fault(held) is None:
        return file.read_rows(held, 0, rows_and_columns(shape)[0]).reshape(shape)
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "np") as integers:
            array: NDArray[Any] = integers.get_tensor(held)
    except SafetensorError as error:
        raise ValueError(str(error)) from error
    return array


def plain(ids: object) -> object:
    """Arrays, tensors, tuples and numpy's numbers as lists and numbers; anything else as it is."""
    if hasattr(ids, "tolist"):
        return ids.tolist()
    return [plain(x) for x in ids] if isinstance(ids, list | tuple | range) else ids
