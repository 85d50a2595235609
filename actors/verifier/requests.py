"""The requests that are open, and those that ended but still hold room in the KV pool."""

from __future__ import annotations

from collections.abc import Iterator

from actors.verifier.request import Request


class Requests:
    """By id, in the order in which they came. A request that ended is not among them any more; its room in the pool is
    given back by the loop, between two forwards (``take_ended``), whatever else is asked under its id meanwhile."""

    def __init__(self) -> None:
        self._open: dict[str, Request] = {}
        self._ended: list[Request] = []

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[Request]:
        """Requests may end while one goes through them."""
        return iter(list(self._open.values()))

    def get(self, rid: str) -> Request | None:
        return self._open.get(rid)

    def of(self, state: str) -> list[Request]:
        return [request for request in self._open.values() if request.state == state]

    def add(self, request: Request) -> None:
        if request.rid in self._open:
            raise ValueError(f"request {request.rid} is open already")
        self._open[request.rid] = request

    def end(self, request: Request) -> None:
        if self._open.get(request.rid) is request:
            del self._open[request.rid]
            self._ended.append(request)
        request.ended()

    def take_ended(self) -> list[Request]:
        """Those that have ended since the last call."""
        ended, self._ended = self._ended, []
        return ended
