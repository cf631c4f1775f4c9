"""What a job wrote, for the server itself: read as the job's user, by the service for people."""

from __future__ import annotations

from lattice.access.actor import Actor
from lattice.base.errors import Unavailable
from lattice.domain.job_text import JobText
from lattice.domain.logs import LogKind
from lattice.features.logs.model import LARGEST_PAGE, LogBlock, LogQuery
from lattice.features.logs.service.log_service import LogService

_MOST_BYTES = 4 * 1024 * 1024
_MOST_PAGES = 8


class JobTextReader:
    """The port `JobTexts`. `service` is set once logs are served."""

    def __init__(self) -> None:
        self.service: LogService | None = None

    async def of(self, name: str, user: str) -> JobText:
        """The standard output of a job of this user, at most 4 MiB."""
        if self.service is None:
            raise Unavailable("This server does not serve logs.")
        actor = Actor(sub="lattice-server", user=user)
        pieces: list[str] = []
        cursor, finished = "", False
        for _ in range(_MOST_PAGES):
            query = LogQuery(limit=LARGEST_PAGE, stream=(LogKind.STDOUT,), cursor=cursor)
            page = await self.service.page(actor, name, query)
            pieces += [each.text for each in page.records if isinstance(each, LogBlock)]
            cursor, finished = page.cursor, page.finished
            if not cursor or sum(map(len, pieces)) > _MOST_BYTES:
                break
        return JobText("".join(pieces)[:_MOST_BYTES], complete=finished)
