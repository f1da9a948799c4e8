"""Time against something swept, as a static SVG: the plans' times as a line with points, the lower bounds as a dashed line.

In: (value, seconds, bound) of each point. Out: the SVG's text. Both axes start at zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from html import escape

from einpage.einsum_front.base.units import format_seconds

WIDTH, HEIGHT = 720, 360
LEFT, RIGHT, TOP, BOTTOM = 78, 24, 40, 34
STYLE = """
text { font: 11px system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif; fill: #667079 }
.title { font-size: 13px; font-weight: 600; fill: #1c2024 } .rule { stroke: #dfe3e6 } .time { stroke: #4c7fc4; fill: none; stroke-width: 2 }
.dot { fill: #4c7fc4 } .bound { stroke: #dd7c33; fill: none; stroke-dasharray: 5 4 }
@media (prefers-color-scheme: dark) { text { fill: #97a1aa } .title { fill: #e6e9ec } .rule { stroke: #2d3338 } }
"""


def render_curve(title: str, points: Sequence[tuple[int, float, float]], name: Callable[[int], str]) -> str:
    """The SVG's text; `name` names a value on the axis."""
    most_x = max((x for x, _, _ in points), default=1)
    most_s = max((s for _, s, _ in points), default=0.0) or 1.0

    def at(x: int, seconds: float) -> tuple[float, float]:
        return LEFT + (WIDTH - LEFT - RIGHT) * x / most_x, HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * seconds / most_s

    body = [f'<text class="title" x="{LEFT}" y="18">{escape(title)}: predicted time, and the lower bound (dashed)</text>']
    for quarter in range(5):
        y = at(0, most_s * quarter / 4)[1]
        body.append(f'<line class="rule" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        body.append(
            f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{format_seconds(most_s * quarter / 4) if quarter else "0"}</text>'
        )
    body.append(_line("bound", (at(x, bound) for x, _, bound in points)))
    body.append(_line("time", (at(x, seconds) for x, seconds, _ in points)))
    free = float(LEFT)
    for x, seconds, _ in points:
        left, y = at(x, seconds)
        body.append(f'<circle class="dot" cx="{left:.1f}" cy="{y:.1f}" r="3"><title>{name(x)}: {format_seconds(seconds)}</title></circle>')
        if left >= free:
            body.append(f'<text x="{left:.1f}" y="{HEIGHT - 14}" text-anchor="middle">{name(x)}</text>')
            free = left + 60
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img">'
    return "\n".join((head, f"<style>{STYLE}</style>", *body, "</svg>", ""))


def _line(style: str, places: Iterable[tuple[float, float]]) -> str:
    return f'<polyline class="{style}" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in places)}"/>'
