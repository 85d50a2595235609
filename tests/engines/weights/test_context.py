"""How long a text a model may have by its configuration."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from actors.engines.weights.loading import max_context

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}


@pytest.mark.parametrize(
    ("positions", "rope", "longest"),
    [
        (40960, YARN, 131072),  # as Qwen's cards say how to go beyond: the other key stays as it is
        (131072, YARN, 131072),
        (4096, {"rope_type": "default"}, 4096),
        (4096, {"rope_type": "dynamic", "factor": 2.0}, 4096),  # its angles would depend on other rows beyond
        (4096, {"sliding_attention": {"rope_type": "default"}}, 4096),
    ],
)
def test_yarn_takes_a_text_as_long_as_its_factor_says(positions: int, rope: dict, longest: int):
    text = SimpleNamespace(max_position_embeddings=positions, rope_parameters=rope)
    model = SimpleNamespace(config=SimpleNamespace(get_text_config=lambda: text))
    assert max_context(model) == longest
