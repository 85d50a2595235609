"""The card of a distilled draft: how it was made, and how often it agrees with its target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from actors.training.plan import AnswerRanks, TrainingPlan, TrainingResult
from duoactor import render
from duoactor.replay import tokens_per_round

SHOWN = (1, 2, 4)  # the draft's choices among which the target's token is looked for
ALL = "all"  # tasks together
GAMMA = 4


@dataclass(frozen=True, slots=True)
class Row:
    """``before`` and ``after``: shares of the places at which the target's token is among the draft's ``SHOWN``."""

    temperature: float
    task: str
    places: int
    before: tuple[float, ...]
    after: tuple[float, ...]


def rows(result: TrainingResult) -> list[Row]:
    """By temperature: all tasks together, then each."""
    found = []
    for temperature in dict.fromkeys(one.temperature for one in result.after):
        for task in (ALL, *dict.fromkeys(one.task for one in result.after)):
            before, after = (
                [one for one in read if one.temperature == temperature and task in (ALL, one.task)]
                for read in (result.before, result.after)
            )
            if after:
                places = sum(len(one.ranks) for one in after)
                found.append(Row(temperature, task, places, _shares(before), _shares(after)))
    return found


def _shares(readings: Sequence[AnswerRanks]) -> tuple[float, ...]:
    ranks = [rank for one in readings for rank in one.ranks]
    return tuple(sum(0 < rank <= most for rank in ranks) / len(ranks) for most in SHOWN)


def lengths(result: TrainingResult) -> dict[float, tuple[float, float]]:
    """Tokens per round of chains of ``GAMMA`` drafts before and after, by temperature."""
    return {
        temperature: (_length(result.before, temperature), _length(result.after, temperature))
        for temperature in dict.fromkeys(one.temperature for one in result.after)
    }


def _length(readings: Sequence[AnswerRanks], temperature: float) -> float:
    return tokens_per_round([one.ranks for one in readings if one.temperature == temperature], GAMMA)


def verdict(result: TrainingResult) -> str:
    """One sentence: is the draft worth a try on this machine?"""
    was, now = map(fmean, zip(*lengths(result).values(), strict=True))
    cost = 1 + GAMMA * result.step_us / result.round_us  # cost of a round with its drafts, in rounds of the target
    if now <= was and result.start == "a draft":
        return f"It did not get better: {now:.2f} tokens a round after {was:.2f}. Keep the draft that it began with."
    if now <= cost:
        return (
            f"It does not help: {now:.2f} tokens a round, for drafts that make a round {cost:.2f} times as long. Train "
            "longer, with more prompts, or ask for a cheaper shape."
        )
    return (
        f"{now:.2f} tokens a round in chains of {GAMMA}, {was:.2f} before training; `duoactor doctor` measures the "
        "speed-up."
    )


def card(plan: TrainingPlan, result: TrainingResult) -> str:
    """README.md of the model directory."""
    target, given = render.model_name(plan.target), result.material
    lines = [
        f"# A draft for {Path(target).name}",
        "",
        f"Made by `duoactor distill`: shape {result.shape}, {result.parameters / 1e6:.2f} M parameters, bfloat16. It "
        f"began with {result.start} and made {result.steps} steps ({result.seconds / 60:.1f} minutes) by KL and total "
        f"variation on {given.tokens} tokens in {given.answers} answers of the target, greedy and sampled, to "
        f"{given.prompts} prompts, of which it wrote {given.own} itself.{_mixed(result)}{_covered(result)}",
        "",
        f"**{verdict(result)}**",
        "",
        f"Agreement on the target's answers to the {given.kept_apart} prompts kept apart: how often the target's next "
        "token is the draft's first choice, among its first 2, its first 4; at temperatures above 0 with the request's "
        "shared noise. Before, then after training.",
        "",
        "| temperature | task | places | first | of 2 | of 4 |",
        "|---|---|---|---|---|---|",
        *map(_line, rows(result)),
        "",
        f"A step takes {result.step_us / 1000:.2f} ms here, a round of the target {result.round_us / 1000:.2f} ms. "
        f"Tokens per round in chains of {GAMMA} draft tokens, before and after:",
        "",
        "| temperature | before | after |",
        "|---|---|---|",
        *(f"| {t:g} | {was:.2f} | {now:.2f} |" for t, (was, now) in lengths(result).items()),
    ]
    return "\n".join(lines) + "\n"


def _mixed(result: TrainingResult) -> str:
    return " Its weights are halfway back to those of that draft." if result.start == "a draft" else ""


def _covered(result: TrainingResult) -> str:
    if not result.head:
        return ""
    return (
        f" Its output layer covers the {result.head} tokens that the target says most: {result.covered:.1%} of those "
        "in its answers to the prompts kept apart."
    )


def _line(row: Row) -> str:
    pairs = zip(row.before, row.after, strict=True)
    shares = " | ".join(f"{was:.3f} → {now:.3f}" for was, now in pairs)
    return f"| {row.temperature:g} | {row.task} | {row.places} | {shares} |"
