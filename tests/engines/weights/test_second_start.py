"""What a second start reads instead of importing transformers is what transformers reads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from transformers import Gemma4TextConfig, LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from actors.engines.decoder.configuration import spec_of
from actors.engines.decoder.families.parts import rotation
from actors.engines.text.kept_tokenizer import FastTokenizer, KeptTokenizer
from actors.engines.text.tokenizer import TokenizerCodec, TokenizerFacts
from actors.engines.weights.kept_config import KeptConfig
from actors.engines.weights.loading import load_tokenizer
from protocols.messages import ChatTurn, Rendering, ToolCall
from tests.engines.families import FAMILIES, config_of

ROOT = Path(__file__).parents[3]
TARGET = ROOT / "duoactor" / "pair" / "target"
TEXTS = ("", " a", "def f(x):\n\treturn 12345\n", "Ünïcode 日本語 \U0001f600", "<s>not special</s>", "\x00\x7f  ")
TOOLS = '[{"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}]'
TURNS = (
    ChatTurn("system", "Short."),
    ChatTurn("user", "What is </s> the time?"),
    ChatTurn("assistant", "", (ToolCall("call_1", "now", "{}"),)),
    ChatTurn("tool", "12", tool_call_id="call_1"),
    ChatTurn("assistant", "It is"),
)
SCRIPT = """
import sys
from actors.engines.build import EngineOptions, build_target
from actors.settings import VerifierSettings
from actors.verifier.start import head_of
target, codec = build_target(sys.argv[1], EngineOptions(kv_tokens=512))
assert head_of(VerifierSettings(target=sys.argv[1]), target, None) is None
print(codec.encode("a b c"), target.info.tokenizer_digest, "transformers" in sys.modules)
"""


def through_json(kept: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(kept), type=type(kept))


def test_a_kept_tokenizer_does_what_transformers_own_does():
    theirs = load_tokenizer(str(TARGET))
    ours = FastTokenizer(through_json(KeptTokenizer.of(theirs)))
    assert TokenizerFacts.of(ours) == TokenizerFacts.of(theirs)
    codecs = [TokenizerCodec(tokenizer) for tokenizer in (ours, theirs)]
    config = codecs[0].config()
    assert config == codecs[1].config()
    assert (config["tokenizer_class"], config["eos_token"]) == ("PreTrainedTokenizerFast", theirs.eos_token)
    assert config["chat_template"] == theirs.chat_template
    for text in TEXTS:
        one, other = ([codec.encode(text, special) for special in (True, False)] for codec in codecs)
        assert one == other
        answers = [(codec.pieces(one[0]), codec.octets(one[0]), codec.decode(one[0], False)) for codec in codecs]
        assert answers[0] == answers[1]
    for rendering in (Rendering(), Rendering(plain=True), Rendering(continue_final=True)):
        assert codecs[0].chat(TURNS, TOOLS, rendering) == codecs[1].chat(TURNS, TOOLS, rendering)


def test_a_second_start_imports_no_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    monkeypatch.setenv("DUOACTOR_CACHE", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["-c", str(TARGET)])
    exec(SCRIPT, {})
    first = capsys.readouterr().out.split()
    second = subprocess.check_output([sys.executable, "-c", SCRIPT, str(TARGET)], cwd=ROOT, text=True).split()
    assert first[:-1] == second[:-1]
    assert (first[-1], second[-1]) == ("True", "False")


def test_the_first_start_of_a_gguf_file_needs_no_configuration_of_transformers():
    file = next((ROOT / "tests" / "data" / "writers" / "gguf-q4_k_m" / "model").glob("*.gguf"))
    line = (
        "import sys; from actors.engines.weights.loading import checkpoint_of; "
        "print(checkpoint_of(sys.argv[1]).known_config().dtype)"
    )
    line += "; print('transformers' in sys.modules)"
    found = subprocess.check_output([sys.executable, "-c", line, str(file)], cwd=ROOT, text=True)
    assert found.split() == ["torch.bfloat16", "False"]


def test_layers_with_heads_of_their_own_are_kept_where_transformers_counts_with_zeros():
    config = Gemma4TextConfig(hidden_size=64, num_hidden_layers=12)
    assert {"05", "11"} == set(config.to_dict()["per_layer_config"])
    kept = through_json(KeptConfig.of(config))
    assert kept.own and spec_of(kept.config()) == spec_of(config)


def test_a_kept_configuration_describes_every_fused_family_alike():
    kept = 0
    for name in FAMILIES:
        config = config_of(name)
        plain = through_json(KeptConfig.of(config))
        if spec_of(config) is not None:
            assert spec_of(plain.config()) == spec_of(config), name
            kept += 1
        else:
            assert plain == KeptConfig(), name
    assert kept > 30


@pytest.mark.parametrize(
    "parameters",
    [
        {"rope_type": "linear", "factor": 3.0},
        {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
        | {"original_max_position_embeddings": 8192},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096},
        {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096, "truncate": False}
        | {"beta_fast": 32.0, "beta_slow": 1.0},
        {"rope_type": "yarn", "factor": 40.0, "mscale": 1.0, "mscale_all_dim": 0.7}
        | {"original_max_position_embeddings": 4096},
    ],
    ids=["linear", "llama3", "yarn", "whole", "scaled"],
)
def test_stretched_frequencies_have_the_bits_of_transformers(parameters: dict[str, Any]):
    rope = parameters | {"rope_theta": 500000.0}
    config = LlamaConfig(rope_parameters=rope, head_dim=96, max_position_embeddings=131072)
    expected, factor = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config, torch.device("cpu"))
    ours = rotation(config)
    assert (torch.tensor(ours.frequencies).tolist(), ours.factor) == (expected.tolist(), factor)
