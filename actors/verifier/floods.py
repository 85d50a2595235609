"""Whose messages take more of the verifier's time than they can be worth. They are dropped unread for a while."""

from __future__ import annotations

from collections.abc import Callable

from actors.verifier.state import State
from protocols.messages import Role

# Shares of the verifier's time. Heartbeats take 0.01% of it; an honest drafter's messages 0.6 to 0.9% for each of eight
# streams of the bundled pair, some 75 µs a message. It has the shortest rounds.
SHARE = 0.002
LEASE_SHARE = 0.03
BURST_S = 0.01  # beyond its share, some 130 messages
READ_S = 5e-6  # taking a message from its socket
# Of one message: what a newcomer makes the verifier find out once (40 ms for a first setting) is no flood, and
# would keep an honest drafter unheard for longer than it is believed to live.
MOST_S = 0.002
# Those who have not been welcome for so long share one budget: a peer that is dropped unread can connect anew.
NEW_S = 1.0
NEWCOMERS_SHARE = 0.05
NEWCOMERS_BURST_S = 0.25  # 64 clients that say Hello and ask at once, each message charged as the longest
NEWCOMERS_MOST_S = 0.3  # what they owe at most: the next is heard a second after a flood has ended


class Floods:
    """Clients are exempt: theirs is the work that the verifier is there for, and they would wait for ever for an answer
    to what was dropped. Everybody else's messages may be lost without harm, a Hello too: it is said again. What a new
    client takes is charged to the newcomers nevertheless, so that fewer are let in."""

    def __init__(self, state: State, role: Callable[[bytes], Role | None]) -> None:
        """``role``: what a peer was welcomed as."""
        self._state, self._role = state, role
        self._welcomed: dict[bytes, float] = {}  # when those with a role were first heard
        self._newcomers = (0.0, 0.0)  # seconds that they owe together, and as of when
        self._debts: dict[bytes, tuple[float, float]] = {}  # of peers: seconds beyond their share, and as of when
        self._dropped: set[bytes] = set()  # peers, until they owe nothing

    def charge(self, peer: bytes, spent_s: float, now: float) -> None:
        """A message of that peer, once it was read, took so long."""
        cost = READ_S + min(MOST_S, spent_s)
        if self._is_new(peer, now):
            self._newcomers = (min(NEWCOMERS_MOST_S, self._owed_by_newcomers(now) + cost), now)
        if self._role(peer) is not Role.CLIENT:
            self._debts[peer] = (self._debt(peer, now) + cost, now)

    def drops(self, peer: bytes, now: float) -> bool:
        if self._role(peer) is Role.CLIENT:
            return False
        if self._owed_by_newcomers(now) > NEWCOMERS_BURST_S and self._is_new(peer, now):
            return True
        if self._debts.get(peer, (0.0, now))[0] > BURST_S:
            self._dropped.add(peer)
        if peer in self._dropped and self._debt(peer, now) == 0:
            self._dropped.remove(peer)
            del self._debts[peer]
        return peer in self._dropped

    def forget(self, now: float) -> None:
        """Those who owe nothing any more; call it now and then."""
        self._debts = {peer: owed for peer, owed in self._debts.items() if self._debt(peer, now) > 0}
        self._dropped &= self._debts.keys()
        self._welcomed = {peer: since for peer, since in self._welcomed.items() if self._role(peer) is not None}

    def _is_new(self, peer: bytes, now: float) -> bool:
        return self._role(peer) is None or now - self._welcomed.setdefault(peer, now) < NEW_S

    def _owed_by_newcomers(self, now: float) -> float:
        owed, since = self._newcomers
        return max(0.0, owed - (now - since) * NEWCOMERS_SHARE)

    def _debt(self, peer: bytes, now: float) -> float:
        owed, since = self._debts.get(peer, (0.0, now))
        drafter = self._state.drafters.of(peer)
        leases = len(drafter.leases) if drafter is not None else 0
        return max(0.0, owed - (now - since) * (SHARE + LEASE_SHARE * leases))
