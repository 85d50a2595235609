"""When a drafter's fragment leaves: early enough for the verifier's look, and never one message per token."""

from actors.calibration import Calibration
from actors.drafter.lease import Lease, Limits
from actors.models import Expansion
from protocols.messages import Open, Plan, Sampling, Verdict

FAR = 1e6  # microseconds until the verifier looks
MARGIN = 300.0


def lease() -> Lease:
    opened = Open("r", 1, (1, 2), 2, Sampling(max_tokens=64), Plan("tree"))
    return Lease(opened, 0, Limits(64, 4096), Calibration())


def step(one: Lease) -> None:
    for node in one.wanted(1):
        slot = -1 if node is one.tree.root else sum(n.expanded for n in one.tree.nodes())
        one.expanded(node, Expansion(slot, (10 * node.position, 10 * node.position + 1), (0.8, 0.1)))


def test_what_the_verifier_waits_for_leaves_as_soon_as_it_is_there():
    one = lease()
    one.verdict(Verdict("r", 1, 1, 2, (9,), due_us=FAR, awaited=2), 0.0)
    assert not one.must_flush(0.0)
    step(one)
    assert not one.must_flush(0.0)
    step(one)
    assert one.must_flush(0.0)
    grow = one.flush(0.0)
    assert {10 * 2, 10 * 3} <= set(grow.tokens) and not grow.complete


def test_behind_what_was_awaited_the_next_look_counts_again():
    one = lease()
    one.verdict(Verdict("r", 1, 1, 2, (9,), due_us=FAR, awaited=1), 0.0, MARGIN)
    step(one)
    assert one.must_flush(0.0)
    one.flush(0.0)
    step(one)
    assert not one.must_flush(0.0)
    assert one.must_flush(FAR - MARGIN)


def test_a_verifier_that_awaits_no_number_is_told_shortly_before_it_looks():
    one = lease()
    one.verdict(Verdict("r", 1, 1, 2, (9,), due_us=FAR), 0.0, MARGIN)
    step(one)
    assert not one.must_flush(FAR - MARGIN - 1)
    assert one.must_flush(FAR - MARGIN)
