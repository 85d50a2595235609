"""Builds a TargetModel or a DraftModel from a model's name: chooses its engine, its type and the size of its pool."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from actors.doing import doing
from actors.engines.cache.kv_cache import fits, full_request, longest_text
from actors.engines.cache.memory import (
    DRAFT_SHARE,
    GPU_SHARE,
    MAX_REQUESTS,
    MIN_TOKENS,
    STATE_SHARE,
    PoolMemory,
    available_bytes,
    gigabytes,
    kept_bytes,
    kv_slots,
    state_room,
)
from actors.engines.decoder.configuration import compiled_spec, described
from actors.engines.decoder.cpu.engine import CompiledEngine, own_team
from actors.engines.decoder.cpu.rings import kv_shapes, ring_slots
from actors.engines.decoder.cpu.streams import FusedRecurrence
from actors.engines.decoder.families import Undescribed
from actors.engines.decoder.gpu.engine import GpuEngine, recorded_bytes
from actors.engines.decoder.weight_shapes import largest_format
from actors.engines.drafts.draft import Draft
from actors.engines.drafts.recurrent import draft_on
from actors.engines.heads.kinds import configuration, kind_of
from actors.engines.targets.selfcheck import Agreement, check_finite, self_check
from actors.engines.targets.target import LARGEST, Target
from actors.engines.text.tokenizer import TokenizerCodec
from actors.engines.weights.draft_vocabulary import refuse_as_target
from actors.engines.weights.dtypes import AUTO, INT8, draft_dtype, target_dtype
from actors.engines.weights.loading import (
    checkpoint_of,
    describe,
    load_for_engine,
    longest_context,
    max_context,
    resolve_device,
    serving_tokenizer,
    vocab_size,
)
from actors.engines.weights.stored import StoredModel
from actors.kept import bounded_slots, kept
from actors.models import ModelInfo
from protocols.errors import ConfigError, ModelError

log = logging.getLogger("duoactor")
MAX_RINGS = 4 * MAX_REQUESTS  # rings of open requests, mostly shorter, and of texts kept for later prompts


def _rings(model: nn.Module, max_context: int) -> int:
    """How many texts there is room for whose layers with windows keep no more than those; 0: they keep whole texts."""
    parameter = next(model.parameters())
    spec = compiled_spec(model.config, parameter.device, parameter.dtype)
    if spec is None:
        return 0
    size = ring_slots(spec, max_context) * kv_shapes(spec, True)[1].slot_bytes(parameter.dtype)
    rings = min(MAX_RINGS, state_room(size, parameter.device)) if size else 0
    return rings if rings > 1 else 0


def _slots(asked: int, model: nn.Module, full_request: int, share: float = 1.0, rings: int = 0) -> int:
    """Slots of the KV pool, see :func:`kv_slots`."""
    parameter, spec = next(model.parameters()), described(model.config)
    share *= STATE_SHARE if rings or spec.recurrent else 1.0
    # without any attention a slot takes no memory
    size = max(1, kv_shapes(spec, rings > 0)[0].slot_bytes(parameter.dtype))
    reserved = recorded_bytes(model.config, parameter.dtype) if parameter.device.type == "cuda" else 0
    stored = model.source.nbytes if isinstance(model, StoredModel) else 0  # weights that are not on the device yet

    def instead() -> str:
        if parameter.device.type == "cpu":
            return "a smaller model"
        loaded = 0 if stored else sum(each.nbytes for each in model.parameters())
        return what_fits(model.config, available_bytes(parameter.device) + loaded, stored or loaded)

    return kv_slots(asked, full_request, size, PoolMemory(parameter.device, share, reserved + stored, instead))


@contextlib.contextmanager
def _fitting(name: str, device: torch.device, model: nn.Module | None = None) -> Iterator[None]:
    """Raises ModelError where the weights do not fit the device: when they are loaded, or when an engine takes them,
    as ``model`` has them, out of their files."""
    free = available_bytes(device)
    try:
        yield
    except torch.OutOfMemoryError:
        tried = model.source.nbytes if isinstance(model, StoredModel) else 1 << 62
        fitting = what_fits(checkpoint_of(name).known_config(), free, tried)
        raise ModelError(
            f"the weights of {name} do not fit the memory of {device}: choose {fitting}, or put the target on the CPU "
            "and the draft on the GPU, with --device cpu --draft-device cuda"
        ) from None


def what_fits(config: Any, free: int, tried: int) -> str:
    """What to choose in place of weights of ``tried`` bytes, for ``free`` bytes of a GPU."""
    spec = described(config)
    kept = MIN_TOKENS * kv_shapes(spec, False)[0].slot_bytes(torch.bfloat16)
    room = min(int(GPU_SHARE * free) - kept - recorded_bytes(config, torch.bfloat16), tried - 1)
    if (found := largest_format(spec, room)) is None:
        return f"a smaller model: of this one no format fits the {gigabytes(free)} that are free"
    return f"it in {found[1]} ({gigabytes(found[0])} of the {gigabytes(free)} that are free), or a smaller model"


@dataclass(frozen=True, slots=True)
class _How:
    """How a model is computed. ``exact``: a row's bits must not depend on other rows. The last two are for compiled
    layers, see :class:`CompiledEngine`."""

    exact: bool
    int8: bool = False
    team: Any = None
    rings: int = 0


def _engine(model: nn.Module, info: ModelInfo, slots: int, how: _How) -> CompiledEngine | GpuEngine:
    """Compiled layers on a CPU, else the program in torch or Triton."""
    parameter = next(model.parameters())
    engine: CompiledEngine | GpuEngine
    if compiled_spec(model.config, parameter.device, parameter.dtype) is not None:
        engine = CompiledEngine(model, info, slots, how.team, how.int8, how.rings)
    else:
        engine = GpuEngine(model, info, slots, how.exact, plain=parameter.device.type == "cpu")
    if isinstance(model, StoredModel):
        model.let_go()
    if isinstance(engine.recurrence, FusedRecurrence):
        engine.recurrence.limit = state_room(engine.recurrence.stream_bytes, engine.device)
    return engine


def _named(kind: torch.dtype, int8: bool) -> str:
    """The type of a model's weights, as users know it."""
    return INT8 if int8 else str(kind).removeprefix("torch.")


