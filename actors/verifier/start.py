"""Starts the verifier from its settings: network, target, calibration, loop.

torch and the engines are imported inside functions: an address in use is reported before they load.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TYPE_CHECKING, cast

from actors.cost import CostModel
from actors.cpus import own_cpus
from actors.datastore import Datastore
from actors.doing import doing
from actors.draft_timing import check_draft, measure_draft, measuring, step_times
from actors.generations import promoted
from actors.kept import bounded_slots, forget, kept
from actors.models import DraftModel, ModelInfo, TargetModel
from actors.peer import introduction
from actors.preflight import differs
from actors.process import CLOCK, loading, named_cpus, open_network, pin, run_actor
from actors.request_log import RequestLog
from actors.settings import AUTO_DRAFT, MAX_THREADS, NO_DRAFT, VerifierSettings
from actors.target_timing import Timing, measure
from actors.verifier.compute import TURN_S, Compute, InlineCompute, ThreadCompute, runs_inline
from actors.verifier.context import Equipment
from actors.verifier.loop import Verifier
from actors.verifier.sources.head import HeadSource, OnThread
from actors.verifier.sources.inline import InlineDraft
from actors.verifier.sources.lookup import Library
from actors.verifier.sources.memory import Memory
from protocols.errors import ModelError
from protocols.messages import Role
from protocols.transport import Listener

if TYPE_CHECKING:
    from actors.engines.heads.draft import HeadDraft
    from actors.engines.targets.target import Target

log = logging.getLogger("duoactor")


def _library(settings: VerifierSettings, info: ModelInfo) -> Library:
    """The verifier's sources of retrieval. Raises ConfigError or ModelError."""
    memory = Memory(settings.memory, os.urandom(16)) if settings.memory else None
    recycles = info.device != "cpu"  # there, rows cost too much for it (docs/experiments/recycling.md)
    if not settings.datastore:
        return Library(memory=memory, recycles=recycles)
    store = Datastore.open(settings.datastore, info.tokenizer_digest)
    log.info("datastore %s: %d tokens of %d documents", settings.datastore, store.meta.tokens, store.meta.documents)
    return Library(store, memory, recycles)


def _calibrated(model: TargetModel) -> tuple[CostModel, Callable[[], None]]:
    """The cost of the target's forwards, measured or kept, and what makes the next start measure it again."""
    how = {
        "slots": bounded_slots(model.kv_slots),
        "threads": os.environ.get("OMP_NUM_THREADS"),
        "spare": model.has_spare_cpus,
    }

    def time_rounds() -> Timing:
        with doing("timing the target's rounds, the first time only"):
            return measure(model)

    found = kept(Timing, model.info, time_rounds, **how)  # rounds correct what has changed since
    return CostModel(found.alone_us, found.lent_us), lambda: forget(Timing, model.info, **how)


def _ready(model: Target, cost: CostModel, inline: InlineDraft | None) -> str:
    """The log line of a verifier that is ready: its target, and the times that were measured."""
    info = model.info
    parts = [
        f"{info.model_id}, {info.dtype} on {info.device}",
        f"{cost(1) / 1000:.1f} ms for a token, {cost(8) / 1000:.1f} ms for 8 at once",
    ]
    if cost.lends:
        parts.append(f"{cost.lent(1) / 1000:.1f} and {cost.lent(8) / 1000:.1f} ms while drafters rest")
    if inline is not None:
        what = "its head's drafts" if inline.name == "head" else "drafts of its own"
        parts.append(f"{what} {inline.steps(1) / 1000:.2f} ms a step")
    return f"{', '.join(parts)}; KV cache: {model.capacity()}"


def _inline_draft(settings: VerifierSettings, target: Target) -> InlineDraft | None:
    """The draft model that the verifier itself drafts with; None: it has none. Raises ModelError for one that cannot
    draft for the target."""
    from actors.engines.build import EngineOptions, build_draft
    from actors.engines.heads.kinds import configuration, kind_of

    if settings.inline_draft in ("", AUTO_DRAFT, NO_DRAFT):
        return None

    def build(name: str, like: ModelInfo | None = None) -> DraftModel:
        return build_draft(name, EngineOptions(kv_tokens=target.kv_slots), like, target)

    def rebuild(path: str) -> DraftModel:
        pin(settings.spare_cpus)  # only this thread: on the target's own CPUs, forwards would wait for it
        model = build(promoted(path) if path else settings.inline_draft, draft.info)
        check_draft(model)
        return model

    try:
        if kind_of(configuration(settings.inline_draft)):
            return None  # a head, which is :func:`head_of`'s
        draft, info = build(settings.inline_draft), target.info
        if (differ := differs(introduction(Role.DRAFTER, "inline", draft.info), info)) is not None:
            raise ModelError(differ)
        steps = measure_draft(draft)
    except ModelError as error:
        raise ModelError(f"no drafts between forwards: {error}") from None
    return InlineDraft(
        draft, steps, info.vocab_size, info.eos_token_ids, load=lambda path: asyncio.to_thread(rebuild, path)
    )


