"""Puts an actor together from its settings: model, calibration, network. The commands call these and nothing else.

torch is imported here, lazily, and only in the processes that compute.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import socket
import time
from typing import TYPE_CHECKING

from actors.actor import default_actor_id, incarnation, own_cpus, pin, run_actor
from actors.settings import (
    ControllerSettings,
    DraftEngine,
    DrafterSettings,
    SecuritySettings,
    VerifierSettings,
    retrieves,
)
from protocols import wire
from protocols.messages import Hello, Role
from protocols.security import load_security
from protocols.zeromq import ZmqNetwork

if TYPE_CHECKING:
    from actors.engines.interface import DraftModel, ModelInfo
    from actors.speculation.retrieving import Sources

log = logging.getLogger("duoactor")
MOST_THREADS = 16
CLOCK = time.monotonic  # uvloop's own counts whole milliseconds: too coarse for waits of one or two
INLINE_US = 50_000.0  # a CPU forward this short runs in the event loop: handing it to a thread costs more than it hides


def _network(settings: SecuritySettings) -> ZmqNetwork:
    secured = settings.key or settings.server_key or settings.allow
    return ZmqNetwork(load_security(settings.key, settings.server_key, settings.allow) if secured else None)


def _sources(settings: VerifierSettings, info: ModelInfo) -> Sources:
    """What the verifier retrieves from. ConfigError or ModelError in one sentence."""
    from actors.proposers.datastore import Datastore
    from actors.speculation.retrieving import Sources

    if not settings.datastore:
        return Sources()
    store = Datastore.open(settings.datastore, info.tokenizer_digest)
    log.info("datastore %s: %d tokens of %d documents", settings.datastore, store.meta.tokens, store.meta.documents)
    return Sources(store)


def run_verifier(settings: VerifierSettings) -> int:
    """Load the target, measure it, serve until a signal. Returns the process's exit code."""

    async def main(stop: asyncio.Event) -> None:
        from actors.calibrating import measure_target
        from actors.compute import InlineCompute, ThreadCompute
        from actors.engines.build import build_target
        from actors.speculation.costs import CostModel
        from actors.verifier import Verifier

        network = _network(settings)
        compute = ThreadCompute()
        try:
            listener = network.listen(settings.bind)  # before the model: an address in use is known at once
            # After the network: its own thread may write to sockets on another core while this one computes.
            pin(settings.cpus)
            threads = settings.threads or min(MOST_THREADS, own_cpus())
            model, codec = await compute.start(
                lambda: build_target(settings.target, settings.device, settings.dtype, settings.kv_tokens, threads)
            )
            sources = _sources(settings, model.info)
            cost = CostModel(await compute.start(lambda: measure_target(model)))
            serving = compute if model.info.device != "cpu" or cost(8) > INLINE_US else InlineCompute()
            verifier = Verifier(
                settings, model, codec, cost, listener, serving, incarnation(), clock=CLOCK, sources=sources
            )
            gc.freeze()
            log.info(
                "verifier ready at %s: %s, %s on %s, %.1f ms for a token, %.1f ms for 8 at once",
                verifier.address,
                model.info.model_id,
                model.info.dtype,
                model.info.device,
                cost(1) / 1000,
                cost(8) / 1000,
            )
            await verifier.run(stop)
        finally:
            compute.close()
            network.close()

    return run_actor(main)


def _draft(settings: DrafterSettings) -> DraftModel:
    if retrieves(settings.draft):
        from actors.proposers.draft_model import build_proposer_draft

        return build_proposer_draft(settings.draft)
    from actors.engines.build import build_draft

    return build_draft(
        settings.draft,
        settings.device,
        settings.dtype,
        settings.kv_tokens,
        settings.threads,
        settings.engine == DraftEngine.ONNX,
    )


def run_drafter(settings: DrafterSettings) -> int:
    """Load the draft model, measure it, draft until a signal or until drained."""

    async def main(stop: asyncio.Event) -> None:
        from actors.calibrating import measure_draft
        from actors.drafter import Drafter

        pin(settings.cpus)
        network = _network(settings)
        try:
            model = _draft(settings)
            steps = measure_draft(model)
            info = model.info
            hello = Hello(
                Role.DRAFTER,
                settings.actor_id or default_actor_id("drafter"),
                incarnation(),
                wire.PROTOCOL,
                info.model_id,
                info.vocab_size,
                info.tokenizer_digest,
                info.max_context,
                socket.gethostname(),
                os.getpid(),
                steps[min(steps)],
            )
            gc.freeze()
            log.info("drafter %s ready: %s, %.2f ms a step", hello.actor_id, info.model_id, steps[min(steps)] / 1000)
            await Drafter(model, network, settings.connect, hello, steps, clock=CLOCK).run(stop)
        finally:
            network.close()

    return run_actor(main)


def run_controller(settings: ControllerSettings) -> int:
    """Adapt budgets until a signal."""

    async def main(stop: asyncio.Event) -> None:
        from actors.controller import Controller

        pin(settings.cpus)
        network = _network(settings)
        try:
            hello = Hello(
                Role.CONTROLLER,
                settings.actor_id,
                incarnation(),
                wire.PROTOCOL,
                host=socket.gethostname(),
                pid=os.getpid(),
            )
            await Controller(network, settings.connect, hello).run(stop)
        finally:
            network.close()

    return run_actor(main)
