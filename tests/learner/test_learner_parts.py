"""The learner's state machines: what it keeps, what it does next, when a candidate is better."""

import random
from pathlib import Path

import pytest

from actors.learner.course import FEWEST_TOKENS, FIRST_TRIAL, PASSES, Course, Decide, Judge, Learn, Save
from actors.learner.traffic import Traffic
from actors.learner.trial import FEWEST, Trial
from actors.learner.versions import KEPT, STATE, Versions
from protocols.errors import ConfigError
from protocols.messages import Finished, Sampling


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


# --- trial -----------------------------------------------------------------------------------------------------------


def trial(gain: float, texts: int, seed: int = 0, number: int = 1) -> Trial:
    dice = random.Random(seed)
    made = Trial(number)
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

    assert sum(promotes(seed) for seed in range(20)) <= 2
    assert trial(0.08, 200, number=1000).better, "a clear gain is one still"


def test_a_few_texts_decide_nothing():
    made = Trial(1)
    for _ in range(FEWEST - 1):
        made.add(40, 10, 50)
    assert not made.better
    made.add(41, 10, 50)
    assert made.better


# --- course ----------------------------------------------------------------------------------------------------------


def taught(course: Course, texts: int = 400) -> Course:
    for number in range(texts):
        course.traffic.add(text(number))
    return course


def learn(course: Course, steps: int, tokens: int = 100) -> None:
    for _ in range(steps):
        assert isinstance(course.next(), Learn)
        course.learned(tokens, 1.0)


def judge(course: Course, candidate: int, incumbent: int) -> tuple[Decide, int]:
    """The decision, and how often the incumbent's hits were not known."""
    assert isinstance(course.next(), Save)
    course.saved()
    asked = 0
    while isinstance(step := course.next(), Judge):
        asked += step.known is None
        course.judged(step.text, candidate + step.text.sampling.seed % 2, incumbent, 0.1)
    return step, asked


def test_with_little_text_it_waits():
    course = Course()
    assert course.next() is None
    assert isinstance(taught(course, FEWEST_TOKENS // 40).next(), Learn)


def test_a_candidate_is_judged_on_every_text_kept_apart_and_the_incumbent_once():
    course = taught(Course())
    learn(course, FIRST_TRIAL)
    apart = len(course.traffic.judged.texts)
    decision, asked = judge(course, 20, 20)
    assert decision.trial.texts == asked == apart
    course.decided(incumbent=False)
    learn(course, round(apart * 0.1 / 0.2))
    _, asked = judge(course, 40, 20)
    assert asked == 0
    course.decided(incumbent=True)
    learn(course, round(apart * 0.1 / 0.2))
    third, asked = judge(course, 20, 20)
    assert asked == apart
    assert (decision.trial.number, third.trial.number) == (1, 3), "every further trial is one more chance to err"


def test_texts_are_learned_so_many_times_and_no_more():
    course = taught(Course())
    heard = course.traffic.heard
    for _ in range(10_000):
        match course.next():
            case Learn():
                course.learned(1000, 0.1)
            case Save():
                course.saved()
            case Judge(one, _):
                course.judged(one, 1, 1, 0.1)
            case Decide():
                course.decided(incumbent=False)
            case None:
                break
    assert course.next() is None and PASSES * heard <= course._seen < PASSES * heard + 1000


def test_after_an_undo_nothing_is_learned_or_promoted_any_more():
    course = taught(Course())
    learn(course, FIRST_TRIAL)
    course.next()
    course.saved()
    step = course.next()
    course.undone()
    course.judged(step.text, 50, 0, 0.1)  # what was under way
    assert course.next() is None


def test_an_undo_while_a_candidate_is_written_ends_its_trial():
    course = taught(Course())
    learn(course, FIRST_TRIAL)
    assert isinstance(course.next(), Save)
    course.undone()
    course.saved()
    assert course.next() is None


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
