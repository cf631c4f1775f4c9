"""The live screen of `lattice top`: Textual if it is installed, else a repainted table."""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib.util import find_spec
from urllib.parse import quote

from lattice.base.call import Call
from lattice.base.errors import LatticeError, RateLimited, Unavailable
from lattice.base.shell import Shell
from lattice.base.text import inert
from lattice.domain.metric import Provenance
from lattice.features.top.command.screen_state import JobSize, TopScreenState
from lattice.features.top.model import TopAnswer, TopMode
from lattice.features.top.operations import TopRequest, metrics_call
from lattice.features.top.render.plain import plain

INSTALL = "For sparklines, sorting and filtering: pip install 'lattice-hpc[tui]'"
_NOTHING = 76


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCard:
    """The part of the allocation's card that the screen needs."""

    allocation: JobSize


def job_size(shell: Shell, reference: str) -> JobSize:
    """Ask once. The screen works without it if there is no answer."""
    call = Call("GET", f"/v1/allocations/{quote(reference, safe='')}", JobCard)
    try:
        return shell.call(call).allocation
    except LatticeError:
        return JobSize()


def run_screen(shell: Shell, request: TopRequest, interval_s: float) -> int:
    """Run until `q` or Ctrl-C.

    The first request is sent before the screen opens, so that errors appear as in other commands.
    """
    if not shell.interactive or find_spec("textual") is None:
        return repainted(shell, request, interval_s)
    first = shell.call(metrics_call(replace(request, history=True)))
    from lattice.features.top.command.screen_app import LiveTop  # noqa: PLC0415

    state = TopScreenState(request.mode, job_size(shell, request.id))
    state.take(first, shell.clock.monotonic())

    def ask(mode: TopMode, with_past: bool) -> TopAnswer:
        return shell.call(metrics_call(replace(request, mode=mode, history=with_past)))

    app = LiveTop(ask, state, shell.style, shell.clock, interval_s)
    # Without mouse support, so that the terminal can select and copy text.
    app.run(mouse=False)
    if app.failure is not None:
        raise app.failure
    shown = state.answer or first
    return _NOTHING if shown.origin.source is Provenance.UNAVAILABLE else 0


def repainted(shell: Shell, request: TopRequest, interval_s: float) -> int:
    """Repaint the plain table in place until the job ends."""
    lines = 0
    shown = ""
    if find_spec("textual") is None:
        shell.note(INSTALL)
    while True:
        note, answer = "", None
        try:
            answer = shell.call(metrics_call(request))
            shown = plain(answer, shell.style, shell.clock.now())
        except (RateLimited, Unavailable) as error:
            if not shown:
                raise
            note = f"{inert(error.message)}; trying again.\n"
        text = _fitting(note + shown, shell.style.height)
        back = f"\x1b[{lines}A\x1b[J" if lines else ""
        shell.write(back + text)
        lines = text.count("\n")
        if answer is not None and answer.ended is not None:
            return _NOTHING if answer.origin.source is Provenance.UNAVAILABLE else 0
        shell.sleep(interval_s)


def _fitting(text: str, height: int | None) -> str:
    """Cut to the screen: the cursor can't reach lines that have scrolled off."""
    lines = text.splitlines(keepends=True)
    if height is None or len(lines) < height:
        return text
    left_off = len(lines) - height + 2
    return "".join(lines[: height - 2]) + f"… {left_off} lines more; the window is too low\n"
