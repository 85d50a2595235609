"""The yardstick, as ``duoactor bench`` runs them."""

from __future__ import annotations

import io

import msgspec
import pytest

from actors.engines.measuring.reference import Ready, Reply, serve
from duoactor.config import resolve_model


def answers(*lines: dict) -> list[bytes]:
    out: list[bytes] = []
    serve(io.StringIO("".join(msgspec.json.encode(line).decode() + "\n" for line in lines)), out.append)
    return out


@pytest.fixture
def pair() -> dict:
    return {"target": resolve_model("bundled", "target"), "draft": resolve_model("bundled", "draft")}


def test_every_mode_gives_the_same_greedy_text_and_an_unknown_one_a_sentence(pair):
    turns = [["user", "Count from one to three."]]
    asks = [{"turns": turns, "mode": m, "max_tokens": 12} for m in ("plain", "assisted", "prompt_lookup", "magic")]
    ready, *replies = answers(pair, *asks)
    assert msgspec.json.decode(ready, type=Ready).device == "cpu"
    plain, assisted, lookup, magic = (msgspec.json.decode(reply, type=Reply) for reply in replies)
    assert plain.token_ids == assisted.token_ids == lookup.token_ids and 0 < len(plain.token_ids) <= 12
    assert plain.text and 0 < plain.ttft_ms < plain.total_ms
    assert "magic" in magic.error and not magic.token_ids


def test_a_seed_repeats_a_sampled_answer(pair):
    ask = {"turns": [["user", "Tell a story."]], "max_tokens": 12, "temperature": 1.0}
    pair["draft"] = ""
    _, *replies = answers(pair, ask | {"seed": 1}, ask | {"seed": 1}, ask | {"seed": 2})
    one, again, other = (msgspec.json.decode(reply, type=Reply).token_ids for reply in replies)
    assert one == again != other


def test_a_model_that_is_not_there_is_one_sentence(tmp_path):
    (ready,) = answers({"target": str(tmp_path)})
    assert str(tmp_path) in msgspec.json.decode(ready, type=Ready).error
