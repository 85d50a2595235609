"""How long a text a model may have by its configuration."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from actors.engines.build import EngineOptions, build_target
from actors.engines.weights.loading import max_context
from protocols.errors import ConfigError
from protocols.messages import Sampling
from tests.engines.weights.test_gguf_serving import logits, mixed

PAIR = Path(__file__).parents[3] / "duoactor" / "pair"
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


def test_a_context_without_room_for_an_answer_is_refused():
    text = SimpleNamespace(max_position_embeddings=64)
    model = SimpleNamespace(config=SimpleNamespace(get_text_config=lambda: text))
    with pytest.raises(ConfigError, match=r"context of 1 token has no room .* ask for 2"):
        max_context(model, 1)


def test_texts_are_no_longer_than_the_pool_has_room_for(caplog):
    """A chat that names no limit asks for the whole context: all of them were refused where that did not fit."""
    pool = EngineOptions(dtype="float32", kv_tokens=1024)
    target, _ = build_target(str(PAIR / "target"), pool)
    longest = target.info.max_context
    assert f"texts have at most {longest} of the model's 2048 tokens" in caplog.text and 800 < longest < 1024
    prompt = [*range(1, longest)]
    target.close(target.open(prompt, Sampling(max_tokens=longest - len(prompt)), most_nodes=target.max_window))
    with pytest.raises(ConfigError, match=f"context of 2,048 tokens does not fit .* of at most {longest}, or"):
        build_target(str(PAIR / "target"), replace(pool, context=2048))
    caplog.clear()
    target, _ = build_target(str(PAIR / "target"), replace(pool, context=longest))
    assert target.info.max_context == longest and "texts have at most" not in caplog.text


@pytest.mark.parametrize(("slots", "longest"), [((1700, 2000), 1536), ((1200, 1500), 1024)])
def test_a_context_that_follows_the_free_memory_is_the_same_at_the_next_start(monkeypatch, slots, longest):
    """A stream goes on after a restart where the context is the same, and the free memory never is."""
    found = []
    for there in slots:
        monkeypatch.setattr("actors.engines.build._slots", lambda *_, there=there, **__: there)
        found.append(build_target(str(PAIR / "target"), EngineOptions(dtype="float32"))[0].info.max_context)
    assert found == [longest, longest]


def test_the_context_decides_by_which_factors_longrope_turns_all_texts(tmp_path, caplog):
    file = mixed("Phi_3_beyond_it", tmp_path)
    longest = 512

    def served(context: int) -> tuple[int, torch.Tensor, str]:
        caplog.clear()
        target, _ = build_target(file, EngineOptions(dtype="float32", kv_tokens=512, context=context))
        return target.info.max_context, logits(target.engine, [*range(8)]), caplog.text

    usual, short, told = served(0)
    assert (
        usual == 8
        and f"texts have at most 8 tokens, as in the first training; a longer --context, up to {longest}" in told
    )
    context, same, told = served(8)
    assert context == 8 and torch.equal(short, same) and "LongRoPE" not in told
    context, long, told = served(9)
    assert context == 9 and not torch.allclose(short, long) and "a context of 9 tokens turns short texts too" in told
    with pytest.raises(
        ConfigError, match=f"context {longest + 1} is longer than the {longest} tokens of .*gguf; ask for"
    ):
        served(longest + 1)
