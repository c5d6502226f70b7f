"""Lines in a small SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

WIDTH, HEIGHT, MARGIN = 480, 300, 48
COLOURS = ("#1f77b4", "#d62728", "#2ca02c")


def lines(series: Mapping[str, Sequence[tuple[float, float]]], x_title: str, y_title: str) -> str:
    """Draw points and the lines between them; both axes begin at 0.

    Parameters
    ----------
    series
        Points by the line's name.
    x_title, y_title
        What the axes are.

    Returns
    -------
    str
        An SVG document.
    """
    points = [point for line in series.values() for point in line]
    x_most, y_most = (max(column) or 1.0 for column in zip(*points, strict=True))
    width, height = WIDTH - 2 * MARGIN, HEIGHT - 2 * MARGIN

    def place(x: float, y: float) -> tuple[float, float]:
        return MARGIN + x / x_most * width, HEIGHT - MARGIN - y / y_most * height

    def text(x: float, y: float, words: str, anchor: str = "middle") -> str:
        return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'

    left, bottom = place(0, 0)
    right, top = place(x_most, y_most)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"'
        ' font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<path d="M{left} {top}V{bottom}H{right}" fill="none" stroke="black"/>',
        text((left + right) / 2, HEIGHT - 10, x_title),
        text(left, top - 14, y_title, "start"),
        text(left - 6, top + 4, f"{y_most:.3g}", "end"),
        text(left - 6, bottom + 4, "0", "end"),
    ]
    for x in sorted({x for x, _ in points}):
        parts.append(text(place(x, 0)[0], bottom + 16, f"{x:g}"))
    for number, (name, line) in enumerate(series.items()):
        colour = COLOURS[number % len(COLOURS)]
        at = [place(x, y) for x, y in line]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in at)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in at]
        parts.append(f'<g fill="{colour}">{text(left + 8, top + 16 * number, name, "start")}</g>')
    return "\n".join([*parts, "</svg>", ""])
