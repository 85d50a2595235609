"""Heads with random weights in their published layouts, and texts that a target and a head follow together."""

from __future__ import annotations

import random

import torch
from torch.nn import functional

from actors.engines.heads.draft import HeadDraft
from actors.engines.heads.engine import HeadEngine
from actors.engines.targets.selfcheck import ROWS
from actors.engines.targets.target import Target
from actors.models import Leaf, Window
from tests.engines.tiny import VOCAB, info

HIDDEN = 64


def some(*shape, seed=0, scale=0.3):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed * 1000 + sum(shape))) * scale


def eagle3_weights(
    prefix="midlayer", hidden=HIDDEN, head_vocab=40, taps=3, embedding=False, heads=4, kv=2, width=16, read=HIDDEN
):
    """A head in SafeAILab's layout, or with the prefix ``layers.0`` in speculators'. ``read``: width of the states."""
    weights = {
        "fc.weight": some(hidden, taps * read, seed=1),
        f"{prefix}.input_layernorm.weight": 1 + some(hidden, seed=2),
        f"{prefix}.hidden_norm.weight": 1 + some(hidden, seed=3),
        f"{prefix}.self_attn.q_proj.weight": some(heads * width, 2 * hidden, seed=4),
        f"{prefix}.self_attn.k_proj.weight": some(kv * width, 2 * hidden, seed=5),
        f"{prefix}.self_attn.v_proj.weight": some(kv * width, 2 * hidden, seed=6),
        f"{prefix}.self_attn.o_proj.weight": some(hidden, heads * width, seed=7),
        f"{prefix}.post_attention_layernorm.weight": 1 + some(hidden, seed=8),
        f"{prefix}.mlp.gate_proj.weight": some(96, hidden, seed=9),
        f"{prefix}.mlp.up_proj.weight": some(96, hidden, seed=10),
        f"{prefix}.mlp.down_proj.weight": some(hidden, 96, seed=11),
        "norm.weight": 1 + some(hidden, seed=12),
        "lm_head.weight": some(head_vocab, hidden, seed=13, scale=0.5),
    }
    if head_vocab < VOCAB:
        ids = torch.randperm(VOCAB, generator=torch.Generator().manual_seed(7))[:head_vocab].sort().values
        weights["d2t"] = ids - torch.arange(head_vocab)
        weights["t2d"] = torch.zeros(VOCAB, dtype=torch.bool).index_fill_(0, ids, True)
    if embedding:
        weights["embed_tokens.weight"] = some(VOCAB, hidden, seed=14)
    return weights


EAGLE3 = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_hidden_layers": 1,
    "rms_norm_eps": 1e-5,
    "rope_theta": 5000.0,
    "max_position_embeddings": 512,
    "vocab_size": VOCAB,
    "draft_vocab_size": 40,
}
SPECULATORS = {
    "architectures": ["Eagle3Speculator"],
    "speculators_model_type": "eagle3",
    "transformer_layer_config": {
        key: EAGLE3[key] for key in EAGLE3 if key not in ("architectures", "draft_vocab_size")
    },
    "draft_vocab_size": 40,
}


def rms(x, weight, eps=1e-5):
    return functional.rms_norm(x, weight.shape, weight, eps)


def eagle3_reference(weights, embedded, tapped, drafted, norm_before_residual=False, recycles_normed=False,
                     norms_logits=True, prefix="midlayer", theta=5000.0):  # fmt: skip
    """The logits behind the last token, by the published forward over the whole text.

    ``embedded`` (tokens, hidden): of every token but the first; ``tapped``: the target's states of every token but the
    last ``1 + drafted``. A state that it has not given is the head's own for the token before."""
    states, rows = list(tapped @ weights["fc.weight"].T), len(embedded)
    for last in range(rows - drafted, rows + 1):
        inputs = torch.stack(states[:last])
        e = rms(embedded[:last], weights[f"{prefix}.input_layernorm.weight"])
        r = rms(inputs, weights[f"{prefix}.hidden_norm.weight"])
        both = torch.cat([e, r], 1)
        q, k, v = ((both @ weights[f"{prefix}.self_attn.{n}_proj.weight"].T).view(last, -1, 16) for n in "qkv")
        angles = torch.arange(last)[:, None] / theta ** (torch.arange(0, 16, 2) / 16)
        cos, sin = (torch.cat([part, part], 1)[:, None] for part in (angles.cos(), angles.sin()))

        def turn(x):
            return x * cos + torch.cat([-x[..., 8:], x[..., :8]], -1) * sin  # noqa: B023

        seen = functional.scaled_dot_product_attention(
            turn(q).transpose(0, 1),
            turn(k).repeat_interleave(2, 1).transpose(0, 1),
            v.repeat_interleave(2, 1).transpose(0, 1),
            is_causal=True,
        )
        residual = r if norm_before_residual else inputs
        y = residual + seen.transpose(0, 1).reshape(last, -1) @ weights[f"{prefix}.self_attn.o_proj.weight"].T
        x = rms(y, weights[f"{prefix}.post_attention_layernorm.weight"])
        gate, up = (x @ weights[f"{prefix}.mlp.{n}_proj.weight"].T for n in ("gate", "up"))
        y = y + (functional.silu(gate) * up) @ weights[f"{prefix}.mlp.down_proj.weight"].T
        normed = rms(y, weights["norm.weight"])
        states.append((normed if recycles_normed else y)[-1])
        logits = (normed if norms_logits else y)[-1] @ weights["lm_head.weight"].T
    if "d2t" in weights:
        ids = weights["d2t"] + torch.arange(len(weights["d2t"]))
        logits = torch.full((VOCAB,), -torch.inf).index_put_((ids,), logits)
    return logits


