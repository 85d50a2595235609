import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from actors.engines.text.kept_tokenizer import FastTokenizer, KeptTokenizer
from actors.engines.text.tokenizer import TokenizerCodec, tokenizer_digest, tokenizer_parts
from actors.engines.weights.loading import (
    describe,
    load_config,
    load_model,
    load_tokenizer,
    resolve_device,
)
from protocols.errors import ConfigError, ModelError
from protocols.messages import Sampling

PAIR = Path(__file__).parents[3] / "duoactor" / "pair"
CPU = torch.device("cpu")


@pytest.fixture
def draft(tmp_path, monkeypatch) -> Path:
    """A copy of the bundled draft, to be spoilt. The network is off."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    return Path(shutil.copytree(PAIR / "draft", tmp_path / "draft"))


def edit(file: Path, **changes) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def refusal(name: object) -> str:
    """The sentence with which a model is refused: one line, with no chain of causes shown."""
    with pytest.raises(ModelError) as caught:
        load_model(str(name), CPU, torch.float32)
    assert caught.value.__cause__ is None and (caught.value.__suppress_context__ or caught.value.__context__ is None)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_bundled_models_load_without_a_word(capfd):
    for role in ("target", "draft"):
        model = load_model(str(PAIR / role), CPU, torch.float32)
        assert not model.training and next(model.parameters()).dtype == torch.float32
        assert not any(p.requires_grad for p in model.parameters())
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", "")


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("nobody/no-such-model", "neither a directory here nor a hub id that can be reached"),
        ("no-such-model", "neither a directory here nor a hub id"),
        ("/no/such/directory", "directory /no/such/directory does not exist"),
        ("no/such/directory", "directory no/such/directory does not exist"),
        ("./nowhere", "directory ./nowhere does not exist"),
    ],
)
def test_a_name_that_leads_nowhere_is_one_clear_sentence(draft, name, sentence):
    assert sentence in refusal(name)


def test_a_directory_or_a_file_that_is_no_model_says_so(draft):
    assert "give the directory" in refusal(draft / "config.json")
    (draft / "config.json").unlink()
    assert "holds no config.json" in refusal(draft)


def test_a_corrupt_checkpoint_is_refused(draft):
    weights = draft / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100_000])
    assert "is cut short" in refusal(draft)
    weights.unlink()
    assert "holds no weights" in refusal(draft)


@pytest.mark.parametrize("spoil", ["missing", "shape"])
def test_a_checkpoint_that_would_leave_random_weights_is_refused(draft, spoil):
    file = draft / "model.safetensors"
    weights = load_file(file)
    name = "model.layers.1.mlp.down_proj.weight"
    whole = weights.pop(name)
    if spoil == "shape":
        weights[name] = whole[:5].clone()
    save_file(weights, file, metadata={"format": "pt"})
    assert name in refusal(draft)


@pytest.mark.parametrize("kind", ["olmo3", "llama"])
def test_the_one_base_of_an_older_file_turns_every_layer(tmp_path, kind):
    """transformers 5 gives the windows of Olmo 3 its default instead."""
    said = {"model_type": kind, "num_hidden_layers": 4, "rope_theta": 5000.0, "transformers_version": "4.57.6"}
    (tmp_path / "config.json").write_text(json.dumps(said))
    (tmp_path / "model.safetensors").write_bytes(b"\x02\0\0\0\0\0\0\0{}")
    rope = load_config(str(tmp_path)).rope_parameters
    each = rope.values() if kind == "olmo3" else [rope]
    assert {one["rope_theta"] for one in each} == {5000.0}
    if kind == "olmo3":
        said["rope_parameters"] = {"sliding_attention": {"rope_type": "default", "rope_theta": 777.0}}
        (tmp_path / "config.json").write_text(json.dumps(said))
        assert load_config(str(tmp_path)).rope_parameters["sliding_attention"]["rope_theta"] == 777.0


def test_what_is_not_a_causal_language_model_is_refused(draft):
    edit(draft / "config.json", model_type="vit", architectures=["ViTModel"])
    assert "is not a causal language model" in refusal(draft)


def test_a_configuration_that_contradicts_itself_is_refused_with_the_reason(draft):
    edit(draft / "config.json", hidden_size=100, num_attention_heads=6)
    assert "is not a multiple of the number of attention heads" in refusal(draft)


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"model_type": "zork"}, "model type `zork`"), ({"initializer_range": []}, ""), ({"layer_types": [5]}, "")],
)
def test_what_transformers_cannot_read_is_refused_with_what_to_do(draft, changes, words):
    edit(draft / "config.json", **changes)
    sentence = refusal(draft)
    assert words in sentence and sentence.endswith("download it again, or install a newer transformers")


def test_program_code_of_a_model_is_never_run_nor_asked_about(draft):
    edit(draft / "config.json", model_type="zork", auto_map={"AutoConfig": "c.C", "AutoModelForCausalLM": "m.M"})
    assert "its own program code" in refusal(draft)


def test_a_missing_or_broken_tokenizer_is_refused(draft):
    (draft / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match=r"add tokenizer\.json"):
        load_tokenizer(str(draft))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (draft / name).unlink()
    with pytest.raises(ModelError, match=r"add tokenizer\.json"):
        load_tokenizer(str(draft))


@pytest.mark.parametrize("model_type", ["qwen2", "qwen3", "qwen3_5", "llama"])
def test_the_ids_of_a_text_are_those_of_the_published_tokenizer_file(draft, model_type, caplog):
    """transformers builds Qwen's tokenizers itself, with another pre-tokenizer and NFC."""
    said = json.loads((draft / "tokenizer_config.json").read_text())
    said.pop("tokenizer_class", None)
    (draft / "tokenizer_config.json").write_text(json.dumps(said))
    edit(draft / "config.json", model_type=model_type)
    published = Tokenizer.from_file(str(draft / "tokenizer.json"))
    tokenizer = load_tokenizer(str(draft))
    text = "e\u0301 and 12345, I'M here\n\n  don't"
    codec = TokenizerCodec(tokenizer)
    assert codec.encode(text, special_tokens=False) == published.encode(text, add_special_tokens=False).ids
    assert codec.decode(codec.encode(text, special_tokens=False)) == published.decode(published.encode(text).ids)
    replaced = model_type.startswith("qwen")
    assert ("transformers has replaced the" in caplog.text and "tokenizer.json counts" in caplog.text) == replaced


