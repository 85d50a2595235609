"""The boundary around sources of drafts: whatever one of them raises costs its drafts, and nothing else.

A draft can only cost time. So every call of a source is made here; a source that raises is dropped for good with one
sentence, and all texts go on without it. A grammar is no draft: an answer must follow it, so its request fails.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import ParamSpec, TypeVar

from actors.verifier.sources.source import Source
from protocols.errors import RequestError

log = logging.getLogger("duoactor.verifier")
T = TypeVar("T")
P = ParamSpec("P")


class Sources:
    """The sources of one verifier, by name, without those that were dropped."""

    def __init__(self, sources: Iterable[Source], counters: dict[str, int]) -> None:
        """``counters``: of the verifier's status, where dropped sources are counted."""
        self._known = {source.name: source for source in sources}
        self._dropped = set[Source]()
        self._named = dict[tuple[str, ...], list[Source]]()  # those of a tuple of names
        self._counters = counters

    def __getitem__(self, name: str) -> Source:
        return self._known[name]

    def __iter__(self) -> Iterator[Source]:
        """Over a copy: a source may be dropped meanwhile."""
        return iter([*self._known.values()])

    def named(self, names: tuple[str, ...]) -> list[Source]:
        """Those of ``names`` that there are, in that order. The list is shared, and never changed."""
        if names not in self._named:
            self._named[names] = [self._known[name] for name in names if name in self._known]
        return self._named[names]

    def ask(self, source: Source, otherwise: T, call: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        """The result of a ``call`` of ``source``, or ``otherwise`` if it is dropped, now or before. A source that binds
        the output raises, and so does whatever cannot serve a request."""
        if source in self._dropped:
            return otherwise
        try:
            return call(*args, **named)
        except Exception as error:
            self.failed(source, error)
            return otherwise

    def failed(self, source: Source, error: Exception) -> None:
        """Drop a source because of ``error``. That is raised if the output must follow the source, or for a request."""
        if source.binds or isinstance(error, RequestError):
            raise error
        if source in self._dropped:
            return
        self._dropped.add(source)
        self._named.clear()
        del self._known[source.name]
        self._counters["dropped_sources"] += 1
        log.error(
            "drafts from source %s end here, and texts go on without them: it failed (%s: %s)",
            source.name,
            type(error).__name__,
            error,
        )
        log.debug("the failure of source %s", source.name, exc_info=error)
