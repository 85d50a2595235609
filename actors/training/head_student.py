"""An EAGLE-3 head in training: its layer over several tokens of a round, its first weights, its directory."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import LlamaConfig

from actors.engines.compute.layer import Layers, Residual
from actors.engines.compute.rows import BatchRows
from actors.engines.decoder.spec import Attention
from actors.engines.heads.layer import HeadOps, divided, in_layers, plain_layers, read_layers, write_keys

STEPS = 3  # tokens of a round that it is trained to draft one after the other


class HeadStudent(nn.Module):
    """A head in training, its parameters by the names of SafeAILab's layout."""

    def __init__(self, config: LlamaConfig, embedding: Tensor, ids: Tensor) -> None:
        super().__init__()
        width, self.config, whole = config.hidden_size, config, config.num_attention_heads * config.head_dim
        self.fc = nn.Linear(embedding.shape[1] * 3, width, bias=False)
        sizes = {"q": whole, "k": config.num_key_value_heads * config.head_dim}
        parts = {f"{name}_proj": nn.Linear(2 * width, sizes.get(name, sizes["k"]), bias=False) for name in "qkv"}
        inner = config.intermediate_size
        self.midlayer = nn.ModuleDict(
            {
                "self_attn": nn.ModuleDict({**parts, "o_proj": nn.Linear(whole, width, bias=False)}),
                "mlp": nn.ModuleDict(
                    {
                        "gate_proj": nn.Linear(width, inner, bias=False),
                        "up_proj": nn.Linear(width, inner, bias=False),
                        "down_proj": nn.Linear(inner, width, bias=False),
                    }
                ),
                **{
                    name: nn.RMSNorm(width, config.rms_norm_eps)
                    for name in ("input_layernorm", "hidden_norm", "post_attention_layernorm")
                },
            }
        )
        self.norm = nn.RMSNorm(width, config.rms_norm_eps)
        self.lm_head = nn.Linear(width, len(ids), bias=False).requires_grad_(False)
        self.d2t = nn.Buffer(ids - torch.arange(len(ids)))
        self.embedding = nn.Buffer(embedding, persistent=False)
        self._spec = plain_layers(config.to_dict(), {})

    @property
    def device(self) -> torch.device:
        return self.embedding.device

    def get_input_embeddings(self) -> None:
        """The target's, which is not trained."""

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    def forward(self, tokens: Tensor, states: Tensor, kept: int, mask: Tensor, depth: int = STEPS) -> Tensor:
        """Logits ``(depth, n, columns)`` at the n positions of the ``mask`` over the ``kept`` last ones."""
        embedded, read = self.embedding[tokens[:, 1:]], self.fc(states[:, :-1])
        own = {in_layers(name): parameter for name, parameter in self.named_parameters()}
        layers = Layers(self._spec, read_layers(self._spec, own), HeadOps(self._spec.norm, read.dtype, 0))
        length = read.shape[1]
        sight, places = _RoundSight(len(tokens), length), torch.arange(length, device=tokens.device)
        rows = min(length, kept + depth - 1)  # others are read in the first step, and have keys there alone
        keys = sight.add_step(self._spec.attention, read)
        if length > rows:
            both = self._inputs(embedded[:, :-rows], read[:, :-rows])
            write_keys(layers, 0, divided(layers.layers[0])[1], both, sight.rows(places[:-rows], keys))
        found: list[Tensor] = []
        for step in range(depth):
            embedded, read = embedded[:, -rows:], read[:, -rows:]
            if step:
                keys = sight.add_step(self._spec.attention, read)
            given = Residual(read.flatten(0, 1), self._inputs(embedded, read))
            made = layers.run(0, given, None, sight.rows(places[-rows:], keys))[0].view_as(read)
            found.append(made[:, -kept:][mask])
            read = torch.cat([read[:, :1], made[:, :-1]], 1)
        return torch.as_tensor(self.lm_head(self.norm(torch.stack(found))))

    def _inputs(self, embedded: Tensor, read: Tensor) -> Tensor:
        layer: Any = self.midlayer
        return torch.cat([layer["input_layernorm"](embedded), layer["hidden_norm"](read)], -1).flatten(0, 1)


class _StepKeys(NamedTuple):
    """Keys and values of one step: see :class:`actors.engines.compute.rows.LayerKeys`."""

    keys: list[Tensor]
    values: list[Tensor]


