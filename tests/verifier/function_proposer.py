"""Proposers that say what a test wants."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from actors.proposals import Proposal

Guess = Callable[[Sequence[int], int], Proposal]


class FromFunction:
    """A proposer that is a function of (committed tokens, budget)."""

    def __init__(self, guess: Guess) -> None:
        self.guess = guess

    def open(self, prompt: Sequence[int]) -> _FunctionSession:
        return _FunctionSession(self.guess, prompt)


class _FunctionSession:
    def __init__(self, guess: Guess, prompt: Sequence[int]) -> None:
        self.guess = guess
        self.text = list(prompt)

    def extend(self, tokens: Sequence[int]) -> None:
        self.text.extend(tokens)

    def propose(self, budget: int) -> Proposal:
        return self.guess(self.text, budget)
