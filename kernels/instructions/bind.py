"""An instruction list bound to one block of a job: every source becomes a window, a row of numbers or a look-up, ready to run.

In: an instruction list, a region, the views it reads. Out: a `BoundStep` that runs the list on the job's buffers. Nothing is computed here
that a call could share with another; what depends on the region alone (windows, letter numbers) is made once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from math import prod
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from einpage.einsum_front.algebra.expr import Letter, Region
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.graph.job import Box, View
from einpage.kernels.instructions.instruction_list import (
    AccAt,
    CompiledForm,
    InstructionList,
    Iota,
    LoadAt,
    LookUp,
    ResultAt,
    SlotSource,
)
from einpage.kernels.instructions.look_up import look_up
from einpage.kernels.instructions.value_kind import ValueKind
from einpage.kernels.layout.affine import Affine, row_major
from einpage.kernels.layout.assemble import assemble
from einpage.kernels.layout.window import BoundCall, BoundStep, JobBuffers, StridedTile, Window, strided_tile, strided_tiles
from einpage.kernels.on_llvm.compile import NativeCall, why_not_llvm
from einpage.kernels.on_llvm.loop_nests import Array, Element, LoopNests, Spacing, loop_nests

KEPT_BYTES = 1024
"""Temporaries of a step that it keeps from call to call; of larger ones it has them only while it runs."""
SHORT_ELEMENTS = 16384
"""A call for so many is over in some microseconds, and keeps the interpreter's lock."""
_ELEMENTS = {DType.FP32: Element.FP32, DType.INT32: Element.INT32}

Look: TypeAlias = Callable[[JobBuffers], Tensor | Callable[[list[Any]], Tensor]]
"""What a source is on these buffers: a tensor, or what makes one, given the slots filled so far."""


def bind(
    listed: InstructionList, region: Region, reads: Sequence[View], accs: Mapping[int, StridedTile], results: Sequence[Window]
) -> BoundStep:
    """`listed` over `region`. `accs` are where accumulators lie; `results` the windows to fill, axes as in the list's order.

    The step raises IndexOutOfRange where data give an index outside what it looks into.
    """
    looks = {i.out: _look(listed.sources[i.out], listed.order, region, reads, accs, results) for i in listed.instructions if i.fn is None}
    if listed.compiled is not None and (elements := _elements(listed, listed.compiled, reads)) is not None:
        return _compiled(listed, listed.compiled, region, looks, elements)
    template = list(listed.template)

    def looked_through(buffers: JobBuffers) -> BoundCall:
        """Views of operands, accumulators and results are made here; what is looked up or put together is made in every call."""
        known: list[Any] = template.copy()
        fetch_by_slot: dict[int, Callable[[list[Any]], Tensor]] = {}
        for slot, look in looks.items():
            found = look(buffers)
            if isinstance(found, Tensor):
                known[slot] = found
            else:
                fetch_by_slot[slot] = found
        steps: list[tuple[Callable[..., Any], bool, int, tuple[int, ...], int | None, tuple[int, ...]]] = []
        for i in listed.instructions:
            if i.fn is not None:
                steps.append((i.fn, False, i.out, i.args, i.into, i.dead))
            elif i.out in fetch_by_slot:
                steps.append((fetch_by_slot[i.out], True, i.out, i.args, i.into, i.dead))

        def run() -> None:
            slots = known.copy()
            for fn, is_source, out, args, into, dead in steps:
                if is_source:
                    slots[out] = fn(slots)
                elif into is None:
                    slots[out] = fn(*[slots[a] for a in args])
                else:
                    slots[out] = fn(*[slots[a] for a in args], out=slots[into])
                for a in dead:
                    slots[a] = None

        return run

    return looked_through


def _elements(listed: InstructionList, form: CompiledForm, reads: Sequence[View]) -> tuple[Element, ...] | None:
    """What the arrays of a compiled form consist of; None where loops cannot be compiled for these."""
    out: list[Element] = []
    for slot in form.arrays:
        match listed.sources.get(slot):
            case LoadAt(operand, _):
                element = _ELEMENTS.get(reads[operand].dtype)
                if element is None:
                    return None
                out.append(element)
            case None if listed.refs[slot].kind is ValueKind.BOOL:
                out.append(Element.TRUTH)
            case _:
                out.append(Element.FP32)
    return None if why_not_llvm() is not None else tuple(out)


