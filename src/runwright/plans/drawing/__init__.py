"""Graphs of plans for terminals and browsers.

layout.py  predecessors and notes of steps; layered layout with few crossings
svg.py     standalone SVG picture
text.py    drawing for the terminal, one line per step

Invariants: a drawing is a pure function of the plan, and its cost is bounded for large plans.
"""
