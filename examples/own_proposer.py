"""A drafter of your own: anything that guesses what comes next, in a process of its own.

This one remembers which token followed each pair of tokens, and proposes the longest chain that it knows. Wrong guesses
cost time only: the text stays the target's.

Start the actors first:  duoactor up --drafters 0
Beside them:             python examples/own_proposer.py
Then:                    duoactor generate "One, two, three. One, two," --method tree
"""

from collections.abc import Sequence

from duoactor import Proposal, run_proposer


class Pairs:
    """A `duoactor.Proposer`: it opens a session for each request."""

    def open(self, prompt: Sequence[int]) -> "Session":
        session = Session()
        session.extend(prompt)
        return session


class Session:
    def __init__(self) -> None:
        self.text: list[int] = []
        self.behind: dict[tuple[int, int], int] = {}

    def extend(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            if len(self.text) > 1:
                self.behind[self.text[-2], self.text[-1]] = token
            self.text.append(token)

    def propose(self, budget: int) -> Proposal:
        chain = self.text[-2:]
        while len(chain) < budget + 2 and (token := self.behind.get(tuple(chain[-2:]))) is not None:
            chain.append(token)
        tokens = tuple(chain[2:])  # below the last committed token: the parent of each is the one before it
        return Proposal(tokens, parents=tuple(range(-1, len(tokens) - 1)), scores=(0.5,) * len(tokens))


if __name__ == "__main__":
    raise SystemExit(run_proposer(Pairs(), "pairs"))
