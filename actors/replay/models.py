"""A target that knows its texts, and a draft that tells the clock what its steps take."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from actors.cost import CostModel
from actors.models import RENDERING, DraftModel, Expansion, Leaf, ModelInfo, Outcome, Window
from actors.records import LoggedRequest
from actors.replay.clock import Metered, Process
from actors.replay.measured import Measuring, RoundTimes
from actors.tree.accept import depths_of, walk
from actors.verifier.compute import Compute
from protocols.errors import RequestError
from protocols.messages import ChatTurn, FailureCode, FinishReason, Rendering, Sampling

R = TypeVar("R")
BEHIND = 0  # what the target says behind the end of a text, where nobody reads it


def asked(request: LoggedRequest) -> Sampling:
    """What ends the output where it ended, without the text that a stop string is looked for in.

    The token that ended it is a stop token, so that drafts may reach beyond the end as they did; where it stands in the
    middle of the text as well, the length ends it.
    """
    sampling = msgspec.structs.replace(request.sampling, stop=(), logprobs=-1)
    last, count = request.text[-1], len(request.text)
    if request.finish_reason == FinishReason.LENGTH or last in request.text[:-1]:
        return msgspec.structs.replace(sampling, stop_token_ids=(), ignore_eos=True, max_tokens=count)
    if last in sampling.stop_token_ids:
        return sampling
    return msgspec.structs.replace(sampling, stop_token_ids=(*sampling.stop_token_ids, last))


@dataclass(slots=True)
class _Text:
    tokens: Sequence[int]
    length: int  # committed


class LoggedTarget:
    """:class:`actors.models.TargetModel`, of the requests that ``texts`` holds by prompt and sampling."""

    rows_agree = (1,)
    mixes_prompts = False
    kv_slots = 1 << 30
    kv_used = 0
    kv_cached = 0
    max_window = 63

    def __init__(
        self,
        info: ModelInfo,
        logged: Sequence[LoggedRequest],
        cost: CostModel,
        branches: bool,
        times: RoundTimes,
        measuring: Measuring | None = None,
    ) -> None:
        """``cost``: the verifier's, of which only the calibration counts."""
        self.branches = branches
        self.info, self.cost, self._times, self._measuring = info, cost, times, measuring
        self.texts = {(one.prompt, asked(one)): (*one.prompt, *one.text) for one in logged}
        self.spent_s = 0.0  # in forwards, and in steps of the verifier's own draft model
        self.code_s = 0.0  # in the verifier's own code
        self.drafted = False  # such a step came since the latest forward
        self._open: dict[int, _Text] = {}

    @property
    def has_spare_cpus(self) -> bool:
        return self.cost.lends

    def use_spare_cpus(self, used: bool) -> None:
        """Its times are those that the verifier believes in, who has just said so to them."""
        if self._measuring is not None:
            self._measuring.beside.use_spare_cpus(used)

    def open(
        self,
        prompt: Sequence[int],
        sampling: Sampling,
        generated: Sequence[int] = (),
        most_nodes: int = 0,
        cache_salt: str = "",
        constraint: object = None,
        likeliest: int = 0,
    ) -> int:
        handle = max(self._open, default=0) + 1
        self._open[handle] = _Text(self.texts[tuple(prompt), sampling], len(prompt))
        return handle

    def reserve(self, handle: int) -> None:
        """Its pool has no end."""

    def prefill(self, handle: int, limit: int | None = None) -> Outcome | None:
        if self._measuring is not None:
            self._measuring.prompt(self._open[handle].length)
        self.spent_s += self.cost.curve(self._open[handle].length) * self._times.forward / 1e6
        self.code_s += self._times.code / 1e6
        return self._walked(Window(handle))

    def verify_beside(self, windows: Sequence[Window], handle: int, limit: int) -> tuple[list[Outcome], Outcome | None]:
        raise NotImplementedError("its prompts take no time worth sharing")

    def verify(self, windows: Sequence[Window]) -> list[Outcome]:
        drafts, times = sum(len(window.tokens) for window in windows), self._times
        rows, paths = len(windows) + drafts, sum(len(one.parents) - len(set(one.parents)) for one in windows)
        if self._measuring is not None:
            self._measuring.forward(rows, self.cost.curve(rows), self.drafted)
        took_us = self.cost.curve(rows) + paths * self.cost.branch * self.cost.curve(1)
        self.spent_s += took_us * (times.forward_drafted if self.drafted else times.forward) / 1e6
        self.code_s += (times.code_drafts if drafts else times.code) / 1e6
        self.drafted = False
        return [self._walked(window) for window in windows]

    def _walked(self, window: Window) -> Outcome:
        text = self._open[window.handle]
        places = [text.length + depth for depth in (0, *depths_of(window.parents))]
        sampled = [text.tokens[place] if place < len(text.tokens) else BEHIND for place in places]
        path, final = walk(window.tokens, window.parents, sampled)
        tokens = [*(window.tokens[node] for node in path), final]
        text.length += len(tokens)
        return Outcome(path, tokens, [], sampled)

    def close(self, handle: int) -> None:
        del self._open[handle]


