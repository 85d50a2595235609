"""Verifier, drafter and learner in one process: what is learned is served, what is worse never is, texts stay equal."""

import asyncio
import itertools
from pathlib import Path

from actors.learner.loop import Learner
from actors.learner.versions import Versions
from actors.peer import Line
from protocols.messages import Done, Failed, Finished, Hello, Role, Sampling, Status, StatusReport, ToLearner, Undo
from protocols.wire import Decoder
from tests.world.caller import ADDRESS, tokens_of
from tests.world.clock import run
from tests.world.cluster import Cluster
from tests.world.models import INFO, ToyDraft, ToyLanguage

LANGUAGE = ToyLanguage()
PROMPT = (5, 9, 33)


class ToyTrainer:
    """Each step makes it agree more often, or less."""

    def __init__(self, skill: float = 0.3, change: float = 0.02) -> None:
        self.own, self.change = skill, change
        self.skill = skill
        self.begun: list[str] = []

    def begin(self, directory: str) -> None:
        self.begun.append(directory)
        self.skill = skill_of(directory, self.own)

    def learn(self, texts) -> int:
        self.skill = min(0.95, max(0.05, self.skill + self.change))
        return 100

    def save(self, directory: Path) -> None:
        directory.mkdir(exist_ok=True)
        (directory / "config.json").write_text(str(self.skill))

    def hits(self, directory: str, text) -> int:
        return round(skill_of(directory, self.own) * len(text.text)) + text.sampling.seed % 3


def skill_of(directory: str, own: float) -> float:
    return float(Path(directory, "config.json").read_text()) if directory else own


class School(Cluster):
    """With a drafter that loads, and a learner."""

    def __init__(self, directory: Path, **settings) -> None:
        super().__init__(language=LANGUAGE, **settings)
        self.directory = directory
        self.ticks = itertools.count()

    async def load(self, path: str) -> ToyDraft:
        return ToyDraft(LANGUAGE, skill_of(path, 0.3))

    def drafter(self):
        return self.start_drafter(load=self.load, timer=lambda: next(self.ticks) * 1e-4)

    def learner(self, trainer: ToyTrainer | None = None) -> Learner:
        self.trainer = trainer or ToyTrainer()

        async def inline(work, *arguments):
            await asyncio.sleep(0.1)
            return work(*arguments)

        hello = Hello(
            Role.LEARNER, "learner", f"l{next(self.starts)}", "toy-draft", INFO.vocab_size, INFO.tokenizer_digest
        )
        learner = Learner(
            self.trainer,
            Versions(self.directory, "toy"),
            Line(self.network.host("learner"), ADDRESS, hello, Decoder(ToLearner)),
            clock=asyncio.get_running_loop().time,
            thread=inline,
        )
        for number in range(200):  # as if it had served for a while
            text = (number, 5, *range(40))
            learner.traffic.add(Finished(text, 2, Sampling(seed=number)))
        self._spawn("learner", learner)
        return learner

    async def serve(self, texts: int = 3) -> None:
        caller = await self.caller()
        for seed in range(texts):
            sampling = Sampling(max_tokens=40, temperature=1.0, seed=seed)
            assert tokens_of(await caller.generate(PROMPT, sampling, "tree")) == LANGUAGE.continuation(PROMPT, sampling)

    async def version(self, wanted: int) -> float:
        """Its gain, once the drafter serves with it."""
        caller = await self.caller()
        for _ in range(400):
            caller.send(Status("s"))
            report = await caller.until(lambda m: isinstance(m, StatusReport))
            if report.drafters and report.drafters[0].version == wanted:
                return report.drafters[0].gain
            await asyncio.sleep(0.2)
        raise AssertionError(report.drafters)


