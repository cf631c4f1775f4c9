"""Parts of the HTML page: escaped text, tables, and plots of lines. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import TypeAlias

from lattice.base.table import UNKNOWN
from lattice.base.text import inert

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000", "#999999")
DASHES = ("", "6 3", "2 3", "10 3 2 3", "1 5", "12 4", "4 4", "8 2 2 2")
WIDTH, HEIGHT = 720, 160

Drawn: TypeAlias = Sequence[tuple[float, float]]
"""A piece of a line: shares of width and height, from the lower left."""


def html_text(text: str) -> str:
    """Escape text, and make what a terminal would act on harmless."""
    return escape(inert(text), quote=True)


def paragraph(text: str, kind: str) -> str:
    """Return a paragraph; empty without text."""
    return f'<p class="{kind}">{html_text(text)}</p>\n' if text else ""


def html_table(caption: str, heading: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table; an empty cell is shown as unknown."""
    head = "".join(f'<th scope="col">{html_text(each)}</th>' for each in heading)
    body = "".join(
        "<tr>" + "".join(f"<td>{html_text(each) or UNKNOWN}</td>" for each in row) + "</tr>\n"
        for row in rows
    )
    return (
        f"<table>\n<caption>{html_text(caption)}</caption>\n<thead><tr>{head}</tr></thead>\n"
        f"<tbody>\n{body}</tbody>\n</table>\n"
    )


def figure(caption: str, lines: Sequence[Iterable[Drawn]], labels: Sequence[str]) -> str:
    """Draw the pieces of each run's line. The caption is escaped already."""
    drawn = "".join(
        f'<polyline fill="none" stroke="{COLOURS[number]}" stroke-width="1.5" '
        f'stroke-dasharray="{DASHES[number]}" points="{_points(piece)}"/>'
        for number, pieces in enumerate(lines)
        for piece in pieces
        if piece
    )
    legend = " ".join(f"{_sample(number)} {html_text(each)}" for number, each in enumerate(labels))
    return (
        f'<figure>\n<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{caption}">'
        f"{drawn}</svg>\n<figcaption>{caption}: {legend}</figcaption>\n</figure>\n"
    )


def _sample(number: int) -> str:
    """A short piece of a run's line."""
    return (
        '<svg class="sample" viewBox="0 0 30 8" aria-hidden="true"><path d="M0 4H30" fill="none" '
        f'stroke="{COLOURS[number]}" stroke-width="2" stroke-dasharray="{DASHES[number]}"/></svg>'
    )


def _points(piece: Drawn) -> str:
    return " ".join(
        f"{across * WIDTH:.1f},{HEIGHT * (1 - min(max(up, 0.0), 1.0)):.1f}" for across, up in piece
    )
