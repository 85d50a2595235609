"""Decode rounds of static shapes, each recorded once as a CUDA graph and replayed.

A round of few rows is hundreds of small kernels, and a CPU takes longer to launch them than a GPU to run them. A graph
launches them all at once, but freezes whatever is not in device memory: so everything that changes from round to round
(tokens, positions, slots, where the requests lie, what each row sees) is packed into one buffer and copied over in one
transfer, and the program of a round reads that buffer and nothing else. The likeliest token of every row is found on
the way, so that a greedy round hands back a few bytes.

Of several requests the linear layers take the rows as they come; attention takes as many rows of each, which look at as
many slots, in one call.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from actors.engines.attention import MAX_ROUND as MAX_WINDOW
from actors.engines.attention import attend
from actors.engines.backends.llama.folded_attention import attend_folded
from actors.engines.backends.llama.inbox import STEP, Inbox, RoundShape, power_bucket, span_bucket
from actors.engines.backends.llama.linear import rows_for
from actors.engines.backends.llama.torch_body import TorchBody
from actors.engines.branches import BLOCK, View, view
from actors.engines.engine import Segment

MAX_ROWS = 256  # their logits take 155 MB with a vocabulary of 152,000
# Slots of several requests that a layer's attention copies, and places times slots that it scores: at 8 heads of 128 in
# 16 bits 268 MB, and at 32 query heads 134 MB in float32. Rounds beyond are launched as usual.
MAX_GATHERED = 1 << 16
MAX_SCORED = 1 << 20
MAX_GRAPHS = 96

log = logging.getLogger("duoactor.engines")

Program = Callable[[], None]


class Recorder(Protocol):
    def capture(self, program: Program) -> Program:
        """Run the program once or more, and return what does all of it again on the same memory.

        RuntimeError if the device cannot.
        """
        ...


class CudaRecorder:
    """CUDA graphs out of one memory pool: they never run at the same time, and none keeps a result in it."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: torch.cuda.Stream | None = None
        self._pool: Any = None

    def capture(self, program: Program) -> Program:
        with torch.cuda.device(self._device):
            if self._stream is None:
                self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
                self._pool = torch.cuda.graph_pool_handle()
            here = torch.cuda.current_stream()
            self._stream.wait_stream(here)
            with torch.cuda.stream(self._stream):  # libraries set themselves up at first use, which no graph may hold
                program()
                program()
            here.wait_stream(self._stream)
            graph = torch.cuda.CUDAGraph()
            # what another thread does meanwhile is no reason to give up; a capture that fails leaves its stream current
            with (
                torch.cuda.stream(here),
                torch.cuda.graph(graph, self._pool, self._stream, capture_error_mode="thread_local"),
            ):
                program()
        return graph.replay


class Direct:
    """No recording: the program itself, launch by launch."""

    def capture(self, program: Program) -> Program:
        return program


