"""Gemma 4's assistants propose what transformers' own forward does, with the target's keys and values read in place."""

import itertools

import pytest
import torch
import transformers
from transformers import Gemma4TextConfig, Gemma4UnifiedTextConfig

from actors.engines.heads.build import _published, build_head
from actors.models import Leaf
from actors.verifier.sources.head import HeadSource
from protocols.errors import ModelError
from protocols.messages import Sampling
from tests.engines.families import HEAD, KEYS_ARE_VALUES, NARROW, WIDE
from tests.engines.heads.published import HIDDEN, Pair, by_torch, fused, ringed
from tests.engines.heads.test_eagle3 import assert_proposes
from tests.engines.heads.test_head_source import sampled, texts
from tests.engines.mirrored_texts import some_prompt
from tests.engines.tiny import COMMON, VOCAB, make, make_model
from tests.world.caller import tokens_of
from tests.world.clock import run
from tests.world.cluster import Cluster
from tests.world.inline_drafts import FORWARD_S, STEP_US

GREEDY = Sampling(max_tokens=64)
OWN_KEYS = WIDE | KEYS_ARE_VALUES | {"num_kv_shared_layers": 0}
LAYERS = {"layer_types": ["sliding_attention", "sliding_attention", "full_attention"], "sliding_window": 9}
CLUSTERS = {"use_ordered_embeddings": True, "num_centroids": 20, "centroid_intermediate_top_k": 3}
KINDS = {  # the target's kind, then the assistant's
    "shared keys": (fused, WIDE, {}),
    "those of 12B": (fused, NARROW, {"family": "Gemma4Unified", "loud": 5}),
    "the likeliest clusters": (fused, WIDE, CLUSTERS),
    "keys that are values": (fused, OWN_KEYS, {}),
    "rings of its windows": (ringed, WIDE, {}),
    "a target by torch": (by_torch, OWN_KEYS, CLUSTERS),
}


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    torch.set_num_threads(1)
    for config in (Gemma4TextConfig, Gemma4UnifiedTextConfig):
        monkeypatch.setattr(config, "kv_sharing_modes", property(modes_of))


def modes_of(config, known=Gemma4TextConfig.kv_sharing_modes.fget):
    """transformers 5.23 knows of none where all layers share keys, as an assistant's do, or none does."""
    kinds, shared = config.layer_types, config.num_kv_shared_layers
    if shared == len(kinds):
        return ["reuse"] * shared
    last = (None if kind in kinds[place:] else "store" for place, kind in enumerate(kinds, 1))
    return known(config) if shared else [*last]


def part(family, name):
    return getattr(transformers, family + name)


def target_of(extra, family="Gemma4"):
    config = part(family, "TextConfig")(**COMMON | HEAD | extra)
    return make_model(lambda: part(family, "ForCausalLM")(config))


def assistant_of(loud=10, family="Gemma4", **extra):
    """Narrower than its target, and with the heads' widths of its layers. ``loud``: scale of its logits."""
    own = COMMON | LAYERS | {"hidden_size": 32, "head_dim": 16, "global_head_dim": 32, "vocab_size_per_layer_input": 0,
                             "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 3}  # fmt: skip
    text = part(family, "TextConfig")(**own | {key: value for key, value in extra.items() if key in own})
    rest = {key: value for key, value in extra.items() if key not in own}
    config = part(family, "AssistantConfig")(text_config=text, **{"backbone_hidden_size": HIDDEN} | rest)
    model = make_model(lambda: part(family, "AssistantForCausalLM")(config), seed=5)
    chance = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn(parameter.shape, generator=chance) * 0.3)
            elif "embed" in name:
                parameter.mul_(loud)
        for layer in model.model.layers:
            layer.layer_scalar.fill_(0.7)
        if model.masked_embedding is not None:
            model.masked_embedding.token_ordering.copy_(torch.randperm(VOCAB, generator=chance))
    return model


class Assisted(Pair):
    def __init__(self, path, target, extra, options):
        family = options.get("family", "Gemma4")
        self.model, self.assistant = target_of(extra, family), assistant_of(**options)
        self.model.save_pretrained(path / "target")
        self.assistant.save_pretrained(path / "assistant")
        self.target = target(target_of(extra, family))
        self.draft = build_head(str(path / "assistant"), self.target, str(path / "target"))

    @torch.inference_mode()
    def expected(self, text, path):
        """The logits behind the last token; of tokens that are in no likely cluster, none."""
        found = self.model(torch.tensor([text[:-1]]), output_hidden_states=True, return_shared_kv_states=True)
        state, root = found.hidden_states[-1][:, -1:], torch.tensor([[len(text) - 1]])
        for token in [text[-1], *path]:
            embedded = self.model.get_input_embeddings()(torch.tensor([[token]]))
            made = self.assistant(inputs_embeds=torch.cat([embedded, state], -1), position_ids=root,
                                  shared_kv_states=found.shared_kv_states)  # fmt: skip
            state = made.last_hidden_state
        logits = made.logits[0, -1]
        return logits.masked_fill(logits == logits.min(), -torch.inf) if self.assistant.masked_embedding else logits


