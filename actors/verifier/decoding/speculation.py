"""The verifier's side of one request: fragments and outcomes in, windows, waits and committed tokens out."""

from __future__ import annotations

import math
from collections.abc import Sequence

from actors.estimate import Estimate
from actors.models import Outcome
from actors.tree.tree import FORCED, Fragment, Node, TokenTree, check_fragment
from actors.tree.window import Cost
from actors.verifier.decoding.draft_log import DraftLog
from actors.verifier.decoding.inline_tree import InlineTree
from actors.verifier.decoding.output import Output
from actors.verifier.decoding.rate import Rate
from actors.verifier.decoding.rounds import NO_OTHERS, Chosen, Committed, Counters, Others
from actors.verifier.decoding.waiting import NO_LIMITS, DrafterPace, RoundLimits, Waiting
from actors.verifier.decoding.windows import Windows
from protocols.messages import Grow, Method, Plan, RequestStats, Sampling, Verdict

MAX_NODES = 512  # in one fragment, and in one tree


class Speculation:
    """The record of one request. Everything but ``committed`` may be lost at any time."""

    def __init__(
        self,
        rid: str,
        prompt: Sequence[int],
        sampling: Sampling,
        plan: Plan,
        vocab_size: int,
        output: Output,
        windows: Windows,
        generated: Sequence[int] = (),
        usual: Estimate | None = None,
    ) -> None:
        """``generated``: tokens that are committed already, of a stream that is resumed; ``windows`` and ``output``
        know them. ``usual``: see :class:`Rate`."""
        self.rid = rid
        self.committed = [*prompt, *generated]
        self.prompt_len = len(prompt)
        self.sampling = sampling
        self.strategy = windows.strategy
        self.plan = plan
        self.vocab_size = vocab_size
        self.output = output
        self.windows = windows
        self.tree = TokenTree(len(self.committed), self.committed[-1])
        self.inline: InlineTree | None = None  # what the verifier's own draft model holds of it, if that drafts for it
        self.epoch = 0
        self.round = 0
        self.counters = Counters()
        self.next: Chosen | None = None  # the next round's window, as long as nothing has come that could change it
        self.rate = Rate(usual)
        self.waiting = Waiting(self.strategy, windows.max_window)
        self.told_plan: Plan | None = None
        self.told_len = len(self.committed)  # that the drafter was told of: its drafting phase began behind them
        self.sequences = 0
        self.draft_log = DraftLog()

    # --- drafts ------------------------------------------------------------------------------------------------------

    def grow(self, message: Grow, forwards: Sequence[tuple[int, int]] = (), trust: float = 1.0) -> str | None:
        """Merge a drafter's fragment; why it was fenced off, or None when it was used. ``forwards``: start and length
        of those of the message, in microseconds of our clock. ``trust``: the factor that its probabilities are taken
        with."""
        if message.epoch != self.epoch:
            return "epoch"
        self.draft_log.add(message, forwards)
        if not 1 <= message.base_len <= len(self.committed):
            return "base_len"
        if self.tree.size > 2 * MAX_NODES:
            return "budget"
        logprobs = message.logprobs
        if trust < 1.0:
            logprobs = tuple(logprob + math.log(trust) for logprob in logprobs)
        fragment = Fragment(message.parents, message.tokens, logprobs)
        if check_fragment(fragment, self.vocab_size, MAX_NODES) is not None:
            return "fragment"
        alive = self.tree.merge(self.committed, message.base_len, fragment)
        if alive:
            self.next = None
        if message.sequences > 0:
            self.sequences = min(message.sequences, 64)
            if message.complete:
                self.counters.count(self.counters.sequences, self.sequences)
        if message.base_len == self.told_len and message.complete:
            self.waiting.end_phase()
        if message.base_len in (self.told_len, len(self.committed)) or alive:
            self.waiting.arrived()
        return None

    def recalled(self) -> None:
        """No drafter has the lease: what one still sends is of no epoch, and nobody is waited for."""
        self.epoch = 0
        self.waiting.cancel()

    @property
    def resting(self) -> bool:
        """Whether the plan in force asks for no drafts."""
        return self.plan.method == Method.VANILLA

    # --- wait or go --------------------------------------------------------------------------------------------------

    def decide_wait(
        self,
        now_us: float,
        pace: DrafterPace | None,
        cost: Cost,
        covered: bool,
        limits: RoundLimits = NO_LIMITS,
        others: Others = NO_OTHERS,
    ) -> int:
        """Called once after each commit: how long may the next round wait for drafts?

        ``covered``: the whole window was accepted, so drafts below it may have survived. Where ``others`` decode, a
        wait ends when a forward does and not when drafts come. Returns the rows that the next round would have as
        things stand; their window is the next round's unless drafts come before it begins.
        """
        waiting = self.waiting
        waiting.cancel()
        if pace is None or self.resting or not waiting.worthwhile(pace):
            return 1 + len(self.choose(cost, others, limits.window).nodes)
        waiting.look(self.tree)
        bare = covered and not self.tree.root.children
        chosen = self.choose(cost, others, limits.window)
        value = (1.0 + chosen.expected) / cost(1 + len(chosen.nodes))
        waiting.decide(now_us, pace, cost, value, bare, self.plan.gamma, limits, others.streams == 0)
        return 1 + len(chosen.nodes)

    def ready(self, now_us: float) -> bool:
        """Whether the next round may begin; ends a wait and counts its length."""
        waited = self.waiting.end(now_us, self.tree)
        self.counters.wait_us += waited or 0.0
        return waited is not None

    # --- rounds ------------------------------------------------------------------------------------------------------

    def prepare(self, most: int) -> None:
        """See :meth:`Windows.prepare`."""
        self.windows.prepare(self.committed, most)

    def choose(self, cost: Cost, others: Others = NO_OTHERS, cap: int | None = None) -> Chosen:
        """The next round's window, after the verifier's own proposers have been heard. It is priced once: a window that
        was chosen when the last round ended holds if no draft has come since, and if there is room for it."""
        if self.next is None or (cap is not None and len(self.next.nodes) > cap):
            self.next = self._choose(cost, others, cap)
        return self.next

    def _choose(self, cost: Cost, others: Others, cap: int | None) -> Chosen:
        left = self.prompt_len + self.sampling.max_tokens - len(self.committed) - 1
        limit = self.windows.most(left, cap)
        if self.windows.sole is not None:
            self.tree = TokenTree(len(self.committed), self.committed[-1])
            return self.windows.proposed(self.tree, self.committed, limit)
        rate = (self.rate.value or 1.0 / cost(1)) + others.rate
        self.guess(rate * others.row_us)
        drafted = self.epoch > 0 or self.inline is not None
        return self.windows.cut(self.tree, limit, cost, rate, others, drafted)

    def guess(self, least: float = 0.0) -> None:
        """See :meth:`Windows.guess`."""
        self.windows.guess(self.tree, self.committed, least)

    def drafted(self, began_us: float, spent_us: float) -> None:
        """The verifier's own draft model made a step for it, and the round waited meanwhile."""
        self.next = None
        self.waited(spent_us)
        self.draft_log.stepped(began_us, spent_us)

    def waited(self, spent_us: float) -> None:
        """The round waited for the verifier's own draft model."""
        self.counters.wait_us += spent_us

    def commit(self, chosen: Chosen, outcome: Outcome) -> Committed:
        """Take the target's word: append, re-root, count, and see whether the request ends."""
        base = len(self.committed)
        tokens = outcome.tokens[: self.output.take(outcome.tokens)]
        accepted = [i < len(outcome.path) for i in range(len(tokens))]
        forced = [chosen.nodes[node].rank == FORCED for node in outcome.path[: len(tokens)]]
        best = self._best_draft() if self.epoch else None
        claim = (math.exp(best.logprob), best.token == tokens[0]) if best is not None else None
        self.waiting.observe(best, tokens[0])
        self.committed.extend(tokens)
        if self.windows.grammar is not None:
            self.windows.grammar.commit(tokens)
        if self.inline is not None:
            self.inline.advance(tokens)
        else:
            self.tree.advance(tokens)
        self.next = None
        self.windows.commit(chosen, outcome.sampled, tokens)
        if self.epoch:
            # Guesses surer than the drafter's would be are in the tree before it is decided whether to wait for it; the
            # others fill up what it left.
            self.windows.merge(self.tree, self.committed, self.waiting.agreement.mean)
        c = self.counters
        c.rounds += 1
        c.drafted += len(chosen.nodes)
        c.accepted += sum(accepted)
        c.forced += sum(forced)
        c.gamma_sum += self.plan.gamma or len(chosen.nodes)  # a priced tree has no gamma but what it verified
        c.count(c.histogram, sum(accepted))
        self.round += 1
        logprobs = outcome.logprobs[: len(tokens)]
        return Committed(base, tokens, accepted, logprobs, self.output.finish, forced, claim)

    def first(self, outcome: Outcome) -> Committed:
        """The token that ends the prefill (or the replay of a resumed stream): the target's own."""
        committed = self.again(outcome)
        self.counters = Counters()
        return committed

    def again(self, outcome: Outcome) -> Committed:
        """The token behind a text that was computed anew, since it had lost its room: a round without drafts."""
        return self.commit(Chosen([], [], []), outcome)

    @property
    def holds_verdict(self) -> bool:
        """Whether the drafter is not to hear of the last round yet: in lock-step a phase is never cut short."""
        return self.strategy.waits == "lockstep" and self.waiting.until is not None

    @property
    def owes_verdict(self) -> bool:
        """Whether a lock-step drafter waits for a verdict that was held back."""
        return self.strategy.waits == "lockstep" and self.told_len < len(self.committed)

    def lent(self, epoch: int, plan: Plan) -> None:
        """A drafter takes the request under that epoch, and is told everything."""
        self.epoch, self.plan, self.told_plan = epoch, plan, plan
        self.waiting.arrived()
        self.waiting.begin_phase()
        self.told_len = len(self.committed)

    def told(self) -> None:
        """The drafter hears of all that is committed, and begins a phase behind it if any of it is news."""
        if self.told_len != len(self.committed):
            self.told_len = len(self.committed)
            self.waiting.begin_phase()

    def verdict(self, now_us: float, verify_us: float | None) -> Verdict:
        """What was committed since the drafter was last told, which may be many rounds if it rested. ``verify_us``:
        expected length of the round that begins next."""
        due = max(1.0, self.waiting.until - now_us) if self.waiting.until is not None else None
        plan = self.plan if self.plan != self.told_plan else None
        self.told_plan = self.plan
        base = self.told_len
        news = tuple(self.committed[base:])
        self.told()
        awaited = self.waiting.drafts if due is not None else None
        if self.strategy.waits == "lockstep":
            verify_us = None  # a phase is told of as a whole
        return Verdict(self.rid, self.epoch, self.round, base, news, due, plan, verify_us, awaited)

    def missed(self, have_len: int) -> Verdict | None:
        """The verdict that brings a drafter at ``have_len`` committed tokens up to date."""
        self.counters.resyncs += 1
        if not 0 < have_len < len(self.committed):
            return None
        self.told()
        return Verdict(self.rid, self.epoch, self.round, have_len, tuple(self.committed[have_len:]), None, self.plan)

    def _best_draft(self) -> Node | None:
        """What the drafter holds likeliest to come next."""
        drafted = (node for node in self.tree.root.children.values() if node.rank >= 0)
        return max(drafted, key=lambda node: node.logprob, default=None)

    def take_draft_log(self) -> DraftLog:
        """What the drafter told of its work since the last call."""
        log, self.draft_log = self.draft_log, DraftLog()
        return log

    def took(self, forward_us: float, tokens: int, wall_us: float) -> None:
        """A round took so long, in the target and in all."""
        self.counters.forward_us += forward_us
        self.rate.add(tokens, wall_us)

    def replan(self, plan: Plan) -> None:
        self.plan = plan

    def stats(self, method: str) -> RequestStats:
        return self.counters.stats(method, self.prompt_len, len(self.committed) - self.prompt_len)