def head_of(
    settings: VerifierSettings, target: Target, thread: Executor | None, compute: Compute | None = None
) -> InlineDraft | None:
    """The head that the verifier drafts with: the one that is named, or the target's own; None: it has none.
    ``thread``: the one that computes it; None: any. ``compute``: what runs the target, where another head may take the
    place of this one. Raises ModelError for a head that cannot draft for the target."""
    from actors.engines.heads.build import another_head, head_for, named_head

    try:
        name, said = named_head(settings.inline_draft, settings.target)
    except ModelError:
        return None
    try:
        head = head_for(name, target, settings.target)
        times = measure_draft(head)
    except ModelError as error:
        raise ModelError(f"no drafts {said}: {error}") from None
    target.taps.exchange(None, head.states)
    log.info("drafts %s", said)

    def serving(model: DraftModel) -> DraftModel:
        return model if thread is None else cast("DraftModel", OnThread(model, thread))

    def another(name: str) -> HeadDraft:
        pin(settings.spare_cpus)  # only this thread
        return another_head(named_head(name, settings.target)[0], target, settings.target)

    async def load(name: str, old: DraftModel) -> tuple[DraftModel, dict[int, float]]:
        """Step by step between rounds, as far as it computes on what the target computes on."""
        assert compute is not None
        new = await asyncio.to_thread(another, name)
        times, steps = dict[int, list[float]](), measuring(new)
        while (found := await compute.start(lambda: next(steps, None))) is not None:
            times = found
        await compute.start(lambda: target.taps.exchange(cast("HeadDraft", old).states, new.states))
        return serving(new), step_times(times)

    known = target.info
    source = HeadSource(serving(head), times, known.vocab_size, known.eos_token_ids)
    if compute is not None:
        source.exchanges(settings.inline_draft or AUTO_DRAFT, load)
    return source


async def _load(
    settings: VerifierSettings,
    listener: Listener,
    compute: ThreadCompute,
    tokenizing: Compute,
    request_log: RequestLog | None,
) -> tuple[Verifier, str]:
    """The verifier, and the line that says that it is ready."""
    from actors.engines.build import EngineOptions, build_target, openmp_threads, use_openmp_threads

    pin(settings.cpus)  # after the network: its I/O thread stays free to run on another core
    threads = settings.threads or min(MAX_THREADS, own_cpus())
    spare = named_cpus(settings.spare_cpus)
    model, codec = await compute.start(
        lambda: build_target(
            settings.target,
            EngineOptions(settings.device, settings.dtype, settings.kv_tokens, threads, spare, settings.context),
            settings.tokenizer,
        )
    )
    library = _library(settings, model.info)
    cost, again = await compute.start(lambda: _calibrated(model))
    openmp = await compute.start(openmp_threads)  # threads of the thread that built the target
    use_openmp_threads(openmp)  # this thread's, which may compute too: others would want the cores of compiled layers
    serving = InlineCompute(TURN_S) if runs_inline(model.info.device, openmp, cost(8)) else compute
    bound = compute.pool if model.info.device == "cpu" and openmp > 1 else None
    inline, left_out = None, ""
    try:
        inline = await compute.start(lambda: head_of(settings, model, bound, serving))
        if inline is None and bound is None:  # else only the thread that built the target computes
            inline = _inline_draft(settings, model)
    except ModelError as error:
        left_out = str(error)
        log.warning("%s", left_out)
    equipment = Equipment(
        model, codec, cost, serving, tokenizing, library, inline, request_log, again, CLOCK, left_out=left_out
    )
    return Verifier(settings, equipment, listener), _ready(model, cost, inline)


def run_verifier(settings: VerifierSettings) -> int:
    """Load the target, measure it, serve until a signal. Returns the process's exit code."""

    async def main(stop: asyncio.Event) -> None:
        network = open_network(settings)
        compute, tokenizing = ThreadCompute(), ThreadCompute(gives_way=True)
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # else they compute on threads of their own
        request_log = RequestLog(settings.log_requests) if settings.log_requests else None
        try:
            listener = network.listen(settings.bind)  # before the model is loaded, to fail early on an address in use
            with loading():
                verifier, ready = await _load(settings, listener, compute, tokenizing, request_log)
            log.info("ready at %s: %s", verifier.listener.address, ready)
            verifier.admission.grammars.warm_up()
            await verifier.run(stop)
        finally:
            compute.close()
            tokenizing.close()
            network.close()
            if request_log is not None:
                request_log.close()

    return run_actor(main)
