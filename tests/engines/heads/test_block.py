"""DFlash drafters propose what the published forward does: one pass, every place of a block by itself."""

import pytest
import torch
from torch.nn import functional

from actors.engines.heads.ahead import AheadDraft
from actors.engines.heads.block import Dflash, convention_of
from actors.engines.heads.engine import HeadEngine
from actors.engines.sampling.noise import gumbel
from actors.models import Leaf, Window
from protocols.errors import ModelError
from protocols.messages import Sampling
from tests.engines.heads.published import HIDDEN, Pair, by_torch, fused, rms, some
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


TAPS, GROUP, RANK, SELECTED = 2, 16, 8, 12
DFLASH2 = CONFIG | {
    "architectures": ["DFlash2DraftModel"],
    "dflash_config": CONFIG["dflash_config"] | {"conv_kernel_size": TAPS, "conv_group_size": GROUP,
                                                "selector_rank": RANK, "selector_top_k": SELECTED},
}  # fmt: skip
DSPARK = CONFIG | {"architectures": ["Qwen3DSparkModel"]}
SPECULATORS = {
    "architectures": ["DSparkSpeculator"],
    "speculators_model_type": "dspark",
    "transformer_layer_config": {k: v for k, v in CONFIG.items() if k not in ("architectures", "dflash_config")},
    "block_size": BLOCK,
    "mask_token_id": MASK,
    "aux_hidden_state_layer_ids": [1, 2],
    "sample_from_anchor": False,
}


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


def weights_for(config):
    found, named = weights(), config["architectures"][0]
    covered = 40 if named == "DSparkSpeculator" else VOCAB
    if named == "DFlash2DraftModel":
        for number, layer in enumerate(
            f"layers.{n}.{part}_conv" for n in range(LAYERS) for part in ("attention", "mlp")
        ):
            found[f"{layer}.base_kernel"] = some(2, TAPS, HIDDEN, seed=120 + number)
            projected = 2 * TAPS * HIDDEN // GROUP
            found[f"{layer}.kernel_projection.weight"] = some(projected, HIDDEN, seed=130 + number, scale=0.1)
        for number, name in enumerate(("predecessor", "successor")):
            found[f"candidate_selector.{name}_codebook"] = some(VOCAB, RANK, seed=140 + number)
        found["candidate_selector.hidden_projection.weight"] = some(RANK, HIDDEN, seed=142)
    if "DSpark" in named:
        found["markov_head.markov_w1.weight"] = some(VOCAB, RANK, seed=150)
        found["markov_head.markov_w2.weight"] = some(covered, RANK, seed=151)
    if covered < VOCAB:
        ids = torch.randperm(VOCAB, generator=torch.Generator().manual_seed(7))[:covered].sort().values
        found["d2t"], found["lm_head.weight"] = ids - torch.arange(covered), some(covered, HIDDEN, seed=152)
    return found


class Blocks(Pair):
    def __init__(self, config=CONFIG, target=fused):
        self.target, self.model, self.config = target(make("llama")), make("llama"), config
        self.weights = weights_for(config)
        trunk = self.target.engine.trunk()
        self.head = Dflash(config, self.weights, trunk)
        states = self.target.keep_states(self.head.taps)
        self.draft = AheadDraft(HeadEngine(self.head, trunk, info(self.model), 2048), states)


@torch.inference_mode()
def expected(pair, text, start=0):
    """Logits at each place behind the root. ``start``: the first token whose states the drafter was given."""
    return computed(pair, text, start)[0]


