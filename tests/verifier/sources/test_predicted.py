"""Where in a prediction the output has come to."""

import pytest

from actors.verifier.sources.predicted import Predicted

PREDICTION = [10, 11, 12, 13, 14, 11, 12, 15, 16, 17]


@pytest.mark.parametrize(
    ("output", "expected", "agreed"),
    [
        ([], [10, 11, 12], 0),
        ([10, 11], [12, 13, 14], 2),
        ([10, 99], [], 1),
        ([10, 99, 12], [13, 14, 11], 1),  # a token was replaced
        ([10, 11, 98, 99, 12, 13], [14, 11, 12], 3),  # two were inserted, and one is the next there is
        ([10, 14], [11, 12, 15], 1),  # three were deleted
        ([10, 11, 12, 13, 14, 11, 12, 15, 99, 11, 12, 13], [14, 11, 12], 9),  # it goes back
        (PREDICTION, [], 10),
        ([99, 98], [], 0),
    ],
)
def test_the_output_is_followed_and_found_again_where_it_differs(output, expected, agreed):
    for cut in range(len(output) + 1):
        session = Predicted(PREDICTION, 2).open([10])
        session.extend([11, *output[:cut]])  # the prompt's last token is no part of the output
        session.extend(output[cut:])
        assert list(session.propose(3).tokens) == expected
        assert session.agreed == agreed
