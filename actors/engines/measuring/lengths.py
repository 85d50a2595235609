"""How long drafting and verifying a few tokens take by the length of the input (the paper's figure 1).

Run as a program (``python -m actors.engines.measuring.lengths``) it reads one :class:`Task` as JSON on stdin and prints
one :class:`Result`. The models are those that the verifier and the drafter would build; each is measured alone.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Sequence
from statistics import median

import msgspec

from actors.engines.build import build_draft, build_target
from actors.models import DraftModel, Leaf, TargetModel, Window, sample_tokens
from actors.process import pin
from actors.settings import DrafterSettings, VerifierSettings
from protocols.messages import Sampling

TOKENS = 8
LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096, 8192)
REPEATS = 15


class Task(msgspec.Struct, frozen=True, kw_only=True):
    verifier: VerifierSettings
    drafter: DrafterSettings
    lengths: tuple[int, ...] = LENGTHS


class Result(msgspec.Struct, kw_only=True):
    """Medians in microseconds by input length, one for each of ``lengths``."""

    tokens: int
    lengths: list[int]
    draft_us: list[float]
    verify_us: list[float]
    decode_us: list[float]  # the target's own next token


def measure(task: Task) -> Result:
    verifier, drafter = task.verifier, task.drafter
    pin(verifier.cpus)
    target, _ = build_target(verifier.target, verifier.device, verifier.dtype, 0, verifier.threads)
    lengths = _fitting(task.lengths, target.info.max_context)
    verifying = [verify_times(target, length, TOKENS) for length in lengths]
    pin(drafter.cpus)
    draft = build_draft(drafter.draft, drafter.device, drafter.dtype, 0, drafter.threads)
    lengths = _fitting(lengths, draft.info.max_context)
    drafting = [draft_time(draft, length, TOKENS) for length in lengths]
    verify, decode = ([pair[i] for pair in verifying[: len(lengths)]] for i in (0, 1))
    return Result(tokens=TOKENS, lengths=lengths, draft_us=drafting, verify_us=verify, decode_us=decode)


def _fitting(lengths: Sequence[int], context: int) -> list[int]:
    return [length for length in lengths if length + (REPEATS + 2) * (TOKENS + 2) <= context]


def verify_times(model: TargetModel, length: int, tokens: int) -> tuple[float, float]:
    """Median microseconds of a round with a chain of ``tokens`` drafts behind ``length`` tokens of input, and of one
    without drafts. They take turns, so that a busy machine slows both."""
    prompt = sample_tokens(length, model.info.vocab_size)
    handle = model.open(prompt, Sampling(max_tokens=(REPEATS + 1) * (tokens + 2) + 1, ignore_eos=True))
    windows = (Window(handle, prompt[:tokens], range(-1, tokens - 1)), Window(handle))
    times: tuple[list[float], list[float]] = ([], [])
    try:
        while model.prefill(handle) is None:
            pass
        for _ in range(REPEATS + 1):
            for window, taken in zip(windows, times, strict=True):
                begin = time.perf_counter()
                model.verify([window])
                taken.append(time.perf_counter() - begin)
    finally:
        model.close(handle)
    verify, decode = (median(taken[1:]) * 1e6 for taken in times)
    return verify, decode


def draft_time(model: DraftModel, length: int, tokens: int) -> float:
    """Median microseconds of ``tokens`` draft steps, one after the other, behind ``length`` tokens of input."""
    prompt = sample_tokens(length, model.info.vocab_size)
    handle = model.open(prompt, len(prompt), Sampling())
    times = []
    try:
        model.expand([Leaf(handle, prompt[-1], (), is_root=True)])
        for _ in range(REPEATS + 1):
            begin = time.perf_counter()
            path: tuple[int, ...] = ()
            for step in range(tokens):
                path = (*path, model.expand([Leaf(handle, prompt[step], path)])[0].slot)
            times.append(time.perf_counter() - begin)
            model.release(handle, path)
    finally:
        model.close(handle)
    return median(times[1:]) * 1e6


def main() -> int:
    task = msgspec.json.decode(sys.stdin.buffer.read(), type=Task)
    with contextlib.redirect_stdout(sys.stderr):
        result = measure(task)
    sys.stdout.write(msgspec.json.encode(result).decode() + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