class Pair:
    """A target and a head that drafts for it, with the text that both have."""

    def __init__(self, target: Target, model, head_of):
        """``head_of``: makes the head, given the trunk."""
        self.target, self.model = target, model
        trunk = target.engine.trunk()
        self.head = head_of(trunk)
        self.draft = HeadDraft(HeadEngine(self.head, trunk, info(model), 4096), target.keep_states(self.head.taps))

    def begin(self, prompt, sampling, generated=(), mirror=None):
        """A request: its handles and its text. ``mirror``: one that an ended request has left."""
        handle = self.target.open(prompt, sampling, generated)
        while (outcome := self.target.prefill(handle)) is None:
            pass
        text = [*prompt, *generated, *outcome.tokens]
        if mirror is None:
            mirror = self.draft.open(text, len(prompt), sampling)
        else:
            self.draft.reopen(mirror, text, len(prompt), sampling)
        self.draft.follow(mirror, handle)
        return handle, mirror, text

    def tapped(self, text):
        """The target's states of a text, by transformers' own forward."""
        with torch.inference_mode():
            found = self.model(torch.tensor([text]), output_hidden_states=True).hidden_states
        return found

    def rounds(self, handle, mirror, text, count, chance=None):
        """Grow a small tree, verify it, and go on, ``count`` times. Yields (text, path, expansion) of every node."""
        chance = chance or random.Random(0)
        for _ in range(count):
            [top] = self.draft.expand([Leaf(mirror, text[-1], (), is_root=True)])
            yield text, [], top
            nodes, parents, slots, paths = [], [], [], []
            for rank in range(2):
                nodes.append(top.tokens[rank])
                parents.append(-1)
            first = self.draft.expand([Leaf(mirror, token, ()) for token in nodes])
            for token, found in zip(list(nodes), first, strict=True):
                slots.append(found.slot)
                paths.append([token])
                yield text, [token], found
            truth = self.truth(text, 2)
            if chance.random() < 0.6:  # the target's own tokens, so that some are accepted
                found = self.draft.expand([Leaf(mirror, truth[0], ())])
                found += self.draft.expand([Leaf(mirror, truth[1], (found[0].slot,))])
                nodes += truth
                parents += [-1, len(nodes) - 2]
                for path, one in zip(([truth[0]], truth), found, strict=True):
                    slots.append(one.slot)
                    yield text, path, one
            [outcome] = self.target.verify([Window(handle, nodes, parents)])
            where = [slots[node] for node in outcome.path] + [-1]
            self.draft.commit(mirror, outcome.tokens, where)
            self.draft.release(mirror, slots)
            text = [*text, *outcome.tokens]

    def truth(self, text, count):
        out = list(text)
        with torch.inference_mode():
            for _ in range(count):
                out.append(int(self.model(torch.tensor([out])).logits[0, -1].argmax()))
        return out[len(text) :]


def fused(model, rings=0):
    from actors.engines.decoder.cpu.engine import CompiledEngine

    return Target(CompiledEngine(model, info(model), 2048, rings=rings), rows_agree=ROWS)


def by_torch(model):
    from actors.engines.decoder.gpu.engine import GpuEngine

    return Target(GpuEngine(model, info(model), 2048, plain=True), rows_agree=ROWS)


def ringed(model):
    target = fused(model, 4)
    assert target.engine.recurrence is not None
    return target
