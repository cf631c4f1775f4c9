"""`lattice admin doctor`: what works, what does not, and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Protocol

from lattice import __version__
from lattice.base.command import Command, Option
from lattice.base.errors import Unavailable
from lattice.base.shell import Shell
from lattice.domain.release import Fit, fit_of
from lattice.features.doctor import operations
from lattice.features.doctor.model import (
    Check,
    CheckCounts,
    Examination,
    Topic,
    counts_of,
)

_CLOCK_OFF_S = 2.0

ANSWERS = Topic("this_machine.server", "the server answers")
CLOCK = Topic("this_machine.clock", "this machine's clock agrees")
TLS = Topic("this_machine.tls", "the server proves who it is")
VERSION = Topic("this_machine.version", "the client's version fits the server's")


class DoctorShell(Shell, Protocol):
    """A shell that names its server."""

    @property
    def server_url(self) -> str:
        """The address of the server that is tried first."""


def doctor(
    shell: DoctorShell,
    *,
    all: bool,  # noqa: A002 - the option's name
) -> int:
    """Examine, add the checks of this machine, and show all of them."""
    begun_s = shell.clock.monotonic()
    try:
        found = shell.call(operations.examine())
    except Unavailable as error:
        found = _without_server(error, shell.clock.now())
    else:
        checks = machine_checks(
            found, shell.server_url, shell.clock.now(), shell.clock.monotonic() - begun_s
        )
        found = with_checks(found, checks)
    if shell.output in {"json", "yaml"}:
        shell.document(found)
    else:
        from lattice.features.doctor.render import page  # noqa: PLC0415

        shell.page([page(found, shell.style, everything=all or shell.output == "wide")])
    return exit_code(found.counts)


def exit_code(counts: CheckCounts) -> int:
    """0: all is ok or off. 110: a warning. 111: a failure. 112: something is unknown, no more."""
    if counts.failed:
        return 111
    if counts.warning:
        return 110
    return 112 if counts.unknown else 0


def with_checks(found: Examination, more: Iterator[Check]) -> Examination:
    checks = (*found.checks, *more)
    return replace(found, checks=checks, counts=counts_of(checks))


def _without_server(error: Unavailable, now: datetime) -> Examination:
    remedy = error.hint or "Check --api-url, and that lattice-server runs there."
    checks = (ANSWERS.failed(error.message, remedy),)
    return Examination(
        version="", replica="", taken=now, took_s=0.0, counts=counts_of(checks), checks=checks
    )


def machine_checks(
    found: Examination, url: str, now: datetime, elapsed_s: float
) -> Iterator[Check]:
    """The checks that only the client can make. `now` is its clock after the answer."""
    transit_s = max(elapsed_s - found.took_s, 0.0)
    yield ANSWERS.ok(f"{found.replica} at {url}, {transit_s * 1000:.0f} ms besides its examination")
    yield clock(found.taken, now, transit_s)
    yield tls(url)
    yield version(found.version)


def clock(taken: datetime, now: datetime, transit_s: float) -> Check:
    """The server read its clock when it had examined; `transit_s` is for both ways of the call."""
    ahead_s = (now - (taken + timedelta(seconds=transit_s / 2))).total_seconds()
    evidence = f"{abs(ahead_s):.1f} s {'ahead of' if ahead_s > 0 else 'behind'} the server's"
    if abs(ahead_s) - transit_s / 2 > _CLOCK_OFF_S:
        return CLOCK.warning(evidence, "Set this machine's clock: chronyc makestep.")
    return CLOCK.ok(f"within {_CLOCK_OFF_S:g} s of the server's")


def tls(url: str) -> Check:
    if url.startswith("https://"):
        return TLS.ok("its certificate is trusted and has its name")
    host = url.partition("://")[2].rpartition("@")[2].strip("[").partition("/")[0]
    if host.startswith(("127.", "localhost", "::1")):
        return TLS.off("plain HTTP on loopback: the server proves nothing")
    return TLS.warning("plain HTTP: the token can be read on its way", "Use an https:// address.")


def version(server: str) -> Check:
    if server == __version__:
        return VERSION.ok(server)
    evidence = f"client {__version__}, server {server}"
    match fit_of(__version__, server):
        case Fit.FITS:
            return VERSION.ok(evidence)
        case Fit.TOO_NEW:
            remedy = "Upgrade the servers, or use an older lattice here."
        case _:
            remedy = "Install the server's version of lattice here."
    return VERSION.warning(evidence, remedy)


DOCTOR = Command(
    "admin doctor",
    summary="What works and what does not, with what to do",
    text="Measures every engine, certificates, disks, clocks and agents at once, and names what is "
    "wrong with the sentence to do. ✓ is measured and well, ! needs attention, ✗ is broken, — is "
    "not known or not used: it is never ✓. Groups without a problem take one line each; --all "
    "shows every check.\n\n"
    "The exit code is 0 if all is well, 110 for a warning, 111 for a failure, and 112 if nothing "
    "is worse than unknown.",
    run=doctor,
    params=(Option("-a", "--all", help="Every check with what was measured."),),
    examples=(
        ("lattice admin doctor", "problems, and a line for each group"),
        ("lattice admin doctor --all", "every check with its numbers"),
        ("lattice admin doctor -o json", "for a monitor"),
    ),
    permission="SystemAdmin or Operator",
)
