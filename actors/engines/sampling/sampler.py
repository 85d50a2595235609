"""The target's token, row by row: a grammar's mask, bias, penalties, temperature, top_k, top_p, min_p, noise, argmax.

That order is transformers' and vLLM's. Penalties depend on the text, so each row of a window is penalised along its own
path. Every step gives a row the same bits whatever rows are beside it, because a speculated token must equal the
plainly decoded one. So no choice depends on the order in which a sort leaves equal values: ties with the last token
kept are kept as well, and argmax takes the lowest id of equal values.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actors.engines.decoder.cpu.compiler import compiled_kernels
from actors.engines.decoder.cpu.records import CHOICE
from actors.engines.decoder.gpu.kernel_check import checked
from actors.engines.engine import Choice, Picks
from actors.engines.sampling.noise import gumbel_of
from actors.engines.sampling.tally import Tally
from actors.models import RANKED, Ranked
from actors.noise import Keys, keys
from protocols.messages import Sampling, TokenLogprobs

log = logging.getLogger("duoactor.engines")
Chooser = Callable[[Tensor, list[Keys], list[float]], Tensor]  # takes rows, their keys and factors
UNFILTERED = (0, 1.0, 0.0)  # top_k, top_p and min_p that remove nothing
LEAST = 16  # vocabulary that compiled kernels need: a vector of ids
NO_TOKEN = -1  # token of a row whose logits are not finite
_FIRST_SORTED = 128  # likeliest tokens that top_p looks at first; it seldom needs more
_BITS = 2 ** torch.arange(8, dtype=torch.uint8)


class SamplerState:
    """One request's sampling: its parameters, and a tally of its tokens if penalties need one."""

    __slots__ = ("_bias", "choice", "greedy", "penalised", "plain", "sampling", "tally")

    def __init__(self, sampling: Sampling, prompt: Sequence[int], generated: Sequence[int] = ()) -> None:
        """``sampling`` has passed :func:`protocols.validation.validate`."""
        s = self.sampling = sampling
        self.greedy = s.temperature == 0
        counts = s.repetition_penalty != 1 or s.presence_penalty != 0 or s.frequency_penalty != 0
        self.penalised = counts or bool(s.logit_bias)  # logits are changed before a token is chosen
        self.plain = self.greedy and not self.penalised  # the token is the argmax of the logits
        self.tally = Tally(prompt) if counts else None
        self.choice = (  # see :data:`actors.engines.engine.Choice`
            *(s.seed % 2**64, 0.0 if self.greedy else 1.0 / s.temperature, s.top_k, s.top_p),
            math.log(s.min_p) if s.min_p else -math.inf,
        )
        self._bias: tuple[Tensor, Tensor] | None = None  # ids and values, on the logits' device
        self.append(generated)

    def append(self, tokens: Sequence[int]) -> None:
        """``tokens`` were committed to the output."""
        if self.tally is not None:
            for token in tokens:
                self.tally.add(token)

    def penalise(self, logits: Tensor, paths: Sequence[Sequence[int]]) -> Tensor:
        """Logits ``(rows, vocabulary)`` after bias and penalties. Row i's text is the committed one and ``paths[i]``.

        The bias comes first, as in vLLM. The repetition penalty counts prompt and output, as in transformers; presence
        and frequency penalties count the output, as in OpenAI's API. Returns ``logits`` itself if there are none.
        """
        s = self.sampling
        if s.logit_bias:
            logits = self._biased(logits)
        if self.tally is None:
            return logits
        ids, counts, seen = self.tally.along(paths)
        where = torch.from_numpy(ids).to(logits.device)
        count = torch.from_numpy(counts).to(logits.device)
        values = logits[:, where]
        if s.repetition_penalty != 1:
            factor = s.repetition_penalty
            repeated = torch.where(values < 0, values * factor, values / factor)
            values = torch.where(torch.from_numpy(seen).to(logits.device), repeated, values)
        values = values - s.frequency_penalty * count - s.presence_penalty * (count > 0)
        return logits.index_copy(1, where, values)

    def _biased(self, logits: Tensor) -> Tensor:
        if self._bias is None or self._bias[0].device != logits.device:
            ids, numbers = zip(*self.sampling.logit_bias, strict=True)
            self._bias = (torch.tensor(ids, device=logits.device), torch.tensor(numbers, device=logits.device))
        where, values = self._bias
        return logits.index_copy(1, where, logits[:, where] + values.to(logits.dtype))


