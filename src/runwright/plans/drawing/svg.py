"""Draw a plan's steps as a standalone SVG picture: no scripts, no fonts, light and dark mode."""

from __future__ import annotations

import re
from html import escape

from runwright.contract.plan import ExecutionPlan, Step

from .layout import Layout, compute_layout, step_notes, step_predecessors

_HEIGHT = 46.0  # of a box, in pixels as all lengths
_LAYER_GAP = 42.0
_BOX_GAP = 26.0
_MARGIN = 24.0
_MAX_CHARS = 32  # of an id or a note

_STYLE = """
  .rw-graph { font-family: system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; background: #ffffff; }
  .rw-graph .box { fill: #f8fafc; stroke: #cbd5e1; stroke-width: 1.2; }
  .rw-graph .id { font-size: 13px; font-weight: 600; fill: #0f172a; }
  .rw-graph .kind { font-size: 10.5px; fill: #64748b; }
  .rw-graph .arrow { fill: none; stroke: #94a3b8; stroke-width: 1.5; }
  .rw-graph .head { fill: #94a3b8; }
  @media (prefers-color-scheme: dark) {
    .rw-graph { background: #0b1220; }
    .rw-graph .box { fill: #172033; stroke: #334155; }
    .rw-graph .id { fill: #e2e8f0; }
    .rw-graph .kind { fill: #94a3b8; }
    .rw-graph .arrow { stroke: #64748b; }
    .rw-graph .head { fill: #64748b; }
  }
"""
_HEAD = (
    '<svg class="rw-graph" xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
    'viewBox="{left:.1f} 0 {width:.1f} {height:.1f}" role="img" aria-labelledby="rw-graph-title rw-graph-desc">'
)
_DEFS = (
    '<defs><marker id="rw-graph-head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="5.5" markerHeight="5.5" '
    'orient="auto-start-reverse"><path class="head" d="M0,0 L8,4 L0,8 z"/></marker></defs>'
)
_COLOURS = ("#2563eb", "#059669", "#d97706", "#7c3aed", "#db2777", "#0891b2", "#65a30d", "#dc2626")
_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")


def graph_svg(plan: ExecutionPlan) -> str:
    widths = [_box_width(plan, step) for step in plan.steps]
    layout = compute_layout(step_predecessors(plan), widths, _BOX_GAP)
    left = min(node.x - node.width / 2 for node in layout.nodes) - _MARGIN
    width = max(node.x + node.width / 2 for node in layout.nodes) + _MARGIN - left
    height = len(layout.layers) * (_HEIGHT + _LAYER_GAP) - _LAYER_GAP + 2 * _MARGIN
    kinds = sorted({step.kind for step in plan.steps})
    colours = {kind: _COLOURS[index % len(_COLOURS)] for index, kind in enumerate(kinds)}
    parts = [
        _HEAD.format(left=left, width=width, height=height),
        f'<title id="rw-graph-title">{_text(plan.plan_id)}</title>',
        f'<desc id="rw-graph-desc">{_text(_description(plan))}</desc>',
        f"<style>{_STYLE}</style>",
        _DEFS,
        *(
            f'<path class="arrow" marker-end="url(#rw-graph-head)" d="{_arrow_path(layout, arrow)}"/>'
            for arrow in layout.arrows
        ),
        *(_box(plan, number, layout, colours[step.kind]) for number, step in enumerate(plan.steps)),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _description(plan: ExecutionPlan) -> str:
    count = len(plan.steps)
    return f"The {count} {'step' if count == 1 else 'steps'} of the plan {plan.plan_id}, each below its predecessors."


def _notes(plan: ExecutionPlan, step: Step) -> str:
    return " · ".join(step_notes(plan, step))


def _shorten(text: str) -> str:
    return text if len(text) <= _MAX_CHARS else text[: _MAX_CHARS - 1] + "…"


def _box_width(plan: ExecutionPlan, step: Step) -> float:
    return max(96.0, 7.9 * len(_shorten(step.step_id)) + 34, 6.0 * len(_shorten(_notes(plan, step))) + 34)


def _top(layer: int) -> float:
    return _MARGIN + layer * (_HEIGHT + _LAYER_GAP)


def _arrow_path(layout: Layout, arrow: list[int]) -> str:
    """Return the SVG path of an arrow: vertical at its ends, and straight through the layers that it crosses."""
    first = layout.nodes[arrow[0]]
    x, y = first.x, _top(first.layer) + _HEIGHT
    path = f"M{x:.1f},{y:.1f}"
    for number in arrow[1:]:
        node = layout.nodes[number]
        end = _top(node.layer) - (2 if number == arrow[-1] else 0)
        bend = (end - y) * 0.5
        path += f" C{x:.1f},{y + bend:.1f} {node.x:.1f},{end - bend:.1f} {node.x:.1f},{end:.1f}"
        x, y = node.x, end
        if number != arrow[-1]:
            y += _HEIGHT
            path += f" V{y:.1f}"
    return path


def _box(plan: ExecutionPlan, number: int, layout: Layout, colour: str) -> str:
    step, node = plan.steps[number], layout.nodes[number]
    left, top = node.x - node.width / 2, _top(node.layer)
    return (
        f"<g><title>{_text(f'{step.step_id}: {_notes(plan, step)}')}</title>"
        f'<rect class="box" x="{left:.1f}" y="{top:.1f}" width="{node.width:.1f}" height="{_HEIGHT}" rx="8"/>'
        f'<rect x="{left + 8:.1f}" y="{top + 11:.1f}" width="4" height="{_HEIGHT - 22}" rx="2" fill="{colour}"/>'
        f'<text class="id" x="{left + 22:.1f}" y="{top + 20:.1f}">{_text(_shorten(step.step_id))}</text>'
        f'<text class="kind" x="{left + 22:.1f}" y="{top + 35:.1f}">{_text(_shorten(_notes(plan, step)))}</text></g>'
    )


def _text(text: str) -> str:
    return escape(_UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text))
