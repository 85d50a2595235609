"""Does this source of drafts pay for this stream? One judge for all of them.

It follows from one ratio that no source has a say in: the tokens of a stream's rounds over those that the same time
would have brought without the source. It is kept for each kind of streams, and for each stream, which begins with what
its kind has shown. A source that does not pay rests, each time for longer; then it is judged anew.
"""

from __future__ import annotations

from collections import Counter
from typing import Protocol
from weakref import WeakSet

from actors.estimate import STALL, SURE, Estimate
from actors.verifier.results import Group
from actors.verifier.rounds import Part, Round
from actors.verifier.totals import MAX_KNOWN
from actors.verifier.trial import DRAFTS, LOOKUPS, Stakes, Trial

PRIOR = 1.2  # gain expected of a source that was never judged; it weighs as much as its first look
GROUP_MEMORY, STREAM_MEMORY = 256, 64  # rounds
MOST_LONGER = 16  # times that retrieval rests for longer where many streams wait for it
BORROWED = 16.0  # a stream's own rounds that its kind's gain counts for: variance of rounds over that between texts


class Judged(Protocol):
    """A stream, as far as it is judged."""

    trials: dict[str, Trial]


class Trials:
    def __init__(self) -> None:
        self._groups = dict[tuple[str, Group], Trial]()
        self._streams: WeakSet[Judged] = WeakSet()  # those with a trial of their own
        self._rounds = Counter[Group]()  # rounds with streams of each kind: the unit of rest
        self._learned = 0  # rounds of all kinds

    def rests(self, source: str, group: Group, stream: Judged, rounds: int) -> bool:
        """Whether the source is to be left out now. ``rounds``: of the stream so far."""
        return self.left(source, group, stream, rounds) > 0

    def left(self, source: str, group: Group, stream: Judged, rounds: int) -> float:
        """Rounds of the stream until the source is used again."""
        own, kind = stream.trials.get(source), self._groups.get((source, group))
        left = own.left(rounds) if own is not None else 0.0
        return left if kind is None else max(left, kind.left(self._rounds[group]))

    def expected(self, source: str, group: Group, stream: Judged | None = None) -> float:
        """The gain to be expected of a source."""
        kind, own = self.of_group(source, group).gain.mean, stream.trials.get(source) if stream is not None else None
        return kind if own is None else own.gain.towards(kind, BORROWED)

    def known(self, source: str, group: Group) -> bool:
        """Whether the source was ever used for such streams."""
        kind = self._groups.get((source, group))
        return kind is not None and kind.rounds >= kind.stakes.look

    def learn(self, done: Round, plain_us: float, row_us: float) -> list[tuple[str, Part]]:
        """Judge every source that had a part in the round. Returns the sources that pause from now on, with their part.

        ``plain_us``: of a round of as many streams without drafts. What the round took beyond that is the price of its
        drafts. It is divided by what each source should have cost: ``row_us`` for each row that no other source had
        named, and its own time.
        """
        total, claims = 0.0, 0
        for part in done.parts:
            for share in part.shares:
                total, claims = total + (share.time_us + share.rows * row_us), claims + 1
        beyond = len(done.parts) / plain_us * (done.own_us - plain_us * done.steps)
        kinds = dict[tuple[str, Group], list[tuple[Trial, Part, float]]]()
        for part in done.parts:
            tokens, known, missed = part.tokens, part.stream.trials, 0.0
            if part.own_us > done.own_us:  # rounds that only this stream waited through
                missed = (part.own_us - done.own_us) / plain_us
            for share in part.shares:
                cost = share.time_us + share.rows * row_us
                if share.source in LOOKUPS and not share.rows:  # no other time of the round is its doing
                    without = share.without + share.time_us * len(done.parts) / plain_us
                else:
                    without = share.without + beyond * (cost / total if total else 1.0 / claims) + missed
                if not 0.1 < without < STALL * tokens:
                    without = max(0.1, min(without, STALL * tokens))
                trial = known[share.source] if share.source in known else self._of(share.source, part.stream)
                trial.gain.add(tokens / without, without)
                trial.rounds, trial.fresh = trial.rounds + 1, trial.fresh + without
                if (key := (share.source, part.group)) not in kinds:
                    kinds[key] = []
                kinds[key] += [(trial, part, without)]
        pausing = list[tuple[str, Part]]()
        for (source, group), samples in kinds.items():  # streams share the round's time: it is one sample of it
            kind, count, brought, spent, rests = self.of_group(source, group), 0, 0, 0.0, False
            for _, part, without in samples:
                count, brought, spent = count + 1, brought + part.tokens, spent + without
            spent /= count
            kind.gain.add(brought / count / spent, spent)
            kind.rounds, kind.fresh = kind.rounds + 1, kind.fresh + spent
            usual, pays = kind.gain.mean, kind.stakes.pays
            if usual < pays or kind.next > kind.first:
                rests = kind.judge(usual + SURE * kind.gain.error, self._rounds[group])
            for trial, part, _ in samples:
                expected = trial.gain.towards(usual, BORROWED)
                if expected < pays or trial.next > trial.first or rests:
                    pausing += [(source, part)] if trial.judge(expected, part.rounds) or rests else []
        self._learned += 1
        for group in {part.group for part in done.parts}:
            self._rounds[group] += done.steps
        return pausing

    def forget(self, source: str) -> None:
        """Another bears its name from now on, or an operator wants it."""
        for key in [key for key in self._groups if key[0] == source]:
            del self._groups[key]
        for stream in self._streams:
            stream.trials.pop(source, None)

    def all_of(self, source: str) -> list[tuple[Trial, bool]]:
        """The trials of a source by kind of streams, and whether it pauses there."""
        found = [(group, trial) for (name, group), trial in self._groups.items() if name == source]
        return [(trial, trial.resting(self._rounds[group])) for group, trial in found]

    def of_group(self, source: str, group: Group) -> Trial:
        key = source, group
        if key not in self._groups:
            if len(self._groups) == MAX_KNOWN:
                del self._groups[min(self._groups, key=lambda known: self._groups[known].used)]
            stakes = LOOKUPS.get(source, DRAFTS)
            gain = Estimate(PRIOR, stakes.look, GROUP_MEMORY)
            if source in LOOKUPS:  # each stream's question delays all, so that many streams rest for longer
                least = min(MOST_LONGER, 2 ** (group.load - 1))
                stakes = Stakes(stakes.pays, stakes.look * least, stakes.first * least)
            self._groups[key] = Trial(stakes, gain)
        trial = self._groups[key]
        trial.used = self._learned
        return trial

    def _of(self, source: str, stream: Judged) -> Trial:
        trial = stream.trials[source] = Trial(LOOKUPS.get(source, DRAFTS), Estimate(memory=STREAM_MEMORY))
        self._streams.add(stream)
        return trial
