"""What outputs need of each value: boxes that some task computes whatever the split, so that the work of an op is never overstated.

In: an OpGraph. Out: by value, ranges of letters that its op at least covers. Tasks whose tile nobody reads are left out of a graph: of
`y[f] = h[seq - 1, f]` the finest split computes one row of `h`. Data may point anywhere, so what is looked up is needed whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from einpage.einsum_front.algebra.expr import Axis, Letter, Load, Region, free_letters, loads
from einpage.einsum_front.algebra.masks import condition, keys_seen
from einpage.einsum_front.graph.job import Box
from einpage.einsum_front.graph.opgraph import AttentionOp, FusedOp, OpGraph, PairsOp
from einpage.einsum_front.tile.flops import masked_query
from einpage.einsum_front.tile.grid import Templates
from einpage.einsum_front.tile.template import Template
from einpage.einsum_front.tile.tiling import Tiling, load_box

MOST_BOXES = 8
"""Of a value; of more, the largest: what is left out is work that is not counted."""
Ranges = tuple[tuple[Letter, tuple[int, int]], ...]
"""Every letter of the program with a half-open range, sorted."""


def needed_ranges(opgraph: OpGraph, templates: Templates) -> dict[str, tuple[Ranges, ...]]:
    """By value, the ranges over which its op is needed at least; none for an op that some split leaves out."""
    whole = {letter: (0, extent) for letter, extent in opgraph.program.extents.items()}
    everything = (tuple(sorted(whole.items())),)
    whole_by_value = {op.value: Box((0,) * len(op.shape), op.shape) for op in opgraph.ops}
    boxes: dict[str, set[Box]] = {op.value: set() for op in opgraph.ops}
    for _, value in opgraph.outputs:
        boxes[value].add(whole_by_value[value])
    read_by_template: dict[Template, tuple[list[Box], ...]] = {}
    found: dict[str, tuple[Ranges, ...]] = {}

    def written(template: Template) -> Region:
        """All ranges, but for rows that are unchanged."""
        if template.tiling.unchanged is None:
            return whole
        letter, rows = template.tiling.unchanged
        return {**whole, letter: (rows, whole[letter][1])}

    for op in reversed(opgraph.ops):
        (template, names), all_of_it = templates[op.value], whole_by_value[op.value]
        if all_of_it in boxes[op.value]:  # as a rule
            region = written(template)
            found[op.value] = everything if region is whole else (tuple(sorted(region.items())),)
            if template not in read_by_template:
                read_by_template[template] = _reads(template, region)
            for name, read in zip(names, read_by_template[template], strict=True):
                if name in boxes:
                    boxes[name].update(read)
            continue
        cuttable, region = {letter for letter, _ in template.tiling.inside}, written(template)
        for box in merged({_covered(box, template.tiling, cuttable, all_of_it) for box in boxes[op.value]}):
            at = zip(template.tiling.target, box.start, box.end, strict=True)
            ranges = whole | {letter: (a, b) for letter, a, b in at if letter is not None}
            ranges = {x: (max(a, region[x][0]), b) for x, (a, b) in ranges.items()}
            if any(a >= b for a, b in ranges.values()):
                continue
            found[op.value] = (*found.get(op.value, ()), tuple(sorted(ranges.items())))
            for name, read in zip(names, _reads(template, ranges), strict=True):
                if name in boxes:
                    boxes[name].update(read)
    return found


def _reads(template: Template, ranges: Region) -> tuple[list[Box], ...]:
    """Per slot, boxes that the op touches over `ranges`, all of which are needed."""
    pairs = zip(template.loads, template.shapes, strict=True)
    return tuple(merged(box for load in loads for box in _read(template.op, load, ranges, shape)) for loads, shape in pairs)


def _covered(box: Box, tiling: Tiling, cuttable: set[Letter], whole: Box) -> Box:
    """`box`, and all along the dimensions that are never cut."""
    cut = [letter is not None and letter in cuttable for letter in tiling.target]
    start = tuple(a if may else b for a, b, may in zip(box.start, whole.start, cut, strict=True))
    end = tuple(a if may else b for a, b, may in zip(box.end, whole.end, cut, strict=True))
    return Box(start, end)


def _read(op: FusedOp, load: Load, ranges: Region, shape: tuple[int, ...]) -> Iterator[Box]:
    """Boxes of the value that one load touches over `ranges`."""
    own = [letter for index in load.indices if not loads(index) for letter in free_letters(index)]  # data may point anywhere
    if len(set(own)) < len(own):
        return  # a diagonal
    if not isinstance(op, AttentionOp | PairsOp) or op.row not in free_letters(load) or condition(op.score) is None:
        yield load_box(load, ranges, shape)
        return
    query = masked_query(op)
    if (query is not None and query in free_letters(load)) or Axis(op.row) not in load.indices:
        return
    for keys in keys_seen(op.score, query, op.row, ranges):
        yield load_box(load, {**ranges, op.row: keys}, shape)


def merged(boxes: Iterable[Box]) -> list[Box]:
    """The same elements in fewer boxes, where two make one; of many, the largest."""
    left = sorted(set(boxes), key=lambda box: (-box.size, box.start))[: 4 * MOST_BOXES]
    i = 0
    while i < len(left):
        j = next((j for j in range(len(left)) if j != i and _together(left[i], left[j]) is not None), None)
        if j is None:
            i += 1
            continue
        both = _together(left[i], left[j])
        assert both is not None
        left = [both, *(box for n, box in enumerate(left) if n not in (i, j))]
        i = 0
    return sorted(left, key=lambda box: (-box.size, box.start))[:MOST_BOXES]


def _together(x: Box, y: Box) -> Box | None:
    """The box of exactly the elements of both: one contains the other, or they differ along one dimension, in which they touch."""
    if x.contains(y):
        return x
    apart = [d for d in range(len(x.start)) if (x.start[d], x.end[d]) != (y.start[d], y.end[d])]
    if len(apart) != 1 or max(x.start[apart[0]], y.start[apart[0]]) > min(x.end[apart[0]], y.end[apart[0]]):
        return None
    return Box(tuple(map(min, x.start, y.start)), tuple(map(max, x.end, y.end)))
