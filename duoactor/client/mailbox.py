"""Between a connection and whoever reads what came."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from duoactor.client.calls import News
from protocols.errors import DuoactorError


class Mailbox:
    """What came for one call and was not read yet: of a stream at most one chunk per token. Putting in is the event
    loop's, taking out is safe in any thread."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._news: deque[News] = deque()
        self._arrived = asyncio.Event()
        self._clock = clock
        self._unread_since: float | None = None
        self._closed = False

    def put(self, news: News) -> None:
        self._news.append(news)
        if self._unread_since is None:
            self._unread_since = self._clock()
        self._arrived.set()

    async def wait(self) -> None:
        """Until there is something to take, or nothing will come. Cancelling it loses nothing."""
        while not self._news and not self._closed:
            self._arrived.clear()
            await self._arrived.wait()

    def close(self) -> None:
        """Nothing more will come."""
        self._closed = True
        self._arrived.set()

    def take(self) -> News | None:
        """The oldest news, if any; an error is raised."""
        try:
            news = self._news.popleft()
        except IndexError:
            return None
        self._unread_since = self._clock() if self._news else None
        if isinstance(news, DuoactorError):
            raise news
        return news

    def unread_for(self) -> float:
        """Seconds since somebody read, while there was something to read."""
        since = self._unread_since
        return 0.0 if since is None else self._clock() - since
