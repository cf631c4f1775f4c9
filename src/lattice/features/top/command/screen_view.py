"""The live screen as styled lines of text. Pure: the same lines in every terminal."""

from __future__ import annotations

from datetime import datetime

from lattice.base.moment import age
from lattice.base.quantity import number
from lattice.base.style import Style
from lattice.base.table import UNKNOWN
from lattice.base.text import cells, cut, inert, pad, wrapped
from lattice.domain.measured import SHOWN, Shown
from lattice.features.top.command.screen_state import TopScreenState, has_values
from lattice.features.top.model import RowKind, TopAnswer, TopCell, TopColumn, TopMode, TopRow
from lattice.features.top.render import spark
from lattice.features.top.render.plain import combined, head, reasons, title
from lattice.features.top.render.spark import Piece

Line = list[Piece]

KEYS = "q quit  ? keys  s sort  / filter  p pause  g GPUs  n nodes"
HELP = (
    ("q", "leave; the job goes on"),
    ("?", "these keys, and back"),
    ("s", "sort by the next column, highest first; after the last by name"),
    ("/", "show only nodes and GPUs whose name has these letters; Esc: all"),
    ("p", "stop the time, and go on"),
    ("g", "a row a GPU, and back"),
    ("n", "a row a node, and back"),
)
_ABOUT = (
    "Lines of the past have one scale, 0 to 100 percent of what the job has: never of their own "
    "highest. A cell is as high as the peak of its stretch, and its colour follows the mean; the "
    "last one is the number beside it. Blank: nothing was measured then."
)
_SCALED = (Shown.GPU_UTILIZATION, Shown.CPU_UTILIZATION, Shown.MEMORY_USED, Shown.GPU_SM_OCCUPANCY)
_NUMBER = 8
_MOST_SPARK, _LEAST_SPARK = 60, 6
_NAME = 22


