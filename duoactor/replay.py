"""Exact acceptance of draft models on logged requests.

The noise of a token follows from its seed and position. So a text with its seed tells what a draft would have proposed
at every place, and the target need not run again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from actors.records import LoggedRequest
from duoactor import render
from protocols.errors import ConfigError

RANKS = 4  # ranks of the draft's choices that are shown
GAMMAS = (2, 4, 8)


class DraftAgreement(msgspec.Struct, frozen=True, kw_only=True):
    """Shares of the target's tokens that are a draft's choices. ``temperature``, ``task``: None for all of them."""

    draft: str
    temperature: float | None
    task: str | None
    places: int
    ranks: tuple[float, ...]  # share of places where the token is the choice of rank 1, 2 …
    tokens_per_round: dict[int, float]  # yield of a single chain, by gamma


class ReplayReport(msgspec.Struct, kw_only=True):
    log: tuple[str, ...]
    requests: int
    agreements: list[DraftAgreement] = []


def check_tokenizer(draft: str, digest: str, logged: Iterable[LoggedRequest]) -> None:
    """Raise ConfigError if a text is of another tokenizer than the draft's, whose ids would mean other words."""
    for one in logged:
        if one.tokenizer and one.tokenizer != digest:
            raise ConfigError(
                f"the log has texts of {one.model_id or 'a target'}, whose tokenizer is not that of {draft}: give "
                "--draft a draft model of that target's family"
            )


def agreements(draft: str, logged: Sequence[LoggedRequest], ranks: Sequence[Sequence[int]]) -> list[DraftAgreement]:
    """All together, then by temperature, then by task. ``ranks``: see ``replay_draft``."""
    read = list(zip(logged, ranks, strict=True))
    temperatures = sorted({one.sampling.temperature for one in logged})
    tasks = list(dict.fromkeys(one.task for one in logged if one.task))
    groups = [(None, None), *((t, None) for t in temperatures if len(temperatures) > 1), *((None, t) for t in tasks)]
    found = []
    for temperature, task in groups:
        here = [
            each for one, each in read if temperature in (None, one.sampling.temperature) and task in (None, one.task)
        ]
        places = [rank for each in here for rank in each]
        found.append(
            DraftAgreement(
                draft=draft,
                temperature=temperature,
                task=task,
                places=len(places),
                ranks=tuple(places.count(rank) / max(1, len(places)) for rank in range(1, RANKS + 1)),
                tokens_per_round={gamma: tokens_per_round(here, gamma) for gamma in GAMMAS},
            )
        )
    return found


def tokens_per_round(texts: Iterable[Sequence[int]], gamma: int) -> float:
    """Mean acceptance length of chains of ``gamma`` tokens, as method ``sps`` verifies them.

    ``texts``: the rank of each token of an output; the first token comes with the prompt."""
    tokens = rounds = 0
    for ranks in texts:
        at = 1
        while at < len(ranks):
            accepted = 0
            while accepted < gamma and at + accepted < len(ranks) and ranks[at + accepted] == 1:
                accepted += 1
            step = min(accepted + 1, len(ranks) - at)
            tokens, rounds, at = tokens + step, rounds + 1, at + step
    return tokens / rounds if rounds else 0.0


def show(report: ReplayReport) -> None:
    """Print a line for each draft, temperature and task."""
    made = render.table("draft", "of", ">tokens", *(f">choice {rank}" for rank in range(1, RANKS + 1)),
                        *(f">gamma {gamma}" for gamma in GAMMAS))  # fmt: skip
    for one in report.agreements:
        group = (
            "all" if one.temperature is None and one.task is None else one.task or f"temperature {one.temperature:g}"
        )
        made.add_row(
            one.draft,
            group,
            str(one.places),
            *(f"{share:.3f}" for share in one.ranks),
            *(f"{length:.2f}" for length in one.tokens_per_round.values()),
        )
    render.print_table(made)
    print(f"Of {report.requests} requests. choice N: share of the target's tokens that are the draft's N-th choice.")
    print("gamma N: tokens per round of a chain of N draft tokens (method sps). Both are exact.")
