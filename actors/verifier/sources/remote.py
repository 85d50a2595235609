"""Drafters: processes of their own that grow the trees of the streams that they are lent.

Drafts are filed as they arrive. A message that belongs to no lease of its sender is counted and dropped.
Before a round they are sent what was committed, and it is decided whether the round waits for them.
"""

from __future__ import annotations

from collections.abc import Callable

from actors.tree.tree import Fragment, check_fragment
from actors.verifier.budgets import budget_of, plan_for
from actors.verifier.context import Context
from actors.verifier.drafters import DrafterPeer
from actors.verifier.learning import Learning
from actors.verifier.leases import Leases
from actors.verifier.loans import NOTHING
from actors.verifier.results import Committed
from actors.verifier.sources.bits import DRAFTER
from actors.verifier.sources.source import SLICE, Allowance, Source
from actors.verifier.streams import Stage, Stream
from actors.verifier.waits import Going
from actors.verifier.windows import choose
from protocols.limits import MAX_NODES
from protocols.messages import Decline, DraftStats, Grow, HiddenStates, Resync, Verdict


class Remote(Source):
    name, bit, exclusive = "drafter", DRAFTER, True

    def __init__(
        self, context: Context, leases: Leases, learning: Learning, gone: Callable[[bytes, str], None]
    ) -> None:
        """``gone``: called with a peer that cannot be reached."""
        self.context, self.state = context, context.state
        self.leases, self.learning, self.gone = leases, learning, gone

    def judged_as(self, stream: Stream) -> str:
        return stream.loan.drafter.source if stream.loan.drafter is not None else ""

    def able(self, stream: Stream, allowance: Allowance) -> bool:
        """Not while its CPUs are worth more to the target."""
        price = self.context.price
        prompts = price.target.lends and self.state.requests.of(Stage.PREFILL)
        return not prompts and price.drafter_may_pay(allowance.streams)

    def prepare(self, stream: Stream, most: int = SLICE) -> None:
        """Lend it, unless it is lent; send a head the states of what is computed."""
        if (drafter := stream.loan.drafter) is None:
            self.leases.lend(stream)
        elif (states := self._states(stream, drafter)) is not None:
            self._send(stream, drafter, states)

    def works(self, stream: Stream, drafts: bool) -> None:
        """Whether its drafter is to draft from the next verdict on, or to rest."""
        if stream.loan.drafter is not None:
            stream.loan.plan = plan_for(self.context, stream, stream.loan.drafter) if drafts else NOTHING

    def consult(self, stream: Stream, allowance: Allowance) -> bool:
        """Tell the drafter of what was committed, once after each commit. Returns whether the round waits for it."""
        loan, wait, length = stream.loan, stream.wait, len(stream.text)
        if (drafter := loan.drafter) is None:
            return False
        if wait.decided_at == length:
            if loan.sent_len < length and loan.works:  # in lock-step both sides begin their next step together
                self._tell(stream, drafter, None)
            return False
        wait.decided_at = length
        if not loan.works:
            wait.cancel()
            if loan.plan != loan.sent_plan:
                self._tell(stream, drafter, None)
            return False  # the verdict that ends its rest has all tokens since
        budget, price = budget_of(self.context, stream, drafter), self.context.price
        (chosen,) = choose({stream: budget.window}, allowance, self.context.target.branches, wait.max_window)
        rows = 1 + len(chosen.nodes)
        value = (1.0 + chosen.expected) / price.target(rows)
        alone = allowance.streams == 1
        now_us = self.context.clock() * 1e6
        going = Going(now_us, price.target, value, wait.covered, alone, loan.plan.gamma, budget.wait_us)
        wait.decide(drafter.pace, stream.tree, going)
        waits = wait.until is not None
        if not (wait.rule == "lockstep" and waits):  # in lock-step no phase is cut short
            self._tell(stream, drafter, price.forward(allowance.streams, rows - 1))
        return waits

    def _tell(self, stream: Stream, drafter: DrafterPeer, verify_us: float | None) -> None:
        """Send what was committed since the last verdict, which is many rounds if the drafter rested. ``verify_us``:
        expected length of the next round; None: not known."""
        loan, wait, text = stream.loan, stream.wait, stream.text
        now_us, base = self.context.clock() * 1e6, loan.sent_len
        due = max(1.0, wait.until - now_us) if wait.until is not None else None
        plan = loan.plan if loan.plan != loan.sent_plan else None
        states = self._states(stream, drafter)
        stream.synced()
        awaited = wait.drafts if due is not None else None
        if wait.rule == "lockstep":
            verify_us = None  # so that the drafter sends its phase as a whole
        news = tuple(text.committed[base:])
        rounds = stream.tally.rounds
        verdict = Verdict(stream.rid, loan.epoch, rounds, base, news, due, plan, verify_us, awaited, states)
        if not self.context.send(drafter.peer, verdict):
            self.gone(drafter.peer, "unreachable")

    def _states(self, stream: Stream, drafter: DrafterPeer) -> HiddenStates | None:
        """What its head has not been sent. All but the last message of it is sent here."""
        if drafter.states is None:
            return None
        found = drafter.states.packed(stream.handle)
        for part in found[:-1]:
            self._send(stream, drafter, part)
        return found[-1] if found else None

    def _send(self, stream: Stream, drafter: DrafterPeer, states: HiddenStates) -> None:
        """States alone. What is lost of them costs speed."""
        loan = stream.loan
        verdict = Verdict(stream.rid, loan.epoch, stream.tally.rounds, loan.sent_len, (), states=states)
        self.context.send(drafter.peer, verdict)

    def learn(self, stream: Stream, committed: Committed) -> None:
        if stream.loan.drafter is not None:
            stream.wait.observe(committed.root.best_child(lambda node: node.rank >= 0), committed.tokens[0])

    def arrived(self, peer: bytes, message: Grow) -> None:
        drafter, arrived_us = self.state.drafters.by_peer[peer], self.context.now_us()
        if (stream := self._lent(drafter, message)) is not None:
            if (reason := self._merge(stream, drafter, message, arrived_us)) is not None:
                self._fence(drafter, reason)
            elif stream.delivery.trace is not None:
                stream.delivery.trace.grew(stream.tree, arrived_us)

    def _merge(self, stream: Stream, drafter: DrafterPeer, message: Grow, arrived_us: float) -> str | None:
        """Merge a fragment. Returns None, or why it was fenced off."""
        loan, wait, text = stream.loan, stream.wait, stream.text
        loan.report(drafter.dated(message, arrived_us), message.ranks)
        if not 1 <= message.base_len <= len(text):
            return "base_len"
        if stream.tree.size > 2 * MAX_NODES:  # a tree that nobody prunes
            return "budget"
        fragment = Fragment(message.parents, message.tokens, message.logprobs)
        if check_fragment(fragment, self.context.info.vocab_size, MAX_NODES) is not None:
            return "fragment"
        alive = stream.tree.merge(text.committed, message.base_len, fragment, self.bit)
        if message.sequences > 0:
            loan.sequences = message.sequences
            if message.complete:
                stream.tally.sequences[loan.sequences] += 1
        if message.base_len == loan.sent_len and message.complete:
            wait.end_phase()
        if message.base_len in (loan.sent_len, len(text)) or alive:
            wait.arrived()
        return None

    def resync(self, peer: bytes, message: Resync) -> None:
        if (stream := self._lent(self.state.drafters.by_peer[peer], message)) is None:
            return
        stream.tally.resyncs += 1
        loan, text, have = stream.loan, stream.text, message.have_len
        if not 0 < have < len(text):
            self.context.send(peer, self.leases.opening(stream))
            return
        stream.synced()
        rest = tuple(text.committed[have:])
        self.context.send(peer, Verdict(stream.rid, loan.epoch, stream.tally.rounds, have, rest, None, loan.plan))

    def decline(self, peer: bytes, message: Decline) -> None:
        drafter = self.state.drafters.by_peer[peer]
        if (stream := self._lent(drafter, message)) is not None:
            self.leases.declined(stream, drafter, message)

    def stats(self, peer: bytes, message: DraftStats) -> None:
        drafter = self.state.drafters.by_peer[peer]
        if message.actor_id != drafter.actor_id:
            self._fence(drafter, "name")
        elif message.step_us:
            drafter.reported(message)
            self.learning.reported(drafter)
            self.context.publish(message)

    def _lent(self, drafter: DrafterPeer, message: Grow | Resync | Decline) -> Stream | None:
        """The stream, if the sender holds its lease under the message's epoch; else the message is fenced off."""
        stream = self.state.requests.get(message.rid)
        if stream is not None and stream.loan.drafter is drafter and stream.loan.epoch == message.epoch:
            return stream
        self._fence(drafter, "lease")
        return None

    def _fence(self, drafter: DrafterPeer, reason: str) -> None:
        self.state.counters[f"fenced_{reason}"] += 1
        drafter.fenced()
