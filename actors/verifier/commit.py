"""Commits what a forward computed: texts, trees, counts. The only writer of streams between two rounds.

Its result is the :class:`Round` that everybody learns from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from actors.models import Outcome
from actors.verifier.budgets import kind_of
from actors.verifier.context import Context
from actors.verifier.faults import Faults
from actors.verifier.forward import Computed
from actors.verifier.leases import Leases
from actors.verifier.outbox import Outbox
from actors.verifier.rounds import NO_WINDOW, Asked, Batch, Chosen, Committed, Part, Round, RoundSums, Share
from actors.verifier.sources.boundary import Sources
from actors.verifier.sources.source import GRAMMAR
from actors.verifier.streams import Stage, Stream
from protocols.messages import RoundStats


class ForwardTimes(msgspec.Struct, frozen=True, eq=False):
    """Times of one forward, or of several in a row."""

    started: float  # seconds of the verifier's clock
    forward_us: float
    rows: int  # a piece of a prompt included
    decoding: int  # streams
    cores_us: float  # part of ``forward_us`` for each stream with a drafter that works on CPUs of the target


class Committer:
    def __init__(self, context: Context, sources: Sources, leases: Leases, outbox: Outbox, faults: Faults) -> None:
        self.context, self.state = context, context.state
        self.sources, self.leases, self.outbox, self.faults = sources, leases, outbox, faults
        # what rounds wait for, beside drafters
        self._drafting = {"reading", *(source.name for source in sources if source.together)}
        self._prompts_us = 0.0  # time that forwards have taken for prompts since the start

    def commit(self, batch: Batch, computed: Computed, started: float, took_us: Callable[[], float]) -> Round:
        """Commit a forward that ``started`` at that time. ``took_us``: of the round, called when all is committed.

        A stream with an exception as its outcome fails alone. Raises it when too many in a row did, see ``Faults``."""
        outcomes, price, own, rows = computed.outcomes, self.context.price, len(batch.streams), batch.rows
        for stream, outcome in zip(batch.everybody, outcomes, strict=True):
            if isinstance(outcome, Exception):
                self.faults.blame(stream, outcome)
            else:
                self.faults.went_well()
        decode_us = 0.0
        if own:
            decode_us = min(computed.forward_us, price.forward(own, rows - own))
            if batch.piece is None:
                decode_us = computed.forward_us
        prompt_us = computed.forward_us - decode_us
        self._prompts_us += prompt_us
        drafted = sum([stream.loan.works for stream in batch.streams])
        cores_us = price.cores(rows) / drafted if drafted else 0.0
        timing = ForwardTimes(started, computed.forward_us, rows + batch.piece_rows, batch.decoding, cores_us)
        parts, waited_us, tokens = list[Part](), 0.0, 0
        for at, (stream, outcome) in enumerate(zip(batch.streams, outcomes[:own], strict=True)):
            if stream.status is Stage.DECODE and isinstance(outcome, Outcome):
                window, asked = batch.windows[at], batch.asked[at]
                part = self.faults.guard(stream, self._commit_window, stream, window, asked, outcome, timing)
                if part is not None:
                    parts.append(part)
                    tokens += part.tokens
                    waited_us += part.stats.wait_us
        piece = batch.piece
        if piece is not None and isinstance(outcome := outcomes[-1], Outcome) and piece.status is Stage.PREFILL:
            self.faults.guard(piece, self._commit_prefill, piece, outcome)
            self.outbox.flush()  # the first token is not held back for the next round
        return Round(
            streams=own,
            rows=rows,
            prompt_rows=batch.piece_rows,
            steps=computed.steps,
            forward_us=computed.forward_us,
            prompt_us=prompt_us,
            own_us=max(1.0, took_us() - prompt_us - batch.reading_us),
            waited_us=max(batch.drafting_us, waited_us if own == 1 else 0.0) - batch.reading_us,
            whole_piece=piece is not None and outcomes[-1] is None,
            tokens=tokens,
            parts=tuple(parts),
        )

    def _commit_prefill(self, stream: Stream, outcome: Outcome) -> None:
        """The prompt is computed: commit the token that follows it. A stream that was preempted has its text computed
        anew, so that this is not its first token, but a round without drafts."""
        first = not stream.times.first_at
        committed = self._extend(stream, NO_WINDOW, outcome)
        if first:
            stream.delivery.cached_tokens = min(outcome.reused, stream.text.prompt_len)
            stream.tally = RoundSums()
        stream.become(Stage.DECODE)
        stream.times.began(self.context.clock(), self._prompts_us)
        stream.wait.covered = True
        self._go_on(stream, committed)
        self.outbox.add(stream, committed, None)

    def _commit_window(
        self, stream: Stream, chosen: Chosen, asked: Sequence[Asked], outcome: Outcome, timing: ForwardTimes
    ) -> Part:
        trace = stream.delivery.trace
        traced = None if trace is None else trace.seen(stream.tree, chosen, outcome.path)
        group = stream.group(timing.decoding)
        committed = self._extend(stream, chosen, outcome)
        path = [chosen.nodes[at] for at in outcome.path[: len(committed.tokens)]]
        for_drafter_us, spent, stream.times.spent_us = stream.wait.take_waited(), stream.times.spent_us, {}
        wall_us, own_us = stream.times.round_over(self.context.clock(), self._prompts_us)
        own_us -= spent.get("reading", 0.0)  # whoever goes on with the text has that behind it
        wait_us = for_drafter_us + sum(us for name, us in spent.items() if name in self._drafting)
        stream.tally.forward_us += timing.forward_us
        stream.tally.wait_us += wait_us
        stream.times.overhead_us += max(0.0, wall_us - timing.forward_us - wait_us)
        named_by, accepted_by = [node.sources for node in chosen.nodes], [node.sources for node in path]
        spent["drafter"] = spent.get("drafter", 0.0) + for_drafter_us + timing.cores_us
        most = len(committed.tokens)
        shares = [
            Share(
                one.judged_as,
                named_by.count(one.bit),
                min(most, 1 + _leading(accepted_by, ~one.bit)),
                spent.get(one.name, 0.0),
            )
            for one in asked
        ]
        for source in self.sources.named(stream.sources) if path else ():
            if named := sum([1 for sources in accepted_by if sources & source.bit]):
                self.state.counters[f"accepted_from_{source.name}"] += named
        stats = self._stats(stream, committed, timing, wait_us, wall_us)
        self.state.totals.round(stats, self.context.price.plain(max(1, timing.decoding)))
        self.context.publish(stats)
        self._go_on(stream, committed)
        self.outbox.add(stream, committed, None if traced is None else traced(stats))
        return Part(stream, group, stream.tally.rounds, most, own_us, tuple(shares), stats)

    def _extend(self, stream: Stream, chosen: Chosen, outcome: Outcome) -> Committed:
        """Extend the text by what the target made of a window, re-root the tree, and let the sources learn."""
        text, tree, output = stream.text, stream.tree, stream.output
        base, root = len(text), tree.root
        tokens = outcome.tokens[: output.take(outcome.tokens)]
        drafts = min(len(outcome.path), len(tokens))
        accepted = [True] * drafts + [False] * (len(tokens) - drafts)
        forced = sum([1 for at in outcome.path[:drafts] if chosen.nodes[at].sources & GRAMMAR])
        text.committed.extend(tokens)
        held = tree.advance(tokens).nodes
        stream.tally.foreseen += bool(tree.root.children)
        covered = len(outcome.path) == len(chosen.nodes)
        logprobs = outcome.logprobs[: len(tokens)]
        committed = Committed(base, tokens, accepted, logprobs, output.finish, chosen, root, held, outcome.sampled)
        stream.wait.covered = covered
        for source in self.sources.named(stream.sources):
            self.sources.ask(source, None, source.learn, stream, committed)
        # a tree without a depth: as many as it had verified
        nodes, rounds = len(chosen.nodes), 1 if chosen.nodes else len(tokens)
        stream.tally.round(rounds, nodes, drafts, forced, stream.loan.plan.gamma or nodes)
        return committed

    def _go_on(self, stream: Stream, committed: Committed) -> None:
        """After the commit: the stream has ended, or its drafter may have to."""
        stream.times.last_at = self.context.clock()
        drafter = self.state.drafters.of(stream.loan.holder)
        if committed.finish is not None:
            stream.become(Stage.FINISHING)
            self.leases.ended(stream)
        elif drafter is not None:
            self.leases.outgrown(stream, drafter)

    def _stats(
        self, stream: Stream, committed: Committed, timing: ForwardTimes, wait_us: float, wall_us: float
    ) -> RoundStats:
        loan, drafter = stream.loan, self.state.drafters.of(stream.loan.holder)
        return RoundStats(
            stream.rid,
            stream.tally.rounds,
            kind_of(stream, loan.name),
            window=len(committed.chosen.nodes),
            accepted=sum(committed.accepted),
            committed=len(committed.tokens),
            rows=timing.rows,
            forward_us=timing.forward_us,
            wait_us=wait_us,
            wall_us=wall_us,
            started_us=(timing.started - self.state.started) * 1e6,
            plan=loan.plan if loan.works else None,
            drafting=loan.take_report(drafter.pace.message.mean if drafter is not None else 0.0),
            streams=timing.decoding,
            slowdown=self.context.price.target.factor.mean,
        )


def _leading(path: Sequence[int], bits: int) -> int:
    """The number of nodes of the accepted path, from its top on, that sources named. ``path``: who named each."""
    for count, sources in enumerate(path):
        if not sources & bits:
            return count
    return len(path)
