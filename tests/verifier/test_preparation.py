"""Which requests are prepared in the event loop."""

import pytest

from actors.verifier.preparation import is_short
from protocols.messages import ChatTurn, Generate


@pytest.mark.parametrize(
    "request_",
    [
        Generate("r", "x" * 10_000),
        Generate("r", (1,) * 10_000),
        Generate("r", (1,), generated=(1,) * 10_000),
        Generate("r", messages=(ChatTurn("user", "x" * 10_000),)),
        Generate("r", "x", prediction="x" * 10_000),
    ],
)
def test_a_long_request_keeps_nobody_waiting(request_):
    assert not is_short(request_)


def test_a_short_request_does_not_wait_for_long_ones():
    assert is_short(Generate("r", "x" * 100)) and is_short(Generate("r", (1,) * 100))
