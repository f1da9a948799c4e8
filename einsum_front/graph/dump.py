"""The readable text form of a TaskGraph: for golden tests, bug reports and diffs. Equal graphs give equal text.

In: a TaskGraph. Out: text, one tensor, task or job a line. A task's line says what it reads, tile by tile, and what it writes; equal jobs
are printed once, at the end, in the spec's own syntax.
"""

from __future__ import annotations

from collections.abc import Iterator

from einpage.einsum_front.algebra.expr import Letter, text
from einpage.einsum_front.graph.job import AttentionJob, ContractJob, GatherJob, Job, MapJob, OverflowJob, PairsJob, View, results_of
from einpage.einsum_front.graph.taskgraph import Task, TaskGraph


def graph_text(graph: TaskGraph) -> str:
    """The whole graph, one thing a line."""
    return "\n".join(_lines(graph)) + "\n"


def _lines(graph: TaskGraph) -> Iterator[str]:
    pieces = " ".join(f"{letter}={n}" for letter, n in graph.split) or "none"
    yield f"taskgraph {graph.name} {graph.dtype.value} split {pieces}"
    for name, value in graph.outputs:
        yield f"output {name} = {value}"
    for op in graph.ops:
        yield f"op {op.id} {op.kind} {op.name} flops {op.flops} bytes {op.bytes_touched}" + (
            f"; {op.description}" if op.description else ""
        )
    for t in graph.tensors:
        yield f"tensor {t.id} {t.name} {t.element_type.value} {t.kind.value} {t.nbytes}"
    number_by_job: dict[Job, int] = {}
    for task in graph.tasks:
        yield _task(task, number_by_job)
    for job, n in number_by_job.items():
        yield f"job {n} {_job(job)}"


def _task(task: Task, number_by_job: dict[Job, int]) -> str:
    reads = " ".join("(" + " ".join(map(str, operand)) + ")" for operand in task.operands)
    results = ", ".join(str(one.tensor) + (f" over {' '.join(map(str, one.inplace))}" if one.inplace else "") for one in task.written)
    job = "" if task.job is None else f" job {number_by_job.setdefault(task.job, len(number_by_job))}"
    cost = f"flops {task.flops} bytes {task.bytes_touched}"
    return f"task {task.id} op {task.op} {task.name}: {reads} -> {results}{job} {cost}"


def _job(job: Job) -> str:
    ranges = " ".join(f"{r.letter}={r.start}:{r.end}" for r in job.ranges)
    reads = " ".join(_view(v) for v in job.reads)
    return f"{ranges} | {reads} | {' '.join(map(_view, results_of(job)))} | {_math(job)}"


def _math(job: Job) -> str:
    match job:
        case MapJob():
            names = [view.name if job.others else "" for view in results_of(job)]
            return "; ".join(f"{names[p.result]}[{','.join(text(i) for i in p.target)}] = {text(p.expr)}" for p in job.parts)
        case ContractJob():
            sums = "; ".join(f"acc{i} = sum[{_letters(c.letters)}]({text(c.x)} * {text(c.y)})" for i, c in enumerate(job.contractions))
            chain = ("" if job.carry is None else f"; + {job.reads[job.carry].name}") + ("" if job.last else "; to be continued")
            return f"{sums}{chain}; [{_letters(job.target)}] = {text(job.epilogue)}"
        case AttentionJob():
            score = f"acc0 = sum[{_letters(job.score_letters)}]({text(job.q)} * {text(job.k)})"
            mix = f"acc1 = sum[{job.row}](softmax[{job.row}]({text(job.score)}) * {text(job.v)})"
            return f"{score}; {mix}; [{_letters(job.target)}] = {text(job.epilogue)}"
        case PairsJob():
            sums = "; ".join(f"acc{i} = sum[{_letters(c.letters)}]({text(c.x)} * {text(c.y)})" for i, c in enumerate(job.products))
            by = "" if job.factor is None else f" * {text(job.factor)}"
            total = f"{'log_sum_exp' if job.is_logarithm else 'sum'}[{_letters(job.letters)}]({text(job.weight)}{by})"
            return f"{sums}; acc{len(job.products)} = {total}; [{_letters(job.target)}] = {text(job.epilogue)}"
        case GatherJob():
            return f"[{_letters(job.target)}] = {text(job.load)}"
        case OverflowJob():
            return "; ".join((f"any flag of {job.reads[0].name}", *(f"or {view.name}" for view in job.reads[1:])))


def _letters(letters: tuple[Letter, ...]) -> str:
    return ",".join(letters)


def _view(view: View) -> str:
    boxes = " ".join(",".join(f"{a}:{b}" for a, b in zip(box.start, box.end, strict=True)) for box in view.boxes)
    return f"{view.name}:{view.element_type.value}[{boxes}]"
