"""One request at the target: its text, its sampler, and the rows of a forward that it needs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from actors.engines.cache.prefix_index import Region
from actors.engines.flat_batch import FlatBatch, Mask, TextState, align, causal
from actors.engines.sampling.sampler import Rows, SamplerState, logprobs
from actors.engines.targets.selfcheck import LARGE
from actors.models import Constraint, Window
from actors.tree.accept import depths_of
from protocols.messages import TokenLogprobs

CHAIN: Mask = np.tri(max(LARGE), dtype=np.bool_)  # what the nodes of a path see of one another


@dataclass(slots=True)
class TargetRequest:
    region: Region  # its slots
    text: int  # tokens that prompt and output may have together
    prompt: list[int]
    output: list[int]  # committed; that of a resumed stream is computed after the prompt before anything is sampled
    sampler: SamplerState
    most_nodes: int  # nodes of a window, at most
    constraint: Constraint | None
    state: TextState | None  # after the token before the root
    shared: int = 0  # tokens with keys from an earlier request, if there is a state
    done: int = 0  # tokens of the prompt and of a resumed output that are computed
    length: int = 0  # committed tokens; 0: the prefill is not over

    @property
    def base(self) -> int:
        return self.region.base

    @property
    def root(self) -> int:
        """The last committed token; its K/V is computed in the next round."""
        return self.output[-1]

    @property
    def computed(self) -> list[int]:
        """The tokens that have K/V once the prefill is over: prompt and output without the root."""
        return [*self.prompt, *self.output[:-1]] if self.length > 0 else []

    @property
    def behind(self) -> list[int]:
        """The tokens that the state is after."""
        return self.computed or [*self.prompt, *self.output][: self.done]

    def lay_out_piece(self, rows: int, batch: FlatBatch) -> int:
        """Add the next tokens of the prompt, or of the resumed output after it, to the batch: at most ``rows``.
        Returns the position after them."""
        start, prompt_len = self.done, len(self.prompt)
        if in_prompt := start < prompt_len:
            end = min(start + rows, prompt_len)
            tokens = self.prompt[start:end]
        else:
            end = min(start + rows, prompt_len + len(self.output))
            tokens = self.output[start - prompt_len : end - prompt_len]
        at, slots = [*range(start, end)], [*range(self.base + start, self.base + end)]
        segment = batch.add(self.base, tokens, at, slots, causal(start, end))
        segment.state, segment.prompt = self.state, in_prompt
        return end

    def lay_out(self, window: Window, batch: FlatBatch) -> Rows:
        """Add the root and the window's nodes to the batch, in consecutive slots. A node sees the committed text, its
        ancestors and itself."""
        assert self.length > 0, "prefill comes first"
        assert len(window.tokens) <= self.most_nodes
        depths = depths_of(window.parents)
        root, rows = self.length - 1, 1 + len(depths)
        visible: Mask = np.zeros((rows, align(root + rows)), dtype=np.bool_)
        visible[:, : self.length] = True
        if depths and depths[-1] == len(depths):  # a path
            visible[1:, self.length : root + rows] = CHAIN[: rows - 1, : rows - 1]
        else:
            for row, parent in enumerate(window.parents, 1):
                visible[row, self.length :] = visible[parent + 1, self.length :]
                visible[row, root + row] = True
        paths: list[list[int]] = [[] for _ in range(rows)]
        if self.sampler.penalised:
            for row, (parent, token) in enumerate(zip(window.parents, window.tokens, strict=True), 1):
                paths[row] = [*paths[parent + 1], token]
        positions = [root, *(root + depth for depth in depths)]
        slots = list(range(self.base + root, self.base + root + rows))
        parents = [-1, *(parent + 1 for parent in window.parents)]
        tokens = [self.root, *window.tokens]
        segment = batch.add(self.base, tokens, positions, slots, visible)
        segment.state, segment.parents = self.state, parents
        return Rows(self.sampler, [p + 1 for p in positions], paths)

    def commit(self, tokens: list[int]) -> None:
        """``tokens`` are the next of the output."""
        self.sampler.append(tokens)
        self.output += tokens
        self.length += len(tokens)

    def logprobs(self, logits: torch.Tensor, tokens: list[int]) -> list[TokenLogprobs]:
        """The log-probabilities of ``tokens``, each chosen from a row of ``logits``; none if the client did not ask."""
        top = self.sampler.sampling.logprobs
        return logprobs(logits, tokens, top) if top >= 0 else []
