"""The plan, progress and result of a training. No torch here: the command line reads it too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec


class AnswerRanks(msgspec.Struct, frozen=True, kw_only=True):
    """One answer as a draft reads it: of each token the rank among the draft's choices, from 1; 0: none of them."""

    temperature: float
    task: str
    ranks: tuple[int, ...]


class Text(msgspec.Struct, frozen=True):
    """A prompt as its user wrote it."""

    task: str
    text: str


class TrainingPlan(msgspec.Struct, frozen=True, kw_only=True):
    target: str
    out: str
    texts: tuple[Text, ...]  # prompts to learn from; some are kept apart
    tests: tuple[Text, ...] = ()  # prompts to judge by, where there are too few for that
    kind: str = "draft"  # "draft" or "head"
    shape: str = "auto"
    init: str = ""
    minutes: float = 30
    device: str = "auto"
    cpus: tuple[int, ...] = (0,)  # CPUs that may be used; the last one would be a drafter's
    resume: bool = False


class LearnedFrom(msgspec.Struct, kw_only=True):
    prompts: int
    own: int  # answers among them that the target wrote itself
    answers: int
    tokens: int  # tokens in the answers
    kept_apart: int  # prompts to judge by


class TrainingResult(msgspec.Struct, kw_only=True):
    """What a training has made. ``before`` is the draft with its first weights."""

    shape: str
    parameters: int
    start: str  # what the first weights were
    material: LearnedFrom
    head: int  # tokens that the draft's output layer covers; 0: all
    covered: float  # share of the tokens in the answers kept apart that it covers
    steps: int
    seconds: float  # time of training
    round_us: float  # the target's round with 16 rows
    step_us: float  # the draft's step
    before: list[AnswerRanks]  # ranks in the answers to the prompts kept apart
    after: list[AnswerRanks]
    depths: tuple[float, ...] = ()  # heads only: how often the first choice is right, by depth after right ones


EXPECTED = "expected"  # the phase of a sentence that stays on the screen


@dataclass(frozen=True, slots=True)
class Progress:
    """What is done now; where it is known, which share of it is over, and how long it takes from now on."""

    phase: str
    text: str
    share: float | None = None
    seconds_left: float | None = None


Report = Callable[[Progress], None]
