"""The learner as it is, with a trainer that only says how often its weights are right, and what must be true of it.

Its candidates get better and worse by chance. Weights are files, as the real ones are, so that all that a learner can
leave behind half-way through a change is there at its next start.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import msgspec

from actors.generations import Generations, Loader
from actors.learner.loop import Learner
from actors.learner.pace import Pace
from actors.learner.traffic import Traffic
from actors.learner.versions import Version, Versions
from actors.peer import Line
from actors.records import LoggedRequest
from protocols import wire
from protocols.errors import ModelError
from protocols.messages import Finished, Hello, Role, Sampling, ToLearner
from tests.simulation.clocked_network import ClockedNetwork
from tests.simulation.hosts import Host
from tests.simulation.plans import LEARNER, Learning
from tests.world.caller import ADDRESS
from tests.world.models import INFO, Broken, ToyDraft, ToyLanguage

T = TypeVar("T")

DIRECTORY = Path("learner")  # below one of the simulation's own: each run says the same paths
WEIGHTS = "config.json"
STEP_TOKENS = 50  # tokens that a step of training is said to have seen: a dozen trials before all is learned
FIRST_SKILL = 0.4  # skill of the weights that training begins with
WORST, BEST = 0.2, 0.95
# What it has heard before, as if it had served for a while: no stream of a plan is long enough to learn from.
PAST = [Finished((number, 5, *range(40)), 2, Sampling(seed=number)) for number in range(200)]


class Weights(msgspec.Struct, frozen=True):
    """``sound``: a drafter can load them."""

    skill: float
    sound: bool = True


OWN = Weights(FIRST_SKILL)


def read(directory: str) -> Weights:
    """Empty: the draft's own. Raises ModelError."""
    if not directory:
        return OWN
    try:
        return msgspec.json.decode(Path(directory, WEIGHTS).read_bytes(), type=Weights)
    except OSError as error:
        raise ModelError(f"{directory} cannot be read ({error.strerror}): promote what is there") from None


@contextlib.contextmanager
def classroom(learning: Learning | None) -> Iterator[None]:
    """A directory of its own for what is written, and for relative paths."""
    if learning is None:
        yield
        return
    with tempfile.TemporaryDirectory() as directory, contextlib.chdir(directory):
        yield


class ChanceTrainer:
    """:class:`actors.learner.loop.Trainer`: each step makes it agree more often, or less."""

    def __init__(self, learning: Learning, chance: random.Random) -> None:
        self.learning, self.chance, self.skill = learning, chance, FIRST_SKILL

    def begin(self, directory: str) -> None:
        self.skill = read(directory).skill

    def learn(self, texts: Sequence[LoggedRequest]) -> int:
        drift = self.learning.drift
        self.skill = min(BEST, max(WORST, self.skill + self.chance.uniform(-drift, drift)))
        return STEP_TOKENS

    def save(self, directory: Path) -> None:
        directory.mkdir(exist_ok=True)
        weights = Weights(self.skill, self.chance.random() >= self.learning.unsound)
        (directory / WEIGHTS).write_bytes(msgspec.json.encode(weights))

    def hits(self, directory: str, text: LoggedRequest) -> int:
        return round(read(directory).skill * len(text.text))


class Eager(Pace):
    def may_work(self, now: float) -> bool:
        return True


class Attentive(Traffic):
    """Looks at what it is told."""

    def __init__(self, school: School) -> None:
        super().__init__()
        for text in PAST:
            super().add(text)
        self.school = school

    def add(self, message: Finished) -> None:
        super().add(message)
        tokens, start, language = message.tokens, message.prompt_len, self.school.language
        truth = [language.next(tokens[:at], message.sampling) for at in range(start, len(tokens))]
        if truth != list(tokens[start:]):
            self.school.defects.append(f"the learner is told {tokens[start:]} and not {truth}")


