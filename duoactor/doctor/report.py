"""What ``duoactor doctor`` found, as ``--json`` prints it."""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """``problem``: drafts are not possible so; ``warning``: they are, but not as one may expect."""

    level: Literal["problem", "warning"]
    text: str


class ModelReport(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    device: str
    dtype: str
    parameters: int
    vocab_size: int
    max_context: int
    weights_bytes: int
    token_bytes: int  # of keys and values
    kv_tokens: int  # that the pool would hold
    full_requests: int  # of the whole context in it
    step_us: dict[int, float]  # of a target by rows verified at once, of a draft by width


class Agreement(msgspec.Struct, frozen=True, kw_only=True):
    """How often the target's next token, greedy, is the draft's choice of rank 1, 2 … on the sample prompts."""

    tokens: int
    ranks: tuple[float, ...]
    depths: tuple[float, ...]  # chance that a chain's token at depth 1, 2 … is right, given all above are

    @property
    def first(self) -> float:
        return self.ranks[0]


class Forecast(msgspec.Struct, frozen=True):
    """What the cost model promises of a method with the setting that it thinks best. No retrieval is in it."""

    method: str
    gamma: int
    sequences: int
    tokens_per_second: float
    speedup: float  # over the target alone


class Help(msgspec.Struct, frozen=True, kw_only=True):
    what: str
    speedup: float  # with it


class Report(msgspec.Struct, kw_only=True):
    machine: dict[str, Any]
    versions: dict[str, str]
    devices: tuple[str, ...] = ()
    instructions: tuple[str, ...] = ()
    memory_free_bytes: int = 0
    verifier_cpus: tuple[int, ...] = ()
    drafter_cpus: tuple[int, ...] = ()
    target: ModelReport | None = None
    draft: ModelReport | None = None
    agreement: Agreement | None = None
    lent_us: dict[int, float] = {}  # of the target by rows, with the CPUs that resting drafters leave
    alone_tokens_per_second: float = 0.0
    forecasts: tuple[Forecast, ...] = ()
    helps: tuple[Help, ...] = ()
    findings: tuple[Finding, ...] = ()
    verdict: str = ""

    def add(self, level: Literal["problem", "warning"], text: str) -> None:
        self.findings = (*self.findings, Finding(level=level, text=text))

    @property
    def problems(self) -> list[str]:
        return [one.text for one in self.findings if one.level == "problem"]
