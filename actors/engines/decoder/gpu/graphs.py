"""Decode rounds and pieces of prompts of static shapes, each recorded once as a CUDA graph and replayed.

A round of few rows is hundreds of small kernels, and a CPU takes longer to launch them than a GPU to run them. A graph
launches them all at once, but freezes whatever is not in device memory: so everything that changes from round to round
(tokens, positions, slots, where the requests lie, what each row sees) is packed into one buffer and copied over in one
transfer, and the program of a round reads that buffer and nothing else. The likeliest token of every row is found on
the way, so that a greedy round hands back a few bytes.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from actors.engines.decoder.gpu.gathered import Gathered
from actors.engines.decoder.gpu.in_place import in_place
from actors.engines.decoder.gpu.round_buffer import MAX_ROWS, Layout, RoundBuffer, RoundShape, power_bucket
from actors.engines.decoder.torch.attention import MAX_ROUND as MAX_WINDOW
from actors.engines.decoder.torch.body import TorchBody
from actors.engines.flat_batch import FlatBatch
from actors.engines.weights.layers import rows_for

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

    def __init__(
        self, body: TorchBody, recorder: Recorder, vocabulary: int, pads: bool, layout: Layout | None = None
    ) -> None:
        """``pads``: row counts are rounded up further, to counts with rows added up alike on a CPU. ``layout``:
        None: in place where that works, gathered elsewhere."""
        self.body = body
        self.layout: Layout = layout or (in_place(body) if body.device.type == "cuda" else None) or Gathered(body)
        self._recorder = recorder
        self._vocabulary = vocabulary
        self._pads = pads
        self._turns: Tensor | None = None
        self._table = 0  # counts them
        # by table, shape and whether it is a prompt's; the latest used last. Never empty again: a memory pool lives as
        # long as its graphs
        self._replays: OrderedDict[tuple[int, RoundShape, bool], Program] = OrderedDict()
        device = body.device
        self._buffer = RoundBuffer(self.layout.bytes, device)
        self._logits = torch.zeros((MAX_ROWS, body.shape.vocabulary), dtype=torch.float32, device=device)
        self._best = torch.zeros(MAX_ROWS, dtype=torch.int32, device=device)
        self.best: Tensor | None = None
        self._tapped = torch.zeros((MAX_ROWS, 0), dtype=body.dtype, device=device)
        self.tapped: Tensor | None = None  # of the last round; None: it was no graph's

    @torch.inference_mode()
    def tap(self, turns: Tensor) -> None:
        """The body keeps states from now on: rounds are recorded anew."""
        width = len(self.body.taps) * self.body.shape.hidden
        self._tapped = self._tapped.new_zeros(MAX_ROWS, width)
        self._table += 1
        self.record_ahead(turns)

    @torch.inference_mode()
    def record_ahead(self, turns: Tensor) -> None:
        """Record the usual rounds, so that none of them has to wait for it. ``turns``: see :meth:`forward`."""
        self._read(turns)
        if self.layout.usual:
            log.info("recording rounds as CUDA graphs; a first start compiles their kernels, which takes longer")
        for shape in self.layout.usual:
            self._replay(shape)
            if shape.rows in self.layout.prompt_rows:
                self._replay(shape, in_prompt=True)

    def __len__(self) -> int:
        return len(self._replays)

    @torch.inference_mode()
    def forward(self, batch: FlatBatch, select: Sequence[int] | None, turns: Tensor) -> Tensor | None:
        """float32 logits of a batch's rows, or of the last row of a piece of a prompt. None if that is nothing for a
        graph: then it runs as usual.

        ``turns``: the table of rotations by position. Segments that only fill the batch up are not computed: their
        rows get logits that mean nothing.
        """
        self.best = self.tapped = None
        count = len(batch.tokens)
        own = [segment for segment in batch.segments if not segment.padding]
        in_prompt = len(own) == 1 and own[0].prompt and select == [count - 1]
        if in_prompt:
            rows = next((rows for rows in self.layout.prompt_rows if rows >= count), 0)
        elif select is not None or any(one.prompt or one.rows > MAX_WINDOW for one in own):
            return None
        else:
            rows = self._rows(count) if count <= (MAX_ROWS if len(own) > 1 else MAX_WINDOW) else 0
        plan = self.layout.plan(rows, own) if rows else None
        if plan is None:
            return None
        self._read(turns)
        used = sum(segment.rows for segment in own)
        self._buffer.send(plan, batch.tokens[:used], batch.positions[:used], batch.slots[:used], self.body.pool.slots)
        self._replay(plan.shape, in_prompt)()
        self.tapped = self._tapped[:count]
        if in_prompt:
            return self._logits[count - 1 : count].clone()
        self.best = self._best[:count]
        return self._logits[:count].clone()  # the next round writes there

    def _read(self, turns: Tensor) -> None:
        if turns is not self._turns:  # another table lies elsewhere; recordings that read the old one are never used
            self._table += 1
            self._turns = turns

    def _rows(self, count: int) -> int:
        rows = power_bucket(count)
        return min(rows_for(rows), MAX_ROWS) if self._pads else rows

    def _replay(self, shape: RoundShape, in_prompt: bool = False) -> Program:
        key = (self._table, shape, in_prompt)
        replay = self._replays.get(key)
        if replay is None:
            program = self._program(shape, in_prompt)
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

    def _program(self, shape: RoundShape, in_prompt: bool) -> Program:
        """A round of a shape, reading nothing but device memory that stays where it is."""
        body, turns = self.body, self._turns
        assert turns is not None

        def program() -> None:
            sent = self._buffer.unpack(shape)
            look = self.layout.look(shape, sent.told)
            x = body.layers(sent.tokens, turns.index_select(0, sent.positions), sent.slots, look, in_prompt)
            if body.taps:
                self._tapped[: shape.rows].copy_(body.tapped())
            self._logits[: shape.rows].copy_(body.logits(x))
            self._best[: shape.rows].copy_(self._logits[: shape.rows, : self._vocabulary].argmax(-1))

        return program