class _RoundSight:
    """What the rows of texts see in rounds of several steps: a :class:`~actors.engines.compute.rows.SlotSight`."""

    def __init__(self, texts: int, length: int) -> None:
        """``length``: of each text."""
        self._texts, self._length, self._steps = texts, length, list[_StepKeys]()

    def add_step(self, attention: Attention, read: Tensor) -> _StepKeys:
        """Room for the keys of rows that read such states."""
        shape = attention.kv_heads, self._texts * read.shape[1], attention.width
        self._steps.append(_StepKeys([read.new_zeros(shape)], [read.new_zeros(shape)]))
        return self._steps[-1]

    def rows(self, places: Tensor, keys: _StepKeys) -> BatchRows:
        """The rows of all texts at some places; ``keys`` has room for the last ones of each text."""
        own = keys.keys[0].shape[1] // self._texts
        slots = torch.arange(self._texts, device=places.device)[:, None] * own + places - (self._length - own)
        positions = places.repeat(self._texts) + 1  # the first token is read through the second's state
        return BatchRows(positions, positions, keys, slots.flatten(), self)

    def __call__(self, place: int, attention: Attention, queries: Tensor, sinks: Tensor | None) -> Tensor:
        group, width = attention.heads // attention.kv_heads, attention.width

        def apart(part: Tensor) -> Tensor:
            return part.view(len(part), self._texts, -1, width).transpose(0, 1).repeat_interleave(group, 1)

        seen = [[apart(part) for [part] in step] for step in self._steps]
        split = queries.view(self._texts, -1, attention.heads, width).transpose(1, 2)
        return _attended(split, seen).flatten(0, 1)


def _attended(queries: Tensor, seen: Sequence[Sequence[Tensor]]) -> Tensor:
    """Attention of the latest step's last rows: to the first step's keys up to as many places back as there are steps
    after it, and to one key of each step since."""
    scale, last = queries.shape[3] ** -0.5, len(seen) - 1
    keys, values = seen[0]
    rows = keys.shape[2]
    places = torch.arange(rows, device=queries.device)
    hidden = places[None] > (places[-queries.shape[2] :, None] - last).clamp_min(0)
    scores = [(queries @ keys.transpose(2, 3) * scale).masked_fill(hidden, -torch.inf)]
    near = [[_later(part, last - step) for part in seen[step]] for step in range(1, last + 1)]
    scores += [(queries * key).sum(-1, keepdim=True) * scale for key, _ in near]
    weights = torch.cat(scores, -1).softmax(-1, dtype=torch.float32).to(values.dtype)
    out = weights[..., :rows] @ values
    for place, (_, value) in enumerate(near):
        out = out + weights[..., rows + place : rows + place + 1] * value
    return out.transpose(1, 2).flatten(2)


def _later(x: Tensor, places: int) -> Tensor:
    """Each row what was ``places`` rows before it."""
    return x if places == 0 else torch.cat([x[:, :, :places], x[:, :, :-places]], 2)


def first_head(target: nn.Module, ids: NDArray[np.int64]) -> HeadStudent:
    """The head before it learns anything: the target's last layer over its deepest states."""
    whole: Any = target
    text = whole.config.get_text_config()
    head = new_head(text, whole.get_input_embeddings().weight.detach().float(), ids)
    width = text.hidden_size
    with torch.no_grad():
        head.fc.weight.mul_(0.1)
        head.fc.weight[:, -width:] += torch.eye(width)
        head.lm_head.weight.copy_(whole.get_output_embeddings().weight[torch.from_numpy(ids)].float())
        last = next((one for name, one in whole.named_modules() if name.endswith("model.norm")), None)
        if last is not None and last.weight.shape == head.norm.weight.shape:
            head.norm.weight.copy_(last.weight.float())
    return head


def new_head(text: Any, embedding: Tensor, ids: NDArray[np.int64]) -> HeadStudent:
    """With random weights. ``text``: the target's configuration."""
    rope = dict(getattr(text, "rope_parameters", None) or {})
    heads = int(text.num_attention_heads)
    config = LlamaConfig(
        hidden_size=text.hidden_size,
        intermediate_size=2 * text.hidden_size,
        num_attention_heads=heads,
        num_key_value_heads=heads,  # the token itself is read through its value alone
        head_dim=getattr(text, "head_dim", None) or text.hidden_size // heads,
        num_hidden_layers=1,
        rms_norm_eps=getattr(text, "rms_norm_eps", 1e-5),
        rope_parameters={"rope_type": "default", "rope_theta": rope.get("rope_theta", 1e4)},
        max_position_embeddings=text.max_position_embeddings,
        vocab_size=text.vocab_size,
        tie_word_embeddings=False,
    )
    config.draft_vocab_size = len(ids)
    head = HeadStudent(config, embedding, torch.from_numpy(ids))
    with torch.no_grad():
        for parameter in head.parameters():
            if parameter.ndim == 2:
                nn.init.normal_(parameter, std=text.hidden_size**-0.5)
    return head


def save_head(head: HeadStudent, out: Path, target: str) -> None:
    """In SafeAILab's layout."""
    out.mkdir(parents=True, exist_ok=True)
    ids = head.d2t.cpu() + torch.arange(len(head.d2t))
    covered = torch.zeros(head.config.vocab_size, dtype=torch.bool).index_fill_(0, ids, True)
    weights = {name: tensor.to("cpu", torch.bfloat16).contiguous() for name, tensor in head.named_parameters()}
    save_file({**weights, "d2t": head.d2t.cpu(), "t2d": covered}, out / "model.safetensors")
    named = {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "target": Path(target).name}
    config = head.config.to_dict() | named | {"torch_dtype": "bfloat16"}
    (out / "config.json").write_text(json.dumps(config, indent=2, default=str))
