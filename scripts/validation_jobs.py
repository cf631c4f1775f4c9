"""The checks of `scripts/validate` that need a job: one that ends by itself, one to cancel."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import TypeVar

from lattice.base.errors import DataUnavailable, LatticeError
from lattice.domain.allocation import State
from lattice.features.logs.model import LogBlock
from lattice.features.submit.model import SubmitRequest
from scripts.validation import Act, Fault, Site, Skipped, expect
from scripts.validation_checks import ABSENT, UPGRADE

T = TypeVar("T")
_PATIENCE_S = 180.0
_LINES = 20


def _until(read: Callable[[], T], wanted: Callable[[T], bool], what: str) -> T:
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        found = read()
        if wanted(found):
            return found
        if time.monotonic() > deadline:
            raise Fault(f"{what} did not happen within {_PATIENCE_S:.0f} s")
        time.sleep(0.5)


def _job(site: Site) -> str:
    if "job" not in site.learned:
        raise Skipped("no job was submitted")
    return str(site.learned["job"])


def submit(site: Site) -> str:
    word = secrets.token_hex(8)
    script = f"#!/bin/sh\nfor i in $(seq {_LINES}); do echo {word} $i; sleep 0.2; done\n"
    request = SubmitRequest(script=script, name="lattice-validate", walltime="5")
    site.learned["key"] = secrets.token_hex(16)
    site.learned["request"], site.learned["word"] = request, word
    site.learned["job"] = site.client.submit(request, idempotency_key=site.learned["key"]).id
    return _job(site)


def submit_once(site: Site) -> str:
    job = _job(site)
    again = site.client.submit(site.learned["request"], idempotency_key=site.learned["key"])
    expect((again.id, again.repeated), (job, True), "the repeated submit")
    return ""


def visible(site: Site) -> str:
    job = _job(site)
    card = site.client.allocation(job).allocation
    expect(card.name, "lattice-validate", "the name")
    if site.learned.get("user"):
        expect(card.user, site.learned["user"], "the owner")
    return card.state.value


def ticket_of_another(site: Site) -> str:
    """A ticket opens one job's terminal, once."""
    job = _job(site)
    answer = site.ask(f"/v1/allocations/{job}/attach/tickets", "POST")
    if answer.status != 200:
        raise Skipped(f"no ticket is given: {answer.error['message']}")
    ticket = answer.json["ticket"]
    offered = f"lattice.attach.v1, lattice.ticket.{ticket}"
    headers = {**UPGRADE, "Sec-WebSocket-Protocol": offered}
    status = site.ask(f"/v1/allocations/{ABSENT[0]}/attach", token="", headers=headers).status
    if status not in {401, 403}:
        raise Fault(f"a ticket of {job} on another job gets {status}")
    return ""


def logs(site: Site) -> str:
    """Every line, once, in order, while the job writes and to its end."""
    job = _job(site)
    lines: list[str] = []
    stream = site.client.logs(job, follow=True)
    for record in stream:
        if isinstance(record, LogBlock):
            lines += record.text.splitlines()
    word = site.learned["word"]
    wanted = [f"{word} {number}" for number in range(1, _LINES + 1)]
    expect([each for each in lines if each.startswith(word)], wanted, "what was followed")
    return f"{len(wanted)} lines"


def top(site: Site) -> str:
    return _answers(lambda: site.client.metrics(_job(site)))


def diag(site: Site) -> str:
    return _answers(lambda: site.client.diagnose(_job(site)))


def report(site: Site) -> str:
    return _answers(lambda: site.client.report(_job(site)))


def _answers(ask: Callable[[], object]) -> str:
    """A short job may leave no figures; then the answer says so."""
    try:
        ask()
    except DataUnavailable as error:
        return error.message
    return ""


def ended(site: Site) -> str:
    job = _job(site)
    found = _until(
        lambda: site.client.allocation(job).allocation,
        lambda card: card.state.finished,
        "the end of the job",
    )
    expect(found.state, State.COMPLETED, "the state")
    return found.state.value


def stored(site: Site) -> str:
    """After its end the output is read from the object store."""
    job, word = _job(site), site.learned["word"]
    page = site.client.read_logs(job, limit=1000)
    text = "".join(each.text for each in page.records if isinstance(each, LogBlock))
    expect(text.count(word), _LINES, "the number of stored lines")
    return ""


def history(site: Site) -> str:
    job = _job(site)
    _until(
        lambda: {each.id for each in site.client.history(limit=50).allocations},
        lambda ids: job in ids,
        "the job in history",
    )
    return ""


def cancel(site: Site) -> str:
    request = SubmitRequest(script="#!/bin/sh\nsleep 300\n", name="lattice-validate", walltime="5")
    job = site.client.submit(request).id
    site.client.cancel(job)
    found = _until(
        lambda: site.client.allocation(job).allocation.state,
        lambda state: state.finished,
        "the end of the cancelled job",
    )
    expect(found, State.CANCELLED, "the state")
    return job


def cancel_absent(site: Site) -> str:
    answer = site.ask("/v1/allocations/999999999/cancel", "POST")
    expect(answer.status, 404, "the status")
    return ""


def clean(site: Site) -> str:
    """Nothing of this run goes on."""
    for each in site.client.allocations().allocations:
        if each.name == "lattice-validate" and not each.state.finished:
            try:
                site.client.cancel(each.id)
            except LatticeError as error:
                raise Fault(f"{each.id}: {error.message}") from None
    return ""


JOB_CHECKS: tuple[tuple[str, Act], ...] = (
    ("submit", submit),
    ("the same key submits once", submit_once),
    ("the job is shown", visible),
    ("a ticket opens no other job", ticket_of_another),
    ("logs -f: every line once, in order", logs),
    ("top", top),
    ("diag", diag),
    ("the job completes", ended),
    ("its output is stored", stored),
    ("report", report),
    ("history has it", history),
    ("cancel", cancel),
    ("cancel of an absent job: 404", cancel_absent),
    ("nothing is left running", clean),
)
