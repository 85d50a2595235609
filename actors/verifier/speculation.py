"""The verifier's side of one request: drafts and outcomes in; windows, waits, verdicts and committed tokens out."""

from __future__ import annotations

import math
from collections.abc import Sequence

from actors.estimate import Estimate
from actors.models import Outcome
from actors.tree.tree import FORCED, Fragment, Node, TokenTree, check_fragment
from actors.tree.window import Cost
from actors.verifier.draft_log import DraftLog
from actors.verifier.output import Output
from actors.verifier.rate import Rate
from actors.verifier.rounds import NO_OTHERS, Chosen, Committed, Counters, Others
from actors.verifier.sources.inline_tree import InlineTree
from actors.verifier.waits import NO_LIMITS, DrafterPace, RoundLimits, Waiting
from actors.verifier.windows import Windows
from protocols.messages import Grow, Method, Plan, RequestStats, Sampling, Verdict

MAX_NODES = 512  # of one fragment; a tree takes no more fragments once it has twice as many


class Speculation:
    """One request: the committed text, its tree of drafts, and what is decided about both. It has no sockets and no
    clock. Only ``committed`` must be kept: everything else may be lost, and costs time to build again."""

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
        """``generated``: output tokens that are committed already, of a stream that is resumed; ``windows`` and
        ``output`` have been told of them. ``usual``: see :class:`Rate`."""
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
        self.epoch = 0  # of the lease; 0: no drafter has it
        self.round = 0
        self.counters = Counters()
        self.next: Chosen | None = None  # the next round's window, until something comes that could change it
        self.rate = Rate(usual)
        self.waiting = Waiting(self.strategy, windows.max_window)
        self.told_plan: Plan | None = None  # the last that the drafter was told
        self.told_len = len(self.committed)  # committed tokens that the drafter was told; its phase began behind them
        self.sequences = 0  # k of the drafter's phase
        self.draft_log = DraftLog()

    # --- drafts ------------------------------------------------------------------------------------------------------

    def grow(self, message: Grow, forwards: Sequence[tuple[int, int]] = (), trust: float = 1.0) -> str | None:
        """Merge a drafter's fragment. Returns None, or why it was fenced off.

        ``forwards``: start and length of the message's draft forwards, in microseconds of our clock. ``trust``: a
        factor on the fragment's probabilities, see :attr:`Standing.trust`."""
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

    def drafted(self, began_us: float, spent_us: float) -> None:
        """The verifier's own draft model made a step for it, and the round waited meanwhile."""
        self.next = None
        self.waited(spent_us)
        self.draft_log.stepped(began_us, spent_us)

    def waited(self, spent_us: float) -> None:
        """The round waited for the verifier's own draft model."""
        self.counters.wait_us += spent_us

    # --- the drafter's lease -----------------------------------------------------------------------------------------

    def lent(self, epoch: int, plan: Plan) -> None:
        """A drafter gets the lease of that epoch, and with it the whole text."""
        self.epoch, self.plan, self.told_plan = epoch, plan, plan
        self.waiting.arrived()
        self.waiting.begin_phase()
        self.told_len = len(self.committed)

    def recalled(self) -> None:
        """No drafter has the lease any more: what one still sends is fenced off, and nobody is waited for."""
        self.epoch = 0
        self.waiting.cancel()

    def replan(self, plan: Plan) -> None:
        """The drafter is to draft by ``plan`` from its next verdict on."""
        self.plan = plan

    @property
    def resting(self) -> bool:
        """Whether the plan asks for no drafts."""
        return self.plan.method == Method.VANILLA

    @property
    def holds_verdict(self) -> bool:
        """Whether the drafter must not be told of the last round yet: in lock-step no phase is cut short."""
        return self.strategy.waits == "lockstep" and self.waiting.until is not None

    @property
    def owes_verdict(self) -> bool:
        """Whether a lock-step drafter waits for a verdict that was held back."""
        return self.strategy.waits == "lockstep" and self.told_len < len(self.committed)

    def verdict(self, now_us: float, verify_us: float | None) -> Verdict:
        """Tell the drafter what was committed since it was told last, which is many rounds if it rested.

        ``verify_us``: expected length of the next round; None: not known."""
        due = max(1.0, self.waiting.until - now_us) if self.waiting.until is not None else None
        plan = self.plan if self.plan != self.told_plan else None
        self.told_plan = self.plan
        base = self.told_len
        news = tuple(self.committed[base:])
        self.told()
        awaited = self.waiting.drafts if due is not None else None
        if self.strategy.waits == "lockstep":
            verify_us = None  # so that the drafter sends its phase as a whole
        return Verdict(self.rid, self.epoch, self.round, base, news, due, plan, verify_us, awaited)

    def missed(self, have_len: int) -> Verdict | None:
        """The verdict that brings a drafter with ``have_len`` committed tokens up to date; None: it needs an Open."""
        self.counters.resyncs += 1
        if not 0 < have_len < len(self.committed):
            return None
        self.told()
        return Verdict(self.rid, self.epoch, self.round, have_len, tuple(self.committed[have_len:]), None, self.plan)

    def told(self) -> None:
        """The drafter is told all that is committed. If some of it is new to it, a drafting phase begins behind it."""
        if self.told_len != len(self.committed):
            self.told_len = len(self.committed)
            self.waiting.begin_phase()

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
        """Decide whether, and for how long, the next round waits for drafts. Called once after each commit.

        ``covered``: the whole window was accepted, so that drafts below it may have survived. Where ``others`` decode,
        a wait ends when a forward ends, and not when drafts arrive. Returns the rows that the next round would have if
        it began now; their window is kept for it unless drafts arrive before.
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
        """Whether the next round may begin. Ends a wait and counts its length."""
        waited = self.waiting.end(now_us, self.tree)
        self.counters.wait_us += waited or 0.0
        return waited is not None

    # --- rounds ------------------------------------------------------------------------------------------------------

    def prepare(self, most: int) -> None:
        """See :meth:`Windows.prepare`."""
        self.windows.prepare(self.committed, most)

    def guess(self, least: float = 0.0) -> None:
        """See :meth:`Windows.guess`."""
        self.windows.guess(self.tree, self.committed, least)

    def choose(self, cost: Cost, others: Others = NO_OTHERS, cap: int | None = None) -> Chosen:
        """The next round's window, of ``cap`` nodes at most, after the verifier's own proposers have added theirs.

        It is computed once: the window that was chosen when the last round ended holds if no draft has come since."""
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

    def commit(self, chosen: Chosen, outcome: Outcome) -> Committed:
        """Commit what the target made of a window: extend the text, re-root the tree, count, and see whether the output
        ends. Without a window, each token is of a round of its own."""
        base = len(self.committed)
        tokens = outcome.tokens[: self.output.take(outcome.tokens)]
        accepted = [i < len(outcome.path) for i in range(len(tokens))]
        ranks = [chosen.nodes[node].rank for node in outcome.path[: len(tokens)]]
        forced = [rank == FORCED for rank in ranks]
        best = self._best_draft() if self.epoch else None
        claim = (math.exp(best.drafted or 0.0), best.token == tokens[0]) if best is not None else None
        self.waiting.observe(best, tokens[0])
        if self.windows.fallbacks:
            self.windows.opinions.learn(self.tree, tokens)
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
            # Guesses surer than the drafter's own are merged before the decision to wait for it; the others only fill
            # up what it left of the window.
            self.windows.merge(self.tree, self.committed, self.waiting.agreement.mean)
        c, rounds = self.counters, 1 if chosen.nodes else len(tokens)
        c.rounds += rounds
        c.drafted += len(chosen.nodes)
        c.accepted += sum(accepted)
        c.forced += sum(forced)
        # a tree without a depth: as many as it had verified
        c.gamma_sum += rounds * (self.plan.gamma or len(chosen.nodes))
        c.count(c.histogram, sum(accepted), rounds)
        self.round += rounds
        logprobs = outcome.logprobs[: len(tokens)]
        named = [rank >= 0 for rank in ranks]
        return Committed(base, tokens, accepted, logprobs, self.output.finish, forced, claim, named)

    def _best_draft(self) -> Node | None:
        """The drafter's likeliest next token."""
        drafted = (node for node in self.tree.root.children.values() if node.rank >= 0)
        return max(drafted, key=lambda node: node.drafted or 0.0, default=None)

    def first(self, outcome: Outcome) -> Committed:
        """Commit the target's token that ends the prefill, or the replay of a resumed stream. It counts as no round."""
        committed = self.again(outcome)
        self.counters = Counters()
        return committed

    def again(self, outcome: Outcome) -> Committed:
        """Commit the target's token behind a text that was computed anew after a preemption: a round without drafts."""
        return self.commit(Chosen([], [], []), outcome)

    # --- statistics --------------------------------------------------------------------------------------------------

    def take_draft_log(self) -> DraftLog:
        """What the drafter told of its work since the last call."""
        log, self.draft_log = self.draft_log, DraftLog()
        return log

    def took(self, forward_us: float, tokens: int, wall_us: float) -> None:
        """A round of ``tokens`` took ``wall_us``, of which its forward took ``forward_us``."""
        self.counters.forward_us += forward_us
        self.rate.add(tokens, wall_us)

    def stats(self, method: str) -> RequestStats:
        return self.counters.stats(method, self.prompt_len, len(self.committed) - self.prompt_len)
