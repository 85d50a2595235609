"""DFlash drafters propose what the published forward does: one pass, every place of a block by itself."""

import pytest
import torch
from torch.nn import functional

from actors.engines.heads.block import BlockDraft, BlockEngine, Dflash, convention_of
from actors.engines.sampling.noise import gumbel
from actors.models import Leaf, Window
from protocols.errors import ModelError
from protocols.messages import Sampling
from tests.engines.heads.published import HIDDEN, Pair, fused, generic, rms, some
from tests.engines.heads.test_eagle3 import assert_proposes
from tests.engines.mirrored_texts import some_prompt
from tests.engines.tiny import VOCAB, info, make

GREEDY = Sampling(max_tokens=64)
LAYERS, BLOCK, MASK = 2, 5, 3
CONFIG = {
    "architectures": ["DFlashDraftModel"],
    "model_type": "qwen3",
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-5,
    "rope_theta": 5000.0,
    "max_position_embeddings": 512,
    "block_size": BLOCK,
    "dflash_config": {"mask_token_id": MASK, "target_layer_ids": [0, 1]},
}
SLIDING = CONFIG | {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 12}


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def weights():
    found = {"fc.weight": some(HIDDEN, 2 * HIDDEN, seed=1), "hidden_norm.weight": 1 + some(HIDDEN, seed=2)}
    found["norm.weight"] = 1 + some(HIDDEN, seed=3)
    shapes = {"q": (64, HIDDEN), "k": (32, HIDDEN), "v": (32, HIDDEN), "o": (HIDDEN, 64)}
    for layer in range(LAYERS):
        name = f"layers.{layer}"
        for number, (part, shape) in enumerate(shapes.items()):
            found[f"{name}.self_attn.{part}_proj.weight"] = some(*shape, seed=10 * layer + 20 + number)
        for number, part in enumerate(("q_norm", "k_norm")):
            found[f"{name}.self_attn.{part}.weight"] = 1 + some(16, seed=10 * layer + 40 + number)
        for number, part in enumerate(("input_layernorm", "post_attention_layernorm")):
            found[f"{name}.{part}.weight"] = 1 + some(HIDDEN, seed=10 * layer + 60 + number)
        for number, (part, shape) in enumerate((("gate", (96, HIDDEN)), ("up", (96, HIDDEN)), ("down", (HIDDEN, 96)))):
            found[f"{name}.mlp.{part}_proj.weight"] = some(*shape, seed=10 * layer + 80 + number)
    return found


class Blocks(Pair):
    def __init__(self, config=CONFIG, target=fused):
        self.target, self.model, self.weights, self.config = target(make("llama")), make("llama"), weights(), config
        trunk = self.target.engine.trunk()
        self.head = Dflash(config, self.weights, trunk)
        states = self.target.keep_states(self.head.convention.taps)
        self.draft = BlockDraft(BlockEngine(self.head, trunk, info(self.model), 2048), states)


@torch.inference_mode()
def expected(pair, text, start=0):
    """Logits at each place behind the root. ``start``: the first token whose states the drafter was given."""
    w, convention = pair.weights, pair.head.convention
    states = pair.tapped(text[:-1])
    context = rms(torch.cat([states[layer][0] for layer in convention.taps], 1)[start:] @ w["fc.weight"].T,
                  w["hidden_norm.weight"])  # fmt: skip
    root = len(text) - 1
    x = pair.model.get_input_embeddings().weight[torch.tensor([text[-1], *[MASK] * (BLOCK - 1)])]
    places = torch.tensor([*range(start, root), *range(root, root + BLOCK)])
    own = places[-BLOCK:]

    def turned(part, at):
        angles = at[:, None] / 5000.0 ** (torch.arange(0, 16, 2) / 16)
        cos, sin = (torch.cat([one, one], 1)[:, None] for one in (angles.cos(), angles.sin()))
        return part * cos + torch.cat([-part[..., 8:], part[..., :8]], -1) * sin

    for layer in range(LAYERS):
        name = f"layers.{layer}"

        def project(y, part):
            return (y @ w[f"{name}.self_attn.{part}_proj.weight"].T).view(len(y), -1, 16)  # noqa: B023

        read = rms(x, w[f"{name}.input_layernorm.weight"])
        q = turned(rms(project(read, "q"), w[f"{name}.self_attn.q_norm.weight"]), own)
        both = torch.cat([context, read])
        k = turned(rms(project(both, "k"), w[f"{name}.self_attn.k_norm.weight"]), places).repeat_interleave(2, 1)
        v = project(both, "v").repeat_interleave(2, 1)
        mask = torch.ones(BLOCK, len(places), dtype=torch.bool)
        if convention.windows[layer]:
            mask &= own[:, None] - places[None] < convention.windows[layer]
        if convention.causal[layer]:
            mask &= places[None] <= own[:, None]
        seen = functional.scaled_dot_product_attention(*(one.transpose(0, 1) for one in (q, k, v)), attn_mask=mask)
        x = x + seen.transpose(0, 1).reshape(BLOCK, -1) @ w[f"{name}.self_attn.o_proj.weight"].T
        inner = rms(x, w[f"{name}.post_attention_layernorm.weight"])
        gate, up = (inner @ w[f"{name}.mlp.{n}_proj.weight"].T for n in ("gate", "up"))
        x = x + (functional.silu(gate) * up) @ w[f"{name}.mlp.down_proj.weight"].T
    return pair.model.lm_head(rms(x, w["norm.weight"]))[1:].float()


