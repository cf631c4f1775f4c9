"""A scheduler in memory, for tests of what stands on the port. Passes the port's contract suite."""

from __future__ import annotations

from collections.abc import Collection

from lattice.base.clock import Clock
from lattice.base.errors import Unavailable
from lattice.domain.accounts import AccountTree
from lattice.domain.allocation import Allocation
from lattice.domain.allocation_index import AllocationIndex
from lattice.domain.node import Node, Topology
from lattice.domain.scheduler import LiveCluster, PastQuestion, SchedulerReading
from lattice.domain.source import LIVE, Source

_STALE_AFTER_S = 10.0


class InMemoryScheduler:
    """Holds what it was given; `read` takes a reading, `down` and `past_down` silence it.

    With `past_hangs` the accounting store never answers.
    """

    def __init__(self, clock: Clock, *, cluster_name: str = "lab") -> None:
        self.cluster_name = cluster_name
        self.allocations: list[Allocation] = []
        self.remembered: list[Allocation] = []
        self.nodes: list[Node] = []
        self.accounts = AccountTree()
        self.topology = Topology()
        self.down = False
        self.past_down = False
        self.past_hangs = False
        self.questions: list[PastQuestion] = []
        self.looked_again = 0
        self._clock = clock
        self._index = AllocationIndex()
        self._cluster: LiveCluster | None = None
        self._read_at_s = 0.0

    def read(self) -> None:
        """What the real one does every few seconds."""
        if self.down:
            return
        self._read_at_s = self._clock.monotonic()
        self._index = self._index.next(self.allocations)
        self._cluster = LiveCluster(
            read_at=self._clock.now(),
            allocations=self._index,
            nodes=self.nodes,
            topology=self.topology,
            accounts=self.accounts,
        )

    def live(self) -> SchedulerReading:
        self.read()
        if self._cluster is None:
            raise Unavailable("Slurm has not answered yet.", hint="Try again in a few seconds.")
        age_s = self._clock.monotonic() - self._read_at_s
        return SchedulerReading(
            self._cluster,
            Source(
                name=LIVE,
                ok=age_s <= _STALE_AFTER_S,
                as_of=self._cluster.read_at,
                age_s=age_s,
                error="does not answer" if self.down else None,
            ),
        )

    async def fresh(
        self,
        *,
        nodes: bool = False,  # noqa: ARG002
        accounts: bool = False,  # noqa: ARG002
        users: Collection[str] = (),  # noqa: ARG002
    ) -> SchedulerReading:
        self.looked_again += 1
        return self.live()

    async def past(
        self, question: PastQuestion, *, patience_s: float | None = None
    ) -> tuple[Allocation, ...]:
        self.questions.append(question)
        if self.past_hangs and patience_s is not None:
            raise Unavailable(f"slurmdbd gave no answer within {patience_s:g} s")
        if self.past_down:
            raise Unavailable("slurmdbd does not answer.", hint="Try again in a minute.")
        found = [each for each in self.remembered if _answers(each, question)]
        return tuple(sorted(found, key=lambda each: (each.submitted, each.job_id), reverse=True))


def _answers(allocation: Allocation, question: PastQuestion) -> bool:
    if not question.scope.covers(allocation):
        return False
    if question.reference is not None and not question.reference.matches(allocation):
        return False
    if question.states and allocation.state not in question.states:
        return False
    over = allocation.ended if allocation.state.finished else None
    if question.since is not None and over is not None and over < question.since:
        return False
    first = allocation.first_submitted or allocation.submitted
    return question.until is None or first <= question.until
