"""Draft steps that are made for their time alone."""

import pytest

from actors.cost import CostModel
from actors.draft_timing import MAX_PROBE_SHARE, RAREST, Probe
from tests.world.fakes import ToyDraft

STEP_S = 0.001


class Slow(ToyDraft):
    """Each step takes ``step_s`` of a clock of its own."""

    now, step_s, steps = 0.0, STEP_S, 0

    def expand(self, leaves):
        self.now += self.step_s
        self.steps += 1
        return super().expand(leaves)


def probed(model, seconds, probe=None):
    """The share of so many seconds that probes take, and the probe."""
    probe = probe or Probe(CostModel({1: STEP_S * 1e6}), lambda: model.now)
    begin, spent = model.now, 0.0
    while model.now < begin + seconds:
        before = model.now
        probe.run(model, model.now)
        spent += model.now - before
        model.now += STEP_S
    return spent / seconds, probe


def test_probes_that_find_what_was_believed_become_rare():
    model = Slow()
    share, probe = probed(model, 20.0)
    later, _ = probed(model, 50.0, probe)
    assert later < share < MAX_PROBE_SHARE
    assert later == pytest.approx(MAX_PROBE_SHARE / RAREST, rel=0.2)


def test_a_step_that_has_become_longer_is_followed_at_once():
    model = Slow()
    _, probe = probed(model, 20.0)
    model.step_s = 4 * STEP_S
    probed(model, 40.0, probe)
    assert probe.steps(1) == pytest.approx(4e6 * STEP_S, rel=0.1)
