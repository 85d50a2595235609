"""Decode rounds and pieces of prompts of static shapes, each recorded once as a CUDA graph and replayed.

A round of few rows is hundreds of small kernels, and a CPU takes longer to launch them than a GPU to run them. A graph
launches them all at once, but freezes whatever is not in device memory: so everything that changes from round to round
is packed into one buffer and copied in one transfer (tokens, positions, slots, places of requests, visible slots of
each row). A round's program reads only this buffer. The likeliest token of every row is found on the way, so that a
greedy round hands back a few bytes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from actors.engines.compute.layer import Program as Layers
from actors.engines.compute.rows import BatchRows
from actors.engines.decoder.gpu.in_place import MAX_ROWS, PROMPT_ROWS, InPlace
from actors.engines.decoder.gpu.round_buffer import NO_STATES, RoundBuffer
from actors.engines.decoder.torch.attention import MAX_ROUND as MAX_WINDOW
from actors.engines.flat_batch import FlatBatch
from actors.engines.sampling.sampler import likeliest

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

    def __init__(self, body: Layers, recorder: Recorder, vocabulary: int, layout: InPlace) -> None:
        self.body, self.layout = body, layout
        self._recorder, self._recurrence = recorder, body.recurrence
        # records that recurrent layers have room for in what is recorded
        self._places = 0 if body.recurrence is None else body.recurrence.memory.count
        self._prompts = not body.spec.experts  # the host sends many rows to their experts
        self._vocabulary = vocabulary
        self._replays: dict[tuple[int, bool], Program] = {}  # programs by rows and whether they are a prompt's
        device = body.pool.device
        states = 0 if self._recurrence is None else 4 * sum(self._recurrence.words(MAX_ROWS))
        self._buffer = RoundBuffer(self.layout.bytes + states, device)
        self._logits = torch.zeros((MAX_ROWS, body.weights.vocabulary), dtype=torch.float32, device=device)
        self._best = torch.zeros(MAX_ROWS, dtype=torch.int32, device=device)
        self.best: Tensor | None = None
        self._tapped = torch.zeros((MAX_ROWS, 0), dtype=body.pool.dtype, device=device)
        self.tapped: Tensor | None = None  # states of the last round; None: it was no graph's

    @torch.inference_mode()
    def tap(self) -> None:
        """The body keeps states from now on: rounds are recorded anew."""
        self._tapped = self._tapped.new_zeros(MAX_ROWS, len(self.body.taps) * self.body.spec.hidden)
        old, self._replays = self._replays, {}
        self.record_ahead()
        old.clear()  # only now: their memory pool lives as long as one of its graphs

    @torch.inference_mode()
    def record_ahead(self) -> None:
        """Record all rounds, so that none of them has to wait for it."""
        log.info("recording rounds as CUDA graphs; a first start compiles their kernels, which takes longer")
        self._buffer.clear()  # recording them runs them
        for power in range(MAX_ROWS.bit_length()):
            self._replay(1 << power)
        for rows in PROMPT_ROWS if self._prompts else ():
            self._replay(rows, in_prompt=True)

    def __len__(self) -> int:
        return len(self._replays)

    @torch.inference_mode()
    def forward(self, batch: FlatBatch, select: Sequence[int] | None) -> Tensor | None:
        """float32 logits of a batch's rows, or of the last row of a piece of a prompt. None if that is nothing for a
        graph: then it runs as usual.

        Segments that only fill the batch up are not computed: their rows get logits that mean nothing.
        """
        self.best = self.tapped = None
        count = len(batch.tokens)
        own = [segment for segment in batch.segments if not segment.padding]
        in_prompt = len(own) == 1 and own[0].prompt and select == [count - 1]
        if in_prompt:
            rows = next((rows for rows in PROMPT_ROWS if rows >= count), 0) if self._prompts else 0
        elif select is not None or any(one.prompt or one.rows > MAX_WINDOW for one in own):
            return None
        else:
            rows = 1 << (count - 1).bit_length() if count <= (MAX_ROWS if len(own) > 1 else MAX_WINDOW) else 0
        plan = self.layout.plan(rows, own) if rows else None
        if plan is None:
            return None
        used, states, old = sum(segment.rows for segment in own), NO_STATES, {}
        if self._recurrence is not None:
            indices = self._recurrence.index(own)
            if not indices.fit(rows):
                return None
            if self._places != self._recurrence.memory.count:
                self._places = self._recurrence.memory.count
                old, self._replays = self._replays, {}
            states = self._recurrence.pack(indices, rows)
        tokens, positions, slots = (each[:used] for each in (batch.tokens, batch.positions, batch.slots))
        send = partial(self._buffer.send, plan, tokens, positions, slots, self.body.pool.slots)
        if (plan.rows, in_prompt) not in self._replays:
            send(np.zeros_like(states))  # recording it runs it, and states take in what is pending only once
            self._replay(plan.rows, in_prompt)
            old.clear()
        send(states)
        self._replay(plan.rows, in_prompt)()
        self.tapped = self._tapped[:count]
        if in_prompt:
            return self._logits[:1].clone()
        self.best = self._best[:count]
        return self._logits[:count].clone()  # the next round writes there

    def _replay(self, rows: int, in_prompt: bool = False) -> Program:
        key = (rows, in_prompt)
        replay = self._replays.get(key)
        if replay is None:
            program = self._program(rows, in_prompt)
            try:
                replay = self._recorder.capture(program)
            except RuntimeError as error:
                reason = str(error).partition("\n")[0]
                log.warning("decode rounds run without CUDA graphs, which is slower: capturing one failed (%s)", reason)
                self._recorder, replay = Direct(), program
            self._replays[key] = replay
        return replay

    def _program(self, rows: int, in_prompt: bool) -> Program:
        """A round of ``rows`` rows that reads only device memory at fixed addresses."""
        body, recurrence = self.body, self._recurrence
        words = 0 if recurrence is None else sum(recurrence.words(rows))

        def program() -> None:
            sent = self._buffer.unpack(rows, words)
            sight = self.layout.sight(rows, sent.told, body.ops)
            walk = None if recurrence is None else body.walk(recurrence.unpack(rows, sent.states))
            batch = BatchRows(sent.tokens, sent.positions, body.pool, sent.slots, sight, walk, in_prompt)
            x = body.run_layers(batch)
            if body.taps:
                self._tapped[:rows].copy_(body.tapped())
            if in_prompt:  # the head of its last row alone; there is none while it is recorded
                x = x.index_select(0, (self.layout.used(rows, sent.told) - 1).clamp(min=0))
            self._logits[: len(x)].copy_(body.logits(x))
            if not in_prompt:
                self._best[:rows].copy_(likeliest(self._logits[:rows, : self._vocabulary]))

        return program
