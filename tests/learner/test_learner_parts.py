"""The learner's state machines: what it keeps, what it does next, when a candidate is better."""

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from actors.learner.loop import FEWEST_TOKENS, PASSES, Learner
from actors.learner.traffic import Traffic
from actors.learner.trial import FEWEST, ReplayTrial
from actors.learner.versions import KEPT, STATE, Versions
from actors.peer import Line
from actors.records import LoggedRequest
from protocols.errors import ConfigError
from protocols.messages import Finished, Hello, Role, Sampling, ToLearner, Undo
from protocols.wire import Decoder
from tests.world.clock import run
from tests.world.network import MemoryNetwork


def text(number: int, length: int = 50) -> Finished:
    prompt = (number, number + 1, number + 2)
    return Finished((*prompt, *range(length)), len(prompt), Sampling(seed=number))


# --- traffic ---------------------------------------------------------------------------------------------------------


def test_the_latest_texts_are_kept_and_an_eighth_of_the_prompts_is_kept_apart():
    traffic = Traffic(learned=5000, judged=500)
    for number in range(2000):
        traffic.add(text(number))
    assert traffic.learned.tokens <= 5000 and traffic.judged.tokens <= 500
    assert max(one.sampling.seed for one in traffic.learned.texts) >= 1990
    many = Traffic()
    for number in range(2000):
        many.add(text(number))
    assert 0.1 < len(many.judged.texts) / 2000 < 0.15


def test_a_prompt_that_comes_again_stays_on_its_side():
    traffic = Traffic()
    for _ in range(5):
        for number in range(50):
            traffic.add(text(number))
    assert not {one.prompt for one in traffic.learned.texts} & {one.prompt for one in traffic.judged.texts}


def test_a_text_longer_than_what_is_kept_leaves_no_other_and_does_no_harm():
    traffic = Traffic(learned=100, judged=100)
    for number in range(20):
        traffic.add(text(number, 1000))
    assert len(traffic.learned.texts) == len(traffic.judged.texts) == 1


def test_long_prompts_of_short_answers_are_bounded_too():
    traffic = Traffic(held=10_000)
    for number in range(200):
        traffic.add(Finished((number, *range(999), 1), 1000, Sampling(seed=number)))
    assert 1 < len(traffic.learned.texts) <= 10 and 1 < len(traffic.judged.texts) <= 10


# --- trial -----------------------------------------------------------------------------------------------------------


def trial(gain: float, texts: int, seed: int = 0, number: int = 1) -> ReplayTrial:
    dice = random.Random(seed)
    made = ReplayTrial(number)
    for _ in range(texts):
        tokens = dice.randrange(20, 100)
        incumbent = sum(dice.random() < 0.6 for _ in range(tokens))
        candidate = sum(dice.random() < 0.6 + gain for _ in range(tokens))
        made.add(candidate, incumbent, tokens)
    return made


def test_a_clear_gain_is_better_and_a_clear_loss_worse():
    assert trial(0.08, 200).better and not trial(0.08, 200).worse
    assert trial(-0.08, 200).worse and not trial(-0.08, 200).better


def test_equal_drafts_are_hardly_ever_taken_for_better():
    assert sum(trial(0.0, 60, seed).better for seed in range(300)) <= 2


def test_the_best_of_many_equal_candidates_is_hardly_ever_taken_for_better():
    """Each learner tries hundreds in an hour, all on the same texts."""

    def promotes(seed: int) -> bool:
        trials = (trial(0.0, 60, 1000 * seed + number, number=number) for number in range(1, 201))
        return any(one.better for one in trials)

    assert sum(promotes(seed) for seed in range(8)) <= 1
    assert trial(0.08, 200, number=1000).better, "a clear gain is one still"


def test_a_few_texts_decide_nothing():
    made = ReplayTrial(1)
    for _ in range(FEWEST - 1):
        made.add(40, 10, 50)
    assert not made.better
    made.add(41, 10, 50)
    assert made.better


# --- learning --------------------------------------------------------------------------------------------------------


class Hand:
    """A trainer whose candidates have so many hits more than the incumbent; each call takes some time."""

    def __init__(self, gain: int = 0) -> None:
        self.gain = gain
        self.begun: list[str] = []
        self.steps = self.saved = self.seen = 0
        self.replayed: list[tuple[bool, LoggedRequest]] = []  # whether the candidate

    def begin(self, directory: str) -> None:
        self.begun.append(directory)

    def learn(self, texts: Sequence[LoggedRequest]) -> int:
        self.steps += 1
        return 1000

    def save(self, directory: Path) -> None:
        self.saved += 1
        directory.mkdir(exist_ok=True)
        (directory / "config.json").write_text("{}")

    def hits(self, directory: str, text: LoggedRequest) -> int:
        mine = directory.endswith("candidate")
        self.replayed.append((mine, text))
        return 20 + (self.gain + text.sampling.seed % 3 - 1) * mine


async def learning(directory: Path, trainer: Hand, texts: int = 400) -> tuple[Learner, asyncio.Task[None]]:
    """Without a verifier: nobody is served, and ``texts`` were."""

    async def thread(work, *arguments):
        await asyncio.sleep(1.0 if work == trainer.learn else 0.1)
        return work(*arguments)

    hello = Hello(Role.LEARNER, "learner", "1")
    line = Line(MemoryNetwork(), "memory://nobody", hello, Decoder(ToLearner))
    learner = Learner(trainer, Versions(directory, "draft"), line, asyncio.get_running_loop().time, thread)
    for number in range(texts):
        learner.traffic.add(text(number))
    return learner, asyncio.create_task(learner._study())


