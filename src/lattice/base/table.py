"""Tables of text that fit the terminal and are safe to show. Pure.

The text of each cell is made inert here, so that no caller can forget it. Its attributes are added
afterwards, around the padded text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lattice.base.style import Style
from lattice.base.text import cells, cut, inert, pad, wrapped

GAP = "  "
UNKNOWN = "—"

Cell = str | tuple[str, str]
"""Text, or text with its attributes, such as `bold`."""


class Column:
    """A heading. `least` is how narrow a column may become; 0: only if nothing else helps."""

    __slots__ = ("least", "name", "right")

    def __init__(self, name: str, *, right: bool = False, least: int = 0) -> None:
        self.name = name
        self.right = right
        self.least = max(least, len(name)) if least else 0


def table(
    columns: Sequence[Column],
    rows: Iterable[Sequence[Cell]],
    style: Style,
    notes: Sequence[str] = (),
) -> str:
    """Heading and rows as lines that fit the width. A row's note follows on lines below it."""
    body = [[_split(cell) for cell in row] for row in rows]
    widths = [
        max([cells(column.name), *(cells(row[index][0]) for row in body)])
        for index, column in enumerate(columns)
    ]
    if style.width is not None:
        _squeeze(columns, widths, style.width)
    heading = [(column.name, "bold") for column in columns]
    lines = [_line(heading, columns, widths, style)]
    for number, row in enumerate(body):
        lines.append(_line(row, columns, widths, style))
        lines.extend(_note_lines(notes[number], style) if notes else ())
    return "".join(lines)


def _note_lines(note: str, style: Style) -> list[str]:
    indent = "    "
    room = max((style.width or 80) - len(indent) - 2, 20)
    marks = [style.glyph("└ ", "  ")]
    return [
        indent + style.paint((marks.pop() if marks else "  ") + piece, "dim") + "\n"
        for piece in wrapped(inert(note), room)
    ]


def _split(cell: Cell) -> tuple[str, str]:
    text, attributes = (cell, "") if isinstance(cell, str) else cell
    return inert(text) or UNKNOWN, attributes


def _squeeze(columns: Sequence[Column], widths: list[int], width: int) -> None:
    over = sum(widths) + len(GAP) * (len(widths) - 1) - width
    for floors in ([column.least for column in columns], [4] * len(columns)):
        while over > 0:
            # The widest column that may shrink loses one cell, so that all end up alike.
            soft = [index for index, floor in enumerate(floors) if floor and widths[index] > floor]
            if not soft:
                break
            widths[max(soft, key=widths.__getitem__)] -= 1
            over -= 1


def _line(
    row: Sequence[tuple[str, str]], columns: Sequence[Column], widths: Sequence[int], style: Style
) -> str:
    parts = []
    last = len(columns) - 1
    for index, (text, attributes) in enumerate(row):
        shown = cut(text, widths[index]) if style.width is not None else text
        filled = shown
        if index != last or columns[index].right:
            filled = pad(shown, widths[index], right=columns[index].right)
        # Colour the text only, never the padding.
        parts.append(filled.replace(shown, style.paint(shown, attributes), 1) if shown else filled)
    return GAP.join(parts).rstrip(" ") + "\n"


def fields(pairs: Iterable[tuple[str, Cell]], style: Style, *, indent: str = "  ") -> str:
    """A card: one `name  value` per line, names in one column. Empty values are left out.

    A value that is too long continues below itself.
    """
    shown = [(name, *_split(cell)) for name, cell in pairs if _text(cell)]
    width = max((cells(name) for name, _, _ in shown), default=0)
    margin = len(indent) + width + len(GAP)
    lines = []
    for name, text, attributes in shown:
        head = indent + style.paint(name, "dim") + " " * (width - cells(name)) + GAP
        pieces = [text]
        if style.width is not None and cells(text) > style.width - margin:
            pieces = wrapped(text, max(style.width - margin, 20))
        for piece in pieces:
            lines.append(head + style.paint(piece, attributes) + "\n")
            head = " " * margin
    return "".join(lines)


def _text(cell: Cell) -> str:
    return cell if isinstance(cell, str) else cell[0]
