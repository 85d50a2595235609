"""What a drafter tells of a phase once the target has decided its first token: the paper's table 4 comes from it."""

from actors.calibration import Calibration
from actors.drafter.growth import ThetaGrowth
from actors.drafter.lease import Lease, Limits
from actors.models import Expansion
from actors.tree.tree import TokenTree
from protocols.messages import Open, Plan, Sampling, Verdict


def lease(gamma=6, sequences=2, cap=0):
    plan = Plan("duodecoding", gamma, sequences, cap)
    return Lease(Open("r", 1, (1, 2), 2, Sampling(max_tokens=64), plan), 0, Limits(64, 4096), Calibration())


def draft(one):
    """Expand until the phase is over; the candidates behind position p are 10 (p + 1) and those after it."""
    slot = 0
    while nodes := one.wanted(8):
        for node in nodes:
            base = 10 * (node.position + 1)
            slot += node is not one.tree.root
            at = slot if node is not one.tree.root else -1
            one.expanded(node, Expansion(at, (base, base + 1, base + 2), (0.5, 0.3, 0.1)))


def told(one):
    grow = one.flush(0.0)
    return grow.phase_sequences, grow.phase_rank


def verdict(one, *tokens):
    one.verdict(Verdict("r", 1, 1, len(one.committed), tokens), 0.0)


def test_the_rank_of_the_token_that_came_is_told_once():
    one = lease()
    draft(one)
    assert told(one) == (0, 0)  # not known yet
    verdict(one, 21)
    draft(one)
    assert told(one) == (2, 2)
    assert told(one) == (0, 0)


def test_a_token_that_needed_more_sequences_than_were_drafted_has_its_rank_too():
    one = lease()
    draft(one)
    verdict(one, 22)
    assert told(one) == (2, 3)


def test_a_token_that_the_draft_did_not_think_of_has_rank_none():
    one = lease()
    draft(one)
    verdict(one, 99)
    assert told(one) == (2, 0)


def test_sequences_that_begin_behind_a_surviving_chain_are_judged_where_they_begin():
    one = lease()
    draft(one)
    told(one)
    verdict(one, 20)
    draft(one)  # behind the chosen sequence's last token
    assert told(one) == (2, 1)
    verdict(one, 30, 40)  # the chain to its end, nothing is known of what follows
    assert told(one) == (0, 0)
    verdict(one, 51)
    assert told(one) == (2, 2)


def test_a_drafter_of_a_chain_tells_nothing():
    one = lease()
    one.verdict(Verdict("r", 1, 1, 2, (99,), plan=Plan("pearl", 4)), 0.0)
    draft(one)
    told(one)
    verdict(one, 30)
    assert told(one) == (0, 0)


def test_the_controllers_cap_does_not_hold_against_a_number_that_was_asked_for():
    tree, growth = TokenTree(1, 0), ThetaGrowth(frozenset())
    growth.begin(tree, Plan("duodecoding", 8, 3, 1))
    growth.expanded(tree.root, Expansion(-1, (5, 6, 7), (0.5, 0.3, 0.2)))
    assert growth.sequences == 3


def test_an_older_drafters_fragment_has_no_phase():
    grow = lease().flush(0.0)
    assert (grow.phase_sequences, grow.phase_rank) == (0, 0)