class WatchedVersions(Versions):
    """The learner may die before any step of a change, and each change is one that it may make."""

    def __init__(self, school: School) -> None:
        self.school, self.went_back = school, False
        super().__init__(DIRECTORY, "toy")

    def promote(self, gain: float) -> Version:
        self.school.step("promote")
        if self.went_back:
            self.school.defects.append("a version is promoted after an undo")
        if read(str(self.candidate)).skill <= read(self.current.path).skill:
            self.school.defects.append("a version is promoted that is no better than the one before")
        version = super().promote(gain)
        self.school.promoted += 1
        self.school.step("say")
        return version

    def undo(self, *asked: Any) -> Version | None:
        self.school.step("undo")
        before = self.current
        version = super().undo(*asked)
        self.went_back |= self.current != before
        self.school.undone += self.current != before
        if self.current != before and before.number not in self.school.unwanted:
            self.school.mistaken.append(before.number)
        self.school.step("say")
        return version

    def _write(self) -> None:
        self.school.step("write")
        super()._write()
        self.school.in_force.add(self.current.path)

    def _clean(self) -> None:
        self.school.step("clean")
        super()._clean()


class School:
    """The learner's process, and what it has promoted."""

    def __init__(
        self, learning: Learning, language: ToyLanguage, network: ClockedNetwork, chance: random.Random
    ) -> None:
        self.learning, self.language, self.network, self.chance = learning, language, network, chance
        self.learner: Learner | None = None
        self.in_force: set[str] = set()  # paths of versions that were, at one time
        self.undone = self.asked = 0  # changes back, and how often the operator asked for one
        self.unwanted: set[int] = set()  # versions that the operator asked it to leave
        self.mistaken: list[int] = []  # versions that it left, and which the operator never meant
        self.promoted = self.refused = self.deaths = 0  # versions; loads that failed; deaths in mid-change
        self.dies_before = ""  # step of its next change before which it dies
        self.defects: list[str] = []

    async def begin(self, host: Host) -> None:
        hello = Hello(
            Role.LEARNER, LEARNER, f"learner-{host.starts}", INFO.model_id, INFO.vocab_size, INFO.tokenizer_digest
        )  # fmt: skip
        self.learner = learner = Learner(
            ChanceTrainer(self.learning, self.chance),
            WatchedVersions(self),
            Line(self.network.host(host.name), ADDRESS, hello, wire.Decoder(ToLearner)),
            clock=host.process.clock,
            thread=self._thread,
        )
        learner.traffic = Attentive(self)
        if self.learning.eager:
            learner.pace = Eager()
        await learner.run(host.stop)

    async def _thread(self, work: Callable[..., T], *arguments: Any) -> T:
        """What is done early or late in its time, is done or not when the learner dies meanwhile."""
        early = self.chance.random() < 0.5
        result = work(*arguments) if early else None
        await asyncio.sleep(self.learning.piece_s)
        return work(*arguments) if not early else result  # type: ignore[return-value]

    def step(self, name: str) -> None:
        """A step in a change of versions: the learner may die before it."""
        if name == self.dies_before:
            self._die()

    def _die(self) -> NoReturn:
        self.dies_before = ""
        self.deaths += 1
        self.network.kill(LEARNER)
        raise Broken

    def loader(self, model: ToyDraft) -> Loader:
        """The loader of an actor that drafts with ``model``."""

        async def load(path: str) -> ToyDraft:
            await asyncio.sleep(self.chance.uniform(0.0, self.learning.load_s))
            if not path:
                return replace(model)
            try:
                weights = read(path)
                if not weights.sound:
                    raise ModelError(f"{path} is of a layout that is not known: promote another")
            except ModelError:
                self.refused += 1
                raise
            if path not in self.in_force:
                self.defects.append(f"{path} is loaded and was never promoted")
            return replace(model, skill=weights.skill)

        return load

    # --- when all is quiet -------------------------------------------------------------------------------------------

    @property
    def current(self) -> Version:
        assert self.learner is not None
        return self.learner.versions.current

    @property
    def busy(self) -> bool:
        """It has something to learn, to judge or to promote."""
        assert self.learner is not None
        return self.learner.to_learn or self.learner.judging or self.learner.trial_due

    def agrees(self, generations: Generations) -> bool:
        """Whether those weights serve that are in force; weights that cannot be loaded do not, and it says so."""
        source, current = generations.current.source, self.current
        if (source.version, source.path) == (current.number, current.path):
            return True
        return not read(current.path).sound and generations.trouble.startswith(f"version {current.number} ")

    def problems(self, hostile: bool) -> list[str]:
        """``hostile``: others than the operator may have asked for an undo, too."""
        if hostile:
            return self.defects
        extra = self.undone - self.asked
        more = [f"{extra} more undone than asked for"] if extra > 0 else []
        return [*self.defects, *more, *(f"version {one} is undone, which nobody asked for" for one in self.mistaken)]
