"""The picture of a plan as a static SVG: the arena map over time, and the engines' activity below it.

In: what timeline.picture takes. Out: the SVG's text, for a README or a report: no script, and light or dark as the reader's page is. All
rectangles of one colour are one path, so that a plan of thousands of nodes stays a small file.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from math import floor, log10

from einpage.einsum_front.base.units import format_bytes, format_seconds
from einpage.exec.picture.timeline import AT_START, NodeClock, NodeTimes, Picture, picture
from einpage.memplan.graph.memgraph import MemGraph

COLOURS = {
    "weight": "#4c7fc4",
    "activation": "#3aa58c",
    "output": "#dd7c33",
    "input": "#9563c4",
    "constant": "#87909a",
    "state": "#b89a2c",
    "workspace": "#bf5f78",
}
LEFT, TOP, ROW, AXIS = 78.0, 46.0, 15.0, 26.0
STYLE = """
text { font: 11px system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif; fill: #667079 }
.title { font-size: 13px; font-weight: 600; fill: #1c2024 } .on { font-size: 9px; fill: #ffffff }
.ground { fill: #f1f3f4 } .rule { stroke: #dfe3e6 } .budget { stroke: #1c2024 } .arriving { opacity: 0.4 }
@media (prefers-color-scheme: dark) { text { fill: #97a1aa } .title { fill: #e6e9ec } .ground { fill: #1a1e22 }
.rule { stroke: #2d3338 } .budget { stroke: #e6e9ec } .on { fill: #ffffff } }
"""

Quad = tuple[float, float, float, float]
"""x, y, width, height in pixels."""


@dataclass(frozen=True, slots=True)
class PixelScale:
    """From seconds and bytes to pixels."""

    width: float
    map_height: float
    horizon_s: float
    budget_bytes: int

    def x(self, seconds: float) -> float:
        """Pixels from the left edge of the picture."""
        return LEFT + seconds / self.horizon_s * (self.width - LEFT - 8)

    def y(self, offset: float) -> float:
        """Pixels from the top of the picture to a byte offset: higher offsets lie above."""
        return TOP + self.map_height * (1 - offset / self.budget_bytes)

    def box(self, start_s: float, end_s: float, offset: int, nbytes: int) -> Quad:
        """The rectangle of `nbytes` at `offset` over a time interval."""
        return self.x(start_s), self.y(offset + nbytes), self.x(end_s) - self.x(start_s), self.y(offset) - self.y(offset + nbytes)


def render_svg(memgraph: MemGraph, predicted: NodeTimes, measured: NodeTimes | None = None, width: int = 1000, height: int = 440) -> str:
    """The SVG's text, `width` × `height` pixels; the map shows the measured run where there is one."""
    seen = picture(memgraph, predicted, measured)
    map_height = height - TOP - AXIS - len(seen.engines) * (ROW * len(seen.clocks) + 4) - 6
    scale = PixelScale(width, map_height, max(*(c.horizon_s for c in seen.clocks), 1e-9), seen.budget_bytes)
    body = [*_header(seen, scale), *_map(seen, scale, seen.clocks[-1]), *_engines(seen, scale), *_time_axis(scale, height)]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">'
    return "\n".join((head, f"<title>{escape(seen.title)}</title>", f"<style>{STYLE}</style>", *body, "</svg>", ""))


def _header(seen: Picture, scale: PixelScale) -> Iterable[str]:
    yield _text(LEFT, 14, seen.title, "title")
    x = LEFT
    for kind in dict.fromkeys(kind for kind in COLOURS if any(r.kind == kind for r in seen.rects)):
        yield f'<rect x="{x:.0f}" y="24" width="10" height="10" rx="2" fill="{COLOURS[kind]}"/>'
        yield _text(x + 14, 33, kind)
        x += 28 + 6.5 * len(kind)
    yield _text(x, 33, "lighter: being written")


def _map(seen: Picture, scale: PixelScale, clock: NodeClock) -> Iterable[str]:
    yield f'<rect class="ground" x="{LEFT}" y="{TOP}" width="{scale.width - LEFT - 8:.1f}" height="{scale.map_height:.1f}"/>'
    for quarter in range(5):
        y = scale.y(seen.budget_bytes * quarter / 4)
        line = "budget" if quarter == 4 else "rule"
        yield f'<line class="{line}" x1="{LEFT}" x2="{scale.width - 8:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield _text(LEFT - 6, y + 4, format_bytes(seen.budget_bytes * quarter / 4), anchor="end")
    arriving: dict[str, list[Quad]] = {}
    there: dict[str, list[Quad]] = {}
    names: list[str] = []
    for rect in seen.rects:
        start, end = clock.span(rect)
        ready = start if rect.start in (AT_START, rect.end) else min(end, float(clock.finish_s[rect.start]))
        arriving.setdefault(rect.kind, []).append(scale.box(start, ready, rect.offset, rect.nbytes))
        there.setdefault(rect.kind, []).append(scale.box(ready, end, rect.offset, rect.nbytes))
        x, y, w, h = there[rect.kind][-1]
        if h > 11 and w > 6 * len(rect.name) + 8:
            names.append(_text(x + 4, y + h / 2 + 3.5, rect.name, "on"))
    for kind in COLOURS:
        yield _path(arriving.get(kind, ()), COLOURS[kind], "arriving")
        yield _path(there.get(kind, ()), COLOURS[kind], "there")
    yield from names


def _engines(seen: Picture, scale: PixelScale) -> Iterable[str]:
    top = TOP + scale.map_height + 8
    for i, engine in enumerate(seen.engines):
        for k, clock in enumerate(seen.clocks):
            y = top + i * (ROW * len(seen.clocks) + 4) + k * ROW
            yield _text(LEFT - 6, y + 10, "measured" if k else engine.title, anchor="end")
            yield f'<rect class="ground" x="{LEFT}" y="{y:.1f}" width="{scale.width - LEFT - 8:.1f}" height="{ROW - 2}"/>'
            bars: dict[str, list[Quad]] = {}
            for bar in (b for b in seen.bars if b.engine == i):
                start, end = float(clock.start_s[bar.node]), float(clock.finish_s[bar.node])
                bars.setdefault(bar.kind, []).append((scale.x(start), y, scale.x(end) - scale.x(start), ROW - 2))
            for kind in COLOURS:
                yield _path(bars.get(kind, ()), COLOURS[kind], "bar")


def _time_axis(scale: PixelScale, height: int) -> Iterable[str]:
    power = 10.0 ** floor(log10(scale.horizon_s / 8))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= scale.horizon_s / 8)
    for tick in range(int(scale.horizon_s / step) + 1):
        yield _text(scale.x(tick * step), height - 8, format_seconds(tick * step) if tick else "0", anchor="middle")


def _text(x: float, y: float, text: str, style: str = "label", anchor: str = "start") -> str:
    return f'<text class="{style}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _path(boxes: Iterable[Quad], colour: str, style: str) -> str:
    """One path for many boxes; each is a seam smaller than it is, so that neighbours stay apart."""
    drawn = "".join(f"M{x:.1f} {y:.1f}h{_seam(w):.1f}v{_seam(h):.1f}h-{_seam(w):.1f}z" for x, y, w, h in boxes if w > 0 and h > 0)
    return f'<path class="{style}" fill="{colour}" d="{drawn}"/>' if drawn else ""


def _seam(length: float) -> float:
    return length - 0.6 if length > 3 else max(length, 0.3)
