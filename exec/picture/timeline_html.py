"""The picture of a plan as one self-contained HTML page: the data as JSON beside the script of timeline.html, which draws them.

In: what timeline.picture takes, and the figures of a report. Out: the page's text. It names no other file and loads nothing; names of
tensors, tasks and figures are a user's text and cannot leave the places they are put in.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from html import escape
from importlib.resources import files

from einpage.einsum_front.base.units import format_bytes, format_seconds
from einpage.exec.picture.timeline import NodeTimes, picture, to_json
from einpage.memplan.graph.memgraph import MemGraph


def render_html(
    memgraph: MemGraph, predicted: NodeTimes, measured: NodeTimes | None = None, figures: Mapping[str, object] | None = None
) -> str:
    """The page as text. `figures` are shown at the top in their order; keys in `_bytes` and `_s` are given their units."""
    seen = picture(memgraph, predicted, measured)
    shown = {key: value for key, value in (figures or {}).items() if isinstance(value, str | int | float)}
    cards = "\n".join(f"<div><dt>{escape(_label(key))}</dt><dd>{escape(figure(key, value))}</dd></div>" for key, value in shown.items())
    text_by_slot = {"title": escape(seen.title), "figures": cards, "data": script_json(to_json(seen))}
    page = files(__package__).joinpath("timeline.html").read_text(encoding="utf-8")
    # In one sweep, so that nothing inside a name can be taken for a slot.
    return re.sub(r"\{\{(title|figures|data)\}\}", lambda slot: text_by_slot[slot[1]], page)


def script_json(data: object) -> str:
    """JSON that may stand inside a <script> element: no character in it can close the element or open a comment."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _label(key: str) -> str:
    return key.removesuffix("_bytes").removesuffix("_s").replace("_", " ")


def figure(key: str, value: object) -> str:
    """A figure of a report, with the unit that its key says it has."""
    match value:
        case bool():
            return "yes" if value else "no"
        case int() | float() if "bytes" in key.split("_"):
            return format_bytes(value)
        case int() | float() if key.endswith("_s"):
            return format_seconds(value)
        case int():
            return f"{value:,}"
        case float():
            return f"{value:.4g}"
        case _:
            return str(value)
