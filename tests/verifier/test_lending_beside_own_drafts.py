"""Which drafters are tried where the verifier drafts itself."""

import asyncio

import pytest

from actors.cost import CostModel
from actors.verifier.drafters import DrafterPeer
from actors.verifier.prospects import worth_lending
from actors.verifier.standing import PAYS, Standings
from actors.verifier.waits import DrafterPace
from protocols.messages import Hello, Role
from tests.world.clock import run
from tests.world.inline_drafts import FORWARD_S, LONG, PROMPT, STEP_US, Counting, cluster, inline


@pytest.mark.parametrize("own", [True, False], ids=["the verifier's own draft model", "another draft model"])
@pytest.mark.parametrize("quicker", [True, False], ids=["quicker", "as quick"])
def test_a_drafter_is_lent_a_request_only_if_it_should_beat_the_verifiers_own_drafts(own, quicker):
    """Its own drafts have brought less than was predicted."""

    async def story():
        model = Counting(skill=0.9)
        draft = inline(model, step_us={rows: 10 * us for rows, us in STEP_US.items()})
        async with cluster(model, inline=draft) as system:
            caller = await system.caller()
            asked = asyncio.ensure_future(caller.generate(PROMPT, LONG))
            while not (requests := list(system.verifier.state.requests)):
                await asyncio.sleep(FORWARD_S)
            state, request = system.verifier.state, requests[0]
            hello = Hello(Role.DRAFTER, "d", "1", model_id=draft.model_id if own else "another")
            drafter = DrafterPeer(b"d", hello, DrafterPace(CostModel({1: 100.0})), 0.0, "d", Standings())
            own_drafts = state.own_drafts
            promised = state.budgets.promise("auto", drafter, 1)
            own_drafts.promised = promised / (1.5 * PAYS) if quicker else promised
            own_drafts.brings = lambda kind: promised / (1.5 * PAYS)
            assert worth_lending(state, request, drafter) is (quicker or not own)
            await asked

    run(story())
