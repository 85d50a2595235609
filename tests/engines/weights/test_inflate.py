import json

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

import duoactor
from actors.engines.weights.inflate import MARK, Size, inflate
from protocols.errors import ConfigError, ModelError

SMALL = {
    "vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 48, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "bos_token_id": 0, "eos_token_id": 1,
}  # fmt: skip


@pytest.fixture(scope="module")
def bundled():
    return next(iter(duoactor.__path__)) + "/pair/target"


def saved(tmp_path, model_class, config, dtype=torch.float32):
    torch.manual_seed(0)
    model = model_class(config).to(dtype)
    for name, parameter in model.named_parameters():  # initial norms are ones and biases zeros: too easy
        if "norm" in name or "bias" in name:
            torch.nn.init.normal_(parameter, mean=1.0, std=0.5)
    model.save_pretrained(tmp_path / "source")
    return tmp_path / "source"


def logits_of(path, ids):
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    with torch.inference_mode():
        return model(input_ids=ids).logits


@pytest.mark.parametrize(
    ("model_class", "config"),
    [
        (LlamaForCausalLM, LlamaConfig(**SMALL, tie_word_embeddings=True)),
        (LlamaForCausalLM, LlamaConfig(**SMALL, tie_word_embeddings=False, attention_bias=True, mlp_bias=True)),
        (LlamaForCausalLM, LlamaConfig(**SMALL, head_dim=16)),
        (MistralForCausalLM, MistralConfig(**SMALL, sliding_window=None)),
        (Qwen2ForCausalLM, Qwen2Config(**SMALL, tie_word_embeddings=True)),
        (Qwen3ForCausalLM, Qwen3Config(**SMALL, head_dim=16)),
    ],
    ids=["llama tied", "llama untied with biases", "llama wide heads", "mistral", "qwen2", "qwen3"],
)
def test_an_inflated_model_computes_the_same_logits(tmp_path, model_class, config):
    source = saved(tmp_path, model_class, config)
    ids = torch.arange(60).reshape(2, 30) % 96
    expected = logits_of(source, ids)
    for number, (layers, hidden, intermediate) in enumerate([(2, 64, 0), (5, 32, 0), (2, 32, 100), (4, 96, 256)]):
        inflate(source, tmp_path / str(number), Size(layers, hidden, intermediate))
        torch.testing.assert_close(logits_of(tmp_path / str(number), ids), expected, rtol=1e-4, atol=2e-5)


def test_an_mlp_that_grows_in_proportion_has_a_size_that_real_models_have(tmp_path):
    source = saved(tmp_path, LlamaForCausalLM, LlamaConfig(**SMALL))
    inflate(source, tmp_path / "big", Size(2, 80))
    assert json.loads((tmp_path / "big" / "config.json").read_text())["intermediate_size"] == 128  # 48 * 80 / 32 is 120


def test_the_bundled_target_inflated_gives_the_same_logits_and_the_same_greedy_text(tmp_path, bundled):
    inflate(bundled, tmp_path / "big", Size(12, 768, 3072), "float32")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "big")
    text = "<s><|user|>\nTranslate German to English: Ein Hund schläft.\n<|assistant|>\n"
    ids = torch.tensor([tokenizer.encode(text)])
    models = [AutoModelForCausalLM.from_pretrained(p, dtype=torch.float32).eval() for p in (bundled, tmp_path / "big")]
    with torch.inference_mode():
        small, big = (model(input_ids=ids).logits for model in models)
        texts = [model.generate(ids, max_new_tokens=24, do_sample=False).tolist() for model in models]
    torch.testing.assert_close(big, small, rtol=1e-4, atol=1e-4)
    assert texts[0] == texts[1]
    config = models[1].config
    assert (config.hidden_size, config.num_attention_heads, config.head_dim) == (768, 12, 64)
    assert config.tie_word_embeddings


def test_a_width_of_four_times_the_source_rounds_no_norm_weight_in_bfloat16(tmp_path):
    source = saved(tmp_path, LlamaForCausalLM, LlamaConfig(**SMALL), torch.bfloat16)
    inflate(source, tmp_path / "big", Size(3, 128))
    small, big = (AutoModelForCausalLM.from_pretrained(p) for p in (source, tmp_path / "big"))
    assert big.dtype == torch.bfloat16
    assert torch.equal(big.model.norm.weight[:32] * 2, small.model.norm.weight)


