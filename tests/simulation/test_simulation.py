"""Plans by seed, carried out by the real actors on virtual time. ``python -m tests.simulation`` runs many more."""

import os
import subprocess
import sys
from unittest.mock import patch

import msgspec

from actors.verifier.leases import Leases
from actors.verifier.streams import Stream
from duoactor.client.session import Call, Result, Session
from protocols.handshake import Why
from tests.simulation.choosing import failed
from tests.simulation.plans import FIRST, Plan, Rates, plan_of, with_second
from tests.simulation.shrinking import read, shrink, written
from tests.simulation.world import simulate
from tests.world.models import ToyLanguage

SEEDS = 200  # plans of which a few are played: 26 of one verifier have more pairs of facts than the first 80
LIVELY = next(seed for seed in range(100) if len(plan_of(seed).drafts) > 1 and len(plan_of(seed).troubles) > 4)
# A hostile client is told of the verifier's process as well.
TOLD_OF_PROCESSES = next(
    seed
    for seed in range(LIVELY, 100)
    if plan_of(seed).drafts and any((one.what, one.who) == ("hostile", "client") for one in plan_of(seed).troubles)
)
STEADY = msgspec.structs.replace(plan_of(LIVELY), troubles=())


def test_whatever_a_seed_does_to_them_every_text_is_the_targets_and_nothing_is_left():
    assert not failed(map(plan_of, range(SEEDS)), 26), "see `python -m tests.simulation --seed N`"


def test_with_a_second_verifier_every_stream_is_told_the_same_text_and_nothing_is_left_at_either():
    plans = (with_second(plan_of(seed)) for seed in range(SEEDS))
    assert not failed(plans, 12), "see `python -m tests.simulation --seed N --verifiers 2`"


def test_streams_of_plans_with_a_second_verifier_change_verifiers():
    moved = []
    lost = Session._lost

    def noting(session: Session, why: Why, address: str) -> Result:
        result = lost(session, why, address)
        moved.extend(call for call in session.calls.values() if not call.submitted and session.verifiers.usable())
        return result

    with patch.object(Session, "_lost", noting):
        assert any(simulate(with_second(plan_of(seed))) and moved for seed in range(12))


def test_the_same_seed_gives_the_same_messages_at_the_same_times():
    assert simulate(plan_of(LIVELY)) == simulate(plan_of(LIVELY))
    assert simulate(plan_of(LIVELY)).digest != simulate(plan_of(LIVELY + 1)).digest


def test_a_seed_is_replayed_message_by_message_in_another_process():
    """Where strings hash differently, so that no order of a set may matter."""
    said = []
    for salt in "12":
        environment = {**os.environ, "PYTHONHASHSEED": salt}
        command = [sys.executable, "-m", "tests.simulation", "--seed", str(TOLD_OF_PROCESSES)]
        said.append(subprocess.run(command, env=environment, capture_output=True, text=True, check=False).stdout)
    assert said[0] == said[1] and f"trace {simulate(plan_of(TOLD_OF_PROCESSES)).digest[:16]}" in said[0]


def test_the_wall_clock_means_nothing_to_the_actors():
    jumps = iter(range(10**6))

    def jumping() -> float:
        return (-1) ** next(jumps) * 1e9

    plain = simulate(plan_of(LIVELY))
    with patch("time.time", jumping):
        assert simulate(plan_of(LIVELY)) == plain


def test_a_plan_is_read_as_it_was_written():
    plan = with_second(plan_of(LIVELY))
    assert read(written(plan)) == plan


# --- it finds what is wrong ------------------------------------------------------------------------------------------


def problems(plan: Plan) -> str:
    return "; ".join(simulate(plan).problems)


def test_a_text_that_is_not_the_targets_is_found():
    truth = ToyLanguage.continuation
    with patch.object(ToyLanguage, "continuation", lambda self, *asked: [0, *truth(self, *asked)[1:]]):
        assert "differs" in problems(plan_of(LIVELY))


def test_a_stream_that_nobody_serves_is_found():
    with patch("actors.verifier.admission.Admission.ask", lambda *message: None):
        assert "hangs after 0" in problems(plan_of(LIVELY))


def test_slots_that_are_not_given_back_are_found():
    with patch("tests.world.models.ToyTarget.close", lambda self, handle: None):
        assert "KV slots" in problems(STEADY)


def test_what_is_kept_of_every_request_is_found():
    ended = Leases.ended

    def remembering(leases: Leases, stream: Stream) -> None:
        vars(leases).setdefault("old", []).append(stream.rid)
        ended(leases, stream)

    with patch.object(Leases, "ended", remembering):
        assert "verifier.leases.old[…] remembers a request" in problems(STEADY)


def test_tokens_that_come_twice_are_found():
    with patch.object(Call, "accept", lambda stream, chunk: stream.token_ids.extend(chunk.token_ids) or chunk):
        found = [problems(plan_of(seed)) for seed in range(12)]
    assert any("a chunk begins at" in found for found in found)


def test_a_plan_that_fails_is_shrunk_to_what_makes_it_fail():
    plan = with_second(plan_of(LIVELY))
    stream, trouble = plan.streams[-1], plan.troubles[2]

    def fails(some: Plan) -> bool:
        return stream in some.streams and trouble in some.troubles and some.rates.delay == plan.rates.delay

    smallest = shrink(plan, fails)
    assert (smallest.streams, smallest.troubles, smallest.drafts) == ((stream,), (trouble,), ())
    assert smallest.verifiers == (FIRST,)
    assert smallest.rates == Rates(delay=plan.rates.delay) and not smallest.controller
