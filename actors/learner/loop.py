"""The learner: receives finished texts, trains while no stream suffers, promotes weights that replay finds better.

Training and replay run on a thread, a second at a time; between two pieces :class:`Pace` says whether to go on, and
:class:`Course` with what.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar

from actors.learner.course import Course, Decide, Judge, Learn, Save
from actors.learner.pace import Pace
from actors.learner.trainer import Trainer
from actors.learner.trial import Trial
from actors.learner.versions import Versions
from actors.peer import Line
from actors.records import LoggedRequest
from actors.telemetry import Subscription
from protocols import wire
from protocols.limits import Difference, within
from protocols.messages import Drain, Finished, Hello, Promote, RoundStats, ToLearner, Undo, Welcome
from protocols.transport import Network

T = TypeVar("T")

log = logging.getLogger("duoactor.learner")
IDLE_S = 0.5  # between two looks for something to do


class Learner:
    def __init__(
        self,
        trainer: Trainer,
        versions: Versions,
        network: Network,
        address: str,
        hello: Hello,
        clock: Callable[[], float] = time.monotonic,
        thread: Callable[..., Awaitable[Any]] = asyncio.to_thread,
    ) -> None:
        """``thread`` runs the trainer's calls, one at a time."""
        self.trainer, self.versions, self.clock = trainer, versions, clock
        self.line = Line(network, address, hello, wire.Decoder(ToLearner))
        self.course, self.pace, self.thread = Course(), Pace(), thread
        self._begin_anew = False  # with the weights of the current version
        self._tried: int | None = None  # the version that the latest trial was against

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
                    self.course.traffic.add(news)
                case Undo():
                    self._undo(news)
                case Welcome():  # of a verifier that has restarted
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
        """A client without an answer asks again. One that asks before it knows of a promotion means the version
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
        self.course.undone()
        self._begin_anew = True
        self._promote()
        log.info(
            "went back from version %d to %d; nothing is promoted until this learner is started again",
            left,
            self.versions.current.number,
        )

    # --- learning ----------------------------------------------------------------------------------------------------

    async def _study(self) -> None:
        trainer = self.trainer
        await self.thread(trainer.begin, self.versions.current.path)
        while True:
            if not self.pace.may_work(self.clock()):
                await asyncio.sleep(IDLE_S)
                continue
            if self._begin_anew:
                self._begin_anew = False
                await self.thread(trainer.begin, self.versions.current.path)
            match self.course.next():
                case None:
                    await asyncio.sleep(IDLE_S)
                case Learn(texts):
                    self.course.learned(*await self._timed(partial(trainer.learn, texts)))
                case Save():
                    await self.thread(trainer.save, self.versions.candidate)
                    self.course.saved()
                case Judge(text, known):
                    await self._judge(text, known)
                case Decide(trial):
                    self._decide(trial)

    async def _timed(self, work: Callable[[], T]) -> tuple[T, float]:
        begin = self.clock()
        result: T = await self.thread(work)
        return result, self.clock() - begin

    async def _judge(self, text: LoggedRequest, known: int | None) -> None:
        incumbent = self.versions.current.path

        def replay() -> tuple[int, int]:
            ours = self.trainer.hits(str(self.versions.candidate), text)
            return ours, known if known is not None else self.trainer.hits(incumbent, text)

        (candidate, before), seconds = await self._timed(replay)
        self.course.judged(text, candidate, before, seconds)

    def _decide(self, trial: Trial) -> None:
        ours, theirs = trial.agreement
        figures = f"agreement {ours:.3f} after {theirs:.3f} on {trial.texts} texts kept apart"
        if trial.better:
            version = self.versions.promote(trial.gain)
            self._promote()
            log.info("version %d serves from now on: %s", version.number, figures)
        elif trial.worse:
            self._begin_anew = True
            log.info("what was learned is worse and is given up: %s", figures)
        else:  # one of many trials, seconds apart: only the first against each incumbent is news
            news = self._tried != self.versions.current.number
            self._tried = self.versions.current.number
            log.log(logging.INFO if news else logging.DEBUG, "not promoted yet: %s, error %.3f", figures, trial.error)
        self.course.decided(incumbent=trial.better or trial.worse)