def test_sampling_that_generation_config_asks_for_is_told_to_clients_also_at_the_second_start(draft):
    tokenizer = load_tokenizer(str(draft))
    told = []
    for changes in ({"temperature": 0.6, "top_k": 20, "top_p": 0.95, "do_sample": True}, {"temperature": -1.0}):
        edit(draft / "generation_config.json", **changes)
        for _ in range(2):
            model = load_model(str(draft), CPU, torch.float32)
            told.append(describe(str(draft), model, tokenizer, CPU, "float32").sampling)
    assert told[:2] == [Sampling(temperature=0.6, top_k=20, top_p=0.95)] * 2
    assert told[2:] == [Sampling(temperature=1.0)] * 2  # no sampling is made of what cannot be


def test_a_description_gathers_every_end_of_sequence_id(draft):
    edit(draft / "generation_config.json", eos_token_id=[7, 9, 10**6])
    model, tokenizer = load_model(str(draft), CPU, torch.float32), load_tokenizer(str(draft))
    info = describe(str(draft), model, tokenizer, CPU, "float32")
    assert info.eos_token_ids == {1, 7, 9}  # an id outside the vocabulary can never come
    assert (info.vocab_size, info.max_context, info.model_id) == (8192, 2048, "draft")
    assert info.parameters == sum(p.numel() for p in model.parameters()) > 1_000_000


def test_the_digest_follows_ids_and_merges_and_not_names(draft):
    ours = tokenizer_digest(load_tokenizer(str(PAIR / "target")))
    edit(draft / "tokenizer_config.json", name_or_path="elsewhere")
    assert tokenizer_digest(load_tokenizer(str(draft))) == ours
    spec = json.loads((draft / "tokenizer.json").read_text())
    vocab = spec["model"]["vocab"]
    first, second = list(vocab)[300], list(vocab)[301]
    vocab[first], vocab[second] = vocab[second], vocab[first]
    (draft / "tokenizer.json").write_text(json.dumps(spec))
    assert tokenizer_digest(load_tokenizer(str(draft))) != ours
    vocab[first], vocab[second] = vocab[second], vocab[first]
    spec["model"]["merges"].reverse()
    (draft / "tokenizer.json").write_text(json.dumps(spec))
    assert isinstance(Tokenizer.from_file(str(draft / "tokenizer.json")), Tokenizer)
    assert tokenizer_digest(load_tokenizer(str(draft))) != ours


def test_the_parts_of_a_tokenizer_show_where_two_differ(draft):
    ours = tokenizer_parts(load_tokenizer(str(PAIR / "target")))
    assert len(ours.blocks) == 4 * -(-ours.entries // 32)
    assert tokenizer_parts(load_tokenizer(str(draft))) == ours
    spec = json.loads((draft / "tokenizer.json").read_text())
    vocab = spec["model"]["vocab"]
    first, second = list(vocab)[300], list(vocab)[301]
    vocab[first], vocab[second] = vocab[second], vocab[first]
    (draft / "tokenizer.json").write_text(json.dumps(spec))
    theirs = tokenizer_parts(load_tokenizer(str(draft)))
    differ = [at // 4 for at in range(0, len(ours.blocks), 4) if ours.blocks[at : at + 4] != theirs.blocks[at : at + 4]]
    assert differ == sorted({vocab[first] // 32, vocab[second] // 32})
    assert (theirs.entries, theirs.merges, theirs.special) == (ours.entries, ours.merges, ours.special)


@pytest.mark.parametrize("unknown", ["<unk>", None])
def test_a_special_token_without_characters_is_none(draft, unknown):
    edit(draft / "tokenizer_config.json", eos_token="", pad_token=None, unk_token=unknown)
    tokenizer = load_tokenizer(str(draft))
    assert tokenizer.eos_token_id is None
    assert tokenizer.all_special_tokens == ["<s>", *([unknown] if unknown else [])]
    assert tokenizer_parts(FastTokenizer(KeptTokenizer.of(tokenizer))) == tokenizer_parts(tokenizer)


def test_a_device_that_is_not_here_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device("auto") == CPU
    with pytest.raises(ConfigError, match="use --device cpu"):
        resolve_device("cuda")
    with pytest.raises(ConfigError, match="not a torch device"):
        resolve_device("gpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert resolve_device("auto").type == "cuda"
    with pytest.raises(ConfigError, match="1 GPUs are visible"):
        resolve_device("cuda:1")


def test_a_tokens_piece_is_its_text_behind_others():
    codec = TokenizerCodec(load_tokenizer(str(PAIR / "target")))
    ids = codec.encode("Tell a story, wörld <s> now")
    assert codec.pieces([]) == []
    assert "".join(codec.pieces(ids)) == codec.decode(ids, skip_special_tokens=False) == "Tell a story, wörld <s> now"
    assert codec.decode(ids) == "Tell a story, wörld  now"
    assert set(codec.pieces(codec.encode("日"))) == {"\ufffd"}
