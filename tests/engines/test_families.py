"""Every architecture of docs/families.md with small random weights: its text is transformers' own, speculated on with
trees, and served: plainly decoded, by auto, and resumed."""

import asyncio
import random

import pytest
import torch
import transformers
from msgspec.structs import replace
from safetensors.torch import save_file

from actors.engines.build import EngineOptions, build_draft, build_target
from actors.engines.targets.selfcheck import ROWS
from actors.engines.targets.target import Target
from actors.models import Window
from actors.verifier.sources.lookup import Library
from actors.verifier.sources.memory import Memory
from protocols.errors import ModelError
from protocols.messages import Cancel, Chunk, Generate, Method, Sampling
from tests.engines.families import FAMILIES, VARIANTS, model_of
from tests.engines.tiny import VOCAB, engine_of
from tests.world.caller import tokens_of
from tests.world.clock import run
from tests.world.cluster import Cluster
from tests.world.structured import Told
from tools.families import PAGE, page

PENALTY = 5.0  # small random models say one token for ever without it
PROMPT, COUNT = [5 + 7 * i % 150 for i in range(21)], 24
SAMPLING = Sampling(max_tokens=COUNT, ignore_eos=True, repetition_penalty=PENALTY)
METHODS = (Method.VANILLA, Method.AUTO)
DRAFTER = {"vocab_size": VOCAB, "tokenizer_digest": "tiny-tokenizer"}


def greedy(model) -> list[int]:
    """transformers' own text."""
    with torch.inference_mode():
        out = model.generate(
            torch.tensor([PROMPT]),
            max_new_tokens=COUNT,
            do_sample=False,
            eos_token_id=None,
            use_cache=False,
            repetition_penalty=PENALTY,
        )
    own: list[int] = out[0, len(PROMPT) :].tolist()
    assert len(set(own)) > 3, "a text of one token says nothing"
    return own


@pytest.fixture(scope="module", params=[*FAMILIES, *VARIANTS])
def family(request):
    """A target, and what transformers has its model say."""
    torch.set_num_threads(1)
    model = model_of(request.param)
    own = greedy(model)
    return Target(engine_of(model), rows_agree=ROWS), own


def begin(target: Target, generated=()) -> tuple[int, list[int]]:
    handle = target.open(PROMPT, replace(SAMPLING, max_tokens=COUNT + 40), generated)
    while (outcome := target.prefill(handle)) is None:
        pass
    return handle, [*generated, *outcome.tokens]


def test_trees_of_right_and_wrong_drafts_change_no_token_of_a_familys_text(family):
    target, own = family
    handle, drafted = begin(target)
    chance = random.Random(0)
    while len(drafted) < COUNT:
        right = own[len(drafted) : len(drafted) + chance.randrange(1, 5)]
        wrong = [(token + 1) % VOCAB for token in right]
        parents = list(range(-1, len(right) - 1))
        behind = [parent if parent < 0 else parent + len(wrong) for parent in parents]
        [outcome] = target.verify([Window(handle, [*wrong, *right], [*parents, *behind])])
        assert len(outcome.path) >= len(right), "drafts that are right are accepted"
        drafted += outcome.tokens
    target.close(handle)
    assert drafted[:COUNT] == own


def test_a_verifier_serves_the_text_that_transformers_writes(family):
    """Without drafts, by ``auto`` with a drafter beside that, and resumed after it was cut, with what is retrieved."""
    target, own = family

    async def story():
        system = Cluster(
            language=Told([[*PROMPT, *own]]), target=target, sources=Library(memory=Memory(1000)), forward_s=0.001
        )
        async with system:
            system.start_drafter(skill=0.7, **DRAFTER)
            await system.connected("d1")
            callers = [await system.caller() for _ in range(3)]
            both = asyncio.gather(
                *(caller.generate(PROMPT, SAMPLING, method) for caller, method in zip(callers, METHODS, strict=False))
            )
            callers[2].send(Generate("cut", tuple(PROMPT), sampling=SAMPLING))
            begun: list[int] = []
            while len(begun) < COUNT // 3:
                begun += (await callers[2].until(lambda message: isinstance(message, Chunk))).token_ids
            callers[2].send(Cancel("cut"))
            plain, drafted = await both
            rest = await callers[2].generate(PROMPT, SAMPLING, generated=tuple(begun))
            return plain, drafted, begun, rest

    plain, drafted, begun, rest = run(story())
    assert tokens_of(plain) == tokens_of(drafted) == own
    assert len(begun) < COUNT and [*begun, *(token for chunk in rest for token in chunk.token_ids)] == own
    assert plain[-1].stats.accepted_tokens == 0 < min(drafted[-1].stats.accepted_tokens, rest[-1].stats.accepted_tokens)
    assert drafted[-1].stats.drafters == ("d1",)


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (transformers.BloomConfig(), "its model_type, bloom, is not described"),
        (transformers.FalconConfig(alibi=True), "alibi is set: its positions are slopes"),
        (transformers.LlamaConfig(hidden_act="tanh"), "no kernel has the activation 'tanh'"),
    ],
)
@pytest.mark.parametrize("build", [build_target, build_draft])
def test_what_is_not_described_is_refused_in_one_sentence(config, why, build, tmp_path):
    config.save_pretrained(tmp_path)
    save_file({"a": torch.zeros(1)}, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=rf"cannot run here: {why} \(config.json\); choose a model of the Llama.*"):
        build(str(tmp_path), EngineOptions())


def test_the_tables_of_families_are_what_the_code_and_the_kept_results_say():
    assert page(PAGE.read_text()) == PAGE.read_text(), "run python -m tools.families"
