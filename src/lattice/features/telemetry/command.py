"""`lattice telemetry`: show or switch how often a job is sampled."""

from __future__ import annotations

from lattice.base.command import Argument, Command, Option
from lattice.base.errors import UsageError
from lattice.base.moment import parse_duration
from lattice.base.shell import Shell
from lattice.features.telemetry import operations
from lattice.features.telemetry.render import switched_line, telemetry_text

_MODES = ("prod", "debug", "audit")


def telemetry(
    shell: Shell,
    *,
    id: str | None,  # noqa: A002 - the argument's name
    alloc: str | None,
    mode: str | None,
    duration: int | None,
) -> int:
    """Show the mode of an allocation, or switch it."""
    if id and alloc and id != alloc:
        raise UsageError("Two allocations are named.", hint="Name one, with or without --alloc.")
    if duration is not None and mode is None:
        raise UsageError("--duration goes with --mode", hint="Say which: --mode debug.")
    name = shell.reference(id or alloc)
    if mode is None:
        answer = shell.call(operations.get_telemetry(name))
    else:
        answer = shell.call(operations.set_telemetry(name, mode, duration_s=duration or 0))
    if shell.output in {"json", "yaml"}:
        shell.document(answer)
        return 0
    if mode is None:
        shell.write(telemetry_text(answer, shell.style, shell.clock.now()))
        if answer.mode.value == "audit" and not answer.readers:
            # The answer does not tell the two cases apart: only the owner gets readers.
            shell.note("Nobody but the owner has looked at it; or you are not the owner.")
    else:
        shell.write(switched_line(answer, shell.style, shell.clock.now()))
    return 0


TELEMETRY = Command(
    "telemetry",
    summary="How closely a job is measured, and switching that",
    text="Without --mode it says in which mode an allocation is measured, how often, who switched "
    "it and when it reverts by itself. With --mode its owner switches it; `top` and `watch` show "
    "it within seconds, where they are open too.\n\n"
    "prod measures every 30 s. debug measures every second and reverts by itself, after half an "
    "hour if nothing is said; the site caps how many allocations are in debug at once. audit "
    "measures every 30 s, and shows the owner who else has looked at the job, and how.",
    run=telemetry,
    params=(
        Argument("id", required=False, complete="allocations"),
        Option("--alloc", metavar="ID", complete="allocations", help="The same as the argument."),
        Option("--mode", choices=_MODES, help="Measure it like this from now on."),
        Option(
            "--duration",
            metavar="TIME",
            read=parse_duration,
            help="For how long: 90s, 30m, 2h. Debug lasts a day at most.",
        ),
    ),
    examples=(
        ("lattice telemetry 12345", "how closely it is measured"),
        ("lattice telemetry 12345 --mode debug", "every second, for half an hour"),
        ("lattice telemetry --alloc 12345 --mode debug --duration 2h", "for longer"),
        ("lattice telemetry 12345 --mode prod", "as usual again"),
    ),
    permission="any role but ReadOnly, for your own; the mode those who may read its output",
)
