"""A diagnosis as one page, and merged stacks as text. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath

from lattice.base.moment import duration
from lattice.base.style import Style
from lattice.base.text import cells, cut, inert, pad, wrapped
from lattice.domain.nodeset import NodeSet
from lattice.features.diag.model import (
    Area,
    Diagnosis,
    Finding,
    Sense,
    StackGroup,
    StackPicture,
    StackPlace,
    Subject,
    Verdict,
)

_STEPS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def number(value: float, unit: str) -> str:
    """Format a number: `97 %`, `12.5 GB/s`, `100 Gbit/s`, `3 ms`."""
    if unit == "bytes/s":
        return _scaled(value, "B/s")
    if unit == "bit/s":
        return _scaled(value, "bit/s")
    if unit == "s":
        return seconds(value)
    return f"{_short(value)} {unit}".rstrip()


def seconds(value: float) -> str:
    if value >= 120:
        return f"{value / 60:.0f} min"
    for size, unit in ((1.0, "s"), (1e-3, "ms")):
        if value >= size:
            return f"{_short(value / size)} {unit}"
    return f"{_short(value * 1e6)} µs" if value else "0 s"


def _scaled(value: float, unit: str) -> str:
    for size, letter in _STEPS:
        if value >= size:
            return f"{_short(value / size)} {letter}{unit}"
    return f"{_short(value)} {unit}"


def _short(value: float) -> str:
    """Format with three significant digits."""
    if value == int(value) and abs(value) < 1e6:
        return f"{value:.0f}"
    return f"{value:.2g}" if value < 1 else f"{value:.3g}" if value < 1000 else f"{value:.0f}"


_MARKS = {
    Verdict.OK: ("✓", "+", "green"),
    Verdict.ATTENTION: ("!", "!", "yellow"),
    Verdict.BAD: ("✗", "x", "red"),
    Verdict.UNKNOWN: ("—", "-", "dim"),
}
_TITLES = {
    Area.JOB: "Job",
    Area.NETWORK: "Network",
    Area.STORAGE: "Storage",
    Area.GPU: "GPUs",
    Area.PROCESSOR: "Processors",
    Area.MEMORY: "Memory",
}
_SENSES = {Sense.AT_MOST: "at most", Sense.AT_LEAST: "at least", Sense.OF: "of"}
_LEAST_ROOM, _WIDEST_TITLE = 20, 28
_FEW_FRAMES = 6


def page(diagnosis: Diagnosis, style: Style, *, everything: bool = False) -> str:
    """Return the page; with `everything` good lines have their evidence too."""
    sick = [each for each in diagnosis.findings if each.verdict.is_sick]
    fine = [each for each in diagnosis.findings if each.verdict is Verdict.OK]
    unknown = [each for each in diagnosis.findings if each.verdict is Verdict.UNKNOWN]
    lines = [_head(diagnosis, style), *_verdict(diagnosis, style)]
    for each in sick:
        lines += ["", *_sick(each, diagnosis, style)]
    for area, title in _TITLES.items():
        of_area = [each for each in fine if each.area is area]
        if of_area:
            usual = Counter(each.source for each in of_area).most_common(1)[0][0]
            source = style.paint(f"source: {inert(usual)}", "dim")
            lines += ["", f"{style.paint(title, 'bold')}  {source}"]
            for each in of_area:
                lines += _fine(each, usual, style, everything=everything)
    if unknown:
        lines += ["", style.paint("Not known", "bold"), *_unknown(unknown, style)]
    lines += ["", *(style.paint(_fit(inert(each), style), "dim") for each in _foot(diagnosis))]
    return "\n".join(lines) + "\n"


def _head(diagnosis: Diagnosis, style: Style) -> str:
    ran_s = (diagnosis.taken - diagnosis.started).total_seconds() if diagnosis.started else None
    parts = [diagnosis.id, diagnosis.name, diagnosis.state.value, duration(ran_s), diagnosis.nodes]
    return style.paint(_fit(inert("  ".join(parts)), style), "bold")


def _fit(text: str, style: Style) -> str:
    return cut(text, style.width) if style.width is not None else text


def _mark(verdict: Verdict, style: Style) -> str:
    sign, plain, colour = _MARKS[verdict]
    return style.paint(style.glyph(sign, plain), colour)


def _verdict(diagnosis: Diagnosis, style: Style) -> Iterator[str]:
    """Sign and word, so that neither colour nor a special font is needed."""
    colour = _MARKS[diagnosis.verdict][2]
    word = diagnosis.verdict.value
    room = _room(style, 2 + len(word) + 2)
    first, *rest = wrapped(inert(diagnosis.words), room) or [""]
    yield f"{_mark(diagnosis.verdict, style)} {style.paint(f'{word}:', f'bold {colour}')} {first}"
    yield from (" " * (4 + len(word)) + each for each in rest)


def _room(style: Style, margin: int) -> int:
    return max((style.width or 100) - margin, _LEAST_ROOM)


def _sick(finding: Finding, diagnosis: Diagnosis, style: Style) -> Iterator[str]:
    figures = _figures(finding)
    where = _where(finding, diagnosis)
    title = inert("  ".join(each for each in (finding.title, figures, where) if each))
    word = finding.verdict.value
    head = cut(title, _room(style, 4 + len(word))) if style.width is not None else title
    yield f"{_mark(finding.verdict, style)} {word}  {style.paint(head, 'bold')}"
    for piece in wrapped(_sentence(finding.evidence), _room(style, 4)):
        yield f"    {piece}"
    arrow = style.glyph("→", ">")
    for index, piece in enumerate(wrapped(_remedy(finding, diagnosis), _room(style, 6))):
        yield f"    {arrow if not index else ' '} {piece}"
    yield style.paint(f"    source: {inert(finding.source)}", "dim")


def _sentence(text: str) -> str:
    sentence = inert(text)
    first = sentence.split(" ", 1)[0]
    # A word is capitalised at the start of a sentence; a name is not.
    sentence = sentence[:1].upper() + sentence[1:] if first.isalpha() else sentence
    return sentence + ("" if sentence.endswith((".", "?", "!")) else ".")


def _remedy(finding: Finding, diagnosis: Diagnosis) -> str:
    """Insert the job's id and the faulty nodes into the commands."""
    nodes = _nodes(finding.subjects)
    text = finding.remedy.replace("`scancel`", f"`scancel {diagnosis.id}`")
    for verb in ("diag", "top"):
        text = text.replace(f"lattice {verb} ID", f"lattice {verb} {diagnosis.id}")
    return inert(text.replace("--exclude=NODE", f"--exclude={nodes}") if nodes else text)


