"""A client that answers the commands from memory, and notes what it was asked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from duoactor.cli import main
from duoactor.cli.environment import Environment
from duoactor.client.request import Completion
from protocols.messages import (
    ActorStatus,
    DrafterStatus,
    FinishReason,
    RequestStats,
    RequestStatus,
    Sampling,
    StatusReport,
    TargetStatus,
    TokenLogprobs,
)

STATS = RequestStats(
    method="sps", prompt_tokens=3, completion_tokens=2, time_to_first_token_ms=10.0, decode_ms=90.0,
    rounds=2, draft_tokens=8, accepted_tokens=3, acceptance_histogram=(0, 1, 1),
)  # fmt: skip


REPORT = StatusReport(
    "r", "sps", 61_000.0, TargetStatus("org/model", "cpu", "bfloat16", 8192, 100), ActorStatus("verifier", pid=4),
    requests=(RequestStatus("q1", "sps", "decode", 7, "d1"),),
    drafters=(DrafterStatus("d1", "org/draft", "active", 1, 250.0, 100, 60, 0, "box", 77),),
)  # fmt: skip


@dataclass
class FakeChunk:
    text: str
    token_ids: tuple[int, ...] = ()
    accepted: tuple[bool, ...] = ()
    finish_reason: str | None = None
    stats: RequestStats | None = None
    logprobs: tuple[TokenLogprobs, ...] = ()

    @property
    def pieces(self) -> tuple[str, ...]:
        return (self.text,) if self.token_ids else ()


class FakeStream:
    """``split`` takes what stands in brackets for a thought."""

    def __init__(self, chunks: Iterator[FakeChunk]) -> None:
        self._chunks = chunks

    def __iter__(self) -> FakeStream:
        return self

    def __next__(self) -> FakeChunk:
        return next(self._chunks)

    def split(self, chunk: FakeChunk) -> tuple[str, str]:
        return (chunk.text[1:-1], "") if chunk.text.startswith("[") else ("", chunk.text)

    def complete(self, chunks: Sequence[FakeChunk]) -> Completion:
        thoughts, said = zip(*map(self.split, chunks), strict=True)
        return Completion(
            "".join(one.text for one in chunks),
            tuple(token for one in chunks for token in one.token_ids),
            FinishReason(chunks[-1].finish_reason),
            chunks[-1].stats or RequestStats(),
            Sampling(),
            tuple(found for one in chunks for found in one.logprobs),
            "".join(thoughts),
            "".join(said),
        )

    def close(self) -> None: ...


@dataclass
class FakeClient:
    """Answers every stream with ``texts``; notes what it was asked."""

    texts: tuple[str, ...] = ("Hel", "lo")
    fails: Exception | None = None
    ends: str = "stop"  # finish reason
    template: str = "{{ messages }}"
    asked: list[dict[str, Any]] = field(default_factory=list)
    connected: list[tuple[str, str, str]] = field(default_factory=list)

    def stream(self, prompt: str = "", **options: Any) -> FakeStream:
        return FakeStream(self._answer(prompt, options))

    def _answer(self, prompt: str, options: dict[str, Any]) -> Iterator[FakeChunk]:
        self.asked.append({"prompt": prompt, **options})
        if self.fails:
            raise self.fails
        for number, text in enumerate(self.texts):
            yield FakeChunk(text, (number,), (number > 0,))
        yield FakeChunk("", finish_reason=self.ends, stats=STATS)

    def tokenizer_config(self) -> dict[str, str]:
        return {"chat_template": self.template}

    def status(self) -> StatusReport:
        if self.fails:
            raise self.fails
        return REPORT

    def swap(self, old: str, new: str) -> str:
        self.asked.append({"swap": (old, new)})
        return "moved 1"

    def drain(self, actor_id: str) -> str:
        self.asked.append({"drain": actor_id})
        return ""

    def undo(self, version: int) -> str:
        self.asked.append({"undo": version})
        return "the learner is asked"

    @contextmanager
    def connect(self, address: str, key: str, server_key: str) -> Iterator[FakeClient]:
        self.connected.append((address, key, server_key))
        yield self


def run(client: FakeClient, *arguments: str) -> int:
    return main(arguments, Environment(connect=client.connect))  # type: ignore[arg-type]
