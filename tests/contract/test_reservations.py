"""What every `Reservations` behind the port promises: the fake, and the gate with a real Slurm."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace

import pytest

from lab.laboratory import Lab
from lattice.base.errors import Unavailable
from lattice.domain.reservation import Reservation, ReservationRefused, Reservations
from tests.contract.gates import gate_reservations
from tests.fakes.in_memory_reservations import InMemoryReservations

CLAIM = Reservation("lattice-claim-contract-1", "alice", ("n1", "n2"))
OTHER = Reservation("lattice-claim-contract-2", "bob", ("n3",))


@dataclass
class Site:
    """Reservations, and what happens around them."""

    reservations: Reservations
    run_job: Callable[[str, str], object]
    """A job of a person on a node, outside every reservation."""
    suspend_job: Callable[[str, str], object]
    """The same, and it is suspended."""
    use: Callable[[Reservation], object]
    """A job in it."""
    end_jobs: Callable[[], None]
    change: Callable[[str], None]
    """Somebody else lets others into it."""
    remove: Callable[[str], object]
    silence: Callable[[], None]


def in_memory() -> Site:
    fake = InMemoryReservations()

    def run_job(user: str, node: str) -> None:
        fake.jobs[node] = user

    def end_jobs() -> None:
        fake.jobs.clear()
        fake.busy.clear()

    def remove(name: str) -> None:
        fake.changed.discard(name)
        del fake.made[name]

    return Site(
        fake,
        run_job,
        run_job,
        lambda reservation: fake.busy.add(reservation.name),
        end_jobs,
        fake.changed.add,
        remove,
        lambda: setattr(fake, "away", True),
    )


def of_lab(lab: Lab) -> Site:
    def run_job(user: str, node: str) -> int:
        job = lab.jobs.submit(user, "-w", node, "-D", "/tmp", wrap="sleep 600")
        lab.jobs.wait_state(job, "RUNNING")
        return job

    def suspend_job(user: str, node: str) -> None:
        job = run_job(user, node)
        lab.ctl(["scontrol", "suspend", str(job)])
        lab.jobs.wait_state(job, "SUSPENDED")

    def use(reservation: Reservation) -> None:
        where = (f"--reservation={reservation.name}", "-D", "/tmp")
        job = lab.jobs.submit(reservation.user, *where, wrap="sleep 600")
        lab.jobs.wait_state(job, "RUNNING")

    def change(name: str) -> None:
        lab.ctl(["scontrol", "update", f"reservationname={name}", "users+=bob"])

    return Site(
        gate_reservations(lab),
        run_job,
        suspend_job,
        use,
        lab.jobs.cancel_all,
        change,
        lambda name: lab.ctl(["scontrol", "delete", f"reservationname={name}"]),
        lab.gate.down,
    )


def _clear(lab: Lab) -> None:
    lab.jobs.cancel_all()
    for each in (CLAIM, OTHER):
        lab.ctl(["scontrol", "delete", f"reservationname={each.name}"], check=False)


@pytest.fixture(params=["in memory", pytest.param("gate", marks=pytest.mark.lab)])
async def site(request: pytest.FixtureRequest) -> AsyncIterator[Site]:
    if request.param == "in memory":
        yield in_memory()
        return
    lab: Lab = request.getfixturevalue("lab")
    _clear(lab)
    try:
        yield of_lab(lab)
    finally:
        lab.gate.up()
        _clear(lab)


async def test_one_is_made_once_listed_and_removed_once(site: Site) -> None:
    made = site.reservations
    assert await made.reservations() == ()
    await made.reserve(replace(CLAIM, nodes=("n2", "n1")))
    await made.reserve(CLAIM)
    await made.reserve(OTHER)
    assert await made.reservations() == (CLAIM, OTHER)
    await made.release(CLAIM.name)
    await made.release(CLAIM.name)
    assert await made.reservations() == (OTHER,)


@pytest.mark.parametrize(
    "changed",
    [{"user": "bob"}, {"nodes": ("n1",)}, {"name": "lattice-claim-contract-2", "user": "bob"}],
    ids=["another person", "other nodes", "overlapping nodes"],
)
async def test_nothing_is_taken_from_one_that_is_there(
    site: Site, changed: dict[str, object]
) -> None:
    await site.reservations.reserve(CLAIM)
    with pytest.raises(ReservationRefused):
        await site.reservations.reserve(replace(CLAIM, **changed))  # type: ignore[arg-type]
    assert await site.reservations.reservations() == (CLAIM,)


@pytest.mark.threat("gate-changes")
@pytest.mark.parametrize(
    "changed",
    [
        {"name": "contract"},
        {"name": "lattice-claim-a,b"},
        {"user": "root"},
        {"user": "nosuchuser"},
        {"user": "alice,bob"},
        {"nodes": ("ALL",)},
        {"nodes": ("n[1-2]",)},
        {"nodes": ("n1", "n9")},
        {"nodes": ()},
    ],
    ids=lambda each: "-".join(map(str, each)) if isinstance(each, tuple) else str(each),
)
async def test_only_one_person_on_nodes_that_exist_by_lattices_names(
    site: Site, changed: dict[str, object]
) -> None:
    with pytest.raises(ReservationRefused):
        await site.reservations.reserve(replace(CLAIM, **changed))  # type: ignore[arg-type]
    assert await site.reservations.reservations() == ()


async def test_a_job_of_another_on_a_node_refuses_it(site: Site) -> None:
    site.run_job("bob", "n2")
    with pytest.raises(ReservationRefused):
        await site.reservations.reserve(CLAIM)
    assert await site.reservations.reservations() == ()
    site.end_jobs()
    await site.reservations.reserve(CLAIM)


async def test_a_suspended_job_of_another_refuses_it_too(site: Site) -> None:
    # Slurm itself reserves such a node, and the job would go on there.
    site.suspend_job("bob", "n2")
    with pytest.raises(ReservationRefused):
        await site.reservations.reserve(CLAIM)
    assert await site.reservations.reservations() == ()


async def test_one_with_a_job_in_it_is_not_removed(site: Site) -> None:
    await site.reservations.reserve(CLAIM)
    site.use(CLAIM)
    await site.reservations.reserve(CLAIM)
    with pytest.raises(ReservationRefused):
        await site.reservations.release(CLAIM.name)
    assert await site.reservations.reservations() == (CLAIM,)
    site.end_jobs()
    await site.reservations.release(CLAIM.name)
    assert await site.reservations.reservations() == ()


async def test_one_that_others_changed_has_no_user_and_is_left_alone(site: Site) -> None:
    await site.reservations.reserve(CLAIM)
    site.change(CLAIM.name)
    assert await site.reservations.reservations() == (replace(CLAIM, user=""),)
    for act in (site.reservations.reserve(CLAIM), site.reservations.release(CLAIM.name)):
        with pytest.raises(ReservationRefused):
            await act
    assert await site.reservations.reservations() == (replace(CLAIM, user=""),)
    site.remove(CLAIM.name)


async def test_one_that_is_not_there_is_unavailable(site: Site) -> None:
    site.silence()
    for act in (
        site.reservations.reserve(CLAIM),
        site.reservations.release(CLAIM.name),
        site.reservations.reservations(),
    ):
        with pytest.raises(Unavailable):
            await act