def test_the_added_layers_have_weights_but_add_nothing(tmp_path):
    source = saved(tmp_path, LlamaForCausalLM, LlamaConfig(**SMALL))
    inflate(source, tmp_path / "big", Size(4, 64))
    added = AutoModelForCausalLM.from_pretrained(tmp_path / "big").model.layers[3]
    assert added.self_attn.q_proj.weight.std() > 0.01
    assert not added.self_attn.o_proj.weight.any()
    assert not added.mlp.down_proj.weight.any()


def test_shards_are_written_tensor_by_tensor_and_load_again(tmp_path):
    source = saved(tmp_path, LlamaForCausalLM, LlamaConfig(**SMALL))
    calls = []
    inflate(source, tmp_path / "one", Size(4, 64), shard_bytes=40_000, progress=lambda *at: calls.append(at))
    shards = sorted(tmp_path.glob("one/model-*.safetensors"))
    assert len(shards) > 3
    assert all(shard.stat().st_size < 44_000 for shard in shards)
    assert [done for done, _ in calls] == sorted(done for done, _ in calls)
    parameters = AutoModelForCausalLM.from_pretrained(tmp_path / "one").num_parameters()
    assert calls[-1] == (4 * parameters, 4 * parameters)
    inflate(tmp_path / "one", tmp_path / "two", Size(4, 128))
    ids = torch.arange(20)[None]
    torch.testing.assert_close(logits_of(tmp_path / "two", ids), logits_of(source, ids), rtol=1e-4, atol=2e-5)


def test_the_config_says_that_the_model_was_inflated_and_from_what(tmp_path, bundled):
    shape = inflate(bundled, tmp_path / "big", Size(8, 768))
    config = json.loads((tmp_path / "big" / "config.json").read_text())
    assert config[MARK]["source"] == "target"
    assert config[MARK]["parameters"] == shape.parameters > 3 * config[MARK]["source_parameters"]
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "big").num_parameters() == pytest.approx(
        shape.parameters, rel=0.01
    )
    assert (tmp_path / "big" / "chat_template.jinja").is_file()


@pytest.mark.parametrize(
    ("sizes", "complaint"),
    [
        ({"layers": 8, "hidden": 320}, "--hidden 320 is below the source's 384"),
        ({"layers": 8, "hidden": 800}, "whole heads; choose a multiple of 64, such as 768"),
        ({"layers": 7, "hidden": 384}, "--layers 7 is below the source's 8"),
        ({"layers": 8, "hidden": 768, "intermediate": 512}, "--intermediate 512 is below the source's 1024"),
    ],
)
def test_sizes_that_cannot_work_are_refused_before_anything_is_written(tmp_path, bundled, sizes, complaint):
    with pytest.raises(ConfigError, match=complaint):
        inflate(bundled, tmp_path / "big", Size(**sizes))
    assert not (tmp_path / "big").exists()


def test_a_directory_that_holds_something_is_not_overwritten(tmp_path, bundled):
    (tmp_path / "keep").write_text("mine")
    with pytest.raises(ConfigError, match="exists already"):
        inflate(bundled, tmp_path, Size(8, 768))


def test_other_families_and_broken_sources_are_sentences(tmp_path):
    with pytest.raises(ModelError, match=r"is no model directory: its config\.json cannot be read"):
        inflate(tmp_path, tmp_path / "big", Size(8, 768))
    (tmp_path / "config.json").write_text('{"model_type": "gemma2"}')
    with pytest.raises(ModelError, match="'gemma2' cannot be inflated; supported are llama"):
        inflate(tmp_path, tmp_path / "big", Size(8, 768))
    (tmp_path / "config.json").write_text('{"model_type": "llama", "vocab_size": 9, "draft_vocab_size": 4}')
    with pytest.raises(ModelError, match="covers part of its vocabulary"):
        inflate(tmp_path, tmp_path / "big", Size(8, 768))
    source = saved(tmp_path, LlamaForCausalLM, LlamaConfig(**SMALL))
    (source / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="cannot be read"):
        inflate(source, tmp_path / "big", Size(8, 768))
    assert not (tmp_path / "big").exists()
