"""The operating curve as an SVG: how many mutants pass, by how much they change, with intervals, a line for each class of limits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

WIDTH, HEIGHT = 720, 380
LEFT, RIGHT, TOP, BOTTOM = 64, 20, 48, 64
COLOURS = {"exact": "#1b6ac9", "8 bits": "#c2570c", "4 bits": "#2e7d32"}
APART = 13
"""Pixels between the marks of two classes at one place."""
CSS = (
    "text{font:13px system-ui,sans-serif;fill:#24292f}.small{font-size:12px;fill:#57606a}.axis{stroke:#8c959f}.grid{stroke:#d8dee4}"
    ".goal{fill:#f6e3e3}"
)


def drawn(curve: dict[str, list[dict[str, Any]]]) -> str:
    """Give the figure."""
    body = "\n".join(_parts(curve))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-labelledby="title">\n'
        '<title id="title">Mutants that pass, by the share of greedy choices that they change</title>\n'
        f'<style>{CSS}</style>\n<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>\n{body}\n</svg>\n'
    )


def _parts(curve: dict[str, list[dict[str, Any]]]) -> Iterator[str]:
    starts = sorted({(point["from"], point["to"]) for points in curve.values() for point in points})
    step = (WIDTH - LEFT - RIGHT) / max(1, len(starts))
    places = {start: LEFT + step * (number + 0.5) for number, (start, _) in enumerate(starts)}
    counts = [number for number, (start, _) in enumerate(starts) if start >= 0.01]
    if counts:
        edge = LEFT + step * counts[0]
        yield f'<rect class="goal" x="{edge:.1f}" y="{TOP}" width="{WIDTH - RIGHT - edge:.1f}" height="{HEIGHT - TOP - BOTTOM}"/>'
    for share in (0, 0.25, 0.5, 0.75, 1):
        yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{_y(share):.1f}" y2="{_y(share):.1f}"/>'
        yield f'<text class="small" x="{LEFT - 8}" y="{_y(share) + 4:.1f}" text-anchor="end">{share:.0%}</text>'
    yield f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{_y(0):.1f}" y2="{_y(0):.1f}"/>'
    for start, end in starts:
        yield (
            f'<text class="small" x="{places[start]:.1f}" y="{_y(0) + 20:.1f}" text-anchor="middle">{100 * start:g}–{100 * end:g} %</text>'
        )
    about = "greedy choices that a fault changes, more than rounding does; shaded: it counts as bad"
    yield f'<text class="small" x="{LEFT}" y="{HEIGHT - 16}">{about}</text>'
    for number, (name, points) in enumerate(curve.items()):
        yield from _line(name, points, places, APART * (number - (len(curve) - 1) / 2))
        x = LEFT + 130 * number
        yield f'<circle cx="{x + 6}" cy="22" r="5" fill="{COLOURS[name]}"/><text x="{x + 18}" y="27">{name}</text>'
    yield f'<text class="small" x="{WIDTH - RIGHT}" y="27" text-anchor="end">mutants that pass, 95 % intervals</text>'


def _line(name: str, points: list[dict[str, Any]], places: dict[float, float], aside: float) -> Iterator[str]:
    colour = COLOURS[name]
    dots = [(places[point["from"]] + aside, point) for point in points]
    if dots:
        path = " ".join(f"{x:.1f},{_y(point['share']):.1f}" for x, point in dots)
        yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5" stroke-opacity="0.5"/>'
    for x, point in dots:
        low, high = point["interval"]
        yield f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_y(low):.1f}" y2="{_y(high):.1f}" stroke="{colour}" stroke-width="2"/>'
        yield (
            f'<circle cx="{x:.1f}" cy="{_y(point["share"]):.1f}" r="4" fill="{colour}">'
            f"<title>{name}: {point['hits']} of {point['of']} pass</title></circle>"
        )


def _y(share: float) -> float:
    return TOP + (HEIGHT - TOP - BOTTOM) * (1 - share)
