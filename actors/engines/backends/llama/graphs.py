"""Decode rounds of static shapes, each recorded once as a CUDA graph and replayed.

A round of few rows is hundreds of small kernels, and a CPU takes longer to launch them than a GPU to run them. A graph
launches them all at once, but freezes whatever is not in device memory: so everything that changes from round to round
(tokens, positions, slots, where the request lies, what each row sees) is packed into one buffer and copied over in one
transfer, and the program of a round reads that buffer and nothing else. The likeliest token of every row is found on
the way, so that a greedy round hands back a few bytes.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actors.engines.attention import attend
from actors.engines.backends.llama.folded_attention import attend_folded
from actors.engines.backends.llama.linear import rows_for
from actors.engines.backends.llama.torch_body import TorchBody
from actors.engines.branches import BLOCK, View, view
from actors.engines.engine import Segment

ROWS = (1, 2, 4, 8, 16, 32, 64)
MAX_ROWS = 64
STEP = 256  # of spans ...
FINE = 1024  # ... up to here; they are powers of two beyond
MAX_GRAPHS = 40

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


def rows_bucket(rows: int) -> int:
    return next(bucket for bucket in ROWS if bucket >= rows)


def span_bucket(span: int) -> int:
    if span <= FINE:
        return -(-span // STEP) * STEP
    return 1 << (span - 1).bit_length()


def copies_bucket(rows: int, copies: int) -> int:
    """Blocks of copies for a window's branches. A branch needs two at most, since no window is as long as a block; most
    trees make do with half a block for a row."""
    return next(bucket for bucket in (0, -(-rows // 2), 2 * rows) if bucket >= copies)


class Inbox:
    """One round's data, packed on the host and copied to the device in one piece.

    int32 ``tokens, positions, slots`` (rows each) and ``base``; with copies their slots, and for every row the order of
    its blocks; then what each row sees, one bit per slot.
    """

    def __init__(self, rows: int, span: int, copies: int, device: torch.device) -> None:
        size = self._header(rows, span, copies) + rows * (span + copies * BLOCK) // 8
        self._pinned = torch.zeros(size, dtype=torch.uint8, pin_memory=device.type == "cuda")
        self._host: NDArray[np.uint8] = self._pinned.numpy()
        self._device = torch.zeros(size, dtype=torch.uint8, device=device)
        self._bits = torch.tensor([1 << bit for bit in range(8)], dtype=torch.uint8, device=device)
        self._sent = torch.cuda.Event() if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    @staticmethod
    def _header(rows: int, span: int, copies: int) -> int:
        return 4 * (3 * rows + 1 + (copies * BLOCK + rows * span // BLOCK if copies else 0))

    def send(
        self,
        rows: int,
        span: int,
        copies: int,
        tokens: Sequence[int],
        positions: Sequence[int],
        slots: Sequence[int],
        segment: Segment,
        look: View,
        spare: int,
    ) -> None:
        """Rows beyond the segment's repeat its last one, but write into slots ``spare ..``."""
        if self._sent is not None:
            self._sent.synchronize()  # the last round's copy may still be reading the pinned memory
        count, start, wide = segment.rows, self._header(rows, span, copies), span + copies * BLOCK
        header = self._host[:start].view(np.int32)
        header[3 * rows] = segment.base
        ids, places, where = header[: 3 * rows].reshape(3, rows)
        ids[:count], ids[count:] = tokens[:count], tokens[count - 1]
        places[:count], places[count:] = positions[:count], positions[count - 1]
        where[:count], where[count:] = slots[:count], range(spare, spare + rows - count)
        if copies:
            slots_of_copies, order = np.split(header[3 * rows + 1 :], [copies * BLOCK])
            assert look.branch is not None
            slots_of_copies[:] = segment.base
            slots_of_copies[: look.copies.size] = look.copies.ravel()
            order = order.reshape(rows, -1)
            order[:] = np.arange(span // BLOCK)
            each = look.copies.shape[1] // BLOCK
            for row in np.flatnonzero(look.branch >= 0):
                order[row, look.first : look.first + each] = span // BLOCK + look.branch[row] * each + np.arange(each)
            order[count:] = order[count - 1]
        end = start + rows * wide // 8
        sees = self._host[start:end].reshape(rows, -1)
        sees[:] = 0
        for at, part in ((0, look.visible[:, : segment.span]), (span, look.visible[:, segment.span :])):
            packed = np.packbits(part, axis=1, bitorder="little")
            sees[:count, at // 8 : at // 8 + packed.shape[1]] = packed
        sees[count:] = sees[count - 1]
        self._device[:end].copy_(self._pinned[:end], non_blocking=True)
        if self._sent is not None:
            self._sent.record(torch.cuda.current_stream(self._device.device))

    def unpack(self, rows: int, span: int, copies: int) -> tuple[Tensor, ...]:
        """On the device: int64 tokens, positions and slots ``(rows,)``, base ``(1,)``, slots of the copies and the
        rows' order of blocks; bool ``(rows, span and copies)``."""
        start, wide = self._header(rows, span, copies), span + copies * BLOCK
        numbers = self._device[:start].view(torch.int32).long()
        ids, places, where = numbers[: 3 * rows].view(3, rows).unbind()
        base, copied, order = numbers[3 * rows :].tensor_split([1, 1 + copies * BLOCK])
        sees = self._device[start : start + rows * wide // 8].view(-1, 1).bitwise_and(self._bits).ne(0)
        return ids, places, where, base, copied, order.view(rows, -1) if copies else order, sees.view(rows, wide)


class Graphs:
    """Rounds of one request and up to ``MAX_ROWS`` rows over a decoder's pool, which has as many spare slots.

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
        # by table, rows, span and copies, the latest used last. Never empty again: a memory pool lives as long as its
        # graphs
        self._replays: OrderedDict[tuple[int, int, int, int], Program] = OrderedDict()
        device, pool = body.device, body.pool
        self._inbox = Inbox(MAX_ROWS, span_bucket(pool.slots), copies_bucket(MAX_ROWS, 2 * MAX_ROWS), device)
        self._offsets = torch.arange(span_bucket(pool.slots), device=device)
        self._seen = torch.zeros((), dtype=body.dtype, device=device)
        self._unseen = torch.full((), float("-inf"), dtype=body.dtype, device=device)
        self._logits = torch.zeros((MAX_ROWS, body.shape.vocabulary), dtype=torch.float32, device=device)
        self._best = torch.zeros(MAX_ROWS, dtype=torch.int32, device=device)
        self.best: Tensor | None = None

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
        own, *others = segments
        if select is not None or count > MAX_ROWS or not all(segment.padding for segment in others):
            return None
        if turns is not self._turns:  # another table lies elsewhere; recordings that read the old one are never used
            self._table += 1
            self._turns = turns
        rows = self._rows(count)
        look = view(own) if self.body.exact else View(own.visible)
        span, copies = span_bucket(own.span), copies_bucket(rows, look.copies.size // BLOCK)
        self._inbox.send(rows, span, copies, tokens, positions, slots, own, look, self.body.pool.slots)
        self._replay(rows, span, copies)()
        self.best = self._best[:count]
        return self._logits[:count].clone()  # the next round writes there

    def _rows(self, count: int) -> int:
        rows = rows_bucket(count)
        return min(rows_for(rows), MAX_ROWS) if self._pads else rows

    def _replay(self, rows: int, span: int, copies: int) -> Program:
        key = (self._table, rows, span, copies)
        replay = self._replays.get(key)
        if replay is None:
            program = self._program(rows, span, copies)
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

    def _program(self, rows: int, span: int, copies: int) -> Program:
        """What one round of that shape does, reading nothing but device memory that stays where it is."""
        body, pool, inbox, turns = self.body, self.body.pool, self._inbox, self._turns
        assert turns is not None
        scale = body.shape.width**-0.5

        def program() -> None:
            ids, places, where, base, copied, order, sees = inbox.unpack(rows, span, copies)
            mask = torch.where(sees, self._seen, self._unseen)
            window = (self._offsets[:span] + base).clamp_(max=pool.slots - 1)
            if copies:
                window = torch.cat([window, copied])

            def look(layer: int, queries: Tensor) -> Tensor:
                keys, values = pool.gather(layer, window)
                seen = self.attention(
                    queries.transpose(0, 1), keys, values, mask, scale, order=order if copies else None
                )
                return seen.transpose(0, 1).reshape(rows, -1)

            x = body.layers(ids, turns.index_select(0, places), where, look)
            self._logits[:rows].copy_(body.logits(x))
            self._best[:rows].copy_(self._logits[:rows, : self._vocabulary].argmax(-1))

        return program


def attend_as_eager(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float, order: Tensor | None = None
) -> Tensor:
    """On a CPU blocks are added one after the other, whichever a row sees of them."""
    return attend(query, keys, values, mask, scale)