def filtered(scaled: Tensor, top_k: int, top_p: float, min_p: float) -> Tensor:
    """Set ``scaled`` ``(rows, vocabulary)``, logits over the temperature, to -inf where a filter removes a token. It is
    changed in place and returned."""
    if 0 < top_k < scaled.shape[1]:
        least = scaled.topk(top_k).values[:, -1:]
        scaled.masked_fill_(scaled < least, -math.inf)
    if top_p < 1:
        probs = scaled.softmax(-1)
        scaled.masked_fill_(probs < nucleus(probs, top_p), -math.inf)
    if min_p > 0:
        least = scaled.amax(-1, keepdim=True) + math.log(min_p)
        scaled.masked_fill_(scaled < least, -math.inf)
    return scaled


def nucleus(probs: Tensor, top_p: float) -> Tensor:
    """The least probability ``(rows, 1)`` in the smallest set of likeliest tokens with a sum of ``top_p``."""
    size = min(_FIRST_SORTED, probs.shape[1])
    while True:
        ranked = probs.topk(size).values
        before = ranked.double().cumsum(-1) - ranked  # float64, so that sums are equal to the last bit for any size
        kept = (before < top_p).sum(-1, keepdim=True).clamp_(min=1)  # none is less where one is not a number
        if size == probs.shape[1] or int(kept.max()) < size:
            return ranked.gather(1, (kept - 1).clamp(min=0))  # none is kept of a row with NaN
        size = min(4 * size, probs.shape[1])


def masked(logits: Tensor, masks: NDArray[np.int32]) -> Tensor:
    """A copy of ``logits`` ``(rows, vocabulary)`` with -inf where the bit mask ``(rows, words)`` has no bit. The logits
    themselves stay, because log-probabilities are reported of the unmasked ones."""
    octets = torch.from_numpy(masks.view(np.uint8)).to(logits.device).unsqueeze(-1)
    allowed = (octets & _BITS.to(logits.device)).flatten(1) != 0
    return logits.masked_fill(~allowed[:, : logits.shape[1]], -math.inf)


@dataclass(slots=True)
class Rows:
    """Consecutive rows of a flat batch that belong to one request."""

    state: SamplerState
    positions: list[int]  # positions of the tokens to be sampled
    paths: list[list[int]]  # each row's tokens after the root, up to its own; only filled where it is penalised
    masks: NDArray[np.int32] | None = None  # (rows, words): see :class:`actors.models.Constraint`


def sample(logits: Tensor, groups: Sequence[Rows], best: Tensor | None = None) -> list[list[int]]:
    """The sampled tokens of each group, with one transfer to the host.

    ``logits``: float32 ``(rows, vocabulary)``, those of all groups in order, and perhaps padding rows after them.
    ``best``: :func:`likeliest` of each row, if it is known already. Rows with NaN or infinity may give ``NO_TOKEN``."""
    if all(group.state.plain and group.masks is None for group in groups):
        flat: list[int] = (likeliest(logits) if best is None else best).tolist()
    elif (host := for_kernels(logits)) is not None:
        flat = _choose_compiled(logits, host, groups)
    else:
        flat = _choose_together(logits, groups)
    return _by_group(flat, groups)


def likeliest(logits: Tensor) -> Tensor:
    """int64 ``(rows,)``: the argmax of each row; ``NO_TOKEN`` where that is NaN or infinite."""
    largest, ids = logits.max(-1)
    return torch.where(largest < math.inf, ids, NO_TOKEN)


def choices_of(groups: Sequence[Rows]) -> list[Choice]:
    """The ``choices`` of :meth:`actors.engines.engine.Engine.pick` for rows that are neither penalised nor masked."""
    return [(position, *group.state.choice) for group in groups for position in group.positions]


