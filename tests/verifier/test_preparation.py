"""Which requests are prepared in the event loop."""

from dataclasses import replace

import pytest

from actors.verifier.preparation import PIECE, is_short, prepare
from protocols.messages import ChatTurn, Generate
from tests.world.models import INFO, ToyCodec


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


@pytest.mark.parametrize("length", [0, 5, PIECE + 3, 3_000_000])
def test_a_prediction_is_tokenized_no_further_than_the_context(length):
    class Counted(ToyCodec):
        seen = 0

        def encode(self, text, special_tokens=True, context=0):
            Counted.seen += len(text)
            return super().encode(text, special_tokens)

    text = "".join(chr(63 + at % 50) for at in range(length))
    info, codec = replace(INFO, max_context=PIECE + 9), Counted()
    found = prepare(codec, codec.decode, info, None, Generate("r", (5,), prediction=text))
    assert found.prediction == ToyCodec().encode(text[: PIECE + 9])
    assert Counted.seen == min(length, 2 * PIECE)