class ScreenView:
    def __init__(self, state: TopScreenState, style: Style, width: int, now: datetime) -> None:
        self._state = state
        self._style = style
        self._width = max(40, width)
        self._now = now

    def lines(self, now_s: float) -> list[Line]:
        """Return all lines except the keys."""
        state = self._state
        if state.help:
            return self._help()
        answer = state.answer
        if answer is None:
            return [[(inert(state.trouble) or "Asking …", "dim")]]
        body = self._summary(answer) if state.mode is TopMode.SUMMARY else self._table(answer)
        return [*self._head(answer, now_s), [], *body, *self._below(answer)]

    def _head(self, answer: TopAnswer, now_s: float) -> list[Line]:
        plain = Style(width=self._width, glyphs=self._style.glyphs, zone=self._style.zone)
        first, *rest = head(answer, plain, self._now).splitlines()
        lines: list[Line] = [[(cut(first, self._width), "bold")]]
        lines += [[(each, "dim")] for each in rest]
        old = age(self._state.age_s(now_s))
        if self._state.paused:
            lines.append([(f"paused, {old} old", "yellow")])
        elif self._state.trouble:
            message = f"{inert(self._state.trouble)} This is {old} old."
            lines += [[(each, "yellow")] for each in wrapped(message, self._width)]
        if self._state.pattern:
            shown = f"{len(self._state.rows())} of {len(answer.rows) - 1} rows"
            lines.append([(f"filter: {inert(self._state.pattern)} ({shown})", "cyan")])
        return lines

    def _below(self, answer: TopAnswer) -> list[Line]:
        lines: list[Line] = [[]]
        for each in reasons(answer):
            lines += [[(piece, "dim")] for piece in wrapped(inert(each), self._width)]
        return lines

    def _help(self) -> list[Line]:
        lines: list[Line] = [[(f"{key}  ", "bold"), (text, "")] for key, text in HELP]
        return [*lines, [], *([(each, "dim")] for each in wrapped(_ABOUT, self._width))]

    def _summary(self, answer: TopAnswer) -> list[Line]:
        """One line per metric: value, bar and history."""
        row = answer.rows[0]
        names = max(len(each.metric.value) for each in answer.columns)
        room = self._width - names - 2 - _NUMBER - 2 - 18
        bar_width = min(20, max(0, room // 3))
        spark_width = min(60, max(0, room - bar_width - 4))
        lines = []
        for column, cell in zip(answer.columns, row.cells, strict=True):
            line: Line = [(pad(column.metric.value, names) + "  ", "")]
            line.append((pad(self._number(cell, column), _NUMBER, right=True) + "  ", "bold"))
            value = cell.value
            share = None if value is None else self._state.size.share(row, cell, value)
            ramp = _ramp(column)
            line += spark.bar(share, bar_width, ramp, glyphs=self._style.glyphs)
            line.append(("  ", ""))
            if cell.metric in _SCALED:
                line += self._past(row, cell, spark_width, ramp)
            else:
                line.append((" " * spark_width, ""))
            line.append((f"  {combined(cell, column)}", "dim"))
            lines.append(line)
        return lines

    def _table(self, answer: TopAnswer) -> list[Line]:
        """One line per node or GPU, and one for all; columns that do not fit are left out."""
        names = [_name(each) for each in answer.rows]
        name_width = min(_NAME if self._width < 120 else 2 * _NAME, max(4, *map(cells, names)))
        chosen, spark_width = self._fitting(answer, name_width)
        lines = [self._heading(answer, chosen, name_width, spark_width)]
        lines += [
            self._row(answer, each, chosen, name_width, spark_width)
            for each in (*self._state.rows(), answer.rows[0])
        ]
        filled = sum(has_values(answer.rows, each) for each in range(len(answer.columns)))
        if filled > len(chosen):
            more = filled - len(chosen)
            note = f"{more} more column{'' if more == 1 else 's'} in a wider window"
            lines.append([(note, "dim")])
        return lines

    def _fitting(self, answer: TopAnswer, name_width: int) -> tuple[list[int], int]:
        filled = [each for each in range(len(answer.columns)) if has_values(answer.rows, each)]
        order = [each for each in filled if answer.columns[each].metric in _SCALED]
        order += [each for each in filled if each not in order]
        room = self._width - name_width - 6
        chosen: list[int] = []
        for index in order:
            scaled = answer.columns[index].metric in _SCALED
            need = _NUMBER + 2 + (_LEAST_SPARK + 1 if scaled else 0)
            if need > room:
                continue
            room -= need
            chosen.append(index)
        sparks = sum(answer.columns[each].metric in _SCALED for each in chosen)
        more = room // sparks if sparks else 0
        return sorted(chosen), min(_MOST_SPARK, _LEAST_SPARK + more)

    def _heading(
        self, answer: TopAnswer, chosen: list[int], name_width: int, spark_width: int
    ) -> Line:
        text = pad("GPU" if self._state.mode is TopMode.PER_GPU else "NODE", name_width)
        for index in chosen:
            column = answer.columns[index]
            mark = self._style.glyph("▾", "v") if index == self._state.sort else ""
            space = " " * (spark_width + 1) if column.metric in _SCALED else ""
            text += f"  {space}{pad(title(column.metric.value) + mark, _NUMBER, right=True)}"
        return [(f"{text}   AGE", "bold")]

    def _row(
        self,
        answer: TopAnswer,
        row: TopRow,
        chosen: list[int],
        name_width: int,
        spark_width: int,
    ) -> Line:
        stale = self._state.is_stale(row)
        line: Line = [(pad(cut(_name(row), name_width), name_width), "")]
        if stale and row.reason:
            message = cut(f"{UNKNOWN} {inert(row.reason)}", self._width - name_width - 2)
            return [(line[0][0], "dim"), (f"  {message}", "dim")]
        for index in chosen:
            column, cell = answer.columns[index], row.cells[index]
            line.append(("  ", ""))
            if column.metric in _SCALED:
                line += self._past(row, cell, spark_width, _ramp(column))
                line.append((" ", ""))
            line.append((pad(self._number(cell, column), _NUMBER, right=True), ""))
        old = "" if row.age_s is None or answer.ended is not None else age(row.age_s)
        line.append((pad(old, 6, right=True), ""))
        if stale:
            return [(text, "dim") for text, _ in line]
        return [
            (text, colour or ("bold" if row.kind is RowKind.SUMMARY else ""))
            for text, colour in line
        ]

    def _number(self, cell: TopCell, column: TopColumn) -> str:
        if cell.value is None:
            return UNKNOWN
        return number(cell.value, column.unit) + ("*" if cell.scope == "node" else "")

    def _past(self, row: TopRow, cell: TopCell, width: int, ramp: spark.Ramp) -> Line:
        points = self._state.past.get((row.node, row.gpu_uuid, cell.metric), ())
        if cell.value is None:
            # Without a current value there is no history line.
            return spark.spark((), width, ramp)
        shares = []
        for time, value in points:
            share = self._state.size.share(row, cell, value)
            if share is None:
                return [(pad(cut("no scale", width), width), "dim")]
            shares.append((time, share))
        return spark.spark(shares, width, ramp, glyphs=self._style.glyphs)


def _ramp(column: TopColumn) -> spark.Ramp:
    return spark.GPU if SHOWN[column.metric].per_gpu else spark.HOST


def _name(row: TopRow) -> str:
    if row.kind is RowKind.SUMMARY:
        return "all"
    return inert(f"{row.node} {row.gpu_uuid}" if row.gpu_uuid else row.node)
