"""No answer about a job that is over is empty, unless its output is known to be."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lattice.access.allocation_finder import AllocationFinder
from lattice.access.grants import GrantSigner
from lattice.access.output import OutputAccess
from lattice.base.errors import DataUnavailable, Unavailable, status_of
from lattice.base.signatures import SigningKey
from lattice.domain.logs import GapCause, LogKind
from lattice.domain.nodejobs import WatchPause
from lattice.domain.stream import NodeStreams, StreamQuestion
from lattice.features.logs.model import LogBlock, LogGap, LogNote, LogQuery, NoteKind
from lattice.features.logs.node.feed import LogFeed
from lattice.features.logs.node.missed import UnreadJobs
from lattice.features.logs.service import log_query as look
from lattice.features.logs.service.archive import Archive
from lattice.features.logs.service.live_feeds import Feeds
from lattice.features.logs.service.log_service import LogService
from lattice.foundation.attempt_finder import AttemptFinder
from tests.fakes.echoing_nodes import QueueCarrier, answered_by
from tests.fakes.sharing import sharing_parts
from tests.unit.features.logs.test_feed import Capture
from tests.unit.features.logs.test_reading import ALICE, Site, numbered, texts_of

DATA_UNAVAILABLE = 76


@dataclass
class Node:
    """What an agent has of the job: what it follows, and what it remembers."""

    unread: UnreadJobs
    followed: list[Any] = field(default_factory=list)
    away: bool = False


class Nodes(NodeStreams):
    """Agents behind real feeds."""

    def __init__(self, nodes: dict[str, Node]) -> None:
        self.nodes = nodes

    def linked_to(self, node: str) -> str:
        return node

    @asynccontextmanager
    async def open(self, question: StreamQuestion) -> AsyncIterator[QueueCarrier]:
        node = self.nodes[question.node]
        if node.away:
            raise Unavailable(f"No server holds the link of node {question.node}.")
        feed = LogFeed(lambda: node.followed, unread=node.unread)
        async with answered_by(feed, question.opening) as carrier:
            yield carrier


class Cluster(Site):
    """A job of two nodes that is over, with real feeds to both."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        began = self.began.timestamp()
        self.nodes = {
            name: Node(UnreadJobs(folder / f"{name}.json", began - 3600)) for name in ("n1", "n2")
        }
        self.captures: list[Capture] = []
        sharing = sharing_parts(self.state)
        self.feeds = Feeds(
            Nodes(self.nodes),
            GrantSigner(SigningKey.generate(), self.clock),
            self.clock,
            AttemptFinder(self.scheduler, self.clock).of,
        )
        finder = AllocationFinder(self.scheduler, self.clock, sharing.shares)
        self.reading = LogService(
            self.scheduler,
            OutputAccess(finder, sharing.notes, self.clock),
            Archive(self.objects),
            self.feeds,
            self.clock,
        )

    def follow(self, node: str, *, trouble: str = "", stream_trouble: str = "") -> Capture:
        """The agent has the job, and a stream of it unless it says why not."""
        capture = Capture(self.folder / node)
        capture.streams[0].trouble = stream_trouble
        if trouble:
            capture.streams = ()  # type: ignore[assignment]
        started = self.began.timestamp() + 0.5
        self.nodes[node].followed.append(
            SimpleNamespace(
                identity=SimpleNamespace(job_id=7, started=started),
                capture=capture,
                trouble=trouble,
                noticed_late=False,
            )
        )
        self.captures.append(capture)
        return capture

    def end_now(self) -> None:
        """It ended this moment."""
        (job,) = self.scheduler.allocations
        self.scheduler.allocations[:] = [replace(job, ended=self.clock.now())]
        self.scheduler.read()

    async def refusal(self, **query: Any) -> DataUnavailable:
        """The error of a page, a stream and a list of streams: the same for each."""
        with pytest.raises(DataUnavailable) as refused:
            await self.page(**query)
        with pytest.raises(DataUnavailable):
            async for _ in await self.reading.stream(ALICE, "7", LogQuery(**query)):
                pass
        with pytest.raises(DataUnavailable):
            await self.reading.streams(ALICE, "7", LogQuery(**query))
        assert status_of(refused.value).exit == DATA_UNAVAILABLE
        assert refused.value.hint
        return refused.value


async def _read_all(records: AsyncIterator[Any]) -> None:
    async for _ in records:
        pass


@pytest.fixture
async def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Cluster]:
    monkeypatch.setattr(look, "_DRAIN_S", -1.0)
    made = Cluster(tmp_path)
    yield made
    await made.feeds.aclose()
    for each in made.captures:
        each.spool.close()


@pytest.mark.spec("LOG-3")
async def test_the_agent_was_away(cluster: Cluster) -> None:
    began = cluster.began.timestamp()
    for node in cluster.nodes.values():
        node.unread.add_absence(WatchPause(began + 60, began + 120))
    message = (await cluster.refusal()).message
    since = cluster.began + timedelta(seconds=60)
    assert "n1 and 1 more: the agent was away from" in message
    assert f"{since:%Y-%m-%dT%H:%M:%SZ}" in message


@pytest.mark.spec("LOG-3")
@pytest.mark.parametrize(
    "trouble",
    [
        "lattice-helper on the node does not answer.",
        "the agent can't write to its disk: No space left on device",
    ],
)
async def test_the_agent_can_not_open_or_keep_it(cluster: Cluster, trouble: str) -> None:
    cluster.follow("n1", trouble=trouble)
    assert f"n1: {trouble.rstrip('.')};" in (await cluster.refusal()).message