def _compiled(
    listed: InstructionList, form: CompiledForm, region: Region, looks: Mapping[int, Look], elements: Sequence[Element]
) -> BoundStep:
    """`listed` as loops: a table of extents, addresses and strides, and one call."""
    extents = [end - start for start, end in (region[x] for x in listed.order)]
    inner = frozenset(nest.dims[-1] for nest in form.nests if nest.dims)
    known = _known(listed, form, looks)
    shapes = {t: [extents[d] if x in listed.refs[t].letters else 1 for d, x in enumerate(listed.order)] for t in form.temporaries}
    temporary_elements = [prod(shapes[t]) for t in form.temporaries]
    is_short = sum(prod(extents[d] for d in nest.dims) for nest in form.nests) <= SHORT_ELEMENTS

    def steps(slot: int, stride: Sequence[int]) -> tuple[Spacing, ...]:
        letters = listed.refs[slot].letters
        source = listed.sources.get(slot)
        found: list[Spacing] = []
        for d, letter in enumerate(listed.order):
            if letter not in letters and not isinstance(source, ResultAt):
                found.append(Spacing.NONE)
            else:
                found.append(Spacing.ONE if d in inner and (stride[d] == 1 or extents[d] == 1) else Spacing.MANY)
        return tuple(found)

    def looked_through(buffers: JobBuffers) -> BoundCall:
        tensors: dict[int, Tensor] = dict(known)
        fetch_by_slot: dict[int, Callable[[list[Any]], Tensor]] = {}
        for slot, look in looks.items():
            if slot in form.arrays:
                found = look(buffers)
                if isinstance(found, Tensor):
                    tensors[slot] = found
                else:
                    fetch_by_slot[slot] = found
        arrays, table = list[Array](), list[int](extents)
        late: list[tuple[int, Callable[[], Tensor]]] = []
        for slot, element in zip(form.arrays, elements, strict=True):
            if slot in tensors:
                address, stride = tensors[slot].data_ptr(), tensors[slot].stride()
            elif slot in shapes:
                address, stride = 0, row_major(shapes[slot])
            else:
                late.append((len(table), partial(fetch_by_slot[slot], [])))
                first = fetch_by_slot[slot]([])
                address, stride = first.data_ptr(), first.stride()
            arrays.append(Array(element, steps(slot, stride)))
            table += [address, *stride]
        nests = LoopNests(len(extents), tuple(arrays), form.nests)
        assert len(table) == nests.table_size
        numbers = np.array(table, np.int64)
        places = [nests.address_at(form.arrays.index(t)) for t in form.temporaries]
        return _call(loop_nests(nests, is_short), numbers, tensors, late, list(zip(places, temporary_elements, strict=True)))

    return looked_through


def _call(
    kernel: NativeCall,
    table: NDArray[np.int64],
    kept: Mapping[int, Tensor],
    late: Sequence[tuple[int, Callable[[], Tensor]]],
    temporaries: Sequence[tuple[int, int]],
) -> BoundCall:
    """What calls `kernel`. `late`: what is put together in every call, and where its address goes; `temporaries`: likewise, and how many
    elements."""
    address, elements = table.ctypes.data, sum(n for _, n in temporaries)
    if not late and 4 * elements <= KEPT_BYTES:
        own = torch.empty(elements)
        _place(table, own, temporaries)

        def call_again() -> object:
            kernel(address)
            return table, kept, own  # addresses are of these

        return call_again

    def call() -> object:
        fresh = torch.empty(elements)
        _place(table, fresh, temporaries)
        assembled = [(at, fetch()) for at, fetch in late]
        for at, tensor in assembled:
            table[at] = tensor.data_ptr()
        kernel(address)
        return kept

    return call


def _place(table: NDArray[np.int64], memory: Tensor, temporaries: Sequence[tuple[int, int]]) -> None:
    """Temporaries one behind the other."""
    address = memory.data_ptr()
    for at, elements in temporaries:
        table[at] = address
        address += 4 * elements


def _known(listed: InstructionList, form: CompiledForm, looks: Mapping[int, Look]) -> dict[int, Tensor]:
    """The arrays that depend on letters alone."""
    wanted = [slot for slot in form.arrays if slot not in listed.sources and slot not in form.temporaries]
    slots = list(listed.template)
    made = {i.out: i for i in listed.instructions}

    def value(slot: int) -> Any:
        if slots[slot] is None:
            i = made[slot]
            slots[slot] = looks[slot](()) if i.fn is None else i.fn(*map(value, i.args))
        return slots[slot]

    tensors = {slot: value(slot) for slot in wanted}
    return {slot: (tensor if tensor.dim() else tensor.view([1] * len(listed.order))).contiguous() for slot, tensor in tensors.items()}


def _look(
    source: SlotSource,
    order: Sequence[Letter],
    region: Region,
    reads: Sequence[View],
    accs: Mapping[int, StridedTile],
    results: Sequence[Window],
) -> Look:
    match source:
        case Iota(letter, kind):
            numbers = _numbers(*region[letter], kind is ValueKind.INT).view([-1 if x == letter else 1 for x in order])
            return lambda buffers: numbers
        case AccAt(index):
            return accs[index].window(order, region).of
        case ResultAt(index):
            return results[index].of
        case LoadAt(operand, indices):
            return _load(reads[operand], operand, indices, order, region)
        case LookUp(operand, indices):
            fetch = look_up(reads[operand], operand, indices, order, region)
            return lambda buffers: partial(fetch, buffers)


@lru_cache(maxsize=256)
def _numbers(start: int, end: int, is_index: bool) -> Tensor:
    return torch.arange(start, end, dtype=torch.int64 if is_index else torch.float32)


def _load(view: View, operand: int, indices: tuple[Affine, ...], order: Sequence[Letter], region: Region) -> Look:
    """A window of the one tile that holds the region, or the region assembled from several tiles."""
    for t in strided_tiles(view, operand, indices):
        if t.contains(region):
            return t.window(order, region).of
    hulls = [a.hull(region) for a in indices]
    box = Box(tuple(lo for lo, _ in hulls), tuple(hi for _, hi in hulls))
    assembled, window = assemble(view, operand, box), strided_tile(box, operand, 0, view.dtype, indices).window(order, region)
    return lambda buffers: lambda slots: assembled(buffers).as_strided(window.size, window.stride, window.offset)