class VirtualCompute(Compute):
    """A job's work is done at once, and known of when its time is up."""

    def __init__(self, target: LoggedTarget, process: Metered, overlaps: bool) -> None:
        """``overlaps``: as of a thread's jobs; those of the event loop's own do not."""
        self._target, self._process, self.overlaps = target, process, overlaps
        self._known_s = 0.0  # of what was computed, that has passed

    def start(self, job: Callable[[], R]) -> asyncio.Future[R]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[R] = loop.create_future()
        result: R = self._process.aside(job)
        spent_s = self._target.spent_s + self._target.code_s
        took, self._known_s = spent_s - self._known_s, spent_s
        loop.call_later(took, lambda: None if future.cancelled() else future.set_result(result))
        return future

    def close(self) -> None:
        return


class VirtualDraft:
    """:class:`actors.models.DraftModel`: another one, whose steps take what ``steps`` says. Reading is free, because
    the target's own prefill takes longer."""

    def __init__(self, model: DraftModel, steps: CostModel) -> None:
        self._model, self._steps = model, steps
        self.process = Process()
        self.spent_s = 0.0

    @property
    def info(self) -> ModelInfo:
        return self._model.info

    @property
    def scratch_slots(self) -> int:
        return self._model.scratch_slots

    def open(self, prefix: Sequence[int], prompt_len: int, sampling: Sampling) -> int:
        return self._model.open(prefix, prompt_len, sampling)

    def reopen(self, handle: int, prefix: Sequence[int], prompt_len: int, sampling: Sampling) -> None:
        self._model.reopen(handle, prefix, prompt_len, sampling)

    def missing(self, handle: int) -> int:
        return self._model.missing(handle)

    def prefill(self, handle: int, limit: int) -> None:
        self._model.prefill(handle, limit)

    def expand(self, leaves: Sequence[Leaf]) -> list[Expansion]:
        took = self._steps(len(leaves)) / 1e6
        self.spent_s += took
        self.process.compute(took)
        return self._model.expand(leaves)

    def commit(self, handle: int, tokens: Sequence[int], slots: Sequence[int]) -> None:
        self._model.commit(handle, tokens, slots)

    def release(self, handle: int, slots: Sequence[int]) -> None:
        self._model.release(handle, slots)

    def close(self, handle: int) -> None:
        self._model.close(handle)


class InlineVirtualDraft(VirtualDraft):
    """... that the verifier runs itself: its steps are of the time of the forward behind them."""

    def __init__(
        self,
        model: DraftModel,
        steps: CostModel,
        target: LoggedTarget,
        process: Metered,
        times: RoundTimes,
        measuring: Measuring | None = None,
    ) -> None:
        """``process``: the verifier's."""
        super().__init__(model, steps)
        self.process: Metered = process
        self._target, self._times, self._measuring = target, times, measuring

    def prefill(self, handle: int, limit: int) -> None:
        unread, measuring = self.missing(handle), self._measuring

        def work() -> int:
            self._model.prefill(handle, limit)
            return unread - self.missing(handle)

        tokens = self.process.aside(work if measuring is None else lambda: measuring.reading(work))
        self._takes(tokens * self._times.read)

    def expand(self, leaves: Sequence[Leaf]) -> list[Expansion]:
        measuring = self._measuring
        rows = len(leaves) + sum(self.missing(leaf.handle) for leaf in leaves if leaf.is_root)
        calibrated_us = self._steps.curve(rows)
        self._takes(calibrated_us * self._times.step)
        work = lambda: self._model.expand(leaves)  # noqa: E731
        return self.process.aside(work if measuring is None else lambda: measuring.step(work, calibrated_us))

    def _takes(self, took_us: float) -> None:
        self._target.spent_s += took_us / 1e6
        self._target.drafted = True
        self.process.compute(took_us / 1e6)


class NoText:
    """:class:`actors.models.Codec` of texts that nobody reads."""

    def encode(self, text: str, special_tokens: bool = True) -> list[int]:
        raise RequestError(FailureCode.UNSUPPORTED, "a replay has token ids only")

    def chat(self, turns: Sequence[ChatTurn], tools: str = "", rendering: Rendering = RENDERING) -> list[int]:
        return self.encode("")

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return ""

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return [""] * len(ids)

    def octets(self, ids: Sequence[int]) -> list[bytes]:
        return [b""] * len(ids)

    def serialized(self) -> str:
        raise RequestError(FailureCode.UNSUPPORTED, "a replay has no tokenizer")
