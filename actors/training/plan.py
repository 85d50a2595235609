"""A training's input and result. No torch here: the command line reads it too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import msgspec


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """One answer as a draft reads it: of each token the rank among the draft's choices, from 1; 0: none of them."""

    temperature: float
    task: str
    ranks: tuple[int, ...]


class Rounds(msgspec.Struct, frozen=True):
    """What rounds of the target take on this machine, microseconds by rows: beside a drafter and (empty: the same) with
    the drafter's CPUs. ``inline``: the verifier of such a target drafts by itself, between forwards."""

    us: dict[int, float]
    lent_us: dict[int, float]
    inline: bool


class Text(msgspec.Struct, frozen=True):
    """A prompt as its user wrote it."""

    task: str
    text: str


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    target: str
    out: str
    texts: tuple[Text, ...]
    shape: str = "auto"
    init: str = ""
    minutes: float = 30
    device: str = "auto"
    dtype: str = "auto"
    cpus: tuple[int, ...] = (0,)  # that may be used; the last one would be a drafter's
    resume: bool = False


class Judgement(NamedTuple):
    """Of a draft: what a step takes by its leaves, microseconds, and how it reads the answers kept apart."""

    step_us: dict[int, float]
    readings: list[Reading]


class Result(msgspec.Struct, kw_only=True):
    """``before`` is the draft that training began with: ``--init``'s, or what was taken from the target."""

    shape: str
    parameters: int
    init: str
    cut: bool  # it is as wide as the target, and began with layers of it
    prompts: int
    kept_apart: int
    answers: int
    tokens: int  # of the answers it learned from
    vocabulary: int
    head: int  # tokens of it that the draft's output layer covers
    covered: float  # share of the tokens in the answers kept apart that are among them
    steps: int
    seconds: float  # of training
    share: float  # of the weights that is the training's, where the rest is ``--init``'s
    rounds: Rounds
    tried: dict[str, float]  # shapes that were tried, with the speed-up that was predicted when one was chosen
    before_us: dict[int, float]  # a draft step by its leaves
    after_us: dict[int, float]
    before: list[Reading]  # of the answers to the prompts kept apart
    after: list[Reading]


@dataclass(frozen=True, slots=True)
class Progress:
    """What is done now; where it is known, which share of it is over, and how long it takes from now on."""

    phase: str
    text: str
    share: float | None = None
    seconds_left: float | None = None


Report = Callable[[Progress], None]
Predict = Callable[[Rounds, Judgement], float]  # the speed-up that a draft brings, on the average of the temperatures
