"""Lends streams to drafters and takes them back. Each lease has its own epoch, which fences off all others.

A stream without a drafter is offered again with every heartbeat, and at once when a drafter joins or has room again.
"""

from __future__ import annotations

import logging
import math
from functools import partial

from actors.models import KeptStates
from actors.verifier.budgets import may_rest, plan_for
from actors.verifier.context import Context
from actors.verifier.drafters import DrafterPeer
from actors.verifier.streams import Stage, Stream
from protocols.messages import Close, Decline, Open

log = logging.getLogger("duoactor.verifier")
RETRY_S = 5.0  # a lease that found no room costs a message with the whole text, so it is not offered every heartbeat


class Leases:
    def __init__(self, context: Context) -> None:
        self.context, self.state = context, context.state
        # until when a drafter is not offered a request, by its routing id and the request's: seconds, or infinite
        self._declined: dict[tuple[bytes, str], float] = {}

    def lend(self, stream: Stream, to: DrafterPeer | None = None) -> bool:
        """Give the stream to a drafter (None: the best placed one) under a new epoch."""
        open_to_drafts = stream.strategy.drafter and stream.status in (Stage.PREFILL, Stage.DECODE)
        if not open_to_drafts or self._target_comes_first(stream):
            return False
        drafter = to or self._best(stream)
        if drafter is None or not self._takes(drafter, stream):
            return False
        stream.loan.begin(next(self.state.epochs), plan_for(self.context, stream, drafter))
        if not self.context.send(drafter.peer, self.opening(stream)):
            self._end(stream)
            self._declined[drafter.peer, stream.rid] = self.context.clock() + RETRY_S
            return False
        self._declined.pop((drafter.peer, stream.rid), None)
        stream.loan.taken(drafter)
        return True

    def opening(self, stream: Stream) -> Open:
        """The message that gives a drafter the whole text."""
        text, loan = stream.text, stream.loan
        stream.wait.arrived()
        stream.synced()
        prefix = tuple(text.committed)
        return Open(stream.rid, loan.epoch, prefix, text.prompt_len, text.sampling, loan.plan, stream.scope)

    def recall(self, stream: Stream) -> None:
        """End the lease. What the drafter still sends is fenced off by the epoch."""
        if stream.loan.drafter is not None:
            self.context.send(stream.loan.drafter.peer, Close(stream.rid, stream.loan.epoch))
        self._end(stream)

    def ended(self, stream: Stream) -> None:
        """The stream is over; the room that it had at its drafter may be another's."""
        peer = stream.loan.drafter.peer if stream.loan.drafter is not None else None
        self.recall(stream)
        declined = {key: until for key, until in self._declined.items() if key[1] != stream.rid}
        self._declined = {key: until for key, until in declined.items() if key[0] != peer or until == math.inf}
        if len(self._declined) < len(declined):
            self.offer()

    def move(self, old: DrafterPeer, new: DrafterPeer | None) -> int:
        """Hand every lease of ``old`` over to ``new``, as :meth:`hand_over` does; how many went where they should."""
        return sum(self.hand_over(s, new) for s in self.state.requests if s.loan.drafter is old)

    def lose(self, drafter: DrafterPeer) -> None:
        """A drafter is gone: its streams go on with another, or alone."""
        self.state.drafters.by_peer.pop(drafter.peer, None)
        self._declined = {key: until for key, until in self._declined.items() if key[0] != drafter.peer}
        if drafter.states is not None:
            self.leave_states(drafter.states)
        for stream in self.state.requests:
            if stream.loan.drafter is drafter:
                self._end(stream)
                self.lend(stream)

    def leave_states(self, reader: KeptStates) -> None:
        self.context.equipment.compute.start(partial(self.context.target.leave_states, reader))

    def declined(self, stream: Stream, drafter: DrafterPeer, message: Decline) -> None:
        """The drafter does not hold the lease: nothing is expected of it, and another may be offered it."""
        until = math.inf if message.lasting else self.context.clock() + RETRY_S
        self._declined[drafter.peer, stream.rid] = until
        self._end(stream)
        self.lend(stream)

    def offer(self) -> None:
        """Offer the streams without a drafter."""
        for stream in self.state.requests:
            if stream.loan.drafter is None:
                self.lend(stream)

    def replace(self, stream: Stream, drafter: DrafterPeer) -> None:
        """Its drafter rests for such streams: another may be better."""
        other = self._best(stream)
        if other is not None and other is not drafter:
            log.info("%s does not pay for %s; %s takes over", drafter.actor_id, stream.method, other.actor_id)
            self.hand_over(stream, other)

    def hand_over(self, stream: Stream, to: DrafterPeer | None) -> bool:
        """To whoever is best placed if None, or if ``to`` does not take it; whether it went where it should."""
        self.recall(stream)
        moved = self.lend(stream, to)
        if stream.loan.drafter is None:
            self.lend(stream)
        return moved

    def _takes(self, drafter: DrafterPeer, stream: Stream) -> bool:
        """Whether it has room for the text, as far as is known."""
        until = self._declined.get((drafter.peer, stream.rid), 0.0)
        return drafter.holds(len(stream.text)) and self.context.clock() >= until

    def _best(self, stream: Stream) -> DrafterPeer | None:
        """The drafter for a stream: the one that should gain most, with one lease more than it has. One that was never
        tried comes first, and among equals the least burdened, then the fastest. A draining one is never taken, and one
        in reserve only if no other is able."""
        trials, group = self.context.trials, stream.groups[self.state.requests.decoding]
        able = [d for d in self.state.drafters.by_peer.values() if not d.draining and self._takes(d, stream)]
        able = [d for d in able if not d.reserve] or able
        if may_rest(self.context, stream):
            able = [d for d in able if not trials.rests(d.source, group, stream, stream.tally.rounds)]

        def rank(drafter: DrafterPeer) -> tuple[float, int, float]:
            steps, leases = drafter.pace.steps, drafter.leases - (stream.loan.drafter is drafter)
            gain = (trials.expected(drafter.source, group, stream) - 1.0) * steps(1) / steps(leases + 1)
            return round(gain, 2), -leases, -steps(1)

        return max(able, key=rank, default=None)

    def _target_comes_first(self, stream: Stream) -> bool:
        """Whether the target makes more of the drafters' CPUs. It computes a prompt there too, unless a drafter works
        that may not rest: one that reads the prompt meanwhile makes the first token late, and has nothing to guess
        before it."""
        price, rests = self.context.price, may_rest(self.context, stream)
        if stream.status is Stage.PREFILL and price.target.lends:
            return rests or self.state.drafters_idle
        return rests and not price.drafter_may_pay(self.state.requests.decoding)

    def _end(self, stream: Stream) -> None:
        stream.loan.end()
        stream.wait.cancel()
