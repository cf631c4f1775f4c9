"""Merged stacks as text, outliers first. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath

from lattice.base.style import Style
from lattice.base.text import cut, inert, wrapped
from lattice.domain.nodeset import NodeSet
from lattice.features.diag.model import StackGroup, StackPicture, StackPlace

_FEW = 6
_LEAST_ROOM = 20


def stacks(picture: StackPicture, style: Style, *, everything: bool = False) -> str:
    """Return every group with its innermost frames, or with `everything` all frames."""
    head = f"{picture.id}  stacks of attempt {picture.attempt}  {picture.covered}"
    head += f"  {picture.took_s:.1f} s"
    lines = [style.paint(_fit(head, style), "bold")]
    if not picture.groups:
        lines.append(f"{style.glyph('—', '-')} {inert(picture.words)}")
    for group in picture.groups:
        lines += _group(group, style, everything=everything)
    for trouble in picture.troubles:
        room = max((style.width or 100) - 2, _LEAST_ROOM)
        first, *rest = wrapped(inert(trouble), room) or [""]
        lines += [f"{style.glyph('—', '-')} {first}", *(f"  {each}" for each in rest)]
    return "\n".join(lines) + "\n"


def _group(group: StackGroup, style: Style, *, everything: bool) -> Iterator[str]:
    sign, look = ("!", "yellow") if group.is_odd else (style.glyph("·", "-"), "dim")
    odd = "  (unlike the others)" if group.is_odd else ""
    where = _nodes(group)
    yield _fit(f"{sign} {inert(group.words)}{odd}  {inert(where)}", style).replace(
        sign, style.paint(sign, look), 1
    )
    frames = group.frames if everything else group.frames[:_FEW]
    for frame in frames:
        yield style.paint(_fit(f"    {inert(_frame(frame))}", style), "dim")
    more = len(group.frames) - len(frames)
    if more:
        yield style.paint(f"    … and {more} more (--all)", "dim")


def _frame(frame: StackPlace) -> str:
    if not frame.file:
        return frame.function
    line = f":{frame.line}" if frame.line else ""
    return f"{frame.function} ({PurePosixPath(frame.file).name}{line})"


def _nodes(group: StackGroup) -> str:
    names = sorted({each.node for each in group.subjects if each.node})
    try:
        return NodeSet(names).fold()
    except ValueError:
        return ",".join(names)


def _fit(text: str, style: Style) -> str:
    return cut(text, style.width) if style.width is not None else text
