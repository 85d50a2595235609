"""A stream as the verifier has one, without a verifier."""

from __future__ import annotations

from collections.abc import Sequence

from actors.methods import strategy_for
from actors.tree.tree import TokenTree
from actors.verifier.loans import Loan
from actors.verifier.output import Output
from actors.verifier.streams import Delivery, Stage, Stream, Times, Transcript
from actors.verifier.waits import Wait
from protocols.messages import Generate, Plan, Sampling
from tests.world.models import EOS

LONG = Sampling(max_tokens=1000)


def toy_stream(
    prompt: Sequence[int],
    method: str = "auto",
    sampling: Sampling = LONG,
    plan: Plan | None = None,
    ends: frozenset[int] = frozenset({EOS}),
) -> Stream:
    strategy, text = strategy_for(method), Transcript(prompt, (), sampling)
    output = Output(prompt, sampling, ends, lambda ids: "".join(map(str, ids)), ())
    stream = Stream(
        b"client",
        Generate("r", tuple(prompt), sampling=sampling, method=method),
        strategy,
        text,
        output,
        TokenTree(len(text), text.committed[-1]),
        Loan(plan or Plan(strategy.method)),
        Wait(strategy.waits, strategy.nodes),
        Times(0.0),
        Delivery(0),
    )
    stream.become(Stage.PREFILL)
    stream.become(Stage.DECODE)
    return stream