@pytest.mark.spec("LOG-3")
async def test_the_file_was_gone(cluster: Cluster) -> None:
    cluster.nodes["n1"].unread.add_job(7, cluster.began.timestamp(), "no such file.")
    assert "n1: no such file;" in (await cluster.refusal()).message


@pytest.mark.spec("LOG-3")
async def test_there_never_was_a_file(cluster: Cluster) -> None:
    for node in cluster.nodes.values():
        node.unread.add_job(7, cluster.began.timestamp(), "")
    assert "no output file" in (await cluster.refusal()).message


@pytest.mark.spec("LOG-3")
async def test_no_agent_ever_saw_it(cluster: Cluster) -> None:
    assert "no record of a process" in (await cluster.refusal()).message


@pytest.mark.spec("LOG-3")
async def test_the_node_does_not_answer(cluster: Cluster) -> None:
    for node in cluster.nodes.values():
        node.away = True
    assert "does not answer (No server holds the link" in (await cluster.refusal()).message


@pytest.mark.spec("LOG-3")
async def test_an_agent_of_the_release_before_gives_no_reason(cluster: Cluster) -> None:
    for node in cluster.nodes.values():
        node.unread = None  # type: ignore[assignment]
    assert "why is not known" in (await cluster.refusal()).message


@pytest.mark.spec("LOG-3")
async def test_of_a_job_that_ended_this_moment_it_may_still_arrive(cluster: Cluster) -> None:
    cluster.end_now()
    for name in cluster.nodes:
        cluster.follow(name)
    error = await cluster.refusal()
    assert "it has not arrived yet" in error.message
    assert "try again" in str(error.hint)


@pytest.mark.spec("LOG-3")
async def test_a_full_spool_that_kept_nothing_is_a_reason(cluster: Cluster) -> None:
    cluster.follow("n1", stream_trouble="the spool is full")
    assert "n1: the spool is full" in (await cluster.refusal()).message


@pytest.mark.spec("LOG-3")
async def test_a_full_spool_that_kept_some_lines_shows_them_and_names_the_rest(
    cluster: Cluster,
) -> None:
    capture = cluster.follow("n1", stream_trouble="the spool is full")
    capture.spool.add(b"kept\n", cluster.ms(1))
    page = await cluster.page()
    assert texts_of(page) == ["kept"]
    notes = [each for each in page.records if isinstance(each, LogNote)]
    assert (NoteKind.NOT_ARCHIVING, "n1", "the rest is not read yet (the spool is full)") in [
        (each.kind, each.node, each.words) for each in notes
    ]


@pytest.mark.spec("LOG-3")
async def test_a_node_whose_output_is_missing_beside_anothers_is_named(cluster: Cluster) -> None:
    cluster.end_now()
    await cluster.put("n1", numbered(3))
    cluster.follow("n2", trouble="lattice-helper on the node does not answer.")
    page = await cluster.page()
    assert len(texts_of(page)) == 3
    assert [each.node for each in page.records if isinstance(each, LogNote) and each.words] == [
        "n2"
    ]


@pytest.mark.spec("LOG-3")
async def test_following_a_job_that_ends_without_any_stream_ends_with_the_reason(
    cluster: Cluster,
) -> None:
    cluster.end_now()
    cluster.follow("n1", trouble="lattice-helper on the node does not answer.")
    followed = await cluster.reading.stream(ALICE, "7", LogQuery(follow=True))
    with pytest.raises(DataUnavailable, match="lattice-helper"):
        await asyncio.wait_for(_read_all(followed), timeout=60)


@pytest.mark.spec("LOG-3")
@pytest.mark.parametrize("query", [{}, {"stream": (LogKind.STDERR,)}, {"nodes": ("n2",)}])
async def test_output_that_is_known_to_be_empty_is_no_error(
    cluster: Cluster, query: dict[str, Any]
) -> None:
    await cluster.put("n1", [])
    page = await cluster.page(**query)
    assert texts_of(page) == []
    assert page.finished


@pytest.mark.spec("LOG-3")
async def test_an_empty_stream_that_its_node_has_read_to_the_end_is_no_error(
    cluster: Cluster,
) -> None:
    cluster.follow("n1").over = True
    cluster.nodes["n2"].unread.add_job(7, cluster.began.timestamp(), "")
    page = await cluster.page()
    assert not [each for each in page.records if isinstance(each, LogBlock)]


@pytest.mark.spec("LOG-3")
async def test_a_gap_alone_is_an_answer(cluster: Cluster) -> None:
    capture = cluster.follow("n1")
    capture.spool.add_gap(GapCause.UNREADABLE, None, cluster.ms(1))
    page = await cluster.page()
    assert [each.cause for each in page.records if isinstance(each, LogGap)] == [
        GapCause.UNREADABLE
    ]


@pytest.mark.spec("LOG-3")
async def test_an_empty_answer_of_a_job_that_runs_is_no_error(cluster: Cluster) -> None:
    (job,) = cluster.scheduler.allocations
    cluster.scheduler.allocations[:] = [replace(job, ended=None)]
    cluster.scheduler.read()
    assert not texts_of(await cluster.page())


@pytest.mark.spec("LOG-3")
async def test_a_reason_can_not_act_on_a_terminal(cluster: Cluster) -> None:
    cluster.follow("n1", trouble="\x1b[2Jgone" + "x" * 5000)
    message = (await cluster.refusal()).message
    assert "\x1b" not in message
    assert len(message) < 1000
