"""On the engine that really serves, a speculated token's logits have the bits of plain decoding."""

from pathlib import Path

import pytest
import torch

from actors.engines.build import EngineOptions, build_target
from actors.engines.decoder import configuration
from actors.models import Window
from protocols.messages import Sampling

TARGET = str(Path(__file__).parents[2] / "duoactor" / "pair" / "target")
PROMPT = [0, 3, 200, 51, 900, 77, 4021, 18, 6000, 412, 33, 4, 200]
TOKENS = 40


@pytest.mark.parametrize(
    ("dtype", "temperature"),
    [
        ("float32", 0.0),
        ("float32 by two threads", 0.9),
        ("float32 without numba", 0.9),
        ("bfloat16", 0.0),
        ("bfloat16", 0.9),
        ("float16", 0.9),
        ("int8", 0.0),
        ("int8 by two threads", 0.9),
    ],
)
def test_windows_of_any_shape_right_or_wrong_change_no_bit_of_any_logit(dtype, temperature, monkeypatch):
    dtype, *how = dtype.split(maxsplit=1)
    if how == ["without numba"]:
        monkeypatch.setattr(configuration, "compiled_kernels", lambda: None)
    threads = 2 if how == ["by two threads"] else 1
    target, _ = build_target(TARGET, EngineOptions(dtype=dtype, kv_tokens=1024, threads=threads))
    seen: list[torch.Tensor] = []
    forward, pick = target.engine.forward, target.engine.pick

    def spy(*arguments, **options):
        seen.append(forward(*arguments, **options).clone())
        return seen[-1]

    def spy_picks(*arguments, **options):
        if (picks := pick(*arguments, **options)) is not None:
            seen.append(picks.logits.clone())
        return picks

    target.engine.forward, target.engine.pick = spy, spy_picks
    sampling = Sampling(temperature=temperature, seed=3, max_tokens=TOKENS + 20, ignore_eos=True)

    def start() -> tuple[int, int]:
        handle = target.open(PROMPT, sampling)
        while (outcome := target.prefill(handle)) is None:
            pass
        return handle, outcome.tokens[0]

    handle, first = start()
    text, plain = [first], []
    while len(text) <= TOKENS:
        text += target.verify([Window(handle)])[0].tokens
        plain.append(seen[-1][0])
    target.close(handle)

    handle, again = start()
    assert again == first
    done, lengths = 1, 0
    while done < TOKENS - 8:
        lengths = lengths % 7 + 1
        draft = text[done : done + lengths]
        if lengths % 3 == 0:
            draft[-1] = (draft[-1] + 1) % target.info.vocab_size
        parents, rows = list(range(-1, len(draft) - 1)), range(len(draft) + 1)
        if lengths % 2:  # behind a path of wrong tokens
            wrong = [(token + 2) % target.info.vocab_size for token in draft]
            parents += [parent + len(draft) if parent >= 0 else parent for parent in parents]
            rows, draft = [0, *range(len(draft) + 1, 2 * len(draft) + 1)], wrong + draft
        outcome = target.verify([Window(handle, draft, parents)])[0]
        for row, at in zip(rows, range(done - 1, done - 1 + len(outcome.tokens)), strict=False):
            assert torch.equal(seen[-1][row], plain[at]), (done, row)
        assert outcome.tokens == text[done : done + len(outcome.tokens)]
        done += len(outcome.tokens)
    target.close(handle)
