"""A token's log-probabilities have the bits of plain decoding beside any other requests, which join and leave."""

import random

import pytest
import torch

from actors.engines.targets.target import Target
from actors.models import Window
from protocols.messages import Sampling
from tests.engines.families import model_of
from tests.engines.tiny import VOCAB, info, torch_engine

COUNT = 14  # tokens of a text
LENGTHS = (3, 21, 70)  # tokens of a prompt


class Beside:
    """Texts that were decoded alone, then by windows of right and wrong tokens in changing company."""

    def __init__(self, target: Target, streams: int) -> None:
        self.target, self.chance = target, random.Random(0)
        self.prompts = [[self.chance.randrange(2, VOCAB) for _ in range(LENGTHS[i % 3])] for i in range(streams)]
        self.texts = [self.alone(number) for number in range(streams)]
        self.live: dict[int, tuple[int, int]] = {}  # number of the text: handle, tokens so far

    def begin(self, number: int, salt: str) -> tuple[int, list]:
        # greedy and sampled
        sampling = Sampling(temperature=float(number % 2), seed=number, max_tokens=COUNT, ignore_eos=True, logprobs=2)
        handle = self.target.open(self.prompts[number], sampling, cache_salt=salt, most_nodes=12)
        while (found := self.target.prefill(handle)) is None:
            pass
        return handle, [*zip(found.tokens, found.logprobs, strict=True)]

    def alone(self, number: int) -> list:
        handle, text = self.begin(number, f"alone {number}")
        while len(text) < COUNT:
            [found] = self.target.verify([Window(handle)])
            text += zip(found.tokens, found.logprobs, strict=True)
        self.target.close(handle)
        return text

    def window(self, number: int) -> Window:
        handle, at = self.live[number]
        right = [token for token, _ in self.texts[number][at : at + self.chance.randrange(6)]]
        parents = [*range(-1, len(right) - 1)]
        if not right or not self.target.branches:
            return Window(handle, right, parents)
        wrong = [(token + 2) % VOCAB for token in right]
        behind = [parent if parent < 0 else parent + len(wrong) for parent in parents]
        return Window(handle, [*wrong, *right], [*parents, *behind])

    def run(self) -> None:
        waiting = [*range(len(self.texts))] * 2
        while waiting or self.live:
            if waiting and (fresh := waiting[-1]) not in self.live:
                handle, text = self.begin(waiting.pop(), "shared")
                assert text == self.texts[fresh][:1]
                self.live[fresh] = (handle, 1)
            chosen = [number for number in self.live if self.chance.random() < 0.8] or [*self.live]
            found = self.target.verify([self.window(number) for number in chosen])
            for number, outcome in zip(chosen, found, strict=True):
                handle, at = self.live[number]
                text = [*zip(outcome.tokens, outcome.logprobs, strict=True)][: COUNT - at]
                assert text == self.texts[number][at : at + len(text)], (number, at, len(chosen))
                self.live[number] = (handle, at + len(text))
                if at + len(text) == COUNT:
                    self.target.close(handle)
                    del self.live[number]


@pytest.mark.parametrize("family", ["GPT2", "Mixtral", "Qwen3Moe"])
def test_where_nothing_is_compiled_no_bit_depends_on_other_requests(family):
    """Experts and their routers are products of few rows; torch computes what is left behind its last whole vector by
    other code."""
    torch.set_num_threads(1)
    model = model_of(family)
    Beside(Target(torch_engine(model, info(model), 4096)), 6).run()
