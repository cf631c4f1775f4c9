"""The port `Reservations` by the gate: what it asks, and what it makes of each answer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from lattice.access.grants import GrantSigner
from lattice.adapters.helper.administration import AdministrationGate
from lattice.adapters.helper.channel import HelperChannel
from lattice.adapters.helper.reservations import HelperReservations
from lattice.base import packet
from lattice.base.clock import SystemClock
from lattice.base.errors import ConfigurationError, InternalError, Unavailable
from lattice.base.signatures import SigningKey
from lattice.domain.administration import (
    ListReservations,
    MakeReservation,
    RemoveReservation,
    ReservationList,
)
from lattice.domain.privileged import Answer, Outcome, Question
from lattice.domain.reservation import Reservation, ReservationRefused
from lattice.domain.submission import Unsure

CLAIM = Reservation("lattice-claim-a", "alice", ("n2", "n1"))
DONE = Answer(outcome=Outcome.DONE)


class Scripted(HelperChannel):
    """Gives its answers one after the other, and the last one again."""

    def __init__(self, *answers: Answer) -> None:
        super().__init__(Path("/nowhere"))
        self._answers = list(answers)
        self.asked: list[Question] = []

    async def ask(
        self,
        grant: str,  # noqa: ARG002
        question: Question,
        descriptors: Sequence[int] = (),
        *,
        most_descriptors: int = packet.MOST_DESCRIPTORS,  # noqa: ARG002
    ) -> tuple[Answer, list[int]]:
        assert not descriptors
        self.asked.append(question)
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0], []


def reservations(channel: HelperChannel) -> HelperReservations:
    async def cluster() -> str:
        return "lab"

    signer = GrantSigner(SigningKey.generate(), SystemClock())
    return HelperReservations(AdministrationGate((channel, signer)), cluster)


async def test_each_call_is_one_question() -> None:
    channel = Scripted(DONE)
    await reservations(channel).reserve(CLAIM)
    await reservations(channel).release(CLAIM.name)
    assert channel.asked == [
        MakeReservation(cluster="lab", name=CLAIM.name, user="alice", nodes=("n1", "n2")),
        RemoveReservation(cluster="lab", name=CLAIM.name),
    ]


async def test_a_list_is_read_part_by_part() -> None:
    first = ReservationList(found=(("lattice-claim-a", "alice", "n[1-2]"),), more=True)
    second = ReservationList(found=(("lattice-claim-b", "", ""),), more=False)
    channel = Scripted(
        *(Answer(outcome=Outcome.DONE, output=each.written()) for each in (first, second))
    )
    assert await reservations(channel).reservations() == (
        Reservation("lattice-claim-a", "alice", ("n1", "n2")),
        Reservation("lattice-claim-b", "", ()),
    )
    assert channel.asked == [
        ListReservations(cluster="lab", after=after) for after in ("", "lattice-claim-a")
    ]


@pytest.mark.parametrize(
    "output",
    [
        "",
        "{}",
        ReservationList(found=(), more=True).written(),
        ReservationList(found=(("a", "alice", "n[1-"),), more=False).written(),
    ],
)
async def test_a_list_that_can_not_be_read_is_an_error_of_the_server(output: str) -> None:
    channel = Scripted(Answer(outcome=Outcome.DONE, output=output))
    with pytest.raises(InternalError):
        await reservations(channel).reservations()


async def test_a_bad_question_is_refused_and_not_sent() -> None:
    channel = Scripted(DONE)
    for bad in (
        Reservation("upgrade", "alice", ("n1",)),
        Reservation("lattice-claim-a", "root", ("n1",)),
        Reservation("lattice-claim-a", "alice", ("ALL",)),
    ):
        with pytest.raises(ReservationRefused):
            await reservations(channel).reserve(bad)
    assert channel.asked == []


@pytest.mark.parametrize(
    ("outcome", "message", "kind"),
    [
        (Outcome.FAILED, "Error creating the reservation: Requested nodes are busy",
         ReservationRefused),
        (Outcome.FAILED, "Error creating the reservation: Invalid user id", ReservationRefused),
        (Outcome.FAILED, "Unable to contact slurm controller", Unavailable),
        (Outcome.FAILED, "Access/permission denied", ConfigurationError),
        (Outcome.NOT_OFFERED, "", ConfigurationError),
        (Outcome.ACCOUNT_REFUSED, "no account", ConfigurationError),
        (Outcome.UNSURE, "late", Unsure),
        (Outcome.BUSY, "too many", Unavailable),
        (Outcome.BROKEN, "the helper failed here", InternalError),
    ],
)  # fmt: skip
async def test_each_answer_has_its_error(
    outcome: Outcome, message: str, kind: type[Exception]
) -> None:
    channel = Scripted(Answer(outcome=outcome, message=message))
    with pytest.raises(kind) as error:
        await reservations(channel).reserve(CLAIM)
    assert type(error.value) is kind


async def test_the_words_of_slurm_are_made_safe() -> None:
    channel = Scripted(Answer(outcome=Outcome.FAILED, message="busy \x1b[2J\u202e"))
    with pytest.raises(ReservationRefused) as error:
        await reservations(channel).release(CLAIM.name)
    assert str(error.value).isprintable()


async def test_a_site_that_does_not_allow_it_is_named_the_setting() -> None:
    channel = Scripted(Answer(outcome=Outcome.NOT_OFFERED))
    with pytest.raises(ConfigurationError) as error:
        await reservations(channel).reserve(CLAIM)
    assert "--allow claims" in (error.value.hint or "")
