"""transformers' forward of a GGUF file with inputs rounded as the products of blocks round them: 32 numbers at a time,
each to 1/127 of the largest. It knows nothing of compiled code, and its products are torch's."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from actors.engines.build import _engine, _How
from actors.engines.decoder.cpu.engine import CompiledEngine
from actors.engines.flat_batch import FlatBatch, align, causal
from actors.engines.weights.formats import GROUP
from actors.engines.weights.gguf_loading import open_gguf
from actors.engines.weights.loading import load_for_engine, load_model
from actors.engines.weights.source import own_name
from actors.models import ModelInfo

aten = torch.ops.aten
CPU = torch.device("cpu")
Order = Tensor | None


class Rounding(TorchDispatchMode):
    """Rounds what is multiplied with ``weights``: the address of each, and the order in which the file has its inputs,
    or None. ``chosen``: the experts of every choice; ``forced``: what is chosen instead."""

    def __init__(self, weights: dict[int, Order], forced: list[Tensor] | None = None) -> None:
        super().__init__()
        self._weights, self._forced = weights, forced
        self.chosen = list[Tensor]()
        self.met = set[int]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (aten.mm.default, aten.bmm.default, aten.linear.default):
            args = (self._rounded(args[0], args[1]), *args[1:])
        elif func in (aten.addmm.default, aten.baddbmm.default):
            args = (args[0], self._rounded(args[1], args[2]), *args[2:])
        found = func(*args, **(kwargs or {}))
        if func is aten.topk.default:
            if self._forced is not None:
                places = self._forced[len(self.chosen)]
                found = (args[0].gather(-1, places), places)
            self.chosen.append(found[1])
        return found

    def _rounded(self, x: Tensor, weight: Tensor) -> Tensor:
        place = weight.untyped_storage().data_ptr()
        if place not in self._weights:
            return x
        self.met.add(place)
        order = self._weights[place]
        groups = (x if order is None else x[..., order]).unflatten(-1, (-1, GROUP))
        largest = groups.abs().amax(-1, keepdim=True)
        codes = torch.where(largest > 0, (groups * (127 / largest)).round(), 0.0)
        rounded: Tensor = (codes * (largest / 127)).flatten(-2)
        return rounded if order is None else torch.empty_like(rounded).index_copy_(-1, order, rounded)


def both(file: str, texts: list[list[int]], forced: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """Logits ``(texts, tokens, vocabulary)`` of compiled layers, of transformers with inputs rounded, and of
    transformers as it is. ``forced``: where inputs are rounded the experts are those that are chosen without."""
    ours, names = _ours(file, texts)
    model: Any = load_model(file, CPU, torch.float32)
    ids = torch.tensor(texts)
    text = model.config.get_text_config()
    model.config._experts_implementation = text._experts_implementation = "eager"
    parameters = dict(model.named_parameters(remove_duplicate=False))
    weights = {parameters[own_name(n, parameters)].untyped_storage().data_ptr(): _order(file, n) for n in names}
    with torch.no_grad():
        with (plain := Rounding({})):
            exact = model(input_ids=ids, use_cache=False).logits.float()
        with Rounding(weights, plain.chosen if forced else None) as rounding:
            rounded = model(input_ids=ids, use_cache=False).logits.float()
    assert rounding.met
    return ours[..., : exact.shape[-1]], rounded[..., : ours.shape[-1]], exact[..., : ours.shape[-1]]


def _ours(file: str, texts: list[list[int]]) -> tuple[Tensor, set[str]]:
    """Logits, and the names of the weights that are multiplied as blocks."""
    model: Any = load_for_engine(file, CPU, torch.float32)
    source = model.source
    as_blocks, as_numbers, blocks, take = set[str](), set[str](), source.blocks, source.take

    def taken(name: str) -> Tensor:
        as_numbers.add(own_name(name, source._weights))
        tensor: Tensor = take(name)
        return tensor

    def found(name: str) -> Any:
        if (made := blocks(name)) is not None:
            as_blocks.add(own_name(name, source._weights))
        return made

    source.take, source.blocks = taken, found
    slots = align(len(texts[0]))
    engine = _engine(model, ModelInfo(file, 64, 512, frozenset({1}), "tiny"), 2048, _How(exact=True))
    assert type(engine) is CompiledEngine
    batch = FlatBatch()
    for number, ids in enumerate(texts):
        places, base = list(range(len(ids))), number * slots
        batch.add(base, ids, places, [base + place for place in places], causal(0, len(ids)))
    logits = engine.forward(batch).clone()
    return logits.view(len(texts), len(texts[0]), -1), as_blocks - as_numbers


def _order(file: str, name: str) -> Order:
    """Value heads of the same number, which share no keys, are side by side in a file, and not in transformers."""
    config = open_gguf(file).config
    if not name.endswith("linear_attn.out_proj.weight") or not config.get("tiled_value_heads"):
        return None
    heads = np.arange(config["linear_num_value_heads"]).reshape(-1, config["linear_num_key_heads"]).T.reshape(-1)
    width = config["linear_value_head_dim"]
    return torch.from_numpy(np.argsort((heads[:, None] * width + np.arange(width)).reshape(-1)))
