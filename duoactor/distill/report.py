"""The card of a distilled draft: how it was made, what it agrees with, and whether that helps here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from actors.training.plan import Judgement, Plan, Reading, Result, Rounds
from duoactor import render
from duoactor.doctor.agreement import agreement
from duoactor.doctor.forecast import PAYS, Measured, forecasts

PICTURE = "agreement.png"
SHOWN = (1, 2, 4)  # the draft's choices among which the target's token is looked for
ALL = "all"  # tasks together


@dataclass(frozen=True, slots=True)
class Row:
    """``before`` and ``after``: shares of the places at which the target's token is among the draft's ``SHOWN``."""

    temperature: float
    task: str
    places: int
    before: tuple[float, ...]
    after: tuple[float, ...]


def rows(result: Result) -> list[Row]:
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


def _shares(readings: Sequence[Reading]) -> tuple[float, ...]:
    ranks = [rank for one in readings for rank in one.ranks]
    return tuple(sum(0 < rank <= most for rank in ranks) / len(ranks) for most in SHOWN)


def predicted(result: Result) -> dict[float, tuple[float, float]]:
    """Speed-up of the best method before and after, by temperature; by the cost model that also commands it."""
    was = speedups(result.rounds, Judgement(result.before_us, result.before))
    now = speedups(result.rounds, Judgement(result.after_us, result.after))
    return {temperature: (was[temperature], now[temperature]) for temperature in now}


def speedups(rounds: Rounds, of: Judgement) -> dict[float, float]:
    """By temperature, what the best method brings over the target alone with a draft that was so judged."""
    found = {}
    for temperature in dict.fromkeys(one.temperature for one in of.readings):
        seen = agreement([one.ranks for one in of.readings if one.temperature == temperature])
        known = Measured(rounds.us, of.step_us, seen, rounds.lent_us, rounds.inline)
        found[temperature] = forecasts(known)[0].speedup
    return found


def mean_speedup(rounds: Rounds, of: Judgement) -> float:
    """The mean of :func:`speedups` over the temperatures."""
    return fmean(speedups(rounds, of).values())


def verdict(result: Result) -> str:
    """One sentence: does the draft help on this machine?"""
    gains = predicted(result)
    was, now = map(fmean, zip(*gains.values(), strict=True))
    if now < PAYS:
        return (
            f"It does not help: {now:.2f}x the target alone is predicted for this machine. Train longer, with more "
            "prompts, or ask for a cheaper shape."
        )
    if result.init and now <= was:
        return (
            f"It did not help: {now:.2f}x is predicted for this machine, and {was:.2f}x with the draft that it began "
            "with. Keep that one."
        )
    return f"{now:.2f}x the target alone is predicted for this machine, on the average of the temperatures."


def card(plan: Plan, result: Result, picture: bool) -> str:
    """README.md of the model directory."""
    target = render.model_name(plan.target)
    lines = [
        f"# A draft for {Path(target).name}",
        "",
        f"Made by `duoactor distill`: shape {result.shape}, {result.parameters / 1e6:.2f} M parameters, bfloat16. It "
        f"began with {_start(result)} and made {result.steps} steps ({result.seconds / 60:.1f} minutes) by KL and "
        f"total variation on {result.tokens} tokens in {result.answers} answers of the target, greedy and sampled, to "
        f"{result.prompts - result.kept_apart} prompts.{_chosen(result)}{_mixed(result)}{_covered(result)}",
        "",
        f"**{verdict(result)}**",
        "",
        f"Agreement on the target's answers to the {result.kept_apart} prompts kept apart: how often the target's next "
        "token is the draft's first choice, among its first 2, its first 4; at temperatures above 0 with the request's "
        "shared noise. Before, then after training.",
        "",
        "| temperature | task | places | first | of 2 | of 4 |",
        "|---|---|---|---|---|---|",
        *map(_line, rows(result)),
        "",
        f"A step takes {result.after_us[1] / 1000:.2f} ms here, a round of the target {result.rounds.us[1] / 1000:.2f} "
        "ms. Predicted for text that copies nothing:",
        "",
        "| temperature | before | after |",
        "|---|---|---|",
        *(f"| {t:g} | {was:.2f}x | {now:.2f}x |" for t, (was, now) in predicted(result).items()),
    ]
    if picture:
        lines += ["", f"![agreement by task]({PICTURE})"]
    return "\n".join(lines) + "\n"


def _start(result: Result) -> str:
    if result.init:
        return f"the draft {render.model_name(result.init)}"
    if result.cut:
        return "the target's own embedding and some of its layers"
    return "the target's embedding, projected to its own width"


def _chosen(result: Result) -> str:
    if not result.tried:
        return ""
    found = ", ".join(f"{shape} {gain:.2f}x" for shape, gain in result.tried.items())
    return (
        f" The shape {result.shape} was chosen by what was predicted after a sixteenth of the training each: {found}."
    )


def _mixed(result: Result) -> str:
    if not result.init:
        return ""
    return (
        f" Its weights are {result.share:.2f} of those and the rest of the draft's that it began with, which did best "
        "on the prompts kept apart."
    )


def _covered(result: Result) -> str:
    if result.head == result.vocabulary:
        return ""
    return (
        f" Its output layer covers the {result.head} of {result.vocabulary} tokens that the target says most: "
        f"{result.covered:.1%} of those in its answers to the prompts kept apart."
    )


def _line(row: Row) -> str:
    pairs = zip(row.before, row.after, strict=True)
    shares = " | ".join(f"{was:.3f} → {now:.3f}" for was, now in pairs)
    return f"| {row.temperature:g} | {row.task} | {row.places} | {shares} |"
