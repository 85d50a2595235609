"""One request of the target: its text, and which rows of a forward it asks for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from actors.engines.flat_batch import FlatBatch, Mask, State, align, causal
from actors.engines.prefix_index import Region
from actors.engines.sampler import Rows, SamplerState, logprobs
from actors.models import Constraint, Window
from actors.tree.accept import depths_of
from protocols.messages import TokenLogprobs


@dataclass(slots=True)
class TargetRequest:
    region: Region
    text: int  # tokens of prompt and output at most
    prompt: list[int]
    output: list[int]  # those of a resumed stream are computed again behind the prompt
    sampler: SamplerState
    most_nodes: int  # of a window
    constraint: Constraint | None
    state: State | None  # of recurrent layers, behind the tokens before the root
    likeliest: int = 0  # tokens wanted at each place
    done: int = 0  # of the prompt and a resumed output, tokens computed
    length: int = 0  # committed tokens, once the prefill is over

    @property
    def base(self) -> int:
        return self.region.base

    @property
    def root(self) -> int:
        """The last committed token; its K/V is computed in the next round."""
        return self.output[-1]

    @property
    def computed(self) -> list[int]:
        """Prompt and output, but for the root, once the prefill is over."""
        return [*self.prompt, *self.output[:-1]] if self.length > 0 else []

    def lay_out_piece(self, rows: int, batch: FlatBatch) -> int:
        """At most ``rows`` tokens more of the prompt, or of the resumed output behind it. Returns where they end."""
        start, prompt_len = self.done, len(self.prompt)
        if in_prompt := start < prompt_len:
            end = min(start + rows, prompt_len)
            tokens = self.prompt[start:end]
        else:
            end = min(start + rows, prompt_len + len(self.output))
            tokens = self.output[start - prompt_len : end - prompt_len]
        at, slots = [*range(start, end)], [*range(self.base + start, self.base + end)]
        batch.add(self.base, tokens, at, slots, causal(start, end), self.text, self.state, in_prompt)
        return end

    def lay_out(self, window: Window, batch: FlatBatch) -> Rows:
        """The root and the window's nodes behind it."""
        assert self.length > 0, "prefill comes first"
        assert len(window.tokens) <= self.most_nodes
        depths = depths_of(window.parents)
        assert self.state is None or len(set(depths)) == len(depths), "a branch would need a state of its own"
        root, rows = self.length - 1, 1 + len(depths)
        visible: Mask = np.zeros((rows, align(root + rows)), dtype=np.bool_)
        visible[:, : self.length] = True
        paths: list[list[int]] = [[]]
        for row, (parent, token) in enumerate(zip(window.parents, window.tokens, strict=True), 1):
            visible[row, self.length :] = visible[parent + 1, self.length :]
            visible[row, root + row] = True
            paths.append([*paths[parent + 1], token] if self.sampler.penalised else [])
        positions = [root, *(root + depth for depth in depths)]
        slots = list(range(self.base + root, self.base + root + rows))
        batch.add(self.base, [self.root, *window.tokens], positions, slots, visible, self.text, self.state)
        return Rows(self.sampler, [p + 1 for p in positions], paths)

    def commit(self, tokens: list[int]) -> None:
        self.sampler.append(tokens)
        self.output += tokens
        self.length += len(tokens)

    def logprobs(self, logits: torch.Tensor, tokens: list[int]) -> list[TokenLogprobs]:
        """Of ``tokens``, each chosen from a row of ``logits``, if the client asked for them."""
        top = self.sampler.sampling.logprobs
        return logprobs(logits, tokens, top) if top >= 0 else []
