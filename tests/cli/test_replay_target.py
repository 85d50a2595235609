"""The target that replay times: the CPUs it is given, and rounds of a text without end."""

from duoactor.replay.target import TEXT, Rounds
from fakes import ToyTarget


def test_rounds_of_any_size_go_on_for_ever_on_one_text_at_a_time():
    target = ToyTarget(max_window=15)
    rounds = Rounds(target)
    for number in range(TEXT):
        rounds(1 + number % 40)
    assert target.rounds == TEXT and len(target.open_requests) == 1 and target.next_handle > 1
