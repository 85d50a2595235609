"""The whole CUDA path without a GPU (see fake_cuda.py): no two devices mix, and a round waits for the device once."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily

from actors.engines import build
from actors.engines.cache.kv_cache import CHUNK
from actors.engines.decoder.cpu.engine import CompiledEngine
from actors.engines.decoder.gpu.engine import GpuEngine
from actors.engines.decoder.gpu.graphs import Direct
from actors.engines.decoder.gpu.groups import GroupedMatrix
from actors.engines.drafts.draft import Draft
from actors.engines.targets.selfcheck import ROWS
from actors.engines.targets.target import Target
from actors.engines.weights import loading
from actors.engines.weights.directory import Directory
from actors.engines.weights.loading import load_for_engine
from actors.engines.weights.stored import StoredModel
from actors.models import Leaf, Window
from duoactor.config import resolve_model
from protocols.errors import ModelError
from protocols.messages import Sampling
from tests.engines.fake_cuda import fake_cuda, on_cuda  # noqa: F401
from tests.engines.families import every_part, model_of
from tests.engines.recorded_rounds import with_graphs
from tests.engines.tiny import VOCAB, info, make
from tests.engines.weights.test_gguf_serving import mixed

DTYPES = [torch.float32, torch.bfloat16]
FUSED = ["llama", "qwen2", "qwen3", "gemma2", "gemma3"]
PROMPT = list(range(5, 155)) * 2
SHORT = PROMPT[:40]  # one piece: recurrent layers walk each of its tokens, which takes a while here
SAMPLING = {
    "greedy": {},
    "temperature": {"temperature": 0.8},
    "top-k and min-p": {"temperature": 0.8, "top_k": 20, "min_p": 0.05},
    "penalties": {"repetition_penalty": 1.2, "presence_penalty": 0.5},
    "bias": {"logit_bias": ((7, 2.0),)},
}
SAMPLED = [name for name, options in SAMPLING.items() if options]
TREE = Window(0, [7, 8, 9, 10], [-1, 0, 0, -1])


def engine_of(family, dtype, exact=True):
    with unset_fake_temporarily():
        model = make(family)
    model = on_cuda(model, dtype)
    return GpuEngine(model, info(model), 4096, exact)


def begun(target: Target, prompt=PROMPT, **sampling) -> int:
    handle = target.open(prompt, Sampling(max_tokens=50, **sampling))
    while target.prefill(handle) is None:
        pass
    return handle


def test_a_tensor_that_was_left_on_the_host_is_an_error(fake_cuda):  # noqa: F811
    with pytest.raises(RuntimeError, match="same device"):
        torch.zeros(4, device="cuda:0") + torch.zeros(4)


@pytest.mark.parametrize(
    "family, dtype, sampling",
    [(family, DTYPES[number % 2], "greedy") for number, family in enumerate(("qwen2", "gemma2", "gemma3"))]
    + [(("llama", "gemma2")[number % 2], torch.bfloat16, sampling) for number, sampling in enumerate(SAMPLED)],
)
def test_a_round_reads_from_the_device_once(fake_cuda, family, dtype, sampling):  # noqa: F811
    target = Target(engine_of(family, dtype), rows_agree=ROWS)
    handles = [begun(target, **SAMPLING[sampling]) for _ in range(2)]
    for streams in (handles[:1], handles):
        fake_cuda.reads.clear()
        outcomes = target.verify([Window(handle, TREE.tokens, TREE.parents) for handle in streams])
        assert len(outcomes) == len(streams)
        assert len(fake_cuda.reads) == 1, fake_cuda.reads


@pytest.mark.parametrize("name", every_part())
def test_no_part_of_a_description_mixes_devices(fake_cuda, name):  # noqa: F811
    with unset_fake_temporarily():
        model = model_of(name)
    model = on_cuda(model, torch.bfloat16)
    target = Target(GpuEngine(model, info(model), 4096), rows_agree=ROWS)
    handle = begun(target, SHORT)
    [outcome] = target.verify([Window(handle, TREE.tokens, TREE.parents)])
    assert outcome.tokens == [0]  # all values that come back are zeros


def test_so_does_a_round_with_recurrent_layers(fake_cuda):  # noqa: F811
    with unset_fake_temporarily():
        model = model_of("Qwen3_5")
    model = on_cuda(model, torch.bfloat16)
    target = Target(GpuEngine(model, info(model), 4096), rows_agree=ROWS)
    handles = [begun(target, SHORT), begun(target, SHORT)]
    for streams in (handles[:1], handles):
        fake_cuda.reads.clear()
        target.verify([Window(handle, [7, 8, 9], [-1, 0, 1]) for handle in streams])
        assert len(fake_cuda.reads) == 1, fake_cuda.reads


def test_weights_in_blocks_stay_in_them_on_the_device(fake_cuda, tmp_path):  # noqa: F811
    with unset_fake_temporarily():
        file = mixed("qwen3", tmp_path, vocab_size=VOCAB)
        size = load_for_engine(file, torch.device("cpu"), torch.bfloat16).source.nbytes
    model = load_for_engine(file, torch.device("cuda:0"), torch.bfloat16)
    assert isinstance(model, StoredModel)
    engine = GpuEngine(model, info(model), 4096)
    layer = engine._program.weights.layers[0]
    for matrix in (layer.qkv, layer.out, layer.up, layer.down):
        assert isinstance(matrix, GroupedMatrix) and matrix.parts[0].words.device.type == "cuda"
    read = engine.reading()
    assert 0.7 * size < read.read_bytes < 2 * size and read.bits < 11  # but the embedding; 64 inputs fill up to 128
    target = Target(engine, rows_agree=ROWS)
    handle = begun(target)
    fake_cuda.reads.clear()
    target.verify([Window(handle, TREE.tokens, TREE.parents)])
    assert len(fake_cuda.reads) == 1, fake_cuda.reads


def test_a_recorded_greedy_round_is_sent_without_waiting(fake_cuda):  # noqa: F811
    target = Target(with_graphs(engine_of("qwen3", torch.bfloat16), Direct()), rows_agree=ROWS)
    handles = [begun(target), begun(target), begun(target)]
    for streams in (handles[:1], handles):
        fake_cuda.writes.clear()
        target.verify([Window(handle, TREE.tokens, TREE.parents) for handle in streams])
        assert fake_cuda.writes == []
    assert {rows for rows, _ in target.engine.graphs._replays} >= {8, 16}


def test_a_prompt_is_cut_in_one_way_and_kept_apart_from_rounds(fake_cuda):  # noqa: F811
    """Its kernels depend on the number of its rows, even where those of rounds do not."""
    target = Target(engine_of("llama", torch.bfloat16), rows_agree=ROWS)
    assert target.chunk == CHUNK and not target.mixes_prompts
    first, second = begun(target), begun(target)
    target.verify([Window(first, [7, 8], [-1, 0])])
    target.close(first)
    target.close(second)
    again = target.open([*PROMPT, 0, 0], Sampling(max_tokens=5))
    while (outcome := target.prefill(again)) is None:
        pass
    assert outcome.reused == CHUNK  # whole chunks of a prompt, and nothing that rounds have computed


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_accepted_siblings_logprobs_and_top_p_stay_on_the_device(fake_cuda, family):  # noqa: F811
    target = Target(engine_of(family, torch.bfloat16), rows_agree=ROWS)
    handle = begun(target, temperature=0.7, top_p=0.9, logprobs=3)
    fake_cuda.reads.clear()
    [outcome] = target.verify([Window(handle, [7, 0], [-1, -1])])  # what comes back is token 0: the second is accepted
    assert outcome.path == [1]
    assert len(outcome.logprobs) == 2
    # the size of the nucleus, the tokens, and the log-probabilities: own, ids and values of the best
    assert len(fake_cuda.reads) == 5, fake_cuda.reads


def test_a_stream_resumes_on_the_device(fake_cuda):  # noqa: F811
    target = Target(engine_of("llama", torch.bfloat16), rows_agree=ROWS)
    handle = target.open(PROMPT, Sampling(max_tokens=50), generated=list(range(30)))
    while (outcome := target.prefill(handle)) is None:
        pass
    assert outcome.tokens == [0]


@pytest.mark.parametrize(
    "family, sampling",
    [("llama", "greedy"), ("gemma3", "greedy"), ("llama", "top-k and min-p"), ("llama", "penalties")],
)
def test_a_draft_step_reads_from_the_device_twice(fake_cuda, family, sampling):  # noqa: F811
    draft = Draft(engine_of(family, torch.bfloat16, exact=False))
    handle = draft.open(PROMPT, len(PROMPT), Sampling(max_tokens=50, **SAMPLING[sampling]))
    [root] = draft.expand([Leaf(handle, -1, (), is_root=True)])
    fake_cuda.reads.clear()
    first, second = draft.expand([Leaf(handle, 3, ()), Leaf(handle, 4, ())])
    assert len(fake_cuda.reads) == 2, fake_cuda.reads  # candidates and what is believed of them
    draft.expand([Leaf(handle, 5, (first.slot,)), Leaf(handle, 6, (second.slot,))])
    draft.commit(handle, [3, 5], [first.slot, -1])
    assert len(root.tokens) == len(first.tokens) == 8


def test_a_target_on_the_cpu_verifies_what_a_draft_on_the_gpu_has_drawn(fake_cuda):  # noqa: F811
    with unset_fake_temporarily():
        small = make("llama")
    draft = Draft(engine_of("llama", torch.bfloat16, exact=False))
    handle = draft.open(PROMPT, len(PROMPT), Sampling(max_tokens=50))
    [drawn] = draft.expand([Leaf(handle, -1, (), is_root=True)])
    with unset_fake_temporarily():
        target = Target(CompiledEngine(small, info(small), 4096), rows_agree=ROWS)
        mine = begun(target)
        [outcome] = target.verify([Window(mine, drawn.tokens[:2], [-1, -1])])
    draft.commit(handle, [*outcome.tokens], [-1] * len(outcome.tokens))
    assert len(outcome.tokens) in (1, 2) and draft.engine.device.type == "cuda" and target.engine.device.type == "cpu"


@pytest.mark.parametrize(
    "place, device",
    [((build, "load_for_engine"), "cuda"), ((Directory, "numbers"), "cuda"), ((build, "_engine"), "cpu")],
)
def test_weights_that_do_not_fit_the_gpu_are_an_error_that_names_the_other_way_round(place, device, monkeypatch):
    """Some are read by the engine alone, which is none of a GPU here."""

    def too_large(*args):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(*place, too_large)
    monkeypatch.setattr(loading, "spec_of", lambda *given: None)
    monkeypatch.setattr(build, "resolve_device", torch.device)
    monkeypatch.setattr(build, "available_bytes", lambda device: 1 << 30)
    with pytest.raises(ModelError, match=rf"do not fit the memory of {device}: .*--device cpu --draft-device cuda"):
        build.build_draft(str(resolve_model("bundled", "draft")), build.EngineOptions(device))


def test_the_fake_cuda_device_is_torchs_fake_tensor_mode(fake_cuda):  # noqa: F811
    assert isinstance(fake_cuda, FakeTensorMode)
