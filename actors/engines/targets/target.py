"""The verifier's model on top of an :class:`Engine`: prefill, windows, sampling, and K/V in canonical slots.

A committed token's K/V is in slot ``base + position``, that of a window's nodes after the last committed token, in the
order in which the nodes are listed. The engine gives each row the bits that plain decoding gives it, on any branch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from actors.engines.cache.kv_cache import CHUNK, SHARED, KVCache, full_request
from actors.engines.cache.memory import gigabytes, trim
from actors.engines.cache.snapshots import LEAST, Snapshots, next_border
from actors.engines.decoder.cpu.rings import Rings, RingState
from actors.engines.engine import Engine
from actors.engines.flat_batch import FlatBatch, TextState
from actors.engines.sampling.sampler import (
    NO_TOKEN,
    Rows,
    SamplerState,
    choices_of,
    picked,
    ranked,
    sample,
)
from actors.engines.targets.request import TargetRequest
from actors.engines.targets.selfcheck import LARGE, ROWS, Agreement, not_finite, self_check
from actors.engines.targets.states import States, Taps
from actors.models import DEFAULT_NODES, Constraint, KeptStates, Outcome, Ranked, Window
from actors.tree.accept import walk
from protocols.errors import PoolFull, RequestError
from protocols.messages import FailureCode, Sampling, TokenLogprobs

LARGEST = max(LARGE) - 1  # nodes of a window


class Target:
    """A :class:`actors.models.TargetModel`. One compute thread owns it."""

    def __init__(
        self,
        engine: Engine,
        max_window: int = LARGEST,
        rows_agree: Sequence[int] | None = None,
        agreement: Agreement | None = None,
        kept: float = math.inf,
    ) -> None:
        """``max_window``: nodes that are allowed, as far as the engine can verify them. ``rows_agree``: row counts that
        are known to give equal bits, on branches too; ``agreement``: what is known of both. None: find out now.
        ``kept``: bytes for texts of ended requests."""
        self.engine = engine
        known = agreement if rows_agree is None else Agreement(tuple(rows_agree), branches=True)
        found = known or self_check(engine)
        self.info, self.rows_agree, self.branches = engine.info, found.rows, found.branches
        self._recurrence = engine.recurrence
        # row counts that rounds are padded to; none where all that were checked agree
        self._buckets = () if set(ROWS) <= set(self.rows_agree) else self.rows_agree
        # a single request's round never has more rows than were checked
        self.max_window = max(1, min(max_window, LARGEST, max(self.rows_agree, default=max_window + 1) - 1))
        # Where bits do not depend on the number of rows, a prompt may be computed in pieces of any length, and decoded
        # tokens have the K/V that a prefill would give them. On a GPU other kernels compute prompts than rounds.
        on_gpu = engine.device.type != "cpu"
        alone = self._recurrence is not None and not self._recurrence.pieces_agree
        self.mixes_prompts = not (self._buckets or alone or on_gpu)
        self.chunk = max(self.rows_agree) if self.mixes_prompts else CHUNK
        self._shares_answers = self.mixes_prompts and found.branches
        fine = SHARED if self._recurrence is None else self._recurrence.fine
        self._kv = KVCache(engine.pool, fine if self.mixes_prompts else self.chunk, kept)
        self._snapshots = Snapshots()
        self._kept_bytes = kept
        state_bytes = 1 if self._recurrence is None else max(1, self._recurrence.stream_bytes)
        self._kept_states = max(1.0, kept / state_bytes)
        self._requests: dict[int, TargetRequest] = {}
        self.taps = Taps(engine)  # states of committed tokens, for draft heads
        self._next_handle = 0

    def capacity(self) -> str:
        """The size of the KV cache in tokens, in requests and in memory."""
        slots, context, most = self._kv.slots, self.info.max_context, self._kv.slots * self.engine.pool.slot_bytes
        full, memory = self._kv.room // full_request(context), f"up to {gigabytes(most)}"
        if self._recurrence is not None:
            full = min(full, self._recurrence.limit)
        if self._kept_bytes < most:
            memory += f" while requests need it, {gigabytes(self._kept_bytes)} for later prompts; --kv-tokens sets both"
        return f"{slots:,} tokens, {full} request{'s' * (full != 1)} of full length, {memory}"

    @property
    def kv_slots(self) -> int:
        return self._kv.slots

    @property
    def kv_used(self) -> int:
        return self._kv.used

    @property
    def kv_cached(self) -> int:
        return self._kv.cached

    def give_back(self) -> None:
        self._kv.give_back()
        if isinstance(self._recurrence, Rings):
            self._recurrence.give_back()
        trim()

    @property
    def has_spare_cpus(self) -> bool:
        return self.engine.has_spare_cpus

    def use_spare_cpus(self, used: bool) -> None:
        self.engine.use_spare_cpus(used)

    def keep_states(self, layers: Sequence[int]) -> States:
        """Keep the states of committed tokens that enter these layers from now on, see ``Engine.tap``."""
        self.taps.exchange(None, states := States(layers))
        return states

    def leave_states(self, reader: KeptStates) -> None:
        assert isinstance(reader, States)
        self.taps.exchange(reader, None)

    def first_slots(self, handle: int) -> tuple[int, int]:
        """Place of the request's text in the pool, and its ring, if it has one; regions that moved are copied."""
        self._kv.settle()
        r = self._requests[handle]
        return r.base, r.state.start if isinstance(r.state, RingState) else 0

    def open(
        self,
        prompt: Sequence[int],
        sampling: Sampling,
        generated: Sequence[int] = (),
        most_nodes: int = DEFAULT_NODES,
        cache_salt: str = "",
        constraint: Constraint | None = None,
    ) -> int:
        """See :class:`actors.models.TargetModel`. Raises PoolFull while there is no room, and RequestError
        ("context_length") if the whole text can never fit."""
        assert len(prompt) > 0
        text = len(prompt) + max(sampling.max_tokens, len(generated) + 1)
        most_nodes = min(most_nodes, self.max_window)
        if self._recurrence is not None:
            if len(self._requests) >= self._recurrence.limit:
                raise PoolFull(f"there is room for the states of {self._recurrence.limit} requests")
            self._leave_states(1)
        shared = [*prompt, *generated] if self._shares_answers else prompt
        region = self._kv.open(shared, len(prompt) + len(generated), text, most_nodes, cache_salt)
        self._next_handle += 1
        sampler = SamplerState(sampling, prompt, generated)
        state = None if self._recurrence is None else self._recurrence.new()
        self._requests[self._next_handle] = TargetRequest(
            region, text, list(prompt), list(generated), sampler, most_nodes, constraint, state
        )
        return self._next_handle

    def reserve(self, handle: int) -> None:
        r = self._requests[handle]
        self._kv.reserve(r.region, r.length, r.text, r.most_nodes)

    def close(self, handle: int) -> None:
        request = self._requests.pop(handle, None)
        self.taps.end(handle)
        if request is not None:
            if self._shares_answers and request.state is not None and (behind := request.behind):
                self._keep(request, behind, request.state)
            self._kv.close(request.region, request.computed if self._shares_answers else ())

    def _keep(self, r: TargetRequest, text: Sequence[int], state: TextState) -> None:
        """Keep the state after a text for later prompts, as far as there is room."""
        assert self._recurrence is not None
        self._snapshots.keep(text, r.region.salt, state)
        self._leave_states()

    def _leave_states(self, more: int = 0) -> None:
        """Keep as many states as there is room for beside those of the requests and of ``more``."""
        assert self._recurrence is not None
        self._snapshots.leave(int(min(self._recurrence.limit - len(self._requests) - more, self._kept_states)))

    def _border(self, r: TargetRequest) -> int:
        """Next place of a prompt whose state is saved."""
        assert self._recurrence is not None
        return next_border(r.done, r.shared, self._recurrence.border)

    # --- prompt ------------------------------------------------------------------------------------------------------

    def prefill(self, handle: int, limit: int | None = None) -> Outcome | None:
        self._kv.settle()
        r, batch = self._requests[handle], FlatBatch()
        end, resumed = self._lay_out_piece(r, limit, batch)
        rows = len(batch.tokens)
        if resumed:
            self._pad(batch)
        logits = self._forward(batch, None if resumed else [rows - 1])
        row = rows - 1 if resumed else 0
        self.taps.add(handle, r.done, range(rows))
        return self._computed(r, end, logits[row : row + 1])

    def _lay_out_piece(self, r: TargetRequest, limit: int | None, batch: FlatBatch) -> tuple[int, bool]:
        """Add the next tokens of the prompt, or of a resumed output, to the batch. Returns where they end, and whether
        they are of the output."""
        if r.done == 0:
            r.done = self._reused(r)
        resumed = r.done >= len(r.prompt)
        if resumed:  # in forwards of the shape in which these tokens were decoded the first time
            rows = min(limit or self.max_window, self.max_window)
        else:
            rows = min(limit or self.chunk, self.chunk) if self.mixes_prompts else self.chunk
            if r.state is not None:
                rows = min(rows, self._border(r) - r.done)
        return r.lay_out_piece(rows, batch), resumed

    def _reused(self, r: TargetRequest) -> int:
        """How many tokens of a new request's text need not be computed."""
        count = self._kv.reuse(r.region)
        if r.state is None:
            return count
        known, length = self._snapshots.longest(r.region.text[:count], r.region.salt)
        r.state, r.region.reused = known or r.state, length
        r.shared = count if count - length >= LEAST else 0
        return length

    def _computed(self, r: TargetRequest, end: int, last: torch.Tensor) -> Outcome | None:
        """Prompt and resumed output are computed up to ``end``; ``last``: the logits ``(1, vocabulary)`` there. Returns
        the outcome of the first new token if that was all, else None."""
        if r.state is not None:
            r.state.keep(range(end - r.done))
            kept = end in (self._border(r), len(r.prompt)) if r.state.back else end == self._border(r)
            if kept and end <= len(r.prompt):
                self._keep(r, r.prompt[:end], r.state.copy())
        r.done = end
        self._kv.computed(r.region, end if self._shares_answers else min(end, len(r.prompt)))
        total = len(r.prompt) + len(r.output)
        if end < total:
            return None
        masks = r.constraint.masks() if r.constraint is not None else None
        [[token]] = sample(last, [Rows(r.sampler, [total], [[]], masks)])
        self._check([token], last[:, token].tolist())
        r.length = total
        r.commit([token])
        reused = min(r.region.reused, len(r.prompt))
        return Outcome([], [token], r.logprobs(last, [token]), reused=reused)

    # --- rounds ------------------------------------------------------------------------------------------------------

    def verify(self, windows: Sequence[Window]) -> list[Outcome]:
        self._kv.settle()
        batch = FlatBatch()
        groups = [self._requests[window.handle].lay_out(window, batch) for window in windows]
        self._pad(batch)
        if self._plainly_sampled(windows):
            picks = self.engine.pick(batch, None, choices_of(groups))
            if picks is not None:
                at = lambda rows, tokens: picks.rows[rows, tokens].tolist()  # noqa: E731
                likeliest = ranked(picks.logits) if _ranks(windows) else None
                return self._walked(windows, picked(picks, groups), lambda: picks.logits, at, likeliest)
        return self._verified(windows, groups, self._forward(batch))

    def verify_beside(self, windows: Sequence[Window], handle: int, limit: int) -> tuple[list[Outcome], Outcome | None]:
        self._kv.settle()
        r, batch = self._requests[handle], FlatBatch()
        groups = [self._requests[window.handle].lay_out(window, batch) for window in windows]
        rows = len(batch.tokens)
        end, _ = self._lay_out_piece(r, limit, batch)
        logits = self._forward(batch, [*range(rows), len(batch.tokens) - 1])
        outcomes = self._verified(windows, groups, logits[:rows])
        self.taps.add(handle, r.done, range(rows, len(batch.tokens)))
        return outcomes, self._computed(r, end, logits[rows:])

    def _verified(self, windows: Sequence[Window], groups: list[Rows], logits: torch.Tensor) -> list[Outcome]:
        """Sample from the logits of the windows' rows, then walk and commit."""
        for window, group in zip(windows, groups, strict=True):  # masks are made while a GPU computes the logits
            if (constraint := self._requests[window.handle].constraint) is not None:
                group.masks = constraint.masks(window.tokens, window.parents)
        likeliest = ranked(logits) if _ranks(windows) else None
        best = self.engine.best
        told = best is not None or not logits.is_cpu  # ``NO_TOKEN`` says it: to read a device once more would take long
        at = lambda rows, tokens: [] if told else logits[rows, tokens].tolist()  # noqa: E731
        return self._walked(windows, sample(logits, groups, best), lambda: logits, at, likeliest)

    def _plainly_sampled(self, windows: Sequence[Window]) -> bool:
        """Whether no window's logits are changed before a token is chosen, so that the engine may choose."""
        requests = (self._requests[window.handle] for window in windows)
        return not any(r.sampler.penalised or r.constraint is not None for r in requests)

    def _walked(
        self,
        windows: Sequence[Window],
        sampled: list[list[int]],
        logits: Callable[[], torch.Tensor],
        at: Callable[[list[int], list[int]], list[float]],
        likeliest: Callable[[], Ranked] | None,
    ) -> list[Outcome]:
        """Walk down each window along the sampled tokens and commit the path. ``logits`` and ``likeliest``: those of
        all rows, made when they are needed; None: no window asks for these. ``at``: of rows one token's each.

        Raises RequestError where the logits of a committed token are not finite; of a row beside the path nobody asks.
        Accepted nodes that are not in canonical slots are copied there. Requests are changed last: if anything raises
        before, nothing is committed."""
        outcomes: list[Outcome] = []
        source: list[int] = []
        target: list[int] = []
        walked_rows: list[int] = []
        walked_tokens: list[int] = []
        first_row = 0
        for window, chosen in zip(windows, sampled, strict=True):
            r = self._requests[window.handle]
            path, final = walk(window.tokens, window.parents, chosen)
            root = r.base + r.length - 1  # the slot of the root; node i of the window is in the slot root + 1 + i
            for depth, node in enumerate(path, 1):
                if node + 1 != depth:
                    source.append(root + 1 + node)
                    target.append(root + depth)
            tokens = [window.tokens[node] for node in path] + [final]
            found: list[TokenLogprobs] = []
            if r.sampler.sampling.logprobs >= 0:
                walked = [first_row, *(first_row + 1 + node for node in path)]
                found = r.logprobs(logits()[walked], tokens)
            outcomes.append(Outcome(path, tokens, found, [max(0, token) for token in chosen]))
            for depth, token in enumerate(tokens):
                walked_rows.append(first_row + (1 + path[depth - 1] if depth else 0))
                walked_tokens.append(token)
            first_row += len(chosen)
        self._check(walked_tokens, at(walked_rows, walked_tokens))
        if likeliest is not None:
            _tell(windows, outcomes, likeliest())
        if source:
            self.engine.pool.copy(source, target)
        first_row = 0
        for window, outcome in zip(windows, outcomes, strict=True):
            r = self._requests[window.handle]
            self.taps.add(window.handle, r.length - 1, [first_row, *(first_row + 1 + node for node in outcome.path)])
            first_row += len(outcome.sampled)
            if r.state is not None:
                r.state.keep([0, *(1 + node for node in outcome.path)])
            r.commit(outcome.tokens)
        return outcomes

    def _check(self, tokens: Sequence[int], chosen: Sequence[float]) -> None:
        """``chosen``: the logits of sampled tokens. Of a row with NaN or infinity that is one of them."""
        if NO_TOKEN in tokens or not all(map(math.isfinite, chosen)):
            raise RequestError(FailureCode.INTERNAL, not_finite(self.info))

    def _pad(self, batch: FlatBatch) -> None:
        """Fill the round up to one of the row counts that gave equal bits, unless all counts did."""
        rows = len(batch.tokens)
        missing = min((b for b in self._buckets if b >= rows), default=rows) - rows
        if missing:
            batch.pad(missing, self._kv.trash)

    def _forward(self, batch: FlatBatch, select: list[int] | None = None) -> torch.Tensor:
        """The logits ``(rows, vocab_size)``, without columns of a padded vocabulary."""
        logits = self.engine.forward(batch, select)
        return logits if logits.shape[1] == self.info.vocab_size else logits[:, : self.info.vocab_size]


def _ranks(windows: Sequence[Window]) -> bool:
    return any(window.ranks for window in windows)


def _tell(windows: Sequence[Window], outcomes: Sequence[Outcome], ranked: Ranked) -> None:
    """Hand each window that asks for them its rows of ``ranked``."""
    (tokens, logits), first = ranked, 0
    for window, outcome in zip(windows, outcomes, strict=True):
        end = first + len(outcome.sampled)
        if window.ranks:
            outcome.ranked = Ranked(tokens[first:end], logits[first:end])
        first = end