def _nodes(subjects: Iterable[Subject]) -> str:
    """Return the names of their nodes in Slurm's notation."""
    names = sorted({each.node for each in subjects if each.node})
    try:
        return NodeSet(names).fold()
    except ValueError:
        return ",".join(names)


def _where(finding: Finding, diagnosis: Diagnosis) -> str:
    """Return the nodes, ranks or GPUs concerned, or `every node`."""
    names = {each.node for each in finding.subjects if each.node}
    if not names or (len(names) == diagnosis.node_count and len(names) > 1):
        return "every node" if names else ""
    ranks = sorted({each.rank for each in finding.subjects if each.rank is not None})
    cards = {each.gpu for each in finding.subjects if each.gpu}
    more = [f"rank {ranks[0]}" if len(ranks) == 1 else f"{len(ranks)} ranks"] if ranks else []
    more += [f"{len(cards)} GPUs"] if len(cards) > 1 else []
    return ", ".join([*more, _nodes(finding.subjects)])


def _figures(finding: Finding) -> str:
    if finding.measured is None:
        return ""
    measured = number(finding.measured, finding.unit)
    if finding.target is None:
        return measured
    return f"{measured} ({_SENSES[finding.sense]} {number(finding.target, finding.unit)})"


_BY_EVIDENCE = frozenset({"between_nodes"})
"""Rules whose good line has names beside its numbers."""


def _fine(finding: Finding, usual: str, style: Style, *, everything: bool) -> Iterator[str]:
    name = inert(finding.title)
    # Where a number alone says little, show the evidence.
    plain = not finding.unit and finding.target is None
    by_evidence = finding.area is Area.STORAGE or plain or finding.rule in _BY_EVIDENCE
    figures = finding.evidence if by_evidence and finding.evidence else _figures(finding)
    figures = figures or finding.evidence
    partly = finding.covered
    if partly.nodes and partly.measured < partly.nodes and finding.rule != "group_span":
        figures += f"  {partly}"
    wide = min(_WIDEST_TITLE, (style.width or 100) // 3)
    title = pad(cut(name, wide), wide)
    text = inert(figures)
    source = f"  [{inert(finding.source)}]" if finding.source != usual else ""
    room = max((style.width or 100) - 9 - cells(title), 1)
    if style.width and room - cells(source) < _LEAST_ROOM:
        source = ""
    shown = cut(text, room - cells(source)) if style.width else text
    yield f"  {_mark(Verdict.OK, style)} ok {title}  {shown}{style.paint(source, 'dim')}"
    if everything:
        evidence = "" if figures.startswith(finding.evidence) else _sentence(finding.evidence)
        for piece in wrapped(
            f"{evidence} Source: {inert(finding.source)}.".strip(), _room(style, 7)
        ):
            yield style.paint(f"       {piece}", "dim")


def _unknown(findings: Iterable[Finding], style: Style) -> Iterator[str]:
    """List each reason once, with the affected checks and nodes."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for each in findings:
        reasons.setdefault((each.reason, _nodes(each.subjects)), []).append(each.title)
    for (reason, nodes), titles in reasons.items():
        where = f" on {nodes}" if nodes else ""
        text = inert(f"{', '.join(dict.fromkeys(titles))}{where}: {reason}")
        for index, piece in enumerate(wrapped(text, _room(style, 4))):
            yield f"  {_mark(Verdict.UNKNOWN, style) if not index else ' '} {piece}"


def _foot(diagnosis: Diagnosis) -> Iterator[str]:
    yield f"{diagnosis.covered} told all they know; {diagnosis.took_s:.1f} s"
    yield from diagnosis.notes
    for each in diagnosis.sources:
        if not each.ok:
            yield f"{each.name} does not answer; the state of the job may be older"


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
        room = _room(style, 2)
        first, *rest = wrapped(inert(trouble), room) or [""]
        lines += [f"{style.glyph('—', '-')} {first}", *(f"  {each}" for each in rest)]
    return "\n".join(lines) + "\n"


def _group(group: StackGroup, style: Style, *, everything: bool) -> Iterator[str]:
    sign, colour = ("!", "yellow") if group.is_odd else (style.glyph("·", "-"), "dim")
    odd = "  (unlike the others)" if group.is_odd else ""
    where = _nodes(group.subjects)
    yield _fit(f"{sign} {inert(group.words)}{odd}  {inert(where)}", style).replace(
        sign, style.paint(sign, colour), 1
    )
    frames = group.frames if everything else group.frames[:_FEW_FRAMES]
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
