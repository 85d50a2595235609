"""Plans with a learner: its versions come and go, it dies half-way through a change, drafters cannot load it."""

import os
import subprocess
import sys
from unittest.mock import patch

import msgspec

from actors.learner.loop import Learner
from actors.learner.trial import ReplayTrial
from protocols.messages import Undo
from tests.simulation.choosing import failed
from tests.simulation.plans import Learning, Plan, Rates, Trouble, plan_of, with_learner, with_second
from tests.simulation.school import School, WatchedVersions
from tests.simulation.shrinking import read, shrink, written
from tests.simulation.world import simulate

ASKS_A_GATEWAY = 16  # a stream whose gateway's library gives work to a thread
SEEDS = 200  # plans of which a few are played, as in test_simulation.py
LIVELY = next(
    seed for seed in range(100) if len(plan_of(seed).drafts) > 1 and len(with_learner(plan_of(seed)).troubles) > 5
)
PRODUCTIVE = 3  # more versions are promoted than are kept
EAGER = Learning(eager=True, piece_s=0.002, drift=0.02, unsound=0.0, load_s=0.05)
CALM = msgspec.structs.replace(with_learner(plan_of(LIVELY)), troubles=(), learning=EAGER)
UNDONE = msgspec.structs.replace(CALM, troubles=(Trouble(1.5, "undo", "operator"),))
# an operator whose order names no version, as an older client's
ANY_VERSION = patch("duoactor.client.async_client.Undo", lambda rid, version: Undo(rid))


def problems(plan: Plan) -> str:
    return "; ".join(simulate(plan).problems)


def test_whatever_becomes_of_a_learner_every_text_is_the_targets_and_what_is_in_force_serves():
    plans = (with_learner(plan_of(seed)) for seed in range(SEEDS))
    assert not failed(plans, 12), "see `python -m tests.simulation --seed N --learner`"


def test_with_a_second_verifier_likewise():
    plans = (with_learner(with_second(plan_of(seed))) for seed in range(SEEDS))
    assert not failed(plans, 5), "see `python -m tests.simulation --seed N --learner --verifiers 2`"


def test_such_plans_promote_and_undo_fail_to_load_and_die_in_mid_change():
    schools: list[School] = []
    begun = School.__init__

    def noting(school: School, *arguments) -> None:
        begun(school, *arguments)
        schools.append(school)

    with patch.object(School, "__init__", noting):
        for seed in (9, 10, 21, 22, 30):  # seeds that have all of it
            simulate(with_learner(plan_of(seed)))
    for what in ("promoted", "undone", "refused", "deaths"):
        assert sum(getattr(school, what) for school in schools) > 1, what


def test_a_seed_with_a_learner_is_replayed_message_by_message_in_another_process():
    said = []
    for salt in "12":
        environment = {**os.environ, "PYTHONHASHSEED": salt}
        command = [sys.executable, "-m", "tests.simulation", "--seed", str(LIVELY), "--learner"]
        said.append(subprocess.run(command, env=environment, capture_output=True, text=True, check=False).stdout)
    assert said[0] == said[1] and f"trace {simulate(with_learner(plan_of(LIVELY))).digest[:16]}" in said[0]


def test_a_simulation_starts_no_thread():
    """How often the loop turns until a thread is done is chance, and so would be what time it is then."""
    with patch("threading.Thread.start", side_effect=AssertionError("a thread was started")) as start:
        assert simulate(with_learner(plan_of(ASKS_A_GATEWAY))).problems == ()
    start.assert_not_called()


def test_a_plan_with_a_learner_is_read_as_it_was_written():
    assert read(written(CALM)) == CALM


def test_a_plan_that_fails_without_its_learner_is_shrunk_to_that():
    assert shrink(CALM, lambda plan: True).learning is None
    assert shrink(CALM, lambda plan: plan.learning is not None).learning == CALM.learning


# --- it finds what is wrong ------------------------------------------------------------------------------------------


def test_a_version_that_is_worse_is_found():
    with patch.object(ReplayTrial, "better", property(lambda trial: trial.texts > 0)):
        assert "no better than the one before" in problems(CALM)


def test_a_version_that_the_verifier_is_not_told_of_is_found():
    with patch.object(Learner, "_promote", lambda learner: None):
        assert "the verifier does not know" in problems(CALM)


def test_a_version_that_drafters_do_not_load_is_found():
    with patch("actors.generations.Generations.load", lambda generations, message: None):
        assert "does not serve with" in problems(CALM)


def test_a_learner_that_is_told_another_text_is_found():
    with patch("actors.verifier.streams.Transcript.given", property(lambda text: text.prompt_len - 1)):
        assert "the learner is told" in problems(CALM)


def test_versions_that_are_kept_for_ever_are_found():
    with patch.object(WatchedVersions, "_clean", lambda versions: None):
        assert "directories of versions too many" in problems(with_learner(plan_of(PRODUCTIVE)))


def test_a_promotion_after_an_undo_is_found():
    with patch.object(Learner, "held", property(lambda _: False, lambda *_: None), create=True):
        assert "promoted after an undo" in problems(UNDONE)


def test_an_undo_that_goes_back_twice_is_found():
    plan = msgspec.structs.replace(UNDONE, rates=Rates(duplicate=1.0))
    with patch.object(WatchedVersions, "undone", ""), ANY_VERSION:
        assert "more undone than asked for" in problems(plan)


def test_an_undo_of_a_version_that_the_operator_did_not_see_is_found():
    """Two operators ask for the same version to be left: the second means no further one."""
    plan = msgspec.structs.replace(CALM, troubles=tuple(Trouble(at, "undo", "operator") for at in (4.0, 4.1)))
    assert not problems(plan)
    with ANY_VERSION:
        assert "which nobody asked for" in problems(plan)