class Graphs:
    """Rounds of up to ``MAX_ROWS`` rows over a decoder's pool, which has as many spare slots.

    ``best``: of the last round, the likeliest id below ``vocabulary`` of each row, int32; until the next round.
    """

    def __init__(self, body: TorchBody, recorder: Recorder, vocabulary: int, pads: bool) -> None:
        """``pads``: row counts are rounded up further, to those whose rows are added up alike on a CPU."""
        self.body = body
        self.attention = attend_folded if body.device.type == "cuda" else attend_as_eager
        self._recorder = recorder
        self._vocabulary = vocabulary
        self._pads = pads
        self._turns: Tensor | None = None
        self._table = 0  # counts them
        # by table and shape, the latest used last. Never empty again: a memory pool lives as long as its graphs
        self._replays: OrderedDict[tuple[int, RoundShape], Program] = OrderedDict()
        device, pool = body.device, body.pool
        longest = span_bucket(pool.slots)
        self._inbox = Inbox(self._largest(longest), device)
        self._offsets = torch.arange(longest, device=device)
        self._seen = torch.zeros((), dtype=body.dtype, device=device)
        self._unseen = torch.full((), float("-inf"), dtype=body.dtype, device=device)
        self._logits = torch.zeros((MAX_ROWS, body.shape.vocabulary), dtype=torch.float32, device=device)
        self._best = torch.zeros(MAX_ROWS, dtype=torch.int32, device=device)
        self.best: Tensor | None = None

    @staticmethod
    def _largest(span: int) -> int:
        """Bytes of the largest round: one request with as many rows and branches as there can be, or several."""
        alone = RoundShape(MAX_WINDOW, 1, MAX_WINDOW, span, 2 * MAX_WINDOW).bytes
        numbers = 5 * MAX_ROWS + MAX_SCORED // STEP + MAX_GATHERED + MAX_SCORED // BLOCK
        return max(alone, 4 * numbers + MAX_SCORED // 8)

    def __len__(self) -> int:
        return len(self._replays)

    @torch.inference_mode()
    def forward(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        slots: Sequence[int],
        segments: Sequence[Segment],
        select: Sequence[int] | None,
        turns: Tensor,
    ) -> Tensor | None:
        """float32 logits of a batch's rows, or None if it is no round for a graph: then it runs as usual.

        ``turns``: the table of rotations by position. Segments that only fill the batch up are not computed: their
        rows get logits that mean nothing.
        """
        self.best = None
        count = len(tokens)
        own = [segment for segment in segments if not segment.padding]
        if select is not None or any(one.prompt or one.rows > MAX_WINDOW for one in own):
            return None
        if count > (MAX_ROWS if len(own) > 1 else MAX_WINDOW):
            return None
        looks = [view(one) if self.body.exact else View(one.visible) for one in own]
        shape = RoundShape.of(self._rows(count), own, looks)
        if shape.streams > 1 and not (
            shape.streams * shape.seen <= MAX_GATHERED and shape.streams * shape.each * shape.seen <= MAX_SCORED
        ):
            return None
        if turns is not self._turns:  # another table lies elsewhere; recordings that read the old one are never used
            self._table += 1
            self._turns = turns
        self._inbox.send(shape, tokens, positions, slots, own, looks, self.body.pool.slots)
        self._replay(shape)()
        self.best = self._best[:count]
        return self._logits[:count].clone()  # the next round writes there

    def _rows(self, count: int) -> int:
        rows = power_bucket(count)
        return min(rows_for(rows), MAX_ROWS) if self._pads else rows

    def _replay(self, shape: RoundShape) -> Program:
        key = (self._table, shape)
        replay = self._replays.get(key)
        if replay is None:
            program = self._program(shape)
            try:
                replay = self._recorder.capture(program)
            except RuntimeError as error:
                reason = str(error).partition("\n")[0]
                log.warning("decode rounds run without CUDA graphs, which is slower: capturing one failed (%s)", reason)
                self._recorder, replay = Direct(), program
            self._replays[key] = replay
            if len(self._replays) > MAX_GRAPHS:
                self._replays.popitem(last=False)
        self._replays.move_to_end(key)
        return replay

    def _program(self, shape: RoundShape) -> Program:
        """What one round of that shape does, reading nothing but device memory that stays where it is."""
        body, pool, inbox, turns = self.body, self.body.pool, self._inbox, self._turns
        assert turns is not None
        scale = body.shape.width**-0.5

        def program() -> None:
            sent = inbox.unpack(shape)
            mask = torch.where(sent.sees, self._seen, self._unseen)
            window = (self._offsets[: shape.span] + sent.bases[:, None]).clamp_(max=pool.slots - 1)
            if shape.copies:
                window = torch.cat([window, sent.copies], 1)
            window = window.flatten()

            def look(layer: int, queries: Tensor) -> Tensor:
                keys, values = pool.gather(layer, window)
                keys, values = (part.view(len(part), shape.streams, shape.seen, -1) for part in (keys, values))
                apart = queries[None] if sent.apart is None else _of_streams(queries, sent.apart, shape)
                seen = self.attention(apart.transpose(1, 2), keys, values, mask, scale, sent.order)
                rows = seen.transpose(1, 2).reshape(shape.streams * shape.each, -1)
                return rows if sent.places is None else rows.index_select(0, sent.places)

            x = body.layers(sent.tokens, turns.index_select(0, sent.positions), sent.slots, look)
            self._logits[: shape.rows].copy_(body.logits(x))
            self._best[: shape.rows].copy_(self._logits[: shape.rows, : self._vocabulary].argmax(-1))

        return program


def _of_streams(queries: Tensor, apart: Tensor, shape: RoundShape) -> Tensor:
    return queries.index_select(0, apart).view(shape.streams, shape.each, *queries.shape[1:])


def attend_as_eager(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float, order: Tensor | None = None
) -> Tensor:
    """On a CPU blocks are added one after the other, whichever a row sees of them."""
    streams = zip(query.unbind(), keys.unbind(1), values.unbind(1), mask.unbind(), strict=True)
    return torch.stack([attend(*stream, scale) for stream in streams])