@pytest.mark.parametrize("kind", KINDS)
def test_proposals_are_those_of_transformers_over_accepted_and_rejected_tokens(kind, tmp_path):
    pair, seen = Assisted(tmp_path, *KINDS[kind]), 0
    prompt = some_prompt(400 if kind.startswith("rings") else 30)  # longer than a ring
    for text, path, found in pair.rounds(*pair.begin(prompt, GREEDY), 6):
        assert_proposes(found, pair.expected(text, path))
        seen += len(path)
    assert seen > 12


def test_several_streams_resumed_ones_and_cached_beginnings_have_the_same_proposals(tmp_path):
    pair = Assisted(tmp_path, *KINDS["shared keys"])
    handle, mirror, text = pair.begin(some_prompt(80), GREEDY)
    *_, (text, _, _) = pair.rounds(handle, mirror, text, 4)
    pair.target.close(handle)
    again = [*some_prompt(80), *some_prompt(9, seed=3)]
    begun = [pair.begin(again, GREEDY, mirror=mirror), pair.begin(some_prompt(80), GREEDY, text[80:-1]),
             pair.begin(some_prompt(7, seed=9), GREEDY)]  # fmt: skip
    assert pair.target.kv_cached < pair.target.kv_used
    for _ in range(2):
        tops = pair.draft.expand([Leaf(m, text[-1], (), is_root=True) for _, m, text in begun])
        below = pair.draft.expand([Leaf(m, top.tokens[1], ()) for (_, m, _), top in zip(begun, tops, strict=True)])
        for (_, _, text), top, under in zip(begun, tops, below, strict=True):
            assert_proposes(top, pair.expected(text, []))
            assert_proposes(under, pair.expected(text, [top.tokens[1]]))


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"backbone_hidden_size": 48}, "states of 48 numbers and the target's have 64"),
        ({"vocab_size": 99}, "knows 99 tokens and the target 160"),
        ({"head_dim": 8}, "heads of 8 numbers and the target's keys 2 of 16"),
    ],
)
def test_an_assistant_of_another_target_is_refused_with_what_differs(options, what, tmp_path):
    pair = Assisted(tmp_path, *KINDS["shared keys"])
    assistant_of(**options).save_pretrained(tmp_path / "other")
    with pytest.raises(ModelError, match=what):
        build_head(str(tmp_path / "other"), pair.target, str(tmp_path / "target"))


def test_an_assistant_in_a_process_of_its_own_is_refused_before_its_weights_are_read(tmp_path):
    assistant_of().save_pretrained(tmp_path / "assistant")
    (tmp_path / "assistant" / "model.safetensors").write_bytes(b"no weights")
    with pytest.raises(ModelError, match=r"target's own keys and values, so the verifier has to run it; choose"):
        _published(str(tmp_path / "assistant"), None, "target", fused(target_of(WIDE)).engine.trunk())


def test_an_assistant_reads_no_other_familys_keys(tmp_path):
    make("llama").save_pretrained(tmp_path / "target")
    assistant_of().save_pretrained(tmp_path / "assistant")
    with pytest.raises(ModelError, match="keys and values of Gemma 4"):
        build_head(str(tmp_path / "assistant"), fused(make("llama")), str(tmp_path / "target"))


def test_texts_are_those_of_plain_decoding_at_every_temperature(tmp_path):
    pair = Assisted(tmp_path, fused, WIDE, CLUSTERS | {"loud": 90})
    ticks, known = itertools.count(), pair.target.info
    source = HeadSource(pair.draft, STEP_US, VOCAB, known.eos_token_ids, timer=lambda: next(ticks) * STEP_US[1] / 1e6)
    prompts = tuple(some_prompt(90)), tuple(some_prompt(20, seed=2)), tuple(some_prompt(33, seed=4))
    asked = [(prompt, sampled(t, 3, 40)) for prompt, t in zip(prompts, (0.0, 0.7, 1.0), strict=True)]

    async def story():
        async with Cluster(target=pair.target, inline=source, forward_s=FORWARD_S) as system:
            alone = [(await texts(system, [one], "auto"))[0] for one in asked]
            return [await texts(system, asked, "vanilla"), alone, await texts(system, asked, "auto")]

    plain, alone, together = ([tokens_of(one) for one in answers] for answers in run(story()))
    assert plain == alone == together
    assert source.depths[0].known