def openmp_threads() -> int:
    """OpenMP threads that torch computes with in this process; 1 where compiled layers have a team of their own."""
    return torch.get_num_threads()


def use_openmp_threads(threads: int) -> None:
    """Set the calling thread's, from now on."""
    torch.set_num_threads(threads)


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """A model's device, type and memory."""

    device: str = "cpu"
    dtype: str = AUTO
    kv_tokens: int = 0  # slots of its pool; 0: as many as fit
    threads: int = 1
    spare_cpus: Sequence[int] = ()  # a target's, see :meth:`Engine.use_spare_cpus`
    context: int = 0  # a target's longest text; 0: see :func:`max_context`


def build_target(name: str, place: EngineOptions, tokenizer_of: str = "") -> tuple[Target, TokenizerCodec]:
    """The verifier's model and its tokenizer, or that of another model. Raises ModelError or ConfigError."""
    torch.set_num_threads(place.threads)
    where = resolve_device(place.device)
    config = checkpoint_of(name).known_config()
    refuse_as_target(name, config)
    _check_described(name, config)
    kind, int8 = target_dtype(place.dtype, where, config)
    tokenizer = serving_tokenizer(tokenizer_of or name)
    with _fitting(name, where):
        model = load_for_engine(name, where, kind, config)
    info = describe(name, model, tokenizer, where, _named(kind, int8), tokenizer_of or name)
    info = replace(info, max_context=max_context(model, place.context))
    _tell_factors(model, info, place.context)
    rings = _rings(model, info.max_context)
    slots = _slots(place.kv_tokens, model, full_request(info.max_context), rings=rings)
    info = replace(info, max_context=_within(slots, info.max_context, place))
    compiled = compiled_spec(model.config, where, kind) is not None
    own = own_team(place.spare_cpus) if compiled else None
    with _fitting(name, where, model):
        engine = _engine(model, info, slots, _How(True, int8, own, rings))
    engine.info = replace(info, reading=engine.reading())
    how = {
        "engine": type(engine).__name__,
        "config": described(config),
        "slots": bounded_slots(slots),
        "threads": place.threads,
    }
    try:
        check_finite(engine)
    except ModelError:
        checkpoint_of(name).check_undamaged(info.layers)  # names the tensor, if it is a file's fault
        raise

    def check() -> Agreement:
        with doing("checking which rounds give the same bits, the first time only"):
            return self_check(engine)

    agreement = kept(Agreement, info, check, **how)
    all_of_it = place.kv_tokens or where.type != "cpu"  # a pool of a size that was asked for may be full of kept texts
    most = math.inf if all_of_it else kept_bytes(engine.info.reading.read_bytes)
    return Target(engine, agreement=agreement, kept=most), TokenizerCodec(tokenizer)


