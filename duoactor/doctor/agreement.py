"""How often a draft model has the target's next token right: both read the target's own greedy text."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from actors.controller.belief import DEPTHS, RANKS, SHRINK
from actors.models import Codec, TargetModel, Window
from actors.records import LoggedRequest
from duoactor.doctor.report import Agreement
from protocols.errors import RequestError
from protocols.messages import ChatTurn, Sampling

TOKENS = 64  # of an answer; twenty answers then tell an agreement to two per cent
PATIENCE_S = 15.0  # a slow target answers fewer of the prompts


def read(target: TargetModel, prompt: Sequence[int], tokens: int = TOKENS) -> list[int]:
    """The target's greedy answer, without drafts. RequestError where the prompt has no room."""
    tokens = min(tokens, target.info.max_context - len(prompt))
    handle = target.open(prompt, Sampling(max_tokens=max(1, tokens)))
    try:
        while (outcome := target.prefill(handle)) is None:
            pass
        text = list(outcome.tokens)
        while len(text) < tokens and text[-1] not in target.info.eos_token_ids:
            text += target.verify([Window(handle)])[0].tokens
        return text
    finally:
        target.close(handle)


def texts(
    target: TargetModel,
    codec: Codec,
    prompts: Sequence[str],
    timer: Callable[[], float] = time.perf_counter,
) -> list[LoggedRequest]:
    """Prompts and the target's answers, as many as patience allows, at least one."""
    began, found = timer(), list[LoggedRequest]()
    for prompt in prompts:
        if found and timer() - began > PATIENCE_S:
            break
        try:
            ids = codec.chat([ChatTurn("user", prompt)])
        except RequestError:  # no chat template
            ids = codec.encode(prompt)
        found.append(LoggedRequest(prompt=tuple(ids), text=tuple(read(target, ids))))
    return found


def agreement(ranks: Sequence[Sequence[int]]) -> Agreement:
    """``ranks`` of each text (one at least): see :func:`actors.engines.drafts.replay.replay_draft`."""
    every = [rank for text in ranks for rank in text]
    first = sum(rank == 1 for rank in every) / len(every)
    tried, right = [0.0] * DEPTHS, [0.0] * DEPTHS
    for text in ranks:
        depth = 0
        for rank in text:  # as chains are verified: one ends with its first wrong token, and the next begins behind it
            tried[depth] += 1
            right[depth] += rank == 1
            depth = depth + 1 if rank == 1 and depth + 1 < DEPTHS else 0
    return Agreement(
        tokens=len(every),
        ranks=tuple(sum(rank == wanted for rank in every) / len(every) for wanted in range(1, RANKS + 1)),
        depths=tuple((r + SHRINK * first) / (t + SHRINK) for r, t in zip(right, tried, strict=True)),
    )
