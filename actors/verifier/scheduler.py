"""The next forward: a piece of a prompt, a round of the streams that are ready, or both in one forward.

Before a round the sources grow the streams' trees, and a window is cut out of each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from actors.models import Outcome
from actors.verifier.admission import Admission
from actors.verifier.budgets import budget_of, may_rest
from actors.verifier.context import Context
from actors.verifier.faults import Faults
from actors.verifier.outbox import chunk_forwards
from actors.verifier.results import Group
from actors.verifier.room import Room
from actors.verifier.rounds import Batch
from actors.verifier.sources.boundary import Sources
from actors.verifier.sources.remote import Remote
from actors.verifier.sources.source import SLICE, Allowance, Source
from actors.verifier.streams import Stage, Stream
from actors.verifier.windows import choose

MAX_DRAFTS = 0.5  # share of a round that drafts may take of a forward that others wait for
MAX_PIECE = 64  # rows of a piece that others wait for, in a forward of its own: the calibration's largest
MAX_SHARED = 256  # rows of a forward that a piece shares with a round
LEAST_PIECE = 16  # rows of a shared forward that are kept for the prompt
MAX_ROWS = 512  # rows of one forward: their logits alone take 300 MB with a vocabulary of 152,000
Asked = dict[Stream, dict[Source, str]]  # sources that each stream asks, and what trials know them by


class Scheduler:
    def __init__(
        self, context: Context, sources: Sources, remote: Remote, room: Room, admission: Admission, faults: Faults
    ) -> None:
        self.context, self.state, self.sources = context, context.state, sources
        self.remote, self.room, self.admission, self.faults = remote, room, admission, faults
        self._together = [source for source in sources if source.together]
        self._served = ["prefill", "decode", "alone"]  # kinds of work, the least recently served first: none starves
        self._prefilling_since: float | None = None  # seconds; None: the latest forward had a round in it

    @property
    def due(self) -> float | None:
        """When the earliest wait for drafts is over, in seconds; None: no stream waits."""
        waits = [s.wait.until for s in self.state.requests.of(Stage.DECODE) if s.wait.until is not None]
        return min(waits) / 1e6 if waits else None

    def plan(self) -> Batch | None:
        """Expire streams, give back the room of ended ones, admit others, and choose the next forward.

        None: there is nothing to compute at present; some streams may be waiting for drafts."""
        batch = self._next()
        if batch is not None and batch.piece is not None and (chunk := batch.piece.begun()) is not None:
            self.context.send(batch.piece.client, chunk)
        return batch

    def _next(self) -> Batch | None:
        self.admission.expire()
        self.room.free()
        self.room.give_back()
        self.room.let_in()
        now_us = self.context.clock() * 1e6
        prompts, decoding = self.state.requests.of(Stage.PREFILL), self.state.requests.of(Stage.DECODE)
        ready, alone = list[Stream](), list[Stream]()
        for stream in decoding:
            if stream.wait.until is None or self.faults.guard(stream, stream.wait.over, now_us, stream.tree):
                (alone if stream.suspect else ready).append(stream)
        kinds = {"prefill": prompts, "decode": ready, "alone": alone}
        some = [kind for kind in self._served if kinds[kind]]
        if not some:
            return None
        beside = bool(prompts and ready and self.context.target.mixes_prompts)
        beside = beside and not prompts[0].suspect and len(ready) <= MAX_SHARED - LEAST_PIECE
        if beside:  # the next piece of a prompt shares the round's forward
            some.remove("prefill")
        elif prompts and self._prefilling_since is not None and self._time_for_prompt() == MAX_PIECE:
            return self._piece(prompts[0])  # the last forward was a piece, and streams can wait for a whole one more
        kind = some[0]
        self._served.remove(kind)
        self._served.append(kind)
        if kind == "prefill":
            return self._prompt(prompts)
        self._prefilling_since = None
        held = self.room.hold(kinds[kind][:1] if kind == "alone" else kinds[kind])
        if not held:  # all were preempted
            return self._next()
        prompt = prompts[0] if beside and kind == "decode" and prompts[0].status is Stage.PREFILL else None
        return self._round(held, prompt, prompts) or self._prompt(prompts)

    # --- prompts -----------------------------------------------------------------------------------------------------

    def _time_for_prompt(self) -> int:
        """Rows of a prompt that there is time for before the streams must have a round, at most ``MAX_PIECE``."""
        assert self._prefilling_since is not None  # pieces follow one another, or this is the first
        spent_us = (self.context.clock() - self._prefilling_since) * 1e6
        left_us = self._longest_us(self.state.requests.decoding) - spent_us
        return min(int(left_us / self.context.price.prompt_row), MAX_PIECE)

    def _longest_us(self, decoding: int, drafts: int = 0) -> float:
        """What a prompt's rows may add to a forward that ``decoding`` streams wait for: one more round of all."""
        price, streams = self.context.price, decoding + len(self.state.requests.of(Stage.PREFILL))
        return price.forward(streams, drafts) + price.beside(streams)

    def _piece(self, stream: Stream) -> Batch:
        """A prompt's next piece alone: as long as there is time for, or as suits the model where nobody waits."""
        decoding = self.state.requests.decoding
        rows = min(max(1, self._time_for_prompt()), len(stream.text)) if decoding else 0
        return Batch(decoding=decoding, piece=stream, piece_rows=rows)

    def _prompt(self, prompts: Sequence[Stream]) -> Batch | None:
        """The next piece of the first prompt, alone: it has its turn, or all streams of the round wait for drafts."""
        first = next((stream for stream in prompts if stream.status is Stage.PREFILL), None)
        if first is None:
            return None
        self._prefilling_since = self.context.clock()
        return self._piece(first)

    # --- rounds ------------------------------------------------------------------------------------------------------

    def _round(self, streams: list[Stream], prompt: Stream | None, prompts: Sequence[Stream]) -> Batch | None:
        """A round of ``streams`` with their drafts, and the next piece of ``prompt``. None: all of them wait.

        ``prompts``: all streams whose prompts are being computed."""
        if len(streams) > MAX_ROWS:  # the others have the next round
            streams = sorted(streams, key=lambda s: s.times.last_at)[:MAX_ROWS]
        price, decoding, own = self.context.price, self.state.requests.decoding, len(streams)
        begun = self.context.clock()
        room_us = MAX_DRAFTS * price.forward(own) if prompt is not None or decoding > 1 else math.inf
        allowance = Allowance(
            streams=decoding,
            rate=price.rate(decoding),
            rows=price.rows(own),
            slowdown=price.target.factor.mean,
            room_us=room_us,
            reads=prompt is None,
            now_us=self.context.now_us(),
            gain=lambda stream, source: self.context.trials.expected(source, stream.groups[decoding], stream),
            interruption=price.rate(decoding) * price.interruption(own),
        )
        plain = self._unmeasured(streams) if prompt is None else 0
        uses = self._rests if plain else self._uses
        using = self._grow({stream: uses(stream, allowance) for stream in streams}, allowance)
        if not using:
            return None
        drafting_us = (self.context.clock() - begun) * 1e6
        if plain:  # what drafts gain is judged by the time of such a round
            most = 0
        elif prompt is None:
            most = MAX_ROWS - own
        else:
            most = price.drafts_within(own, room_us - drafting_us, MAX_SHARED - LEAST_PIECE - own)
        unattended = not prompts and all(self._unattended(stream, sources) for stream, sources in using.items())
        least = allowance.interruption if unattended else 0.0
        caps = {stream: budget_of(self.context, stream, stream.loan.drafter).window for stream in using}
        windows = choose(caps, allowance, self.context.target.branches, most, least)
        drafts, rows = sum([len(chosen.nodes) for chosen in windows]), 0
        if prompt is not None:
            rows = int(self._longest_us(len(using), drafts) / price.prompt_row)
            rows = max(1, min(rows, MAX_SHARED - len(using) - drafts))
        return Batch(
            streams=tuple(using),
            windows=tuple(windows),
            asked=tuple(using.values()),
            ranks=self._ranks(using),
            allowance=allowance,
            decoding=decoding,
            piece=prompt,
            piece_rows=rows,
            steps=self._steps(using, allowance, plain) if unattended and not drafts else 1,
            unattended=unattended,
            drafting_us=drafting_us,
            reading_us=min(sum([stream.times.spent_us["reading"] for stream in using]), drafting_us),
        )

    def _steps(self, using: Asked, allowance: Allowance, plain: int) -> int:
        """The number of forwards that may follow one another while no source :meth:`finds` drafts: until there is a
        chunk to send. ``plain``: those of them at most that show what a round takes without drafts."""
        steps = chunk_forwards(self.context.price, allowance.streams)
        return max(1, min(plain or steps, steps, *(stream.text.left for stream in using)))

    def _ranks(self, using: Asked) -> tuple[bool, ...]:
        """Whether the target says what else was likely in each stream: in those with a source that reads it; else in
        one that has such a source at rest, which so goes on learning at the price of one stream."""
        asked = [any(source.ranks for source in sources) for sources in using.values()]
        if not any(asked):
            for at, stream in enumerate(using):
                if any(source.ranks for source in self.sources.named(stream.strategy.sources)):
                    asked[at] = True
                    break
        return tuple(asked)

    def _unattended(self, stream: Stream, sources: Mapping[Source, str]) -> bool:
        """Whether forwards may follow one another until one of ``sources`` has drafts: a draft model always has some,
        and a forward on a thread of its own asks nobody."""
        overlaps = self.context.equipment.compute.overlaps
        return stream.unattended and not any(source.exclusive or overlaps for source in sources)

    def finds(self, batch: Batch, outcomes: Sequence[Outcome]) -> bool:
        """Whether a source has drafts that are worth the end of a row of forwards, after what it has brought."""
        for stream, asked, outcome in zip(batch.streams, batch.asked, outcomes, strict=True):
            for source in asked:
                begun = self.context.clock()
                found = self.sources.ask(source, False, source.finds, stream, outcome.tokens, batch.allowance)
                stream.times.spent_us[source.name] += (self.context.clock() - begun) * 1e6
                if found:
                    return True
        return False

    # --- sources -----------------------------------------------------------------------------------------------------

    def _grow(self, using: Asked, allowance: Allowance) -> Asked:
        """Let the sources grow the trees. Returns those of the streams that neither wait nor have failed."""
        ready = list[Stream]()
        for stream, sources in using.items():
            for source in sources:
                if not source.together:
                    begun = self.context.clock()
                    self.sources.ask(source, None, source.grow, [stream], allowance)
                    stream.times.spent_us[source.name] += (self.context.clock() - begun) * 1e6
            lent = stream.loan.drafter is not None
            waits = lent and self.sources.ask(self.remote, False, self.remote.consult, stream, allowance)
            if stream.status is Stage.DECODE and not waits:
                ready.append(stream)
        for source in self._together:
            if mine := [stream for stream in ready if source in using[stream]]:
                self.sources.ask(source, None, source.grow, mine, allowance)
        for stream in ready:
            if stream.grammar is not None:
                self.faults.guard(stream, self.sources["grammar"].grow, [stream], allowance)
        return {stream: using[stream] for stream in ready if stream.status is Stage.DECODE}

    def _unmeasured(self, streams: Sequence[Stream]) -> int:
        """Forwards that are to show first what they take without drafts. What is beside a forward only counts where
        forwards are so short that several share a chunk."""
        price, own = self.context.price, len(streams)
        short = chunk_forwards(price, own) > 1 and all(may_rest(self.context, stream) for stream in streams)
        return price.unmeasured(own) if short else 0

    def _rests(self, stream: Stream, allowance: Allowance) -> dict[Source, str]:
        """No source is asked, and a drafter pauses."""
        self.remote.works(stream, False)
        return {}

    def _uses(self, stream: Stream, allowance: Allowance) -> dict[Source, str]:
        """The sources that are asked for the next round, with what trials know them by: those of the method that do not
        rest. One draft model at most works for a stream."""
        rounds, rest = stream.tally.rounds, stream.rest
        if rest.whole and rounds < rest.until and stream.loan.drafter is None:
            return {}
        group, judged = stream.groups[allowance.streams], may_rest(self.context, stream)
        trials, until = self.context.trials, math.inf
        found, models = dict[Source, str](), dict[Source, str]()
        rest.whole = True
        for source in self.sources.named(stream.strategy.sources):
            try:
                if not (name := source.judged_as(stream)):
                    continue
                if judged and (left := trials.left(name, group, stream, rounds)):
                    until = min(until, rounds + left)
                    continue
                rest.whole = False
                if not judged or source.able(stream, allowance):
                    (models if source.exclusive else found)[source] = name
            except Exception as error:
                self.sources.failed(source, error)
        rest.until = until
        best = self._best(stream, group, models) if judged and len(models) > 1 else next(iter(models), None)
        if stream.loan.drafter is not None:
            self.remote.works(stream, best is self.remote)
        if best is not None:
            found[best] = models[best]
        return found

    def _best(self, stream: Stream, group: Group, models: Mapping[Source, str]) -> Source:
        """The draft model that should gain most; each is tried once."""
        trials = self.context.trials
        untried = (model for model, name in models.items() if not trials.known(name, group))
        if (model := next(untried, None)) is not None:
            return model
        return max(models, key=lambda model: trials.expected(models[model], group, stream))

    def prepare(self, batch: Batch) -> None:
        """Let the sources read the piece of a prompt that the forward computes, if they are to be asked at all."""
        piece = batch.piece
        if piece is None or piece.status not in (Stage.PREFILL, Stage.DECODE):
            return
        group, rounds = piece.groups[self.state.requests.decoding + 1], piece.tally.rounds
        for source in self.sources.named(piece.strategy.sources):
            if not self.context.trials.rests(source.name, group, piece, rounds):
                self.sources.ask(source, None, source.prepare, piece, batch.piece_rows or SLICE)
