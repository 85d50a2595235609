"""Is the drafter worth it, where the verifier has guesses of its own? Rounds in, one decision out."""

from __future__ import annotations

from actors.controller.worth import Worth
from protocols.messages import RoundStats

OVERHEAD_US = 500.0


def cost(rows: int) -> float:
    return 10_000.0 + 300.0 * (rows - 1)


class Stream:
    """Rounds as they would be published, obeying the controller's word with a round's delay."""

    def __init__(self) -> None:
        self.worth = Worth()
        self.drafting = True

    def round(
        self, copied: int, drafted: int, wait_us: float = 0.0, slower: float = 1.0, window: int | None = None
    ) -> None:
        """``copied`` tokens the verifier guesses right by itself; ``drafted`` more the drafter adds, if it drafts.
        ``slower``: the forward, because a drafter works beside it."""
        right = copied + (drafted if self.drafting else 0)
        window = min(16, 2 * right + 2) if window is None else window
        forward = cost(1 + window) * (slower if self.drafting else 1.0)
        wait = wait_us if self.drafting else 0.0
        stats = RoundStats(
            "r", 1, "auto", "d", window, right, right + 1, 1 + window, forward, wait, forward + wait + OVERHEAD_US,
            retrieved=copied, resting=not self.drafting,
        )  # fmt: skip
        self.worth.observe(stats, cost, OVERHEAD_US)
        self.drafting = self.worth.drafting
        self.worth.decide()

    def rounds(self, count: int, *, copied: int, drafted: int, **what: float) -> int:
        """In how many of them the drafter was at work."""
        at_work = 0
        for number in range(count):
            at_work += self.drafting
            self.round(copied, drafted if number % 2 else 0, **what)
        return at_work


def test_text_that_copies_while_the_drafter_rests_is_not_held_against_it():
    stream = Stream()
    stream.rounds(60, copied=1, drafted=0)
    assert not stream.worth.drafting
    at_work = 0
    for _ in range(20):  # answers that begin afresh, and then repeat themselves
        at_work += stream.rounds(15, copied=0, drafted=3, wait_us=800.0)
        stream.rounds(25, copied=4, drafted=1, wait_us=800.0)
    assert at_work > 0.75 * 20 * 15  # all but the first rest


def test_a_few_unlucky_rounds_are_no_evidence():
    stream = Stream()
    for number in range(26):  # the windows of a calibration that is still too sure of itself
        stream.round(number % 2, 5 if number % 12 == 11 else 0, wait_us=3000.0, window=8)
    assert stream.worth.drafting


def test_a_drafter_that_adds_nothing_rests_whatever_there_is_to_copy():
    stream = Stream()
    for copied in (0, 3, 0, 5) * 5:
        stream.rounds(60, copied=copied, drafted=0, wait_us=1000.0)
    assert stream.rounds(600, copied=2, drafted=0, wait_us=1000.0) < 100


def test_a_probe_on_a_stretch_that_only_copies_is_not_lost():
    stream = Stream()
    stream.rounds(60, copied=0, drafted=0)
    assert not stream.worth.drafting
    while not stream.drafting:
        stream.round(6, 0)
    assert stream.rounds(40, copied=6, drafted=0) == 40
    assert stream.rounds(80, copied=0, drafted=2) == 80


def test_a_drafter_that_slows_every_round_more_than_it_adds_rests_on_after_its_probe():
    stream = Stream()
    stream.rounds(60, copied=1, drafted=0)
    assert not stream.worth.drafting
    assert stream.rounds(600, copied=1, drafted=1, wait_us=4000.0, slower=1.4) < 150


def test_a_drafter_that_pays_is_kept_through_every_kind_of_text():
    stream = Stream()
    for copied in (0, 3, 1, 6, 0, 2) * 3:
        assert stream.rounds(40, copied=copied, drafted=2, wait_us=800.0) == 40
