"""The target of a replay: timed as a verifier times it, on the CPUs that ``duoactor up`` would give it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from actors.models import DEFAULT_NODES, Window, sample_tokens
from actors.replay.measured import Beside
from duoactor.config import resolve_model
from duoactor.launch.cores import assign_cores
from protocols.messages import Sampling

if TYPE_CHECKING:
    from actors.models import TargetModel

TEXT = 512  # tokens after which a text of :class:`Rounds` begins anew


@dataclass(frozen=True, slots=True)
class TimedTarget:
    """Microseconds of a forward by rows: ``lent_us`` with the CPUs that a resting drafter leaves, if that helps.
    ``branch``: see :class:`actors.cost.CostModel`. ``beside`` computes what a replay's rounds would."""

    device: str
    branches: bool
    forward_us: Mapping[int, float]
    lent_us: Mapping[int, float] | None
    branch: float
    beside: Beside


def timed_target(name: str, device: str, cpus: Sequence[int]) -> TimedTarget:
    """Beside one drafter of one thread."""
    from actors.engines.build import build_target
    from actors.verifier.timing import measure_branch, measure_lent, measure_target

    cores = assign_cores(cpus, [1])
    spare = [cpu for own in cores.drafters for cpu in own]
    threads = max(1, len(cores.verifier))
    target, _ = build_target(resolve_model(name, "target"), device, "auto", 0, threads, spare)
    forward_us = measure_target(target)
    branch, lent_us = measure_branch(target), measure_lent(target, forward_us)
    return TimedTarget(target.info.device, target.branches, forward_us, lent_us, branch, Rounds(target))


class Rounds:
    """Rounds of a text that nobody reads."""

    def __init__(self, target: TargetModel) -> None:
        self._target = target
        self._handle, self._left = -1, 0
        self._prompt = 16  # tokens

    def begin(self, tokens: int) -> None:
        self._prompt, self._left = tokens, 0

    def __call__(self, rows: int) -> None:
        nodes = min(rows - 1, DEFAULT_NODES, self._target.max_window)
        if self._left <= rows:
            self._begin()
        tokens = sample_tokens(nodes, self._target.info.vocab_size)
        self._left -= len(self._target.verify([Window(self._handle, tokens, range(-1, nodes - 1))])[0].tokens)

    def use_spare_cpus(self, used: bool) -> None:
        self._target.use_spare_cpus(used)

    def _begin(self) -> None:
        target = self._target
        if self._handle >= 0:
            target.close(self._handle)
        prompt = sample_tokens(min(self._prompt, target.info.max_context // 2), target.info.vocab_size)
        self._left = min(TEXT, target.info.max_context - len(prompt))
        self._handle = target.open(prompt, Sampling(max_tokens=self._left, ignore_eos=True))
        while target.prefill(self._handle) is None:
            pass
        self._left -= 1
