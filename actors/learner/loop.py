"""The learner: receives finished texts, trains while no stream suffers, promotes weights that replay finds better.

Training and replay run on a thread, a second at a time; before each piece :class:`Pace` says whether to go on.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Protocol

from actors.learner.pace import Pace
from actors.learner.traffic import Traffic
from actors.learner.trial import FEWEST, ReplayTrial
from actors.learner.versions import Versions
from actors.peer import Line
from actors.records import LoggedRequest
from actors.telemetry import Subscription
from protocols.limits import Difference, within
from protocols.messages import Drain, Finished, Promote, RoundStats, Undo, Welcome

log = logging.getLogger("duoactor.learner")
IDLE_S = 0.5  # between two looks for something to do
PASSES = 10  # over each text: by then a small draft has learned all it can from one
FEWEST_TOKENS = 4_000  # fewest to begin with: a draft learns fewer by heart
FIRST_TRIAL = 20  # steps; averaged weights are little else than the incumbent's before
TRIAL_SHARE = 0.2  # share of the time that judging may take


class Trainer(Protocol):
    """A model in training. Called on one thread, for about a second each time, ``begin`` and ``save`` aside."""

    def begin(self, directory: str) -> None:
        """Learn on from these weights; empty: from those of the draft itself."""
        ...

    def learn(self, texts: Sequence[LoggedRequest]) -> int:
        """One step on some of the texts; how many tokens it has seen."""
        ...

    def save(self, directory: Path) -> None:
        """Write the weights as a draft model's directory."""
        ...

    def hits(self, directory: str, text: LoggedRequest) -> int:
        """Tokens of a text that were the first choice of the draft in that directory, by exact replay with the engine
        that serves; empty: of the draft itself."""
        ...


class Learner:
    def __init__(
        self,
        trainer: Trainer,
        versions: Versions,
        line: Line,
        clock: Callable[[], float] = time.monotonic,
        thread: Callable[..., Awaitable[Any]] = asyncio.to_thread,
    ) -> None:
        """``thread`` runs the trainer's calls, one at a time."""
        self.trainer, self.versions, self.line, self.clock, self.thread = trainer, versions, line, clock, thread
        self.traffic, self.pace = Traffic(), Pace()
        self.held = False  # an operator went back: nothing is learned or promoted any more
        self.anew = True  # training begins with the weights of the current version
        self.steps = 0  # since it began
        self.seen = 0  # tokens learned from, repetitions included, ever
        self.trials = 0  # ever
        self.judging = False
        self.due_s = 0.0  # training until the next trial
        self.incumbent: dict[LoggedRequest, int] = {}  # hits of the current version

    async def run(self, stop: asyncio.Event) -> None:
        """Learn until ``stop`` is set or the verifier asks us to leave."""
        await self.line.serve(stop, self._work)

    def _work(self, welcome: Welcome) -> Sequence[Coroutine[Any, Any, None]]:
        self._welcomed(welcome)
        return self._listen(self.line.subscribe()), self._converse(), self._study()

    # --- hearing -----------------------------------------------------------------------------------------------------

    async def _listen(self, telemetry: Subscription) -> None:
        while True:
            if isinstance(message := await telemetry.receive(), RoundStats):
                self.pace.round(message, self.clock())

    async def _converse(self) -> None:
        while not isinstance(news := await self.line.next(), Drain):
            match news:
                case Finished():
                    self.traffic.add(news)
                case Undo():
                    self._undo(news)
                case Welcome():  # a verifier that has restarted
                    self._welcomed(news)

    def _welcomed(self, welcome: Welcome) -> None:
        self.pace.calibrated(welcome.forward_us)
        self._promote()

    def _promote(self) -> None:
        """Drafters are to serve with the current version."""
        current = self.versions.current
        self.line.send(
            Promote(current.number, current.path, self.line.hello.model_id, within(current.gain, Difference))
        )

    def _undo(self, asked: Undo) -> None:
        """A client without an answer asks again. A client that does not know of a promotion yet means the version
        before."""
        if asked.rid == self.versions.undone:
            return
        left = self.versions.current.number
        if asked.version not in (0, left):
            log.warning("version %d is in force, not %d: nothing is undone", left, asked.version)
            return
        if self.versions.undo(asked.rid) is None:
            log.warning("there is nothing to go back to from version %d", left)
            return
        self.held = True
        self._promote()
        log.info(
            "went back from version %d to %d; nothing is promoted until this learner is started again",
            left,
            self.versions.current.number,
        )

    # --- learning ----------------------------------------------------------------------------------------------------

    @property
    def to_learn(self) -> bool:
        """Whether there is text that was not used often enough."""
        enough = self.traffic.learned.tokens >= FEWEST_TOKENS
        return enough and not self.held and self.seen < PASSES * self.traffic.heard

    @property
    def trial_due(self) -> bool:
        enough = self.steps >= FIRST_TRIAL and len(self.traffic.judged.texts) >= FEWEST
        return enough and not self.held and self.due_s <= 0

    async def _study(self) -> None:
        while True:
            await self._allowed()
            if self.anew:
                self.anew, self.steps = False, 0
                await self.thread(self.trainer.begin, self.versions.current.path)
            elif self.trial_due:
                self.judging = True
                await self._try()
                self.judging = False
            elif self.to_learn:
                began = self.clock()
                self.seen += await self.thread(self.trainer.learn, tuple(self.traffic.learned.texts))
                self.due_s -= self.clock() - began
                self.steps += 1
            else:
                await asyncio.sleep(IDLE_S)

    async def _allowed(self) -> None:
        while True:
            if self.pace.may_work(self.clock()):
                return
            await asyncio.sleep(IDLE_S)

    async def _try(self) -> None:
        """Judge the weights in training on every text kept apart: promote them, give them up, or go on."""
        await self.thread(self.trainer.save, self.versions.candidate)
        self.trials += 1
        trial, current, texts = ReplayTrial(self.trials), self.versions.current.path, tuple(self.traffic.judged.texts)
        judged_s = 0.0
        for text in texts:
            await self._allowed()
            if self.held:
                return
            began = self.clock()
            candidate = await self.thread(self.trainer.hits, str(self.versions.candidate), text)
            if text not in self.incumbent:
                self.incumbent[text] = await self.thread(self.trainer.hits, current, text)
            trial.add(candidate, self.incumbent[text], len(text.text))
            judged_s += self.clock() - began
        if not self.held:
            self._decide(trial)
            self.due_s = judged_s / TRIAL_SHARE
            kept = () if trial.better or trial.worse else texts
            self.incumbent = {text: self.incumbent[text] for text in kept}

    def _decide(self, trial: ReplayTrial) -> None:
        ours, theirs = trial.agreement
        figures = f"agreement {ours:.3f} after {theirs:.3f} on {trial.texts} texts kept apart"
        if trial.better:
            version = self.versions.promote(trial.gain)
            self.steps = 0
            self._promote()
            log.info("version %d serves from now on: %s", version.number, figures)
        elif trial.worse:
            self.anew = True
            log.info("what was learned is worse and is given up: %s", figures)
        else:
            level = logging.INFO if self.trials == 1 else logging.DEBUG  # one in many, seconds apart
            log.log(level, "not promoted yet: %s, error %.3f", figures, trial.error)