def root_of(mirror, text):
    return Leaf(mirror, text[-1], (), is_root=True)


@pytest.mark.parametrize(("config", "target"), [(CONFIG, fused), (CONFIG, generic), (SLIDING, fused)])
def test_every_place_of_a_block_has_the_published_forwards_distribution(config, target):
    pair = Blocks(config, target)
    handle, mirror, text = pair.begin(some_prompt(30), GREEDY)
    for turn in range(5):
        places = expected(pair, text)
        [top] = pair.draft.expand([root_of(mirror, text)])
        assert_proposes(top, places[0])
        slots, token = [], top.tokens[0]
        for depth in range(1, BLOCK - 1):
            [found] = pair.draft.expand([Leaf(mirror, token, tuple(slots))])
            assert_proposes(found, places[depth])
            slots.append(found.slot)
            token = found.tokens[turn % 2]
        assert pair.draft.expand([Leaf(mirror, token, tuple(slots))])[0].tokens == ()
        nodes = pair.truth(text, 2) if turn % 2 else [top.tokens[0], top.tokens[1]]
        parents = [-1, 0] if turn % 2 else [-1, -1]
        [outcome] = pair.target.verify([Window(handle, nodes, parents)])
        pair.draft.commit(mirror, outcome.tokens, [-1] * len(outcome.tokens))
        pair.draft.release(mirror, slots)
        text = [*text, *outcome.tokens]


def test_streams_share_a_forward_and_noise_makes_their_trees():
    pair = Blocks()
    sampling = [Sampling(max_tokens=64, temperature=1.0, seed=seed) for seed in (1, 2)]
    begun = [pair.begin(some_prompt(20 + 50 * n, n), one) for n, one in enumerate(sampling)]
    tops = pair.draft.expand([root_of(mirror, text) for _, mirror, text in begun])
    below = pair.draft.expand([Leaf(m, top.tokens[2], ()) for (_, m, _), top in zip(begun, tops, strict=True)])
    for (_, _, text), one, top, under in zip(begun, sampling, tops, below, strict=True):
        for depth, found in enumerate((top, under)):
            scores = expected(pair, text)[depth] + gumbel(one.seed, [len(text) + depth], VOCAB)[0]
            assert list(found.tokens[:4]) == scores.topk(4).indices.tolist()


def test_what_the_target_did_not_compute_is_not_seen_and_a_chat_goes_on():
    pair = Blocks()
    prompt = some_prompt(120)
    handle, mirror, _ = pair.begin(prompt, GREEDY)
    pair.draft.missing(mirror)
    pair.target.close(handle)
    handle, other, text = pair.begin([*prompt, 5, 6], GREEDY)
    start = pair.draft._states._unread[handle].start
    assert start > 100
    [top] = pair.draft.expand([root_of(other, text)])
    assert_proposes(top, expected(pair, text, start)[0])
    pair.target.close(handle)
    handle, kept, text = pair.begin([*prompt, 7, 8], GREEDY, mirror=mirror)
    [top] = pair.draft.expand([root_of(kept, text)])
    assert_proposes(top, expected(pair, text)[0])


def test_conventions_are_read_and_later_kinds_refused():
    assert convention_of(CONFIG | {"dflash_config": {"mask_token_id": 1}, "num_hidden_layers": 5}, 64).taps == (
        *(2, 17, 32, 47, 62),
    )
    assert convention_of(SLIDING, 3).causal == (True, False)
    assert convention_of(SLIDING | {"is_causal": False}, 3).causal == (False, False)
    trunk = fused(make("llama")).engine.trunk()
    later = weights() | {"markov_head.markov_w1": some(VOCAB, 8)}
    for config, tensors, sentence in (
        (CONFIG, later, "markov_head"),
        (CONFIG | {"dflash_config": {"mask_token_id": MASK, "target_layer_ids": [0]}}, weights(), "states of 128"),
        (CONFIG | {"dflash_config": {"mask_token_id": MASK, "target_layer_ids": [0, 9]}}, weights(), "layer 10"),
        (CONFIG | {"dflash_config": {"target_layer_ids": [0, 1]}}, weights(), "mask_token_id"),
    ):
        with pytest.raises(ModelError, match=sentence):
            Dflash(config, tensors, trunk)
