"""What the learner does next: learn, judge the result, or nothing. No clock, no threads, no model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from actors.learner.traffic import Traffic
from actors.learner.trial import FEWEST, Trial
from actors.records import LoggedRequest

PASSES = 10  # over each text: a small draft has learned what it can from one by then, and the machine may rest
FEWEST_TOKENS = 4_000  # to begin to learn from: below that a draft learns them by heart
FIRST_TRIAL = 20  # steps; averaged weights are little else than the incumbent's before
TRIAL_SHARE = 0.2  # of the time that judging may take


@dataclass(frozen=True, slots=True)
class Learn:
    texts: tuple[LoggedRequest, ...]


@dataclass(frozen=True, slots=True)
class Save:
    """The weights of now are the candidate."""


@dataclass(frozen=True, slots=True)
class Judge:
    """Replay one text with the candidate, and with the incumbent unless its hits are known."""

    text: LoggedRequest
    known: int | None  # the incumbent's


@dataclass(frozen=True, slots=True)
class Decide:
    trial: Trial


Step = Learn | Save | Judge | Decide | None


@dataclass(slots=True)
class Course:
    traffic: Traffic = field(default_factory=Traffic)
    held: bool = False  # an operator went back: nothing is promoted any more
    _steps: int = 0  # since the weights were the incumbent's
    _seen: int = 0  # tokens learned from, repetitions included, ever
    _learned_s: float = 0.0  # since the last trial
    _judged_s: float = 0.0  # of the last trial
    _trial: Trial | None = None
    _trials: int = 0  # ever
    _to_judge: Iterator[LoggedRequest] = field(default_factory=lambda: iter(()))
    _incumbent: dict[LoggedRequest, int] = field(default_factory=dict)  # its hits

    def next(self) -> Step:
        """None: there is nothing to do before more is heard."""
        if self._trial is not None:
            text = next(self._to_judge, None)
            return Decide(self._trial) if text is None else Judge(text, self._incumbent.get(text))
        if self._trial_due:
            return Save()
        learned = self.traffic.learned
        if self.held or learned.tokens < FEWEST_TOKENS or self._seen >= PASSES * self.traffic.heard:
            return None
        return Learn(tuple(learned.texts))

    @property
    def _trial_due(self) -> bool:
        enough = self._steps >= FIRST_TRIAL and len(self.traffic.judged.texts) >= FEWEST
        return enough and not self.held and self._learned_s * TRIAL_SHARE >= self._judged_s

    def learned(self, tokens: int, seconds: float) -> None:
        self._steps += 1
        self._seen += tokens
        self._learned_s += seconds

    def saved(self) -> None:
        """A trial begins, unless an operator went back meanwhile."""
        if self.held:
            return
        self._trials += 1
        self._trial, self._to_judge = Trial(self._trials), self.traffic.to_judge()
        self._judged_s = 0.0

    def judged(self, text: LoggedRequest, candidate: int, incumbent: int, seconds: float) -> None:
        if self._trial is None:
            return  # it was broken off meanwhile
        self._trial.add(candidate, incumbent, len(text.text))
        self._incumbent[text] = incumbent
        self._judged_s += seconds

    def decided(self, incumbent: bool) -> None:
        """``incumbent``: the weights in training are the incumbent's now: the candidate took its place, or was given
        up."""
        self._trial, self._learned_s = None, 0.0
        if incumbent:
            self._steps = 0
            self._incumbent.clear()
        held = set(self.traffic.judged.texts)
        for text in [text for text in self._incumbent if text not in held]:
            del self._incumbent[text]

    def undone(self) -> None:
        """An operator went back to earlier weights, to stay there."""
        self.held = True
        self.decided(incumbent=True)
