"""`lattice logs --first-error`: which of all ranks fell first, and its last words."""

from __future__ import annotations

from dataclasses import replace

from lattice.base.shell import Shell
from lattice.base.text import inert
from lattice.features.logs import api
from lattice.features.logs.model import LogBlock
from lattice.features.logs.render.lines import LineText

LOOKS_LIKE = (
    r"(?i)(error\b|exception\b|traceback|\bfatal\b|\bcritical\b|\bpanic|segfault"
    r"|segmentation fault|core dumped|out of memory|oom[-_ ]?kill|assert\w* .{0,40}failed"
    r"|\bkilled\b|nccl warn)"
)
"""For RE2. What it takes for an error by mistake `--exclude` leaves out; `--grep` says it anew."""
_BEFORE_BYTES = 1000
_BEFORE, _AFTER = 3, 20


def first_error(shell: Shell, reference: str, choice: api.LogChoice, lines: LineText) -> int:
    """Two questions: which line, and what stands around it in its own file."""
    asked: api.LogChoice = {**choice, "tail": None, "grep": choice["grep"] or LOOKS_LIKE}
    first = _first(shell, reference, asked)
    if first is None:
        what = "matches" if choice["grep"] else "looks like an error"
        shell.note(f"No line {what}.")
        return 0
    around: api.LogChoice = {
        "attempt": choice["attempt"],
        "stream": first.stream.value,
        "nodes": (first.node,),
        "ranks": () if first.rank is None else (first.rank,),
    }
    page = shell.call(
        api.read_logs(
            reference,
            limit=_AFTER + 200,
            offset=max(0, first.offset - _BEFORE_BYTES),
            **around,
        )
    )
    wanted = range(first.seq - _BEFORE, first.seq + _AFTER)
    for each in page.records:
        if isinstance(each, LogBlock) and each.source == first.source:
            shell.write(lines.text(_within(each, wanted)))
    time = lines.stamp(first.time, late=first.late).strip()
    rank = "" if first.rank is None else f" --rank {first.rank}"
    more = f"lattice logs {inert(reference)} --node {inert(first.node)}{rank}"
    shell.note(f"--- the first of all, {time} on {inert(first.node)}; more: {more} ---")
    return 0


def _first(shell: Shell, reference: str, asked: api.LogChoice) -> LogBlock | None:
    page = shell.call(api.read_logs(reference, limit=1, **asked))
    return next((each for each in page.records if isinstance(each, LogBlock)), None)


def _within(block: LogBlock, wanted: range) -> LogBlock:
    """The block without the lines that are not asked for."""
    numbered = enumerate(block.text.splitlines(keepends=True), block.seq)
    kept = [(number, line) for number, line in numbered if number in wanted]
    first = kept[0][0] if kept else block.seq
    text = "".join(line for _, line in kept)
    return replace(block, seq=first, count=len(kept), text=text)