def studied(directory: Path, trainer: Hand, seconds: float, texts: int = 400, then=None) -> Learner:
    async def go() -> Learner:
        learner, task = await learning(directory, trainer, texts)
        await asyncio.sleep(seconds)
        if then is not None:
            await then(learner)
        assert not task.done()
        task.cancel()
        return learner

    return run(go())


def test_with_little_text_it_waits(tmp_path):
    studied(tmp_path, few := Hand(), 60, FEWEST_TOKENS // 60)
    studied(tmp_path, many := Hand(), 60, FEWEST_TOKENS // 40)
    assert few.steps == 0 < many.steps


def test_a_candidate_is_judged_on_every_text_kept_apart_and_the_incumbent_once(tmp_path):
    learner = studied(tmp_path, trainer := Hand(), 600)
    apart = len(learner.traffic.judged.texts)
    assert learner.trials > 2
    assert sum(mine for mine, _ in trainer.replayed) >= (learner.trials - 1) * apart
    assert sum(not mine for mine, _ in trainer.replayed) == apart


def test_what_is_better_is_promoted_and_the_next_is_compared_with_it(tmp_path):
    learner = studied(tmp_path, trainer := Hand(gain=20), 200)
    apart = len(learner.traffic.judged.texts)
    assert learner.versions.current.number > 1 and learner.versions.current.gain > 0.1
    assert sum(not mine for mine, _ in trainer.replayed) >= (learner.trials - 1) * apart


def test_what_is_worse_is_given_up(tmp_path):
    learner = studied(tmp_path, trainer := Hand(gain=-15), 200)
    assert learner.versions.current.number == 0 and len(trainer.begun) > 1


def test_texts_are_learned_so_many_times_and_no_more(tmp_path):
    learner = studied(tmp_path, Hand(), 50_000, 200)
    assert PASSES * learner.traffic.heard <= learner.seen < PASSES * learner.traffic.heard + 1000


@pytest.mark.parametrize("wait_for", ["saved", "replayed"], ids=["being written", "being judged"])
def test_after_an_undo_nothing_is_learned_or_promoted_any_more(tmp_path, wait_for):
    trainer = Hand(gain=20)

    async def undo(learner: Learner) -> None:
        while learner.versions.current.number < 1:
            await asyncio.sleep(0.01)
        now = {"saved": trainer.saved, "replayed": 0}
        trainer.replayed.clear()
        while not learner.judging or (wait_for == "replayed" and not trainer.replayed):
            await asyncio.sleep(0.01)
        assert trainer.saved == now["saved"] + (wait_for == "replayed")
        learner._undo(Undo("u", 1))
        steps = trainer.steps
        await asyncio.sleep(1000)
        assert learner.versions.current.number == 0 and trainer.steps == steps

    studied(tmp_path, trainer, 0.0, then=undo)


# --- versions --------------------------------------------------------------------------------------------------------


def candidate(versions: Versions) -> None:
    versions.candidate.mkdir()
    (versions.candidate / "config.json").write_text("{}")


def test_versions_are_kept_undone_and_found_again(tmp_path):
    versions = Versions(tmp_path / "learner", "draft")
    assert versions.current.number == 0 and versions.current.path == ""
    for _ in range(KEPT + 2):
        candidate(versions)
        versions.promote(0.01)
    last = versions.current
    assert last.number == KEPT + 2 and Path(last.path, "config.json").is_file()
    assert len(list((tmp_path / "learner").glob("version-*"))) == KEPT + 1
    again = Versions(tmp_path / "learner", "draft")
    assert again.current == last
    assert again.undo().number == last.number - 1
    for _ in range(KEPT - 1):
        assert again.undo() is not None
    assert again.undo() is None
    candidate(again)
    assert again.promote(0.02).number == last.number + 1  # a number never comes again


def test_an_interrupted_promotion_leaves_what_was_in_force(tmp_path):
    versions = Versions(tmp_path, "draft")
    candidate(versions)
    before = versions.promote(0.01)
    candidate(versions)
    versions.candidate.rename(tmp_path / "version-2-orphan")  # killed before the file named it
    (tmp_path / "candidate").mkdir()
    (tmp_path / f"{STATE}.part").write_text("half")
    again = Versions(tmp_path, "draft")
    assert again.current == before
    assert [path.name for path in tmp_path.glob("version-*")] == [Path(before.path).name]
    assert not again.candidate.exists()


@pytest.mark.parametrize("damage", ["another draft", "file", "weights"])
def test_versions_of_another_draft_or_damaged_ones_are_not_used(tmp_path, damage):
    versions = Versions(tmp_path, "draft")
    candidate(versions)
    made = versions.promote(0.01)
    if damage == "file":
        (tmp_path / STATE).write_text("{")
    if damage == "weights":
        (Path(made.path) / "config.json").unlink()
    assert Versions(tmp_path, "other" if damage == "another draft" else "draft").current.number == 0


def test_a_directory_that_cannot_be_written_is_said_in_a_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="--directory"):
        Versions(tmp_path / "file" / "learner", "draft")


def test_the_request_that_went_back_last_is_known_after_a_restart(tmp_path):
    versions = Versions(tmp_path, "draft")
    candidate(versions)
    versions.promote(0.01)
    assert versions.undone == ""
    versions.undo("u1")
    assert versions.undo("u2") is None
    assert Versions(tmp_path, "draft").undone == "u1"
