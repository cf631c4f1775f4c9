"""`lattice logs --first-error`: the first line of all ranks that looks like an error."""

from __future__ import annotations

from dataclasses import replace

from lattice.base.shell import Shell
from lattice.base.text import inert
from lattice.features.logs import operations
from lattice.features.logs.model import LogBlock
from lattice.features.logs.render.lines import LineText

LOOKS_LIKE = (
    r"(?i)(error\b|exception\b|traceback|\bfatal\b|\bcritical\b|\bpanic|segfault"
    r"|segmentation fault|core dumped|out of memory|oom[-_ ]?kill|assert\w* .{0,40}failed"
    r"|\bkilled\b|nccl warn)"
)
"""For RE2. `--exclude` leaves false matches out; `--grep` replaces the pattern."""
_BEFORE_BYTES = 1000
_BEFORE, _AFTER = 3, 20


def first_error(shell: Shell, reference: str, choice: operations.LogChoice, lines: LineText) -> int:
    """Two calls: one finds the line, one reads the lines around it in its stream."""
    asked: operations.LogChoice = {**choice, "tail": None, "grep": choice["grep"] or LOOKS_LIKE}
    found = shell.call(operations.read_logs(reference, limit=1, **asked)).records
    first = next((each for each in found if isinstance(each, LogBlock)), None)
    if first is None:
        what = "matches" if choice["grep"] else "looks like an error"
        shell.note(f"No line {what}.")
        return 0
    around: operations.LogChoice = {
        "attempt": choice["attempt"],
        "stream": first.stream.value,
        "nodes": (first.node,),
        "ranks": () if first.rank is None else (first.rank,),
    }
    page = shell.call(
        operations.read_logs(
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


def _within(block: LogBlock, wanted: range) -> LogBlock:
    """The block without the lines outside of `wanted`."""
    numbered = enumerate(block.text.splitlines(keepends=True), block.seq)
    remaining = [(number, line) for number, line in numbered if number in wanted]
    first = remaining[0][0] if remaining else block.seq
    text = "".join(line for _, line in remaining)
    return replace(block, seq=first, count=len(remaining), text=text)
