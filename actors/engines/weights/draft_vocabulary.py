"""Draft models with an output layer (head) for a part of the vocabulary. A head of 150,000 tokens takes most of a small
model's step. A tenth of the tokens make nearly all of a text (FR-Spec, arXiv 2502.14856).

The checkpoint format is EAGLE-3's (arXiv 2503.01840), as vLLM and SGLang read it: ``draft_vocab_size`` N in
config.json, ``lm_head.weight`` (N, hidden), and ``d2t`` int64 (N,), which is added to a token's index in the head to
get its id. The embedding has the whole vocabulary, and ids outside the engines are always the target's.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from protocols.errors import ModelError

FIELD = "draft_vocab_size"


@dataclass(frozen=True, slots=True)
class DraftVocabulary:
    """The tokens that a head covers."""

    ids: NDArray[np.int64]  # (n,), ascending, so that of equal logits the lower id comes first
    whole: int  # size of the whole vocabulary

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def places(self) -> NDArray[np.int64]:
        """int64 ``(whole,)``: the index of each token in the head; -1: it is not covered."""
        places = np.full(self.whole, -1, dtype=np.int64)
        places[self.ids] = np.arange(len(self.ids))
        return places

    def spread(self, logits: Tensor) -> Tensor:
        """Logits ``(rows, n)`` as logits ``(rows, whole)``, with -inf for tokens that are not covered."""
        wide = logits.new_full((len(logits), self.whole), -torch.inf)
        return wide.index_copy_(1, torch.from_numpy(self.ids).to(logits.device), logits)


def head_size(config: Any) -> int:
    """How many tokens the head of a model with that configuration covers."""
    whole = int(config.get_text_config().vocab_size)
    size = getattr(config, FIELD, None)
    return size if isinstance(size, int) and 0 < size < whole else whole


def check_config(name: str, config: Any) -> None:
    """Raise ModelError for a ``draft_vocab_size`` that is not a size."""
    size, whole = getattr(config, FIELD, None), int(config.get_text_config().vocab_size)
    if size is not None and not (isinstance(size, int) and 0 < size <= whole):
        raise ModelError(
            f"config.json of model {name} has {FIELD} {size!r}, which is no number from 1 to its vocab_size {whole}"
        )


def refuse_as_target(name: str, config: Any) -> None:
    """Raise ModelError for a model with a head for a part of its vocabulary."""
    size, whole = head_size(config), int(config.get_text_config().vocab_size)
    if size < whole:
        raise ModelError(
            f"the output layer of {name} covers {size} of its {whole} tokens, so it can draft and not be a target; "
            "choose a whole model as the target"
        )


def model_class(config: Any) -> Any:
    """The class of causal language models in transformers for that configuration, with a head of a part."""
    from transformers import AutoModelForCausalLM

    return _with_part_head(AutoModelForCausalLM._model_mapping[type(config)])


@functools.cache
def _with_part_head(base: Any) -> Any:
    class PartHead(base):  # type: ignore[misc]
        """Loads and saves in the checkpoint format above."""

        def __init__(self, config: Any) -> None:
            config.tie_word_embeddings = False
            super().__init__(config)
            size = head_size(config)
            head = self.get_output_embeddings()
            self.set_output_embeddings(nn.Linear(head.in_features, size, bias=head.bias is not None))
            self.register_buffer("d2t", torch.zeros(size, dtype=torch.int64))

    PartHead.__name__, PartHead.__qualname__ = base.__name__, base.__qualname__  # what is saved as its architecture
    return PartHead


def put_in_order(name: str, model: nn.Module) -> None:
    """Sort the rows of a head that was just loaded by token id. Raises ModelError if its ``d2t`` is invalid."""
    whole: Any = model
    ids, vocabulary = _ids(whole), int(whole.config.get_text_config().vocab_size)
    named: set[int] = set(ids.tolist())
    if min(named) < 0 or max(named) >= vocabulary or len(named) < len(ids):
        raise ModelError(
            f"the map d2t of model {name} names a token twice or one outside its {vocabulary}; its entries are target "
            "id minus place, as EAGLE-3's"
        )
    order = ids.argsort()
    _set_ids(whole, ids[order])
    for weight in whole.get_output_embeddings().parameters():
        weight.data = weight.data[order]


def draft_vocabulary(model: nn.Module) -> DraftVocabulary | None:
    """The tokens that a model's head covers; None: the whole vocabulary."""
    whole: Any = model
    if not hasattr(whole, "d2t"):
        return None
    return DraftVocabulary(_ids(whole).cpu().numpy(), int(whole.config.get_text_config().vocab_size))


def columns_of(model: nn.Module) -> Tensor:
    """int64 ``(vocabulary,)`` on the model's device: the column of the logits for each token; -1: there is none."""
    whole: Any = model
    covered = draft_vocabulary(model)
    if covered is None:
        return torch.arange(int(whole.config.get_text_config().vocab_size), device=whole.device)
    return torch.from_numpy(covered.places).to(whole.device)


def with_part_head(model: nn.Module, ids: NDArray[np.int64]) -> nn.Module:
    """A copy of a model on the CPU with a head for ``ids`` alone, which ascend."""
    old: Any = model
    config = type(old.config).from_dict({**old.config.to_dict(), FIELD: len(ids)})
    new = model_class(config)._from_config(config, dtype=old.dtype)
    chosen = torch.from_numpy(ids)
    mine = new.state_dict()
    new.load_state_dict(
        {name: w for name, w in old.state_dict().items() if name in mine and mine[name].shape == w.shape}, strict=False
    )
    head, theirs = new.get_output_embeddings(), old.get_output_embeddings()
    with torch.no_grad():
        head.weight.copy_(theirs.weight.cpu()[chosen])
        if head.bias is not None:
            head.bias.copy_(theirs.bias.cpu()[chosen])
    _set_ids(new, chosen)
    part: nn.Module = new.train(old.training)
    return part


def with_whole_head(model: nn.Module) -> nn.Module:
    """The model for programs that do not know ``d2t``: with a head of all tokens, in which the uncovered ones
    have the lowest logits. It is changed in place."""
    part: Any = model
    covered = draft_vocabulary(model)
    if covered is None:
        return model
    old, ids = part.get_output_embeddings(), torch.from_numpy(covered.ids).to(part.device)
    head = nn.Linear(old.in_features, covered.whole, device=part.device, dtype=part.dtype).requires_grad_(False)
    head.weight.zero_()
    head.weight[ids] = old.weight
    head.bias.fill_(torch.finfo(part.dtype).min / 8)  # not -inf, which a program may multiply by 0
    head.bias[ids] = 0 if old.bias is None else old.bias
    part.set_output_embeddings(head)
    del part.d2t
    return model


def _ids(model: Any) -> Tensor:
    ids: Tensor = model.d2t + torch.arange(len(model.d2t), device=model.d2t.device)
    return ids


def _set_ids(model: Any, ids: Tensor) -> None:
    model.d2t.copy_(ids - torch.arange(len(ids), device=ids.device))