def test_what_is_learned_is_served_and_undone_and_found_again_after_a_kill(tmp_path):
    async def go():
        async with School(tmp_path) as school:
            drafter, learner = school.drafter(), school.learner()
            await school.connected("d1")
            await school.serve()
            gain = await school.version(1)
            skill = drafter.generations.current.model.skill
            learner.held = True  # no further version: what follows is about this one
            await school.kill("learner")
            await school.serve()
            await asyncio.sleep(2.0)  # as long as a new process takes at least
            again = school.learner()
            again.held = True
            await asyncio.sleep(5.0)
            begun = school.trainer.begun
            assert again.versions.current.number == 1
            caller = await school.caller()
            caller.send(Undo("u", 1))
            assert isinstance(await caller.next(), Done)
            await school.version(0)
            await school.serve()
            return gain, skill, begun, drafter.generations.current.model.skill

    gain, skill, begun, back = run(go())
    assert gain > 0.02 and skill > 0.3
    assert begun[0].startswith(str(tmp_path))
    assert back == 0.3


def test_a_candidate_that_is_worse_is_given_up_and_never_served(tmp_path):
    async def go():
        async with School(tmp_path) as school:
            drafter = school.drafter()
            learner = school.learner(ToyTrainer(change=-0.02))
            await school.connected("d1")
            await school.serve()
            await asyncio.sleep(60)
            return learner, school.trainer.begun, drafter.generations.newest

    learner, begun, newest = run(go())
    assert learner.versions.current.number == 0 and newest == 0
    assert len(begun) > 1  # it began again with the incumbent's weights


def test_a_verifier_that_restarts_is_told_what_is_in_force(tmp_path):
    async def go():
        async with School(tmp_path) as school:
            school.drafter()
            learner = school.learner()
            await school.connected("d1")
            await school.serve()
            await school.version(1)
            learner.held = True
            school.crash_verifier()
            await asyncio.sleep(0.5)
            school.network.listeners.pop(ADDRESS, None)
            school.start_verifier()
            await asyncio.sleep(10.0)
            return learner.versions.current.number, await school.version(1)

    number, gain = run(go())
    assert number == 1 and gain > 0


def test_what_was_undone_without_the_verifier_hearing_it_is_undone_there_too(tmp_path):
    async def go():
        async with School(tmp_path) as school:
            school.drafter()
            learner = school.learner()
            await school.connected("d1")
            await school.version(1)
            learner.held = True
            await school.kill("learner")
            while learner.versions.current.number:
                learner.versions.undo()  # and was killed before it said so
            await asyncio.sleep(2.0)
            school.learner().held = True
            await school.version(0)

    run(go())


def test_an_undo_that_is_asked_for_twice_goes_back_once(tmp_path):
    """A client whose connection broke before it heard the answer asks again, by the same id."""

    async def go():
        async with School(tmp_path) as school:
            school.drafter()
            learner = school.learner(ToyTrainer(change=0.005))
            await school.connected("d1")
            for _ in range(1000):
                if (newest := learner.versions.current.number) == 2:
                    break
                await asyncio.sleep(0.1)
            learner.held = True
            caller = await school.caller()
            for _ in range(2):
                caller.send(Undo("u"))
                await caller.until(lambda message: isinstance(message, (Done, Failed)))
                await asyncio.sleep(1.0)
            return newest, learner.versions.current.number

    assert run(go()) == (2, 1)


def test_an_undo_that_a_promotion_overtakes_leaves_the_newer_version_in_force(tmp_path):
    """The verifier hands it on before it hears of the promotion."""

    async def go():
        async with School(tmp_path) as school:
            school.drafter()
            learner = school.learner()
            await school.connected("d1")
            await school.version(1)
            learner.held = True
            learner.versions.candidate.mkdir(exist_ok=True)
            learner.versions.promote(0.01)
            caller = await school.caller()
            caller.send(Undo("u", 1))
            handed = await caller.until(lambda message: isinstance(message, (Done, Failed)))
            await asyncio.sleep(1.0)
            return handed, learner.versions.current.number

    handed, number = run(go())
    assert isinstance(handed, Done) and number == 2