def picked(picks: Picks, groups: Sequence[Rows]) -> list[list[int]]:
    """The sampled tokens of each group, where the engine's compiled code has chosen them."""
    flat: list[int] = picks.ids[:, 0].tolist()
    return _by_group(flat if min(flat) >= 0 else _completed(flat, picks.logits, groups), groups)


def _by_group(flat: list[int], groups: Sequence[Rows]) -> list[list[int]]:
    """The rows' tokens by group, without those of padding rows."""
    out: list[list[int]] = []
    start = 0
    for group in groups:
        out.append(flat[start : start + len(group.positions)])
        start += len(group.positions)
    return out


def _parts(logits: Tensor, groups: Sequence[Rows]) -> Iterator[tuple[Rows, Tensor]]:
    """Each group with the logits of its rows, masked."""
    start = 0
    for group in groups:
        own = logits[start : start + len(group.positions)]
        yield group, own if group.masks is None else masked(own, group.masks)
        start += len(group.positions)


def _choose_together(logits: Tensor, groups: Sequence[Rows]) -> list[int]:
    """Choose by torch, with one pass for each combination of filters among the groups: on a GPU a pass for each group
    would be some forty kernel launches. A row's noise is drawn by its position."""
    alike: dict[tuple[int, float, float] | None, list[tuple[int, Rows, Tensor]]] = {}
    first = 0
    for group, own in _parts(logits, groups):
        s = group.state.sampling
        filters = None if group.state.greedy else (s.top_k, s.top_p, s.min_p)
        alike.setdefault(filters, []).append((first, group, group.state.penalise(own, group.paths)))
        first += len(own)
    chosen: list[Tensor] = []
    places: list[int] = []
    for filters, members in alike.items():
        rows = torch.cat([own for _, _, own in members])
        places += [place for first, group, _ in members for place in range(first, first + len(group.positions))]
        if filters is not None:
            each = [(group.state.sampling, position) for _, group, _ in members for position in group.positions]
            keyed, heats = [keys(s.seed, position) for s, position in each], [1.0 / s.temperature for s, _ in each]
            if filters != UNFILTERED:
                rows, heats = filtered(rows.mul_(_column(heats, rows.device)), *filters), [1.0] * len(heats)
            chosen.append((noisy_choice(rows.device) or _choose_by_torch)(rows, keyed, heats))
        else:
            chosen.append(likeliest(rows))
    tokens = torch.cat(chosen).tolist()
    return [token for _, token in sorted(zip(places, tokens, strict=True))]


def _column(numbers: list[float], device: torch.device) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float32)[:, None].to(device, non_blocking=True)


def _choose_by_torch(rows: Tensor, keyed: list[Keys], heats: list[float]) -> Tensor:
    scaled = rows.mul_(_column(heats, rows.device))
    return likeliest(scaled.add_(gumbel_of(keyed, rows.shape[1], rows.device)))


@cache
def noisy_choice(device: torch.device) -> Chooser | None:
    """:func:`_choose_by_torch` in two launches of a GPU, so that its bits are those of every row there; None: Triton is
    not there, or computes something else. The first call compiles it."""
    if device.type != "cuda":
        return None
    try:
        from actors.engines.decoder.gpu.triton_kernels import choice
    except ImportError:
        return None
    by_triton: Chooser = partial(_choose_in_launches, choice.choose)
    made: Chooser | str = checked(lambda: by_triton, partial(_difference, device), 1e-9)
    if not isinstance(made, str):
        return made
    log.warning("tokens are sampled by torch's kernels, which is slower: Triton's failed (%s)", made)
    return None


def _choose_in_launches(
    choose: Callable[[Tensor, Tensor], Tensor], rows: Tensor, keyed: list[Keys], heats: list[float]
) -> Tensor:
    told = np.array(keyed, np.uint32).view(np.int32), np.array(heats, np.float32).view(np.int32)[:, None]
    return choose(rows, torch.from_numpy(np.hstack(told)).to(rows.device, non_blocking=True))


