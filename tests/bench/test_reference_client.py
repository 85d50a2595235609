"""``transformers`` in a process of its own, as the demo and the benchmark ask it."""

from __future__ import annotations

import pytest

from actors.settings import VerifierSettings
from duoactor.bench.methods import BY_NAME
from duoactor.bench.reference import Reference
from duoactor.config import resolve_model
from protocols.errors import DuoactorError
from protocols.messages import ActorStatus, ChatTurn, Sampling, StatusReport, TargetStatus

STATUS = StatusReport("", "auto", 0.0, TargetStatus("m", "cpu", "float32", 0, 0), ActorStatus("v"))


async def test_the_reference_answers_with_the_targets_tokens_and_times():
    async with Reference.started(VerifierSettings(target=resolve_model("bundled", "target")), STATUS) as reference:
        turns = (ChatTurn("user", "Two plus two?"),)
        plain = await reference.answer(BY_NAME["transformers"], turns, Sampling(max_tokens=6))
        copied = await reference.answer(BY_NAME["transformers-prompt-lookup"], turns, Sampling(max_tokens=6))
    assert reference.device == "cpu"
    assert 1 <= len(plain.token_ids) <= 6
    assert copied.token_ids == plain.token_ids
    assert 0 < plain.ttft_ms <= plain.total_ms


async def test_a_model_that_cannot_be_loaded_is_one_sentence(tmp_path):
    with pytest.raises(DuoactorError, match="cannot run: "):
        async with Reference.started(VerifierSettings(target=str(tmp_path)), STATUS):
            pass
