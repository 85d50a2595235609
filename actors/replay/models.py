"""A target that knows its texts, and a draft that tells the clock what its steps take."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from actors.cost import CostModel
from actors.models import DraftModel, Expansion, Leaf, ModelInfo, Outcome, Window
from actors.replay.clock import Process
from actors.replay.logged import LoggedRequest
from actors.tree.accept import depths_of, walk
from protocols.errors import RequestError
from protocols.messages import ChatTurn, FailureCode, FinishReason, Sampling

R = TypeVar("R")
Aside = Callable[[Callable[[], Any]], Any]  # runs what is a model's work and not the verifier's
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
        branches: bool = True,
        beside: Callable[[int], None] | None = None,
    ) -> None:
        """``beside``: is done with every round, of so many rows."""
        self.branches = branches
        self.info, self.cost, self._beside = info, cost, beside
        self.texts = {(one.prompt, asked(one)): (*one.prompt, *one.text) for one in logged}
        self.spent_s = 0.0
        self._open: dict[int, _Text] = {}

    @property
    def has_spare_cpus(self) -> bool:
        return self.cost.lends

    def use_spare_cpus(self, used: bool) -> None:
        """Its times are those that the verifier believes in, who has just said so to them."""

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
        self.spent_s += self.cost(self._open[handle].length) / 1e6
        return self._walked(Window(handle))

    def verify_beside(self, windows: Sequence[Window], handle: int, limit: int) -> tuple[list[Outcome], Outcome | None]:
        raise NotImplementedError("its prompts take no time worth sharing")

    def verify(self, windows: Sequence[Window]) -> list[Outcome]:
        rows = sum(1 + len(window.tokens) for window in windows)
        self.spent_s += self.cost(rows) / 1e6
        if self._beside is not None:
            self._beside(rows)
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


def _at_once(work: Callable[[], Any]) -> Any:
    return work()


class VirtualCompute:
    """:class:`actors.verifier.compute.Compute`: a thread's work is done at once, and known of when its time is up."""

    overlaps = True

    def __init__(self, target: LoggedTarget, overhead_s: float, aside: Aside = _at_once) -> None:
        self._target, self._overhead_s, self._aside = target, overhead_s, aside
        self._known_s = 0.0  # of what was computed, that has passed

    def start(self, job: Callable[[], R]) -> asyncio.Future[R]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[R] = loop.create_future()
        result: R = self._aside(job)
        took, self._known_s = self._target.spent_s - self._known_s, self._target.spent_s
        loop.call_later(took + self._overhead_s, lambda: None if future.cancelled() else future.set_result(result))
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

    def __init__(self, model: DraftModel, steps: CostModel, target: LoggedTarget, aside: Aside = _at_once) -> None:
        super().__init__(model, steps)
        self._target, self._aside = target, aside

    def prefill(self, handle: int, limit: int) -> None:
        self._aside(lambda: self._model.prefill(handle, limit))

    def expand(self, leaves: Sequence[Leaf]) -> list[Expansion]:
        self._target.spent_s += self._steps(len(leaves)) / 1e6
        found: list[Expansion] = self._aside(lambda: self._model.expand(leaves))
        return found


class NoText:
    """:class:`actors.models.Codec` of texts that nobody reads."""

    def encode(self, text: str) -> list[int]:
        raise RequestError(FailureCode.UNSUPPORTED, "a replay has token ids only")

    def chat(self, turns: Sequence[ChatTurn], tools: str = "") -> list[int]:
        return self.encode("")

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return ""

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return [""] * len(ids)

    def serialized(self) -> str:
        raise RequestError(FailureCode.UNSUPPORTED, "a replay has no tokenizer")
