"""Whose messages take more of the verifier's time than they can be worth. They are dropped unread for a while."""

from __future__ import annotations

from actors.verifier.state import State

# Shares of the verifier's time. Heartbeats take 0.01% of it; an honest drafter's messages 0.6 to 0.9% for each of eight
# streams of the bundled pair, some 75 µs a message. It has the shortest rounds.
SHARE = 0.002
LEASE_SHARE = 0.03
BURST_S = 0.01  # beyond its share, some 130 messages
READ_S = 5e-6  # taking a message from its socket
# Of one message: what a newcomer makes the verifier find out once (40 ms for a first setting) is no flood, and
# would keep an honest drafter unheard for longer than it is believed to live.
MOST_S = 0.002


class Floods:
    """Clients are exempt: theirs is the work that the verifier is there for, and they would wait for ever for an answer
    to what was dropped. Everybody else's messages may be lost without harm."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._debts: dict[bytes, tuple[float, float]] = {}  # of peers: seconds beyond their share, and as of when
        self._dropped: set[bytes] = set()  # peers, until they owe nothing

    def charge(self, peer: bytes, spent_s: float, now: float) -> None:
        """A message of that peer, once it was read, took so long."""
        if peer not in self._state.clients:
            self._debts[peer] = (self._debt(peer, now) + READ_S + min(MOST_S, spent_s), now)

    def drops(self, peer: bytes, now: float) -> bool:
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

    def _debt(self, peer: bytes, now: float) -> float:
        owed, since = self._debts.get(peer, (0.0, now))
        drafter = self._state.drafters.of(peer)
        leases = len(drafter.leases) if drafter is not None else 0
        return max(0.0, owed - (now - since) * (SHARE + LEASE_SHARE * leases))
