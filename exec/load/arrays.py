"""What a Python caller gives as an array: numpy arrays and scalars, torch tensors on any device, lists and tuples of numbers.

In: values by name. Out: numpy arrays by name, on the host, of the kind that was given (bf16, which numpy lacks, as float32). Whether shape
and kind are those of the input is for `bind_inputs` to say.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from einpage.exec.load.inputs import InputError, holds_truth

_EXPECTED = "expected an array, a tensor, or nested lists of numbers"
_NUMPY_LACKS = (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)


def arrays(inputs: object) -> dict[str, NDArray[Any]]:
    """`inputs` as arrays by name. Raises InputError for what is no mapping, and for a value that is no array of numbers."""
    if not isinstance(inputs, Mapping):
        raise InputError(f"inputs is {_kind(inputs)}, expected arrays by name, as in inputs={{'x': …}}")
    return {name: _array(name, value) for name, value in inputs.items()}


def _array(name: object, value: object) -> NDArray[Any]:
    if not isinstance(name, str):
        raise InputError(f"inputs has the key {name!r}, expected names of inputs")
    array = _of_tensor(name, value) if isinstance(value, torch.Tensor) else _of_numbers(name, value)
    if array.dtype.kind != "b" and holds_truth(value):
        raise InputError(f"input {name} holds truths among numbers, {_EXPECTED}")
    if array.dtype.kind not in "iufb":
        what = "numbers beyond 64 bits, or other objects" if array.dtype.kind == "O" else f"values of type {array.dtype}"
        raise InputError(f"input {name} holds {what}, {_EXPECTED}")
    return array


def _of_tensor(name: str, tensor: torch.Tensor) -> NDArray[Any]:
    if tensor.is_meta:
        raise InputError(f"input {name} is a tensor on the device meta, which has no values")
    tensor = tensor.detach().to_dense().cpu()
    try:
        array: NDArray[Any] = (tensor.float() if tensor.dtype in _NUMPY_LACKS else tensor).resolve_conj().resolve_neg().numpy()
    except (TypeError, RuntimeError):  # quantised, of parts of a byte
        raise InputError(f"input {name} is a tensor of {tensor.dtype}, which has no array: convert it, as with .dequantize()") from None
    return array


def _of_numbers(name: str, value: object) -> NDArray[Any]:
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise InputError(f"input {name} has masked elements, for which there is no value: fill them, as with .filled(0)")
    if not (isinstance(value, list | tuple | range | int | float | np.generic) or hasattr(value, "__array__")):
        raise InputError(f"input {name} is {_kind(value)}, {_EXPECTED}")
    try:
        return np.asarray(value)
    except (ValueError, TypeError, OverflowError, RuntimeError):
        raise InputError(f"input {name}: rows of different lengths, or not all of them numbers; {_EXPECTED}") from None


def _kind(value: object) -> str:
    return "None" if value is None else f"of type {type(value).__name__}"