def _difference(device: torch.device, choose: Chooser) -> float:
    """The part of rows in which ``choose`` does not choose what torch does."""
    rows = torch.randn(8, 3000, generator=torch.Generator().manual_seed(0)).to(device)
    rows[7, 5] = math.nan
    given = [keys(row, row) for row in range(8)], [0.5 + row / 8 for row in range(8)]
    return float((choose(rows, *given) != _choose_by_torch(rows, *given)).float().mean())


def for_kernels(logits: Tensor) -> NDArray[np.float32] | None:
    """The logits as an array if compiled kernels can choose and rank tokens from it, else None. torch and numpy take as
    long for that as a small model's layers."""
    if not logits.is_cpu or logits.dtype != torch.float32 or compiled_kernels() is None:
        return None
    host: NDArray[np.float32] = logits.numpy()
    return host if host.shape[1] >= LEAST and host.strides[1] == host.itemsize else None


def _choose_compiled(logits: Tensor, host: NDArray[np.float32], groups: Sequence[Rows]) -> list[int]:
    """The tokens that :func:`_choose_together` would choose, in a thirtieth of the time. ``host``: ``logits`` as an
    array. See :mod:`actors.engines.decoder.cpu.choice`."""
    kernels = compiled_kernels()
    assert kernels is not None

    def choose(host: NDArray[np.float32], groups: Sequence[Rows]) -> list[int]:
        table = np.array(choices_of(groups), dtype=CHOICE)
        tokens = np.empty(len(table), np.int64)
        kernels.choose_rows(table, host, tokens)
        return tokens.tolist()

    if any(group.state.penalised or group.masks is not None for group in groups):
        flat = []
        for group, own in _parts(logits, groups):
            flat += choose(group.state.penalise(own, group.paths).numpy(), [group])
    else:
        flat = choose(host, groups)
    return _completed(flat, logits, groups)


def _completed(flat: list[int], logits: Tensor, groups: Sequence[Rows]) -> list[int]:
    """Choose with torch in the rows where compiled code could not tell (-1)."""
    if min(flat) < 0:
        each = ((group, own[i : i + 1], i) for group, own in _parts(logits, groups) for i in range(len(own)))
        for place, (group, own, i) in enumerate(each):
            if flat[place] < 0:
                one = Rows(group.state, group.positions[i : i + 1], group.paths[i : i + 1])
                [flat[place]] = _choose_together(own, [one])
    return flat


def ranked(logits: Tensor) -> Callable[[], Ranked]:
    """The likeliest tokens of each row of ``logits`` ``(rows, vocabulary)``. A GPU begins now; the result waits."""
    count = min(RANKED, logits.shape[1])
    values, ids = logits.topk(count)
    both = torch.cat([ids.int(), values.float().view(torch.int32)], 1)  # one transfer

    def wait() -> Ranked:
        numbers = both.cpu().numpy()
        return Ranked([*numbers[:, :count].astype(np.int64)], [*numbers[:, count:].view(np.float32)])

    return wait


def logprobs(logits: Tensor, chosen: Sequence[int], top: int) -> list[TokenLogprobs]:
    """Natural-log probabilities of raw logits ``(rows, vocabulary)``: those of the chosen token of each row and of its
    ``top`` likeliest tokens."""
    lp = logits.log_softmax(-1).clamp(-1e9, 0.0)  # the limits of LogProbability: an excluded token has -inf
    own = lp.gather(1, torch.tensor(chosen, device=lp.device).view(-1, 1)).flatten().tolist()
    if top <= 0:
        return [TokenLogprobs(value) for value in own]
    best = lp.topk(min(top, lp.shape[1]))
    out = []
    for value, ids, values in zip(own, best.indices.tolist(), best.values.tolist(), strict=True):
        ranked = sorted(zip(ids, values, strict=True), key=lambda pair: (-pair[1], pair[0]))
        out.append(TokenLogprobs(value, tuple(i for i, _ in ranked), tuple(v for _, v in ranked)))
    return out
