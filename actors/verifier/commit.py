"""Commits what a forward computed: texts, trees, counts. The only writer of streams between two rounds.

Its result is the :class:`Round` that everybody learns from.
"""

from __future__ import annotations

from actors.models import Outcome
from actors.verifier.budgets import kind_of
from actors.verifier.context import Context
from actors.verifier.faults import Faults
from actors.verifier.forward import Computed
from actors.verifier.leases import Leases
from actors.verifier.outbox import Outbox
from actors.verifier.results import NO_WINDOW, Chosen, Committed, RoundSums
from actors.verifier.rounds import Batch, Part, Round, Share
from actors.verifier.sources.bits import GRAMMAR
from actors.verifier.sources.boundary import Sources
from actors.verifier.streams import Stage, Stream
from protocols.messages import RoundStats


class Committer:
    def __init__(self, context: Context, sources: Sources, leases: Leases, outbox: Outbox, faults: Faults) -> None:
        self.context, self.state = context, context.state
        self.sources, self.leases, self.outbox, self.faults = sources, leases, outbox, faults
        # what a round's wait is made of besides its drafter: names in :attr:`Times.spent_us`
        self._drafting = {"reading", *(source.name for source in sources if source.together)}
        self._prompts_us = 0.0  # time that forwards have taken for prompts since the start

    def commit(self, batch: Batch, computed: Computed, begun: float, started: float) -> Round:
        """Commit a forward that ``started`` at that time, of a round that had ``begun`` before: seconds of the clock.

        A stream with an exception as its outcome fails alone. Raises it when too many in a row did, see ``Faults``."""
        outcomes, price, own, rows = computed.outcomes, self.context.price, len(batch.streams), batch.rows
        for stream, outcome in zip(batch.everybody, outcomes, strict=True):
            if isinstance(outcome, Exception):
                self.faults.blame(stream, outcome)
            else:
                self.faults.went_well()
        prompt_us = computed.forward_us if batch.piece is not None else 0.0
        if own and batch.piece is not None:
            prompt_us -= min(prompt_us, price.forward(own, rows - own))
        self._prompts_us += prompt_us
        drafted = sum([stream.loan.works for stream in batch.streams])
        cores_us = price.cores(rows) / drafted if drafted else 0.0
        parts, waited_us, tokens, plain_us = list[Part](), 0.0, 0, price.plain(batch.decoding or 1)
        for at, stream in enumerate(batch.streams):
            if stream.status is Stage.DECODE and isinstance(outcomes[at], Outcome):
                part = self.faults.guard(stream, self._commit_window, at, batch, computed, started, rows, cores_us)
                if part is not None:
                    parts.append(part)
                    self.state.totals.round(part.stats, part.own_us, plain_us)
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
            own_us=max(1.0, (self.context.clock() - begun) * 1e6 - prompt_us - batch.reading_us),
            waited_us=max(batch.drafting_us, waited_us if own == 1 else 0.0) - batch.reading_us,
            whole_piece=piece is not None and outcomes[-1] is None,
            tokens=tokens,
            parts=tuple(parts),
            unattended=batch.unattended,
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
        self.outbox.add(stream, committed, None, None)

    def _commit_window(
        self, at: int, batch: Batch, computed: Computed, started: float, rows: int, cores_us: float
    ) -> Part:
        """Commit one stream's window. ``cores_us``: what its drafter, if it works, adds to the forward by its CPUs."""
        stream, chosen, outcome = batch.streams[at], batch.windows[at], computed.outcomes[at]
        assert isinstance(outcome, Outcome)
        forward_us, trace, times = computed.forward_us, stream.delivery.trace, stream.times
        traced = None if trace is None else trace.seen(stream.tree, chosen, outcome.path)
        committed = self._extend(stream, chosen, outcome)
        most, for_drafter_us, spent = len(committed.tokens), stream.wait.take_waited(), times.take_spent()
        wall_us, own_us = times.round_over(self.context.clock(), self._prompts_us)
        own_us -= spent["reading"]  # whoever goes on with the text has read that already
        wait_us = for_drafter_us + sum([spent[name] for name in self._drafting])
        stream.tally.forward_us += forward_us
        stream.tally.wait_us += wait_us
        times.overhead_us += max(0.0, wall_us - forward_us - wait_us)
        spent["drafter"] += for_drafter_us + cores_us
        named = [node.sources for node in chosen.nodes]
        path = [named[node] for node in outcome.path[:most]]
        shares = list[Share]()
        for source, name in batch.asked[at].items():
            bit = source.bit
            others = path.index(bit) if bit in path else len(path)  # accepted without it
            without = 1 + others if named and others < most else most
            shares.append(Share(name, named.count(bit) if named else 0, without, spent[source.name]))
        for source in self.sources.named(stream.sources) if path else ():
            if hits := sum([bits & source.bit > 0 for bits in path]):
                self.state.counters[f"accepted_from_{source.name}"] += hits
        loan, drafter = stream.loan, stream.loan.drafter
        stats = RoundStats(
            rid=stream.rid,
            round=stream.tally.rounds,
            kind=kind_of(stream, loan.name),
            window=len(chosen.nodes),
            accepted=len(path),
            committed=most,
            rows=rows + batch.piece_rows,
            forward_us=forward_us,
            wait_us=wait_us,
            wall_us=wall_us,
            started_us=(started - self.state.started) * 1e6,
            plan=loan.plan if loan.works else None,
            drafting=loan.take_report(drafter.pace.message.mean if drafter is not None else 0.0),
            streams=batch.decoding,
            slowdown=self.context.price.target.factor.mean,
        )
        self._go_on(stream, committed)
        self.outbox.add(stream, committed, None if traced is None else traced(stats), stats)
        return Part(stream, stream.groups[batch.decoding], stream.tally.rounds, most, own_us, tuple(shares), stats)

    def _extend(self, stream: Stream, chosen: Chosen, outcome: Outcome) -> Committed:
        """Extend the text by what the target made of a window, re-root the tree, and let the sources learn."""
        text, tree, output = stream.text, stream.tree, stream.output
        base, root = len(text.committed), tree.root
        tokens = outcome.tokens[: output.take(outcome.tokens)]
        taken, drafts = len(tokens), len(outcome.path)
        stream.wait.covered = drafts == len(chosen.nodes)
        drafts = drafts if drafts < taken else taken
        accepted = [True] * drafts + [False] * (taken - drafts)
        forced = 0
        for at in outcome.path[:drafts] if stream.grammar is not None else ():
            forced += bool(chosen.nodes[at].sources & GRAMMAR)
        text.committed += tokens
        held = tree.advance(tokens).nodes
        if tree.root.children:
            stream.tally.foreseen += 1
        logprobs = outcome.logprobs[:taken]
        committed = Committed(
            base, tokens, accepted, logprobs, output.finish, chosen, root, held, outcome.sampled, outcome.ranked
        )
        for source in self.sources.named(stream.sources):
            self.sources.ask(source, None, source.learn, stream, committed)
        # a tree without a depth: as many as it had verified
        nodes, rounds = len(chosen.nodes), 1 if chosen.nodes else taken
        stream.tally.round(rounds, nodes, drafts, forced, stream.loan.plan.gamma or nodes)
        return committed

    def _go_on(self, stream: Stream, committed: Committed) -> None:
        """After the commit: the stream has ended, or the text has become longer than its drafter can hold."""
        stream.times.last_at = self.context.clock()
        if committed.finish is not None:
            stream.become(Stage.FINISHING)
            self.leases.ended(stream)
        elif (drafter := stream.loan.drafter) is not None and not drafter.holds(len(stream.text)):
            self.leases.hand_over(stream, None)