def convolved(w, name, x, of, side):
    """Row by row, as DFlash2 has it: the weights of a row's taps are a base and, by groups, what ``of`` gives."""
    if f"{name}.base_kernel" not in w:
        return x
    coefficients = (of @ w[f"{name}.kernel_projection.weight"].T).view(len(x), 2, TAPS, HIDDEN // GROUP)
    out = torch.zeros_like(x)
    for row in range(len(x)):
        for tap in range(min(TAPS, row + 1)):
            for channel in range(HIDDEN):
                weight = w[f"{name}.base_kernel"][side, tap, channel] + coefficients[row, side, tap, channel // GROUP]
                out[row, channel] += weight * x[row - tap, channel]
    return out


@torch.inference_mode()
def behind(pair, logits, z, token):
    """The logits at a place behind a token."""
    w = pair.weights
    if "markov_head.markov_w1.weight" in w:
        logits = logits + w["markov_head.markov_w2.weight"] @ w["markov_head.markov_w1.weight"][token]
    if "candidate_selector.predecessor_codebook" in w:
        gate = w["candidate_selector.hidden_projection.weight"] @ z
        first, second = (w[f"candidate_selector.{name}_codebook"] for name in ("predecessor", "successor"))
        scores = torch.full_like(logits, -torch.inf)
        for candidate in logits.topk(SELECTED).indices.tolist():
            scores[candidate] = logits[candidate] + (first[token] * gate) @ second[candidate]
        logits = scores
    if "d2t" in w:
        ids = w["d2t"] + torch.arange(len(w["d2t"]))
        logits = torch.full((VOCAB,), -torch.inf).index_put_((ids,), logits)
    return logits


@torch.inference_mode()
def computed(pair, text, start=0):
    """Logits by which the tokens behind the root are drafted, and what they are made of."""
    w, convention = pair.weights, pair.head.block
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

        normed = rms(x, w[f"{name}.input_layernorm.weight"])
        read = convolved(w, f"{name}.attention_conv", normed, normed, 0)
        q = turned(rms(project(read, "q"), w[f"{name}.self_attn.q_norm.weight"]), own)
        both = torch.cat([context, read])
        k = turned(rms(project(both, "k"), w[f"{name}.self_attn.k_norm.weight"]), places).repeat_interleave(2, 1)
        v = project(both, "v").repeat_interleave(2, 1)
        mask = torch.ones(BLOCK, len(places), dtype=torch.bool)
        if pair.head.windows.sizes[layer]:
            mask &= own[:, None] - places[None] < pair.head.windows.sizes[layer]
        if convention.causal[layer]:
            mask &= places[None] <= own[:, None]
        seen = functional.scaled_dot_product_attention(*(one.transpose(0, 1) for one in (q, k, v)), attn_mask=mask)
        made = seen.transpose(0, 1).reshape(BLOCK, -1) @ w[f"{name}.self_attn.o_proj.weight"].T
        x = x + convolved(w, f"{name}.attention_conv", made, normed, 1)
        normed = rms(x, w[f"{name}.post_attention_layernorm.weight"])
        inner = convolved(w, f"{name}.mlp_conv", normed, normed, 0)
        gate, up = (inner @ w[f"{name}.mlp.{n}_proj.weight"].T for n in ("gate", "up"))
        made = (functional.silu(gate) * up) @ w[f"{name}.mlp.down_proj.weight"].T
        x = x + convolved(w, f"{name}.mlp_conv", made, normed, 1)
    z = rms(x, w["norm.weight"])
    logits = z @ w["lm_head.weight"].T if "lm_head.weight" in w else pair.model.lm_head(z)
    first = 0 if pair.config["architectures"] == ["Qwen3DSparkModel"] else 1
    return logits[first:].float(), z[first:]


def root_of(mirror, text):
    return Leaf(mirror, text[-1], (), is_root=True)


CASES = {
    "DFlash": (CONFIG, fused),
    "target by torch": (CONFIG, by_torch),
    "sliding": (SLIDING, fused),
    "DFlash2": (DFLASH2, fused),
    "DSpark": (DSPARK, fused),
    "speculators' DSpark": (SPECULATORS, fused),
}


@pytest.mark.parametrize("case", CASES)
def test_every_place_of_a_block_has_the_published_forwards_distribution(case):
    pair = Blocks(*CASES[case])
    handle, mirror, text = pair.begin(some_prompt(30), GREEDY)
    for turn in range(5):
        places, made = computed(pair, text)
        [top] = pair.draft.expand([root_of(mirror, text)])
        assert_proposes(top, behind(pair, places[0], made[0], text[-1]))
        slots, token = [], top.tokens[0]
        for depth in range(1, len(places)):
            [found] = pair.draft.expand([Leaf(mirror, token, tuple(slots))])
            assert_proposes(found, behind(pair, places[depth], made[depth], token))
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
    start = pair.draft.states._unread[handle].start
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
    assert convention_of(SPECULATORS, 3).taps == (1, 2) and not convention_of(SPECULATORS, 3).from_root
    assert convention_of(DSPARK, 3).from_root
    later = weights() | {"markov_head.gate_proj.weight": some(VOCAB, 8)}
    scaled = CONFIG | {"dflash_config": CONFIG["dflash_config"] | {"attention_value_scale": 2.0}}
    for config, tensors, sentence in (
        (CONFIG, later, "markov_head"),
        (scaled, weights(), "attention_value_scale"),
        (CONFIG | {"dflash_config": {"mask_token_id": MASK, "target_layer_ids": [0]}}, weights(), "states of 128"),
        (CONFIG | {"dflash_config": {"mask_token_id": MASK, "target_layer_ids": [0, 9]}}, weights(), "layer 10"),
        (CONFIG | {"dflash_config": {"target_layer_ids": [0, 1]}}, weights(), "mask_token_id"),
    ):
        with pytest.raises(ModelError, match=sentence):
            Dflash(config, tensors, trunk)
