"""The target that replay times: the CPUs it is given, and rounds of a text without end."""

from duoactor.replay.target import TEXT, Rounds
from tests.world.fakes import ToyTarget


def test_rounds_of_any_size_go_on_for_ever_on_one_text_at_a_time():
    target = ToyTarget(max_window=15)
    rounds = Rounds(target)
    for number in range(TEXT):
        rounds(1 + number % 40)
    assert target.rounds == TEXT and len(target.open_requests) == 1 and target.next_handle > 1


def test_a_text_begins_anew_with_a_prompt_as_long_as_asked():
    target = ToyTarget()
    rounds = Rounds(target)
    rounds(1)
    rounds.begin(100)
    rounds(1)
    [(text, _, _)] = target.open_requests.values()
    assert 100 < len(text) < 110
