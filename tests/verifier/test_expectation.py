"""What the verifier lets expect before anything is known of a text: it follows from what was measured."""

from dataclasses import replace

import pytest

from actors.controller.goodput import Belief, goodput
from actors.cost import CostModel
from actors.process import own_cpus
from actors.settings import VerifierSettings
from actors.verifier.expectation import expectation
from actors.verifier.state import State
from protocols.messages import Hello, Method, Role, Status, StatusReport
from tests.world.clock import run
from tests.world.cluster import COST, Cluster
from tests.world.fakes import INFO, ToyDraft
from tests.world.inline_drafts import inline

SLOW = {rows: 20 * time for rows, time in COST.items()}
LENT = {rows: time / 2 for rows, time in SLOW.items()}
CPU = replace(INFO, device="cpu")


def state(cost: CostModel, draft=None, info=CPU, **settings) -> State:
    return State(VerifierSettings(bind="memory://v", **settings), info, cost, 31, 0.0, "v", 0.0, inline=draft)


def join(known: State, name: str, step_us: float, max_context: int = 512) -> None:
    hello = Hello(Role.DRAFTER, name, "1", step_us=step_us, max_context=max_context)
    known.drafters.add(name.encode(), hello, 0.0)


def test_without_a_draft_model_only_the_plain_rate_is_told():
    found = expectation(state(CostModel(SLOW)))
    assert (found.drafts, found.tokens_per_second, found.agreement) == ("", 0.0, 0.0)
    assert found.plain_tokens_per_second == 1e6 * goodput(
        Method.VANILLA, None, Belief(CostModel(SLOW), CostModel({1: 1.0}))
    )


def test_the_plain_rate_is_that_with_the_cpus_that_resting_drafters_leave():
    own, lent = (state(CostModel(SLOW, lent=times), spare_cpus="1") for times in (None, LENT))
    assert (expectation(own).spare_cpus, expectation(lent).spare_cpus) == ("", "1")
    assert expectation(lent).plain_tokens_per_second > 1.9 * expectation(own).plain_tokens_per_second


def test_of_a_drafter_it_tells_what_leases_are_given_by():
    known = state(CostModel(SLOW))
    join(known, "d1", step_us=500.0)
    found = expectation(known)
    promised = known.budgets.promise(Method.AUTO, known.drafters.named("d1"), 1)
    assert found.drafts == "d1" and promised > 1.0 and 0.0 < found.agreement < 1.0
    assert found.tokens_per_second == pytest.approx(promised * found.plain_tokens_per_second)
    join(known, "d2", step_us=50.0)
    assert expectation(known).drafts == "d2", "the better one"
    known.drafters.named("d2").leave()
    assert expectation(known) == found


def test_a_method_without_drafts_has_none_predicted():
    known = state(CostModel(SLOW), inline(ToyDraft()), method=Method.PLD)
    join(known, "d1", step_us=500.0)
    assert expectation(known).drafts == "" and expectation(known).tokens_per_second == 0.0


def test_what_a_drafter_retrieves_is_not_predicted():
    known = state(CostModel(SLOW))
    join(known, "pld", step_us=1.0, max_context=0)
    assert expectation(known).drafts == ""


@pytest.mark.parametrize(("step_us", "drafts"), [(15_000.0, "verifier"), (50.0, "d1")])
def test_drafts_between_forwards_are_told_where_no_drafter_promises_more(step_us, drafts):
    draft = inline(ToyDraft(), step_us={1: 1000.0})
    known = state(CostModel(SLOW), draft)
    join(known, "d1", step_us)
    found = expectation(known)
    assert found.drafts == drafts
    own = draft.promise(known.cost) * found.plain_tokens_per_second
    assert found.tokens_per_second == pytest.approx(own) if drafts == "verifier" else found.tokens_per_second > own


def test_threads_are_told_of_a_target_on_a_cpu_only():
    here = expectation(state(CostModel(SLOW), threads=3, cpus="0,2,4"))
    assert (here.threads, here.cpus) == (3, "0,2,4")
    assert expectation(state(CostModel(SLOW))).threads == own_cpus()
    there = expectation(state(CostModel(SLOW), info=replace(INFO, device="cuda"), threads=3, cpus="0"))
    assert (there.threads, there.cpus) == (0, "")


def test_a_status_report_has_the_expectation():
    async def story():
        system = Cluster()
        async with system:
            caller = await system.caller()
            caller.send(Status("s"))
            report = await caller.until(lambda message: isinstance(message, StatusReport))
            return report.expected == expectation(system.verifier.state)

    assert run(story())
