"""Bounds what each peer's messages may take of the verifier's time: beyond it they are dropped unread for a while."""

from __future__ import annotations

from collections.abc import Callable

from actors.verifier.state import State
from protocols.messages import Role

# A peer's share of the verifier's time, and what a drafter has more for each lease. Heartbeats take 0.01%. With the
# bundled pair, whose rounds are the shortest, an honest drafter of eight streams takes 0.6 to 0.9% for each of them, at
# some 75 µs a message. One of a lone stream sends some 400 messages a second where rounds take 5 ms: 3%, and 6% on a
# core half as fast.
SHARE = 0.002
LEASE_SHARE = 0.06
NEWCOMERS, NEWCOMERS_SHARE = b"", 0.03  # the account of all newcomers together, and its share
# A client's share, its requests not counted. A Status, its dearest message, takes some 0.2 ms: 250 a second.
CLIENT_SHARE = 0.05
BURST_S = 0.01  # what a peer may owe beyond its share before it is dropped: some 130 messages
# A message's largest charge: beyond it the machine was busy.
MAX_CHARGE_S = 0.002
# Peers that were welcomed less than NEW_S ago share one budget: a dropped peer could always connect anew.
NEW_S = 1.0
NEWCOMERS_BURST_S = 0.25  # 64 clients that say Hello and ask at once, each message charged MAX_CHARGE_S


class Floods:
    """A token bucket for each key (for each peer, where there are none), and one for all newcomers. Times are seconds.

    Clients' requests are exempt: they are what the verifier is for. All other messages may be lost without harm, even a
    Hello, which is repeated. What a new client takes is charged to the newcomers all the same, so that fewer of them
    are welcomed."""

    def __init__(
        self, state: State, role: Callable[[bytes], Role | None], account: Callable[[bytes], bytes] = lambda peer: peer
    ) -> None:
        """``role``: what a peer was welcomed as; ``account``: who pays for it, which all connections of a key share."""
        self._state, self._role, self._account = state, role, account
        self._flooding = set[bytes]()  # peers whose messages were dropped lately
        self._welcomed: dict[bytes, float] = {}  # when peers with a role were first read
        self._debts: dict[bytes, tuple[float, float]] = {}  # what each account owes, and as of when
        self._dropped: set[bytes] = set()  # accounts that are dropped, until they owe nothing

    def charge(self, peer: bytes, spent_s: float, now: float, exempt: bool = False) -> None:
        """A message of the peer was read and handled in ``spent_s``. ``exempt``: its account owes nothing for it."""
        cost = min(MAX_CHARGE_S, spent_s)
        if self._is_new(peer, now):
            most = NEWCOMERS_BURST_S + NEW_S * NEWCOMERS_SHARE  # the next one is read so soon after a flood has ended
            self._debts[NEWCOMERS] = (min(most, self._debt(NEWCOMERS, now) + cost), now)
        if not exempt:
            account = self._account(peer)
            if self._role(peer) is Role.CLIENT:
                cost *= SHARE / CLIENT_SHARE
            self._debts[account] = (self._debt(account, now) + cost, now)

    def drops(self, peer: bytes, now: float) -> bool:
        """Whether the message that has just arrived from the peer is to be dropped unread."""
        flood = self._debt(NEWCOMERS, now) > NEWCOMERS_BURST_S
        newcomer = flood and self._role(peer) is not Role.CLIENT and self._is_new(peer, now)
        dropped = self._owes(self._account(peer), now) or newcomer
        if dropped:
            self._flooding.add(peer)
        return dropped

    def unwanted(self, peer: bytes) -> bool:
        """Whether a connection whose message was dropped is better ended: it has no role, and its own account owes."""
        return self._role(peer) is None and self._account(peer) in self._dropped

    @property
    def flooding(self) -> int:
        """How many connections had messages dropped lately."""
        return len(self._flooding)

    def _owes(self, account: bytes, now: float) -> bool:
        if self._debts.get(account, (0.0, now))[0] > BURST_S:
            self._dropped.add(account)
        if account in self._dropped and self._debt(account, now) == 0:
            self._dropped.remove(account)
            del self._debts[account]
        return account in self._dropped

    def forget(self, now: float) -> None:
        """Forget peers that owe nothing any more. To be called now and then, so that memory stays bounded."""
        self._debts = {account: owed for account, owed in self._debts.items() if self._debt(account, now) > 0}
        self._flooding.clear()
        self._dropped &= self._debts.keys()
        self._welcomed = {peer: since for peer, since in self._welcomed.items() if self._role(peer) is not None}

    def _is_new(self, peer: bytes, now: float) -> bool:
        return self._role(peer) is None or now - self._welcomed.setdefault(peer, now) < NEW_S

    def _debt(self, account: bytes, now: float) -> float:
        owed, since = self._debts.get(account, (0.0, now))
        own = [drafter for drafter in self._state.drafters.by_peer.values() if drafter.account == account]
        share = SHARE * max(1, len(own)) + LEASE_SHARE * sum(drafter.leases for drafter in own)
        return max(0.0, owed - (now - since) * (NEWCOMERS_SHARE if account == NEWCOMERS else share))
