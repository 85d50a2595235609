"""What there is to see of a running system: every figure is measured by the actor that it is about."""

from __future__ import annotations

from typing import Literal

import msgspec

from duoactor.monitor.spans import Span


class Actor(msgspec.Struct, frozen=True, kw_only=True):
    role: Literal["verifier", "drafter", "controller"]
    actor_id: str
    host: str = ""
    pid: int = 0
    model_id: str = ""
    state: str = ""
    leases: int = 0
    step_us: float | None = None  # of a verifier its forward's
    busy: float | None = None  # share of the time; None: it does not tell
    acceptance: float | None = None


class Stream(msgspec.Struct, frozen=True, kw_only=True):
    """A request. What needs rounds is None until there are some."""

    rid: str
    method: str
    state: str
    tokens: int
    drafter: str
    tokens_per_second: float | None = None
    acceptance: float | None = None  # accepted over verified draft tokens
    gamma: float | None = None
    sequences: float | None = None


class Strip(msgspec.Struct, frozen=True, kw_only=True):
    """The newest rounds on the verifier's clock, in microseconds."""

    begin: float
    end: float
    rounds: int  # that end in it
    verify: tuple[Span, ...]
    wait: tuple[Span, ...]  # for drafts
    draft: dict[str, tuple[Span, ...]]  # by drafter
    draft_us: float  # all drafters' ...
    overlap_us: float  # ... and of that, while the target verified


class Picture(msgspec.Struct, frozen=True, kw_only=True):
    address: str
    silent_s: float | None = None  # since when the verifier has not answered; None: it does
    problem: str = ""  # why
    model_id: str = ""
    device: str = ""
    dtype: str = ""
    method: str = ""
    uptime_ms: float = 0.0
    kv_used: int = 0
    kv_slots: int = 0
    tokens_per_second: float = 0.0  # of all streams
    speedup: float | None = None  # lately, over plain decoding at its measured cost
    actors: tuple[Actor, ...] = ()
    streams: tuple[Stream, ...] = ()
    strip: Strip | None = None
