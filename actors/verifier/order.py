"""The order in which streams are served.

Callers are served in the order in which their requests come. A ``priority`` exchanges the turns of one owner's
requests: no number puts a caller before requests of others."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import TypeAlias

from actors.verifier.streams import Stream

Owner: TypeAlias = tuple[bytes, str]  # the key of the connection, and the salt that a gateway makes of an API key


def in_order(streams: Iterable[Stream], owner: Callable[[Stream], Owner]) -> list[Stream]:
    """The first is served first, the last is preempted first. The exchange is kept: of a request that lets another
    pass, later requests of other owners come before it."""
    own: dict[Owner, list[Stream]] = defaultdict(list)
    for stream in streams:
        own[owner(stream)].append(stream)
    for same in own.values():
        turns = sorted(stream.times.turn for stream in same)
        for stream, turn in zip(sorted(same, key=_rank), turns, strict=True):
            stream.times.turn = turn
    return sorted((stream for same in own.values() for stream in same), key=lambda s: (s.times.turn, s.times.arrived))


def _rank(stream: Stream) -> tuple[int, float]:
    return stream.message.priority, stream.times.arrived
