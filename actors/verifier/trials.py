"""Does this source of drafts pay for this stream? One judge for all of them.

It follows from one ratio that no source has a say in: the tokens of a stream's rounds over those that the same time
would have brought without the source. It is kept for each kind of streams, and for each stream, which begins with what
its kind has shown. A source that does not pay rests, each time for longer; then it is judged anew.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import NamedTuple, Protocol
from weakref import WeakSet

from actors.backoff import Backoff
from actors.estimate import STALL, SURE, Estimate
from actors.verifier.rounds import Group, Part, Round
from actors.verifier.totals import MAX_KNOWN

PRIOR, PRIOR_WEIGHT = 1.2, 8.0  # yield of a source of which nothing is known, in rounds
GROUP_MEMORY, STREAM_MEMORY = 256, 64  # rounds
BORROWED = 16.0  # rounds that a stream's kind counts for: the variance of rounds over that between texts


class Stakes(NamedTuple):
    """The costs of a trial of a source, and of its pause."""

    pays: float  # least gain over decoding without it
    look: float  # rounds' worth of decoding without it, before a verdict
    first: int  # rounds of the first rest


DRAFTS = Stakes(1.02, 8.0, 64)  # below, work gains nothing
# Asking costs a fraction of a millisecond; a text may begin to repeat itself at any place.
LOOKUPS = dict.fromkeys(("text", "memory", "datastore"), Stakes(1.0, 1.0, 1))


class Trial:
    """The gain of one source: for one stream, or for all streams of a kind."""

    def __init__(self, stakes: Stakes, gain: Estimate) -> None:
        """``gain``: tokens over those without the source, as far as known."""
        self.stakes, self.gain = stakes, gain
        self.backoff = Backoff(stakes.first)
        self.rounds = 0  # rounds that it was judged by
        self._fresh = 0.0  # rounds' worth since the last rest

    def observe(self, tokens: float, without: float) -> None:
        self.gain.add(tokens / without, without)
        self.rounds += 1
        self._fresh += without

    def judge(self, expected: float, now: float) -> bool:
        """Let it rest if too little is ``expected`` of it. Returns whether it does."""
        if self._fresh < self.stakes.look:
            return False
        if expected >= self.stakes.pays:
            self.backoff.succeed()
            return False
        self._fresh = 0.0
        self.backoff.rest(now)
        self.gain.discount(self.stakes.look)
        return True


class Judged(Protocol):
    """A stream, as far as it is judged."""

    trials: dict[str, Trial]


class Trials:
    def __init__(self) -> None:
        self._groups: OrderedDict[tuple[str, Group], Trial] = OrderedDict()  # the latest used last
        self._streams: WeakSet[Judged] = WeakSet()  # those with a trial of their own
        self._rounds = Counter[Group]()  # with streams of each kind: their unit of rest

    def rests(self, source: str, group: Group, stream: Judged, rounds: int) -> bool:
        """Whether the source is to be left out now. ``rounds``: of the stream so far."""
        return self.left(source, group, stream, rounds) > 0

    def left(self, source: str, group: Group, stream: Judged, rounds: int) -> float:
        """Rounds of the stream until the source is used again."""
        own, kind = stream.trials.get(source), self._groups.get((source, group))
        left = own.backoff.until - rounds if own is not None else 0.0
        return max(0.0, left, kind.backoff.until - self._rounds[group] if kind is not None else 0.0)

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
        claims = [(part, share) for part in done.parts for share in part.shares]
        costs = [share.time_us + share.rows * row_us for _, share in claims]
        total = sum(costs)
        beyond_us, rate = done.own_us - plain_us * done.steps, len(done.parts) / plain_us
        kinds = dict[tuple[str, Group], list[tuple[Trial, Part, float]]]()
        for (part, share), cost in zip(claims, costs, strict=True):
            shared = cost / total if total else 1.0 / len(claims)
            missed = max(0.0, part.own_us - done.own_us) / plain_us  # rounds that only this stream waited through
            without = share.without + rate * beyond_us * shared + missed
            without = max(0.1, min(without, STALL * part.tokens))
            trial = self._of(share.source, part.stream)
            trial.observe(part.tokens, without)
            kinds.setdefault((share.source, part.group), []).append((trial, part, without))
        pausing = list[tuple[str, Part]]()
        for (source, group), samples in kinds.items():  # streams share the round's time: it is one sample of it
            kind, tokens, without = self.of_group(source, group), 0, 0.0
            for _, part, own in samples:
                tokens, without = tokens + part.tokens, without + own
            kind.observe(tokens / len(samples), without / len(samples))
            expected = kind.gain.mean
            rests = kind.judge(expected + SURE * kind.gain.error, self._rounds[group])
            for trial, part, _ in samples:
                if trial.judge(trial.gain.towards(expected, BORROWED), part.rounds) or rests:
                    pausing.append((source, part))
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
        return [(trial, trial.backoff.resting(self._rounds[group])) for group, trial in found]

    def of_group(self, source: str, group: Group) -> Trial:
        key = source, group
        trial = self._groups.get(key)
        if trial is None:
            trial = Trial(LOOKUPS.get(source, DRAFTS), Estimate(PRIOR, PRIOR_WEIGHT, GROUP_MEMORY))
            self._groups[key] = trial
            if len(self._groups) > MAX_KNOWN:
                self._groups.popitem(last=False)
        self._groups.move_to_end(key)
        return trial

    def _of(self, source: str, stream: Judged) -> Trial:
        trial = stream.trials.get(source)
        if trial is None:
            trial = stream.trials[source] = Trial(LOOKUPS.get(source, DRAFTS), Estimate(memory=STREAM_MEMORY))
            self._streams.add(stream)
        return trial