def _within(slots: int, context: int, place: EngineOptions) -> int:
    """The longest text that a pool has room for, ``context`` at most: a request without a limit asks for all of it.
    Raises ConfigError if a longer one was asked for."""
    if fits(slots, context):
        return context
    most = longest_text(slots, LARGEST)
    if place.context:
        raise ConfigError(
            f"a context of {context:,} tokens does not fit a KV pool of {slots:,}; ask for a --context of at most "
            f"{most}, or for more --kv-tokens"
        )
    served = most if place.kv_tokens else _steady(most)
    log.warning(
        "texts have at most %d of the model's %d tokens: the KV pool has room for %d (--kv-tokens, --context)",
        served,
        context,
        most,
    )
    return served


def _steady(tokens: int) -> int:
    """The largest of 1024, 1536, 2048, 3072, ... tokens that is not above: each start finds a little more or less
    memory free, and a stream goes on after a restart only where the context is the same."""
    step = 1 << max(0, tokens.bit_length() - 2)
    return tokens // step * step


def _check_described(name: str, config: Any) -> None:
    """Raise ModelError, with the reason, for a model that no description says."""
    try:
        described(config)
    except Undescribed as error:
        raise ModelError(
            f"{name} cannot run here: {error} (config.json); choose a model of the Llama, Qwen, Mistral, Gemma or Phi "
            "families, or another that docs/families.md names"
        ) from None


def _tell_factors(model: nn.Module, info: ModelInfo, asked: int) -> None:
    """Say how long texts may be where that chooses how all texts are turned."""
    edge, served, longest = described(model.config).edge, info.max_context, longest_context(model)
    if 0 < edge < served:
        log.warning(
            "a context of %d tokens turns short texts too by the factors for long ones (LongRoPE); --context %d keeps "
            "those of the first training",
            served,
            edge,
        )
    elif served == edge < longest and not asked:
        log.warning(
            "texts have at most %d tokens, as in the first training; a longer --context, up to %d, also changes the "
            "text of short ones (LongRoPE)",
            edge,
            longest,
        )


def build_draft(name: str, place: EngineOptions, like: ModelInfo | None = None, target: Target | None = None) -> Draft:
    """The drafter's model. Raises ModelError or ConfigError.

    ``like``: a draft model of which these are other weights. Its tokenizer is not read again, since that takes as long
    as everything else, and holds the interpreter's lock meanwhile. ``target``: one on the same thread: the
    draft uses its compute threads as well.
    """
    if head := kind_of(configuration(name)):
        raise ModelError(
            f"{name} is a head ({head}), which reads its target's states: name it to the verifier, by `duoactor up "
            "--draft` or `duoactor verifier --inline-draft`, or give a drafter its target, by --target"
        )
    torch.set_num_threads(place.threads)
    where = resolve_device(place.device)
    config = checkpoint_of(name).known_config()
    _check_described(name, config)
    kind, int8 = draft_dtype(place.dtype, where, config)
    checkpoint_of(name).check_undamaged(int(config.get_text_config().num_hidden_layers))
    with _fitting(name, where):
        model = load_for_engine(name, where, kind, config)
    if like is None:
        info = describe(name, model, serving_tokenizer(name), where, _named(kind, int8))
    else:
        info = replace(like, vocab_size=vocab_size(model), max_context=max_context(model))
    slots = _slots(place.kv_tokens if target is None else 0, model, Draft.full_request(info.max_context), DRAFT_SHARE)
    if target is not None and place.kv_tokens:
        slots = min(slots, place.kv_tokens)
    other = None if target is None else target.engine
    shared = other.team if isinstance(other, CompiledEngine) else None
    with _fitting(name, where, model):
        engine = _engine(model, info, slots, _How(False, int8, shared))
    return draft_on(engine)
