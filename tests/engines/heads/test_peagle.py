"""P-EAGLE's heads propose what the published forward does: the root and masks behind it in one causal pass."""

import pytest
import torch
from torch.nn import functional

from actors.engines.heads.ahead import AheadDraft
from actors.engines.heads.eagle3 import Eagle3
from actors.engines.heads.engine import HeadEngine
from actors.models import Leaf, Window
from protocols.messages import Sampling
from tests.engines.heads.published import EAGLE3, HIDDEN, SPECULATORS, Pair, eagle3_weights, fused, rms, some
from tests.engines.heads.test_eagle3 import assert_proposes, root_of
from tests.engines.mirrored_texts import some_prompt
from tests.engines.tiny import VOCAB, info, make

DEPTHS, MASK, LAYERS = 4, 9, 3
GREEDY = Sampling(max_tokens=64)
LAYOUTS = {
    "vLLM": EAGLE3 | {"parallel_drafting": True, "ptd_token_id": MASK, "num_depths": DEPTHS},
    "speculators": SPECULATORS
    | {"speculators_model_type": "peagle", "architectures": ["PEagleSpeculator"], "mask_token_id": MASK}
    | {"speculators_config": {"proposal_methods": [{"speculative_tokens": DEPTHS}]}},
}


def weights():
    found = eagle3_weights("layers.0", embedding=True) | {"mask_hidden": some(1, 1, 3 * HIDDEN, seed=90)}
    for layer in range(1, LAYERS):
        more = eagle3_weights(f"layers.{layer}")
        for number, (name, tensor) in enumerate((n, t) for n, t in more.items() if n.startswith(f"layers.{layer}.")):
            width = HIDDEN if tensor.ndim > 1 and tensor.shape[1] == 2 * HIDDEN else tensor.shape[-1]
            if not name.endswith("hidden_norm.weight"):
                found[name] = some(*tensor.shape[:-1], width, seed=100 * layer + number) + (tensor.ndim == 1)
    return found


class Parallel(Pair):
    def __init__(self, config):
        self.target, self.model, self.weights = fused(make("llama")), make("llama"), weights()
        trunk = self.target.engine.trunk()
        self.head = Eagle3(config, self.weights, trunk)
        states = self.target.keep_states(self.head.taps)
        self.draft = AheadDraft(HeadEngine(self.head, trunk, info(self.model), 4096), states)

    @torch.inference_mode()
    def expected(self, text):
        """The logits of every place behind the text, computed over the whole of it."""
        w, states = self.weights, self.tapped(text[:-1])
        given = torch.cat([states[layer][0] for layer in self.head.taps], 1)
        x = torch.cat([given, w["mask_hidden"][0].expand(DEPTHS - 1, -1)]) @ w["fc.weight"].T
        embedded = w["embed_tokens.weight"][torch.tensor([*text[1:], *[MASK] * (DEPTHS - 1)])]
        rows = len(x)
        angles = torch.arange(rows)[:, None] / 5000.0 ** (torch.arange(0, 16, 2) / 16)
        cos, sin = (torch.cat([part, part], 1) for part in (angles.cos(), angles.sin()))
        for layer in range(LAYERS):
            name = f"layers.{layer}"
            read = rms(x if layer else embedded, w[f"{name}.input_layernorm.weight"])
            if layer == 0:
                read = torch.cat([read, rms(x, w[f"{name}.hidden_norm.weight"])], 1)
            q, k, v = (
                (read @ w[f"{name}.self_attn.{part}_proj.weight"].T).view(rows, -1, 16).transpose(0, 1)
                for part in "qkv"
            )
            q, k = (one * cos + torch.cat([-one[..., 8:], one[..., :8]], -1) * sin for one in (q, k))
            k, v = k.repeat_interleave(2, 0), v.repeat_interleave(2, 0)
            seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + seen.transpose(0, 1).reshape(rows, -1) @ w[f"{name}.self_attn.o_proj.weight"].T
            inner = rms(x, w[f"{name}.post_attention_layernorm.weight"])
            gate, up = (inner @ w[f"{name}.mlp.{part}_proj.weight"].T for part in ("gate", "up"))
            x = x + (functional.silu(gate) * up) @ w[f"{name}.mlp.down_proj.weight"].T
        logits = rms(x[len(text) - 2 :], w["norm.weight"]) @ w["lm_head.weight"].T
        ids = w["d2t"] + torch.arange(len(w["d2t"]))
        return torch.full((DEPTHS, VOCAB), -torch.inf).index_copy_(1, ids, logits)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_place_has_the_published_forwards_distribution_over_accepted_and_rejected_tokens(layout):
    torch.set_num_threads(1)
    pair = Parallel(LAYOUTS[layout])
    begun = [pair.begin(some_prompt(300), GREEDY), pair.begin(some_prompt(12, 2), GREEDY, some_prompt(9, 5))]
    for turn in range(4):
        tops = pair.draft.expand([root_of(mirror, text) for _, mirror, text in begun])
        for place, top in enumerate(tops):
            handle, mirror, text = begun[place]
            places, slots, token = pair.expected(text), [], top.tokens[0]
            assert_proposes(top, places[0])
            for depth in range(1, DEPTHS):
                [found] = pair.draft.expand([Leaf(mirror, token, tuple(slots))])
                assert_proposes(found, places[depth])
                slots.append(found.slot)
                token = found.tokens[turn % 2]
            assert pair.draft.expand([Leaf(mirror, token, tuple(slots))])[0].tokens == ()
            nodes = pair.truth(text, 2) if turn % 2 else [top.tokens[0], top.tokens[1]]
            [outcome] = pair.target.verify([Window(handle, nodes, [-1, 0] if turn % 2 else [-1, -1])])
            pair.draft.commit(mirror, outcome.tokens, [-1] * len(outcome.tokens))
            pair.draft.release(mirror, slots)
            begun[place] = handle, mirror, [*text, *outcome.tokens]
